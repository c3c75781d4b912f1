"""The plan: the document that the planner writes and the runtime, the wind tunnel and the reports read.

It names one strategy to run, what was predicted for it before anything ran, the runners-up, and every
assumption with its source. It round-trips through YAML: `load_plan(save_plan(plan)) == plan`.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, model_validator

from isthmus.documents import Document, load_document

__all__ = [
    "Assumption",
    "Basis",
    "BreakEven",
    "Candidate",
    "CodecName",
    "Layout",
    "LossBand",
    "Money",
    "MoneyRow",
    "OnPartition",
    "Outer",
    "PipelineSchedule",
    "Plan",
    "Prediction",
    "RegionGroup",
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
Basis = Literal["exact", "published", "measured", "judgement"]
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


class RegionGroup(Document):
    """The regions as one axis of torch.distributed's process groups, in place of rails: rank i of every region forms a group
    of its own, whose peers must reach each other and be of one kind. Every region has the same number of ranks, and a lost one
    ends the run.

    backend `nccl` is for GPUs, `gloo` for CPUs. The other fields are NCCL's, of this group alone, so that in-region groups keep
    theirs; None leaves NCCL's default. `net_name` is the network it takes (`IB`, `Socket` or a plug-in's own), `traffic_class`
    marks its packets on RoCE (as NCCL_IB_TC does), channels are the thread blocks it may take.
    """

    backend: Literal["nccl", "gloo"] = "nccl"
    net_name: Annotated[str, Field(min_length=1)] | None = None
    traffic_class: Annotated[int, Field(ge=0, le=255)] | None = None
    min_channels: Annotated[int, Field(ge=1, le=64)] | None = None
    max_channels: Annotated[int, Field(ge=1, le=64)] | None = None

    @model_validator(mode="after")
    def _options_fit(self) -> "RegionGroup":
        given = [name for name in type(self).model_fields if name != "backend" and getattr(self, name) is not None]
        if given and self.backend != "nccl":
            raise ValueError(f"{given[0]} is NCCL's, backend is {self.backend!r}")
        if self.min_channels and self.max_channels and self.min_channels > self.max_channels:
            raise ValueError(f"min_channels {self.min_channels} is above max_channels {self.max_channels}")
        return self


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

    `region_group` (hierarchical only, without a codec) exchanges through torch.distributed itself instead of rails.
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
    region_group: RegionGroup | None = None


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
    virtual_stages: Positive = 1
    tp_overlap: bool = False


class Prediction(Document):
    """What one step will take, per optimizer step; outer syncs are amortised over their inner steps.

    `step_s` is `compute_s`, what it does not hide of communication inside a region, the bubble where there is a
    pipeline, and `exposed_s`. `utilisation` is tokens/s
    with the WAN over tokens/s of the same ranks with inter-region communication off. `wan_bytes_per_step`
    leave the busiest region, headers included where the transport is known. `waiting_s` for the region that happens to be
    slowest and `checkpoint_s` are part of `step_s` too. Four of five real steps are expected from `step_low_s` to `step_high_s`
    (`planner.band`); None where no measured steps say.
    """

    step_s: Amount
    compute_s: Amount
    exposed_s: Amount
    utilisation: Annotated[float, Field(ge=0, le=1)]
    tokens_per_s: Amount
    wan_bytes_per_step: Amount
    memory_bytes_per_gpu: Amount
    formula: str
    waiting_s: Amount = 0.0
    checkpoint_s: Amount = 0.0
    step_low_s: Amount | None = None
    step_high_s: Amount | None = None


class LossBand(Document):
    """How far the final loss may end from that of the same run with every sum exact, as a share of it; below 0 is better.

    A band, never a promise. `basis` is the weakest of what it rests on: `exact` (the same sums), `published` results,
    `measured` by benchmarks/quality.py on a small model, `judgement`.
    """

    low: float = 0.0
    high: float = 0.0
    basis: Basis = "exact"
    source: str = "the same sums as in one region"


class Candidate(Document):
    """One strategy that was weighed: with a prediction, or with the constraint that refused it.

    `risk` says in words what the strategy may do to the loss, `loss` in figures.
    """

    strategy: Strategy
    layout: Layout
    prediction: Prediction | None = None
    refused: str | None = None
    risk: str = ""
    loss: LossBand = LossBand()


class Assumption(Document):
    """A number the prediction rests on, and where it comes from (a source key, a file, a measurement,
    `judgement`).
    """

    name: str
    value: float
    unit: str
    source: str


class BreakEven(Document):
    """Where the choice changes as one quantity of the fabric moves and all else stays: `below` and `above` are strategies.

    `quantity` is named like the document's key; `value` is in SI units (`unit` says which).
    """

    quantity: str
    value: Amount
    unit: str
    below: str
    above: str


class MoneyRow(Document):
    """One part of the bill: per month, with the sum in words."""

    name: str
    per_month: Amount
    how: str


class Money(Document):
    """What training costs at the user's own prices; `left_out` names what no price was given for.

    Attributes:
        currency: As the prices state it.
        as_of: Their date.
        per_month: All rows.
        per_trillion_tokens: At the predicted pace, without a stop.
        power_w: Average draw of all nodes at the meter, cooling included where a PUE is given; None where a node's is unknown.
        racks: Filled by the nodes at the stated power of a rack; None where none is stated.
    """

    currency: str
    as_of: str | None = None
    per_month: Amount
    per_trillion_tokens: Amount
    rows: list[MoneyRow] = Field(default_factory=list[MoneyRow])
    left_out: list[str] = Field(default_factory=list[str])
    power_w: Amount | None = None
    racks: int | None = None


class Plan(Document):
    """The chosen strategy and everything needed to check the choice.

    `binds` says which resource the step waits for, by how much the step changes with each. `fabric_parts` are fingerprints of
    the regions and links it was made for (`fabric.digest`), so that an edited fabric is known as edited; empty in older plans.
    """

    version: Literal[1] = 1
    fabric: str
    fabric_parts: dict[str, str] = Field(default_factory=dict[str, str])
    workload: str
    tokens_per_step: Positive
    strategy: Strategy
    layout: Layout
    survival: Survival = Survival()
    prediction: Prediction
    why: str
    rule_of_thumb: str
    risk: str = ""
    loss: LossBand = LossBand()
    binds: str = ""
    break_even: list[BreakEven] = Field(default_factory=list[BreakEven])
    money: Money | None = None
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
