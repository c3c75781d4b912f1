import pytest

from isthmus.errors import InputError
from isthmus.fabric import Fabric, parse_fabric


def one(nodes: str, network: str = "{kind: infiniband, switch: qm9700}") -> Fabric:
    return parse_fabric(f"name: x\nregions:\n  west:\n    nodes: [{nodes}]\n    network: {network}\n", "f.yaml")


def group(nodes: str):
    return one(nodes).regions[0].groups[0]


def test_a_node_kind_brings_everything_with_it() -> None:
    found = group("{count: 2, kind: hgx-h100}")
    assert (found.gpus, found.nics, found.gpu.kind, found.power_w) == (8, 8, "h100-sxm5", 10_200.0)
    assert found.nic is not None
    assert (found.nic.kind, found.nic.rate_bytes_per_s) == ("connectx-7", 50e9)
    assert (found.in_node.kind, found.in_node.domain, found.in_node.bandwidth_bytes_per_s) == ("nvswitch", 8, 450e9)


@pytest.mark.parametrize(
    ("kind", "reduces"), [("hgx-h100", True), ("hgx-b200", True), ("gb200-nvl72", True), ("hgx-a100-80", False),
                          ("dgx-2", False), ("mi300x-8", False), ("l40s-8", False)]
)  # fmt: skip
def test_nvswitch_reduces_from_its_third_generation_on(kind: str, reduces: bool) -> None:
    assert group(f"{{count: 2, kind: {kind}}}").in_node.switch_reduces is reduces


def test_every_field_given_wins_over_the_catalogue() -> None:
    found = group("{count: 2, kind: hgx-h100, gpu: h200-sxm5, gpus: 4, nics: {count: 2, kind: connectx-6}, power: 5 kW}")
    assert (found.gpu.kind, found.gpus, found.nics, found.power_w) == ("h200-sxm5", 4, 2, 5000.0)
    assert found.nic is not None
    assert found.nic.rate_bytes_per_s == 25e9
    assert found.in_node.domain == 4  # the wiring joins the GPUs that are there


def test_cards_may_be_wired_by_pcie_where_bridges_are_left_out() -> None:
    found = group("{count: 2, kind: h100-pcie-8, wiring: pcie}").in_node
    assert (found.kind, found.domain) == ("pcie", 8)
    assert found.bandwidth_bytes_per_s == pytest.approx(63.02e9, rel=1e-4)


def test_a_single_gpu_has_nothing_to_be_wired_to() -> None:
    found = group("{count: 2, kind: hgx-h100, gpus: 1}").in_node
    assert (found.kind, found.domain, found.bandwidth_bytes_per_s) == ("none", 1, 0.0)


@pytest.mark.parametrize("wiring", ["pcie", "bridge-pairs"])
def test_a_gpu_without_a_slot_cannot_meet_the_others_over_pcie(wiring: str) -> None:
    with pytest.raises(InputError) as error:
        group(f"{{count: 2, kind: gb200-nvl72, wiring: {wiring}}}")
    assert str(error.value) == "f.yaml:4: gb200 has no PCIe slot of its own (nvlink-c2c)\n  hint: state another wiring"


@pytest.mark.parametrize(
    ("count", "shape"),
    [(1, "none"), (8, "single-switch"), (9, "clos-2"), (256, "clos-2"), (257, "clos-3")],  # 64 ports, 8 adapters a node
)
def test_the_shape_left_out_is_the_smallest_that_the_switch_can_build(count: int, shape: str) -> None:
    assert one(f"{{count: {count}, kind: hgx-h100}}").regions[0].network.shape == shape


def test_the_rate_left_out_is_that_of_the_slowest_adapter() -> None:
    found = one("{count: 2, kind: hgx-h100}, {count: 2, kind: hgx-h100, nics: {kind: connectx-6}}")
    assert found.regions[0].network.rate_bytes_per_s == 25e9


def test_a_city_is_known_in_any_case_and_spelled_as_the_catalogue_does() -> None:
    text = "name: x\nregions: {a: {city: hong kong, nodes: [{count: 1, kind: hgx-h100}]}}\n"
    assert parse_fabric(text, "f.yaml").regions[0].city == "Hong Kong"
