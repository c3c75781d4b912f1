import itertools
import math
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.report.svg import Scale, fit, label, log_ticks, spread, tag, text_width_px, ticks, words

NUMBERS = st.floats(-1e6, 1e6)


@settings(deadline=None)  # other work shares this machine
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_as_content_and_as_attribute(text: str) -> None:
    expected = "".join(c if c.isprintable() or c == " " else "\ufffd" for c in text)
    read = ElementTree.fromstring(tag("text", words(text), class_=text))
    assert (read.text or "") == expected
    assert read.attrib["class"] == expected


def test_attributes_that_are_none_are_left_out_and_figures_are_short() -> None:
    assert label(1 / 3, 20.0, "a<b", "ink") == '<text x="0.33" y="20" class="ink">a&lt;b</text>'


@settings(deadline=None)  # other work shares this machine
@given(low=NUMBERS, span=st.floats(1e-6, 1e6), count=st.integers(1, 12))
def test_ticks_are_inside_even_and_about_as_many_as_asked(low: float, span: float, count: int) -> None:
    found = ticks(low, low + span, count)
    slack = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert all(math.isclose(gap, gaps[0], rel_tol=1e-3, abs_tol=slack) for gap in gaps)
    assert len(found) <= count + 1
    # The step is at most 2.5 times the one asked for (1 to 2, 2 to 2.5, 2.5 to 5, 5 to 10).
    assert len(found) >= math.floor(count / 2.5)


@settings(deadline=None)  # other work shares this machine
@given(low=st.floats(1e-6, 1e3), ratio=st.floats(1.3, 1e6), count=st.integers(3, 8))
def test_logarithmic_ticks_are_inside_and_never_none(low: float, ratio: float, count: int) -> None:
    found = log_ticks(low, low * ratio, count)
    assert found
    assert found == sorted(set(found))
    assert all(low * (1 - 1e-6) <= tick <= low * ratio * (1 + 1e-6) for tick in found)


def test_a_logarithmic_scale_makes_equal_ratios_equally_long() -> None:
    x = Scale(0.1, 1000.0, 0.0, 400.0, log=True)
    assert [x(0.1), x(1.0), x(10.0), x(1000.0)] == pytest.approx([0, 100, 200, 400])


@settings(deadline=None)  # other work shares this machine
@given(text=st.text(max_size=60), width_px=st.floats(20, 400))
def test_fitted_text_is_never_wider_than_its_place(text: str, width_px: float) -> None:
    fitted = fit(text, width_px, 12)
    assert text_width_px(fitted, 12) <= width_px
    assert fitted == text or fitted.endswith("…")


@settings(deadline=None)  # other work shares this machine
@given(wanted=st.lists(st.floats(0, 200), min_size=1, max_size=12))
def test_labels_spread_apart_in_order_and_inside(wanted: list[float]) -> None:
    placed = spread(wanted, 15, 0, 200)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    in_order = [placed[index] for index in order]
    assert all(b - a >= 15 - 1e-6 for a, b in itertools.pairwise(in_order))
    assert min(placed) >= -1e-6
    assert max(placed) <= 200 + 1e-6


def test_labels_that_do_not_touch_stay_where_they_were_wanted() -> None:
    assert spread([100.0, 10.0, 60.0], 15, 0, 200) == [100.0, 10.0, 60.0]
    assert spread([50.0, 50.0], 10, 0, 200) == [45.0, 55.0]  # two that coincide share the shift
