"""The numbers that a plan rests on and its reader did not see computed, each with its source."""

from isthmus.cost.codecs import CODEC_MEMORY_SHARE
from isthmus.cost.collectives_group import class_of
from isthmus.cost.efficiency import (
    BACKWARD_FRACTION,
    BLOCKING_IN_MFU,
    BUCKET_WORK,
    CHECKPOINT_EVERY,
    MEMORY_RESERVE,
    NCCL_BUFFER,
    NCCL_CHANNELS,
    OUTER_STATE,
    RDMA_PAYLOAD,
    REGION_SPREAD,
    TCP_WINDOW,
    TOKEN_BYTES,
)
from isthmus.cost.paths import Wan
from isthmus.fabric.carriers import Carrier
from isthmus.plan import Assumption
from isthmus.planner.setting import Setting
from isthmus.planner.words import counted

__all__ = ["assumptions"]


def assumptions(setting: Setting, tolerance: float) -> list[Assumption]:
    """Every number that the predictions rest on and the user did not see computed, with its source."""
    workload = setting.workload
    source = "; ".join((workload.source, *workload.assumed))
    found = [
        Assumption(name="tokens per step", value=workload.tokens_per_step, unit="", source=source),
        Assumption(name="parameters", value=setting.parameters, unit="", source=workload.source),
        Assumption(
            name=f"dense {workload.precision} peak of one GPU",
            value=setting.dense_flop_per_s,
            unit="FLOP/s",
            source="catalogue gpus",
        ),
        *_step_assumptions(setting),
        MEMORY_RESERVE,
        *_link_assumptions(setting),
    ]
    found += [CHECKPOINT_EVERY, TOKEN_BYTES]
    if setting.wan is None:
        return found
    found.append(REGION_SPREAD)
    tolerated = Assumption(
        name="longer step taken for lower risk",
        value=tolerance,
        unit="",
        source="judgement; isthmus.planner.rank.TOLERANCE",
    )
    return [*found, BACKWARD_FRACTION, BUCKET_WORK, CODEC_MEMORY_SHARE, OUTER_STATE, tolerated, *_wan_assumptions(setting.wan)]


def _step_assumptions(setting: Setting) -> list[Assumption]:
    """What the time of a step inside a region rests on: the MFU that the workload states, or the step model's constants."""
    if setting.mfu is not None:
        return [Assumption(name="MFU inside one region", value=setting.mfu, unit="", source=setting.workload.source)]
    rates, stack = setting.machine.rates, setting.machine.stack
    shares = (
        ("matrix products, share of the dense peak", rates.matrix),
        ("fused attention, share of the 16-bit peak", rates.attention),
        ("GPU memory, share of its rate", rates.memory),
        ("compute lost beside collectives, share of their time", rates.contention),
    )
    host = Assumption(
        name="host time of a block and micro-batch", value=stack.host_s, unit="s", source=f"{stack.source}; {rates.source}"
    )
    return [*(Assumption(name=name, value=value, unit="", source=rates.source) for name, value in shares), host]


def _link_assumptions(setting: Setting) -> list[Assumption]:
    """What collectives inside a region reach of each class of link; none for single GPUs."""
    if not setting.group:
        return []
    known = setting.constants
    source = "isthmus's fit to public measurements (cost/collectives.yaml)"
    if setting.calibrated:
        source = f"the calibration given, over {source}"
    if class_of(setting.group) not in known.classes and class_of(setting.group) not in known.own:
        source += f"; no system of class {class_of(setting.group)} was measured"
    found = [BLOCKING_IN_MFU] if setting.mfu is not None else []
    carriers: list[Carrier] = [level.carrier for level in setting.group]
    for carrier in dict.fromkeys(carriers):
        own = known.carriers[carrier]
        found.append(Assumption(name=f"{carrier}, share of line rate in a ring", value=own.sustained, unit="", source=source))
        if own.switch_sustained and any(level.adds and level.carrier == carrier for level in setting.group):
            name = f"{carrier}, share of line rate where the switch adds"
            found.append(Assumption(name=name, value=own.switch_sustained, unit="", source=source))
    return found


def _wan_assumptions(wan: Wan) -> list[Assumption]:
    given = "the fabric's wan entries"
    return [
        Assumption(name="RTT between regions", value=wan.rtt_s, unit="s", source=given),
        Assumption(
            name="jitter, added to each one-way trip",
            value=wan.jitter_s,
            unit="s",
            source=f"{given}; the slowest message counts",
        ),
        Assumption(name="loss", value=wan.loss, unit="", source=given),
        Assumption(
            name="WAN payload rate of a region",
            value=wan.limit.rate_bytes_per_s,
            unit="B/s",
            source=f"bound by {wan.limit.bind}; {counted(wan.rails, 'rail')} x {counted(wan.streams, 'stream')}"
            + ("" if wan.rdma else "; headers at MTU 1500, window / RTT, loss after Mathis et al. 1997"),
        ),
        Assumption(
            name="WAN payload rate of one NCCL ring",
            value=wan.flat(1).rate_bytes_per_s,
            unit="B/s",
            source=f"bound by {wan.flat(1).bind}; {counted(wan.channels, 'channel')}, one connection each; "
            "tp x pp such rings at once",
        ),
        *([RDMA_PAYLOAD] if wan.rdma else [TCP_WINDOW]),
        NCCL_CHANNELS,
        NCCL_BUFFER,
    ]
