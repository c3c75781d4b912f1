"""The step of many layouts at once: seconds by what takes them, memory, and what forbids a layout.

Used for one plan (a column of one) and for a million: there is no second formula.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.cost.machine import Machine
from isthmus.cost.step_blocks import BlockTimes, block_times, head_s
from isthmus.cost.step_wires import Ranks, group_of, send_seconds, wire_s
from isthmus.workload import LayoutMemory, Layouts, ModelShape, Workload, layout_memory
from isthmus.workload.layout_memory import Floats, blocks_of, expert_blocks_of, stage_parameters, weight_bytes_per_parameter

__all__ = ["OVERLAP_KEEPS", "REASONS", "StepTimes", "step_times"]

REASONS = (
    "",
    "memory",
    "stages: the blocks of a stage are not a multiple of its virtual stages",
    "node: the axes laid inside a node do not fill it evenly",
)
"""What the codes in `StepTimes.refused` mean; 0 is a layout that runs."""

OPTIMIZER_BYTES = 4 + 3 * 8 + 2
"""Bytes Adam moves a parameter: the gradient read, master and two moments read and written in fp32, the weight written."""

BACKWARD_SHARES = (2 / 3, 2 / 3, 3 / 4)
"""Of a micro-batch's pass, by recomputation: twice the forward operations, and with full recomputation the forward ones too."""

