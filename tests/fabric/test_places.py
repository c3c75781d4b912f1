from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.fabric import entries, fibre_rtt_s, great_circle_m, rtt_floor_s

CITIES = sorted(each.words["name"] for each in entries("cities").values())
PAIRS = [tuple(name.split("/")) for name in entries("rtt")]


def _city(key: str) -> str:
    return entries("cities")[key].words["name"]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_floor_agrees_with_the_table_of_round_trips_within_three_percent(first: str, second: str) -> None:
    table = entries("rtt")[f"{first}/{second}"]
    distance_m = great_circle_m(_city(first), _city(second))
    # The table rounds to 0.1 ms and 1 km, which for near pairs is more than 3%.
    assert distance_m == pytest.approx(table.figure("distance").number, rel=0.03, abs=1000)
    assert rtt_floor_s(_city(first), _city(second)) == pytest.approx(table.figure("floor").number, rel=0.03, abs=0.06e-3)


def test_the_table_has_all_its_pairs() -> None:
    assert len(PAIRS) == 29


def test_a_thousand_kilometres_of_fibre_take_9_794_milliseconds_there_and_back() -> None:
    # 2 x 1000 km x 4.897 us/km
    assert fibre_rtt_s(1e6) == pytest.approx(9.794e-3, rel=1e-12)


def test_the_great_circle_agrees_with_the_law_of_cosines() -> None:
    # A second formula for the same arc, well conditioned at this distance.
    from math import acos, cos, radians, sin

    a, b = (1.352, 103.820), (-6.209, 106.846)
    law = acos(sin(radians(a[0])) * sin(radians(b[0])) + cos(radians(a[0])) * cos(radians(b[0])) * cos(radians(a[1] - b[1])))
    assert great_circle_m("Singapore", "Jakarta") == pytest.approx(6_371_008.8 * law, rel=1e-9)


@given(pair=st.sampled_from(list(combinations(CITIES, 2))))
def test_floors_are_positive_symmetric_and_under_half_the_globe(pair: tuple[str, str]) -> None:
    floor_s = rtt_floor_s(*pair)
    assert 0 < floor_s < fibre_rtt_s(20_038e3)
    assert floor_s == pytest.approx(rtt_floor_s(pair[1], pair[0]), rel=1e-12)


@given(trio=st.permutations(CITIES))
def test_no_detour_is_shorter(trio: list[str]) -> None:
    a, b, c = trio[:3]
    assert great_circle_m(a, c) <= (great_circle_m(a, b) + great_circle_m(b, c)) * (1 + 1e-9)


def test_an_unknown_city_is_refused() -> None:
    with pytest.raises(InputError, match="unknown name 'shenzen' in cities"):
        rtt_floor_s("Shenzen", "Shanghai")
