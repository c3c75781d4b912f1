"""PFC headroom of a switch's port against the vendor's own table, and where ECN must mark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.lossless import LosslessPort, ecn_before_pfc_bytes, pfc_headroom, pfc_headroom_bytes
from isthmus.fabric.entries import number

G = 1e9 / 8
# sonic-net/sonic-buildimage 086b03b, device/mellanox/x86_64-nvidia_sn5600-r0/ACS-SN5600/pg_profile_lookup.ini, column xoff:
# Gb/s -> bytes at 5, 40 and 300 m. Facts of the vendor's switch.
SN5600 = {
    10: (45056, 46080, 56320),
    25: (48128, 52224, 76800),
    40: (57344, 62464, 101376),
    50: (63488, 69632, 118784),
    100: (113664, 126976, 225280),
    200: (131072, 157696, 355328),
    400: (231424, 283648, 677888),
    800: (257024, 362496, 1150976),
}


def sn5600(gbit: float, cable_m: float) -> LosslessPort:
    cell, tile = number("switches", "sn5600", "cell"), number("switches", "sn5600", "tile")
    return LosslessPort(rate_bytes_per_s=gbit * G, cable_m=cable_m, cell_bytes=cell, tile_s=tile)


@pytest.mark.parametrize("gbit", SN5600)
def test_headroom_is_that_of_the_vendors_table_or_one_kib_below(gbit: int) -> None:
    ours = [pfc_headroom(sn5600(gbit, cable_m)).xoff_bytes for cable_m in (5, 40, 300)]
    assert all(theirs - each in (0, 1024) for each, theirs in zip(ours, SN5600[gbit], strict=True)), (ours, SN5600[gbit])


def test_15_of_the_24_rows_are_met_exactly() -> None:
    rows = [(gbit, cable, xoff) for gbit, row in SN5600.items() for cable, xoff in zip((5, 40, 300), row, strict=True)]
    assert sum(pfc_headroom(sn5600(gbit, cable)).xoff_bytes == xoff for gbit, cable, xoff in rows) == 15


def test_the_arithmetic_shown_is_that_of_the_result() -> None:
    # 400 Gb/s, 40 m: 2 x 40 m x 50 GB/s / 1.98e8 m/s = 20,202 B; 905 quanta of 64 B; 120 ns of 50 GB/s = 6,000 B; 192 / 64 = 3.
    room = pfc_headroom(sn5600(400, 40))
    assert room.arithmetic == (
        "1,024 + 3 x (frame 9,100 + cable 20,202 + MAC and PHY 819 + peer 57,920 + tile 6,000) -> 283,648 B"
    )
    assert pytest.approx(room.xoff_bytes, abs=1024) == 1024 + 3 * (9100 + 20202 + 819.2 + 57920 + 6000)


def test_a_cell_of_96_bytes_holds_one_small_packet_and_most_of_another() -> None:
    assert pfc_headroom(LosslessPort(rate_bytes_per_s=100 * G, cable_m=5, cell_bytes=96)).occupancy == 2  # 2 x 96 / 97, up


def test_a_long_line_takes_the_slope_that_arista_lists_for_80_and_120_km_within_a_third() -> None:
    # Arista-7800R3-48CQ2 (deep buffers), 400 Gb/s: xoff 53,305,344 B at 80 km and 79,900,672 B at 120 km: 664.9 B/m, where
    # the wire alone takes 505. Source: sonic-buildimage, its pg_profile_lookup.ini.
    slope = (79900672 - 53305344) / 40e3
    wire = (pfc_headroom_bytes(400 * G, 120e3, details=False) - pfc_headroom_bytes(400 * G, 80e3, details=False)) / 40e3
    assert slope / wire == pytest.approx(1.316, abs=0.001)
    assert pfc_headroom_bytes(400 * G, 1e6, details=False) * slope / wire == pytest.approx(665e6, rel=0.001)


def test_marking_starts_before_the_pause_as_in_the_paper() -> None:
    # 8 priorities of 22.4 KB: as if each port were eight.
    assert ecn_before_pfc_bytes(12e6, 32 * 8, 22.4e3, alpha=8) == pytest.approx(21.7e3, rel=0.005)


@given(gbit=st.sampled_from(sorted(SN5600)), cable_m=st.floats(0, 1e6), more_m=st.floats(1, 1e6))
def test_more_cable_never_needs_less_and_never_less_than_what_is_on_it(gbit: int, cable_m: float, more_m: float) -> None:
    near, far = pfc_headroom(sn5600(gbit, cable_m)), pfc_headroom(sn5600(gbit, cable_m + more_m))
    assert near.xoff_bytes <= far.xoff_bytes
    assert far.xoff_bytes >= far.wire_bytes
