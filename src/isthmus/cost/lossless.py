"""Lossless Ethernet over distance: PFC headroom, ECN thresholds, and where both end. Sizes in bytes."""

from dataclasses import dataclass

from isthmus.errors import InfeasibleError

__all__ = [
    "ECN_THRESHOLDS",
    "FIBRE_M_PER_S",
    "SHARED_BUFFERS",
    "EcnThresholds",
    "ecn_thresholds",
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
    wire = 2 * distance_m * rate_bytes_per_s / FIBRE_M_PER_S
    if not details:
        return wire
    bits = rate_bytes_per_s * 8
    known = [rate for rate in _PAUSE_QUANTA if rate >= bits * 0.999]
    if not known:
        raise InfeasibleError(f"no pause time is known for {bits / 1e9:.0f} Gb/s", "rates up to 800 Gb/s")
    quanta = _PAUSE_QUANTA[min(known)] * 64
    return mtu_bytes + occupancy * (mtu_bytes + wire + _MAC_PHY_BYTES + quanta)


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
