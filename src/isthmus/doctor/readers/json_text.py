"""JSON inside a paste: every object that can be decoded, with the line it starts on; broken JSON is no JSON."""

import json
from collections.abc import Iterator
from typing import Any, cast

from isthmus.doctor.text import Document

__all__ = ["entries", "items", "json_values", "text_of"]

_MOST = 200  # objects looked at in one file: enough for any tool, too few to make a hostile file slow


def json_values(document: Document, needle: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line index, object) of top-level JSON objects in the text that contain `needle`."""
    text = document.text
    if needle not in text or text.count("{") > 2_000_000:
        return
    decoder = json.JSONDecoder()
    position, tries = 0, 0
    while tries < _MOST and (position := _next_object(text, position)) >= 0:
        tries += 1
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
            continue
        if isinstance(value, dict) and needle in text[position:end]:
            yield text.count("\n", 0, position), cast("dict[str, Any]", value)
        position = end


def _next_object(text: str, position: int) -> int:
    """The next `{` that starts a line or the text: objects in the middle of prose are not a tool's output."""
    while (position := text.find("{", position)) >= 0:
        window = max(0, position - 200)  # deeper indentation than that is no object of its own
        before = text.rfind("\n", window, position) + 1
        if (before or not window) and not text[before:position].strip(" \t[,"):
            return position
        position += 1
    return -1


def entries(value: Any) -> list[tuple[str, Any]]:
    """Items of an object; nothing when it is none."""
    return [(str(key), item) for key, item in cast("dict[Any, Any]", value).items()] if isinstance(value, dict) else []


def items(value: Any) -> list[Any]:
    """Members of an array; nothing when it is none."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def text_of(value: Any) -> str:
    """A scalar as text; nothing for anything else."""
    return str(value) if isinstance(value, str | int | float) else ""
