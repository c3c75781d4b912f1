"""The command line as a whole: names, versions, exit codes."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "east", "-o", "/proc/none"], "error: /proc/none: No such file or directory"),
        (
            ["coordinator", "--listen", "127.0.0.1:29755", "--journal", "/proc/none/j"],
            "error: --journal: '/proc/none/j' cannot be kept: No such file or directory",
        ),
    ],
)
def test_a_path_that_cannot_be_written_is_named_without_a_traceback(arguments: list[str], message: str) -> None:
    done = isthmus_run(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == message
