"""A fabric with its plan, sites and certificates in one folder, ready to be handed over."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.cli import main
from isthmus.deploy.template import sites_template
from isthmus.fabric import fabric_digests, read_fabric
from isthmus.keys import make_keys
from isthmus.plan import Layout, Strategy, save_plan
from isthmus.runtime.loopback import lone_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
Isthmus = Callable[..., tuple[int, str, str]]


def filled(template: str) -> str:
    """A template with addresses and names in place of what a user fills in."""
    numbers = iter(range(1, 10_000))
    text = template.replace("FILL-IN:29700", "10.99.0.2:29700").replace("partition: FILL-IN", "partition: gpu")
    text = text.replace("    # kubernetes: {", "    kubernetes: {")
    return re.sub("FILL-IN(?=})", lambda _: "10.{}.{}.{}".format(1, *divmod(next(numbers), 200)), text)


def prepare(folder: Path, example: str = "shenzhen-shanghai") -> Path:
    """plan.yaml, fabric.yaml, sites.yaml and keys/ of an example in `folder`."""
    fabric = read_fabric(EXAMPLES / f"{example}.yaml")
    shutil.copy(EXAMPLES / f"{example}.yaml", folder / "fabric.yaml")
    strategy = Strategy(name="local", kind="local-steps", inner_steps=4)
    save_plan(
        lone_plan(strategy).model_copy(
            update={"fabric": fabric.name, "fabric_parts": fabric_digests(fabric), "layout": Layout(dp=fabric.gpus)}
        ),
        folder / "plan.yaml",
    )
    (folder / "sites.yaml").write_text(filled(sites_template(folder / "fabric.yaml")))
    make_keys([region.name for region in fabric.regions], folder / "keys")
    return folder


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with everything, current."""
    monkeypatch.chdir(tmp_path)
    return prepare(tmp_path)


@pytest.fixture
def isthmus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Isthmus:
    """Runs the command line in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isthmus", *arguments])
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def deploy_arguments(target: str, output: str = "bundle", *more: str) -> list[str]:
    script = ["--", "train.py", "--steps", "10"]
    return ["deploy", "plan.yaml", "--sites", "sites.yaml", "--to", target, "-o", output, *more, *script]


def is_executable(path: Path) -> bool:
    return os.access(path, os.X_OK)
