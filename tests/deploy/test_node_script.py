"""node.sh as bash runs it: every reason not to start is named, and the doctor's word counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Isthmus, deploy_arguments

FALLEN = "[Mon Nov 30 10:00:00 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus.\n"


@pytest.fixture
def region(given: Path, isthmus: Isthmus) -> Path:
    """A region's folder, in place as on a node."""
    folder = given / "bundle" / "shenzhen"
    changes = {
        "folder: /srv/isthmus  ": f"folder: {folder}  ",
        "python: /usr/bin/python3": f"python: {sys.executable}",
        "# keys: /etc/isthmus/keys": f"keys: {given}/keys  ",
    }
    text = Path("sites.yaml").read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    Path("sites.yaml").write_text(text)
    code, _, errors = isthmus(*deploy_arguments("torchrun", "bundle", "--no-health-check"))
    assert code == 0, errors
    return folder


def _node(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    environment = os.environ | {"ISTHMUS_NODE": "shenzhen-2"} | variables
    done = subprocess.run(
        ["bash", str(folder / "node.sh"), *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def test_a_node_that_has_everything_passes(region: Path) -> None:
    assert _node(region, "check") == (0, "")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder, keys: (folder / "members.json").unlink(), "members.json is missing"),
        (lambda folder, keys: (keys / "shenzhen.pem").unlink(), "keys/shenzhen.pem is missing"),
        (lambda folder, keys: (keys / "shenzhen.key").chmod(0o640), "shenzhen.key may be read by others (mode 640)"),
    ],
)
def test_what_is_missing_or_open_to_others_is_named(region: Path, spoil: object, reason: str) -> None:
    spoil(region, region.parents[1] / "keys")  # type: ignore[operator]
    code, errors = _node(region, "check")
    assert code == 78
    assert errors.startswith("isthmus: shenzhen, shenzhen-2: ")
    assert reason in errors


def test_a_node_that_is_none_of_the_regions_is_refused(region: Path) -> None:
    code, errors = _node(region, "run", ISTHMUS_NODE="login-1")
    assert code == 78
    assert "is not in" in errors
    assert "nodes.txt" in errors


def test_it_starts_the_ranks_with_its_own_number_and_the_settings(region: Path, tmp_path: Path) -> None:
    recorder = tmp_path / "recorder"
    recorder.write_text('#!/bin/bash\necho "$@"\nenv | grep -E "^(ISTHMUS_CHECKPOINTS|NCCL_DEBUG)="\n')
    recorder.chmod(0o755)
    script = region / "node.sh"
    script.write_text(script.read_text().replace(f"python={sys.executable}", f"python={recorder}"))
    done = subprocess.run(
        ["bash", str(script), "run"], env=os.environ | {"ISTHMUS_NODE": "shenzhen-2"}, capture_output=True, text=True, check=True
    )
    command, *settings = done.stdout.splitlines()
    assert "-m isthmus run plan.yaml --members members.json --region shenzhen --nodes 2 --node-rank 1" in command
    assert command.endswith("-- train.py --steps 10")
    assert sorted(settings) == [f"ISTHMUS_CHECKPOINTS={region}/checkpoints", "NCCL_DEBUG=WARN"]


def test_a_fatal_finding_of_the_doctor_stops_the_node_and_a_lesser_one_does_not(
    region: Path, tmp_path: Path, isthmus: Isthmus
) -> None:
    assert isthmus(*deploy_arguments("torchrun"))[0] == 0
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "dmesg").write_text(f"#!/bin/bash\ncat <<'END'\n{FALLEN}END\n")
    (tools / "dmesg").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    code, errors = _node(region, "check", PATH=path)
    assert code == 78
    assert "PCI-06" in errors
    assert "the doctor found a fault that no run survives" in errors
    (tools / "dmesg").write_text("#!/bin/bash\necho quiet\n")
    assert _node(region, "check", PATH=path, NCCL_P2P_DISABLE="1") == (0, "")
