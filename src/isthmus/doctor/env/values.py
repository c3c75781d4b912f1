"""How NCCL reads a value: `strtoll` with base 0 for numbers, exact words for levels, lists with one leading sign.

Source: NCCL 2.30.7 src/misc/param.cc, src/graph/paths.cc, src/graph/tuning.cc.
"""

import re
from dataclasses import dataclass

__all__ = ["Reading", "as_integer", "edits", "read_integer"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What strtoll makes of a text.

    Attributes:
        value: The number that NCCL takes; None for an empty text, which leaves the default.
        clean: The whole text was that number, written in base 10 or as 0x.
        why: What went wrong, in words; empty when clean.
    """

    value: int | None
    clean: bool
    why: str


_NUMBER = re.compile(
    r"\s*(?P<sign>[-+]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9]\d*))?(?P<rest>.*)", re.DOTALL
)


def read_integer(text: str) -> Reading:
    """strtoll(text, NULL, 0), without its error reporting, as NCCL calls it."""
    if not text.strip():
        return Reading(None, True, "")
    match = _NUMBER.fullmatch(text)
    digits = "" if match is None else match["hex"] or match["octal"] or match["decimal"] or ""
    if match is None or not digits:
        return Reading(0, False, f"{text!r} is no number: it is read as 0")
    base = 16 if match["hex"] else 8 if match["octal"] else 10
    value = int(digits[:40], base) * (-1 if match["sign"] == "-" else 1)
    if match["rest"].strip():
        return Reading(value, False, f"{text!r} is read as {value}: what follows the digits is dropped")
    if base == 8 and len(digits) > 1:
        return Reading(value, False, f"{text!r} is read as {value}: a leading 0 means octal")
    return Reading(value, True, "")


def as_integer(text: str) -> int | None:
    """The number that NCCL takes from a text; None when the text is empty or still holds a shell variable."""
    return None if re.search(r"[$<{]", text) else read_integer(text).value


def edits(first: str, second: str, most: int = 3) -> int:
    """Letters to insert, delete, replace or swap between two names (Damerau-Levenshtein), at most `most`."""
    if abs(len(first) - len(second)) >= most:
        return most
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        before, row, previous = row, [i] + [0] * len(second), before
        for j, b in enumerate(second, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == second[j - 2] and first[i - 2] == b:
                row[j] = min(row[j], previous[j - 2] + 1)
        if min(row) >= most:
            return most
    return min(row[-1], most)
