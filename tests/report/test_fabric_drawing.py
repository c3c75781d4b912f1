from collections.abc import Sequence
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.report.fabric_drawing import DrawnLink, DrawnRegion, _bracket_rows, fabric_svg

WIDTHS = pytest.mark.parametrize("width_px", [340.0, 900.0])


def region(name: str, nodes: int = 2, gpus: int = 16) -> DrawnRegion:
    return DrawnRegion(
        name=name,
        city=None,
        nodes=nodes,
        gpus=gpus,
        gpu_kind="h100-sxm5",
        network_kind="infiniband",
        network_rate_bytes_per_s=50e9,
        note="emulated: 2 nodes",
    )


def link(a: str, b: str) -> DrawnLink:
    return DrawnLink(between=(a, b), rate_bytes_per_s=12.5e9, rtt_s=0.018, note="emulated: 90 Mb/s · 1.6 ms")


def drawn(regions: Sequence[DrawnRegion], links: Sequence[DrawnLink], width_px: float) -> ElementTree.Element:
    return ElementTree.fromstring(fabric_svg(regions, links, width_px=width_px, ident="f"))


def texts(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter("text")]


@WIDTHS
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_every_region_and_every_link_is_labelled(width_px: float, count: int) -> None:
    names = [f"region-{index}" for index in range(count)]
    links = [link(a, b) for a, b in combinations(names, 2)]
    svg = drawn([region(name) for name in names], links, width_px)
    said = texts(svg)
    assert all(name in said for name in names)
    assert sum("100 Gb/s · 18 ms RTT" in text for text in said) == len(links)
    assert sum(text == "emulated: 90 Mb/s · 1.6 ms" for text in said) == len(links)


@WIDTHS
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_every_box_stands_inside_the_drawing_and_none_on_another(width_px: float, count: int) -> None:
    names = [f"region-{index}" for index in range(count)]
    svg = drawn([region(name) for name in names], [link(a, b) for a, b in combinations(names, 2)], width_px)
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    boxes = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        for rect in svg.iter("rect")
        if rect.attrib["class"] == "box"
    ]
    assert len(boxes) == count
    for x, y, w, h in boxes:
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in combinations(boxes, 2):
        assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1


@pytest.mark.parametrize(("nodes", "drawn_nodes", "rest"), [(1, 1, None), (2, 2, None), (128, 6, "+ 122")])
def test_nodes_beyond_the_box_are_counted_and_none_is_lost(nodes: int, drawn_nodes: int, rest: str | None) -> None:
    svg = drawn([region("a", nodes, nodes * 8)], [], 900.0)
    found = [rect for rect in svg.iter("rect") if rect.attrib["class"] == "node"]
    # A box is 320 px wide at most: 292 px of room, 46 px a node, 48 px kept for the count.
    assert len(found) == min(drawn_nodes, (292 - 48) // 46 if rest else 6)
    more = [int(text.removeprefix("+ ")) for text in texts(svg) if text.startswith("+ ")]
    assert len(found) + sum(more) == nodes
    assert sum(rect.attrib["class"] == "gpu" for rect in svg.iter("rect")) == 8 * len(found)


@settings(deadline=None)  # other work shares this machine
@given(
    st.integers(2, 7).flatmap(
        lambda n: st.lists(st.sampled_from(list(combinations(range(n), 2))), min_size=1, unique=True).map(lambda p: (n, p))
    )
)
def test_brackets_in_one_row_never_overlap(case: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = case
    names = [str(index) for index in range(count)]
    rows = _bracket_rows([link(str(b), str(a)) for a, b in pairs], names)
    for (first, row), (second, other) in combinations(list(zip(pairs, rows, strict=True)), 2):
        if row == other:
            assert first[1] <= second[0] or second[1] <= first[0]
    assert set(rows) == set(range(max(rows) + 1))
