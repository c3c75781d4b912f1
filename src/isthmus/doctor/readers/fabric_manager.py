"""Fabric manager: its own log, systemd's words about its service, `systemctl status`, IMEX."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.gpu import FabricManager, ImexState
from isthmus.doctor.facts.host import Version
from isthmus.doctor.text import Document

__all__ = ["read_fabric_manager"]

# (pattern, state): the first that matches a line decides what the line says.
_STATES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"NV_WARN_NOTHING_TO_DO"), "nothing-to-do"),
    (
        re.compile(
            r"[Ss]tarted \"?Nvidia Fabric Manager|Started nvidia-fabricmanager|Successfully configured all the "
            r"available NVSwitches"
        ),
        "running",
    ),
    (re.compile(r"successfully (?:setup|released) multicast team|multicast group \d+ is (?:allocated|freed)"), "running"),
    (re.compile(r"Received an inband message|Sending inband response"), "running"),
    (
        re.compile(
            r"nvidia-fabricmanager.service: (?:Failed|Main process exited|Control process exited)|"
            r"Failed to start (?:nvidia-fabricmanager|NVIDIA fabric manager)",
            re.IGNORECASE,
        ),
        "failed",
    ),
    (
        re.compile(
            r"(?:fabric manager|nv-fabricmanager).*(?:version mismatch|don't match|does not match)|"
            r"NVIDIA driver interface version .* (?:don't|does not) match",
            re.IGNORECASE,
        ),
        "version-mismatch",
    ),
    (re.compile(r"non-fatal", re.IGNORECASE), ""),
    (re.compile(r"\[(?:ERROR|FATAL|CRITICAL)\]"), "error"),
)
_ACTIVE = re.compile(r"\s*Active:\s*(?P<state>active|inactive|failed|activating)\s*\((?P<sub>[^)]*)\)")
_UNIT = re.compile(r"nvidia-fabricmanager(?:\.service)?\b")
_IS_ACTIVE = re.compile(r"nvidia-fabricmanager(?:\.service)?[ :=]+(?P<state>active|inactive|failed|unknown)\s*$")
_VERSION = re.compile(r"Fabric Manager version(?: is)?\s*:?\s*(?P<version>\d+\.[\d.]+)", re.IGNORECASE)
_IMEX = re.compile(r"Domain State:\s*(?P<state>\w+)", re.IGNORECASE)
_IMEX_NODE = re.compile(r"Node #?\d+\s*[-*]+\s*(?P<node>[\w.:-]+)\s*[-*]+\s*(?P<state>[A-Z_]+)")


def read_fabric_manager(document: Document) -> Iterator[FabricManager | ImexState | Version]:
    """Facts in the order of the log: the last state is the present one."""
    unit = False
    for index, line in enumerate(document.lines):
        if version := _VERSION.search(line):
            yield Version(at=document.place(index), software="fabricmanager", version=version["version"].rstrip("."), rank="")
        if word := _IS_ACTIVE.search(line):
            yield _state(document, index, {"active": "running"}.get(word["state"], word["state"]))
            continue
        unit = bool(_UNIT.search(line)) or (unit and not line.startswith(("*", "●")) and bool(line.strip()))
        active = _ACTIVE.match(line) if unit else None
        if active:
            yield _state(document, index, "running" if active["state"] in {"active", "activating"} else active["state"])
        elif state := next((state for pattern, state in _STATES if pattern.search(line)), ""):
            yield _state(document, index, state)
        elif domain := _IMEX.search(line):
            yield ImexState(at=document.place(index), node="", state=domain["state"])
        elif node := _IMEX_NODE.search(line):
            yield ImexState(at=document.place(index), node=node["node"], state=node["state"])


def _state(document: Document, index: int, state: str) -> FabricManager:
    return FabricManager(at=document.place(index), state=state, version="", message=document.lines[index].strip()[:200])
