"""The two errors a user can act on, and the search for the name that was meant."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["InfeasibleError", "InputError", "nearest"]


class InputError(Exception):
    """Text from outside is wrong.

    Args:
        where: The file (or `<argument>`), with `:line` when known.
        found: What is wrong, with the value as it was written and what was expected.
        hint: What to write instead; may be empty.
    """

    def __init__(self, where: str, found: str, hint: str = "") -> None:
        super().__init__(where, found, hint)
        self.where, self.found, self.hint = where, found, hint

    def __str__(self) -> str:
        return f"{self.where}: {self.found}" + (f"\n  hint: {self.hint}" if self.hint else "")


class InfeasibleError(Exception):
    """A well-formed question has no answer; `bind` names the constraint that forbids it."""

    def __init__(self, message: str, bind: str) -> None:
        super().__init__(message, bind)
        self.message, self.bind = message, bind

    def __str__(self) -> str:
        return f"{self.message}\n  binding constraint: {self.bind}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?`, or the list of what is known when nothing is near."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name[:200].lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"did you mean {lowered[close[0]]!r}?"
    shown = ", ".join(names[:24]) + (f", ... ({len(names)} in all)" if len(names) > 24 else "")
    return f"known: {shown}"
