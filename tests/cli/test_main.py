"""The command line as a whole: names, versions, exit codes."""

import subprocess
import sys

import isthmus


def isthmus_run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "isthmus", *args], capture_output=True, text=True, timeout=60, check=False)


def test_the_version_is_the_packages() -> None:
    assert isthmus_run("--version").stdout == f"isthmus {isthmus.__version__}\n"


def test_an_unknown_command_names_the_nearest_one() -> None:
    done = isthmus_run("plna")
    assert done.returncode == 2
    assert done.stderr == "error: isthmus: unknown command 'plna'\n  hint: did you mean 'plan'?\n"


def test_an_unknown_option_is_bad_input() -> None:
    done = isthmus_run("plan", "--colour")
    assert done.returncode == 2
    assert "No such option: --colour" in done.stderr
    assert "Traceback" not in done.stderr
