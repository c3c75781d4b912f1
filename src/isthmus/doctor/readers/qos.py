"""mlnx_qos, sysfs RoCE settings, ethtool -a, ip link, mlxlink and ethtool -m."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.host import HostSetting
from isthmus.doctor.facts.network import NetdevMtu, Optics, Qos
from isthmus.doctor.readers.nvlink import bit_error_rate
from isthmus.doctor.text import Document, Place, decimal, real

__all__ = ["read_optics", "read_qos"]

_TRUST = re.compile(r"Priority trust state: (?P<trust>\w+)")
_DSCP = re.compile(r"\s*prio:(?P<priority>[0-7]) dscp:(?P<codes>[\d,]+)")
_PFC_HEAD = re.compile(r"PFC configuration")
_PFC = re.compile(r"\s*enabled\s+(?P<bits>[01](?:\s+[01]){7})\s*$")
_INTERFACE = re.compile(r"mlnx_qos -i (?P<interface>[\w.-]+)")
_PAUSE_HEAD = re.compile(r"Pause parameters for (?P<interface>[\w.-]+):")
_PAUSE = re.compile(r"(?P<way>RX|TX):\s*(?P<state>on|off)\s*$")
_LINK = re.compile(r"\d+: (?P<interface>[\w.@-]+): <(?P<flags>[^>]*)> mtu (?P<mtu>\d+)")
_ROCE_ECN = re.compile(
    r"\S*/net/(?P<interface>[\w.-]+)/ecn/roce_(?P<point>np|rp)/enable/(?P<priority>[0-7])(?:\s*[:=]\s*|\s+)(?P<value>[01])"
)
_TRAFFIC_CLASS = re.compile(
    r"\S*/infiniband/(?P<device>[\w.-]+)/tc/(?P<port>\d+)/traffic_class(?:\s*[:=]\s*|\s+)(?:Global tclass=)?(?P<value>\d+)"
)


class _Qos:
    def __init__(self, interface: str, at: Place) -> None:
        self.interface, self.at, self.trust = interface, at, ""
        self.pfc: tuple[int, ...] | None = None
        self.dscp: dict[int, int] = {}
        self.places: dict[str, Place] = {}

    def fact(self) -> Qos:
        return Qos(
            at=self.at, interface=self.interface, trust=self.trust, pfc=self.pfc, priority_of_dscp=self.dscp, places=self.places
        )


def read_qos(document: Document) -> Iterator[Qos | NetdevMtu | HostSetting]:
    """mlnx_qos blocks, pause parameters, MTUs, ECN switches of sysfs."""
    block: _Qos | None = None
    interface, pause = "", ""
    for index, line in enumerate(document.lines):
        if found := _INTERFACE.search(line):
            interface = found["interface"]
        if (trust := _TRUST.search(line)) or _PFC_HEAD.search(line):
            if block is None or (trust and block.trust):
                yield from (block.fact(),) if block else ()
                block = _Qos(interface, document.place(index))
            if trust:
                block.trust, block.places["trust"] = trust["trust"], document.place(index)
        elif block and _in_block(block, document, index, line):
            continue
        elif head := _PAUSE_HEAD.search(line):
            pause = head["interface"]
        elif pause and (way := _PAUSE.match(line.strip())):
            yield HostSetting(at=document.place(index), name=f"pause {way['way'].lower()} {pause}", value=way["state"])
        else:
            yield from _settings(document, index, line)
    if block:
        yield block.fact()


def _in_block(block: _Qos, document: Document, index: int, line: str) -> bool:
    if row := _DSCP.match(line):
        for code in row["codes"].strip(",").split(","):
            if code.isdecimal():
                block.dscp[int(code)] = int(row["priority"])
        return True
    if row := _PFC.match(line):
        block.pfc = tuple(number for number, bit in enumerate(row["bits"].split()) if bit == "1")
        block.places["pfc"] = document.place(index)
        return True
    return False


def _settings(document: Document, index: int, line: str) -> Iterator[NetdevMtu | HostSetting]:
    if " mtu " in line and (link := _LINK.match(line.strip())):
        yield NetdevMtu(
            at=document.place(index),
            interface=link["interface"].split("@")[0],
            mtu_bytes=int(link["mtu"]),
            up="UP" in link["flags"].split(","),
        )
    elif "/ecn/roce_" in line and (ecn := _ROCE_ECN.search(line)):
        yield HostSetting(
            at=document.place(index), name=f"ecn {ecn['point']} {ecn['interface']} {ecn['priority']}", value=ecn["value"]
        )
    elif "traffic_class" in line and (found := _TRAFFIC_CLASS.search(line)):
        yield HostSetting(at=document.place(index), name=f"traffic_class {found['device']}", value=found["value"])


_OPTIC = re.compile(r"\s*(?P<key>[A-Z][\w ()/.\[\]-]*?)\s*:\s*(?P<value>.*?)\s*$")
_RANGE = re.compile(r"\[(?P<low>-?[\d.]+)\.\.(?P<high>-?[\d.]+)\]")
_OPTIC_DEVICE = re.compile(r"mlxlink.* -d\s+(?P<device>\S+)|ethtool -m (?P<device2>\S+)")
_BEGIN = ("Operational Info", "Module Info", "Physical Counters and BER Info")


def read_optics(document: Document) -> Iterator[Optics]:
    """mlxlink's sections, of one device a block."""
    device, seen = "", dict[str, tuple[str, Place]]()
    start: Place | None = None
    sections: set[str] = set()
    for index, line in enumerate(document.lines):
        stripped = line.strip()
        if found := _OPTIC_DEVICE.search(line):
            device = found["device"] or found["device2"]
        if stripped in _BEGIN:
            if stripped in sections and start is not None:
                yield _optics(device, start, seen)
                seen, sections = {}, set[str]()
            sections.add(stripped)
            start = start if seen and start else document.place(index)
        elif start is not None and " : " in line and (pair := _OPTIC.match(line)):
            seen.setdefault(pair["key"].lower(), (pair["value"], document.place(index)))
    if start is not None and seen:
        yield _optics(device, start, seen)


def _optics(device: str, at: Place, seen: dict[str, tuple[str, Place]]) -> Optics:
    def text(*names: str) -> str:
        return next((value for key, (value, _) in seen.items() if any(key.startswith(name) for name in names)), "")

    def numbers(value: str) -> tuple[float, ...]:
        head = value.split("[", maxsplit=1)[0]
        found = (decimal(word) for word in re.split(r"[,\s]+(?=-?\d)", head.strip()))
        return tuple(number for number in found if number is not None)

    def limits(value: str) -> tuple[float, float] | None:
        match = _RANGE.search(value)
        return (real(match["low"]), real(match["high"])) if match else None

    temperature, rx, tx = text("temperature"), text("rx power current"), text("tx power current")
    hottest = limits(temperature)
    return Optics(
        at=at,
        device=device,
        state=text("state"),
        temperature_c=next(iter(numbers(temperature)), None),
        temperature_c_max=hottest[1] if hottest else None,
        rx_dbm=numbers(rx),
        rx_dbm_limits=limits(rx),
        tx_dbm=numbers(tx),
        tx_dbm_limits=limits(tx),
        effective_ber=bit_error_rate(text("effective physical ber")),
        raw_ber=bit_error_rate(text("raw physical ber")),
        places={key: place for key, (_, place) in seen.items()},
    )
