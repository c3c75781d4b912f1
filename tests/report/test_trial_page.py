import json
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from isthmus.errors import InputError
from isthmus.report import write_trial_page
from isthmus.units import BYTES, SECONDS, quantity

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """The page as a list of elements; a tag that closes what is not open is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def page(results: dict[str, Any], tmp_path: Path) -> str:
    write_trial_page(results, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def charts(html: str) -> dict[str, ElementTree.Element]:
    """The drawings by the ident of their title, each well-formed as XML."""
    found = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", html, re.DOTALL) if 'role="img"' in svg]
    return {svg.attrib["aria-labelledby"].split()[0].removesuffix("-t"): svg for svg in found}


def test_the_page_is_well_formed_and_its_labels_exist(any_results: dict[str, Any], tmp_path: Path) -> None:
    html = page(any_results, tmp_path)
    assert html.startswith("<!DOCTYPE html>")
    parsed = Page(html)
    ids = Counter(attributes["id"] for _, attributes in parsed.elements if "id" in attributes)
    assert set(ids.values()) == {1}
    for _, attributes in parsed.elements:
        assert set((attributes.get("aria-labelledby") or "").split()) <= set(ids)
    assert len(charts(html)) in (8, 12)  # six charts twice, or four where no loss is known


def test_nothing_is_fetched_and_nothing_runs(any_results: dict[str, Any], tmp_path: Path) -> None:
    parsed = Page(page(any_results, tmp_path))
    for tag, attributes in parsed.elements:
        assert tag not in {"script", "iframe", "img", "object", "embed", "base", "form", "a", "use", "image"}
        assert not {"src", "srcset", "action", "xlink:href", "background", "poster"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert "href" not in attributes or (tag == "link" and attributes["href"] == "data:,")
        assert "url(" not in (attributes.get("style") or "")
    policy = [
        attributes["content"] for tag, attributes in parsed.elements if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_every_strategy_is_named_in_the_table_and_in_every_chart(any_results: dict[str, Any], tmp_path: Path) -> None:
    html = page(any_results, tmp_path)
    names = [one["name"] for one in any_results["strategies"]]
    table = html[html.index('<table id="results">') : html.index("</table>")]
    assert [re.search(r"</span>(.*?)[\n<]", row)[1].strip() for row in table.split("<tr")[2:]] == names  # type: ignore[index]
    for ident, svg in charts(html).items():
        if not ident.startswith("fabric"):
            said = [text.text for text in svg.iter("text")]
            assert all(name in said for name in names), ident


def test_the_table_s_figures_are_the_json_s(any_results: dict[str, Any], tmp_path: Path) -> None:
    results = json.loads(json.dumps(any_results))
    html = page(any_results, tmp_path)
    table = html[html.index('<table id="results">') : html.index("</table>")]
    for one, row in zip(results["strategies"], table.split("<tr")[2:], strict=True):
        data = [(float(value), shown) for value, shown in re.findall(r'<data value="([^"]+)">([^<]+)</data>', row)]
        measured, predicted = one["measured"], one["predicted"]
        expected = [
            measured["tokens_per_s"],
            measured["utilisation"],
            predicted["utilisation"],
            measured["wan_bytes_per_step"],
            one["loss_at_equal_tokens"],
            predicted["step_s"],
            measured["step_s"],
            one["ratio"],
        ]
        assert [value for value, _ in data] == [value for value in expected if value is not None]
        for value, shown in data:
            unit = BYTES if shown.endswith("B") else SECONDS if shown.endswith("s") else None
            read = quantity(shown, unit) if unit else float(shown.strip("%").replace(",", "")) / (100 if "%" in shown else 1)
            assert read == pytest.approx(value, rel=6e-3)


HOSTILE = "<script>alert('x')</script>\"&{{7*7}}</title></style>"


def poisoned(value: Any) -> Any:
    """Every text of the document, keys of regions included, with markup added to it."""
    match value:
        case str():
            return value + HOSTILE
        case list():
            return [poisoned(item) for item in value]
        case dict():
            return {key: item if key in ("lane", "version") else poisoned(item) for key, item in value.items()}
        case _:
            return value


def test_hostile_text_stays_text(results: dict[str, Any], tmp_path: Path) -> None:
    plain = Page(page(results, tmp_path))
    hostile = poisoned(results)
    hostile["tunnel"]["nodes"] = {poisoned(name): nodes for name, nodes in results["tunnel"]["nodes"].items()}
    for before, after in zip(results["strategies"], hostile["strategies"], strict=True):
        after |= {"kind": before["kind"], "codec": before["codec"]}  # these two decide what is shown
    html = page(hostile, tmp_path)
    parsed = Page(html)
    assert {tag for tag, _ in parsed.elements} == {tag for tag, _ in plain.elements}
    assert {name for _, attributes in parsed.elements for name in attributes} == {
        name for _, attributes in plain.elements for name in attributes
    }
    assert "<script" not in html
    for one in hostile["strategies"]:
        assert one["name"] in parsed.text
    assert hostile["assumptions"][0]["source"] in parsed.text
    assert charts(html)  # still well-formed


def test_timeline_bars_are_on_one_scale_for_all_strategies(results: dict[str, Any], tmp_path: Path) -> None:
    svg = charts(page(results, tmp_path))["timeline-w"]
    bars = [rect for rect in svg.iter("rect") if rect.attrib["class"] == "lane-wan"]
    segments = [part for one in results["strategies"][:3] for part in one["timeline"] if part["lane"] == "wan"]
    starts = [float(bar.attrib["x"]) for bar in bars[: len(segments)]]
    scale = (starts[5] - starts[0]) / (segments[5]["start_s"] - segments[0]["start_s"])
    for start, part, bar in zip(starts, segments, bars, strict=False):
        assert start == pytest.approx(starts[0] + scale * (part["start_s"] - segments[0]["start_s"]), abs=0.05)
        # 0.8 px of every bar are the gap to its neighbour; figures are rounded to 0.01 px.
        assert float(bar.attrib["width"]) + 0.8 == pytest.approx(scale * (part["end_s"] - part["start_s"]), abs=0.05)


def test_loss_curves_go_through_the_json_s_points(results: dict[str, Any], tmp_path: Path) -> None:
    drawn = charts(page(results, tmp_path))
    for ident, seconds in (("loss-tokens-w", False), ("loss-seconds-w", True), ("loss-tokens-n", False)):
        wanted, found = [], []
        curves = [group for group in drawn[ident].iter("g") if group.find("circle") is not None]
        for one, group in zip(results["strategies"], curves, strict=True):
            pace = one["measured"]["tokens_per_s"] if seconds else 1.0
            wanted += [(tokens / pace, loss) for tokens, loss in one["loss"]]
            line = group.find("polyline")
            assert line is not None
            found += [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for axis in (0, 1):  # pixels are an affine function of the values: fix it by two points, check all
            low, high = (pick(range(len(wanted)), key=lambda i: wanted[i][axis]) for pick in (min, max))
            slope = (found[high][axis] - found[low][axis]) / (wanted[high][axis] - wanted[low][axis])
            for value, pixel in zip(wanted, found, strict=True):
                assert pixel[axis] == pytest.approx(found[low][axis] + slope * (value[axis] - wanted[low][axis]), abs=0.11)
            assert (slope > 0) == (axis == 0)


def test_the_20_percent_band_is_as_wide_for_every_step_time_and_judges_as_the_ratio_does(
    results: dict[str, Any], tmp_path: Path
) -> None:
    svg = charts(page(results, tmp_path))["step-time-w"]
    bands = [rect for rect in svg.iter("rect") if rect.attrib["class"] == "band"]
    marks = [path for path in svg.iter("path") if path.attrib["class"] == "predicted"]
    widths = [float(band.attrib["width"]) for band in bands]
    assert widths == pytest.approx([widths[0]] * 5, abs=0.02)
    for one, band, mark in zip(results["strategies"], bands, marks, strict=True):
        x = float(mark.attrib["d"][1:].split()[0])
        start = float(band.attrib["x"])
        assert (start <= x <= start + float(band.attrib["width"])) == (abs(one["ratio"] - 1) <= 0.2)


def test_losses_that_are_not_finite_leave_the_drawing_sound(results: dict[str, Any], tmp_path: Path) -> None:
    results["strategies"][0]["loss"][3][1] = float("nan")
    results["strategies"][1] |= {"loss": [[0, float("inf")]], "loss_at_equal_tokens": float("nan")}
    html = page(results, tmp_path)
    for svg in charts(html).values():
        for element in svg.iter():
            assert not any(re.search(r"\b(nan|inf)\b", value) for value in element.attrib.values())
    assert "not finite" in html


def test_a_long_trial_of_many_strategies_stays_below_1_5_mb(results: dict[str, Any], tmp_path: Path) -> None:
    one = results["strategies"][1]
    one["loss"] = [[8192 * step, 5.5 - step * 1e-4] for step in range(20_000)]
    one["timeline"] = [
        {"lane": lane, "what": f"bucket {part}", "start_s": part * 8e-4, "end_s": part * 8e-4 + 7e-4}
        for part in range(2000)
        for lane in ("compute", "region", "wan")
    ]
    results["strategies"] = [{**one, "name": f"strategy-{index}"} for index in range(8)]
    assert len(page(results, tmp_path).encode()) < 1_500_000


def test_a_page_replaces_the_old_one_whole(results: dict[str, Any], tmp_path: Path) -> None:
    first = page(results, tmp_path)
    broken = json.loads(json.dumps(results))
    del broken["fabric"]["wan"][0]["rtt_s"]
    with pytest.raises(InputError, match=r"fabric\.wan\.0\.rtt_s: field required"):
        page(broken, tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == first
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_link_to_no_region_is_refused(results: dict[str, Any], tmp_path: Path) -> None:
    results["fabric"]["wan"][0]["between"] = ["shenzhen", "shangai"]
    with pytest.raises(InputError) as caught:
        page(results, tmp_path)
    assert str(caught.value) == ("results.json: fabric.wan.0.between: no region 'shangai'\n  hint: did you mean 'shanghai'?")


def test_without_jinja2_the_extra_is_named(results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError) as caught:
        page(results, tmp_path)
    assert str(caught.value) == (
        "report.html: the page needs jinja2, which is not installed\n  hint: pip install 'isthmus[report]'"
    )


def test_assumptions_stand_with_their_source_in_units_a_person_reads(results: dict[str, Any], tmp_path: Path) -> None:
    text = Page(page(results, tmp_path)).text
    assert "link rate 11.4 MB/s as asked, see https://example.invalid/link" in text
    assert "MFU of the real plan 0.4 judgement" in text
    assert "int4 encode 610 MB/s measured on this machine before the run" in text
