"""Local steps in checkpoints: a state that `torch.distributed.checkpoint` can hold and another layout can take.

    record     JSON: counts, the cut, which rounds are under way
    outer      parameter number -> applied outer parameters, flat                     equal on all ranks
    momentum   "first+elements", canonical -> this rank's shards of the momentum      each range on one rank of a region
    owed       likewise, what the codec left out
    sent, arrived   parameter number -> of the rounds under way (zeros elsewhere); only where rounds are delayed

Keys differ between ranks exactly where contents do, so one checkpoint of all ranks of a region holds everything. Save the
model, the inner optimizer and the position in the data beside it; a round under way is waited for, and kept as under way.
Into the same layout, resuming is bit-exact at any step. Into another:

    other ranks a region   momentum and what is owed are dealt out anew; the state must hold all ranks' parts
    other fragments        the schedule starts over; rounds under way are applied at the next step; then as above
    other inner steps      the schedule starts over
    unequal steps          (a grace) a state is taken between two rounds, the same two on all ranks of a region
    other regions          nothing changes for a region that goes on; a new one takes `for_new_region`
"""

import json
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from isthmus.errors import InputError
from isthmus.runtime.codecs.feedback import ErrorFeedback
from isthmus.runtime.local_steps.fragments import Fragment, cut
from isthmus.runtime.local_steps.outer import Arrival, RejoinedError

if TYPE_CHECKING:
    from isthmus.runtime.local_steps.sync import LocalSync

__all__ = ["await_rounds", "for_new_region", "load_state", "merge_states", "read_checkpoint", "state_of"]

Ranges = dict[str, torch.Tensor]


def state_of(sync: "LocalSync") -> dict[str, Any]:
    """The state of this rank; copies. To be called by all ranks of the region, after the same step."""
    return _state_of(sync) if sync.windows is None else sync.windows.between_rounds(lambda: _state_of(sync))


def _state_of(sync: "LocalSync") -> dict[str, Any]:
    """No round is under way, or its result is awaited."""
    arrivals = await_rounds(sync)
    loop, feedback = sync.loop, sync.loop.feedback
    pending = [{"fragment": one.fragment.number, "began": one.began, "due": one.due} for one in sync.pending]
    record = {
        "version": 2,
        "sizes": [parameter.numel() for parameter in sync.parameters],
        "fragments": len(sync.fragments),
        "inner_steps": sync.strategy.inner_steps,
        "steps": sync.steps,
        "position": sync.position,
        "since": sync.since,
        "tokens": sync.tokens,
        "fresh_tokens": sync.fresh_tokens,
        "rounds": loop.rounds,
        "averaged": loop.averaged,
        "following": loop.following,
        "step": loop.step,
        "counted_tokens": loop.counted_tokens,
        "pending": pending,
    }
    state: dict[str, Any] = {
        "record": json.dumps(record),
        "outer": _by_parameter(sync, dict(enumerate(sync.applied))),
        "momentum": {
            _key(first, count): loop.momentum[fragment.number][shard][offset : offset + count].clone()
            for fragment, shard, offset, first, count in _held(sync)
        },
        "owed": {
            _key(first, count): feedback.residual(first, count).clone() for _, _, _, first, count in _held(sync)
        }
        if feedback is not None
        else {},
    }
    if sync.strategy.delay_steps:
        state["sent"] = _by_parameter(sync, {one.fragment.number: one.sent for one in sync.pending})
        state["arrived"] = _by_parameter(sync, {number: arrival.outer for number, arrival in arrivals.items()})
    return state


def await_rounds(sync: "LocalSync") -> dict[int, Arrival]:
    """Results of the rounds under way, by fragment; none where the others' state was taken over meanwhile, which is then this
    rank's. To be called by all ranks of the region, after the same step.
    """
    found: dict[int, Arrival] = {}
    for one in tuple(sync.pending):
        try:
            arrival = sync.arrival_of(one)
        except RejoinedError:
            while sync.pending[0] is not one:  # these were committed: their tokens are not lost, and are told as ever
                before = sync.pending.popleft()
                if before.fragment.number not in found:
                    sync.fresh_tokens += before.fresh_tokens
                elif sync.on_arrival is not None:
                    sync.on_arrival(found[before.fragment.number])
            sync.catch_up()
            return {}
        if arrival is not None:
            found[one.fragment.number] = arrival
    return found


