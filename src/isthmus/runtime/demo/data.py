"""Real text that every machine with Python has: the source of Python's own standard library.

The split is by file, so that no held-out window is a neighbour of a training window.
"""

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset

from isthmus.errors import InputError

__all__ = ["Corpus", "TextWindows", "read_corpus"]

# Tests and generated tables would fill most of the corpus; installed packages differ between machines.
LEFT_OUT = {
    "__pycache__",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}
HELD_OUT_EVERY = 16


@dataclass(frozen=True, slots=True)
class Corpus:
    """Bytes to train on and bytes held out (uint8, one dimension each)."""

    train: torch.Tensor
    held_out: torch.Tensor


def read_corpus(folder: Path | None = None) -> Corpus:
    """Read the `*.py` files under `folder` (the standard library unless given) in the order of their names.

    Every sixteenth file is held out, beginning with the eighth. About 10 MB and a fraction of a second.

    Raises:
        InputError: There are too few files to split.
    """
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in root.rglob("*.py") if LEFT_OUT.isdisjoint(path.relative_to(root).parts))
    if len(paths) < HELD_OUT_EVERY:
        raise InputError(
            str(root),
            f"holds {len(paths)} .py files, at least {HELD_OUT_EVERY} are needed",
            "this Python came without the source of its standard library",
        )
    held_out = paths[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    kept_back = set(held_out)
    return Corpus(_joined([path for path in paths if path not in kept_back]), _joined(held_out))


def _joined(paths: Sequence[Path]) -> torch.Tensor:
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in paths)), dtype=torch.uint8)


class TextWindows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Disjoint windows of `length` bytes: item i is (bytes, the same bytes one later), int64, shape (length,) each."""

    def __init__(self, text: torch.Tensor, length: int) -> None:
        self.text, self.length = text, length

    def __len__(self) -> int:
        return (self.text.numel() - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.length
        window = self.text[start : start + self.length + 1].long()
        return window[:-1], window[1:]
