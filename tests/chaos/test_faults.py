from chaos.faults import KINDS, MODES, draw, side_of
from hypothesis import given
from hypothesis import strategies as st


@given(seed=st.integers(0, 2**31), count=st.integers(1, 250))
def test_equal_seeds_give_equal_faults_and_exactly_as_many_as_asked(seed: int, count: int) -> None:
    scenarios = draw(seed, count)
    assert scenarios == draw(seed, count)
    assert [fault.number for scenario in scenarios for fault in scenario.faults] == list(range(count))


@given(seed=st.integers(0, 2**31), turns=st.integers(1, 5))
def test_every_kind_comes_before_any_comes_again(seed: int, turns: int) -> None:
    kinds = [fault.kind for scenario in draw(seed, turns * len(KINDS)) for fault in scenario.faults]
    for turn in range(turns):
        assert set(kinds[turn * len(KINDS) : (turn + 1) * len(KINDS)]) == set(KINDS)


@given(seed=st.integers(0, 2**31))
def test_faults_fit_their_run(seed: int) -> None:
    scenarios = draw(seed, 200)
    assert {len(scenario.regions) for scenario in scenarios} == {2, 3, 4}
    assert {(scenario.store, scenario.tls) for scenario in scenarios} == {
        (store, tls) for store in ("coordinator", "etcd") for tls in (False, True)
    }
    for scenario in scenarios:
        for fault in scenario.faults:
            assert (fault.region == "") == (fault.kind == "store")
            assert fault.kind == "store" or fault.rank < scenario.regions[fault.region]
            assert fault.kind != "kill-rank" or scenario.regions[fault.region] == 2


@given(seed=st.integers(0, 2**31))
def test_two_hundred_faults_meet_every_mode_and_both_answers_to_a_partition(seed: int) -> None:
    scenarios = draw(seed, 200)
    assert {scenario.mode for scenario in scenarios} == set(MODES)
    cuts = [(scenario, fault) for scenario in scenarios for fault in scenario.faults if fault.kind == "cut"]
    assert {scenario.partition for scenario, _ in cuts} == {"wait", "continue"}
    for scenario, fault in cuts:
        side = side_of(fault, list(scenario.regions))
        assert fault.region in side < set(scenario.regions)
        assert scenario.partition == "wait" or fault.duration_s > 2.0, "shorter than detection, nobody would part"


@given(seed=st.integers(0, 2**31))
def test_the_sample_freezes_once_for_twenty_seconds(seed: int) -> None:
    faults = [fault for scenario in draw(seed, 20, per_run=7, shrink=0.3, freezes_max=1) for fault in scenario.faults]
    assert len(faults) == 20
    assert [round(fault.duration_s, 6) for fault in faults if fault.kind == "freeze"] == [20.0]
