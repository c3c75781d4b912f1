"""Scripted faults: what people may write, and what each mistake is answered with."""

import pytest

from isthmus.errors import InputError
from isthmus.trial.faults import Fault, describe, parse_fault

REGIONS = ("shenzhen", "shanghai")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12s: down shenzhen-shanghai 5s", (12.0, "down", ("shenzhen", "shanghai"), None, 5.0)),
        ("1500 ms: down shanghai-shenzhen 1min", (1.5, "down", ("shanghai", "shenzhen"), None, 60.0)),
        ("2s: slow shenzhen-shanghai to 10 Mb/s for 5s", (2.0, "slow", ("shenzhen", "shanghai"), 1.25e6, 5.0)),
        ("2s: slow shenzhen-shanghai to 10Mb/s for 5s", (2.0, "slow", ("shenzhen", "shanghai"), 1.25e6, 5.0)),
        ("3s: lossy shenzhen-shanghai at 1% for 5s", (3.0, "lossy", ("shenzhen", "shanghai"), 0.01, 5.0)),
        ("4s: freeze shanghai 2s", (4.0, "freeze", ("shanghai",), None, 2.0)),
        ("20s: kill shanghai", (20.0, "kill", ("shanghai",), None, None)),
    ],
)
def test_every_form_reads_as_written(text: str, expected: tuple[object, ...]) -> None:
    fault = parse_fault(text, REGIONS)
    assert (fault.at_s, fault.kind, fault.regions, fault.value, fault.duration_s) == expected
    assert fault.text == text


@pytest.mark.parametrize(
    ("text", "found", "hint"),
    [
        ("12s: dwon shenzhen-shanghai 5s", "did you mean 'down'?", "forms: 12s: down"),
        ("12: down shenzhen-shanghai 5s", "'12' has no unit", ""),
        ("-1s: down shenzhen-shanghai 5s", "has a negative time", ""),
        ("12s: down shenzhen-beijing 5s", "names the unknown link 'shenzhen-beijing'", "did you mean 'shenzhen-shanghai'?"),
        ("12s: kill shangai", "names the unknown region 'shangai'", "did you mean 'shanghai'?"),
        ("12s: slow shenzhen-shanghai 5s", "cannot read", "write it as '12s: slow shenzhen-shanghai to 10 Mb/s for 5s'"),
        ("12s: lossy shenzhen-shanghai at much for 5s", "'much' is not a fraction", ""),
        ("", "cannot read ''", "forms:"),
    ],
)
def test_a_mistake_is_named_with_what_to_write(text: str, found: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_fault(text, REGIONS)
    assert found in caught.value.found
    assert hint in caught.value.hint


def test_the_log_line_says_what_happens_for_how_long() -> None:
    fault = Fault(at_s=1, kind="lossy", regions=("a", "b"), value=0.015, duration_s=5, text="")
    assert describe(fault) == "link a-b loses 1.50% for 5 s"