def load_state(sync: "LocalSync", state: Mapping[str, Any]) -> None:
    """Go on where `state_of` was taken; `sync.changes` says what is not as it was.

    Raises:
        InputError: The state is of another model or another version, or lacks the momentum of elements that this rank
            carries; or a round is under way, whose result would be lost here and awaited elsewhere.
    """
    if sync.pending:
        raise InputError(
            "state", "was to be loaded while an outer round is under way", "load it before training, or flush() first"
        )
    record = json.loads(state["record"])
    sizes = [parameter.numel() for parameter in sync.parameters]
    if record["version"] != 2 or record["sizes"] != sizes:
        raise InputError(
            "state",
            f"(version {record['version']}) is of {len(record['sizes'])} parameters with {sum(record['sizes'])} elements, "
            f"this model has {len(sizes)} with {sum(sizes)}",
            "load it into the model it was saved of",
        )
    changes = _load_ranges(sync, state)
    same_cut = record["fragments"] == len(sync.fragments)
    outer = _parameters(state["outer"])
    under_way = _restore_pending(sync, state, record, same_cut)
    committed = dict(enumerate(outer))
    for pending in under_way:
        found, arrived = [torch.empty(0)] * len(sizes), pending.arrival.result()
        for member, size in zip(pending.fragment.members, pending.fragment.sizes, strict=True):
            found[member] = torch.empty(size)
        pending.fragment.write(found, arrived.outer)
        committed.update({member: found[member] for member in pending.fragment.members})
    new = [committed[number] for number in range(len(sizes))]
    sync.loop.outer = [fragment.read(new) for fragment in sync.fragments]
    sync.applied = [fragment.read(outer) for fragment in sync.fragments] if same_cut else list(sync.loop.outer)
    sync.pending.extend(under_way)
    sync.steps, sync.fresh_tokens = record["steps"], record["fresh_tokens"]
    for name in ("rounds", "averaged", "step", "counted_tokens"):
        setattr(sync.loop, name, record[name])
    sync.loop.following = record["following"] if same_cut else 0
    changes += _load_schedule(sync, record, same_cut)
    sync.changes = tuple(changes)


