"""`isthmus plan` at the command line: what goes to stdout, to stderr, to the file, and the exit code."""

import json
import sys
from pathlib import Path

import pytest

from isthmus.cli import main
from isthmus.plan import Plan, load_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
FABRIC = str(EXAMPLES / "shenzhen-shanghai.yaml")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["isthmus", "plan", *arguments])
    monkeypatch.setenv("COLUMNS", "80")
    try:
        main()
    except SystemExit as left:
        return int(left.code or 0)
    return 0


def test_the_table_fits_80_columns_and_names_every_strategy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FABRIC, "llama-3-8b", "--all") == 0
    out = capsys.readouterr().out
    table = out.split("Why")[0].splitlines()
    assert max(map(len, table)) <= 80
    first = {line.split()[0] for line in table if line.split()}
    every_step = {"flat", "hierarchical", "hierarchical-bf16", "hierarchical-int8", "hierarchical-int4", "hierarchical-topk"}
    assert every_step | {"local-20", "local-500-delayed", "pipeline", "sharded-zero1", "sharded-zero3"} <= first
    for word in ("Why", "How", "Binds", "Break-even", "Rule of thumb", "Assumptions", "catalogue gpus"):
        assert word in out


def test_a_limit_on_the_loss_is_read_like_any_share_and_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FABRIC, "llama-3-8b", "--max-loss", "0.5%") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "more than 0.50%" in out
    assert run(monkeypatch, FABRIC, "llama-3-8b", "--max-loss", "2 GB") == 2
    assert "--max-loss" in capsys.readouterr().err


def test_json_and_file_hold_the_same_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "plan.yaml"
    assert run(monkeypatch, FABRIC, "llama-3-8b", "--json", "-o", str(file)) == 0
    said = capsys.readouterr()
    assert Plan.model_validate(json.loads(said.out)) == load_plan(file)
    assert said.err == f"plan written to {file}\n"


def test_what_does_not_fit_ends_with_1_and_the_bind_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FABRIC, "gpt3-175b") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no answer: gpt3-175b does not fit Shenzhen - Shanghai")
    assert "2.79 TB" in said.err
    assert "32 x 80 GB = 2.56 TB" in said.err


def test_an_unknown_workload_ends_with_2_and_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FABRIC, "llama-3-8") == 2
    assert "did you mean 'llama-3-8b'?" in capsys.readouterr().err


def test_what_cannot_be_written_is_bad_input_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, FABRIC, "llama-3-8b", "-o", str(tmp_path)) == 2
    assert "is a folder" in capsys.readouterr().err
    assert run(monkeypatch, FABRIC, "llama-3-8b", "-o", "/dev/null") == 2
    assert "is not a file" in capsys.readouterr().err

    def full(plan: Plan, path: Path) -> None:
        Path(f"{path}.partial").write_text("half", encoding="utf-8")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("isthmus.cli.plan.save_plan", full)
    assert run(monkeypatch, FABRIC, "llama-3-8b", "-o", str(tmp_path / "plan.yaml")) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_errors_of_the_fabric_are_warnings_on_stderr_and_the_plan_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    impossible = tmp_path / "fabric.yaml"
    text = Path(FABRIC).read_text(encoding="utf-8")
    impossible.write_text(text.replace("rtt: 18 ms", "rtt: 1 ms"), encoding="utf-8")
    assert run(monkeypatch, str(impossible), "llama-3-8b", "--json") == 0
    said = capsys.readouterr()
    assert said.err.startswith(f"warning: {impossible}:")
    assert json.loads(said.out)["strategy"]


def test_the_table_says_its_order_and_names_a_refused_strategy_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = str(EXAMPLES / "workloads" / "gpt3-175b-1024.yaml")
    assert run(monkeypatch, str(EXAMPLES / "shenzhen-shanghai-8.yaml"), workload) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Best first:" in out
    assert out.count("local-500-delayed") == 1
    assert "are refused" in out


def test_a_folder_that_does_not_exist_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, FABRIC, "llama-3-8b", "-o", str(tmp_path / "no" / "plan.yaml")) == 2
    assert "no such folder" in capsys.readouterr().err
