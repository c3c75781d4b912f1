"""The measurement schedule: blocks of steps with the inter-region communication on and off, alternating.

Utilisation is tokens/s of the on blocks over tokens/s of the off blocks beside them, in the same run, so that whatever
else the machine does weighs on both. Off blocks are undone afterwards and never change training.
"""

from dataclasses import dataclass
from typing import Literal

from isthmus.errors import InputError, nearest

__all__ = ["Block", "Mode", "Pace", "Schedule", "lay_out", "parse_schedule"]

Mode = Literal["warmup", "on", "off"]
EXAMPLE = "e.g. warmup=8,on=20,off=10,repeats=3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps of each kind of block as asked; `repeats` counts pairs of an on and an off block."""

    warmup: int = 0
    on: int
    off: int
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """`steps` consecutive steps in one mode; `index` numbers the blocks of a run from 0."""

    index: int
    mode: Mode
    steps: int


@dataclass(slots=True)
class Pace:
    """Where a run stands in its blocks; `blocks` None is plain training, always on and without end.

    Attributes:
        taken: Steps of all kinds so far.
        trained: Steps that count: those of warm-up and on blocks.
        position: Number of the current block.
        within: Steps taken in it.
    """

    blocks: tuple[Block, ...] | None
    taken: int = 0
    trained: int = 0
    position: int = 0
    within: int = 0

    @property
    def finished(self) -> bool:
        """Whether the last block has ended."""
        return self.blocks is not None and self.position >= len(self.blocks)

    @property
    def mode(self) -> Mode:
        """The mode of the step to come (after the end: of the last one)."""
        if self.blocks is None:
            return "on"
        return self.blocks[min(self.position, len(self.blocks) - 1)].mode

    @property
    def ending(self) -> bool:
        """Whether the step to come is the last of its block."""
        return self.blocks is not None and not self.finished and self.within + 1 == self.blocks[self.position].steps

    def advance(self) -> None:
        """Count one step."""
        ended = self.ending
        self.taken += 1
        self.trained += self.mode != "off"
        self.within += 1
        if ended:
            self.position, self.within = self.position + 1, 0


def parse_schedule(text: str, where: str = "ISTHMUS_BLOCKS") -> Schedule:
    """Read `warmup=8,on=20,off=10,repeats=3`; `on` is needed, the others default to 0, 0 and 1.

    Raises:
        InputError: A key is unknown, given twice or missing, or a value is no count.
    """
    known = ("warmup", "on", "off", "repeats")
    values: dict[str, int] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise InputError(where, f"{item.strip()!r} is not key=steps", EXAMPLE)
        if key not in known:
            raise InputError(where, f"unknown key {key!r}", nearest(key, known))
        if key in values:
            raise InputError(where, f"the key {key!r} is given twice", EXAMPLE)
        if not (value.isascii() and value.isdecimal()) or int(value) > 10**9:
            raise InputError(where, f"{key}: {value!r} is not a number of steps", EXAMPLE)
        values[key] = int(value)
    for key in ("on", "repeats"):
        if values.get(key, 1) == 0:
            raise InputError(where, f"{key} is 0: nothing would be measured", EXAMPLE)
    if "on" not in values:
        raise InputError(where, "the key 'on' is missing", EXAMPLE)
    return Schedule(
        warmup=values.get("warmup", 0),
        on=values["on"],
        off=values.get("off", 0),
        repeats=values.get("repeats", 1),
    )


def lay_out(schedule: Schedule, multiple: int = 1) -> tuple[Block, ...]:
    """The blocks in order: warm-up, then on, off, on, off ...; blocks of zero steps are left out.

    Warm-up and on blocks are rounded up to a `multiple` of steps (the inner steps of local-steps strategies), so that
    each holds whole rounds.
    """
    pattern: list[tuple[Mode, int]] = [("warmup", _round_up(schedule.warmup, multiple))]
    for _ in range(schedule.repeats):
        pattern.append(("on", _round_up(schedule.on, multiple)))
        pattern.append(("off", schedule.off))
    kept: list[tuple[Mode, int]] = [(mode, steps) for mode, steps in pattern if steps]
    return tuple(Block(index, mode, steps) for index, (mode, steps) in enumerate(kept))


def _round_up(steps: int, multiple: int) -> int:
    return -(-steps // multiple) * multiple
