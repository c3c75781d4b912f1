"""What a run leaves on disk so that a later `clean` can prove what is whose, and that clean-up.

    <temporary folder>/isthmus-<uid>/<run>/started      pid start-ticks, a line each; the launcher first
    <temporary folder>/isthmus-<uid>/<run>/token        the run's token, which its processes carry in their
    environment

Namespaces, devices, routes and addresses need no record: they are held by processes alone and go with them.
"""

import os
import secrets
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isthmus.emulate import processes
from isthmus.errors import InputError

__all__ = ["Cleaned", "Run", "clean", "open_run"]

_YOUNG_S = 60.0  # a folder this young without records belongs to a run that is just being opened


@dataclass(frozen=True, slots=True)
class Run:
    """The folder of one run; whatever is put into it goes with it."""

    folder: Path
    token: str

    def started(self, pid: int) -> None:
        """Write down a process of this run."""
        ticks = processes.started_ticks(pid)
        if ticks is not None:
            with (self.folder / "started").open("a", encoding="ascii") as stream:
                stream.write(f"{pid} {ticks}\n")

    def remove(self) -> None:
        """Remove the folder, and the user's folder when it was the last."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # another run lives
            self.folder.parent.rmdir()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What `clean` did.

    Attributes:
        runs: Folders of dead runs, removed.
        processes: Pids ended, all of dead runs.
        living: Runs whose launcher still runs; they were left alone.
    """

    runs: tuple[str, ...]
    processes: tuple[int, ...]
    living: tuple[str, ...]


def open_run() -> Run:
    """A new run of this process.

    Raises:
        InputError: The user's folder under the temporary folder is not the user's own.
    """
    home = _home()
    home.mkdir(mode=0o700, exist_ok=True)
    _check_owner(home)
    folder = home / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700)
    run = Run(folder, secrets.token_hex(16))
    (folder / "token").write_text(run.token, encoding="ascii")
    run.started(os.getpid())
    return run


def clean() -> Cleaned:
    """End what dead runs of this user left behind and remove their folders; living runs are left alone.

    A run is dead when the launcher it wrote down (pid and start time) no longer runs. Ended are only the
    processes that the run wrote down and those that carry its token.

    Raises:
        InputError: The user's folder under the temporary folder is not the user's own.
    """
    home = _home()
    if not home.exists():
        return Cleaned((), (), ())
    _check_owner(home)
    runs: list[str] = []
    ended: list[int] = []
    living: list[str] = []
    for folder in sorted(home.iterdir()):
        records = _records(folder)
        if processes.alive(*records[0]) if records else _age_s(folder) < _YOUNG_S:
            living.append(folder.name)
            continue
        token = _read(folder / "token")

        def left(records: list[tuple[int, int]] = records, token: str = token) -> set[tuple[int, int]]:
            known = {record for record in records if processes.alive(*record)}
            return known | (processes.with_token(token) if token else set())

        ended += [pid for pid, _ in processes.end(left, grace_s=1.0)]
        Run(folder, token).remove()
        runs.append(folder.name)
    return Cleaned(tuple(runs), tuple(sorted(ended)), tuple(living))


def _home() -> Path:
    return Path(tempfile.gettempdir()) / f"isthmus-{os.getuid()}"


def _check_owner(home: Path) -> None:
    found = home.lstat()
    if not home.is_dir() or home.is_symlink() or found.st_uid != os.getuid():
        raise InputError(str(home), "is not a folder of this user", "remove it, or set TMPDIR to a folder of your own")


def _age_s(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except FileNotFoundError:  # its run ended meanwhile and took it along
        return float("inf")


def _records(folder: Path) -> list[tuple[int, int]]:
    lines = [line.split() for line in _read(folder / "started").splitlines()]
    return [(int(line[0]), int(line[1])) for line in lines if len(line) == 2 and line[0].isdecimal() and line[1].isdecimal()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
