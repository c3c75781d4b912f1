"""The numbers that a plan rests on and its reader did not see computed, each with its source."""

from isthmus.cost.codecs import CODEC_MEMORY_SHARE
from isthmus.cost.collectives_constants import Constants
from isthmus.cost.efficiency import (
    BACKWARD_FRACTION,
    BLOCKING_IN_MFU,
    BUCKET_WORK,
    MEMORY_RESERVE,
    NCCL_BUFFER,
    NCCL_CHANNELS,
    NETWORK_EFFICIENCY,
    NVLINK_EFFICIENCY,
    OUTER_STATE,
    PCIE_EFFICIENCY,
    RDMA_PAYLOAD,
    TCP_WINDOW,
)
from isthmus.cost.paths import Wan, level_carriers
from isthmus.fabric import levels
from isthmus.fabric.carriers import Carrier
from isthmus.fabric.model import LevelName
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
        *_tier_assumptions(setting),
    ]
    if setting.wan is None:
        return found
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


def _tier_assumptions(setting: Setting) -> list[Assumption]:
    """Efficiencies of the tiers that the regions have; none for single GPUs."""
    names = {level.name for level in levels(setting.fabric)}
    found = [BLOCKING_IN_MFU] if names - {"wan"} and setting.mfu is not None else []
    if setting.constants is not None:
        return found + _calibrated(setting, setting.constants)
    found += [NVLINK_EFFICIENCY] if "nvlink" in names else []
    found += [PCIE_EFFICIENCY] if "pcie" in names else []
    return found + ([NETWORK_EFFICIENCY] if names & {"node", "region"} else [])


def _calibrated(setting: Setting, constants: Constants) -> list[Assumption]:
    names: list[LevelName] = [level.name for level in levels(setting.fabric) if level.name != "wan"]
    carriers: list[Carrier] = [carrier for name in names for carrier in level_carriers(setting.fabric, name)]
    return [
        Assumption(
            name=f"{carrier}, share of line rate",
            value=constants.carriers[carrier].sustained,
            unit="",
            source="the calibration given, over isthmus's fit to public measurements (cost/collectives.yaml)",
        )
        for carrier in dict.fromkeys(carriers)
    ]


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
