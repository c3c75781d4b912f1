"""What a hand-over is made of: files with their text, none of them on disk yet."""

import re
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Bundle", "Finding", "Piece"]

_PATH = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of a bundle.

    Attributes:
        path: Relative to the bundle, `/` between parts; neither `..` nor a leading `/`.
        text: All of it, UTF-8.
        executable: Mode 0755 in place of 0644.
    """

    path: str
    text: str
    executable: bool = False

    def __post_init__(self) -> None:
        assert _PATH.fullmatch(self.path), self.path
        assert ".." not in self.path.split("/"), self.path


@dataclass(frozen=True, slots=True)
class Bundle:
    """All files of one hand-over.

    Attributes:
        target: Name out of `targets.TARGETS`.
        pieces: No path twice.
        made_from: What the bundle was made from and `--check` needs again, as JSON values.
    """

    target: str
    pieces: tuple[Piece, ...]
    made_from: dict[str, object] = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        paths = [piece.path for piece in self.pieces]
        assert len(set(paths)) == len(paths), sorted(path for path in paths if paths.count(path) > 1)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `--check` found: an error (it will not run, or not as planned) or a warning.

    Attributes:
        where: The file, with `:line` where known.
        found: What is wrong, and what was expected.
        hint: What to do; may be empty.
    """

    severity: Severity
    where: str
    found: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.severity}: {self.where}: {self.found}" + (f"\n  hint: {self.hint}" if self.hint else "")
