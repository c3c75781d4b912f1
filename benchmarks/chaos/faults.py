"""Which faults, where and when: scenarios drawn from a seed. Pure; equal seeds give equal scenarios."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

__all__ = ["KINDS", "LAST_STEPS", "MODES", "Fault", "Kind", "Mode", "Scenario", "draw", "no_store", "side_of"]

T = TypeVar("T")
Kind = Literal[
    "kill-inside",  # SIGKILL of a region while a sync is on the wire, then a restart
    "kill-between",  # the same in the middle of a window
    "kill-rank",  # SIGKILL of one rank of a region of two; the other must end by itself
    "freeze",  # SIGSTOP of a region, SIGCONT later
    "cut",  # the links between some regions and the others down; as long as a partition where the plan says `continue`
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
Mode = Literal[
    "lockstep",  # local steps, applied at once; a round waits for every region
    "grace",  # local steps; a late region is not waited for
    "delayed",  # local steps in fragments, in the background
    "every-step",  # gradients of every step
]
MODES: tuple[Mode, ...] = ("lockstep", "grace", "delayed", "every-step")
Store = Literal["coordinator", "etcd"]
STORES: tuple[Store, ...] = ("coordinator", "etcd")
CODECS: tuple[Literal["none", "int8", "int4"], ...] = ("none", "int8", "int4")
NAMES, WIDE = ("ash", "birch", "cedar", "elm"), "birch"  # that one has two ranks
FREEZE_S, PARTITION_S = 20.0, 6.0
LAST_STEPS = 320  # from the last fault to the end


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
        seed: Of the data's order.
        regions: Ranks of each.
        mode: How they train.
        codec: Of what crosses between regions.
        partition: What two sides do that cannot reach each other, where neither is a majority.
        store: The built-in coordinator, or three members of etcd.
        tls: Rails and the coordinator are encrypted.
        faults: In order.
    """

    number: int
    seed: int
    regions: dict[str, int]
    mode: Mode
    codec: Literal["none", "int8", "int4"]
    partition: Literal["wait", "continue"]
    store: Store
    tls: bool
    faults: tuple[Fault, ...]


def draw(
    seed: int, count: int, *, per_run: int = 10, shrink: float = 1.0, freezes_max: int | None = None
) -> tuple[Scenario, ...]:
    """`count` faults in scenarios of up to `per_run`.

    Every kind comes before any comes again (but for a freeze after `freezes_max`), and so does everything else that is drawn.
    `shrink` shortens durations (for the sample in CI), but a freeze's.
    """
    rng = random.Random(seed)
    kinds: list[Kind] = []
    while len(kinds) < count:
        turn = rng.sample(KINDS, len(KINDS))
        frozen = freezes_max is not None and kinds.count("freeze") >= freezes_max
        kinds += [kind for kind in turn if not (frozen and kind == "freeze")]
    runs = -(-count // per_run)
    sizes, modes = _in_turns(rng, (2, 3, 4), runs), _in_turns(rng, MODES, runs)
    codecs, partitions = _in_turns(rng, CODECS, runs), _in_turns(rng, ("wait", "continue"), runs)
    stores = _in_turns(rng, tuple((store, tls) for store in STORES for tls in (False, True)), runs)
    scenarios: list[Scenario] = []
    for number in range(runs):
        regions = {name: 2 if name == WIDE else 1 for name in NAMES[: sizes[number]]}
        first, partition = number * per_run, partitions[number]
        own = kinds[first : min(first + per_run, count)]
        faults = tuple(_draw_fault(rng, first + index, kind, regions, shrink) for index, kind in enumerate(own))
        if partition == "continue":
            faults = tuple(_as_partition(fault) for fault in faults)
        scenarios.append(
            Scenario(
                number=number, seed=seed, regions=regions, mode=modes[number], codec=codecs[number], partition=partition,
                store=stores[number][0], tls=stores[number][1], faults=faults,
            )
        )  # fmt: skip
    return tuple(scenarios)


def no_store(fault: Fault) -> bool:
    """Whether a cut also parts its regions from the store."""
    return fault.kind == "cut" and fault.value % 2 == 1


def side_of(fault: Fault, regions: Sequence[str]) -> frozenset[str]:
    """The regions that a cut parts from the others: one, or two of four."""
    names = list(regions)
    if len(names) < 4 or fault.value % 4 < 2:
        return frozenset({fault.region})
    return frozenset({fault.region, names[(names.index(fault.region) + 1) % len(names)]})


def _in_turns(rng: random.Random, values: Sequence[T], count: int) -> list[T]:
    found: list[T] = []
    while len(found) < count:
        found += rng.sample(values, len(values))
    return found


def _draw_fault(rng: random.Random, number: int, kind: Kind, regions: dict[str, int], shrink: float) -> Fault:
    region = rng.choice(list(regions))
    if kind == "kill-rank":
        region = next(name for name, ranks in regions.items() if ranks == 2)
    seconds = {
        "kill-inside": rng.uniform(0.0, 4.0), "kill-between": rng.uniform(0.0, 4.0), "kill-rank": rng.uniform(0.0, 4.0),
        "freeze": FREEZE_S / shrink, "cut": rng.choice((1.0, 8.0)), "lossy": 6.0, "flip-wire": 0.0, "flip-memory": 0.0,
        "slow": 8.0, "store": rng.uniform(1.0, 6.0), "disk-full": 2.0,
    }[kind]  # fmt: skip
    return Fault(
        number=number, kind=kind, region="" if kind == "store" else region, rank=rng.randrange(regions[region]),
        duration_s=seconds * shrink, value=rng.getrandbits(31),
    )  # fmt: skip


def _as_partition(fault: Fault) -> Fault:
    """A cut that outlasts detection, so that both sides go on apart."""
    if fault.kind != "cut":
        return fault
    return Fault(
        number=fault.number, kind="cut", region=fault.region, rank=fault.rank, duration_s=max(fault.duration_s, PARTITION_S),
        value=fault.value,
    )  # fmt: skip
