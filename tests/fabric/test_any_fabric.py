"""Fabrics drawn from everything the catalogue and the document allow: read or refused, then checked, never broken."""

from typing import Any

import yaml
from hypothesis import event, given, settings
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.fabric import check_text, entries, levels, parse_fabric

SHAPES = ["none", "single-switch", "clos-2", "clos-3", "dragonfly+", "torus"]
WIRINGS = ["nvswitch", "full-mesh", "hybrid-cube-mesh", "bridge-pairs", "pcie", "none"]


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def names(kind: str) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(entries(kind)))


def merged(
    first: st.SearchStrategy[dict[str, Any]], second: st.SearchStrategy[dict[str, Any]]
) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda a, b: a | b, first, second)


RATES = st.sampled_from(["10 Gb/s", "100 Gb/s", "200 Gb/s", "400 Gb/s", "800 Gb/s", "1.6 Tb/s"])
NICS = some(
    count=st.integers(1, 16), kind=names("nics"), slot=st.sampled_from(["3.0 x8", "4.0 x8", "4.0 x16", "5.0 x16", "6.0 x16"])
)
NODES = merged(
    st.fixed_dictionaries({"count": st.integers(1, 300), "kind": names("nodes")}),
    some(gpu=names("gpus"), gpus=st.integers(1, 16), nics=NICS, wiring=st.sampled_from(WIRINGS)),
)
CABLES = st.lists(
    st.fixed_dictionaries({"kind": names("cables"), "length": st.sampled_from(["1 m", "4 m", "90 m", "3 km", "60 km"])}),
    max_size=2,
)
NETWORK = merged(
    st.fixed_dictionaries({"kind": st.sampled_from(["infiniband", "roce", "ethernet", "efa", "slingshot"])}),
    some(rate=RATES, shape=st.sampled_from(SHAPES), switch=names("switches"), oversubscription=st.sampled_from([1, 1.5, 3, 64]),
         rail_optimised=st.booleans(), cables=CABLES),
)  # fmt: skip
REGION = merged(
    st.fixed_dictionaries({"nodes": st.lists(NODES, min_size=1, max_size=2), "network": NETWORK}), some(city=names("cities"))
)
LINK = merged(
    st.fixed_dictionaries({"rate": RATES, "rtt": st.sampled_from(["0.1 ms", "18 ms", "150 ms"])}),
    some(loss=st.sampled_from([0, 1e-6, "2%"]), jitter=st.sampled_from(["0 ms", "20 ms"]),
         transport=st.sampled_from(["tcp", "rdma"]), queue=st.just("10 MB"),
         distance=st.sampled_from(["20 km", "2000 km"]),
         **{"class": st.sampled_from(["dark-fibre", "leased-wave", "mpls", "internet", "vpc"])}),
)  # fmt: skip


@settings(max_examples=100)
@given(first=REGION, second=REGION, third=REGION, links=st.lists(LINK, min_size=2, max_size=2))
def test_any_fabric_is_refused_or_checked_and_has_sound_tiers(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any], links: list[dict[str, Any]]
) -> None:
    joined = [{"between": ends, **link} for ends, link in zip((["a", "b"], ["c", "b"]), links, strict=True)]
    text = yaml.safe_dump({"name": "x", "regions": {"a": first, "b": second, "c": third}, "wan": joined})
    try:
        fabric = parse_fabric(text, "f.yaml")
    except InputError as error:
        event(error.found.split("'")[0])
        return
    event("checked")
    found = check_text(text, "f.yaml")
    assert all(each.where.startswith("f.yaml:") and each.reason and each.source for each in found)
    tiers = levels(fabric)
    assert tiers[-1].name == "wan"
    assert all(each.members > 1 and each.bandwidth_bytes_per_s > 0 and each.latency_s > 0 and each.lanes >= 1 for each in tiers)
