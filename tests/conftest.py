"""What tests of several rooms share: the command line, run in this process on a file to be refused."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are shared: time says nothing about correctness. In CI the same examples every time: new ones are for desks.
settings.register_profile("isthmus", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("isthmus")


@pytest.fixture
def refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str | bytes | None], str]:
    """Runs `isthmus check f.yaml` on a file with the body given (None: no file); returns what stderr says."""
    from isthmus.cli import main

    def run(body: str | bytes | None) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["isthmus", "check", "f.yaml"])
        if body is not None:
            Path("f.yaml").write_bytes(body if isinstance(body, bytes) else body.encode())
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.out) == (2, "")
        return printed.err

    return run
