"""Switches: SONiC's and Cumulus's PFC, drop and ECN tables, Arista's watchdog JSON, ibswinfo, SAI counter dumps."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.network import PfcWatchdog, PriorityCounters, SwitchHealth, SwitchProfile
from isthmus.doctor.readers.json_text import entries, json_values, text_of
from isthmus.doctor.text import Document, count

__all__ = ["read_switch"]

Fact = PfcWatchdog | PriorityCounters | SwitchHealth | SwitchProfile
_WATCHDOG = re.compile(
    r"\s*(?P<queue>[A-Za-z]\S*:\d+)\s+(?P<status>operational|stormed|N/A)\s+(?P<detected>\d+)/(?P<restored>\d+)\s"
)
_TABLE_HEAD = re.compile(r"\s*(?:Port|Ports?) ?(?P<way>Rx|Tx|RX|TX)?\s+(?P<first>PFC|PG|PRI|UC)0\s")
_TABLE_ROW = re.compile(r"\s*(?P<interface>[A-Za-z][\w./-]*\d)\s+(?P<values>(?:[\d,]+|N/A)(?:\s+(?:[\d,]+|N/A)){3,})\s*$")
_CONFIG = re.compile(
    r"\s*(?P<interface>[A-Za-z][\w/-]*\d)\s+(?P<action>drop|forward|alert|N/A)\s+(?P<detection>\d+"
    r"|N/A)\s+(?P<restoration>\d+|N/A|infinite)\b"
)
_PROFILE = re.compile(r"Profile: \**(?P<name>[\w.-]+)\**")
_PROFILE_ROW = re.compile(r"(?P<key>[a-z][a-z_]+)\s{2,}(?P<value>\S+)\s*$")
_SENSOR = re.compile(
    (
        r"\s*(?P<part>(?:PSU ?\d+ |fan ?\d* |FAN ?\d* |DC power|temperature |power )?(?:fan )?(?:status|DC "
        r"power|DC status))\s*\|\s*(?P<status>[A-Z][A-Z ]+)\s*$"
    ),
    re.IGNORECASE,
)
_SAI_PRIORITY = re.compile(r"Prio (?P<priority>[0-7])\s*$")
_SAI_PAUSE = re.compile(r"(?P<way>rx|tx)_pause\s*=\s*(?P<value>\d+)")
_CUMULUS = re.compile(r"\s*(?P<priority>[0-7])\s+(?P<rx>\d+)\s+(?P<tx>\d+)\s*$")
_CUMULUS_HEAD = re.compile(r"(?:switch-priority|pfc)\s+.*rx-pause-(?:frames|packets).*tx-pause-(?:frames|packets)", re.IGNORECASE)


def read_switch(document: Document) -> Iterator[Fact]:
    """Facts of whatever switch commands are in the text."""
    yield from _tables(document)
    yield from _profiles(document)
    yield from _sensors(document)
    yield from _sai(document)
    yield from _arista(document)


def _tables(document: Document) -> Iterator[Fact]:
    kind, since_clear = "", False
    for index, line in enumerate(document.lines):
        if watchdog := _WATCHDOG.match(line):
            yield PfcWatchdog(
                at=document.place(index),
                queue=watchdog["queue"],
                status=watchdog["status"],
                detected=int(watchdog["detected"]),
                restored=int(watchdog["restored"]),
            )
        elif "cached time" in line:
            since_clear = True
        elif head := _TABLE_HEAD.match(line + " "):
            dropped = any("drop" in text.lower() for text in document.lines[max(0, index - 3) : index])
            way = (head["way"] or "").lower()
            kind = f"pfc-{way}" if head["first"] == "PFC" and way else "drops" if dropped else "levels"
        elif kind and (row := _TABLE_ROW.match(line)):
            values = tuple(count(word) or 0 for word in row["values"].split())
            yield PriorityCounters(
                at=document.place(index), kind=kind, interface=row["interface"], values=values, since_clear=since_clear
            )
        elif _CUMULUS_HEAD.search(line):
            kind = "cumulus"
        elif kind == "cumulus" and (one := _CUMULUS.match(line)):
            yield from _cumulus(document, index, one)
        elif config := _CONFIG.match(line):
            words = {"action": config["action"], "detection_ms": config["detection"], "restoration_ms": config["restoration"]}
            yield SwitchProfile(at=document.place(index), kind="pfc-watchdog", name=config["interface"], values=words)


def _cumulus(document: Document, index: int, row: re.Match[str]) -> Iterator[PriorityCounters]:
    """`nv show interface swpN counters qos pfc-stats`: one priority a line."""
    for kind, value in (("pfc-rx", row["rx"]), ("pfc-tx", row["tx"])):
        values = [0] * 8
        values[int(row["priority"])] = int(value[:18])
        yield PriorityCounters(at=document.place(index), kind=kind, interface="", values=tuple(values), since_clear=False)


def _profiles(document: Document) -> Iterator[SwitchProfile]:
    name, start, values = "", 0, dict[str, str]()
    for index, line in enumerate(document.lines):
        head = _PROFILE.search(line) if "Profile:" in line else None
        if head and name:
            yield SwitchProfile(at=document.place(start), kind="ecn", name=name, values=values)
        if head:
            name, start, values = head["name"], index, {}
        elif name and (row := _PROFILE_ROW.match(line.strip())):
            values[row["key"]] = row["value"]
    if name:
        yield SwitchProfile(at=document.place(start), kind="ecn", name=name, values=values)


def _sensors(document: Document) -> Iterator[SwitchHealth]:
    unit = ""
    for index, line in enumerate(document.lines):
        if "|" in line and (sensor := _SENSOR.match(line)):
            part = re.sub(r"\s+", " ", sensor["part"]).strip()
            if found := re.match(r"PSU ?\d+", part, re.IGNORECASE):
                unit = found.group()
            inside = line.startswith((" ", "\t")) and unit and not part.lower().startswith("psu")
            yield SwitchHealth(
                at=document.place(index), part=f"{unit} {part}" if inside else part, status=sensor["status"].strip().upper()
            )


def _sai(document: Document) -> Iterator[PriorityCounters]:
    priority: int | None = None
    for index, line in enumerate(document.lines):
        if head := _SAI_PRIORITY.match(line.strip()):
            priority = int(head["priority"])
        elif priority is not None and (row := _SAI_PAUSE.match(line.strip())):
            values = [0] * 8
            values[priority] = int(row["value"][:18])
            yield PriorityCounters(
                at=document.place(index), kind=f"hardware-{row['way']}", interface="", values=tuple(values), since_clear=False
            )


def _arista(document: Document) -> Iterator[PfcWatchdog]:
    for index, value in json_values(document, "stuckCount"):
        for interface, body in entries(value.get("interfaces")):
            for queue, leaf in entries(dict(entries(body)).get("txQueues")):
                numbers = dict(entries(leaf))
                stuck, recovered = (
                    count(text_of(numbers.get("stuckCount", 0))) or 0,
                    count(text_of(numbers.get("recoveryCount", 0))) or 0,
                )
                at = document.place(_line_of(document, index, f'"{interface}"'))
                yield PfcWatchdog(
                    at=at,
                    queue=f"{interface}:{queue}",
                    status="stormed" if stuck > recovered else "operational",
                    detected=stuck,
                    restored=recovered,
                )


def _line_of(document: Document, start: int, needle: str) -> int:
    return next((index for index in range(start, len(document.lines)) if needle in document.lines[index]), start)
