"""Facts about NICs, ports, switches and paths."""

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.doctor.text import Place

__all__ = [
    "Counters",
    "DeviceGone",
    "FabricPort",
    "Gid",
    "IbPort",
    "Netdev",
    "NetdevMtu",
    "Optics",
    "PathProbe",
    "PfcWatchdog",
    "PriorityCounters",
    "Qos",
    "SwitchHealth",
    "SwitchProfile",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IbPort:
    """One RDMA port as ibstat, ibstatus, ibv_devinfo or rdma link shows it; None or empty where not printed."""

    at: Place
    device: str
    port: int
    state: str
    physical: str
    rate_gbit_per_s: float | None
    lid: int | None
    sm_lid: int | None
    layer: str
    ca_type: str
    firmware: str
    active_mtu_bytes: int | None
    system_guid: str
    places: Mapping[str, Place]

    def place(self, key: str) -> Place:
        """Evidence for one line of the port."""
        return self.places.get(key, self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Netdev:
    """One line of ibdev2netdev; `up` speaks of the network interface (IPoIB or Ethernet), not of the RDMA port."""

    at: Place
    device: str
    port: int
    interface: str
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NetdevMtu:
    """MTU of an interface (`ip link`)."""

    at: Place
    interface: str
    mtu_bytes: int
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGone:
    """A tool that stopped because a device it had seen a moment ago is not there."""

    at: Place
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """One GID table entry; version is 1, 2 or None."""

    at: Place
    device: str
    port: int
    index: int
    gid: str
    version: int | None

    @property
    def link_local(self) -> bool:
        """fe80::/10: not routed."""
        return self.gid.lower().startswith(("fe8", "fe9", "fea", "feb"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """One sample of the counters of one port.

    Attributes:
        tool: perfquery, ethtool, hw_counters or rdma.
        values: Lower-case names as the tool prints them; PerfQuery's dotted names without case.
        time_s: When it was taken, on whichever clock the input has; None when it does not say.
    """

    at: Place
    tool: str
    device: str
    port: str
    values: Mapping[str, int]
    places: Mapping[str, Place]
    time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """`mlnx_qos -i`: trust mode, priorities with PFC, DSCP -> priority; RoCE settings of sysfs where given."""

    at: Place
    interface: str
    trust: str
    pfc: tuple[int, ...] | None
    priority_of_dscp: Mapping[int, int]
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class PfcWatchdog:
    """One queue of a switch's PFC watchdog."""

    at: Place
    queue: str
    status: str
    detected: int
    restored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityCounters:
    """Per-priority counters of a switch port: kind is pfc-rx, pfc-tx or drops; values by priority.

    Attributes:
        since_clear: The tool says that it shows the difference since a clear.
    """

    at: Place
    kind: str
    interface: str
    values: tuple[int, ...]
    since_clear: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchProfile:
    """Something a switch is configured to do (ECN profile, watchdog): name -> words as printed."""

    at: Place
    kind: str
    name: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchHealth:
    """One sensor word of a switch: part, and OK or what it says instead."""

    at: Place
    part: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricPort:
    """One link end of ibnetdiscover or iblinkinfo; peer is empty when nothing is connected."""

    at: Place
    node: str
    port: str
    width: str
    speed: str
    peer: str
    could_be: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Optics:
    """mlxlink or ethtool -m: module and bit error rates; None where not measured (copper)."""

    at: Place
    device: str
    state: str
    temperature_c: float | None
    temperature_c_max: float | None
    rx_dbm: tuple[float, ...]
    rx_dbm_limits: tuple[float, float] | None
    tx_dbm: tuple[float, ...]
    tx_dbm_limits: tuple[float, float] | None
    effective_ber: float | None
    raw_ber: float | None
    places: Mapping[str, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathProbe:
    """A measured path: ping, one-way probes or `ss -ti`. Seconds, bytes per second, share of packets."""

    at: Place
    peer: str
    rtt_s: float | None
    rtt_s_spread: float | None
    loss: float | None
    rate_bytes_per_s: float | None
    mss_bytes: int | None
    oneway_s: tuple[float, float] | None
    packet_too_big: bool
