"""The RAS client of NCCL 2.24 and later, as text and as JSON."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.nccl import RasReport
from isthmus.doctor.readers.json_text import entries, items, json_values, text_of
from isthmus.doctor.text import Document

__all__ = ["read_ras"]

_PROCESS = re.compile(r"\s*Process (?P<pid>\d+) on node (?P<node>\S+)(?: managing GPUs? (?P<gpu>[\d, -]+))?")
_COMMUNICATOR = re.compile(
    r"#(?P<group>\d+)-(?P<number>\d+) \((?P<hash>[0-9a-f]+)\) (?P<word>INCOMPLETE|MISMATCH|ERROR|NOCOMM|ABORT|[A-Z]{3,})"
)
_MISSING = re.compile(r"The missing ranks?: (?P<ranks>[\d,\s-]+)")
_WORD = re.compile(r"(?P<word>DEAD|UNRESPONSIVE|TIMEOUT|INCOMPLETE)\s*$")
_STATUS = re.compile(r"\s+\d+\s+\d+\s+\S+\s+\S+\s+\d+\s+\d+\s+(?P<status>[A-Z]+)\s+(?P<errors>OK|[A-Z]+)\s*$")
_JOB = re.compile(r"Nodes\s+Processes\s+GPUs\s+Processes\s+GPUs")
_BEHIND = re.compile(r"\s*(?P<count>\d+) ranks? (?:has|have) (?P<what>launched up to operation \d+|status \w+)")


def read_ras(document: Document) -> Iterator[RasReport]:
    """Statements in their order; `ok` where the summary finds nothing."""
    word = ""
    for index, line in enumerate(document.lines):
        at = document.place(index)
        if found := _COMMUNICATOR.match(line.strip()):
            word = found["word"].lower()
            yield RasReport(
                at=at,
                kind="mismatch" if word == "mismatch" else "incomplete",
                what=f"communicator {found['hash']}",
                node="",
                rank="",
            )
        elif found := _WORD.match(line.strip()):
            word = found["word"].lower()
        elif found := _PROCESS.match(line):
            kind = word if word in {"dead", "unresponsive", "timeout"} else "dead"
            gpu = f", GPU {found['gpu'].strip()}" if found["gpu"] else ""
            yield RasReport(at=at, kind=kind, what=f"process {found['pid']} on {found['node']}{gpu}", node=found["node"], rank="")
        elif found := _MISSING.search(line):
            yield RasReport(at=at, kind="missing", what="communicator data", node="", rank=found["ranks"].strip())
        elif found := _STATUS.match(line):
            kind = "ok" if found["errors"] == "OK" else found["errors"].lower()
            yield RasReport(
                at=at,
                kind=kind if kind in {"ok", "mismatch", "incomplete"} else "incomplete",
                what=found["status"],
                node="",
                rank="",
            )
        elif found := _BEHIND.match(line):
            yield RasReport(at=at, kind="count", what=f"{found['count']} ranks have {found['what']}", node="", rank="")
        elif _JOB.search(line):
            yield RasReport(at=at, kind="ok", what="job summary", node="", rank="")
    yield from _json(document)


def _json(document: Document) -> Iterator[RasReport]:
    for start, value in json_values(document, '"communicators"'):
        at = document.place(start)
        yield RasReport(at=at, kind="ok", what=f"NCCL {text_of(value.get('nccl_version'))}", node="", rank="")
        for communicator in items(value.get("communicators")):
            fields = dict(entries(communicator))
            for missing in items(fields.get("missing_ranks")):
                one = dict(entries(missing))
                rank = text_of(one.get("rank") if one else missing)
                status = {**one, **dict(entries(one.get("status")))}
                dead, unresponsive = status.get("considered_dead") is True, status.get("unresponsive") is True
                line = next((i for i in range(start, len(document.lines)) if "missing_ranks" in document.lines[i]), start)
                kind = "dead" if dead else "unresponsive" if unresponsive else "missing"
                what = f"rank {rank} of communicator {text_of(fields.get('hash'))}"
                yield RasReport(at=document.place(line), kind=kind, what=what, node=text_of(one.get("host")), rank=rank)
