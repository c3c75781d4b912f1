"""PCIe as lspci (-nn, -vv, -tv not) and sysfs show it: widths, speeds, ACS, read request sizes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from isthmus.doctor.facts.kernel import AcsControl, PciDevice
from isthmus.doctor.text import Document, Place, real

__all__ = ["read_lspci", "read_sysfs_pci"]

_HEAD = re.compile(
    (
        r"(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<type>[A-Z0-9][^:\[]*?)(?: \["
        r"(?P<class>[0-9a-f]{4})\])?: (?P<name>.*)$"
    ),
    re.IGNORECASE,
)
_NOTED = re.compile(r"#\s*(?P<name>[\w ]*?)\s*(?P<address>(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s*$", re.IGNORECASE)
_LINK = re.compile(
    r"\s*(?P<what>LnkCap|LnkSta):\s*(?:Port #\d+, )?Speed (?P<speed>[\d.]+|unknown)(?:GT/s)?[^,]*, Width "
    r"x(?P<width>\d+)(?P<narrow> \(downgraded\))?"
)
_READ_REQUEST = re.compile(r"MaxReadReq (?P<bytes>\d+) bytes")
_NUMA = re.compile(r"\s*NUMA node: (?P<node>-?\d+)")
_ACS = re.compile(r"ACSCtl:\s*(?P<flags>.*)$")
_SECONDARY = re.compile(r"Bus: primary=\w+, secondary=(?P<secondary>[0-9a-f]{2}), subordinate=(?P<subordinate>[0-9a-f]{2})")
_KINDS = (
    ("gpu", re.compile(r"^(?:3D|VGA|Display).*(?:NVIDIA|AMD/ATI)", re.IGNORECASE)),
    ("nvswitch", re.compile(r"^Bridge.*NVIDIA|NVSwitch|10de:(?:1af1|22a3|22a4|1ac2)", re.IGNORECASE)),
    ("nic", re.compile(r"^(?:Infiniband|Ethernet|Network) controller", re.IGNORECASE)),
    ("bridge", re.compile(r"^PCI bridge", re.IGNORECASE)),
)


@dataclass(slots=True)
class _Device:
    at: Place
    address: str
    name: str
    kind: str
    pci_class: str = ""
    numa: str = ""
    links: dict[str, tuple[float | None, int]] = field(default_factory=dict[str, tuple[float | None, int]])
    link_at: Place | None = None
    read_request: int | None = None
    buses: tuple[str, int, int] | None = None
    narrowed: bool = False


def read_lspci(document: Document) -> Iterator[PciDevice | AcsControl]:
    """Devices with their links; ACS lines also where the paste lost the device they belong to."""
    device: _Device | None = None
    devices: list[_Device] = []
    for index, line in enumerate(document.lines):
        head = _HEAD.match(line) if line[:1] not in {"\t", " ", ""} else None
        if head:
            device = _device(document, index, head)
            devices.append(device)
        elif noted := _NOTED.match(line):
            kind = (
                "gpu"
                if "GPU" in noted["name"]
                else "bridge"
                if re.search("port|bridge|switch", noted["name"], re.IGNORECASE)
                else "other"
            )
            device = _Device(document.place(index), noted["address"], noted["name"], kind)
            devices.append(device)
        elif "ACSCtl" in line and (acs := _ACS.search(line)):
            yield _acs(document, index, device, acs["flags"])
        elif device is not None:
            _detail(document, index, line, device)
    parents = _parents(devices)
    for each in devices:
        yield _fact(each, parents.get(each.address, ""), "lspci")


def _device(document: Document, index: int, head: re.Match[str]) -> _Device:
    whole = f"{head['type']}: {head['name']}"
    kind = next((kind for kind, pattern in _KINDS if pattern.search(whole)), "other")
    return _Device(document.place(index), head["address"], head["name"], kind, head["class"] or "")


def _detail(document: Document, index: int, line: str, device: _Device) -> None:
    if "Speed" in line and (link := _LINK.match(line)):
        speed = None if link["speed"] == "unknown" else real(link["speed"])
        device.links[link["what"]] = (speed, int(link["width"]))
        if link["what"] == "LnkSta":
            device.link_at, device.narrowed = document.place(index), bool(link["narrow"])
    elif found := _READ_REQUEST.search(line):
        device.read_request = int(found["bytes"])
    elif found := _NUMA.match(line):
        device.numa = found["node"]
    elif found := _SECONDARY.search(line):
        device.buses = (device.address[:-8], int(found["secondary"], 16), int(found["subordinate"], 16))


def _acs(document: Document, index: int, device: _Device | None, flags: str) -> AcsControl:
    raw = re.match(r"(0x[0-9A-Fa-f]+)", flags)
    bits = int(raw[1], 16) if raw else 0
    # Bits of the ACS control register (PCIe Base Specification, 7.7.12): 0 source validation, 2 request redirect,
    # 3 completion redirect, 4 upstream forwarding.
    redirects = bool(bits & 0x1C) if raw else any(f"{name}+" in flags for name in ("ReqRedir", "CmpltRedir", "UpstreamFwd"))
    return AcsControl(
        at=document.place(index),
        device=device.address if device else "",
        device_name=device.name if device else "",
        source_validation=bool(bits & 1) if raw else "SrcValid+" in flags,
        redirects=redirects,
    )


def _parents(devices: list[_Device]) -> dict[str, str]:
    """Address -> the nearest bridge above it, from the bridges' bus ranges."""
    parents: dict[str, str] = {}
    bridges = [each for each in devices if each.buses]
    for each in devices:
        domain, bus = each.address[:-8], int(each.address[-7:-5], 16)
        above = [
            b
            for b in bridges
            if b.buses and b.buses[0] == domain and b.buses[1] <= bus <= b.buses[2] and b.address != each.address
        ]
        if above:
            parents[each.address] = min(above, key=lambda b: b.buses[2] - b.buses[1] if b.buses else 0).address
    return parents


