"""Lossless Ethernet over distance: PFC headroom, ECN thresholds, and where both end. Sizes in bytes."""

from dataclasses import dataclass
from math import ceil

from isthmus.errors import InfeasibleError

__all__ = [
    "ECN_THRESHOLDS",
    "FIBRE_M_PER_S",
    "SHARED_BUFFERS",
    "EcnThresholds",
    "Headroom",
    "LosslessPort",
    "ecn_before_pfc_bytes",
    "ecn_thresholds",
    "pfc_headroom",
    "pfc_headroom_bytes",
    "pfc_reach_m",
]

FIBRE_M_PER_S = 1.98e8
"""Light in fibre as SONiC's headroom script counts it (sonic-net/sonic-swss cfgmgr/buffer_headroom_mellanox.lua)."""

_PAUSE_QUANTA = {10e9: 67, 25e9: 80, 40e9: 118, 50e9: 147, 100e9: 394, 200e9: 453, 400e9: 905, 800e9: 905}
"""Quanta of 512 bit times that a peer takes to act on a pause frame, by line rate (same script; IEEE 802.3 annex 31B)."""
_MAC_PHY_BYTES = 0.8 * 1024
"""Delay of MAC and PHY as bytes (0.8 KB in SONiC's Mellanox peripheral table)."""

SHARED_BUFFERS = {"Spectrum-3 (SN4700)": 64e6, "Spectrum-4 (SN5600)": 160e6, "Tomahawk 5": 165e6, "Jericho 2 with HBM": 8e9}
"""Packet buffers of whole switches, for comparison (data sheets; recalled)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EcnThresholds:
    """RED between two queue lengths; `source` says who states them."""

    kmin_bytes: float
    kmax_bytes: float
    pmax: float
    source: str


_STATED = "HPCC and SimAI simulator configurations (alibaba-edu/High-Precision-Congestion-Control config.txt, SimAI.conf)"
ECN_THRESHOLDS = {
    25e9: EcnThresholds(kmin_bytes=100e3, kmax_bytes=400e3, pmax=0.2, source=_STATED),
    50e9: EcnThresholds(kmin_bytes=200e3, kmax_bytes=800e3, pmax=0.2, source=_STATED),
    100e9: EcnThresholds(kmin_bytes=400e3, kmax_bytes=1600e3, pmax=0.2, source=_STATED),
    200e9: EcnThresholds(kmin_bytes=600e3, kmax_bytes=2400e3, pmax=0.2, source=_STATED),
    400e9: EcnThresholds(kmin_bytes=800e3, kmax_bytes=3200e3, pmax=0.2, source=_STATED),
}
"""By line rate in bits/s, for round trips of tens of microseconds inside one site."""


def pfc_headroom_bytes(
    rate_bytes_per_s: float, distance_m: float, mtu_bytes: float = 9100, occupancy: float = 2.25, details: bool = True
) -> float:
    """Buffer that a port needs above its pause threshold so that nothing is lost, for one priority.

        xoff = MTU + o (MTU + 2 L R / v + MAC/PHY + 64 q)

    L = distance, R = rate, v = 1.98e8 m/s; q = pause quanta of the peer's rate; o = occupancy, what a packet takes of buffer
    cells: 1 for full-size packets, 2 to 3 for the smallest, 2.25 the slope of the vendor's own table for the SN4700.
    `details=False` counts the wire only: 2 L R / v.
    Leaves out: gearboxes on the port, rounding to cells.
    Source: sonic-net/sonic-swss cfgmgr/buffer_headroom_mellanox.lua; table: ACS-MSN4700 pg_profile_lookup.ini.

    Raises:
        InfeasibleError: No pause quanta are known for a rate above 800 Gb/s.
    """
    wire = _wire_bytes(rate_bytes_per_s, distance_m)
    if not details:
        return wire
    return mtu_bytes + occupancy * (mtu_bytes + wire + _MAC_PHY_BYTES + _peer_bytes(rate_bytes_per_s))


def _wire_bytes(rate_bytes_per_s: float, distance_m: float) -> float:
    return 2 * distance_m * rate_bytes_per_s / FIBRE_M_PER_S


def _peer_bytes(rate_bytes_per_s: float) -> float:
    """What arrives while the peer acts on a pause: quanta of 512 bit times, those of the next known rate."""
    bits = rate_bytes_per_s * 8
    known = [rate for rate in _PAUSE_QUANTA if rate >= bits * 0.999]
    if not known:
        raise InfeasibleError(f"no pause time is known for {bits / 1e9:.0f} Gb/s", "rates up to 800 Gb/s")
    return _PAUSE_QUANTA[min(known)] * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessPort:
    """A port whose headroom is asked for.

    Attributes:
        rate_bytes_per_s: Line rate.
        cable_m: Length of its cable.
        cell_bytes: What the switch's buffer is counted in; a packet of 64 B takes a whole cell.
        tile_s: Line time that stays in the port's own tile (120 ns on Spectrum-4 and -5, else none).
        mtu_bytes: Largest frame of any class, which may be on the wire when a pause is due.
        lossless_mtu_bytes: Largest packet of the lossless class: 1,024 of RDMA's own MTU by SONiC's default.
    """

    rate_bytes_per_s: float
    cable_m: float
    cell_bytes: float
    tile_s: float = 0.0
    mtu_bytes: int = 9100
    lossless_mtu_bytes: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Bytes that arrive after a pause is due, term by term, and what they take of the buffer (`xoff_bytes`, whole KiB)."""

    port: LosslessPort
    wire_bytes: float
    peer_bytes: float
    tile_bytes: float
    occupancy: float
    xoff_bytes: int

    @property
    def arithmetic(self) -> str:
        """The sum in words, with its figures."""
        port = self.port
        tile = f" + tile {self.tile_bytes:,.0f}" if self.tile_bytes else ""
        return (
            f"{port.lossless_mtu_bytes:,} + {self.occupancy:g} x (frame {port.mtu_bytes:,} + cable {self.wire_bytes:,.0f} + "
            f"MAC and PHY {_MAC_PHY_BYTES:,.0f} + peer {self.peer_bytes:,.0f}{tile}) -> {self.xoff_bytes:,} B"
        )


