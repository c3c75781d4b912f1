import pytest

from isthmus.errors import InputError
from isthmus.fabric import entries, entry, gpu, kinds, nic, number, pcie_rate_bytes_per_s, sources

ALL = [(kind, each) for kind in kinds() for each in entries(kind).values()]
FIGURES = [(f"{kind}/{each.name}/{name}", figure) for kind, each in ALL for name, figure in each.figures.items()]


def test_links_times_rate_is_the_total_per_direction_of_every_gpu() -> None:
    linked = [each for each in entries("gpus").values() if "links" in each.figures]
    assert len(linked) >= 20
    for each in linked:
        total = each.figure("links").number * each.figure("link_rate").number
        assert total == each.figure("fabric_rate").number, each.name
        assert gpu(each.name).fabric_bytes_per_s == total


def test_nvlink_gpus_have_the_link_rate_of_their_generation() -> None:
    for each in entries("gpus").values():
        # GeForce links run below the rate of their generation (14.0625 of 25 GB/s).
        if each.words["fabric"] == "nvlink" and each.name != "rtx3090":
            generation = entry("nvlink", f"nvlink-{each.words['fabric_generation']}")
            assert each.figure("link_rate").number == generation.figure("link_rate").number, each.name
            assert each.figure("links").number <= generation.figure("links").number, each.name


def test_nvlink_lanes_times_lane_rate_is_the_link_and_links_the_total() -> None:
    for each in entries("nvlink").values():
        link = each.figure("link_rate").number
        assert each.figure("lanes").number * each.figure("lane_rate").number == pytest.approx(link, rel=1e-12), each.name
        assert each.figure("links").number * link == each.figure("rate").number, each.name


def test_nvswitch_ports_times_link_rate_is_the_chip_rate() -> None:
    for each in entries("nvswitch").values():
        link = number("nvlink", f"nvlink-{each.words['nvlink']}", "link_rate")
        assert each.figure("ports").number * link == each.figure("rate").number, each.name


def test_pcie_rates_follow_from_signalling_and_encoding() -> None:
    share = {"8b/10b": 8 / 10, "128b/130b": 128 / 130, "PAM4 FLIT 242/256": 242 / 256}
    for name, each in entries("pcie").items():
        if name != "measured":
            signalling = each.figure("lane_signalling")
            lane = float(signalling.text) * 1e9 * share[each.words["encoding"]] / 8
            assert each.figure("lane_rate").number == pytest.approx(lane, rel=1e-4), name
            assert each.figure("x8").number == pytest.approx(8 * lane, rel=1e-3), name
            assert each.figure("x16").number == pytest.approx(16 * lane, rel=1e-3), name


def test_a_pcie_3_slot_of_eight_lanes_carries_7_88_gigabytes() -> None:
    assert pcie_rate_bytes_per_s("3.0 x8") == pytest.approx(7.88e9, rel=1e-3)


@pytest.mark.parametrize("slot", ["5.0", "5.0x16", "7.0 x16", "5.0 x3", "nvlink-c2c", ""])
def test_a_slot_of_another_form_is_refused(slot: str) -> None:
    with pytest.raises(ValueError, match=r"is not a PCIe slot such as '5\.0 x16'"):
        pcie_rate_bytes_per_s(slot)


def test_infiniband_bytes_are_bits_over_eight() -> None:
    for each in entries("infiniband").values():
        assert each.figure("rate_bytes").number == pytest.approx(each.figure("rate").number, rel=1e-9), each.name


def test_switch_capacity_is_ports_times_rate() -> None:
    for each in entries("switches").values():
        total = each.figure("ports").number * each.figure("port_rate").number
        assert each.figure("capacity").number == pytest.approx(total, rel=1e-9), each.name


def test_tcp_goodput_is_1448_of_1538_bytes_of_a_frame() -> None:
    # 1,500 of IP and 38 of Ethernet preamble, header, checksum and gap; 1,448 of them payload with timestamps; the
    # catalogue counts 1,460 (no timestamps): 1460 / 1538 = 0.9493.
    for each in entries("ethernet").values():
        line = each.figure("rate").number
        assert each.figure("tcp_goodput_1500").number == pytest.approx(line * 1460 / 1538, rel=1e-3), each.name


def test_every_figure_has_sources_that_are_listed_and_the_best_status_among_them() -> None:
    order = ["opened", "secondary", "recalled", "calc"]
    for where, figure in FIGURES:
        assert figure.sources, where
        assert figure.status == min((sources()[key].status for key in figure.sources), key=order.index), where
        assert figure.unit or isinstance(figure.value, str), where
        assert figure.per, where


def test_every_source_is_used_and_none_is_a_note_of_our_own() -> None:
    used = {key for _, figure in FIGURES for key in figure.sources}
    assert set(sources()) == used
    assert not {"seed", "none"} & set(sources())


def test_recalled_figures_are_shown_as_recalled() -> None:
    assert entry("gpus", "t4-pcie").figure("fp16").status == "recalled"  # a data sheet that was not opened again
    assert entry("gpus", "h100-sxm5").figure("link_rate").status == "opened"


def test_nodes_name_entries_that_exist_and_chips_that_speak_to_their_gpus() -> None:
    for each in entries("nodes").values():
        device = gpu(each.words["gpu"])
        if "nic" in each.words:
            slot = str(each.figure("nic_slot").value)
            assert nic(each.words["nic"]).rate_bytes_per_s <= pcie_rate_bytes_per_s(slot), each.name
        if "nvswitch" in each.words:
            chip = entry("nvswitch", each.words["nvswitch"])
            assert chip.words["nvlink"] == str(device.fabric_generation), each.name


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("gpu", "h100", "catalogue: unknown kind 'gpu'\n  hint: did you mean 'gpus'?"),
        (
            "gpus",
            "h100-smx5",
            "catalogue: unknown name 'h100-smx5' in gpus\n  hint: did you mean 'h100-sxm5'?",
        ),
        (
            "switches",
            "zzz",
            "catalogue: unknown name 'zzz' in switches\n  hint: known: 7060x6-64pe, q3400, qm8700, qm9700, sn4700, sn5600",
        ),
    ],
)
def test_an_unknown_entry_is_refused_with_the_nearest(kind: str, name: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        entry(kind, name)
    assert str(error.value) == message


def test_a_pair_of_cities_may_be_named_either_way_round() -> None:
    assert entry("rtt", "shenzhen/shanghai") == entry("rtt", "shanghai/shenzhen")
