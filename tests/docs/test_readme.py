"""The README's examples: what it shows is what the program prints, and what it names exists (commands: test_readme_commands)."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDENTED = [block for block in re.split(r"\n\s*\n", README) if block.startswith("    ")]


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