def pfc_headroom(port: LosslessPort) -> Headroom:
    """Headroom as a switch with SONiC's dynamic buffer model works it out, for one priority of one port.

        xoff = MTU_lossless + o (MTU + 2 L R / v + MAC/PHY + 64 q + R t),   rounded up to KiB

    o = cells that the smallest packets take (64 B in a cell of c: c / 64, rounded up; 2 c / (1 + c) for cells up to 128 B), the
    worst case, SONiC's `small_packet_percentage` 100; q = pause quanta; t = `tile_s`.
    Leaves out: gearboxes, Spectrum-6's allowance of 18 KiB.
    Source: sonic-net/sonic-swss e6b0c5b cfgmgr/buffer_headroom_mellanox.lua. Agrees with all 24 rows of NVIDIA's own table for
    the SN5600 (sonic-buildimage ACS-SN5600/pg_profile_lookup.ini): 15 exactly, 9 one KiB below.

    Raises:
        InfeasibleError: No pause quanta are known for a rate above 800 Gb/s.
    """
    cell = port.cell_bytes
    occupancy = ceil(cell / 64 if cell > 128 else 2 * cell / (1 + cell))
    wire, peer = _wire_bytes(port.rate_bytes_per_s, port.cable_m), _peer_bytes(port.rate_bytes_per_s)
    tile = port.rate_bytes_per_s * port.tile_s
    xoff = port.lossless_mtu_bytes + occupancy * (port.mtu_bytes + wire + _MAC_PHY_BYTES + peer + tile)
    return Headroom(
        port=port, wire_bytes=wire, peer_bytes=peer, tile_bytes=tile, occupancy=occupancy, xoff_bytes=ceil(xoff / 1024) * 1024
    )


def ecn_before_pfc_bytes(buffer_bytes: float, ports: int, headroom_bytes: float, alpha: float = 1.0) -> float:
    """Longest queue at which marking still starts before a pause, when all ports of a switch are congested at once.

        K < a (B - n h) / (n (1 + a))

    B = buffer, n = ports, h = headroom of one port's one lossless priority, a = dynamic threshold (share of the free buffer
    that one queue may take; SONiC's `default_dynamic_th` 0 is a = 2^0). Below zero: the buffer does not hold the headroom of
    all ports. Source: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 4, for eight
    priorities; here for one. Its example: 12 MB, 32 ports, 8 priorities of 22.4 KB, a = 8 give 21.7 KB.
    """
    return alpha * (buffer_bytes - ports * headroom_bytes) / (ports * (1 + alpha))


def pfc_reach_m(rate_bytes_per_s: float, buffer_bytes: float) -> float:
    """Furthest that a port with `buffer_bytes` of headroom stays lossless, wire only: v x / (2 R)."""
    return buffer_bytes * FIBRE_M_PER_S / (2 * rate_bytes_per_s)


def ecn_thresholds(rate_bytes_per_s: float, rtt_s: float) -> EcnThresholds:
    """Marking thresholds for a rate and a round trip.

    Inside a site those stated for the next known rate, scaled by rate. Over distance a queue shorter than C RTT / 7 runs dry
    between a mark and its effect: K = C RTT / 7, up to four times that. Source: Alizadeh et al., DCTCP, SIGCOMM 2010, section
    3.4 (K > C RTT / 7); the factor four is that of the stated tables.
    """
    bits = rate_bytes_per_s * 8
    nearest = min(ECN_THRESHOLDS, key=lambda rate: abs(rate - bits))
    stated = ECN_THRESHOLDS[nearest]
    scale = bits / nearest
    floor = rate_bytes_per_s * rtt_s / 7
    if floor <= stated.kmin_bytes * scale:
        return EcnThresholds(
            kmin_bytes=stated.kmin_bytes * scale, kmax_bytes=stated.kmax_bytes * scale, pmax=stated.pmax, source=stated.source
        )
    return EcnThresholds(kmin_bytes=floor, kmax_bytes=4 * floor, pmax=stated.pmax, source="K = C RTT / 7, DCTCP (SIGCOMM 2010)")
