"""What every parallel axis sends in one optimizer step, as the busiest rank sees it.

Conventions. `bytes_per_op` is the whole tensor of the collective: the buffer of an all-reduce, the input of a
reduce-scatter, the result of an all-gather, what one rank holds before an all-to-all, one message of a send.
`overlappable` means that the rank has other work whose inputs are ready; how much of it hides is for `cost`
to say. Sequence parallelism goes with tp. Where pp cuts the model, the fullest stage counts. Left out: the
embedding's and the output projection's tp collectives, those of MTP blocks, scalar reductions (loss, gradient
norm), the all-reduce of a tied embedding.
"""

from dataclasses import dataclass
from typing import Literal

from isthmus.workload.axes import Axes, check_axes, expert_blocks, micro_batches, stage_blocks
from isthmus.workload.layout_memory import weight_bytes_per_parameter
from isthmus.workload.memory import parameters_per_gpu
from isthmus.workload.model import Workload

__all__ = ["Axis", "Operation", "Phase", "Traffic", "sent_bytes", "traffic"]

Axis = Literal["dp", "tp", "pp", "cp", "ep"]
Operation = Literal["all-reduce", "reduce-scatter", "all-gather", "send", "all-to-all"]
Phase = Literal["forward", "backward", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of collective that a rank takes part in.

    Attributes:
        axis: The parallel axis whose group it runs in.
        op: The collective.
        phase: When; `step` is after the backward pass, around the optimizer.
        bytes_per_op: Size as this file's first paragraph defines it.
        ops_per_step: How often in one optimizer step.
        group: Ranks that take part.
        overlappable: Whether other work of the rank can hide it.
        what: The tensor, in words.
    """

    axis: Axis
    op: Operation
    phase: Phase
    bytes_per_op: float
    ops_per_step: int
    group: int
    overlappable: bool
    what: str


def sent_bytes(item: Traffic) -> float:
    """Bytes that one rank sends in one step, at the least any algorithm without in-network reduction can.

        all-reduce 2 (n - 1)/n S;  reduce-scatter, all-gather, all-to-all (n - 1)/n S;  send S

    n = group, S = bytes_per_op, both times ops_per_step. Source: Patarasuk & Yuan, J. Parallel Distrib.
    Comput. 69(2), 2009, for the reductions.
    """
    share = (item.group - 1) / item.group
    factor = {"all-reduce": 2 * share, "send": 1.0}.get(item.op, share)
    return factor * item.bytes_per_op * item.ops_per_step


def traffic(workload: Workload, axes: Axes) -> tuple[Traffic, ...]:
    """Everything that one rank of the fullest stage sends in one optimizer step; groups of one send nothing.

    Raises:
        InfeasibleError: The axes do not fit the workload.
    """
    check_axes(workload, axes)
    items = (
        *_data_parallel(workload, axes),
        *_tensor_parallel(workload, axes),
        *_pipeline(workload, axes),
        *_context_parallel(workload, axes),
        *_expert_parallel(workload, axes),
    )
    return tuple(item for item in items if item.group > 1 and item.ops_per_step and item.bytes_per_op)


def _data_parallel(workload: Workload, axes: Axes) -> list[Traffic]:
    """Gradients and, under ZeRO, weights; routed experts have smaller groups than everything else."""
    last = sum(parameters_per_gpu(workload.shape, axes, True)) >= sum(
        parameters_per_gpu(workload.shape, axes, False)
    )
    shared, routed = parameters_per_gpu(workload.shape, axes, last)
    replicas = axes.dp * axes.cp
    return _replicated(workload, axes, (shared, replicas, "")) + _replicated(
        workload, axes, (routed, replicas // axes.ep, " of experts")
    )


def _replicated(workload: Workload, axes: Axes, held: tuple[float, int, str]) -> list[Traffic]:
    """Traffic of `held` = (parameters on this GPU, ranks that hold or shard the same ones, suffix for words).

    ZeRO-0 all-reduces gradients once a step. ZeRO-1 reduce-scatters them once and gathers the new weights.
    ZeRO-2 holds no whole gradients, so it scatters after every micro-batch. ZeRO-3 also gathers the weights,
    block by block, in every forward and again in every backward pass (arXiv 1910.02054, section 7: 1.5 times
    plain data parallelism).
    """
    parameters, group, suffix = held
    weights = parameters * weight_bytes_per_parameter(workload.precision)
    gradients = parameters * workload.gradient_bytes
    rounds = micro_batches(workload, axes)

    def item(op: Operation, phase: Phase, size: float, ops: int, overlappable: bool) -> Traffic:
        what = ("weights" if op == "all-gather" else "gradients") + suffix
        return Traffic(
            axis="dp",
            op=op,
            phase=phase,
            bytes_per_op=size,
            ops_per_step=ops,
            group=group,
            overlappable=overlappable,
            what=what,
        )

    blocks = stage_blocks(workload.shape, axes.pp)
    match axes.zero:
        case 0:
            return [item("all-reduce", "backward", gradients, 1, True)]
        case 1:
            return [
                item("reduce-scatter", "backward", gradients, 1, True),
                item("all-gather", "step", weights, 1, False),
            ]
        case 2:
            return [
                item("reduce-scatter", "backward", gradients, rounds, True),
                item("all-gather", "step", weights, 1, False),
            ]
        case 3:
            return [
                item("all-gather", "forward", weights / blocks, rounds * blocks, True),
                item("all-gather", "backward", weights / blocks, rounds * blocks, True),
                item("reduce-scatter", "backward", gradients / blocks, rounds * blocks, True),
            ]


def _tensor_parallel(workload: Workload, axes: Axes) -> list[Traffic]:
    """Two all-gathers and two reduce-scatters of s b h a block in each direction: one pair for each half.

    The backward pass also gathers each half's input again for the weight gradients, which hides behind the
    gradient of the input (arXiv 2205.05198, section 4.2.2); full recomputation repeats the forward ones. With
    expert parallelism the expert half moves the dispatched tokens, experts_active of them for each one.
    """
    shape, rounds = workload.shape, micro_batches(workload, axes)
    blocks = stage_blocks(shape, axes.pp)
    experts = expert_blocks(shape, axes.pp, last=True) if axes.ep > 1 else 0
    size = _hidden_bytes(workload, axes)
    items: list[Traffic] = []
    for halves, factor, what in (
        (2 * blocks - experts, 1, "hidden states"),
        (experts, shape.experts_active, "dispatched tokens"),
    ):
        ops, repeats = rounds * halves, 2 if axes.recompute == "full" else 1
        plan: tuple[tuple[Operation, Phase, int, bool], ...] = (
            ("all-gather", "forward", ops, False),
            ("reduce-scatter", "forward", ops, False),
            ("all-gather", "backward", ops * repeats, False),
            ("reduce-scatter", "backward", ops * repeats, False),
            ("all-gather", "backward", ops, True),
        )
        items += [
            Traffic(
                axis="tp",
                op=op,
                phase=phase,
                bytes_per_op=factor * size,
                ops_per_step=count,
                group=axes.tp,
                overlappable=hides,
                what=f"{what} again" if hides else what,
            )
            for op, phase, count, hides in plan
        ]
    return items


def _pipeline(workload: Workload, axes: Axes) -> list[Traffic]:
    """Hidden states to the next stage and their gradients back, once a virtual stage; each tp rank sends its 1/tp."""
    rounds = micro_batches(workload, axes)
    if axes.pp == 1:
        return []
    phases: tuple[tuple[Phase, str], ...] = (("forward", "hidden states"), ("backward", "gradients"))
    return [
        Traffic(
            axis="pp",
            op="send",
            phase=phase,
            bytes_per_op=_hidden_bytes(workload, axes) / axes.tp,
            ops_per_step=rounds * axes.virtual_stages,
            group=2,
            overlappable=rounds > 1,
            what=what,
        )
        for phase, what in phases
    ]


def _context_parallel(workload: Workload, axes: Axes) -> list[Traffic]:
    """Ring attention: keys and values pass all cp - 1 other ranks; going back, their gradients travel along.

    Under MLA they travel expanded, one per head. Source: Liu et al., arXiv 2310.01889.
    """
    shape, rounds = workload.shape, micro_batches(workload, axes)
    width = (
        shape.heads * (shape.key_dim + shape.head_dim)
        if shape.attention == "mla"
        else 2 * shape.kv_heads * shape.head_dim
    )
    tokens = workload.sequence_length * axes.micro_batch / axes.cp
    size = tokens * width * _activation_bytes(workload) / min(axes.tp, shape.kv_heads)
    ops = rounds * stage_blocks(shape, axes.pp) * (axes.cp - 1)
    forward = 2 if axes.recompute != "none" else 1
    plan: tuple[tuple[Phase, int, int, str], ...] = (
        ("forward", 1, 1, "keys and values"),
        ("backward", 2, 1, "keys, values, gradients"),
        ("backward", 1, forward - 1, "keys and values again"),
    )
    return [
        Traffic(
            axis="cp",
            op="send",
            phase=phase,
            bytes_per_op=factor * size,
            ops_per_step=ops * times,
            group=axes.cp,
            overlappable=True,
            what=what,
        )
        for phase, factor, times, what in plan
    ]


def _expert_parallel(workload: Workload, axes: Axes) -> list[Traffic]:
    """Dispatch and combine of every expert block, each way; full recomputation repeats the forward ones.

    Tokens spread evenly over experts. Each tp rank dispatches its 1/tp of the sequence.
    Multi-token-prediction blocks count with the last stage.
    """
    shape, rounds = workload.shape, micro_batches(workload, axes)
    ops = 2 * rounds * (expert_blocks(shape, axes.pp, last=True) + shape.mtp_layers)
    size = shape.experts_active * _hidden_bytes(workload, axes) / axes.tp
    again = 2 if axes.recompute == "full" else 1
    phases: tuple[tuple[Phase, int], ...] = (("forward", ops), ("backward", ops * again))
    return [
        Traffic(
            axis="ep",
            op="all-to-all",
            phase=phase,
            bytes_per_op=size,
            ops_per_step=count,
            group=axes.ep,
            overlappable=False,
            what="dispatched tokens",
        )
        for phase, count in phases
    ]


def _hidden_bytes(workload: Workload, axes: Axes) -> float:
    """Bytes of one micro-batch's hidden states on one context-parallel rank, all tp parts together."""
    return (
        workload.sequence_length
        / axes.cp
        * axes.micro_batch
        * workload.shape.hidden
        * _activation_bytes(workload)
    )


def _activation_bytes(workload: Workload) -> int:
    """Bytes of an activation on the wire: 4 in fp32, else 2 (fp8 training sends bf16)."""
    return weight_bytes_per_parameter(workload.precision)
