"""RDMA devices: ibstat, ibstatus, ibv_devinfo, rdma link, ibdev2netdev, show_gids, ibnetdiscover, iblinkinfo."""

import re
from collections.abc import Iterator

from isthmus.doctor.facts.network import DeviceGone, FabricPort, Gid, IbPort, Netdev
from isthmus.doctor.text import Document, Place, decimal, real

__all__ = ["read_fabric", "read_gids", "read_ports"]

_CA = re.compile(r"CA '(?P<device>[\w.-]+)'")
_STATUS_HEAD = re.compile(r"Infiniband device '(?P<device>[\w.-]+)' port (?P<port>\d+) status", re.IGNORECASE)
_HCA = re.compile(r"hca_id:\s*(?P<device>[\w.-]+)")
_PORT = re.compile(r"\s*(?:Port |port:\s*)(?P<port>\d+)\s*:?\s*$")
_PAIR = re.compile(r"\s*(?P<key>[A-Za-z][A-Za-z _]*?)\s*:\s*(?P<value>\S.*?)\s*$")
_RDMA_LINK = re.compile(
    r"link (?P<device>[\w.-]+)/(?P<port>\d+) (?:subnet_prefix \S+ lid (?P<lid>\d+) sm_lid (?P<sm>\d+) "
    r".*?)?state (?P<state>\w+) physical_state (?P<physical>\w+)"
)
_NETDEV = re.compile(
    (
        r"(?:[0-9a-f:.]+ )?(?P<device>[a-z][\w.-]*)\s+(?:\([^)]*\) .*?)?port\s+(?P<port>\d+).*?==>\s+"
        r"(?P<netdev>\S+)\s+\((?P<state>Up|Down)\)"
    ),
    re.IGNORECASE,
)
_GONE = re.compile(
    r"stat of IB device '(?P<device>[\w.-]+)' failed|can't open IB device '?(?P<device2>[\w.-]+)|Failed "
    r"to open device '?(?P<device3>[\w.-]+)"
)
_KEYS = {
    "state": "state",
    "physical state": "physical",
    "phys state": "physical",
    "phys_state": "physical",
    "rate": "rate",
    "base lid": "lid",
    "port_lid": "lid",
    "sm lid": "sm_lid",
    "sm_lid": "sm_lid",
    "link layer": "layer",
    "link_layer": "layer",
    "ca type": "ca_type",
    "vendor_part_id": "ca_type",
    "firmware version": "firmware",
    "fw_ver": "firmware",
    "active_mtu": "mtu",
    "system image guid": "guid",
    "sys_image_guid": "guid",
    "active_speed": "speed",
    "active_width": "width",
}
_DEVICE_KEYS = frozenset(["ca_type", "firmware", "guid"])


class _Port:
    def __init__(self, device: str, port: int, at: Place, shared: dict[str, tuple[str, Place]]) -> None:
        self.device, self.port, self.at = device, port, at
        self.values = dict(shared)

    def fact(self) -> IbPort:
        return IbPort(
            at=self.at,
            device=self.device,
            port=self.port,
            state=_word(self.get("state")),
            physical=_word(self.get("physical")),
            rate_gbit_per_s=_rate(self.get("rate")) or _speed(self.get("speed"), self.get("width")),
            lid=_number(self.get("lid")),
            sm_lid=_number(self.get("sm_lid")),
            layer=self.get("layer").strip(),
            ca_type=self.get("ca_type"),
            firmware=self.get("firmware"),
            active_mtu_bytes=_mtu(self.get("mtu")),
            system_guid=self.get("guid"),
            places={key: place for key, (_, place) in self.values.items()},
        )

    def get(self, key: str) -> str:
        return self.values.get(key, ("", self.at))[0]


