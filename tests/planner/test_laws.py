"""Laws of the choice on real fabrics: nothing in its own list beats the chosen, faster links never cost, refusals are true."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.fabric import read_fabric
from isthmus.planner.breaks import with_wan
from isthmus.planner.choose import weigh
from isthmus.planner.predict import Known
from isthmus.planner.rank import TOLERANCE, standing
from isthmus.workload import read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
FABRIC = read_fabric(EXAMPLES / "shenzhen-shanghai.yaml")
LLAMA = read_workload(str(EXAMPLES / "workloads" / "llama-3-8b-256k.yaml"))
KNOWN: Known = {}
FACTORS = st.floats(1 / 64, 64)


@settings(max_examples=8, deadline=None)
@given(FACTORS, FACTORS)
def test_nothing_in_its_own_list_beats_the_chosen(rate: float, rtt: float) -> None:
    first, *others = weigh(with_wan(FABRIC, rate=rate, rtt=rtt), LLAMA, known=KNOWN).ranked
    chosen = standing(first, 2)
    for other in others:
        stands = standing(other, 2)
        quicker = stands.step_s < chosen.step_s
        assert not (quicker and stands.loss_high <= chosen.loss_high and stands.readiness <= chosen.readiness)
        assert chosen.step_s <= stands.step_s * (1 + TOLERANCE)


@settings(max_examples=8, deadline=None)
@given(FACTORS, st.floats(1, 16))
def test_a_faster_or_shorter_link_never_slows_the_quickest(rate: float, better: float) -> None:
    here = min(each.step_s for each in weigh(with_wan(FABRIC, rate=rate), LLAMA, known=KNOWN).ranked)
    for fabric in (with_wan(FABRIC, rate=rate * better), with_wan(FABRIC, rate=rate, rtt=1 / better)):
        there = min(each.step_s for each in weigh(fabric, LLAMA, known=KNOWN).ranked)
        assert there <= here * (1 + 0.016)  # of variants within 1% and layouts within 0.5% the plainer is taken


def test_a_refusal_for_memory_is_true_by_the_figures_it_names() -> None:
    weighed = weigh(read_fabric(EXAMPLES / "shenzhen-shanghai-8.yaml"), read_workload("gpt3-175b"))
    setting = weighed.setting
    replicas = [each for each in weighed.refused if "keeps a full replica" in (each.refused or "")]
    assert replicas
    assert setting.state_bytes > min(setting.region_gpus) * setting.gpu_memory_bytes
    assert all(each.strategy.kind in ("flat", "hierarchical", "local-steps") for each in replicas)
    assert setting.state_bytes <= setting.gpus * setting.gpu_memory_bytes
