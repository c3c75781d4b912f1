"""The page of a plan: complete in itself, well formed, and showing the plan's own numbers."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from isthmus.fabric import Fabric, Prices, read_fabric
from isthmus.planner import choose_plan
from isthmus.planner.curves import varied_curves
from isthmus.planner.setting import make_setting
from isthmus.planner.vary import parse_variation, vary
from isthmus.report.plan_page import memory_parts, write_plan_page
from isthmus.units import show_seconds
from isthmus.workload import read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA = read_workload("llama-3-8b")


FABRIC = read_fabric(EXAMPLES / "shenzhen-shanghai.yaml")
PLAN = choose_plan(FABRIC, LLAMA)


def page(fabric: Fabric, folder: Path) -> str:
    write_plan_page(PLAN if fabric is FABRIC else choose_plan(fabric, LLAMA), fabric, LLAMA, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


class Balance(HTMLParser):
    """Every tag that is opened is closed in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.idents: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.idents += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_curves_of_a_what_if_are_its_points_and_two_quantities_have_none() -> None:
    text = (EXAMPLES / "shenzhen-shanghai.yaml").read_text(encoding="utf-8")
    varied = vary(text, "f", LLAMA, [parse_variation("rtt=1..100ms:3", True)])
    curves = varied_curves(varied)
    assert curves is not None
    assert (curves.quantity, curves.words, curves.logarithmic) == ("rtt", ("1 ms", "10 ms", "100 ms"), True)
    for place, point in enumerate(varied.points):
        assert point.best is not None
        assert point.best.prediction is not None
        pace = {name: values[place] for name, values in curves.tokens_per_s.items()}
        assert pace[point.best.strategy.name] == pytest.approx(point.best.prediction.tokens_per_s)
    both = [parse_variation(each, False) for each in ("rtt=1,2ms", "wan.rate=10,20Gb/s")]
    assert varied_curves(vary(text, "f", LLAMA, both)) is None


def test_the_page_loads_nothing_is_well_formed_and_shows_the_plan(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    document = (EXAMPLES / "shenzhen-shanghai.yaml").read_text(encoding="utf-8")
    varied = vary(document, "f", LLAMA, [parse_variation("wan.rate=50,400Gb/s", True)])
    write_plan_page(PLAN, FABRIC, LLAMA, tmp_path / "report.html", None, varied)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "<script" not in text
    assert len(text) < 250_000
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    assert len(balance.idents) == len(set(balance.idents))
    for word in (PLAN.strategy.name, show_seconds(PLAN.prediction.step_s), "The fabric states no prices", "GPU memory kept free"):
        assert word in text
    what_if = text[text.index('id="h-varied"') : text.index('id="h-memory"')]
    best = {point.best.strategy.name for point in varied.points if point.best}
    assert len(best) == 2
    for word in (*best, "50 Gb/s", "400 Gb/s", "wan.rate: below", "tokens per second", "<svg"):
        assert word in what_if
    for heading in ("Strategies, best first", "What a step is made of", "When the WAN is busy", "Memory of the fullest GPU"):
        assert heading in text


def test_one_region_with_prices_has_a_bill_and_no_wan(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    from dataclasses import replace

    fabric = replace(read_fabric(EXAMPLES / "one-node.yaml"), prices=Prices(currency="EUR", gpu_hour=2))
    text = page(fabric, tmp_path)
    assert "11,690 EUR" in text  # 8 x 2 x 730.5
    assert "When the WAN is busy" not in text


def test_the_memory_bar_adds_up_to_what_the_plan_says() -> None:
    total = sum(part.size_bytes for part in memory_parts(PLAN, make_setting(FABRIC, LLAMA)))
    assert total == pytest.approx(PLAN.prediction.memory_bytes_per_gpu)
