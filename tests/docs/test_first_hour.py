"""The guide to the first hour, command by command, in a fresh folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guide/first-hour.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh[^\n]*\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.guide
@pytest.mark.timeout(400)
def test_every_command_of_the_first_hour_runs_in_order_and_leaves_what_the_next_one_takes(tmp_path: Path) -> None:
    assert len(COMMANDS) >= 9
    for name in ("examples", "measured"):
        shutil.copytree(ROOT / name, tmp_path / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    for command in COMMANDS:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    for made in ("measurements.jsonl", "calibration.yaml", "plan.yaml", "plan.html", "tried/report.html"):
        assert (tmp_path / made).stat().st_size > 0, made
