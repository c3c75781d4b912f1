"""Every block of code on the pages of docs/ is run, read or compiled; those that cannot be say why, and are counted here.

A page's blocks are run in order, in a folder of the page's own that holds examples/ and measured/. The word after the three
backquotes says what a block is, and what may follow it:

    ```console                    `$ ` begins a command; the rest is what it prints, `...` standing for anything
    ```sh                         commands, a line each, that must end well
    ```yaml NAME.yaml             a whole document, written into the folder under that name for the commands to read
    ```yaml part of DOCUMENT      keys that stand in that document's schema
    ```python                     runs; with `not run`, compiles
    ```text                       neither code nor output of a command: a formula, a message, a file's part
    ```LANGUAGE not run: REASON   cannot be run in a test of a few seconds, and why
    ```LANGUAGE run by: `make X`  another test runs it
"""

import ast
import io
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus import cli
from isthmus.cli.schema import _model
from isthmus.documents import json_schema

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (ROOT / "docs").rglob("*.md")
    if path.parent.name in ("docs", "guide", "concepts", "reference") and path.name != "metrics.md"
)
REASONS = {
    "needs a cluster": 2,
    "takes minutes": 3,
    "`make guide`": 7,
    "needs a run": 1,
    "needs files of yours": 4,
    "part of a script": 1,
}
"""Why blocks are not run, and how many are not for each reason: a page that adds one changes the number here."""

DIRECTIVES = ("{toctree}", "{include}", "{eval-rst}", "{code-block}")


@dataclass(frozen=True)
class Block:
    """One block of code: where it begins, its language, what follows that, its lines."""

    page: Path
    line: int
    language: str
    note: str
    lines: tuple[str, ...]

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def not_run(self) -> str | None:
        if self.note.startswith("run by: "):
            return self.note
        return self.note.removeprefix("not run: ") if self.note.startswith("not run: ") else None


def blocks_of(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = re.match(r"( *)```(\S+) ?(.*)$", lines[number])
        if opened:
            end = next(at for at in range(number + 1, len(lines)) if lines[at].strip() == "```")
            body = tuple(line.removeprefix(opened[1]) for line in lines[number + 1 : end])
            yield Block(page, number + 1, opened[2], opened[3], body)
            number = end
        number += 1


BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.language not in DIRECTIVES]


@dataclass(frozen=True)
class Command:
    """One command of a console block and the lines that it prints, or None where they do not matter."""

    text: str
    printed: tuple[str, ...] | None


