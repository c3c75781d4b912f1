import copy
import random
from collections.abc import Callable

import pytest
from chaos.checks import Finding, Happened, Rules, check, losses, worst_gap_s
from chaos.faults import Fault
from chaos.history import History, parse_lines
from hypothesis import given
from hypothesis import strategies as st
from made_up import STEP_S, TOKENS, Lines, Made, make_up

INNER, ROUNDS = 4, 12
SHAPES = st.sampled_from(
    [{"ash": 1, "birch": 1}, {"ash": 2, "birch": 1, "cedar": 1}, {"ash": 1, "birch": 2, "cedar": 1, "elm": 1}]
)
KILLS = st.dictionaries(st.integers(1, ROUNDS - 4), st.sampled_from(["ash", "birch"]), max_size=3)


def rules(regions: dict[str, int]) -> Rules:
    windows = {name: INNER * TOKENS * ranks for name, ranks in regions.items()}
    return Rules(detect_s=2.0, grace_s=None, slow_s=4.0, window_tokens=windows)


def findings(made: Made, regions: dict[str, int]) -> list[Finding]:
    history = History({key: parse_lines(lines) for key, lines in made.lines.items()})
    happened = [
        Happened(
            fault=Fault(number=number, kind="kill-inside", region=region, rank=0, duration_s=1.0, value=0),
            began_s=began_s, healed_s=healed_s,
        )
        for number, (region, began_s, healed_s) in enumerate(made.kills)
    ]  # fmt: skip
    return check(history, happened, rules(regions))


@given(seed=st.integers(0, 10**6), regions=SHAPES, kills=KILLS)
def test_a_run_that_keeps_the_laws_has_no_findings(seed: int, regions: dict[str, int], kills: dict[int, str]) -> None:
    assert findings(make_up(seed, regions, ROUNDS, INNER, kills), regions) == []


@given(seed=st.integers(0, 10**6), regions=SHAPES, kills=KILLS)
def test_rounds_that_do_not_name_their_step_belong_to_the_step_that_follows(
    seed: int, regions: dict[str, int], kills: dict[int, str]
) -> None:
    made = make_up(seed, regions, ROUNDS, INNER, kills)
    named = History({key: parse_lines(copy.deepcopy(lines)) for key, lines in made.lines.items()})
    for lines in made.lines.values():
        for line in lines:
            if line["kind"] == "round":
                del line["step"]
    assert History({key: parse_lines(lines) for key, lines in made.lines.items()}) == named


def _other_bits(lines: Lines, rng: random.Random) -> None:
    rng.choice([line for line in lines["ash", 0] if line["kind"] == "round"])["hash"] = "bad"


def _counted_twice(lines: Lines, rng: random.Random) -> None:
    # All members agree on it, and on the totals that follow: only the steps tell.
    number = rng.randrange(2, ROUNDS - 1)
    for each in lines.values():
        for line in each:
            if line["kind"] == "round" and line["round"] >= number:
                line["total"] += TOKENS
                if line["round"] == number:
                    line["counted"]["ash"] += TOKENS


def _forgotten(lines: Lines, rng: random.Random) -> None:
    number = rng.randrange(2, ROUNDS - 1)
    for each in lines.values():
        for line in each:
            if line["kind"] == "round" and line["round"] == number:
                line["total"] -= TOKENS


def _survivor_discards(lines: Lines, rng: random.Random) -> None:
    where = max(index for index, line in enumerate(lines["ash", 0]) if line["kind"] == "round" and line["round"] < ROUNDS - 1)
    for rank in (rank for region, rank in lines if region == "ash"):
        discarded = {"kind": "discarded", "tokens": TOKENS, "rounds": 0, "t": lines["ash", 0][where]["t"]}
        lines["ash", rank].insert(where + 3, discarded)


def _misprinted(lines: Lines, rng: random.Random) -> None:
    # Right after a round's last step there is nothing to lose, whatever is printed.
    where = max(index for index, line in enumerate(lines["ash", 0]) if line["kind"] == "round" and line["round"] < ROUNDS - 1)
    for rank in (rank for region, rank in lines if region == "ash"):
        discarded = {"kind": "discarded", "tokens": 3 * TOKENS, "rounds": 0, "t": lines["ash", 0][where]["t"] + 0.01}
        lines["ash", rank].insert(where + 2, discarded)