OVERLAP_KEEPS = {"ring": 0.3, "pipe": 0.5}
"""Share of tp's collectives still seen when they are cut and run beside the products: torchtitan's async TP gains 9 % on
Llama 3 70B where tp takes about 13 % (benchmarks/asyncTP_llama3_h100_2025-06); the coarser pipe is a judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of one step of each layout; every array is (n,), and the parts add up to `total`.

    Attributes:
        compute: Kernels of the slowest stage, without recomputation.
        recompute: What is computed again.
        host: What the GPU waits for its host.
        tp, cp, ep: Collectives of these axes that nothing hides.
        shards: ZeRO-3's gathers and scatters beyond the compute they run beside, and ZeRO-2's scatters.
        sends: Pipeline sends that are seen.
        bubble: Filling and draining the pipeline.
        gradients: Data-parallel sums and gathers beyond the backward pass that hides them.
        optimizer: The update.
        slot: One micro-batch on the slowest stage, forward and backward, all its collectives with it.
        memory: Bytes on the fullest GPU.
        refused: Index into `REASONS`.
    """

    compute: Floats
    recompute: Floats
    host: Floats
    tp: Floats
    cp: Floats
    ep: Floats
    shards: Floats
    sends: Floats
    bubble: Floats
    gradients: Floats
    optimizer: Floats
    slot: Floats
    memory: LayoutMemory
    refused: NDArray[np.int64]

    @property
    def total(self) -> Floats:
        """The whole step."""
        parts = (each.name for each in fields(self))
        return np.sum([getattr(self, name) for name in parts if name not in ("slot", "memory", "refused")], axis=0)

    def part(self, row: int) -> dict[str, float]:
        """Seconds of one layout by name."""
        names = (each.name for each in fields(self) if each.name not in ("slot", "memory", "refused"))
        return {name: float(getattr(self, name)[row]) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """Seconds of one micro-batch through the fullest stage."""

    compute: Floats
    again: Floats
    host: Floats
    tp: Floats
    cp: Floats
    ep: Floats
    shards: Floats
    backward: Floats  # of it, after the forward pass: what hides gradients
    head: Floats
    slot: Floats


def step_times(workload: Workload, layouts: Layouts, machine: Machine) -> StepTimes:
    """Seconds, memory and refusals of `layouts`; `Layouts.rounds` says how many micro-batches a replica has.

        T = m slot + bubble + gradients seen + optimizer,   bubble = (p - 1) slot / v + sends of one fill and drain

    m micro-batches, p stages, v virtual stages (arXiv 2104.04473, section 2.2); where m is no multiple of p the
    interleaved schedule idles (v - 1)/v (p - m mod p) slots more. The slot is the slowest stage's, the bubble that of
    a stage without the output projection.
    """
    rounds, pp, chunks = layouts.rounds, layouts.pp, layouts.virtual_stages
    one = _micro_batch(workload, layouts, machine)
    memory = layout_memory(workload, layouts, machine.stack.attention)
    send = send_seconds(machine, group_of(layouts, "pp", machine.node_gpus), _boundary_bytes(workload, layouts))
    gather = np.where(layouts.tp_way == 1, 2.0, 0.0) * wire_s(
        machine, group_of(layouts, "tp", machine.node_gpus), "all-gather", _hidden_bytes(workload, layouts)
    )
    crossing = np.where(pp > 1, 2 * send + gather, 0.0)  # there and back, once a chunk
    # With overlap the sends of a steady pipeline are hidden up to the slot; what fills and drains is not.
    exposed = np.maximum(0.0, crossing - one.slot / chunks) if machine.stack.sends_overlap else crossing
    sends = np.asarray(rounds * chunks * exposed, dtype=np.float64)
    short = np.where(chunks > 1, (-rounds % pp) * (chunks - 1) / chunks, 0.0)
    bubble = ((pp - 1) / chunks + short) * (one.slot - one.head) + (pp - 1) * crossing
    gradients = _gradients(workload, layouts, machine, one)
    return StepTimes(
        compute=rounds * one.compute,
        recompute=rounds * one.again,
        host=rounds * one.host,
        tp=rounds * one.tp,
        cp=rounds * one.cp,
        ep=rounds * one.ep,
        shards=rounds * one.shards,
        sends=sends,
        bubble=bubble,
        gradients=gradients,
        optimizer=_optimizer(workload, layouts, machine),
        slot=one.slot,
        memory=memory,
        refused=_refused(workload.shape, layouts, machine, memory),
    )


def _micro_batch(workload: Workload, layouts: Layouts, machine: Machine) -> _Pass:
    shape = workload.shape
    blocks = blocks_of(shape, layouts)
    experts = expert_blocks_of(shape, layouts, last=True)
    dense = block_times(workload, layouts, machine, expert=False)
    routed = block_times(workload, layouts, machine, expert=True) if shape.experts else dense
    forward, backward, attention, repeated = (
        (blocks - experts) * getattr(dense, name) + experts * getattr(routed, name)
        for name in (each.name for each in fields(BlockTimes))
    )
    again = np.choose(layouts.recompute, (np.zeros(len(layouts)), attention, repeated))
    tp = _tensor(workload, layouts, machine, blocks)
    cp, ep = _context(workload, layouts, machine, blocks, forward), _expert(workload, layouts, machine, experts)
    backward = backward + _accumulation(workload, layouts, machine)
    projection = head_s(workload, layouts, machine)
    extra = _last_stage_extra(shape, layouts, projection, forward + backward + again + tp)
    head = np.where(layouts.pp == 1, projection, extra)
    repeats = np.where(layouts.recompute == 2, 1.5, 1.0)
    floor = machine.stack.host_s * blocks * repeats
    busy = forward + backward + again + tp + cp + ep
    # Launches run ahead of the GPU and hide behind it, the better the longer its kernels take, unless they block.
    host = np.asarray(floor if machine.stack.launches_block else np.hypot(busy, floor) - busy, dtype=np.float64)
    shards = _shards(workload, layouts, machine, busy + host)
    return _Pass(
        compute=forward + backward + head,
        again=again,
        host=host,
        tp=tp,
        cp=cp,
        ep=ep,
        shards=shards,
        backward=(busy + host) * np.choose(layouts.recompute, BACKWARD_SHARES),
        head=head,
        slot=busy + host + shards + head,
    )


def _last_stage_extra(shape: ModelShape, layouts: Layouts, projection: Floats, stage: Floats) -> Floats:
    """What the last stage takes longer than a full one: its output projection, less the blocks it lacks."""
    blocks = blocks_of(shape, layouts)
    lacking = np.clip(blocks * layouts.pp - shape.layers, 0, blocks - 1)
    return np.maximum(0.0, projection - lacking / blocks * stage)


def _accumulation(workload: Workload, layouts: Layouts, machine: Machine) -> Floats:
    """Seconds of adding a micro-batch's weight gradients to the sum: it is read and written, the new ones read too where
    the product does not add by itself. ZeRO 2 and 3 keep no sum of their own to add to.
    """
    held = np.sum(stage_parameters(workload.shape, layouts, last=False), axis=0)
    moved = 2 * workload.gradient_bytes + (0 if machine.stack.products_add else weight_bytes_per_parameter(workload.precision))
    return np.where(layouts.zero < 2, held * moved, 0.0) / (machine.memory_rate_bytes_per_s * machine.rates.memory)


def _tensor(workload: Workload, layouts: Layouts, machine: Machine, blocks: NDArray[Any]) -> Floats:
    """Seconds of tp's collectives of one micro-batch on a stage that are seen.

    Two joins a block and direction, each an all-reduce of s b h or a reduce-scatter and a gather of it; full
    recomputation joins the forward ones again. Gathering both halves' inputs again runs beside the weight gradients
    (arXiv 2205.05198, section 4.2.2) and costs its contention.
    """
    group = group_of(layouts, "tp", machine.node_gpus)
    size = _hidden_bytes(workload, layouts)
    reduce = wire_s(machine, group, "all-reduce", size)
    gather = wire_s(machine, group, "all-gather", size)
    pair = wire_s(machine, group, "reduce-scatter", size) + gather
    join = np.where(layouts.tp_way == 2, pair, reduce)
    beside = np.where((layouts.tp_way == 2) & layouts.tp_regather, 2 * machine.rates.contention * gather, 0.0) * blocks
    keep = np.choose(layouts.tp_overlap, (1.0, OVERLAP_KEEPS["ring"], OVERLAP_KEEPS["pipe"]))
    join = join * keep
    return np.where(layouts.recompute == 2, 6, 4) * blocks * join + beside


def _context(workload: Workload, layouts: Layouts, machine: Machine, blocks: NDArray[Any], forward: Floats) -> Floats:
    """Ring attention: keys and values pass cp - 1 ranks beside the scores; seen is what exceeds a third of the pass."""
    shape = workload.shape
    width = shape.heads * (shape.key_dim + shape.head_dim) if shape.attention == "mla" else 2 * shape.kv_heads * shape.head_dim
    tokens = workload.sequence_length * layouts.micro_batch / layouts.cp
    size = tokens * width * weight_bytes_per_parameter(workload.precision) / np.minimum(layouts.tp, shape.kv_heads)
    one = send_seconds(machine, group_of(layouts, "cp", machine.node_gpus), size) * (layouts.cp - 1) * blocks
    passes = 3 + (layouts.recompute > 0)
    return np.maximum(0.0, passes * one - forward)


def _expert(workload: Workload, layouts: Layouts, machine: Machine, experts: NDArray[Any]) -> Floats:
    """Dispatch and combine, forward and backward; again with full recomputation."""
    shape = workload.shape
    if not shape.experts:
        return np.zeros(len(layouts))
    size = shape.experts_active * _hidden_bytes(workload, layouts) / layouts.tp
    one = wire_s(machine, group_of(layouts, "ep", machine.node_gpus), "all-to-all", size)
    return np.where(layouts.recompute == 2, 6, 4) * (experts + shape.mtp_layers) * one


def _shards(workload: Workload, layouts: Layouts, machine: Machine, busy: Floats) -> Floats:
    """What ZeRO 2 and 3 send in every micro-batch, beyond the compute that hides it; the first block's gather is seen."""
    blocks = blocks_of(workload.shape, layouts)
    weights = gathers = scatters = np.zeros(len(layouts))
    for held, group in _held(workload, layouts, machine, last=True):
        weights = held * weight_bytes_per_parameter(workload.precision) / blocks
        gathers = gathers + wire_s(machine, group, "all-gather", weights)
        scatters = scatters + wire_s(machine, group, "reduce-scatter", held * workload.gradient_bytes / blocks)
    tax = machine.rates.contention
    three = gathers + _beyond(blocks * (2 * gathers + scatters), busy, tax)
    # ZeRO 2 scatters after every micro-batch but the last, which `_gradients` counts.
    two = _beyond(blocks * scatters, busy * BACKWARD_SHARES[0], tax) * (layouts.rounds - 1) / layouts.rounds
    return np.choose(np.clip(layouts.zero - 1, 0, 2), (np.zeros(len(layouts)), two, three))


def _gradients(workload: Workload, layouts: Layouts, machine: Machine, one: _Pass) -> Floats:
    """Seconds seen of summing gradients once a step and, under ZeRO, of gathering new weights."""
    blocks = blocks_of(workload.shape, layouts)
    reduce = gather = np.zeros(len(layouts))
    for held, group in _held(workload, layouts, machine, last=False):
        size = held * workload.gradient_bytes
        scattered = wire_s(machine, group, "reduce-scatter", size)
        reduce = reduce + np.where(layouts.zero > 0, scattered, wire_s(machine, group, "all-reduce", size))
        gather = gather + wire_s(machine, group, "all-gather", held * weight_bytes_per_parameter(workload.precision))
    tax = machine.rates.contention
    seen = np.where(layouts.dp_overlap, _seen(layouts, blocks, reduce, one.backward, tax), reduce)
    if machine.stack.gathers_overlap:
        gather = _seen(layouts, blocks, gather, one.slot - one.head - one.shards - one.backward, tax)
    return np.where(layouts.zero == 3, 0.0, seen + np.where(layouts.zero > 0, gather, 0.0))


def _beyond(sent: Floats, beside: Floats, tax: float) -> Floats:
    """What collectives of `sent` seconds add to compute of `beside` seconds: what is longer, and a tax on what is not."""
    return np.maximum(0.0, sent - beside) + tax * np.minimum(sent, beside)


def _seen(layouts: Layouts, blocks: NDArray[Any], sent: Floats, beside: Floats, tax: float) -> Floats:
    """What of `sent`, all blocks' collectives, is seen beside passes of `beside` seconds a micro-batch and stage.

    Of v chunks all but one are done p micro-batches before the end (or all, where there are fewer) and hide behind those;
    the last one hides behind its own pass, block by block, and its last block behind nothing.
    """
    chunks = layouts.virtual_stages
    early = (chunks - 1) * _beyond(sent / chunks, np.minimum(layouts.pp, layouts.rounds) * beside / chunks, tax)
    last_block = sent / blocks
    window = beside / chunks * (1 - chunks / np.maximum(blocks, chunks))
    return early + last_block + _beyond(np.maximum(0.0, sent / chunks - last_block), window, tax)


def _held(workload: Workload, layouts: Layouts, machine: Machine, last: bool) -> list[tuple[Floats, Ranks]]:
    """(parameters, ranks that hold or shard the same ones): outside routed experts, and in them."""
    shared, routed = stage_parameters(workload.shape, layouts, last)
    group = group_of(layouts, "dp", machine.node_gpus)
    found = [(shared, group)]
    if workload.shape.experts:
        ranks = np.maximum(1, group.ranks // layouts.ep)
        found.append((routed, Ranks(stride=group.stride * layouts.ep, ranks=ranks)))
    return found


def _optimizer(workload: Workload, layouts: Layouts, machine: Machine) -> Floats:
    total = np.zeros(len(layouts))
    for held, group in _held(workload, layouts, machine, last=False):
        total = total + held / np.where(layouts.zero > 0, group.ranks, 1)
    return total * OPTIMIZER_BYTES / (machine.memory_rate_bytes_per_s * machine.rates.memory)


def _hidden_bytes(workload: Workload, layouts: Layouts) -> Floats:
    """One micro-batch's hidden states on one rank of cp, all parts of tp together."""
    tokens = workload.sequence_length / layouts.cp * layouts.micro_batch
    return tokens * workload.shape.hidden * weight_bytes_per_parameter(workload.precision)


def _boundary_bytes(workload: Workload, layouts: Layouts) -> Floats:
    """What one GPU sends to the next stage: its 1/tp, but all of it where tp all-reduces and does not scatter."""
    return _hidden_bytes(workload, layouts) / np.where(layouts.tp_way == 0, 1, layouts.tp)


def _refused(shape: ModelShape, layouts: Layouts, machine: Machine, memory: LayoutMemory) -> NDArray[np.int64]:
    blocks = blocks_of(shape, layouts)
    degrees = ((layouts.tp, layouts.tp_outside), (layouts.pp, layouts.pp_outside), (layouts.dp, layouts.dp_outside))
    flagged = np.logical_or.reduce([outside for _, outside in degrees])
    inside = np.prod([np.where(outside, 1, degree) for degree, outside in degrees], axis=0)
    uneven = flagged & ((inside > machine.node_gpus) | (machine.node_gpus % np.maximum(1, inside) != 0))
    reasons = (memory.total > machine.memory_bytes, (layouts.virtual_stages > 1) & (blocks % layouts.virtual_stages != 0), uneven)
    return np.select(reasons[::-1], range(len(reasons), 0, -1), 0).astype(np.int64)
