"""Counters of NICs and ports: perfquery, ethtool -S, sysfs, rdma statistic; samples keep their time."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.network import Counters
from isthmus.doctor.readers.stamps import stamp
from isthmus.doctor.text import Document, Place, count, real

__all__ = ["read_counters"]

_PERFQUERY_HEAD = re.compile(
    r"#\s*Port\w* (?:extended )?[Cc]ounters: (?:Lid (?P<lid>\d+)|DR path .*?)(?: \(DR\))? port (?P<port>\d+)|"
    r"#\s*Port\w+ counters: Lid (?P<lid2>\d+) port (?P<port2>\d+)"
)
_PERFQUERY = re.compile(r"(?P<name>[A-Z]\w+):\.+(?P<value>0x[0-9a-fA-F]+|\d+)\s*$")
_ETHTOOL_HEAD = re.compile(r"(?:\$|#)?.*ethtool (?:-S|--statistics) (?P<device>[\w.@-]+)")
_ETHTOOL = re.compile(r"\s+(?:\[\d+\]:? )?(?P<name>[a-z][\w.-]*(?:\[\d+\])?): (?P<value>[\d,.']+)\s*$")
_SYSFS = re.compile(
    r"\S*/infiniband/(?P<device>[\w.-]+)/ports/(?P<port>\d+)/(?:hw_counters|counters)/(?P<name>\w+)"
    r"(?:\s*[:=]\s*|\s+)(?P<value>\d+)"
)
_NETDEV_SYSFS = re.compile(
    r"\S*/net/(?P<device>[\w.-]+)/(?P<name>carrier_changes|carrier_down_count|statistics/\w+)[:=\s]+(?P<value>\d+)"
)
_RDMA = re.compile(r"link (?P<device>[\w.-]+)/(?P<port>\d+) (?P<pairs>\w+ \d+ .*)$")
_RDMA_PAIR = re.compile(r"(\w+) (\d+)(?= |$)")
_TIME = re.compile(
    r"(?:#+|=+|@)?\s*(?:at|time|date|sample(?:d at)?|timestamp)[ :=]+(?P<epoch>\d{9,11}(?:\.\d+)?)\b", re.IGNORECASE
)
_KNOWN = re.compile(
    r"pause|prio|discard|drop|err|cnp|ecn|retry|rnr|sequence|timeout|packets|bytes|fcs|crc|symbol|phy|carrier|restart|storm"
)


class _Sample:
    def __init__(self, tool: str, device: str, port: str, at: Place, time_s: float | None) -> None:
        self.tool, self.device, self.port, self.at, self.time_s = tool, device, port, at, time_s
        self.values: dict[str, int] = {}
        self.places: dict[str, Place] = {}

    def fact(self) -> Counters:
        return Counters(
            at=self.at,
            tool=self.tool,
            device=self.device,
            port=self.port,
            values=self.values,
            places=self.places,
            time_s=self.time_s,
        )


class _Reading:
    """Open samples by (tool, device, port); a name seen twice closes the sample."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.open: dict[tuple[str, str, str], _Sample] = {}
        self.done: list[_Sample] = []
        self.time_s: float | None = None

    def add(self, key: tuple[str, str, str], index: int, name: str, value: int) -> None:
        sample = self.open.get(key)
        if sample is None or name in sample.values:
            self.close(key)
            sample = self.open[key] = _Sample(*key, self.document.place(index), self.time_s)
        sample.values[name] = value
        sample.places[name] = self.document.place(index)

    def close(self, key: tuple[str, str, str]) -> None:
        if key in self.open:
            self.done.append(self.open.pop(key))


def read_counters(document: Document) -> Iterator[Counters]:
    """Samples in the order of their first line; a second sample of one port carries the time printed before it."""
    reading = _Reading(document)
    ethtool_device, lid, port = "", "", ""
    for index, line in enumerate(document.lines):
        if line.startswith("#") and (head := _PERFQUERY_HEAD.match(line)):
            lid, port = str(head["lid"] or head["lid2"] or ""), str(head["port"] or head["port2"] or "")
        elif ":..." in line and (pair := _PERFQUERY.match(line.strip())):
            value = pair["value"]
            reading.add(
                ("perfquery", lid, port),
                index,
                pair["name"].lower(),
                int(value, 16) if value.startswith("0x") else int(value[:30]),
            )
        elif "ethtool" in line and (head := _ETHTOOL_HEAD.search(line)):
            ethtool_device = head["device"]
        elif "/sys/" in line or "/infiniband/" in line or "/net/" in line:
            _sysfs(reading, index, line)
        elif line.startswith("link "):
            _rdma(reading, index, line)
        elif line[:1] in {" ", "\t"} and (pair := _ETHTOOL.match(line)) and _KNOWN.search(pair["name"]):
            value = count(pair["value"])
            if value is not None:
                reading.add(("ethtool", ethtool_device, ""), index, pair["name"], value)
        else:
            _time(reading, line)
    for key in list(reading.open):
        reading.close(key)
    yield from (sample.fact() for sample in reading.done)


def _rdma(reading: _Reading, index: int, line: str) -> None:
    if row := _RDMA.match(line):
        for name, value in _RDMA_PAIR.findall(row["pairs"]):
            reading.add(("rdma", row["device"], row["port"]), index, name, int(value[:30]))


def _sysfs(reading: _Reading, index: int, line: str) -> None:
    if row := _SYSFS.search(line):
        reading.add(("hw_counters", row["device"], row["port"]), index, row["name"], int(row["value"][:30]))
    elif row := _NETDEV_SYSFS.search(line):
        reading.add(("netdev", row["device"], ""), index, row["name"].removeprefix("statistics/"), int(row["value"][:30]))


def _time(reading: _Reading, line: str) -> None:
    if found := _TIME.match(line.strip()):
        reading.time_s = real(found["epoch"])
    elif line[:1] == "[" or line[:2] == "20":
        seconds = stamp(line)[0]
        reading.time_s = seconds if seconds is not None else reading.time_s
