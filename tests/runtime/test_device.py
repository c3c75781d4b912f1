"""Where a rank computes. What needs a GPU is skipped, by name, where there is none."""

from pathlib import Path

import pytest
import torch
from torch import nn

from isthmus.errors import InputError
from isthmus.plan import Strategy, save_plan
from isthmus.runtime import device
from isthmus.runtime.loopback import lone_plan

needs_gpus = pytest.mark.skipif(torch.cuda.device_count() < 1, reason="no CUDA GPU on this machine")


def test_without_gpus_ranks_compute_on_the_cpu_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.choose(3) == torch.device("cpu")
    assert device.backends() == "gloo"


def test_a_rank_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="LOCAL_RANK: is 2, but this node shows 2 GPUs"):
        device.choose(2)


def test_gpus_without_nccl_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(InputError, match="built without NCCL"):
        device.backends()


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ([torch.zeros(2, dtype=torch.bfloat16)], "parameter '0' is torch.bfloat16 on cpu"),
        ([torch.zeros(2, device="meta")], "parameter '0' is torch.float32 on meta"),
    ],
)
def test_parameters_that_cannot_be_trained_are_refused_by_name(parameters: list[torch.Tensor], found: str) -> None:
    named = [(str(number), nn.Parameter(value)) for number, value in enumerate(parameters)]
    with pytest.raises(InputError, match=found):
        device.require_runnable(named, "model")


@pytest.mark.tunnel
@needs_gpus
@pytest.mark.parametrize("kind", ["hierarchical", "local-steps"])
def test_two_regions_train_on_gpus(kind: str, tmp_path: Path) -> None:
    """One rank a region; with one GPU both use it (different processes, no NCCL between regions)."""
    from isthmus.run import HereRequest, run_here

    strategy = Strategy.model_validate({"name": kind, "kind": kind, "codec": "int8", "inner_steps": 4})
    save_plan(lone_plan(strategy), tmp_path / "plan.yaml")
    script = Path(__file__).parents[2] / "examples" / "train.py"
    request = HereRequest(
        plan=tmp_path / "plan.yaml", regions={"east": 1, "west": 1}, folder=tmp_path / "out", restarts=0,
        script=(str(script), "24"),
    )  # fmt: skip
    codes = run_here(request)
    assert codes == {"east": {0: 0}, "west": {0: 0}}, [path.read_text() for path in (tmp_path / "out").glob("*.log")]