def _round_missing(lines: Lines, rng: random.Random) -> None:
    number = rng.randrange(1, ROUNDS - 1)
    for key, each in lines.items():
        lines[key] = [line for line in each if line["kind"] != "round" or line["round"] != number]


def _final_bits(lines: Lines, rng: random.Random) -> None:
    lines["birch", 0][-1]["hash"] = "bad"


def _no_end(lines: Lines, rng: random.Random) -> None:
    lines["birch", 0].pop()


@pytest.mark.parametrize(
    ("spoil", "law"),
    [
        (_other_bits, "agreement"), (_counted_twice, "counted"), (_forgotten, "arithmetic"), (_survivor_discards, "survivor"),
        (_misprinted, "said"), (_round_missing, "arithmetic"), (_final_bits, "ending"), (_no_end, "ending"),
    ],
)  # fmt: skip
@given(seed=st.integers(0, 10**6), regions=SHAPES)
def test_every_broken_law_is_found(
    spoil: Callable[[Lines, random.Random], None], law: str, seed: int, regions: dict[str, int]
) -> None:
    made = copy.deepcopy(make_up(seed, regions, ROUNDS, INNER, {}))
    spoil(made.lines, random.Random(seed))
    assert law in {finding.law for finding in findings(made, regions)}


@given(seed=st.integers(0, 10**6), regions=SHAPES)
def test_a_killed_region_that_loses_more_than_its_window_is_found(seed: int, regions: dict[str, int]) -> None:
    made = make_up(seed, regions, ROUNDS, INNER, {5: "ash"})
    first = next(index for index, line in enumerate(made.lines["ash", 0]) if line["kind"] == "step")
    for rank in range(regions["ash"]):
        made.lines["ash", rank][first]["tokens"] += 10 * INNER * TOKENS
    assert "window" in {finding.law for finding in findings(made, regions)}


def test_what_a_killed_region_lost_is_what_it_had_trained_since_its_last_round() -> None:
    for seed in range(20):
        made = make_up(seed, {"ash": 1, "birch": 1}, ROUNDS, INNER, {5: "ash"})
        killed = made.lines["ash", 0]
        first_life = killed[: max(index for index, line in enumerate(killed) if line["kind"] == "start")]
        steps = sum(line["kind"] == "step" and line["step"] > 5 * INNER for line in first_life)
        counted = next(line["counted"] for line in made.lines["birch", 0] if line["kind"] == "round" and line["round"] == 5)
        history = History({key: parse_lines(lines) for key, lines in made.lines.items()})
        lost = {loss.stretch: loss.tokens for loss in losses(history) if loss.region == "ash"}
        # One that dies after its vote has not written the step at whose end the round was, which counts all the same.
        assert lost == {0: -TOKENS if "ash" in counted else steps * TOKENS, 1: 0}


def test_a_survivor_that_stands_still_too_long_is_found() -> None:
    regions = {"ash": 1, "birch": 1}
    made = make_up(3, regions, ROUNDS, INNER, {5: "ash"})
    began_s = made.kills[0][1]
    for line in made.lines["birch", 0]:
        if line["t"] > began_s + STEP_S:
            line["t"] += 3.5  # detection 2 s and a second are allowed
    made.kills[0] = ("ash", began_s, made.kills[0][2] + 3.5)
    assert {finding.law for finding in findings(made, regions)} == {"idle"}


def test_a_gap_counts_where_it_overlaps_the_fault() -> None:
    lines = [{"kind": "step", "step": number, "tokens": 1, "t": t} for number, t in enumerate((0.0, 1.0, 4.0, 5.0))]
    history = History({("ash", 0): parse_lines(lines)})
    assert worst_gap_s(history, "ash", 2.0, 2.5) == 3.0
    assert worst_gap_s(history, "ash", 4.5, 9.0) == 1.0
    assert worst_gap_s(history, "ash", 0.5, 1.5, 2.0) == 1.0, "the rest of the gap is the next fault's"
