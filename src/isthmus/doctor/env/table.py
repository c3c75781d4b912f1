"""The table of variables (variables.toml) as records."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from isthmus.doctor.env.values import edits

__all__ = ["Variable", "meant", "variables"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable.

    Attributes:
        status: documented, undocumented, removed, plugin, framework, marker or nonexistent.
        kind: int, bytes, bool, enum, level, list, algorithms, protocols, hcas, interfaces, string, path, address, cidr or float.
        accepts: Values that are allowed, when they can be listed.
        low, high: Range of a number, when it has one.
        since, last: First and last release that reads it; empty when not known, or still read.
        deprecated: Since when, and the successor after an arrow.
        meant: For names that nobody reads: the one that was probably meant.
        does: What it does, in our words.
    """

    name: str
    status: str
    kind: str
    does: str
    accepts: tuple[Any, ...] = ()
    low: int | None = None
    high: int | None = None
    default: str = ""
    since: str = ""
    last: str = ""
    deprecated: str = ""
    meant: str = ""


@cache
def variables() -> dict[str, Variable]:
    """All variables by name."""
    data = tomllib.loads(files("isthmus.doctor.env").joinpath("variables.toml").read_text(encoding="utf-8"))
    return {name: _variable(name, body) for name, body in data.items()}


def _variable(name: str, body: dict[str, Any]) -> Variable:
    return Variable(name=name, accepts=tuple(body.pop("accepts", ())), **body)


@cache
def meant(name: str) -> str:
    """The real variable within two edits of an unknown name, or empty. Shorter names are nearer: one edit for up to 9 letters."""
    real = [v.name for v in variables().values() if v.status in {"documented", "undocumented", "framework"}]
    allowed = 2 if len(name) > 9 else 1
    best = min(real, key=lambda other: (edits(name, other), other))
    return best if 0 < edits(name, best) <= allowed else ""
