"""The parts of a training step by formula: compute, pipelines, local steps, sharding across regions."""

from collections.abc import Sequence
from math import ceil

__all__ = [
    "blocking_sync_s",
    "compute_s",
    "delayed_sync_s",
    "fragments_exposed_s",
    "pipeline_bubble_fraction",
    "pipeline_wan_exposed_s",
    "pipeline_warm_up_extra",
    "sharded_exposed_s",
    "swap_bytes",
    "zero3_wan_bytes",
]


def compute_s(flop: float, gpus: int, dense_flop_per_s: float, mfu: float) -> float:
    """Seconds of compute of one step.

        t = F / (n P MFU)

    F = FLOPs of the step over all GPUs, P = dense peak of one GPU in the precision of the matrix products
    (never the sparse figure on data sheets), MFU = model FLOP utilisation of training inside one region,
    which already holds in-region communication and memory-bound kernels.
    6 x 175e9 x 1024 x 2048 / (64 x 989.4e12 x 0.40) = 87 s.
    Source: Chowdhery et al., PaLM, arXiv 2204.02311 appendix B.
    """
    return flop / (gpus * dense_flop_per_s * mfu)


def pipeline_bubble_fraction(stages: int, micro_batches: int) -> float:
    """Idle share added by filling and draining 1F1B: (p - 1) / m of the busy time.

    Source: Narayanan et al., arXiv 2104.04473 section 2.2. Leaves out: interleaving (divide by the chunks per
    stage).
    """
    return (stages - 1) / micro_batches


def pipeline_warm_up_extra(slot_s: float, crossings_s: Sequence[float]) -> int:
    """Micro-batches in flight beyond 1F1B's own on the stages before `crossings_s`, so that the steady state never waits.

        e = ceil(2 c_1 / t) + ... + ceil(2 c_x / t)

    t = forward and backward of one micro-batch on one stage, c_i = one way of one micro-batch's activations over
    crossing i (latency and wire), x = those still ahead of a stage. A stage before crossing i gets a micro-batch back
    2 c_i later than on one site, so it leads the stage behind the crossing by that many whole slots more; leads add up. Each
    micro-batch in flight costs its activations.
    """
    return sum(ceil(2 * each / slot_s) for each in crossings_s)


def pipeline_wan_exposed_s(micro_batches: int, slot_s: float, crossings_s: Sequence[float], wire_s: float) -> float:
    """Seconds a pipeline over regions takes longer than the same pipeline on one site, deep enough warmed up.

        t = 2 (c_1 + ... + c_x) + max(0, w - t_s) m

    Once to fill and once to drain each crossing costs one way c_i; in between the WAN is seen
    only where the wire time w of one micro-batch on the slowest crossing (each direction carries one activation or
    one gradient) is longer than the slot t_s of one micro-batch.
    Leaves out: jitter inside the steady state. Source: ours, checked against a played 1F1B schedule in
    tests/cost.
    """
    return 2 * sum(crossings_s) + max(0.0, wire_s - slot_s) * micro_batches


def blocking_sync_s(sync_s: float, inner_steps: int) -> float:
    """Exposed seconds per inner step when training stands still for every outer sync: C / K."""
    return sync_s / inner_steps


def delayed_sync_s(sync_s: float, inner_steps: int, delay_steps: int, step_s: float) -> float:
    """Exposed seconds per inner step when a sync may end `delay_steps` inner steps after it began.

        t = max(0, C - d T) / K;  d = 0 is `blocking_sync_s`

    C = sync_s, d = delay_steps, T = step_s, K = inner_steps. Leaves out: that the sync slows the steps it
    runs beside.
    """
    return max(0.0, sync_s - delay_steps * step_s) / inner_steps


def fragments_exposed_s(
    fragment_s: float, wire_s: float, work_s: float, schedule: tuple[int, int, int], step_s: float
) -> float:
    """Exposed seconds per inner step when the parameters are synced in fragments, each every K steps and d steps late.

        d = 0:  F C / K
        d > 0:  max(F max(h, C - d T), F w - K T) / K

    `schedule` = (K, d, F); C = fragment_s, one fragment alone; w = wire_s, its time on the link; h = work_s, what its coding
    takes of the rank itself; T = step_s. The second term: a link that is busy all the time sets the pace.
    Leaves out: that the sync slows the steps it runs beside; fragments of unequal size. F = 1 without h is `delayed_sync_s`.
    """
    every, delay, fragments = schedule
    if delay == 0:
        return fragments * fragment_s / every
    return max(fragments * max(work_s, fragment_s - delay * step_s), fragments * wire_s - every * step_s, 0.0) / every


def swap_bytes(size_bytes: float, regions: int) -> float:
    """Bytes that the busiest region's uplink carries one way in an all-reduce of S over R regions.

        W = S for R = 2 (whole shards swapped, one trip); 2 (R - 1) / R S else (reduce-scatter, all-gather,
        two trips)

    Both are S at R = 2: the swap moves no more than the ring and takes half its latency. 0 for one region.
    """
    return 2 * (regions - 1) / regions * size_bytes


def zero3_wan_bytes(parameter_bytes: float, gradient_bytes: float, regions: int, micro_steps: int) -> float:
    """Bytes that leave one region per step when parameters are sharded over all regions.

        W = (R - 1) / R (2 a P + a G)

    P and G = whole model's parameters and gradients in bytes, a = micro-steps of gradient accumulation.
    Parameters are gathered for the forward and again for the backward pass and gradients reduce-scattered,
    all in each micro-step. Within a region each foreign shard is fetched once and passed on (without that,
    every rank fetches it).
    Source: Rajbhandari et al., arXiv 1910.02054 section 7 (1.5 x the volume of data parallel); region factor
    ours.
    """
    return (regions - 1) / regions * micro_steps * (2 * parameter_bytes + gradient_bytes)


def sharded_exposed_s(wire_s: float, latency_s: float, compute_time_s: float, gathers: int) -> float:
    """Exposed seconds of parameters sharded over regions, each block's gather issued one block ahead.

        t = a + max(0, w + u a - T)

    A gather starts when the one before is used, so each of u gathers takes w/u + a, beside T/u of compute;
    and one latency starts the first. w = all wire time of the step, a = one way, u = gathers, T =
    compute_time_s.
    Leaves out: uneven blocks; gathers issued further ahead (then u a shrinks towards a).
    """
    return latency_s + max(0.0, wire_s + gathers * latency_s - compute_time_s)
