"""The fabric document: what a user writes, before any look-up. `resolve.py` turns it into `model.Fabric`.

A field left out takes the catalogue's value of the node kind; every field given here wins over the catalogue.
"""

from typing import Annotated, Literal

from pydantic import Field

from isthmus.documents import Count, Document, Fraction, LengthM, PowerW, RateBytesPerS, SizeBytes, TimeS
from isthmus.fabric.model import InNodeKind, NetworkKind, NetworkShape, NetworkSystem, Transport

__all__ = [
    "CableEntry",
    "FabricDocument",
    "LinkClass",
    "NetworkEntry",
    "NicsEntry",
    "NodesEntry",
    "PricesEntry",
    "RegionEntry",
    "WanEntry",
]

LinkClass = Literal["dark-fibre", "leased-wave", "mpls", "internet", "vpc"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]
Some = Annotated[Count, Field(ge=1, le=100_000)]
PositiveRate = Annotated[RateBytesPerS, Field(gt=0, le=1e15)]
Share = Annotated[Fraction, Field(ge=0, lt=1)]


class NicsEntry(Document):
    """The network adapters of one node that carry training traffic."""

    count: Some | None = Field(default=None, description="Adapters a node; the node kind's own number if left out.")
    kind: str | None = Field(default=None, description="Catalogue name, such as connectx-7.")
    slot: Annotated[str, Field(pattern=r"^[1-6]\.0 x(1|2|4|8|16|32)$")] | None = Field(
        default=None, description="PCIe slot each adapter sits in, such as 5.0 x16."
    )


class NodesEntry(Document):
    """A group of identical nodes."""

    count: Some = Field(description="Nodes of this kind in the region, such as 2.")
    kind: str = Field(description="Catalogue name of the node, such as hgx-h100 (isthmus catalog nodes).")
    gpu: str | None = Field(default=None, description="GPU in place of the node kind's own.")
    gpus: Annotated[Count, Field(ge=1, le=1024)] | None = Field(default=None, description="GPUs a node.")
    nics: NicsEntry | None = None
    wiring: InNodeKind | None = Field(default=None, description="How the GPUs of a node reach each other.")
    power: Annotated[PowerW, Field(gt=0)] | None = Field(default=None, description="Power of one node.")


class CableEntry(Document):
    """Cables of one kind and length in a region's network."""

    kind: str = Field(description="Catalogue name, such as passive-copper (isthmus catalog cables).")
    length: Annotated[LengthM, Field(gt=0, le=1e7, description="Such as 3 m.")]


class NetworkEntry(Document):
    """The network between the nodes of a region."""

    kind: NetworkKind = Field(description="What runs on the wire.")
    rate: PositiveRate | None = Field(
        default=None, description="One port, per direction; the slowest adapter's rate if left out."
    )
    shape: NetworkShape | None = Field(
        default=None,
        description="If left out: the smallest Clos that the switch can build; one switch where none is named.",
    )
    switch: str | None = Field(default=None, description="Catalogue name, such as qm9700 (isthmus catalog switches).")
    oversubscription: Annotated[float, Field(ge=1, le=64)] = Field(default=1.0, description="Down-links over up-links of a leaf.")
    rail_optimised: bool = Field(default=True, description="Adapter i of every node hangs on the same leaf.")
    cables: list[CableEntry] = Field(
        default_factory=list[CableEntry], description="Such as [{kind: passive-copper, length: 3 m}]."
    )
    system: NetworkSystem | None = Field(
        default=None,
        description="What the switches run, for `isthmus deploy --to network`; all that this switch can run if left out.",
    )


class RegionEntry(Document):
    """One site."""

    city: str | None = Field(default=None, description="Where it stands (isthmus catalog cities).")
    nodes: Annotated[list[NodesEntry], Field(min_length=1)] = Field(
        description="Groups of identical nodes, such as [{count: 2, kind: hgx-h100}]."
    )
    network: NetworkEntry | None = Field(
        default=None,
        description="Such as {kind: infiniband, rate: 400 Gb/s}; may be left out for a region of one node.",
    )


class WanEntry(Document):
    """A link between two regions, the same both ways."""

    between: Annotated[list[str], Field(min_length=2, max_length=2)] = Field(
        description="Names of the two regions, such as [west, east]."
    )
    rate: PositiveRate = Field(description="IP bytes per direction that the line carries, such as 100 Gb/s.")
    rtt: Annotated[TimeS, Field(gt=0, le=10)] = Field(description="Round trip of the idle link, such as 18 ms.")
    jitter: Annotated[TimeS, Field(ge=0, le=10)] = Field(
        default=0.0, description="Peak deviation of the one-way delay, such as 1 ms."
    )
    loss: Share = Field(default=0.0, description="Share of 1,500-byte packets lost, one way: from 0 to below 1, or in %.")
    transport: Transport = Field(default="tcp", description="What crosses the link: tcp or rdma.")
    queue: Annotated[SizeBytes, Field(gt=0)] | None = Field(
        default=None, description="Buffer before the bottleneck; one BDP if left out."
    )
    link_class: LinkClass | None = Field(default=None, alias="class", description="What kind of line it is.")
    distance: Annotated[LengthM, Field(gt=0, le=5e7)] | None = Field(default=None, description="Length of the fibre route.")


Price = Annotated[float, Field(ge=0, le=1e12)]


class PricesEntry(Document):
    """What the user pays, in one currency. Nothing has a default: what is left out is left out of the bill, and named."""

    currency: Annotated[str, Field(min_length=1, max_length=16, description="Such as USD; prices are plain numbers in it.")]
    as_of: Annotated[str, Field(max_length=40)] | None = Field(default=None, description="When they held, such as '2026-11'.")
    source: Annotated[str, Field(max_length=200)] | None = Field(default=None, description="Whose they are, such as a quotation.")
    gpu_hour: Price | None = Field(default=None, description="One GPU for an hour; or node_hour or node_month.")
    node_hour: Price | None = Field(default=None, description="One node for an hour.")
    node_month: Price | None = Field(default=None, description="One node for a month of 730.5 hours.")
    wan_month: Price | None = Field(default=None, description="All WAN links together, a month.")
    wan_gb: Price | None = Field(default=None, description="10^9 bytes that leave a region.")
    kwh: Price | None = Field(default=None, description="A kilowatt-hour, where power is paid for apart.")
    pue: Annotated[float, Field(ge=1, le=5)] | None = Field(
        default=None, description="Power of the site over power of the nodes, for cooling and losses."
    )
    rack_month: Price | None = Field(default=None, description="A rack for a month, where it is paid for apart.")
    rack_power: Annotated[PowerW, Field(gt=0)] | None = Field(
        default=None, description="What a rack feeds and cools, such as 40 kW."
    )


class FabricDocument(Document):
    """Regions and the WAN that joins them."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        description="A title, in quotes where it is a number or yes or no."
    )
    regions: Annotated[dict[Name, RegionEntry], Field(min_length=1, max_length=64)] = Field(
        description="Name of each region, and under it nodes, network and city."
    )
    wan: list[WanEntry] = Field(
        default_factory=list[WanEntry],
        description="Links, such as - {between: [west, east], rate: 100 Gb/s, rtt: 18 ms}.",
    )
    prices: PricesEntry | None = Field(default=None, description="Such as {currency: USD, gpu_hour: 2.5, wan_month: 30000}.")
