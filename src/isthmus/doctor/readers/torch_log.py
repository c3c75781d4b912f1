"""torch.distributed's watchdog of every release, and the desync report that follows it."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.host import Version
from isthmus.doctor.facts.nccl import NcclEvent, Watchdog
from isthmus.doctor.readers.stamps import stamp
from isthmus.doctor.text import Document

__all__ = ["read_torch"]

_WORK = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\((?P<fields>[^)]*\)?[^)]*)\) ran for (?P<ms>\d+)")
_RANK = re.compile(r"\[Rank (?P<rank>\d+)\]|\bRank (?P<rank2>\d+)\]")
_FIELD = re.compile(r"(\w+)(?:\(ms\))?=(\w+)")
_GROUP = re.compile(r"\[(?P<group>PG (?:ID )?\d+[^\]]*?) Rank (?P<rank>\d+)\]")
_LAST = re.compile(r"last completed (?:NCCL )?work: (?P<last>-?\d+)")
_LAGGING = re.compile(
    r"\[(?P<ranks>\d+(?:,\s*\d+)*)\] (?P<what>finished collective #\d+.*didn't join.*|joined but didn't finish.*)"
)
_TORCH_VERSION = re.compile(r"\((?P<major>2), (?P<minor>\d{1,2}), (?P<patch>\d{1,2})\)")


def read_torch(document: Document) -> Iterator[Watchdog | NcclEvent | Version]:
    """Watchdog reports with rank, group and sequence number; ranks that the desync report calls lagging."""
    groups: dict[str, str] = {}
    asked_version = False
    for index, line in enumerate(document.lines):
        if "Rank" in line and (group := _GROUP.search(line)):
            groups[group["rank"]] = re.sub(r"\s+", " ", group["group"])
        if "Watchdog caught" in line and (work := _WORK.search(line)):
            yield _watchdog(document, index, work, groups)
        elif "last completed" in line and (last := _LAST.search(line)) and (rank := _RANK.search(line)):
            yield _event(document, index, "last-completed", {"rank": rank["rank"] or rank["rank2"], "work": last["last"]})
        elif "collective #" in line and (lagging := _LAGGING.search(line)):
            yield _event(document, index, "lagging", {"ranks": lagging["ranks"], "what": lagging["what"]})
        if "nccl.version()" in line:
            asked_version = True
        elif asked_version and (version := _TORCH_VERSION.search(line)):
            asked_version = False
            yield Version(
                at=document.place(index),
                software="nccl",
                version=f"{version['major']}.{version['minor']}.{version['patch']}",
                rank="torch",
            )


def _watchdog(document: Document, index: int, work: re.Match[str], groups: dict[str, str]) -> Watchdog:
    line = document.lines[index]
    fields = dict(_FIELD.findall(work["fields"]))
    found = _RANK.search(line)
    rank = (found["rank"] or found["rank2"]) if found else document.labels.get(index, "").removeprefix("rank")
    group = _GROUP.search(line)
    sequence = fields.get("SeqNum", "")
    return Watchdog(
        at=document.place(index),
        rank=rank,
        group=re.sub(r"\s+", " ", group["group"]) if group else groups.get(rank, ""),
        sequence=int(sequence) if sequence.isdecimal() else -1,
        operation=fields.get("OpType", ""),
        elements=f"{fields.get('NumelIn', '')}/{fields.get('NumelOut', '')}".strip("/"),
        last_completed=None,
    )


def _event(document: Document, index: int, kind: str, values: dict[str, str]) -> NcclEvent:
    line = document.lines[index]
    return NcclEvent(
        at=document.place(index),
        kind=kind,
        process=document.labels.get(index, ""),
        text=line.strip(),
        values=values,
        when=stamp(line)[1],
    )
