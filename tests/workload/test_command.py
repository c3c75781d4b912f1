import json
import subprocess
import sys
from typing import Any

from isthmus.workload import flop_per_token, read_workload


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isthmus", "workload", *arguments], capture_output=True, text=True, check=False
    )


def test_json_holds_the_figures_of_the_library_and_stdout_nothing_else() -> None:
    done = run("gpt3-175b", "--dp", "8", "--tp", "8", "--pp", "8", "--zero", "1", "--json")
    figures: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert figures["parameters"] == {
        "total": 174604259328,
        "active": 174604259328,
        "multi_token_prediction": 0,
    }
    assert figures["state_bytes"]["total"] == 16 * 174604259328
    assert figures["axes"]["gpus"] == 512
    assert figures["flop_per_token"]["full"]["causal"] == flop_per_token(
        read_workload("gpt3-175b").shape, 2048, "full", "causal"
    )
    assert {item["axis"] for item in figures["traffic"]} == {"dp", "tp", "pp"}


def test_the_tables_go_to_stdout_and_source_and_assumptions_to_stderr() -> None:
    done = run("llama-3-8b", "--dp", "2")
    assert done.returncode == 0
    assert "8,030,261,248" in done.stdout
    assert "all-reduce" in done.stdout
    assert "405B only" in " ".join(done.stderr.split())


def test_an_unknown_name_is_bad_input_and_a_layout_that_cannot_be_a_finding() -> None:
    unknown, impossible = run("gpt3"), run("gpt3-175b", "--tp", "7")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "did you mean" in unknown.stderr
    assert impossible.returncode == 1
    assert "96 heads cannot be split 7 ways" in impossible.stderr
