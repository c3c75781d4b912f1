"""examples/train.py, unchanged, under every kind of plan; real ranks over loopback."""

import json
from pathlib import Path

import pytest

from isthmus.plan import Layout, Outer, Strategy, save_plan
from isthmus.run import HereRequest, run_here
from isthmus.runtime.loopback import lone_plan

pytestmark = pytest.mark.tunnel
SCRIPT = Path(__file__).parents[2] / "examples" / "train.py"
LOCAL = Strategy(name="local", kind="local-steps", inner_steps=6, fragments=2, delay_steps=2, codec="int8", outer=Outer(lr=0.9))
PLANS = {
    "ddp": (Strategy(name="ddp", kind="hierarchical", codec="int8"), Layout(dp=4)),
    "fsdp2": (Strategy(name="fsdp2", kind="hierarchical"), Layout(dp=4, zero=3)),
    "local": (LOCAL, Layout(dp=4)),
    "local fsdp2": (LOCAL.model_copy(update={"fragments": 1, "codec": "none"}), Layout(dp=4, zero=2)),
    "pipeline": (Strategy(name="pipeline", kind="pipeline", micro_batches=2), Layout(dp=2, pp=2)),
}


@pytest.mark.parametrize("way", PLANS)
def test_the_same_script_trains_under_every_plan(way: str, tmp_path: Path) -> None:
    strategy, layout = PLANS[way]
    save_plan(lone_plan(strategy).model_copy(update={"layout": layout}), tmp_path / "plan.yaml")
    folder = tmp_path / "out"
    request = HereRequest(
        plan=tmp_path / "plan.yaml", regions={"east": 2, "west": 2}, folder=folder, restarts=0,
        script=(str(SCRIPT), "24"), trace=True,
    )  # fmt: skip
    codes = run_here(request)
    output = {path.stem: path.read_text() for path in folder.glob("*.log")}
    assert codes == {"east": {0: 0, 1: 0}, "west": {0: 0, 1: 0}}, output
    rows = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in (folder / "metrics").glob("*.jsonl")
    }
    losses = [row["loss"] for row in rows["west-0"] if row["kind"] == "step"]
    assert len(losses) == 24
    assert losses[-1] < losses[0] - 0.3
    hashes = {name: found[-1]["hash"] for name, found in rows.items()}
    if way == "pipeline":  # a stage a region
        assert hashes["east-0"] == hashes["east-1"] != hashes["west-0"] == hashes["west-1"]
    else:
        assert len(set(hashes.values())) == 1
    spans = [row for row in rows["east-0"] if row["kind"] == "span"]
    assert sum(span["track"] == "steps" for span in spans) == 24
    if way in ("ddp", "fsdp2"):  # what crosses overlaps the backward pass: it begins before that ends
        backward = [span for span in spans if span["name"] == "backward"]
        crossing = [span for span in spans if span["track"] == "between regions"]
        assert any(
            one["begin"] < crossed["begin"] < one["begin"] + one["seconds"] for one in backward for crossed in crossing
        )
