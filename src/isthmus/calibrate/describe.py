"""What a log does not say about a run, taken from the fabric it ran on."""

from dataclasses import replace

from isthmus.errors import InputError, nearest
from isthmus.fabric import Fabric, Region
from isthmus.fabric.carriers import in_node_carrier, network_carrier
from isthmus.formats.collective_runs import COLLECTIVES, Adapters, Run, Wiring

__all__ = ["described"]


def described(run: Run, fabric: Fabric | None, region: str | None, nodes: int | None, collective: str | None) -> Run:
    """`run` with its wiring and adapters from `fabric`, and what its text leaves open from the other arguments.

    A run that says itself what it ran over stays as it is.

    Raises:
        InputError: No such region or collective; or the ranks do not fill the nodes.
    """
    if collective is not None and collective not in COLLECTIVES:
        raise InputError("--collective", f"unknown collective {collective!r}", nearest(collective, COLLECTIVES))
    if run.collective is None and collective is not None:
        run = replace(run, collective=collective)
    if run.in_node is not None or run.network is not None or fabric is None:
        return run
    place = _region(fabric, region)
    group = place.groups[0]
    ranks = run.ranks
    if ranks is None:
        raise InputError(run.where, f"{run.name}: the number of ranks is not known", "keep the log's list of devices")
    together = max(group.gpus, group.in_node.domain)  # an NVLink rack counts as one node
    across = run.nodes or nodes or max(1, ranks // together)
    if ranks % across or ranks // across > together:
        raise InputError(
            run.where, f"{run.name}: {ranks} ranks on {across} nodes do not fit nodes of {group.gpus} GPUs", "say --nodes"
        )
    gpus = ranks // across
    inside = group.in_node
    wiring = Wiring(carrier=in_node_carrier(group), rate_bytes_per_s=inside.bandwidth_bytes_per_s, adds=inside.switch_reduces)
    adapters = None
    if across > 1 and group.nic is not None:
        rate = min(group.nic.rate_bytes_per_s, place.network.rate_bytes_per_s)
        # GPUs that a run leaves idle leave their adapters idle too.
        count = max(1, group.nics * gpus // group.gpus)
        adapters = Adapters(carrier=network_carrier(place.network), count=count, rate_bytes_per_s=rate)
    return replace(run, nodes=across, in_node=wiring if gpus > 1 else None, network=adapters)


def _region(fabric: Fabric, name: str | None) -> Region:
    names = [region.name for region in fabric.regions]
    if name is None:
        return fabric.regions[0]
    if name not in names:
        raise InputError("--region", f"unknown region {name!r} in {fabric.name}", nearest(name, names))
    return fabric.region(name)
