"""Checkpoints of a run: one folder a step, in it one a region, written by torch.distributed.checkpoint.

    checkpoints/step-00000100/shenzhen/     .metadata, __0_0.distcp, __1_0.distcp ..., rank-0.pt, rank-1.pt ...
    checkpoints/step-00000100/shanghai/

A region writes beside its place and renames when all its ranks are done, so what stands under its name is whole; a write
that fails (a full disk) is reported by every rank of the region and leaves the checkpoints before it as they were.
What ranks share or hold in shards (model, optimizer) is torch.distributed.checkpoint's; what is a rank's own (residuals, rounds
under way, random generators, data position) is a file a rank, read with `weights_only`.

`.metadata` is a pickle of torch's: load your own checkpoints only.
"""

import contextlib
import random
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy
import torch
import torch.distributed as dist

from isthmus.errors import InputError

__all__ = [
    "CheckpointError",
    "Found",
    "Parts",
    "forget",
    "generators",
    "latest",
    "load",
    "read_whole",
    "save",
    "set_generators",
    "step_folder",
]

T = TypeVar("T")
_TRIES = 5
_STEP = re.compile(r"step-(\d{8,})$")
_PARTIAL = ".partial"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written whole; earlier ones stand."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint to go on from; `own` tells whether this region wrote it."""

    step: int
    folder: Path
    own: bool


@dataclass(frozen=True, slots=True)
class Parts:
    """What goes into a checkpoint.

    Attributes:
        shared: Model and optimizer as `torch.distributed.checkpoint.state_dict.get_state_dict` gives them.
        own: This rank's; tensors, and dicts, lists and plain values of them.
    """

    shared: dict[str, Any]
    own: dict[str, Any]


def save(place: Path, parts: Parts, group: dist.ProcessGroup | None) -> None:
    """Write a region's part of a step to `place`; called by all its ranks at the same step.

    Args:
        place: See `step_folder`; on a disk that the region's ranks share.
        parts: What to write.
        group: The region's ranks; None for one rank.

    Raises:
        CheckpointError: It could not be written, on this rank or another; nothing is left of it.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # not above: they cost every rank a second to import
    from torch.distributed.checkpoint.state_dict_saver import save as save_shared

    partial = place.with_name(place.name + _PARTIAL)
    failure = ""
    try:
        if _rank(group) == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
    except OSError as error:
        failure = str(error)
    _agree(group, failure, place)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # a rank that runs alone knows
            save_shared(parts.shared, checkpoint_id=partial, process_group=group, no_dist=group is None)
        torch.save(parts.own, partial / f"rank-{_rank(group)}.pt")
    except (Exception, CheckpointException) as error:  # the latter is a BaseException; it holds a full disk or a dead neighbour
        failure = _reason(error)
    try:
        _agree(group, failure, place)
        if _rank(group) == 0:
            shutil.rmtree(place, ignore_errors=True)
            partial.rename(place)
    except CheckpointError:
        if _rank(group) == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def load(place: Path, shared: dict[str, Any], group: dist.ProcessGroup | None) -> dict[str, Any] | None:
    """Fill `shared`, shaped as it was saved, from a region's folder; this rank's own part, None where it has none there.

    Raises:
        InputError: It is no whole checkpoint, or one of another model or optimizer.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_shared

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load_shared(shared, checkpoint_id=place, process_group=group, no_dist=group is None)
    except (Exception, CheckpointException) as error:  # a missing key or another size is the user's to repair: say which
        hint = "is it of the same model and optimizer?"
        raise InputError(str(place), f"cannot be loaded into this run: {_reason(error)}", hint) from None
    own = place / f"rank-{_rank(group)}.pt"
    return torch.load(own, weights_only=True) if own.exists() else None


def step_folder(folder: Path, step: int, region: str) -> Path:
    """Where `region`'s part of the checkpoint of `step` stands."""
    return folder / f"step-{step:08d}" / region


