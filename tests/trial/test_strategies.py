"""Names of strategies and scripts at the command line of a trial."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from isthmus.errors import InputError
from isthmus.plan import CodecName
from isthmus.trial.request import TrialRequest, read_request
from isthmus.trial.strategies import STRATEGIES, trial_strategies

REQUEST = TrialRequest(
    fabric=Path(__file__).parents[2] / "examples" / "shenzhen-shanghai.yaml", workload="llama-3-8b", strategies=("int8",),
    minutes=1, rate=None, rtt=None, script=None, faults=(), output=Path("trial"), seed=0,
)  # fmt: skip


def test_the_planner_names_mean_the_same_strategies() -> None:
    pairs = {
        "flat": "flat", "hierarchical": "hierarchical", "hierarchical-bf16": "bf16", "hierarchical-int8": "int8",
        "hierarchical-int4": "int4", "local-20": "local-steps", "local-20-delayed": "local-delayed",
    }  # fmt: skip
    assert trial_strategies(tuple(pairs)) == tuple(STRATEGIES[name] for name in pairs.values())


def test_every_codec_has_a_name_in_every_step_and_in_local_steps_but_the_one_that_cannot_be_predicted() -> None:
    codecs = [codec for codec in get_args(CodecName) if codec not in ("none", "powersgd")]
    for kind, names in (("hierarchical", codecs), ("local-steps", [f"local-{codec}" for codec in codecs])):
        found = trial_strategies(tuple(names))
        assert [(way.kind, way.codec) for way in found] == [(kind, codec) for codec in codecs]
    with pytest.raises(InputError, match="'powersgd' cannot be predicted"):
        trial_strategies(("powersgd",))


def test_one_strategy_under_both_its_names_is_given_twice() -> None:
    with pytest.raises(InputError, match="'int4' is given twice"):
        trial_strategies(("int4", "hierarchical-int4"))


def test_an_unknown_name_is_answered_with_all_names() -> None:
    with pytest.raises(InputError) as caught:
        trial_strategies(("pipeline",))
    assert all(name in caught.value.hint for name in (*STRATEGIES, "hierarchical-int4", "local-20-delayed"))


def test_an_open_quote_in_the_script_is_bad_input() -> None:
    with pytest.raises(InputError, match="no closing quotation"):
        read_request(replace(REQUEST, script="train.py --name 'x"))
