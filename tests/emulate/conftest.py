"""A Python that any user of this machine can run, and the packages it needs."""

import os
import subprocess
import sys
from pathlib import Path

import pyroute2
import pytest

import isthmus

NOBODY = 65534


def as_nobody() -> dict[str, object]:
    """Arguments for `subprocess` that make the child an unprivileged user without any capability."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


@pytest.fixture(scope="session")
def anyones_path() -> str:
    """PYTHONPATH with isthmus and pyroute2."""
    roots = [Path(isthmus.__file__).parents[1], Path(pyroute2.__file__).parents[1]]
    return os.pathsep.join(map(str, roots))


@pytest.fixture(scope="session")
def anyones_python(anyones_path: str) -> str:
    """An interpreter that an unprivileged user can run with our packages; skips with the reason where there is none."""
    reasons: list[str] = []
    for found in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [found, "-c", "import sys, isthmus.emulate, pyroute2; sys.exit(sys.version_info < (3, 11))"], check=True,
                capture_output=True, text=True, env={"PYTHONPATH": anyones_path}, cwd="/", **as_nobody(),  # type: ignore[call-overload]
            )
            return found
        except (OSError, subprocess.CalledProcessError) as error:
            reasons.append(f"{found}: {getattr(error, 'stderr', '') or error}".strip().splitlines()[-1])
    pytest.skip("no Python >= 3.11 that an unprivileged user may run with these packages: " + "; ".join(reasons))
