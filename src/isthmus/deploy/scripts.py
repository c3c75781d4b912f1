"""Shell scripts of a bundle, held against bash itself."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from isthmus.deploy.pieces import Finding

__all__ = ["check_scripts"]


def check_scripts(folder: Path, names: Iterable[str]) -> list[Finding]:
    """What `bash -n` says against each script that exists; a warning where there is no bash to ask."""
    paths = [folder / name for name in names if (folder / name).is_file()]
    bash = shutil.which("bash")
    if bash is None:
        return [Finding("warning", str(folder), "scripts were not checked: there is no bash here")] if paths else []
    found: list[Finding] = []
    for path in paths:
        done = subprocess.run([bash, "-n", str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            found.append(Finding("error", str(path), f"bash cannot read it: {done.stderr.strip().splitlines()[0]}"))
    return found
