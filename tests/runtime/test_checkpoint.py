"""Checkpoint folders: whole or not there, found by step and region, old ones removed."""

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from isthmus.errors import InputError
from isthmus.runtime.checkpoint import (
    CheckpointError,
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


def _parts(seed: int) -> Parts:
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 64)).sum().backward()
    optimizer.step()
    own: dict[str, Any] = {"residuals": {"17": torch.randn(5)}, "pending": [], "cursor": 3, "generators": generators()}
    return Parts({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, own)


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    written, place = _parts(1), step_folder(tmp_path, 7, "east")
    save(place, written, None)
    found = latest(tmp_path, "east")
    assert found == Found(7, place, own=True)
    read = _parts(2)
    own = load(place, read.shared, None)
    assert own is not None
    assert all(torch.equal(read.shared["model"][name], held) for name, held in written.shared["model"].items())
    moments, expected = read.shared["optimizer"]["state"][0], written.shared["optimizer"]["state"][0]
    assert all(torch.equal(moments[name], expected[name]) for name in ("exp_avg", "exp_avg_sq", "step"))
    assert torch.equal(own["residuals"]["17"], written.own["residuals"]["17"])
    assert (own["pending"], own["cursor"]) == ([], 3)


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a second value inside the generator
    save(step_folder(tmp_path, 1, "east"), _parts(1), None)
    kept = generators()

    def draw() -> list[float]:
        return [random.gauss(0, 1), random.random(), float(numpy.random.rand()), float(torch.rand(()))]

    expected = draw()
    set_generators(kept)
    assert draw() == expected


def test_the_newest_whole_checkpoint_is_taken_and_another_regions_only_without_an_own_one(tmp_path: Path) -> None:
    for step, region in ((1, "east"), (2, "east"), (3, "west")):
        save(step_folder(tmp_path, step, region), _parts(step), None)
    (step_folder(tmp_path, 4, "east.partial")).mkdir(parents=True)
    assert latest(tmp_path, "east") == Found(2, step_folder(tmp_path, 2, "east"), own=True)
    assert latest(tmp_path, "north") == Found(3, step_folder(tmp_path, 3, "west"), own=False)
    assert latest(tmp_path / "nothing", "east") is None


def test_a_checkpoint_that_another_region_removes_meanwhile_is_chosen_again(tmp_path: Path) -> None:
    places = {step: step_folder(tmp_path, step, "west") for step in (1, 2)}
    for place in places.values():
        place.mkdir(parents=True)
        (place / ".metadata").touch()

    def read(found: Found) -> int:
        if found.step == 2:  # as if its region had written three more, and lost those again
            shutil.rmtree(places[2].parent)
        return len((found.folder / ".metadata").read_bytes())

    assert read_whole(lambda: latest(tmp_path, "east"), read, None) == (Found(1, places[1], own=False), 0)
    with pytest.raises(FileNotFoundError):  # what stands and cannot be read is an error at once
        read_whole(lambda: latest(tmp_path, "east"), lambda found: (found.folder / "rank-0.pt").read_bytes(), None)
    shutil.rmtree(places[1])
    assert read_whole(lambda: latest(tmp_path, "east"), read, None) is None


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for step in range(1, 5):
        save(step_folder(tmp_path, step, "east"), _parts(step), None)
        forget(tmp_path, "east", 2)
    save(step_folder(tmp_path, 1, "west"), _parts(9), None)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*")) == [
        "step-00000001/west", "step-00000003/east", "step-00000004/east",
    ]  # fmt: skip


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    place = step_folder(tmp_path, 1, "east")
    save(place, _parts(1), None)
    with pytest.raises(InputError, match="cannot be loaded into this run"):
        load(place, {"model": torch.nn.Linear(3, 3).state_dict()}, None)
    shutil.rmtree(place)
    with pytest.raises(InputError, match="cannot be loaded into this run"):
        load(place, _parts(1).shared, None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB; needs the right to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small file system")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk_is_reported_and_leaves_the_checkpoint_before_it_whole(small_disk: Path) -> None:
    before = step_folder(small_disk, 1, "east")
    written = _parts(1)
    save(before, written, None)
    (small_disk / "filler").write_bytes(bytes(150_000))
    expected = r"was not written \(rank 0: OSError: \[Errno 28\] No space left on device\); earlier checkpoints stand"
    with pytest.raises(CheckpointError, match=expected):
        save(step_folder(small_disk, 2, "east"), _parts(2), None)
    assert latest(small_disk, "east") == Found(1, before, own=True)
    read = _parts(3)
    load(before, read.shared, None)
    assert torch.equal(read.shared["model"]["weight"], written.shared["model"]["weight"])
    assert not list(small_disk.glob("step-00000002/*"))
