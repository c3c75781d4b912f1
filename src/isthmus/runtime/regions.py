"""How a rank finds the other regions: over rails that stand for the whole run, in rounds, or through torch's own groups."""

from collections.abc import Generator
from contextlib import contextmanager

from isthmus.errors import InputError
from isthmus.plan import Strategy, Survival
from isthmus.runtime.environment import RankEnvironment
from isthmus.runtime.federation.agreement import Federation
from isthmus.runtime.metrics import Metrics
from isthmus.runtime.runnable import SURVIVING
from isthmus.runtime.surviving import load_identity, open_rounds
from isthmus.runtime.wan.rail import Rail, RailOptions

__all__ = ["exported", "federated"]

# Without a coordinator a lost region ends the run, so a region that only pauses (a debugger, a busy disk) is waited for.
MISSED_S = 30.0


@contextmanager
def federated(
    federation: Federation,
    strategy: Strategy,
    survival: Survival,
    metrics: Metrics,
    terms: dict[str, str],
    timeout_s: float,
) -> Generator[Federation]:
    """Find the other regions: over rails that stand for the whole run, or through a coordinator in rounds that survive."""
    environment, world = federation.environment, federation.world
    unequal = environment.members is not None and len({region.ranks for region in environment.members.regions}) > 1
    if environment.regions > 1 and (environment.coordinator is not None or (unequal and strategy.kind in SURVIVING)):
        if environment.blocks:
            hint = "measure without a coordinator, and regions of equal numbers of ranks"
            raise InputError("ISTHMUS_BLOCKS", "is set, but this run goes in rounds", hint)
        terms = terms | {"the plan's survival": survival.model_dump_json()}
        with open_rounds(environment, world, strategy, survival, metrics, terms) as rounds:
            federation.rounds = rounds
            yield federation
        return
    if environment.members is not None and environment.regions > 1 and world.flat_comm_group is None:
        rate = strategy.wan_rate_bytes_per_s
        options = RailOptions(
            rate_bytes_per_s=rate / environment.world_size if rate else None,
            detect_s=max(survival.detect_s, MISSED_S),
            identity=load_identity(environment),
            insecure=environment.insecure,
        )
        place = environment.members, environment.region_index, environment.rank
        federation.rail = Rail.open(*place, strategy.streams, timeout_s, options)
    try:
        federation.submit(lambda: federation.agree(terms)).result()
        yield federation
    finally:
        if federation.rail is not None:
            federation.rail.close()


@contextmanager
def exported(environment: RankEnvironment, metrics: Metrics, federation: Federation) -> Generator[None]:
    """Serve Prometheus metrics inside, where the environment asks for it."""
    if environment.export is None:
        yield
        return
    from isthmus.runtime.exporter import Exporter  # only here: most runs need no prometheus-client

    labels = {"region": environment.region, "rank": str(environment.rank)}
    exporter = Exporter(environment.export, labels, federation.counters)
    metrics.observers.append(exporter.observe)
    try:
        yield
    finally:
        exporter.close()
