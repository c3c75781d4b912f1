"""What a RoCE region's switches need, worked out from the fabric."""

from collections.abc import Callable

import pytest

from isthmus.cost.lossless import ecn_before_pfc_bytes
from isthmus.deploy.marks import Marks
from isthmus.deploy.network.roce import HOST_MTU, PORT_MTU, RDMA_MTU, Roce

RoceOf = Callable[..., Roce]


def test_data_and_cnp_have_classes_of_their_own_and_all_else_shares_the_first() -> None:
    marks = Marks()
    assert {dscp: marks.priority(dscp) for dscp in range(64) if marks.priority(dscp)} == {26: 3, 48: 6}


def test_the_traffic_class_is_the_dscp_and_ect() -> None:
    # The byte that NCCL_IB_TC, cma_roce_tos and verbs take: 26 x 4 + 2.
    assert Marks().traffic_class == 106
    assert Marks().pfc == "0,0,0,1,0,0,0,0"


def test_mtus_hold_each_other() -> None:
    # RDMA's payload and 78 bytes of headers in the hosts' IP MTU, that and 18 of Ethernet and a tag in the switch's frame.
    assert RDMA_MTU + 60 <= HOST_MTU
    assert HOST_MTU + 18 + 4 <= PORT_MTU


def test_the_longest_stated_cable_sizes_the_headroom(make_roce: RoceOf) -> None:
    roce = make_roce("rate: 400 Gb/s, switch: sn5600, cables: [{kind: passive-copper, length: 2 m}, {kind: sr4, length: 40 m}]")
    assert (roce.cable_m, roce.cable_stated) == (40, True)
    assert roce.headroom is not None
    # NVIDIA's table for the SN5600 says 283,648 B at 400 Gb/s and 40 m with packets of 1,024 B; ours are 4,174 B with headers.
    assert roce.headroom.xoff_bytes == pytest.approx(283648 + 4174 - 1024, abs=1024)


def test_without_cables_a_hundred_metres_are_assumed_and_called_a_guess(make_roce: RoceOf) -> None:
    roce = make_roce("rate: 400 Gb/s, switch: sn5600")
    assert roce.cable_m == 100
    assert roce.cable_reason.startswith("a guess")


@pytest.mark.parametrize(("rate", "kmin", "kmax"), [(100, 400, 1600), (200, 600, 2400), (400, 800, 3200)])
def test_thresholds_are_the_stated_ones_where_marks_come_first(make_roce: RoceOf, rate: int, kmin: int, kmax: int) -> None:
    roce = make_roce(f"rate: {rate} Gb/s, switch: sn5600, cables: [{{kind: dr4, length: 40 m}}]")
    assert (roce.ecn.kmin_bytes, roce.ecn.kmax_bytes) == (kmin * 1e3, kmax * 1e3)


def test_thresholds_are_lowered_in_proportion_where_pauses_would_come_first(make_roce: RoceOf) -> None:
    # 32 ports of 400 Gb/s on the 60.8 MB of a Spectrum-3: (60.8 MB - 32 x h) / 64 is below the stated 800 kB.
    roce = make_roce("rate: 400 Gb/s, switch: sn4700, cables: [{kind: fr4, length: 300 m}]")
    assert roce.headroom is not None
    bound = ecn_before_pfc_bytes(60817392, 32, roce.headroom.xoff_bytes)
    assert 0 < bound < 800e3
    assert bound - 1000 < roce.ecn.kmin_bytes <= bound
    assert roce.ecn.kmax_bytes / roce.ecn.kmin_bytes == pytest.approx(4, rel=0.01)


def test_a_switch_of_unknown_cells_has_no_headroom_of_ours(make_roce: RoceOf) -> None:
    roce = make_roce("rate: 400 Gb/s, switch: 7060x6-64pe")
    assert roce.headroom is None
    assert roce.systems == ("sonic", "eos")


def test_a_stated_system_is_the_only_one_written_for(make_roce: RoceOf) -> None:
    assert make_roce("rate: 400 Gb/s, switch: sn5600").systems == ("sonic", "cumulus")
    assert make_roce("rate: 400 Gb/s, switch: sn5600, system: cumulus").systems == ("cumulus",)
    assert make_roce("rate: 400 Gb/s").systems == ("sonic", "eos", "cumulus")