def latest(folder: Path, region: str) -> Found | None:
    """The newest step of which `region` has a whole part; else the newest of which any region has; None without any."""
    steps = sorted(
        ((int(match[1]), path) for path in folder.glob("step-*") if (match := _STEP.search(path.name))), reverse=True
    )
    for step, path in steps:
        if (path / region / ".metadata").exists():
            return Found(step, path / region, own=True)
    for step, path in steps:
        for other in sorted(path.glob("*")):  # of a step that its region has just removed: nothing
            if other.suffix != _PARTIAL and (other / ".metadata").exists():
                return Found(step, other, own=False)
    return None


def read_whole(
    choose: Callable[[], Found | None], work: Callable[[Found], T], group: dist.ProcessGroup | None
) -> tuple[Found, T] | None:
    """The checkpoint that rank 0 of the region chooses, and what `work` reads of it; None where there is none.

    Another region goes on removing its old checkpoints while this one reads: one that goes away meanwhile is no error, and
    the choice is made again. Called by all ranks of `group`.

    Raises:
        InputError: A checkpoint that stands cannot be read; or five in a row went away.
    """
    for _ in range(_TRIES):
        found = _chosen(choose, group)
        if found is None:
            return None
        failure: FileNotFoundError | InputError | None = None
        read: list[T] = []
        try:
            read.append(work(found))
        except (FileNotFoundError, InputError) as error:
            failure = error
        gone = not found.own and not (found.folder / ".metadata").exists()
        ranks = _of_all(group, (failure is not None, gone))
        if not any(failed for failed, _ in ranks):
            return found, read[0]
        if not any(away for _, away in ranks):
            raise failure or InputError(str(found.folder), "cannot be read by another rank of this region")
    raise InputError("checkpoints", "of other regions go away before they are read", "keep more: cluster.checkpoint(keep=10)")


def _chosen(choose: Callable[[], Found | None], group: dist.ProcessGroup | None) -> Found | None:
    box = [choose()]
    if group is not None and dist.get_world_size(group) > 1:
        dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def _of_all(group: dist.ProcessGroup | None, mine: tuple[bool, bool]) -> list[tuple[bool, bool]]:
    if group is None:
        return [mine]
    found = [mine] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    return found


def forget(folder: Path, region: str, keep: int) -> None:
    """Remove all but the newest `keep` whole checkpoints of `region`; called by one rank."""
    own = sorted(path for path in folder.glob(f"step-*/{region}") if _STEP.search(path.parent.name))
    for path in own[: max(0, len(own) - keep)]:
        shutil.rmtree(path, ignore_errors=True)
        # Other regions forget theirs at the same time: the step's folder goes with whoever is last, and may be gone.
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def generators() -> dict[str, Any]:
    """States of the random generators that data loading and models draw from, as tensors and plain values."""
    version, internal, gauss = random.getstate()
    mersenne: Any = numpy.random.get_state(legacy=False)
    keys = torch.from_numpy(mersenne["state"]["key"].astype(numpy.int64))
    rest = [int(mersenne["state"]["pos"]), int(mersenne["has_gauss"]), float(mersenne["gauss"])]
    device = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {}
    return {
        "torch": torch.get_rng_state(),
        **device,
        "numpy": {"keys": keys, "rest": rest},
        "python": {"version": version, "internal": list(internal), "gauss": gauss},
    }


def set_generators(state: Mapping[str, Any]) -> None:
    """Put back what `generators` gave."""
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    keys, (position, has_gauss, cached) = state["numpy"]["keys"].numpy().astype(numpy.uint32), state["numpy"]["rest"]
    numpy.random.set_state(("MT19937", keys, position, has_gauss, cached))
    python = state["python"]
    random.setstate((python["version"], tuple(python["internal"]), python["gauss"]))


def _reason(error: BaseException) -> str:
    """What went wrong, without the stack that torch puts in front of it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _rank(group: dist.ProcessGroup | None) -> int:
    return 0 if group is None else dist.get_rank(group)


def _agree(group: dist.ProcessGroup | None, failure: str, place: Path) -> None:
    """All ranks of the region go on, or all raise."""
    failures = [failure]
    if group is not None:
        failures = [""] * dist.get_world_size(group)
        dist.all_gather_object(failures, failure, group=group)
    named = [f"rank {rank}: {text}" for rank, text in enumerate(failures) if text]
    if named:
        raise CheckpointError(f"{place} was not written ({'; '.join(named)}); earlier checkpoints stand")