def _fact(device: _Device, parent: str, source: str) -> PciDevice:
    cap, sta = device.links.get("LnkCap"), device.links.get("LnkSta")
    return PciDevice(
        at=device.at,
        address=device.address,
        pci_class=device.pci_class,
        kind=device.kind,
        name=device.name,
        numa=device.numa,
        speed_gt=sta[0] if sta else None,
        speed_gt_max=cap[0] if cap else None,
        width=sta[1] if sta and sta[1] else None,
        width_max=cap[1] if cap and cap[1] else None,
        read_request_bytes=device.read_request,
        source=source,
        link_at=device.link_at or device.at,
        parent=parent,
        narrowed=device.narrowed,
    )


_SYSFS = re.compile(
    r"(?P<path>/sys/\S*?(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))/(?P<what>current_link_speed|current_link_width|"
    r"max_link_speed|max_link_width|numa_node|class|vendor)(?:\s*<==)?[:=\s]*(?P<value>.*)$"
)
_CLASSES = {"0302": "gpu", "0300": "gpu", "0680": "nvswitch", "0207": "nic", "0200": "nic", "0604": "bridge"}


def read_sysfs_pci(document: Document) -> Iterator[PciDevice]:
    """`head` or `grep . /sys/bus/pci/devices/*/{current,max}_link_*`; the path shows the parents where it is a real path."""
    found: dict[str, _Device] = {}
    values: dict[tuple[str, str], str] = {}
    parents: dict[str, str] = {}
    waiting: tuple[str, str] | None = None
    for index, line in enumerate(document.lines):
        if "/sys/" in line and (match := _SYSFS.search(line)):
            address = match["address"]
            device = found.setdefault(address, _Device(document.place(index), address, "", "other"))
            waiting = (address, match["what"])
            above = re.findall(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", match["path"])
            if len(above) > 1:
                parents[address] = above[-2]
            if match["value"].strip():
                values[waiting] = match["value"].strip()
                _note(device, waiting[1], document.place(index))
                waiting = None
        elif waiting and line.strip():
            values[waiting] = line.strip()
            _note(found[waiting[0]], waiting[1], document.place(index))
            waiting = None
    for address, device in found.items():
        yield _sysfs_fact(device, values, parents.get(address, ""))


def _note(device: _Device, what: str, place: Place) -> None:
    if what == "current_link_width":
        device.link_at = place


def _sysfs_fact(device: _Device, values: dict[tuple[str, str], str], parent: str) -> PciDevice:
    def speed(what: str) -> float | None:
        match = re.match(r"[\d.]+", values.get((device.address, what), ""))
        return real(match.group()) if match else None

    def width(what: str) -> int:
        text = values.get((device.address, what), "")
        return int(text) if text.isdecimal() and len(text) < 4 else 0

    pci_class = values.get((device.address, "class"), "").removeprefix("0x")[:4]
    device.pci_class, device.kind = pci_class, _CLASSES.get(pci_class, "other")
    device.numa = values.get((device.address, "numa_node"), "")
    if (now := width("current_link_width")) or speed("current_link_speed"):
        device.links["LnkSta"] = (speed("current_link_speed"), now)
    if (most := width("max_link_width")) or speed("max_link_speed"):
        device.links["LnkCap"] = (speed("max_link_speed"), most)
    return _fact(device, parent, "sysfs")
