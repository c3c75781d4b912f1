"""The README's examples: what it shows is what the program prints, and what it names exists."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from isthmus.cli import COMMANDS

ROOT = Path(__file__).parents[2]
MODULES = {"try": "try_"}
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDENTED = [block for block in re.split(r"\n\s*\n", README) if block.startswith("    ")]
LINES = [line.strip() for block in INDENTED for line in block.splitlines()]


def isthmus_run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isthmus", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_example_with_output_prints_exactly_that() -> None:
    shown = [block for block in INDENTED if block.lstrip().startswith("$ isthmus")]
    assert shown
    for block in shown:
        first, *rest = (line[4:] for line in block.splitlines())
        done = isthmus_run(shlex.split(first.removeprefix("$ isthmus")))
        assert (done.stdout + done.stderr).rstrip() == "\n".join(rest).rstrip()


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("isthmus ")])
def test_every_command_line_names_a_command_and_options_that_exist(line: str) -> None:
    words = shlex.split(re.split(r"#| > ", line)[0])
    assert words[1] in COMMANDS
    options = [word for word in words[2:] if word.startswith("-")]
    nested = getattr(import_module(f"isthmus.cli.{MODULES.get(words[1], words[1])}"), "SUBCOMMANDS", {})
    text = isthmus_run([*words[1 : 3 if words[2] in nested else 2], "--help"]).stdout
    assert [option for option in options if option not in text] == []


def test_the_training_script_is_python_and_uses_names_that_exist() -> None:
    import isthmus

    script = next(block for block in INDENTED if "isthmus.join()" in block)
    lines = README[README.index("    import isthmus") : README.index("The same script runs")].splitlines()
    compile("\n".join(line[4:] for line in lines), "README.md", "exec")
    assert "cluster.parallelize(model)" in script
    assert "join" in isthmus.__all__


def test_the_make_targets_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make (\w[\w-]*)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_files_linked_exist() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / link).exists(), link


def test_the_tree_names_rooms_that_exist_and_all_of_them() -> None:
    tree = README[README.index("    src/isthmus/\n") :]
    named = set(re.findall(r"^      (\w+)/", tree, re.MULTILINE))
    rooms = {path.name for path in (ROOT / "src" / "isthmus").iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert named == rooms
