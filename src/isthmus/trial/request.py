"""What the user asked for, read and checked before anything is started."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import InputError
from isthmus.fabric import Fabric, read_fabric
from isthmus.plan import Strategy
from isthmus.trial.faults import Fault, parse_fault
from isthmus.trial.strategies import trial_strategies
from isthmus.units import BYTES_PER_SECOND, SECONDS, Unit, quantity
from isthmus.workload import Workload, read_workload

__all__ = ["Setting", "TrialRequest", "read_request"]

RANKS_PER_REGION_MAX = 2
REGIONS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """The command line of `isthmus try`, as typed."""

    fabric: Path
    workload: str
    strategies: tuple[str, ...]
    minutes: float
    rate: str | None
    rtt: str | None
    script: str | None
    faults: tuple[str, ...]
    output: Path
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A trial ready to run.

    Attributes:
        nodes: Ranks per region in the tunnel, one a node; equal everywhere.
        rate_bytes_per_s, rtt_s: Asked by hand, or None to scale the real plan's ratios.
        script: The user's own argv, or None for the reference training.
    """

    fabric: Fabric
    workload: Workload
    strategies: tuple[Strategy, ...]
    nodes: dict[str, int]
    minutes: float
    rate_bytes_per_s: float | None
    rtt_s: float | None
    script: tuple[str, ...] | None
    faults: tuple[Fault, ...]
    output: Path
    seed: int


def read_request(request: TrialRequest) -> Setting:
    """Read and check everything the user named.

    Raises:
        InputError: A file, a name or a value is wrong; the fabric has one region, or more than the tunnel holds.
    """
    fabric = read_fabric(request.fabric)
    names = tuple(region.name for region in fabric.regions)
    if len(names) < 2:
        raise InputError(str(request.fabric), f"has one region ({', '.join(names)}), so there is no WAN to try",
                         "`isthmus plan` predicts it; e.g. isthmus try examples/shenzhen-shanghai.yaml")
    if len(names) > REGIONS_MAX:
        raise InputError(str(request.fabric), f"has {len(names)} regions; a trial on one machine holds {REGIONS_MAX}")
    # A few ranks stand for each region: what crosses the WAN depends on regions, not on how many GPUs fill one.
    ranks = min([RANKS_PER_REGION_MAX, *(region.nodes for region in fabric.regions)])
    return Setting(
        fabric=fabric,
        workload=read_workload(request.workload),
        strategies=trial_strategies(request.strategies),
        nodes=dict.fromkeys(names, ranks),
        minutes=request.minutes,
        rate_bytes_per_s=_optional("--rate", request.rate, BYTES_PER_SECOND),
        rtt_s=_optional("--rtt", request.rtt, SECONDS),
        script=_script(request.script),
        faults=tuple(sorted((parse_fault(text, names) for text in request.faults), key=lambda fault: fault.at_s)),
        output=request.output,
        seed=request.seed,
    )


def _optional(option: str, text: str | None, unit: Unit) -> float | None:
    if text is None:
        return None
    try:
        value = quantity(text, unit)
    except ValueError as error:
        raise InputError(option, str(error)) from None
    if value < 0 or (value == 0 and unit is BYTES_PER_SECOND):
        raise InputError(option, f"{text!r} is not a possible value", f"e.g. {unit.example!r}")
    return value


def _script(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError("--script", f"{text!r}: {str(error).lower()}", "close the quote, or escape it") from None
    if not words:
        raise InputError("--script", "is empty", "e.g. --script 'train.py --lr 1e-3'")
    path = Path(words[0])
    if not path.is_file():
        raise InputError("--script", f"{words[0]!r} is not a file", "give the path of a Python script that uses isthmus.join")
    return sys.executable, str(path.resolve()), *words[1:]