def commands_of(block: Block) -> list[Command]:
    if block.language == "sh":
        lines = "\n".join(block.lines).replace("\\\n", " ").splitlines()
        return [Command(line, None) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    found: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [Command(text, tuple(printed)) for text, printed in found]


def run(text: str, folder: Path) -> tuple[str, int]:
    """What a command prints, and its exit code: isthmus in this process, everything else by bash."""
    words = shlex.split(text, comments=True)
    if words[0] != "isthmus" or set(words) & {"|", ">", "&&", ";"} or any(word.endswith(";") for word in words):
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{text}"],
            cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout, done.returncode
    made = words[words.index("-o") + 1] if words[1] == "plan" and "-o" in words else None
    if made and text in PLANS:  # several pages begin with the same plan
        printed, plan = PLANS[text]
        (folder / made).write_text(plan, encoding="utf-8")
        return printed, 0
    printed, code = run_here()
    if made and words[2].startswith("examples/") and code == 0:
        PLANS[text] = printed, (folder / made).read_text(encoding="utf-8")
    return printed, code


PLANS: dict[str, tuple[str, str]] = {}
"""What a plan of examples alone printed, and its file."""


def run_here() -> tuple[str, int]:
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            cli.main()
    except SystemExit as stopped:
        return printed.getvalue(), int(stopped.code or 0)
    return printed.getvalue(), 0


def as_pattern(shown: tuple[str, ...]) -> str:
    """A line of `...` stands for any lines; in a line it stands for any words. Blanks at the end of a line do not count."""
    parts = []
    for line in shown:
        if line.strip() == "...":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            words = re.escape(line.rstrip()).replace(r"\.\.\.", r"[^\n]*")
            parts.append(rf"{words}[ ]*\n")
    return "".join(parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_what_a_page_shows_is_what_its_commands_print(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("examples", "measured"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    for block in (each for each in BLOCKS if each.page == page and each.not_run is None):
        if block.language == "yaml" and block.note.endswith(".yaml"):
            Path(block.note).write_text("\n".join(block.lines) + "\n", encoding="utf-8")
        if block.language not in ("console", "sh"):
            continue
        for command in commands_of(block):
            monkeypatch.setattr(sys, "argv", shlex.split(command.text, comments=True))
            printed, code = run(command.text, tmp_path)
            if command.printed is None:
                assert code == 0, f"{block.where}: {command.text}\n{printed}"
            else:
                shown = "\n".join(line.rstrip() for line in printed.splitlines()).rstrip() + "\n"
                message = f"{block.where}: {command.text}\nprints\n{printed}\nand the page shows\n" + "\n".join(command.printed)
                assert re.fullmatch(as_pattern(command.printed), shown.lstrip("\n") if shown != "\n" else ""), message


def test_every_block_says_what_it_is_and_those_not_run_have_a_reason_that_is_counted() -> None:
    assert len(BLOCKS) > 50
    unknown = [block.where for block in BLOCKS if block.language not in ("console", "sh", "yaml", "python", "text")]
    assert unknown == []
    indented = [where for page in PAGES for where in _indented(page)]
    assert indented == []  # a block without a word for what it is would be skipped in silence
    counted = Counter(block.not_run.removeprefix("run by: ").split(":")[0] for block in BLOCKS if block.not_run is not None)
    assert counted == REASONS, sorted(f"{block.where}: {block.not_run}" for block in BLOCKS if block.not_run is not None)


def _indented(page: Path) -> Iterator[str]:
    """Lines that begin a block of code by four blanks."""
    text = page.read_text(encoding="utf-8").splitlines()
    fenced = {number for block in blocks_of(page) for number in range(block.line, block.line + len(block.lines) + 1)}
    for number, line in enumerate(text):
        if number not in fenced and line.startswith("    ") and number > 0 and not text[number - 1].strip():
            yield f"{page.relative_to(ROOT)}:{number + 1}"


NOT_RUN = [
    (block, command)
    for block in BLOCKS
    if block.not_run and block.language in ("console", "sh")
    for command in commands_of(block)
    if re.search(r"\bisthmus [a-z]", command.text)
]


@pytest.mark.parametrize(("block", "command"), NOT_RUN, ids=lambda each: each.where if isinstance(each, Block) else "")
def test_a_command_that_is_not_run_names_a_command_and_options_that_exist(block: Block, command: Command) -> None:
    words = shlex.split(re.split(r" > | \| | &&", command.text[command.text.index("isthmus ") :])[0], comments=True)
    assert words[1] in cli.COMMANDS, block.where
    own = words[2 : words.index("--")] if "--" in words else words[2:]
    module = cli.import_module(f"isthmus.cli.{cli._MODULES.get(words[1], words[1])}")
    nested = own[:1] if own[:1] and own[0] in getattr(module, "SUBCOMMANDS", {}) else []
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit):
        cli._run_command(words[1], [*nested, "--help"])
    options = [word.split("=")[0] for word in own if re.match(r"--?[a-z]", word)]
    assert [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", printed.getvalue())] == [], block.where


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "yaml"], ids=lambda block: block.where)
def test_yaml_is_a_whole_document_or_keys_of_one(block: Block) -> None:
    if block.note.endswith(".yaml"):
        others = [line for each in BLOCKS if each.page == block.page and each is not block for line in each.lines]
        assert any(block.note in line for line in others), f"{block.where}: no command reads {block.note}"
        return
    part = re.fullmatch(r"part of (\w+)", block.note)
    assert part, f"{block.where}: say NAME.yaml, or part of fabric, workload, plan or sites"
    schema = json_schema(_model(part[1]))  # type: ignore[arg-type]
    known = {key for each in [schema, *schema["$defs"].values()] for key in each.get("properties", {})}
    found = yaml.safe_load("\n".join(block.lines))
    assert isinstance(found, dict)
    assert sorted(set(_keys(found)) - known) == [], block.where


def _keys(value: Any, named: bool = False) -> Iterator[str]:
    """All keys, without the names that a user gives to regions."""
    for key, each in value.items() if isinstance(value, dict) else ():
        if not named:
            yield key
        yield from _keys(each, named=key == "regions")
    for each in value if isinstance(value, list) else ():
        yield from _keys(each)


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "python"], ids=lambda block: block.where)
def test_python_runs_or_names_only_methods_that_exist(block: Block) -> None:
    from isthmus.runtime import Cluster

    tree = ast.parse("\n".join(block.lines), block.where)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cluster"
    }
    assert [name for name in used if not hasattr(Cluster, name)] == []
    if block.not_run is None:
        exec(compile(tree, block.where, "exec"), {})
