"""Faults on request: `12s: down shenzhen-shanghai 5s` becomes something that happens to a running tunnel.

Times count from the first training step of the run. Every fault is scripted, so a run with it can be repeated.
"""

import re
from dataclasses import dataclass
from typing import Literal, assert_never

from isthmus.errors import InputError, nearest
from isthmus.units import BYTES_PER_SECOND, FRACTION, SECONDS, quantity

__all__ = ["Fault", "FaultKind", "parse_fault"]

FaultKind = Literal["down", "slow", "lossy", "freeze", "kill"]
_FORMS: dict[FaultKind, str] = {
    "down": "12s: down shenzhen-shanghai 5s",
    "slow": "12s: slow shenzhen-shanghai to 10 Mb/s for 5s",
    "lossy": "12s: lossy shenzhen-shanghai at 1% for 5s",
    "freeze": "12s: freeze shanghai 5s",
    "kill": "20s: kill shanghai",
}
_SHAPE = re.compile(r"\s*([^:]+?)\s*:\s*(\w+)\s+(.*?)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One scripted fault.

    Attributes:
        at_s: When, counted from the first training step.
        kind: What happens.
        regions: The link's two ends (down, slow, lossy) or the one region (freeze, kill).
        value: New rate in bytes/s (slow), new loss (lossy), else None.
        duration_s: How long; None for ever (kill).
        text: As the user wrote it.
    """

    at_s: float
    kind: FaultKind
    regions: tuple[str, ...]
    value: float | None
    duration_s: float | None
    text: str


def parse_fault(text: str, regions: tuple[str, ...]) -> Fault:
    """Read one `--fault`.

    Raises:
        InputError: The text does not have one of the forms, or names a region that the fabric has not.
    """
    match = _SHAPE.match(text)
    if match is None or match[2] not in _FORMS:
        kind = match[2] if match else text
        raise InputError("--fault", f"cannot read {text!r}; " + nearest(kind, _FORMS), "forms: " + "; ".join(_FORMS.values()))
    at_s, kind, rest = _time(match[1], text), match[2], match[3].split()
    match kind:
        case "down" | "freeze":
            target, value, duration = _words(rest, 2, text, kind)[0], None, rest[1]
        case "slow":
            words = _words(_split_rate(rest), 5, text, kind)
            target, value, duration = words[0], _number(words[2], BYTES_PER_SECOND, text), words[4]
        case "lossy":
            words = _words(rest, 5, text, kind)
            target, value, duration = words[0], _number(words[2], FRACTION, text), words[4]
        case "kill":
            target, value, duration = _words(rest, 1, text, kind)[0], None, None
        case _:
            raise AssertionError(kind)
    ends = _ends(target, kind, regions, text)
    return Fault(at_s=at_s, kind=kind, regions=ends, value=value,
                 duration_s=None if duration is None else _time(duration, text), text=text.strip())


def _split_rate(words: list[str]) -> list[str]:
    """`to 10 Mb/s for 5s` has its rate in two words or one; make it one."""
    if len(words) == 6:
        return [*words[:2], words[2] + words[3], *words[4:]]
    return words


def _words(words: list[str], count: int, text: str, kind: FaultKind) -> list[str]:
    if len(words) != count or (count == 5 and (words[1], words[3]) not in {("to", "for"), ("at", "for")}):
        raise InputError("--fault", f"cannot read {text!r}", f"write it as {_FORMS[kind]!r}")
    return words


def _ends(target: str, kind: FaultKind, regions: tuple[str, ...], text: str) -> tuple[str, ...]:
    if kind in ("freeze", "kill"):
        if target not in regions:
            raise InputError("--fault", f"{text!r} names the unknown region {target!r}", nearest(target, regions))
        return (target,)
    pairs = {f"{a}-{b}": (a, b) for a in regions for b in regions if a != b}
    if target not in pairs:
        raise InputError("--fault", f"{text!r} names the unknown link {target!r}", nearest(target, pairs))
    return pairs[target]


def _time(text: str, whole: str) -> float:
    value = _number(text, SECONDS, whole)
    if value < 0:
        raise InputError("--fault", f"{whole!r} has a negative time")
    return value


def _number(text: str, unit: object, whole: str) -> float:
    assert unit in (SECONDS, BYTES_PER_SECOND, FRACTION)
    try:
        return quantity(text, unit)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise InputError("--fault", f"{whole!r}: {error}") from None


def describe(fault: Fault) -> str:
    """One line for the log of a run."""
    where = "-".join(fault.regions)
    match fault.kind:
        case "down":
            return f"link {where} down for {fault.duration_s:g} s"
        case "slow":
            return f"link {where} slowed to {(fault.value or 0) * 8e-6:g} Mb/s for {fault.duration_s:g} s"
        case "lossy":
            return f"link {where} loses {(fault.value or 0):.2%} for {fault.duration_s:g} s"
        case "freeze":
            return f"every rank of {where} frozen for {fault.duration_s:g} s"
        case "kill":
            return f"every rank of {where} killed"
        case _:
            assert_never(fault.kind)
