import json
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli import main

FABRIC = str(Path(__file__).parents[2] / "examples" / "shenzhen-shanghai.yaml")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["isthmus", "simulate", *args])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def played(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str) -> dict[str, Any]:
    code, out, err = run(capsys, monkeypatch, FABRIC, "--json", *args)
    assert code == 0, err
    return json.loads(out)


def test_the_formula_stands_beside_and_agrees(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = played(capsys, monkeypatch, "--bytes", "1GB")
    assert found["formulas"][0]["ratio"] == pytest.approx(1, abs=0.02)
    assert found["phases"][2]["busiest"] == "shenzhen-shanghai:up"
    assert all(phase["peak_load"] <= 1 + 1e-9 for phase in found["phases"])


def test_cut_and_weakened_cables_and_other_jobs_only_make_it_slower(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = played(capsys, monkeypatch)["seconds"]
    for args in (
        ("--fail", "shenzhen/node0/nic1"),
        ("--weaken", "shenzhen-shanghai=50%"),
        ("--job", "all-to-all:0-31"),
    ):
        assert played(capsys, monkeypatch, *args)["seconds"] > whole * 1.01


def test_a_trace_holds_every_phase_of_the_ranks_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = played(capsys, monkeypatch, "--trace", str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} == {phase["name"] for phase in found["phases"]}
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert last == pytest.approx(found["seconds"] * 1e6, rel=1e-3)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--collective", "all-reduc"), "unknown collective 'all-reduc'\n  hint: did you mean 'all-reduce'?"),
        (("--algorithm", "shift"), "error: --algorithm: all-reduce has no algorithm 'shift'"),
        (("--ranks", "0-32"), "error: --ranks: '0-32': ranks run from 0 to 31"),
        (("--bytes", "1"), "error: --bytes: '1' has no unit"),
        (("--job", "ring"), "error: --job: 'ring' is not PATTERN:RANKS"),
        (("--weaken", "shenzhen-shanghai"), "error: --weaken: 'shenzhen-shanghai' is not NAME=SHARE"),
        (("--fail", "nowhere"), "error: --fail: no cable is called 'nowhere'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    code, _, err = run(capsys, monkeypatch, FABRIC, *args)
    assert code == 2
    assert message in err


def test_a_fabric_cut_in_two_has_no_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run(capsys, monkeypatch, FABRIC, "--fail", "shenzhen-shanghai")
    assert code == 1
    assert "no way is left from shenzhen to shanghai" in err
