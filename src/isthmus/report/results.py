"""`results.json` of `isthmus try` as the reports read it: typed, with every fault told by its place.

Times are seconds, sizes bytes, rates bytes/s, as everywhere inside. Keys that the reports do not show are
passed over, so that a trial may record more than a page has room for; a key that they show is never guessed.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isthmus.errors import InputError, nearest
from isthmus.plan import Prediction

__all__ = [
    "Assumed",
    "Fault",
    "Machine",
    "Measured",
    "Ratio",
    "RealFabric",
    "RealLink",
    "RealRegion",
    "Results",
    "Segment",
    "Similitude",
    "Speed",
    "Tried",
    "Tunnel",
    "TunnelLink",
    "read_results",
]

Amount = Annotated[float, Field(ge=0)]
Pair = tuple[str, str]


class Part(BaseModel):
    """Base of every part of the document: frozen, and blind to keys that no report shows."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Machine(Part):
    """Where the trial ran."""

    cpus: int
    kernel: str
    python: str
    torch: str
    privilege: str


class RealRegion(Part):
    """One region of the real fabric; `network_rate_bytes_per_s` is one port, per direction."""

    name: str
    city: str | None = None
    nodes: int
    gpus: int
    gpu_kind: str | None = None
    network_kind: str | None = None
    network_rate_bytes_per_s: Amount | None = None


class RealLink(Part):
    """One WAN link of the real fabric."""

    between: Pair
    rate_bytes_per_s: Amount
    rtt_s: Amount
    jitter_s: Amount = 0.0
    loss: Amount = 0.0
    transport: str | None = None


class RealFabric(Part):
    """The fabric that was asked about."""

    name: str
    source: str
    regions: list[RealRegion]
    wan: list[RealLink]


class Workload(Part):
    """The real workload, whose ratios the trial keeps."""

    name: str
    parameters: Amount
    tokens_per_step: Amount


class TrialModel(Part):
    """What was really trained."""

    model: str
    parameters: Amount
    gradient_bytes: Amount
    tokens_per_step: Amount
    steps: int
    script: str | None = None


class TunnelLink(Part):
    """One WAN link as the tunnel emulated it."""

    between: Pair
    rate_bytes_per_s: Amount
    rtt_s: Amount
    jitter_s: Amount = 0.0
    loss: Amount = 0.0


class Ratio(Part):
    """A ratio of the real plan, and what the tunnel made of it."""

    asked: float
    achieved: float


class Similitude(Part):
    """The two ratios that the scaling keeps, and what it leaves out."""

    transfer_over_compute: Ratio
    rtt_over_compute: Ratio
    left_out: list[str] = []


class Tunnel(Part):
    """The emulated fabric."""

    nodes: dict[str, int]
    links: list[TunnelLink]
    lateness_p99_s: Amount | None = None
    congestion_control: str | None = None
    similitude: Similitude | None = None


class Speed(Part):
    """A speed measured beforehand that the prediction rests on."""

    name: str
    bytes_per_s: Amount


class Measured(Part):
    """What a strategy did; the scalars are medians over the repeats."""

    step_s: Annotated[float, Field(gt=0)]
    step_s_repeats: list[Amount] = []
    off_step_s_repeats: list[Amount] = []
    tokens_per_s: Amount
    utilisation: Amount | None = None
    exposed_s: float | None = None
    wan_bytes_per_step: Amount


class Segment(Part):
    """One piece of the predicted timeline of one step."""

    lane: Literal["compute", "region", "wan"]
    what: str
    start_s: float
    end_s: float


class Tried(Part):
    """One strategy: predicted before it ran, then measured. `ratio` is predicted over measured step time."""

    name: str
    kind: str
    codec: str
    plan: str | None = None
    predicted: Prediction
    measured: Measured
    ratio: float
    loss: list[tuple[float, float]] = []
    loss_at_equal_tokens: float | None = None
    equal_tokens: float | None = None
    replicas_equal: bool | None = None
    hash: str | None = None
    seconds: float | None = None
    timeline: list[Segment] = []


class Fault(Part):
    """A fault that was asked for, and what was seen of it."""

    at_s: float
    what: str
    seen: str


class Assumed(Part):
    """A number that the predictions rest on."""

    name: str
    value: float | str
    unit: str
    source: str


class Results(Part):
    """The whole document."""

    version: Literal[1]
    made: str
    command: str
    isthmus: str
    machine: Machine
    fabric: RealFabric
    workload: Workload
    trial: TrialModel
    tunnel: Tunnel
    compute_s: float | None = None
    speeds: list[Speed] = []
    strategies: Annotated[list[Tried], Field(min_length=1)]
    faults: list[Fault] = []
    assumptions: list[Assumed] = []


def read_results(results: dict[str, Any]) -> Results:
    """Check `results` and give them types.

    Raises:
        InputError: A value that a report shows is missing or of the wrong kind; `found` names its place.
    """
    try:
        read = Results.model_validate(results)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        place = ".".join(str(part) for part in faults[0]["loc"])
        more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
        raise InputError(
            "results.json",
            f"{place}: {faults[0]['msg'].lower()}{more}",
            "the file is written by `isthmus try`; run it again with this version",
        ) from None
    known = {region.name for region in read.fabric.regions}
    for index, link in enumerate(read.fabric.wan):
        for name in link.between:
            if name not in known:
                raise InputError("results.json", f"fabric.wan.{index}.between: no region {name!r}", nearest(name, known))
    return read
