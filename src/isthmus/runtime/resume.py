"""A run's state into a checkpoint and back: model, optimizer, schedules, what codecs owe, rounds under way, place in the data.

Into the same regions and ranks, going on is bit for bit as if nothing had happened. A region without a checkpoint of its own
takes another one's: its outer parameters under local steps (nothing is owed, no round is under way), its whole state otherwise.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from isthmus.errors import InputError
from isthmus.runtime.checkpoint import (
    Found,
    Parts,
    forget,
    generators,
    latest,
    load,
    read_whole,
    save,
    set_generators,
    step_folder,
)
from isthmus.runtime.local_steps.state import for_new_region, merge_states
from isthmus.runtime.snapshot import Stateful

if TYPE_CHECKING:
    from isthmus.runtime.session import Session

__all__ = ["RunState"]


@dataclass(slots=True)
class RunState:
    """All that a run has to remember, on one rank.

    Attributes:
        session: Its counts, its local steps, its exchange of gradients.
        model: As the optimizer knows it (wrapped, or in shards).
        optimizer: The inner one.
        also: Schedulers and the like; plain values and tensors.
        group: The region's ranks, for the training thread; None for one rank.
    """

    session: "Session"
    model: nn.Module
    optimizer: torch.optim.Optimizer
    also: Sequence[Stateful]
    group: dist.ProcessGroup | None

    def save(self, folder: Path, keep: int) -> None:
        """Write the step that has just ended.

        Raises:
            CheckpointError: It could not be written whole; training may go on, and earlier ones stand.
        """
        from torch.distributed.checkpoint.state_dict import get_state_dict

        environment = self.session.federation.environment
        self.session.await_rounds()
        place = step_folder(folder, self.session.pace.trained, environment.region)
        with self.session.paused():  # reading an optimizer that has not stepped makes it take an empty step
            model, optimizer = get_state_dict(self.model, self.optimizer)
        save(place, Parts({"model": model, "optimizer": optimizer}, self._own()), self.group)
        if environment.rank == 0:
            forget(folder, environment.region, keep)

    def resume(self, folder: Path) -> int:
        """Go on from the newest checkpoint; the step it was taken at, 0 where there is none.

        Without rounds all regions go on from one step, the newest that all of them have; with rounds, regions that come with
        another state than the first take over its.

        Raises:
            InputError: A checkpoint is of another model, or the regions have none in common.
        """
        read = read_whole(lambda: self._choose(folder), self._read, self.group)
        if read is None:
            return 0
        found, (own, locals_) = read
        self._take(own, found, locals_)
        return found.step

    def _choose(self, folder: Path) -> Found | None:
        session = self.session
        region = session.federation.environment.region
        found = latest(folder, region)
        if session.federation.rounds is None:
            steps = session.federation.submit(lambda: session.federation.numbers(found.step if found else 0)).result()
            if found is not None and min(steps) < found.step:
                place = step_folder(folder, min(steps), region)
                found = Found(min(steps), place, own=True) if (place / ".metadata").exists() else None
            if min(steps) and found is None:
                raise InputError(
                    str(folder),
                    f"region {region!r} has no checkpoint of step {min(steps)}, the newest that another region has",
                    "remove the newer checkpoints of the other regions, or keep more of them",
                )
        return found

    def _read(self, found: Found) -> tuple[dict[str, Any], list[Any] | None]:
        """Model and optimizer into their places; this rank's own part, else another's; all ranks' local steps if ranks differ."""
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        with self.session.paused():
            model, optimizer = get_state_dict(self.model, self.optimizer)
            shared: dict[str, Any] = {"model": model, "optimizer": optimizer}
            own = load(found.folder, shared, self.group)
            set_state_dict(self.model, self.optimizer, model_state_dict=shared["model"], optim_state_dict=shared["optimizer"])
        self.optimizer.zero_grad(set_to_none=True)
        ranks = sorted(found.folder.glob("rank-*.pt"))
        same = found.own and own is not None and own["ranks"] == self.session.federation.environment.world_size
        if own is None:
            own = torch.load(ranks[0], weights_only=True)
        return own, None if same else [torch.load(path, weights_only=True)["local"] for path in ranks]

    def _own(self) -> dict[str, Any]:
        session = self.session
        reducer = session.hook.reducer if session.hook is not None else None
        return {
            "ranks": session.federation.environment.world_size,
            "place": {**session.place(), "trained_tokens": session.trained_tokens},
            "local": session.local.state_dict() if session.local is not None else None,
            "reducer": reducer.state_dict() if reducer is not None else None,
            "parts": list(session.balance.parts) if session.balance is not None else None,
            "also": [item.state_dict() for item in self.also],
            "generators": generators(),
        }

    def _take(self, own: dict[str, Any], found: Found, locals_: list[Any] | None) -> None:
        session, same = self.session, locals_ is None
        for item, state in zip(self.also, own["also"], strict=True):
            item.load_state_dict(state)
        session.go_to(own["place"])
        session.trained_tokens = own["place"]["trained_tokens"]
        session.kept_parts = tuple(own["parts"]) if same and own.get("parts") else None
        changes: list[str] = []
        if session.local is not None and own["local"] is not None:
            state = own["local"] if locals_ is None else merge_states(locals_)
            session.local.load_state_dict(state if found.own else for_new_region(state))
            if not found.own:
                session.local.take_outer()
            changes += session.local.changes
        reducer = session.hook.reducer if session.hook is not None else None
        if reducer is not None and own["reducer"] is not None:
            state = {"feedback": {}, "directions": {}} | own["reducer"]
            state |= {} if same else {"feedback": {}}
            state |= {} if self._everywhere(same) else {"directions": {}}
            reducer.load_state_dict(state)
            if own["reducer"]["feedback"] and not same:
                changes.append("what the codec owed is forgotten: other ranks encode other elements")
        if same:
            set_generators(own["generators"])
        else:
            changes.append("random generators begin anew")
        environment = session.federation.environment
        if environment.rank == 0:
            whose = "" if found.own else f" of region {found.folder.name}"
            notes = f" ({'; '.join(changes)})" if changes else ""
            print(f"isthmus {environment.region}: going on from step {found.step}{whose}{notes}", file=sys.stderr, flush=True)

    def _everywhere(self, same: bool) -> bool:
        """Whether every region goes on as it was; with rounds a region that does not will take over the others' state."""
        federation = self.session.federation
        if federation.rounds is not None:
            return same
        return all(federation.submit(lambda: federation.numbers(int(same))).result())
