"""Which faults, where and when: scenarios drawn from a seed. Pure; equal seeds give equal scenarios."""

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["KINDS", "Fault", "Kind", "Scenario", "draw"]

Kind = Literal[
    "kill-inside",  # SIGKILL of a region while a sync is on the wire, then a restart
    "kill-between",  # the same in the middle of a window
    "kill-rank",  # SIGKILL of one rank of a region of two; the other must end by itself
    "freeze",  # SIGSTOP of a region, SIGCONT later
    "cut",  # a region's links down, all of them
    "lossy",  # 5% of packets lost on a region's links
    "flip-wire",  # one byte of a sync flipped above TCP, by a proxy at the region's door
    "flip-memory",  # one bit of a rank's result flipped before it is voted on
    "slow",  # a region computes ten times slower
    "store",  # the coordinator, or one member of etcd, killed and started again
    "disk-full",  # no room for checkpoints
]
KINDS: tuple[Kind, ...] = (
    "kill-inside", "kill-between", "kill-rank", "freeze", "cut", "lossy", "flip-wire", "flip-memory", "slow", "store",
    "disk-full",
)  # fmt: skip
NAMES, WIDE = ("ash", "birch", "cedar", "elm"), "birch"  # that one has two ranks
FREEZE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; it begins two undisturbed rounds after the one before it has healed.

    Attributes:
        number: Counted over all scenarios.
        kind: What happens.
        region: To whom ("" for the store).
        rank: Which rank, where it is one rank's fault.
        duration_s: How long, or after how long what was killed starts again.
        value: A drawn number for whatever else must be chosen (which byte, which member).
    """

    number: int
    kind: Kind
    region: str
    rank: int
    duration_s: float
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run with its faults.

    Attributes:
        number: From 0.
        regions: Ranks of each.
        store: The built-in coordinator, or three members of etcd.
        tls: Rails and the coordinator are encrypted.
        faults: In order.
    """

    number: int
    regions: dict[str, int]
    store: Literal["coordinator", "etcd"]
    tls: bool
    faults: tuple[Fault, ...]


def draw(seed: int, count: int, *, per_run: int = 10, shrink: float = 1.0) -> tuple[Scenario, ...]:
    """`count` faults in scenarios of up to `per_run`, over 2, 3 and 4 regions in turn.

    Every kind comes before any comes again. `shrink` shortens freezes and other durations (for the sample in CI).
    """
    rng = random.Random(seed)
    kinds: list[Kind] = []
    while len(kinds) < count:
        kinds += rng.sample(KINDS, len(KINDS))
    scenarios: list[Scenario] = []
    for first in range(0, count, per_run):
        number = len(scenarios)
        names = NAMES[: 2 + number % 3]
        regions = {name: 2 if name == WIDE else 1 for name in names}
        own = kinds[first : min(first + per_run, count)]
        faults = tuple(_draw_fault(rng, first + index, kind, regions, shrink) for index, kind in enumerate(own))
        scenarios.append(
            Scenario(
                number=number, regions=regions, store="etcd" if number % 2 else "coordinator",
                tls=number % 4 >= 2, faults=faults,
            )
        )  # fmt: skip
    return tuple(scenarios)


def _draw_fault(rng: random.Random, number: int, kind: Kind, regions: dict[str, int], shrink: float) -> Fault:
    region = rng.choice(list(regions))
    if kind == "kill-rank":
        region = next(name for name, ranks in regions.items() if ranks == 2)
    seconds = {
        "kill-inside": rng.uniform(0.0, 4.0), "kill-between": rng.uniform(0.0, 4.0), "kill-rank": rng.uniform(0.0, 4.0),
        "freeze": FREEZE_S, "cut": rng.choice((1.0, 8.0)), "lossy": 6.0, "flip-wire": 0.0, "flip-memory": 0.0,
        "slow": 8.0, "store": rng.uniform(1.0, 6.0), "disk-full": 5.0,
    }[kind]  # fmt: skip
    return Fault(
        number=number, kind=kind, region="" if kind == "store" else region, rank=rng.randrange(regions[region]),
        duration_s=seconds * shrink, value=rng.getrandbits(31),
    )  # fmt: skip
