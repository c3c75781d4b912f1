"""Numbers with their nouns."""

__all__ = ["counted"]


def counted(number: int, one: str, many: str = "") -> str:
    """`1 ring`, `8 rings`; `many` where the plural is not `one` and an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
