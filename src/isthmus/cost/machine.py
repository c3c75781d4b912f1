"""What prices a layout: one GPU's rates, the links between GPUs, and how the training software behaves."""

from dataclasses import dataclass

from isthmus.cost.collectives_constants import Constants
from isthmus.cost.collectives_group import Group
from isthmus.workload import AttentionKernel

__all__ = ["GpuRates", "Machine", "Stack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRates:
    """What one GPU type reaches of its data sheet; fitted, each with bounds (`step_rates.yaml`).

    Attributes:
        matrix: Share of the dense peak in large matrix products.
        attention: Share of the dense 16-bit peak in a fused attention kernel.
        memory: Share of the memory rate.
        contention: Seconds of compute lost a second of collectives beside it (they take cores and memory).
        source: What it was fitted to.
    """

    matrix: float
    attention: float
    memory: float
    contention: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """How a generation of training software behaves: facts of its code, and one fitted cost.

    Attributes:
        name: Key in `step_rates.yaml`.
        attention: Whether scores stay inside one kernel or go through memory.
        host_s: Python and launch time of one block, forward and backward of one micro-batch: what the GPU waits for
            where it is quicker than its host. The term other models lack.
        sends_overlap: Pipeline sends run beside the next micro-batch.
        gathers_overlap: Under ZeRO 1 and 2 new weights are gathered beside the next forward pass.
        pointwise: Passes over memory of norms, activations and residuals: 1 with Megatron's fused bias-gelu and
            bias-dropout-add, 2 where each operation reads and writes by itself and norms run in fp32.
        products_add: Weight-gradient products add to the sum themselves.
        stops_early: Recomputation ends with the last tensor that the backward pass reads, before the block's last product.
        launches_block: Each kernel ends before the next is launched (CUDA_LAUNCH_BLOCKING), so host time adds up.
        gradient_bytes: Of a gradient element on the wire and in the sum.
        tp_way, dp_overlap: What the stack does unless a layout says otherwise.
        source: Where the behaviour is documented.
    """

    name: str
    attention: AttentionKernel
    host_s: float
    sends_overlap: bool
    gathers_overlap: bool
    pointwise: float
    products_add: bool
    stops_early: bool
    launches_block: bool
    gradient_bytes: int
    tp_way: str
    dp_overlap: bool
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One site's GPUs, all alike.

    Attributes:
        dense_flop_per_s: Peak of the matrix products' precision.
        dense_16_flop_per_s: Peak in 16 bits, which attention runs in.
        memory_bytes: Of one GPU, usable.
        memory_rate_bytes_per_s: HBM line rate.
        node_gpus: GPUs behind the quickest links.
        group: Its GPUs and their links, from the GPU outwards.
        constants: What collectives on these links reach.
        rates: What the GPU reaches.
        stack: The software.
        band: p10 and p90 of measured / predicted steps; (1, 1) where none is known.
    """

    dense_flop_per_s: float
    dense_16_flop_per_s: float
    memory_bytes: float
    memory_rate_bytes_per_s: float
    node_gpus: int
    group: Group
    constants: Constants
    rates: GpuRates
    stack: Stack
    band: tuple[float, float] = (1.0, 1.0)
