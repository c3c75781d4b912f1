"""Small values of every region, on every region."""

from collections.abc import Iterable

import torch

from isthmus.runtime.wan.rail import Rail, Ticket

__all__ = ["gather", "gather_on_all", "peers_of"]


def gather(rail: Rail, values: torch.Tensor, tag: int) -> list[torch.Tensor]:
    """`values` of every region, in region order; all have the same shape and dtype. For small things such as weights."""
    return gather_on_all([rail], values, tag)[0]


def gather_on_all(rails: Iterable[Rail], values: torch.Tensor, tag: int) -> list[list[torch.Tensor]]:
    """`gather` on several rails at once: what every rail's peers sent on it, in the order of `rails`."""
    everything: list[list[torch.Tensor]] = []
    tickets: list[Ticket] = []
    for rail in rails:
        found = [values if region == rail.region else torch.empty_like(values) for region in range(rail.regions)]
        peers = peers_of(rail)
        tickets += [rail.receive(peer, tag, found[peer]) for peer in peers] + [rail.send(peer, tag, values) for peer in peers]
        everything.append(found)
    for ticket in tickets:
        ticket.wait()
    return everything


def peers_of(rail: Rail) -> list[int]:
    """The other regions, beginning after our own, so that not all regions send to the same one first."""
    return [(rail.region + step) % rail.regions for step in range(1, rail.regions)]
