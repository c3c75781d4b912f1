"""What a RoCE region's switches must be set to, worked out once from the fabric: cables, headroom, thresholds, ports."""

from dataclasses import dataclass
from math import floor

from isthmus.cost.lossless import (
    FIBRE_M_PER_S,
    EcnThresholds,
    Headroom,
    LosslessPort,
    ecn_before_pfc_bytes,
    ecn_thresholds,
    pfc_headroom,
)
from isthmus.deploy.marks import MARKS, Marks
from isthmus.fabric import Region
from isthmus.fabric.entries import Entry, entry, number
from isthmus.fabric.levels import region_layout

__all__ = ["HOST_MTU", "PORT_MTU", "RDMA_MTU", "Roce", "roce_of"]

HOST_MTU = 9000
"""IP bytes: the largest that adapters and switches of all makers carry as they come."""
PORT_MTU = 9100
"""Frame bytes of a switch port, SONiC's default: room for HOST_MTU, Ethernet's 18 bytes and a VLAN tag."""
RDMA_MTU = 4096
"""The largest of InfiniBand's; HOST_MTU holds it with headers."""
_RDMA_FRAME = RDMA_MTU + 14 + 20 + 8 + 12 + 16 + 4 + 4
"""With Ethernet, IPv4, UDP, BTH, RETH, ICRC and FCS."""
_CABLE_M = 100.0
"""Where fabric.yaml states no cables: what Cumulus Linux takes for its own headroom."""
_SWITCH_S = 1e-6
"""One switch, store and forward of a full-size packet included: a guess, of no weight beside the stated thresholds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roce:
    """One region's RoCE network.

    Attributes:
        region: Its name.
        marks: How packets are marked.
        rate_bytes_per_s: Of every port in use.
        switch: Catalogue entry, or None where none is named.
        ports: Of one switch.
        lanes: Of one port.
        cable_m: The longest cable.
        cable_stated: Whether fabric.yaml says so.
        headroom: Of one port's lossless priority; None where the switch's cells are not known.
        ecn: Thresholds to set.
        ecn_stated: Thresholds that are stated for this rate.
        ecn_most_bytes: Bound on Kmin so that marks come before pauses; None where the switch's buffer is not known.
        rtt_s: Between the two nodes furthest apart, light and switches only.
        system: What the switches run, or None where not said.
    """

    region: str
    marks: Marks
    rate_bytes_per_s: float
    switch: Entry | None
    ports: int
    lanes: int
    cable_m: float
    cable_stated: bool
    headroom: Headroom | None
    ecn: EcnThresholds
    ecn_stated: EcnThresholds
    ecn_most_bytes: float | None
    rtt_s: float
    system: str | None

    @property
    def asic(self) -> str:
        """Its name, or `unknown`."""
        return self.switch.words.get("asic", "unknown") if self.switch else "unknown"

    @property
    def spectrum(self) -> bool:
        """NVIDIA Spectrum: SONiC sizes its headroom itself, from cable length and rate."""
        return self.asic.startswith("Spectrum")

    @property
    def systems(self) -> tuple[str, ...]:
        """Operating systems to write files for."""
        if self.system:
            return (self.system,)
        known = self.switch.words.get("systems") if self.switch else None
        return tuple(known.split(", ")) if known else ("sonic", "eos", "cumulus")

    @property
    def cable_reason(self) -> str:
        """Where the length of cables is from."""
        if self.cable_stated:
            return "longest of network.cables in fabric.yaml"
        return "a guess: fabric.yaml states no network.cables; Cumulus Linux's own default. Too short a length loses packets"


def roce_of(region: Region, marks: Marks = MARKS) -> Roce:
    """Work out what the region's switches need.

    Raises:
        InfeasibleError: Ports faster than 800 Gb/s, of which no pause time is known.
    """
    network = region.network
    switch = entry("switches", network.switch) if network.switch else None
    layout = region_layout(region)
    adapters = sum(group.count * group.nics for group in region.groups)
    ports = int(switch.figure("ports").number) if switch else adapters
    cable_m = max((cable.length_m for cable in network.cables), default=_CABLE_M)
    tiers = 1 if layout is None else (layout.hops_limit + 1) // 2
    room = _headroom(switch, network.rate_bytes_per_s, cable_m)
    hops = 2 * tiers
    rtt_s = 2 * (hops * cable_m / FIBRE_M_PER_S + (hops - 1) * _SWITCH_S)
    stated = ecn_thresholds(network.rate_bytes_per_s, rtt_s)
    most = _marks_first(switch, ports, room)
    return Roce(
        region=region.name,
        marks=marks,
        rate_bytes_per_s=network.rate_bytes_per_s,
        switch=switch,
        ports=ports,
        lanes=int(switch.figure("lanes").number) if switch and "lanes" in switch.figures else 8,
        cable_m=cable_m,
        cable_stated=bool(network.cables),
        headroom=room,
        ecn=_lowered(stated, most),
        ecn_stated=stated,
        ecn_most_bytes=most,
        rtt_s=rtt_s,
        system=network.system,
    )


def _headroom(switch: Entry | None, rate_bytes_per_s: float, cable_m: float) -> Headroom | None:
    if switch is None or "cell" not in switch.figures:
        return None
    tile_s = switch.figure("tile").number if "tile" in switch.figures else 0.0
    return pfc_headroom(
        LosslessPort(
            rate_bytes_per_s=rate_bytes_per_s,
            cable_m=cable_m,
            cell_bytes=number("switches", switch.name, "cell"),
            tile_s=tile_s,
            mtu_bytes=PORT_MTU,
            lossless_mtu_bytes=_RDMA_FRAME,
        )
    )


def _marks_first(switch: Entry | None, ports: int, room: Headroom | None) -> float | None:
    if switch is None or room is None or "buffer" not in switch.figures:
        return None
    return ecn_before_pfc_bytes(switch.figure("buffer").number, ports, room.xoff_bytes)


def _lowered(stated: EcnThresholds, most_bytes: float | None) -> EcnThresholds:
    """The stated thresholds, both lowered in proportion where marks would come after pauses; whole kB, as EOS takes them."""
    share = 1.0 if most_bytes is None or most_bytes <= 0 else min(1.0, most_bytes / stated.kmin_bytes)
    kmin, kmax = (floor(each * share / 1000) * 1000.0 for each in (stated.kmin_bytes, stated.kmax_bytes))
    return EcnThresholds(kmin_bytes=kmin, kmax_bytes=kmax, pmax=stated.pmax, source=stated.source)
