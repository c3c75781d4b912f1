"""A generation: which regions take part from some round on. Rails are opened for one and thrown away with it."""

from dataclasses import dataclass

__all__ = ["Generation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Who takes part, agreed on through the store by compare-and-swap.

    Attributes:
        number: Grows by at least one with every change of the members, and with every round that is repeated.
        regions: Names, in the order of members.json.
        joined: Those of them that have no state yet and fetch it from the others before the first round.
        incarnations: One a region: a text that a region draws anew whenever it starts.
        round: Number of the first round of this generation; all before it are committed.
        tokens: Committed in the rounds before it, by all regions together.
        late: Regions that are out because they did not begin a round within the grace.
        branch: Empty, or the first region of a side that went on alone after a partition.
        past: Incarnations that were in the branch, are not in this generation, and still run; without those that have moved
            into another branch since.
    """

    number: int
    regions: tuple[str, ...]
    joined: tuple[str, ...] = ()
    incarnations: tuple[str, ...] = ()
    round: int = 0
    tokens: int = 0
    branch: str = ""
    late: tuple[str, ...] = ()
    past: tuple[str, ...] = ()

    @property
    def donors(self) -> tuple[str, ...]:
        """The regions that hold the state."""
        return tuple(region for region in self.regions if region not in self.joined)

    def holds(self, region: str, incarnation: str) -> bool:
        """Whether that start of `region` is in it."""
        return (region, incarnation) in zip(self.regions, self.incarnations, strict=True)
