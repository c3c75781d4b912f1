"""Changing a document by the names of its keys."""

from pathlib import Path

import pytest
import yaml

from isthmus.errors import InputError
from isthmus.fabric import edited, fabric_paths, parse_fabric

TEXT = (Path(__file__).parents[2] / "examples" / "beijing-shenzhen-shanghai.yaml").read_text(encoding="utf-8")


def test_a_name_without_a_link_or_region_means_all_and_with_one_only_that() -> None:
    all_, one = (parse_fabric(edited(TEXT, "f", {path: "7 Gb/s"}), "f") for path in ("wan.rate", "wan.shanghai-shenzhen.rate"))
    assert {link.rate_bytes_per_s for link in all_.wan} == {7e9 / 8}
    assert [link.rate_bytes_per_s == 7e9 / 8 for link in one.wan] == [False, False, True]
    assert edited(TEXT, "f", {"rtt": "9 ms"}) == edited(TEXT, "f", {"wan.rtt": "9 ms"})
    nodes = parse_fabric(edited(TEXT, "f", {"regions.nodes": 3, "regions.beijing.nodes": 5}), "f")
    assert [region.nodes for region in nodes.regions] == [5, 3, 3]


def test_every_path_that_is_offered_can_be_changed() -> None:
    data = yaml.safe_load(TEXT)
    for path in fabric_paths(data):
        if not path.startswith("prices") and not path.endswith(("length", "queue")):
            assert edited(TEXT, "f", {path: 1}) != TEXT


def test_a_wrong_name_is_told_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match=r"no key is called 'wan\.rat'") as caught:
        edited(TEXT, "f", {"wan.rat": "7 Gb/s"})
    assert caught.value.hint == "did you mean 'wan.rate'?"
