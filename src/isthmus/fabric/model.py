"""The fabric as every other room sees it: resolved, in SI units, with no catalogue look-ups left to do.

A fabric is regions, each with groups of identical nodes and one in-region network, joined by WAN links.
All bandwidths are per direction. `documents -> resolve -> model` is the only way to make one from text.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Cable",
    "Fabric",
    "Gpu",
    "InNode",
    "Level",
    "LevelName",
    "Network",
    "NetworkKind",
    "NetworkShape",
    "NetworkSystem",
    "Nic",
    "NodeGroup",
    "Prices",
    "Region",
    "Transport",
    "WanLink",
]

InNodeKind = Literal["nvswitch", "full-mesh", "hybrid-cube-mesh", "bridge-pairs", "pcie", "none"]
NetworkKind = Literal["infiniband", "roce", "ethernet", "efa", "slingshot"]
NetworkShape = Literal["none", "single-switch", "clos-2", "clos-3", "dragonfly+", "torus"]
NetworkSystem = Literal["sonic", "eos", "cumulus"]
Transport = Literal["tcp", "rdma"]
LevelName = Literal["nvlink", "pcie", "node", "region", "wan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator package.

    Attributes:
        kind: Catalogue name, such as `h100-sxm5`.
        vendor: Maker, as the catalogue spells it.
        memory_bytes: Device memory.
        memory_bandwidth_bytes_per_s: HBM or GDDR rate.
        dense_flop_per_s: Dense peak by dtype name (bf16, fp16, fp8, tf32, fp32); absent where it has none.
        fabric: `nvlink`, `infinity-fabric`, `hccs`, `blink` or `none`.
        fabric_generation: 1-6 for NVLink, else None.
        fabric_bytes_per_s: All links together, per direction.
        tdp_w: Board power.
        pcie: Host slot as written in the catalogue, such as `5.0 x16`.
    """

    kind: str
    vendor: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    dense_flop_per_s: dict[str, float]
    fabric: str
    fabric_generation: int | None
    fabric_bytes_per_s: float
    tdp_w: float
    pcie: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One network adapter; `rate_bytes_per_s` is line rate, per direction."""

    kind: str
    rate_bytes_per_s: float
    pcie: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InNode:
    """How the GPUs of one node reach each other.

    Attributes:
        kind: The wiring.
        bandwidth_bytes_per_s: What one GPU can send to the others together, per direction, line rate.
        switch_reduces: NVSwitch generation 3 or later adds in the switch (NVLS).
        domain: GPUs that share the wiring; 72 for NVL72, 2 for bridge pairs, else the node's GPUs.
    """

    kind: InNodeKind
    bandwidth_bytes_per_s: float
    switch_reduces: bool
    domain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` identical nodes. `nics` is the number per node that carry training traffic."""

    kind: str
    count: int
    gpus: int
    gpu: Gpu
    nics: int
    nic: Nic | None
    in_node: InNode
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Cable:
    """Cables of one catalogue kind and one length."""

    kind: str
    length_m: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network between the nodes of one region.

    Attributes:
        kind: What runs on the wire.
        rate_bytes_per_s: One port, per direction, line rate.
        shape: How the switches are joined; `none` for a region of one node.
        switch: Catalogue name, or None where none is named.
        oversubscription: Down-links over up-links at the first tier; 1 is non-blocking.
        rail_optimised: NIC i of every node hangs on the same leaf.
        cables: As stated; empty where nothing is said of them.
        system: What the switches run, or None where not said.
    """

    kind: NetworkKind
    rate_bytes_per_s: float
    shape: NetworkShape
    switch: str | None
    oversubscription: float
    rail_optimised: bool
    cables: tuple[Cable, ...] = ()
    system: NetworkSystem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One site; `city` places it on the map for RTT floors and may be unknown."""

    name: str
    city: str | None
    groups: tuple[NodeGroup, ...]
    network: Network

    @property
    def nodes(self) -> int:
        """Nodes of all groups."""
        return sum(group.count for group in self.groups)

    @property
    def gpus(self) -> int:
        """GPUs of all groups."""
        return sum(group.count * group.gpus for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class WanLink:
    """A link between two regions, the same both ways.

    Attributes:
        between: Names of the two regions.
        rate_bytes_per_s: IP bytes per direction that the contract or circuit carries.
        rtt_s: Round trip of an idle link.
        jitter_s: Peak deviation of the one-way delay.
        loss: Fraction of 1,500-byte packets lost, one way.
        transport: What crosses it.
        queue_bytes: Buffer before the bottleneck; None means one BDP.
        link_class: dark-fibre, leased-wave, mpls, internet, vpc, or None where not said.
        distance_m: Fibre route length, or None.
    """

    between: tuple[str, str]
    rate_bytes_per_s: float
    rtt_s: float
    jitter_s: float
    loss: float
    transport: Transport
    queue_bytes: float | None
    link_class: str | None
    distance_m: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the user pays, in `currency`; None where no price was given. Of the first three at most one is given.

    Attributes:
        gpu_hour, node_hour, node_month: Computing.
        wan_month: All links together.
        wan_gb: 10^9 bytes that leave a region.
        kwh: Energy at the meter.
        pue: Power at the meter over power of the nodes.
        rack_month: One rack.
        rack_power_w: What one feeds and cools.
    """

    currency: str
    as_of: str | None = None
    source: str | None = None
    gpu_hour: float | None = None
    node_hour: float | None = None
    node_month: float | None = None
    wan_month: float | None = None
    wan_gb: float | None = None
    kwh: float | None = None
    pue: float | None = None
    rack_month: float | None = None
    rack_power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Regions and the WAN that joins them; every pair of regions is reachable (checked when it is made)."""

    name: str
    regions: tuple[Region, ...]
    wan: tuple[WanLink, ...]
    prices: Prices | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all regions."""
        return sum(region.gpus for region in self.regions)

    def region(self, name: str) -> Region:
        """The region called `name`; KeyError where there is none."""
        return {region.name: region for region in self.regions}[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tier as a collective sees it.

    Attributes:
        name: Which tier.
        members: Parts of the tier below (GPUs, nodes, regions) that one group of this tier joins.
        latency_s: alpha, one way, for one message.
        bandwidth_bytes_per_s: Per direction, line rate, of one member of the tier (GPU, node, region uplink).
        lanes: Parallel rails a member drives at once (NICs of a node; rails of a region).
        carrier: What carries it, in words.
        source: Where the figures come from.
    """

    name: LevelName
    members: int
    latency_s: float
    bandwidth_bytes_per_s: float
    lanes: int
    carrier: str
    source: str
