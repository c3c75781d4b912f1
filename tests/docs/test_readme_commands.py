"""The README's commands: each is parsed by the command line itself, and those that end by themselves are run, in order.

They run in a folder that holds what the README takes for granted (a fabric, a plan, a log, a script); what one command
writes, such as `> sites.yaml`, the next ones take. A new command line is run as well, unless `NOT_RUN` says why it cannot be.
"""

import json
import re
import shlex
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.core

from isthmus.cli import main
from isthmus.fabric import fabric_digests, read_fabric
from isthmus.plan import Layout, Strategy, save_plan
from isthmus.runtime.loopback import lone_plan

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINE = re.compile(r"^    (?:torchrun [^#\n]*-m )?(isthmus [^\n]*)$", re.MULTILINE)
COMMANDS = [re.sub(r"\s+#.*", "", found).strip() for found in LINE.findall(README)]
INSIDE = [found for found in re.findall(r"`(isthmus [a-z]+ [^`]+)`", README) if "*" not in found]

# By how a line begins: why it is parsed and not run.
NOT_RUN = {
    "isthmus bench collectives": "needs the ranks that torchrun starts (tests/runtime/test_collective_bench.py)",
    "isthmus bench wan": "needs the other regions (tests/runtime/test_wan_bench.py)",
    "isthmus plan fabric.yaml llama-3-8b --max-loss": "takes seven seconds (tests/report/test_plan_page.py)",
    "isthmus plan fabric.yaml llama-3-8b --vary": "takes five seconds (tests/planner/test_vary.py)",
    "isthmus try": "trains for minutes (tests/trial)",
    "isthmus run": "starts ranks (tests/run)",
    "isthmus coordinator": "serves until it is stopped (tests/runtime/federation)",
    "isthmus doctor --live": "asks this machine, whose state it does not choose",
    "isthmus watch": "shows a run that runs (tests/watch)",
}
# What is not 0, and why: the inputs have faults.
FOUND = {"isthmus doctor nccl.log": 1, "isthmus doctor bundle.tar.gz": 1}

# What the README leaves to the reader to name.
NAMED = {"workload": "llama-3-8b"}

Isthmus = Callable[[list[str]], int]


@pytest.fixture
def isthmus(monkeypatch: pytest.MonkeyPatch) -> Isthmus:
    """Runs the command line in this process: its exit code."""

    def run(words: list[str]) -> int:
        monkeypatch.setattr(sys, "argv", words)
        try:
            main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return 0

    return run


def words_of(line: str) -> tuple[list[str], str | None]:
    """The words of a line, and the file that it redirects to."""
    command, _, redirected = line.partition(" > ")
    return shlex.split(command), redirected.strip() or None


