"""The frame reader under a short fuzz (benchmarks/fuzz_frames.py runs 10^6 cases); ranges against a set of integers."""

import importlib.util
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from isthmus.runtime.wan.ranges import Ranges

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "fuzz_frames.py"


def test_ten_thousand_bad_good_and_repeated_frames_do_no_harm():
    spec = importlib.util.spec_from_file_location("fuzz_frames", SCRIPT)
    module = sys.modules["fuzz_frames"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fuzz = module.Fuzz(seed=20)
    for _ in range(10_000):
        fuzz.case()
    assert min(fuzz.found[what] for what in ("good", "repeated", "overlapping", "CorruptFrameError", "StrangerError")) > 50


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30))
def test_ranges_are_a_set_of_integers_whose_members_are_told_apart(pairs):
    ranges, model = Ranges(), set()
    for start, length in pairs:
        wanted = set(range(start, start + length))
        expected = "new" if not wanted & model else "here" if wanted <= model else "partly"
        found = ranges.fit(start, start + length)
        if length:
            assert found == expected
        if expected == "new":
            ranges.add(start, start + length)
            model |= wanted
    assert {number for low, high in ranges.spans() for number in range(low, high)} == model
    assert all(first[1] < second[0] for first, second in zip(ranges.spans(), ranges.spans()[1:], strict=False))
