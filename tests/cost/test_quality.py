"""Loss bands: their order, what moves them and which way, and that each names its source."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from isthmus.cost.quality import drift, every_step_codec, loss_band, outer_for
from isthmus.plan import CodecName, Strategy

PARAMETERS, REGIONS, STEPS = st.floats(1e5, 1e12), st.integers(2, 8), st.integers(1, 1000)


def test_exact_sums_have_no_band_and_every_codec_has_a_source() -> None:
    assert (every_step_codec("none").low, every_step_codec("none").high) == (0, 0)
    for codec in get_args(CodecName):
        band = every_step_codec(codec)
        assert band.low <= band.high
        assert band.source


def test_fewer_bits_never_risk_less() -> None:
    names: list[CodecName] = ["none", "bf16", "int8", "int7", "int6", "int5", "int4", "int3", "int2"]
    highs = [every_step_codec(codec).high for codec in names]
    assert highs == sorted(highs)


@given(PARAMETERS, REGIONS, STEPS, STEPS)
def test_longer_windows_and_later_corrections_never_risk_less(parameters: float, regions: int, steps: int, more: int) -> None:
    band = drift(parameters, regions, steps, 0)
    assert drift(parameters, regions, steps + more, 0).high >= band.high
    assert drift(parameters, regions, steps, min(more, steps)).high > band.high
    assert band.low <= band.high


@given(PARAMETERS, STEPS)
def test_more_regions_never_risk_less(parameters: float, steps: int) -> None:
    highs = [drift(parameters, regions, steps, 0).high for regions in (2, 3, 4, 6, 8, 16)]
    assert highs == sorted(highs)


def test_the_published_table_is_met_where_it_stands() -> None:
    # 180 M parameters over 4 replicas at H = 30: +1.0% (arXiv 2503.09799, table 4), and the band's middle is that.
    band = drift(180e6, 4, 30, 0)
    assert (band.low + band.high) / 2 == 0.010
    assert band.basis == "published"


def test_a_small_model_is_given_what_was_measured_on_one() -> None:
    # benchmarks/quality.py: +1.2 to +3.3% at K = 20.
    band = drift(87e3, 2, 20, 0)
    assert band.low <= 0.0121
    assert band.high >= 0.0333
    assert band.basis == "measured"


def test_a_strategy_adds_its_parts_and_is_as_sure_as_the_weakest() -> None:
    strategy = Strategy(name="local", kind="local-steps", codec="topk-int4", inner_steps=100, outer=outer_for(100)[0])
    band, apart = loss_band(strategy, 8e9, 2), drift(8e9, 2, 100, 0)
    assert band.high > apart.high
    assert (apart.basis, band.basis) == ("published", "judgement")
    assert "SparseLoCo" in band.source
    assert "2503.09799" in band.source