def for_new_region(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a region's state with which another region may begin: outer state only.

    Nothing is owed, no round is under way and nothing was trained on since; its parameters must be the outer ones.
    """
    record = json.loads(state["record"])
    members = [
        member
        for one in record["pending"]
        for member in cut(record["sizes"], record["fragments"], 1)[one["fragment"]].members
    ]
    outer = {**state["outer"], **{str(member): state["arrived"][str(member)] for member in members}}
    none = [0] * record["fragments"]
    record.update(pending=[], since=none, tokens=none, fresh_tokens=0, counted_tokens=0)
    owed = {key: torch.zeros_like(held) for key, held in state["owed"].items()}
    return {**state, "record": json.dumps(record), "outer": outer, "owed": owed}


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of those of all ranks of a region, for another number of ranks to load."""
    listed = list(states)
    merged = dict(listed[0])
    for name in ("momentum", "owed"):
        merged[name] = {key: held for state in listed for key, held in state[name].items()}
    return merged


def read_checkpoint(folder: Path | str, name: str) -> dict[str, Any]:
    """The state saved under `name` in a `torch.distributed.checkpoint` folder, whatever layout saved it; for `load_state`."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    wanted: dict[str, Any] = {}
    for key, held in FileSystemReader(folder).read_metadata().state_dict_metadata.items():
        if key.startswith(f"{name}."):
            wanted[key] = torch.empty(held.size, dtype=held.properties.dtype) if isinstance(held, TensorStorageMetadata) else ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads, whether there are others or not
        load(wanted, checkpoint_id=folder, no_dist=True)
    state: dict[str, Any] = {"momentum": {}, "owed": {}}
    for key, value in wanted.items():
        group, _, item = key.removeprefix(f"{name}.").partition(".")
        if item:
            state.setdefault(group, {})[item] = value
        else:
            state[group] = value
    return state


def _held(sync: "LocalSync") -> Iterable[tuple[Fragment, int, int, int, int]]:
    """(fragment, shard, offset in the shard, first canonical element, elements) of all that this rank carries."""
    for fragment in sync.fragments:
        for shard in sync.link.held:
            for offset, first, count in fragment.pieces(shard * fragment.shard_elements, fragment.shard_elements):
                yield fragment, shard, offset, first, count


def _key(first: int, count: int) -> str:
    return f"{first}+{count}"


def _by_parameter(sync: "LocalSync", flats: Mapping[int, torch.Tensor]) -> Ranges:
    """Flats by fragment number as flat tensors by parameter number; zeros where there is none."""
    found = [torch.zeros(parameter.numel()) for parameter in sync.parameters]
    for number, flat in flats.items():
        sync.fragments[number].write(found, flat)
    return {str(number): held for number, held in enumerate(found)}


def _parameters(held: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [held[str(number)] for number in range(len(held))]


def _load_ranges(sync: "LocalSync", state: Mapping[str, Any]) -> list[str]:
    """Momentum and what is owed, of the elements that this rank carries."""
    momentum, given = _ranges(state["momentum"])
    missing = sum(count - _covered(given, first, count) for *_, first, count in _held(sync))
    if missing and sync.strategy.outer.momentum:
        raise InputError(
            "state",
            f"lacks the momentum of {missing} elements that this rank carries",
            "it was saved by another number of ranks: load merge_states of all of theirs, or read_checkpoint",
        )
    for fragment, shard, offset, first, count in _held(sync):
        sync.loop.momentum[fragment.number][shard][offset : offset + count] = momentum.residual(first, count)
    if sync.loop.feedback is None:
        return []
    owed, given = _ranges(state["owed"])
    lost = sum(count - _covered(given, first, count) for *_, first, count in _held(sync))
    sync.loop.feedback.load_state_dict({})
    for *_, first, count in _held(sync):
        sync.loop.feedback.residual(first, count).copy_(owed.residual(first, count))
    return [f"what the codec owed of {lost} elements is not in the state and is forgotten"] if lost else []


def _ranges(held: Mapping[str, torch.Tensor]) -> tuple[ErrorFeedback, list[tuple[int, int]]]:
    """Tensors by "first+elements", to be read in other ranges; and (first, elements) of each."""
    store, firsts = ErrorFeedback(), {key: int(key.partition("+")[0]) for key in held}
    store.load_state_dict({str(firsts[key]): tensor for key, tensor in held.items()})
    return store, [(firsts[key], tensor.numel()) for key, tensor in held.items()]


def _covered(given: Iterable[tuple[int, int]], first: int, count: int) -> int:
    return sum(max(0, min(start + size, first + count) - max(start, first)) for start, size in given)


def _restore_pending(sync: "LocalSync", state: Mapping[str, Any], record: dict[str, Any], same_cut: bool) -> list[Any]:
    from isthmus.runtime.local_steps.sync import Pending

    fragments = sync.fragments if same_cut else cut(record["sizes"], record["fragments"], sync.link.shards)
    found: list[Pending] = []
    for one in record["pending"]:
        fragment = fragments[one["fragment"]]
        arrival: Future[Arrival | None] = Future()
        arrival.set_result(Arrival(fragment.number, fragment.read(_parameters(state["arrived"])), 0.0, 0, 0))
        due = one["due"] if same_cut else record["steps"]
        found.append(Pending(fragment, fragment.read(_parameters(state["sent"])), one["began"], due, arrival))
    return found


def _load_schedule(sync: "LocalSync", record: dict[str, Any], same_cut: bool) -> list[str]:
    changes: list[str] = []
    sync.position = record["position"]
    if record["inner_steps"] != sync.strategy.inner_steps:
        changes.append(f"inner steps {record['inner_steps']} -> {sync.strategy.inner_steps}: the schedule starts over")
        sync.position = 0
    if same_cut:
        sync.since, sync.tokens = list(record["since"]), list(record["tokens"])
        return changes
    changes.append(
        f"fragments {record['fragments']} -> {len(sync.fragments)}: the schedule starts over, rounds under way are applied at "
        "the next step, and a new fragment counts the tokens of its parameter that waited longest"
    )
    sync.position = 0
    before = cut(record["sizes"], record["fragments"], 1)
    owner = {member: fragment.number for fragment in before for member in fragment.members}
    for name in ("since", "tokens"):
        values = [max(record[name][owner[member]] for member in fragment.members) for fragment in sync.fragments]
        setattr(sync, name, values)
    return changes
