"""Compute of one block and of the ends of a model: roofline by layer type, for many layouts at once.

    t = F / (e P) + B / (c M)

F operations and B bytes of one kernel, P and M the data sheet's rates, e and c the shares reached (`GpuRates`). The two
are added, not the larger taken: tiles are filled and drained, and small or thin products pay for it. Sources: Williams
et al., CACM 52(4), 2009 (roofline); Korthikanti et al., arXiv 2205.05198 (what a block reads and keeps).
"""

from dataclasses import dataclass

import numpy as np

from isthmus.cost.machine import Machine
from isthmus.workload import Layouts, Workload
from isthmus.workload.flops import attended_columns
from isthmus.workload.layout_memory import Floats, weight_bytes_per_parameter

__all__ = ["BlockTimes", "block_times", "head_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Seconds of one block for one micro-batch on one GPU, each (n,), without host cost and collectives.

    `attention` is the forward part that selective recomputation repeats; `again` what full recomputation does.
    """

    forward: Floats
    backward: Floats
    attention: Floats
    again: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    flop: Floats
    bytes: Floats

    def __add__(self, other: "_Work") -> "_Work":
        return _Work(flop=self.flop + other.flop, bytes=self.bytes + other.bytes)


def block_times(workload: Workload, layouts: Layouts, machine: Machine, expert: bool) -> BlockTimes:
    """Seconds of a dense or an expert block."""
    shape = workload.shape
    tokens = workload.sequence_length * layouts.micro_batch / layouts.cp
    work = _attention_matrices(workload, layouts, tokens)
    if expert:
        work = work + _experts(workload, layouts, tokens)
    else:
        inner = 2 if shape.gated else 1
        work = work + _product(workload, tokens, shape.hidden, inner * shape.ffn / layouts.tp)
        work = work + _product(workload, tokens, shape.ffn / layouts.tp, shape.hidden)
    matrices = _matrix_s(work, machine)
    forward_scores, backward_scores = _scores_s(workload, layouts, machine, tokens)
    pointwise = _pointwise_bytes(workload, layouts, tokens, expert, machine) / _memory_rate(machine)
    forward = matrices + forward_scores + pointwise
    return BlockTimes(
        forward=forward,
        # Two products for one: with respect to the input and to the weights. Pointwise work is read and written again.
        backward=2 * matrices + backward_scores + 2 * pointwise,
        attention=forward_scores,
        again=forward - _last_product_s(workload, layouts, machine, tokens, expert) if machine.stack.stops_early else forward,
    )


def _last_product_s(workload: Workload, layouts: Layouts, machine: Machine, tokens: Floats, expert: bool) -> Floats:
    """Forward seconds of a block's last matrix product, whose result no backward pass reads."""
    shape = workload.shape
    if not expert:
        return _matrix_s(_product(workload, tokens, shape.ffn / layouts.tp, shape.hidden), machine)
    visits = shape.experts_active + shape.shared_experts
    return _matrix_s(_product(workload, tokens * visits, shape.expert_ffn / layouts.tp, shape.hidden), machine)


def head_s(workload: Workload, layouts: Layouts, machine: Machine) -> Floats:
    """Forward and backward seconds of output projection and loss for one micro-batch; fp32 logits pass memory 4 times."""
    shape = workload.shape
    tokens = workload.sequence_length * layouts.micro_batch / layouts.cp
    work = _product(workload, tokens, shape.hidden, shape.vocabulary / layouts.tp)
    logits = 4 * 4.0 * tokens * shape.vocabulary / layouts.tp
    once = 3 * _matrix_s(work, machine, sixteen_bit=True) + logits / _memory_rate(machine)
    return once * (1 + shape.mtp_layers)


def _memory_rate(machine: Machine) -> float:
    return machine.memory_rate_bytes_per_s * machine.rates.memory


def _matrix_s(work: _Work, machine: Machine, sixteen_bit: bool = False) -> Floats:
    peak = machine.dense_16_flop_per_s if sixteen_bit else machine.dense_flop_per_s
    return work.flop / (peak * machine.rates.matrix) + work.bytes / _memory_rate(machine)


def _product(workload: Workload, rows: Floats, inner: Floats | float, columns: Floats | float) -> _Work:
    """(rows x inner) times (inner x columns)."""
    element = weight_bytes_per_parameter(workload.precision)
    moved = element * (rows * inner + inner * columns + rows * columns)
    return _Work(flop=2.0 * rows * inner * columns, bytes=np.asarray(moved, dtype=np.float64))


def _attention_matrices(workload: Workload, layouts: Layouts, tokens: Floats) -> _Work:
    shape, tp = workload.shape, layouts.tp
    values = shape.heads * shape.head_dim
    out = _product(workload, tokens, values / tp, shape.hidden)
    if shape.attention != "mla":
        return out + _product(workload, tokens, shape.hidden, (values + 2 * shape.kv_heads * shape.head_dim) / tp)
    down = _product(workload, tokens, shape.hidden, (shape.q_rank or shape.query_width / tp) + shape.kv_rank + shape.rope_dim)
    up = _product(workload, tokens, shape.kv_rank, shape.heads * (shape.nope_dim + shape.head_dim) / tp)
    queries = _product(workload, tokens, float(shape.q_rank), shape.query_width / tp)
    return out + down + up + queries


def _experts(workload: Workload, layouts: Layouts, tokens: Floats) -> _Work:
    """Router, shared experts, and the routed experts of one rank of ep with tokens spread evenly."""
    shape, tp = workload.shape, layouts.tp
    inner = 3 if shape.gated else 2
    element = weight_bytes_per_parameter(workload.precision)
    router = _product(workload, tokens, shape.hidden, float(shape.experts))
    width = shape.shared_experts * shape.expert_ffn / tp
    shared = _product(workload, tokens, shape.hidden, (inner - 1) * width) + _product(workload, tokens, width, shape.hidden)
    visits = tokens * shape.experts_active
    matrices = inner * shape.hidden * shape.expert_ffn / tp
    weights = element * shape.experts / layouts.ep * matrices
    passed = element * visits * (2 * shape.hidden + inner * shape.expert_ffn / tp)
    return router + shared + _Work(flop=2.0 * visits * matrices, bytes=weights + passed)


def _scores_s(workload: Workload, layouts: Layouts, machine: Machine, tokens: Floats) -> tuple[Floats, Floats]:
    """Forward and backward seconds of scores, softmax and weighted values.

    Fused kernels skip what a causal mask hides, and compute scores again going back (5 products for 2). Unfused ones
    compute all columns, and every score passes through memory: written, softmax read and written, dropout read and
    written with its mask, read (6 elements and a byte); going back 10 elements and a byte.
    """
    shape = workload.shape
    fused = machine.stack.attention == "fused"
    columns = attended_columns(shape, workload.sequence_length, "causal" if fused else "full")
    flop = 2.0 * tokens * shape.heads * (shape.key_dim + shape.head_dim) / layouts.tp * columns
    if fused:
        forward = flop / (machine.dense_16_flop_per_s * machine.rates.attention)
        return forward, 2.5 * forward
    element = weight_bytes_per_parameter(workload.precision)
    products = flop / (machine.dense_16_flop_per_s * machine.rates.matrix)
    each = tokens * columns * shape.heads / layouts.tp / _memory_rate(machine)
    return products + (6 * element + 1) * each, 2 * products + (10 * element + 1) * each


def _pointwise_bytes(workload: Workload, layouts: Layouts, tokens: Floats, expert: bool, machine: Machine) -> Floats:
    """Bytes that norms, residuals, activations and, in fp8, casts read and write in one forward pass of a block.

    Norms and residuals work on whole hidden states, divided by tp under sequence parallelism only.
    """
    shape, element = workload.shape, weight_bytes_per_parameter(workload.precision)
    residual = 2 * (3 * element + shape.dropout)
    outside = tokens * shape.hidden * (2 * element * shape.block_norms + residual)
    outside = np.where(layouts.tp_way == 2, outside / layouts.tp, outside)
    width = shape.experts_active * shape.expert_ffn + shape.shared_experts * shape.expert_ffn if expert else shape.ffn
    inside = tokens / layouts.tp * element * ((3 if shape.gated else 2) * width + 2 * shape.heads * shape.head_dim)
    moved = outside + inside
    if workload.precision == "fp8":
        moved = moved + 3 * tokens * (2 * shape.hidden + (width + shape.heads * shape.head_dim) / layouts.tp)
    if expert:
        moved = moved + 4 * element * tokens * shape.experts_active * shape.hidden / layouts.tp
    return moved * machine.stack.pointwise
