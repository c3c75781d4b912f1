from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.fabric import read_fabric
from isthmus.sim import Carriage, Collective, Shares, map_fabric, phases_of, play_phase
from isthmus.sim.phase import Phase

from .witness import Numbers, phases

EXAMPLES = Path(__file__).parents[2] / "examples"


@settings(max_examples=100, deadline=None)
@given(drawn=phases(streams=9, links=6, chained=True))
def test_folding_changes_nothing(drawn: tuple[Phase, Numbers]) -> None:
    folded, plain = (play_phase(*drawn, fold=fold) for fold in (True, False))
    assert folded.finish_s == pytest.approx(plain.finish_s, rel=1e-9)
    assert folded.carried_bytes == pytest.approx(plain.carried_bytes, rel=1e-9)
    assert folded.classes <= plain.classes


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_folding_changes_nothing_on_real_fabrics(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["shenzhen-shanghai", "singapore-tokyo"]))
    kind, algorithm = data.draw(
        st.sampled_from([("all-reduce", "hierarchical"), ("all-reduce", "ring"), ("all-to-all", "burst"), ("all-gather", "ring")])
    )
    shares = {region: Shares(nvlink=0.8, network=0.9, host=0.9) for region in ("shenzhen", "shanghai", "singapore", "tokyo")}
    chart = map_fabric(read_fabric(EXAMPLES / f"{name}.yaml"), Carriage(regions=shares))
    ranks = np.arange(data.draw(st.sampled_from([8, 16, 32])))
    asked = Collective(kind=kind, size_bytes=data.draw(st.floats(1e5, 1e9)), ranks=ranks, algorithm=algorithm)
    for phase in phases_of(chart, asked):
        folded, plain = (play_phase(phase, chart.capacity, fold) for fold in (True, False))
        assert folded.finish_s == pytest.approx(plain.finish_s, rel=1e-9)
        assert folded.sent_bytes == pytest.approx(plain.sent_bytes, rel=1e-9)


def test_equal_rails_are_one_class() -> None:
    chart = map_fabric(read_fabric(EXAMPLES / "singapore-tokyo.yaml"))
    asked = Collective(kind="all-reduce", size_bytes=1e9, ranks=np.arange(64), algorithm="hierarchical")
    assert [play_phase(phase, chart.capacity).classes for phase in phases_of(chart, asked)] == [1, 1, 1, 1, 1]
