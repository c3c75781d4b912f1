"""`nvidia-smi -q` of any driver, whole or cut: an indented tree of `Name : value` lines under each GPU.

The tree is kept as printed, because its leaves moved between drivers more often than their names changed; renamed
sections are brought to their new name. A paste may start in the middle (`Clocks Throttle Reasons` alone).
"""

import re
from collections.abc import Iterator
from sys import intern

from isthmus.doctor.facts.gpu import GpuName, GpuReport
from isthmus.doctor.facts.host import Version
from isthmus.doctor.text import Document

__all__ = ["read_gpu_list", "read_query"]

_GPU = re.compile(r"\s*GPU (?P<bus>[0-9A-Fa-f]{4,8}:(?:[0-9A-Fa-f]{2}:)?[0-9A-Fa-f]{2}[:.][0-9A-Fa-f]{1,2}(?:\.\d)?)\s*$")
_PAIR = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][^:|]{0,60}?)\s*: ?(?P<value>.*)$")
_KEY = re.compile(r"[A-Za-z][^:|]{0,60}")
_HEADER = re.compile(r"(?P<indent> *)(?P<key>[A-Z][\w ./()&-]{1,50})\s*$")
_RENAMED = {"Clocks Throttle Reasons": "Clocks Event Reasons", "Gpu": "GPU"}
_SECTIONS = frozenset(
    [
        "Clocks Throttle Reasons",
        "Clocks Event Reasons",
        "Clocks",
        "ECC Errors",
        "Retired Pages",
        "Remapped Rows",
        "PCI",
        "Utilization",
        "Temperature",
        "Fabric",
        "Max Clocks",
        "Power Readings",
        "GPU Power Readings",
        "MIG Mode",
        "ECC Mode",
        "GPU Link Info",
    ]
)
_HEAD = {"Driver Version": "driver", "CUDA Version": "cuda"}


_LEFT_OUT = frozenset({"[...]", "..."})


class _Tree:
    """The GPU being read: a stack of (indent, path) gives each leaf its own."""

    def __init__(self, document: Document, index: int, bus: str, driver: str) -> None:
        self.at, self.bus, self.driver = document.place(index), bus, driver
        self.stack: list[tuple[int, str]] = []
        self.values: dict[str, tuple[str, int]] = {}

    def push(self, indent: int, key: str) -> str:
        stack = self.stack
        while stack and stack[-1][0] >= indent:
            stack.pop()
        name = _RENAMED.get(key, key)
        path = f"{stack[-1][1]}/{name}" if stack else name
        stack.append((indent, path))
        return path

    def report(self) -> GpuReport:
        return GpuReport(
            at=self.at, bus=self.bus or self.values.get("PCI/Bus Id", ("", 0))[0], driver=self.driver, values=self.values
        )


def read_query(document: Document) -> Iterator[GpuReport | Version]:
    """One GpuReport a GPU, or one for a fragment without its GPU line; versions from the head."""
    tree: _Tree | None = None
    driver, inside = "", False
    for index, line in enumerate(document.lines):
        if "NVSMI LOG" in line:
            inside = True
            continue
        gpu = _GPU.match(line) if "GPU " in line else None
        if gpu:
            if tree and tree.values:
                yield tree.report()
            tree, inside = _Tree(document, index, gpu["bus"], driver), True
            continue
        head = _PAIR.match(line) if inside and tree is None else None
        if head and head["key"].strip() in _HEAD:
            software, value = _HEAD[head["key"].strip()], head["value"].strip()
            driver = value if software == "driver" else driver
            yield Version(at=document.place(index), software=software, version=value, rank="")
            continue
        if tree is None and line.strip() in _SECTIONS:
            tree = _Tree(document, index, "", driver)
        if tree is not None and not _grow(tree, document, index, line):
            if tree.values:
                yield tree.report()
            tree = None
    if tree and tree.values:
        yield tree.report()


def _grow(tree: _Tree, document: Document, index: int, line: str) -> bool:
    """Add a line to the tree; False when the line is no part of it."""
    bare = line.strip()
    if not bare or bare in _LEFT_OUT:
        return True
    if "\t" in line:
        line = line.expandtabs(4)
    left, colon, right = line.partition(" : ")
    if not colon and bare.endswith(" :"):
        left, colon = line.rstrip()[:-2], ":"
    if colon and _KEY.fullmatch(key := left.strip()):
        path = tree.push(len(left) - len(left.lstrip()), key)
        tree.values[intern(path)] = (intern(right.strip()), index + 1)
        return True
    header = _HEADER.match(line)
    if header and (header["indent"] or header["key"].strip() in _SECTIONS):
        tree.push(len(header["indent"]), header["key"].strip())
        return True
    return False


_LISTED = re.compile(r"GPU (?P<index>\d+): (?P<name>[^(]+?) \(UUID: (?:GPU-|MIG-)?[^)]*\)\s*$")
_TABLE_VERSION = re.compile(r"NVIDIA-SMI\s+\S+\s+Driver Version:\s*(?P<driver>[\d.]+)\s+CUDA Version:\s*(?P<cuda>[\d.]+)")
_TABLE_GPU = re.compile(
    r"\|\s+(?P<index>\d+)\s+(?P<name>(?:NVIDIA|Tesla|Quadro|GeForce|A\d|H\d)[\w .-]*?)\s+(?:On|Off)\s+\|\s+[0-9A-Fa-f]{8}:"
)


def read_gpu_list(document: Document) -> Iterator[GpuName | Version]:
    """`nvidia-smi -L` and the GPU lines of plain `nvidia-smi`."""
    for index, line in enumerate(document.lines):
        if "UUID" in line and (listed := _LISTED.match(line.strip())):
            yield GpuName(at=document.place(index), index=int(listed["index"]), name=listed["name"])
        elif line.startswith("|") and (row := _TABLE_GPU.match(line)):
            yield GpuName(at=document.place(index), index=int(row["index"]), name=row["name"].strip())
        elif "Driver Version:" in line and (head := _TABLE_VERSION.search(line)):
            yield Version(at=document.place(index), software="driver", version=head["driver"], rank="")
            yield Version(at=document.place(index), software="cuda", version=head["cuda"], rank="")
