"""Clocks: chronyc tracking and sources, ntpq -p, ptp4l and phc2sys logs, pmc, timedatectl."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.host import ClockState
from isthmus.doctor.text import Document, decimal, real

__all__ = ["read_clocks"]

_TRACKING = re.compile(
    r"\s*(?P<key>System time|Last offset|Root delay|Root dispersion|Leap status|Reference ID)\s*:\s*(?P<value>.*?)\s*$"
)
_SIGNED = re.compile(r"(?P<value>[-+]?[\d.,]+(?:e[-+]?\d+)?) seconds")
_SOURCE = re.compile(
    r"(?P<mode>[\^=#])(?P<state>[*+\-?x~])\s*(?P<name>\S+)\s+(?P<stratum>\d+)\s+(?P<poll>\d+)\s+(?P<reach>\d+)\s+(?P<last>\S+)\s+"
    r"(?P<offset>[-+]?[\d.]+(?:ns|us|ms|s))\s*\[\s*[-+]?[\d.]+(?:ns|us|ms|s)\s*\]\s*\+/-\s*(?P<error>[\d.]+(?:ns|us|ms|s))"
)
_NTPQ_HEAD = re.compile(r"\s*remote\s+refid\s+st\s+t\s+when\s+poll\s+reach\s+delay\s+offset\s+(?:jitter|disp)")
_NTPQ = re.compile(
    r"(?P<mark>[ *o+\-x#.])(?P<remote>\S+)\s+(?P<refid>\S+)\s+(?P<stratum>\d+)\s+(?P<type>[a-zA-Z\-])\s+\S+\s+\d+\s+"
    r"(?P<reach>\d+)\s+(?P<delay>-?[\d.,]+)\s+(?P<offset>[-+]?[\d.,]+)\s+(?P<jitter>[\d.,]+)\s*$"
)
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_PTP_OFFSET = re.compile(
    r"(?:master offset|phc offset|rms)\s+(?P<offset>-?\d+)(?:\s+max\s+(?P<most>\d+))?(?:\s+(?P<state>s[0-3]))?"
)
_PTP_STATE = re.compile(r"port \d+(?: \((?P<interface>[^)]*)\))?: (?P<old>\w+) to (?P<new>\w+) on (?P<why>\w+)")
_PMC_OFFSET = re.compile(r"\s*offsetFromMaster\s+(?P<offset>-?[\d.]+(?:e[-+]?\d+)?)\s*$")
_PMC_STATE = re.compile(r"\s*portState\s+(?P<state>[A-Z_]+)\s*$")
_TIMEDATE = re.compile(r"\s*(?:System clock synchronized|NTP synchronized):\s*(?P<answer>yes|no)", re.IGNORECASE)


def read_clocks(document: Document) -> Iterator[ClockState]:
    """One state a tool and block."""
    yield from _tracking(document)
    yield from _sources(document)
    yield from _ntpq(document)
    yield from _ptp(document)
    for index, line in enumerate(document.lines):
        if "ynchronized" in line and (answer := _TIMEDATE.match(line)):
            yes = answer["answer"].lower() == "yes"
            message = "timedatectl: the system clock is " + ("synchronised" if yes else "not synchronised")
            yield ClockState(
                at=document.place(index), tool="timedatectl", synchronised=yes, offset_s=None, bound_s=None, message=message
            )


def _tracking(document: Document) -> Iterator[ClockState]:
    values: dict[str, str] = {}
    at = -1
    for index, line in enumerate(document.lines):
        row = _TRACKING.match(line) if ":" in line else None
        if row is None:
            continue
        if row["key"] == "Reference ID":
            values = {}
        values[row["key"]] = row["value"]
        at = index if row["key"] in {"System time", "Leap status"} and at < 0 else at
        if row["key"] == "Leap status" and ("System time" in values or "Root delay" in values or "Reference ID" in values):
            yield _tracked(document, max(index if "ot sync" in row["value"] else at, 0), values)
            values, at = {}, -1


def _tracked(document: Document, index: int, values: dict[str, str]) -> ClockState:
    def seconds(key: str) -> float | None:
        match = _SIGNED.match(values.get(key, ""))
        return decimal(match["value"]) if match else None

    offset = seconds("System time")
    if offset is not None and "slow" in values["System time"]:
        offset = -offset
    delay, dispersion = seconds("Root delay"), seconds("Root dispersion")
    # chronyc(1): |system time| + root dispersion + root delay / 2 bounds the error of the clock.
    bound = None if offset is None or delay is None or dispersion is None else abs(offset) + dispersion + delay / 2
    leap = values.get("Leap status", "")
    return ClockState(
        at=document.place(index),
        tool="chronyc",
        synchronised=None if not leap else "not sync" not in leap.lower(),
        offset_s=offset,
        bound_s=bound,
        message=f"chronyc: leap status {leap!r}",
    )


def _seconds(text: str) -> float:
    match = re.match(r"([-+]?[\d.]+)(ns|us|ms|s)", text)
    return real(match[1]) * _UNIT_S[match[2]] if match else 0.0


def _sources(document: Document) -> Iterator[ClockState]:
    rows = [(index, row) for index, line in enumerate(document.lines) if line[:1] in "^=#" and (row := _SOURCE.match(line))]
    if not rows:
        return
    chosen = next((pair for pair in rows if pair[1]["state"] == "*"), None)
    index, row = chosen or rows[0]
    if chosen is None:
        yield ClockState(
            at=document.place(index),
            tool="chronyc",
            synchronised=False,
            offset_s=None,
            bound_s=None,
            message="chronyc sources: no source is selected (no '*')",
        )
        return
    offset = _seconds(row["offset"])
    yield ClockState(
        at=document.place(index),
        tool="chronyc",
        synchronised=True,
        offset_s=offset,
        bound_s=None,
        message=f"chronyc sources: {row['name']} is selected",
    )


def _ntpq(document: Document) -> Iterator[ClockState]:
    head = next((index for index, line in enumerate(document.lines) if "remote" in line and _NTPQ_HEAD.match(line)), -1)
    if head < 0:
        return
    rows = [(index, row) for index in range(head + 1, len(document.lines)) if (row := _NTPQ.match(document.lines[index]))]
    chosen = next((pair for pair in rows if pair[1]["mark"] in "*o"), None)
    if chosen is None and rows:
        index, worst = max(rows, key=lambda pair: abs(decimal(pair[1]["offset"]) or 0.0))
        yield ClockState(
            at=document.place(index),
            tool="ntpq",
            synchronised=False,
            offset_s=(decimal(worst["offset"]) or 0.0) / 1e3,
            bound_s=None,
            message="ntpq: no peer is selected (no '*')",
        )
    elif chosen:
        index, row = chosen
        offset, jitter = (decimal(row["offset"]) or 0.0) / 1e3, (decimal(row["jitter"]) or 0.0) / 1e3
        yield ClockState(
            at=document.place(index),
            tool="ntpq",
            synchronised=True,
            offset_s=offset,
            bound_s=None,
            message=f"ntpq: peer {row['remote']}, jitter {jitter:.6g} s",
        )


def _ptp(document: Document) -> Iterator[ClockState]:
    for index, line in enumerate(document.lines):
        if ("ptp4l" in line or "phc2sys" in line or "port " in line) and (change := _PTP_STATE.search(line)):
            new = change["new"]
            bad = (
                new in {"FAULT_DETECTED", "FAULTY"}
                or (new == "MASTER" and change["old"] in {"UNCALIBRATED", "SLAVE"})
                or (change["old"] == "SLAVE" and new != "SLAVE")
            )
            good = new == "SLAVE"
            yield ClockState(
                at=document.place(index),
                tool="ptp4l",
                synchronised=False if bad else True if good else None,
                offset_s=None,
                bound_s=None,
                message=f"ptp4l: {change['interface'] or 'port'} went from {change['old']} to {new} on {change['why']}",
            )
        elif (
            ("offset" in line or " rms " in line)
            and ("ptp4l" in line or "phc2sys" in line)
            and (found := _PTP_OFFSET.search(line))
        ):
            locked = None if not found["state"] else found["state"] in {"s2", "s3"}
            yield ClockState(
                at=document.place(index),
                tool="ptp4l",
                synchronised=locked,
                offset_s=int(found["offset"]) / 1e9,
                bound_s=None,
                message="ptp4l or phc2sys: " + ("servo not locked (s0/s1)" if locked is False else "offset"),
            )
        elif "offsetFromMaster" in line and (found := _PMC_OFFSET.match(line)):
            yield ClockState(
                at=document.place(index),
                tool="pmc",
                synchronised=None,
                offset_s=real(found["offset"]) / 1e9,
                bound_s=None,
                message="pmc: offset from master",
            )
        elif "portState" in line and (found := _PMC_STATE.match(line)):
            yield ClockState(
                at=document.place(index),
                tool="pmc",
                synchronised=found["state"] in {"SLAVE", "MASTER", "GRAND_MASTER", "PASSIVE"},
                offset_s=None,
                bound_s=None,
                message=f"pmc: port state {found['state']}",
            )