def read_ports(document: Document) -> Iterator[IbPort | Netdev | DeviceGone]:
    """Ports in any of four tools' forms; a device's own lines (type, firmware) are given to each of its ports."""
    device, shared = "", dict[str, tuple[str, Place]]()
    port: _Port | None = None
    for index, line in enumerate(document.lines):
        head = _CA.match(line.strip()) or _HCA.match(line.strip()) or _STATUS_HEAD.match(line.strip())
        opened = _PORT.match(line) if device and head is None else None
        if head or opened:
            if port and "state" in port.values:
                yield port.fact()
            if head:
                device, shared, port = head["device"], {}, None
            number = head.groupdict().get("port") if head else opened["port"] if opened else None
            port = _Port(device, int(number), document.place(index), shared) if number else port
        elif device and ":" in line and (pair := _PAIR.match(line)) and (key := _KEYS.get(pair["key"].lower())):
            (shared if port is None and key in _DEVICE_KEYS else port.values if port else shared)[key] = (
                pair["value"],
                document.place(index),
            )
        else:
            yield from _other(document, index, line)
    if port and "state" in port.values:
        yield port.fact()


def _other(document: Document, index: int, line: str) -> Iterator[IbPort | Netdev | DeviceGone]:
    if "==>" in line and (netdev := _NETDEV.search(line)):
        yield Netdev(
            at=document.place(index),
            device=netdev["device"],
            port=int(netdev["port"]),
            interface=netdev["netdev"],
            up=netdev["state"].lower() == "up",
        )
    elif "physical_state" in line and (link := _RDMA_LINK.search(line)):
        at = document.place(index)
        yield IbPort(
            at=at,
            device=link["device"],
            port=int(link["port"]),
            state=_word(link["state"]),
            physical=_word(link["physical"]),
            rate_gbit_per_s=None,
            lid=_number(link["lid"] or ""),
            sm_lid=_number(link["sm"] or ""),
            layer="InfiniBand" if link["lid"] else "",
            ca_type="",
            firmware="",
            active_mtu_bytes=None,
            system_guid="",
            places={},
        )
    elif "IB device" in line and (gone := _GONE.search(line)):
        yield DeviceGone(at=document.place(index), device=next(name for name in gone.groups() if name))


_WORDS = {
    "active": "Active",
    "port_active": "Active",
    "down": "Down",
    "port_down": "Down",
    "init": "Initializing",
    "port_init": "Initializing",
    "initializing": "Initializing",
    "initialize": "Initializing",
    "armed": "Armed",
    "linkup": "LinkUp",
    "link_up": "LinkUp",
    "polling": "Polling",
    "disabled": "Disabled",
    "linkerrorrecovery": "LinkErrorRecovery",
    "sleep": "Sleep",
}


def _word(text: str) -> str:
    """`4: ACTIVE`, `PORT_ACTIVE (4)`, `Active` -> `Active`."""
    word = re.sub(r"^\d+:\s*|\s*\(\d+\)$", "", text.strip())
    return _WORDS.get(word.lower().replace(" ", ""), word)


def _number(text: str) -> int | None:
    text = text.strip()
    try:
        return int(text, 16) if text.lower().startswith("0x") else int(text[:12])
    except ValueError:
        return None


def _rate(text: str) -> float | None:
    match = re.match(r"[\d.,]+", text.strip())
    return decimal(match.group()) if match else None


def _speed(speed: str, width: str) -> float | None:
    """ibv_devinfo prints `25.0 Gbps (32)` a lane and `4X (2)`."""
    per_lane, lanes = re.match(r"[\d.]+", speed.strip()), re.match(r"(\d+)X", width.strip())
    return real(per_lane.group()) * int(lanes[1]) if per_lane and lanes else None


def _mtu(text: str) -> int | None:
    match = re.match(r"\d+", text.strip())
    return int(match.group()[:6]) if match else None


