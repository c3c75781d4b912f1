"""A network bundle on disk: do its files still agree with each other and with what switches accept."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isthmus.deploy.marks import MARKS, Marks
from isthmus.deploy.pieces import Finding
from isthmus.deploy.request import Request

__all__ = ["check"]

_MARKS = {
    "eos.conf": re.compile(r"^qos map dscp (\d+) to traffic-class (\d+)$", re.M),
    "cumulus.sh": re.compile(r"^nv set qos mapping default-global dscp (\d+) switch-priority (\d+)$", re.M),
    "isthmus-host.sh": re.compile(r"--dscp2prio set,(\d+),(\d+)$", re.M),
}


def check(folder: Path, request: Request) -> list[Finding]:
    """What contradicts among switches, adapters and plan."""
    marks, found = MARKS, list(_shared_class(request))
    for path in sorted(folder.glob("*/*/*")):
        if path.name == "sonic-config_db.json":
            found += _sonic(path, marks)
        elif path.name in _MARKS:
            found += _marks(path, marks)
    return found


def _shared_class(request: Request) -> Iterator[Finding]:
    """RDMA between regions in the class that is lossless at home: what waits for the WAN then stops the whole site."""
    group = request.plan.strategy.region_group
    if group is None or group.traffic_class is None or group.traffic_class >> 2 != MARKS.data_dscp:
        return
    if any(site.region.network.kind == "roce" for site in request.sites.sites):
        found = f"region_group.traffic_class {group.traffic_class} is DSCP {MARKS.data_dscp}, lossless on the regions' switches"
        hint = "a queue before the WAN would pause the senders and all behind them: give it another class, such as 136 (DSCP 34)"
        yield Finding("warning", str(request.plan_path), found, hint)


def _marks(path: Path, marks: Marks) -> Iterator[Finding]:
    text = path.read_text(encoding="utf-8")
    pairs = [(int(dscp), int(priority)) for dscp, priority in _MARKS[path.name].findall(text)]
    for dscp, priority in pairs:
        if priority != marks.priority(dscp):
            yield _differs(path, dscp, priority, marks)
    if pairs and {dscp for dscp, _ in pairs} != {marks.data_dscp, marks.cnp_dscp}:
        yield Finding("error", str(path), f"does not mark DSCP {marks.data_dscp} and {marks.cnp_dscp}", "write the bundle anew")


def _differs(path: Path, dscp: int, priority: int, marks: Marks) -> Finding:
    found = (
        f"puts DSCP {dscp} on priority {priority}, adapters and NCCL (NCCL_IB_TC={marks.traffic_class}) on {marks.priority(dscp)}"
    )
    return Finding("error", str(path), found, "all files of a region must use one map: write the bundle anew")


def _sonic(path: Path, marks: Marks) -> Iterator[Finding]:
    try:
        tables: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        yield Finding("error", str(path), f"is not JSON: {error}")
        return
    for table, rows in tables.items():
        for row, fields in rows.items():
            for field, value in fields.items():
                if not isinstance(value, str):
                    yield Finding("error", str(path), f"{table}|{row} {field} is {value!r}", "config_db holds strings only")
    for dscp, priority in next(iter(tables["DSCP_TO_TC_MAP"].values())).items():
        if int(priority) != marks.priority(int(dscp)):
            yield _differs(path, int(dscp), int(priority), marks)
    yield from _sonic_rules(path, tables)


def _sonic_rules(path: Path, tables: dict[str, dict[str, dict[str, Any]]]) -> Iterator[Finding]:
    """Rules of SONiC's YANG models that a hand's edit breaks most easily."""
    for name, profile in tables["WRED_PROFILE"].items():
        for colour in ("green", "yellow", "red"):
            if int(profile[f"{colour}_max_threshold"]) < int(profile[f"{colour}_min_threshold"]):
                yield Finding("error", str(path), f"WRED_PROFILE|{name}: {colour}_max_threshold is below {colour}_min_threshold")
    poll = int(tables["PFC_WD"]["GLOBAL"]["POLL_INTERVAL"])
    for port, row in tables["PFC_WD"].items():
        for time in ("detection_time", "restoration_time"):
            if port != "GLOBAL" and int(row[time]) < poll:
                yield Finding("error", str(path), f"PFC_WD|{port}: {time} {row[time]} is below POLL_INTERVAL {poll}")
    for queue, row in tables["QUEUE"].items():
        for field, table in (("scheduler", "SCHEDULER"), ("wred_profile", "WRED_PROFILE")):
            if field in row and row[field] not in tables[table]:
                yield Finding("error", str(path), f"QUEUE|{queue}: no {table} is called {row[field]!r}")