def why_not(line: str) -> str | None:
    return next((reason for begin, reason in NOT_RUN.items() if line.startswith(begin)), None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the README takes for granted, made current."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "examples" / "shenzhen-shanghai.yaml", tmp_path / "fabric.yaml")
    shutil.copy(ROOT / "examples" / "train.py", tmp_path / "train.py")
    fabric = read_fabric("fabric.yaml")
    plan = lone_plan(Strategy(name="local", kind="local-steps", inner_steps=20))
    parts = {"fabric": fabric.name, "fabric_parts": fabric_digests(fabric), "layout": Layout(dp=fabric.gpus)}
    save_plan(plan.model_copy(update=parts), tmp_path / "plan.yaml")
    inputs = ROOT / "tests" / "doctor" / "inputs"
    for name, source in (("nccl.log", "IB-11"), ("topo.txt", "NVL-02"), ("dmesg.txt", "GPU-02")):
        shutil.copy(inputs / f"{source}.txt", tmp_path / name)
    (tmp_path / "nccl-tests.log").write_text(
        "# nThread 1 nGpus 8 minBytes 67108864 maxBytes 268435456 step: 2(factor)\n"
        "# all_reduce_perf\n# Using devices\n"
        + "".join(f"#  Rank {rank:2d} Group  0 Pid 100 on node-1 device {rank:2d} [0x1b] NVIDIA H100\n" for rank in range(8))
        + "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
        + "    67108864      16777216     float     sum      -1    398.7  168.32  294.55      0    398.7  168.32  294.55      0\n"
        + "   268435456      67108864     float     sum      -1   1298.0  206.81  361.92      0   1298.0  206.81  361.92      0\n"
    )
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as bundle:
        bundle.add(tmp_path / "dmesg.txt", "node-1/dmesg.txt")
    metrics = tmp_path / "isthmus-run" / "metrics"
    metrics.mkdir(parents=True)
    span = {"kind": "span", "t": 1.0, "incarnation": 0, "track": "steps", "name": "step 1", "begin": 1.0, "seconds": 0.5}
    (metrics / "shenzhen-0.jsonl").write_text(f"{json.dumps(span)}\n")
    return tmp_path


def test_every_command_line_is_parsed_by_the_command_line_itself(
    isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed: list[str] = []

    def note(_: object, context: Any) -> None:
        parsed.append(context.command_path)

    monkeypatch.setattr(typer.core.TyperCommand, "invoke", note)
    lines = [*COMMANDS, *(line for line in INSIDE if not line.endswith("--here"))]
    assert len(COMMANDS) >= 25
    for line in lines:
        code = isthmus(words_of(line)[0])
        assert code == 0, f"{line}\n{capsys.readouterr().err}"
    assert len(parsed) == len(lines), "a line was not parsed by any command"


def test_an_option_or_argument_that_is_not_there_would_be_noticed(
    isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("was run")

    monkeypatch.setattr(typer.core.TyperCommand, "invoke", never)
    for line in ("isthmus plan fabric.yaml llama-3-8b --colour", "isthmus plan fabric.yaml", "isthmus plna a b"):
        assert isthmus(words_of(line)[0]) == 2
    capsys.readouterr()


def test_examples_that_are_named_exist() -> None:
    named = set(re.findall(r"examples/[\w.-]+", README))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.timeout(120)
def test_every_command_that_ends_by_itself_does_so_with_the_exit_code_it_should(
    folder: Path, isthmus: Isthmus, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in (line for line in COMMANDS if why_not(line) is None):
        words, redirected = words_of(line)
        capsys.readouterr()
        code = isthmus([*words[:2], *(NAMED.get(word, word) for word in words[2:])])
        said = capsys.readouterr()
        expected = next((code for begin, code in FOUND.items() if line.startswith(begin)), 0)
        assert code == expected, f"{line}\n{said.out[-2000:]}{said.err[-2000:]}"
        assert "Traceback" not in said.err, line
        if redirected == "sites.yaml":
            said = said._replace(out=filled(said.out))
        if redirected is not None:
            (folder / redirected).write_text(said.out)
    for made in ("calibration.yaml", "fabric.schema.json", "ticket.html", "keys/ca.pem", "trace.json", "sites.yaml"):
        assert (folder / made).stat().st_size > 0, made
    for bundle in ("bundle", "network", "watching"):
        assert any((folder / bundle).rglob("README.md")), bundle


def filled(template: str) -> str:
    """A template of sites with names and addresses where a reader fills them in."""
    text = template.replace("FILL-IN:29700", "10.99.0.2:29700").replace("partition: FILL-IN", "partition: gpu")
    text = re.sub(r"# (prometheus: )HOST", r"\g<1>10.99.0.3", text).replace("# export_port:", "export_port:")
    numbers = iter(range(1, 200))
    return re.sub("FILL-IN(?=})", lambda _: f"10.1.0.{next(numbers)}", text)


def test_the_reasons_not_to_run_a_line_are_of_lines_that_are_there() -> None:
    for begin in (*NOT_RUN, *FOUND):
        assert any(line.startswith(begin) for line in COMMANDS), begin
