"""The plan: the document that the planner writes and the runtime, the wind tunnel and the reports read.

It names one strategy to run, what was predicted for it before anything ran, the runners-up, and every
assumption with its source. It round-trips through YAML: `load_plan(save_plan(plan)) == plan`.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from isthmus.documents import Document, load_document

__all__ = [
    "Assumption",
    "Candidate",
    "CodecName",
    "Layout",
    "OnPartition",
    "Outer",
    "PipelineSchedule",
    "Plan",
    "Prediction",
    "Strategy",
    "StrategyKind",
    "Survival",
    "Weight",
    "load_plan",
    "save_plan",
]

CodecName = Literal[
    "none", "bf16", "int8", "int7", "int6", "int5", "int4", "int3", "int2",
    "sign", "sign-majority", "topk", "topk-int4", "powersgd",
]  # fmt: skip
Weight = Literal["equal", "tokens"]
OnPartition = Literal["wait", "continue"]
PipelineSchedule = Literal["1f1b", "interleaved"]
StrategyKind = Literal["flat", "hierarchical", "local-steps", "sharded", "pipeline"]
Positive = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0)]


class Outer(Document):
    """The outer optimizer of local steps: SGD on the mean parameter delta, with Nesterov momentum when
    asked.
    """

    lr: Annotated[float, Field(gt=0)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nesterov: bool = False


class Survival(Document):
    """What regions do when one of them is lost, slow or cut off.

    Attributes:
        detect_s: Silence (nothing, not even a heartbeat) after which a region counts as lost.
        start_regions: Regions that must have come before training starts; None waits for all members.
        start_s: How long to wait for them.
        on_partition: Of regions that run but cannot reach each other: `wait` stalls syncs until they can; `continue` lets
            each side train on, and after the heal the side with more committed tokens stays, the other joins it anew.
        grace_s: How long a round waits for a region that runs but is late, before the others go on without it; None
            waits for as long as it lives.
    """

    detect_s: Annotated[float, Field(gt=0)] = 5.0
    start_regions: Positive | None = None
    start_s: Annotated[float, Field(gt=0)] = 600.0
    on_partition: OnPartition = "wait"
    grace_s: Annotated[float, Field(gt=0)] | None = None


class Strategy(Document):
    """How the regions are joined.

    kind `flat`: one all-reduce ring over every rank, blind to regions (the baseline). `hierarchical`: every
    step, reduce-scatter in the region, exchange of each rail's shard over the WAN, all-gather in the region.
    `local-steps`: regions train alone for `inner_steps`, then exchange parameter deltas. `sharded`:
    parameters and optimizer sharded over all regions (ZeRO-3). `pipeline`: layers split by region.

    `wan_rate_bytes_per_s` is what a region's link to another carries, one way, in IP bytes, where it is known: the ranks
    of a region then pace their streams to equal shares of it, instead of having every start probe for the rate.

    Local steps: the parameters are cut into `fragments` (strided over the layers) that are exchanged in turn, each every
    `inner_steps` steps, and applied `delay_steps` later; `mixing` is the share of the agreed value when it is merged
    with what the region learned meanwhile (1: all of it); the first `warmup_steps` steps exchange gradients in every step;
    `weight` says how regions count in the mean. Pipeline: `micro_batches` a step, `schedule`, `virtual_stages` a region
    where it is interleaved, and the codec is that of the activations. `codec_density` is the share of elements that
    sparse codecs keep, `codec_rank` the rank of low-rank ones.
    """

    name: str
    kind: StrategyKind
    codec: CodecName = "none"
    error_feedback: bool = True
    inner_steps: Positive = 1
    outer: Outer = Outer()
    delay_steps: Annotated[int, Field(ge=0)] = 0
    bucket_bytes: Positive = 25 * 2**20
    fragments: Positive = 1
    mixing: Annotated[float, Field(gt=0, le=1)] = 1.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight: Weight = "equal"
    codec_density: Annotated[float, Field(gt=0, le=1)] = 0.01
    codec_rank: Positive = 4
    micro_batches: Positive = 4
    schedule: PipelineSchedule = "1f1b"
    virtual_stages: Positive = 1
    streams: Positive = 4
    wan_rate_bytes_per_s: Annotated[float, Field(gt=0)] | None = None


class Layout(Document):
    """Degrees of each parallel axis; their product (ep excluded) is the number of GPUs."""

    dp: Positive = 1
    tp: Positive = 1
    pp: Positive = 1
    cp: Positive = 1
    ep: Positive = 1
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    micro_batch: Positive = 1
    recompute: bool = False


class Prediction(Document):
    """What one step will take, per optimizer step; outer syncs are amortised over their inner steps.

    `step_s` is `compute_s`, what it does not hide of communication inside a region, the bubble where there is a
    pipeline, and `exposed_s`. `utilisation` is tokens/s
    with the WAN over tokens/s of the same ranks with inter-region communication off. `wan_bytes_per_step`
    leave the busiest region, headers included where the transport is known.
    """

    step_s: Amount
    compute_s: Amount
    exposed_s: Amount
    utilisation: Annotated[float, Field(ge=0, le=1)]
    tokens_per_s: Amount
    wan_bytes_per_step: Amount
    memory_bytes_per_gpu: Amount
    formula: str


class Candidate(Document):
    """One strategy that was weighed: with a prediction, or with the constraint that refused it.

    `risk` says in words what the strategy may do to the loss.
    """

    strategy: Strategy
    layout: Layout
    prediction: Prediction | None = None
    refused: str | None = None
    risk: str = ""


class Assumption(Document):
    """A number the prediction rests on, and where it comes from (a source key, a file, a measurement,
    `judgement`).
    """

    name: str
    value: float
    unit: str
    source: str


class Plan(Document):
    """The chosen strategy and everything needed to check the choice."""

    version: Literal[1] = 1
    fabric: str
    workload: str
    tokens_per_step: Positive
    strategy: Strategy
    layout: Layout
    survival: Survival = Survival()
    prediction: Prediction
    why: str
    rule_of_thumb: str
    risk: str = ""
    alternatives: list[Candidate] = Field(default_factory=list[Candidate])
    assumptions: list[Assumption] = Field(default_factory=list[Assumption])


def load_plan(path: Path | str) -> Plan:
    """Read a plan; `InputError` where it is not one."""
    return load_document(path, Plan)[0]


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write `plan` as YAML; the old file stays whole until the new one is complete."""
    text = yaml.safe_dump(  # pyright: ignore[reportUnknownMemberType]
        plan.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110
    )
    partial = Path(f"{path}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