_GID_ROW = re.compile(
    r"(?P<device>[a-z][\w.-]*)\s+(?P<port>\d+)\s+(?P<index>\d+)\s+(?P<gid>[0-9a-fA-F]{4}"
    r"(?::[0-9a-fA-F]{4}){7})\s+(?:(?P<ipv4>\d+\.\d+\.\d+\.\d+)\s+)?[vV](?P<version>[12])"
)
_GID_LINE = re.compile(r"\s*GID\[\s*(?P<index>\d+)\]:\s*(?P<gid>[0-9a-fA-F:.]+)(?:,\s*(?P<type>RoCE v[12]|IB/RoCE v1|IB))?")


def read_gids(document: Document) -> Iterator[Gid]:
    """show_gids, and the GID lines of `ibv_devinfo -v`."""
    device, port = "", 1
    for index, line in enumerate(document.lines):
        if row := _GID_ROW.match(line.strip()):
            yield Gid(
                at=document.place(index),
                device=row["device"],
                port=int(row["port"]),
                index=int(row["index"]),
                gid=row["gid"],
                version=int(row["version"]),
            )
        elif "hca_id" in line and (head := _HCA.match(line.strip())):
            device = head["device"]
        elif "GID[" in line and (entry := _GID_LINE.match(line)):
            kind = entry["type"] or ""
            version = 2 if kind.endswith("v2") else 1 if kind.endswith("v1") else None
            yield Gid(
                at=document.place(index), device=device, port=port, index=int(entry["index"]), gid=entry["gid"], version=version
            )


_DISCOVER = re.compile(
    r"(?P<type>CA|SW)\s+(?P<lid>\d+)\s+(?P<port>\d+)\s+0x[0-9a-f]+\s+(?P<width>\d+x)\s+(?P<speed>\?\?\?|\w+)\s*"
    r"(?:-\s+(?P<peer_type>CA|SW)\s+\d+\s+(?P<peer_port>\d+)\s+0x[0-9a-f]+)?"
    r".*?'(?P<node>[^']*)'(?:\s+-\s+'(?P<peer>[^']*)')?"
)
_LINKINFO = re.compile(
    r"\s*(?:0x[0-9a-f]+\s+\"?(?P<node>[^\"]*?)\"?\s+)?(?P<lid>\d+)\s+(?P<port>\d+)\[[^\]]*\]\s*"
    r"==\(\s*(?:(?P<width>\d+X)\s+(?P<speed>[\d.]+ Gbps)\s*)?(?P<state>\w+)\s*/\s*(?P<physical>\w+)\s*\)==>\s*"
    r"(?:(?:0x[0-9a-f]+\s+)?\d*\s*\d*\[[^\]]*\]\s*\"(?P<peer>[^\"]*)\")?(?P<note>.*)$"
)
_LINKINFO_NODE = re.compile(r"(?:CA|Switch):?\s+(?:0x[0-9a-f]+\s+)?(?P<node>[^:]+):\s*$")
_COULD = re.compile(r"Could be (?P<what>[^)]+)")


def read_fabric(document: Document) -> Iterator[FabricPort]:
    """Links of the subnet, one end a line."""
    node = ""
    for index, line in enumerate(document.lines):
        if (line.startswith(("CA ", "SW ")) or " 0x" in line) and (found := _DISCOVER.match(line.strip())):
            yield FabricPort(
                at=document.place(index),
                node=found["node"],
                port=found["port"],
                width=found["width"],
                speed=found["speed"],
                peer=found["peer"] or "",
                could_be="",
                state="Active" if found["peer"] is not None else "Down",
            )
        elif "==(" in line and (found := _LINKINFO.match(line)):
            could = _COULD.search(found["note"] or "")
            yield FabricPort(
                at=document.place(index),
                node=(found["node"] or node).strip(),
                port=found["port"],
                width=found["width"] or "",
                speed=found["speed"] or "",
                peer=found["peer"] or "",
                could_be=could["what"].strip() if could else "",
                state=_word(found["state"]),
            )
        elif head := _LINKINFO_NODE.match(line):
            node = head["node"]
