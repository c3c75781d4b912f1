"""The keys of one `config.json`, each read as the kind of value it must be, each fault with its line."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from isthmus.documents import read_text
from isthmus.errors import InputError

__all__ = ["Config"]

LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one file, with the file's text to find their lines in."""

    source: str
    text: str
    values: dict[str, Any]

    @staticmethod
    def read(path: Path | str) -> "Config":
        """Read the file at `path`; `InputError` where it is not a JSON object."""
        source, text = str(path), read_text(path)
        try:
            values: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{source}:{error.lineno}", f"is not JSON: {error.msg}") from None
        except (
            RecursionError,
            ValueError,
        ) as error:  # nesting without end; an integer of thousands of digits
            raise InputError(source, f"is not JSON that can be read: {error}") from None
        if not isinstance(values, dict):
            raise InputError(source, "expected the keys and values of a Hugging Face config.json")
        return Config(source, text, cast(dict[str, Any], values))

    def error(self, key: str, found: str, hint: str = "") -> InputError:
        """An `InputError` that points at the line of `key`, or at the file where the key is absent."""
        match = re.search(rf'"{re.escape(key)}"\s*:', self.text)
        line = f":{self.text.count(chr(10), 0, match.start()) + 1}" if match else ""
        return InputError(self.source + line, found, hint)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1; missing or null means `default`, or an error where there is none."""
        return self._number(key, default, 1)

    def whole(self, key: str, default: int | None = None) -> int:
        """As `size`, but 0 is allowed."""
        return self._number(key, default, 0)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; missing or null means `default`."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"{key}: found {value!r}, expected true or false")
        return value

    def ratio(self, key: str, default: float) -> float:
        """A number from 0 to 1; missing means `default`."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.error(key, f"{key}: found {value!r}, expected a number from 0 to 1")
        return value

    def layers_listed(self, key: str, layers: int) -> set[int]:
        """A list of layer numbers below `layers`; missing or null means none."""
        value: Any = self.values.get(key) or []
        items: list[Any] = cast(list[Any], value) if isinstance(value, list) else [None]
        if not all(type(item) is int and 0 <= item < layers for item in items):
            raise self.error(key, f"{key}: found {value!r}, expected a list of layers from 0 to {layers - 1}")
        return set(items)

    def _number(self, key: str, default: int | None, least: int) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(
                key, f"the key {key!r} is missing", f"model_type {self.values['model_type']!r} needs it"
            )
        if type(value) is not int or not least <= value <= LARGEST:
            raise self.error(
                key, f"{key}: found {value!r}, expected a whole number from {least} to {LARGEST}"
            )
        return value
