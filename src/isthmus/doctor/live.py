"""This machine, asked now: the same commands as the collect script, read-only, each with a time limit."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator

from isthmus.doctor.commands import COMMANDS, SAMPLED
from isthmus.doctor.readers.settings import PREFIXES
from isthmus.doctor.text import FILE_BYTES, Document, document

__all__ = ["live_documents"]

_LIMIT_S = 20.0


def live_documents(told: Callable[[str], None]) -> Iterator[Document]:
    """One document for each command that answered; `told` hears which one is being asked."""
    host = socket.gethostname().split(".")[0]
    for name, command in (*COMMANDS, *SAMPLED):
        told(name)
        if text := _asked(command):
            yield document(text, name, host)
    settings = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)]
    if settings:
        yield document("\n".join(settings), "env", host)


def _asked(command: str) -> str:
    """What a command printed; nothing when it is not there, fails without a word, or takes too long."""
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (subprocess.TimeoutExpired, OSError):
        return ""
    return done.stdout[:FILE_BYTES].decode("utf-8", errors="replace")
