"""The peers' own virtual environments, under build/peers/ at the checkout's root; torch is the project's, by a .pth file."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

__all__ = ["PEERS", "python_of", "versions"]

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "peers"
PEERS = {"torchft": "0.2.0", "hivemind": "1.1.12"}


def python_of(peer: str) -> Path:
    """The interpreter that has `peer` installed; makes the environment first where it does not exist."""
    home = FOLDER / peer
    python = home / "bin" / "python"
    mark = home / f".ready-{PEERS[peer]}"
    if not mark.exists():
        print(f"peers: installing {peer} {PEERS[peer]} into {home}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        found = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
        )
        # Equal torch for all, and no second copy of it on the disk.
        Path(found.stdout.strip(), "zz_project.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{peer}=={PEERS[peer]}"], check=True
        )
        mark.touch()
    return python


def versions(peer: str) -> dict[str, str]:
    """What is installed, asked of the environment itself."""
    script = (
        "import json, importlib.metadata as m, platform; "
        f"print(json.dumps({{'python': platform.python_version(), **{{n: m.version(n) for n in ({peer!r}, 'torch')}}}}))"
    )
    found = subprocess.run([python_of(peer), "-c", script], check=True, capture_output=True, text=True)
    return json.loads(found.stdout)
