"""Every rule fires on an input made for it and stays silent on a near miss."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.doctor.finding import rules
from isthmus.doctor.judge import CONDITIONS


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("doctor_own_inputs", Path(__file__).parent / "own_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["doctor_own_inputs"] = module
    spec.loader.exec_module(module)
    return module


OWN = _load()
INPUTS = OWN.own_inputs()


def test_every_rule_has_words_a_condition_and_both_inputs() -> None:
    assert set(rules()) == {name for name, _ in CONDITIONS} == set(INPUTS)
    assert all(set(texts) == {"fires", "silent"} for texts in INPUTS.values())


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_the_rule_fires_on_its_input_and_not_on_the_near_miss(name: str) -> None:
    fired = [f for f in OWN.judged(*INPUTS[name]["fires"]).findings if f.rule == name]
    assert fired, [(f.rule, f.what) for f in OWN.judged(*INPUTS[name]["fires"]).findings]
    assert all(f.evidence and f.fix and f.what for f in fired)
    silent = [f.what for f in OWN.judged(*INPUTS[name]["silent"]).findings if f.rule == name]
    assert silent == []


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_the_evidence_is_the_line_that_it_names(name: str) -> None:
    expected, text = INPUTS[name]["fires"]
    lines = {d.file: d.lines for d in OWN.documents_of(text)}
    for finding in OWN.judged(expected, text).findings:
        for place in finding.evidence:
            shown = lines[place.file][place.line - 1].strip()[:240]
            assert place.text == shown or place.text.split(" : ")[0] in shown
