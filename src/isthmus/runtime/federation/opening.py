"""Opening this rank's rails for a generation."""

from contextlib import suppress
from dataclasses import dataclass

from isthmus.runtime.environment import RankEnvironment
from isthmus.runtime.federation.generation import Generation
from isthmus.runtime.federation.states import Rails
from isthmus.runtime.wan.door import Door
from isthmus.runtime.wan.frames import PeerLostError
from isthmus.runtime.wan.rail import Rail, RailOptions

__all__ = ["RailOpener"]


@dataclass(frozen=True, slots=True)
class RailOpener:
    """Opens the rails that this rank carries, to the regions of a generation; see `states.Opener`.

    There are as many rails as the largest region of the run has ranks, whoever takes part: shards keep their owners.

    Attributes:
        environment: This rank's place; it has members.
        door: This rank's door.
        streams: TCP connections a rail to each other region.
        options: See `RailOptions`.
        silence_s: How long a region that shows signs of life may send nothing that is waited for; see `Rail.open`.
    """

    environment: RankEnvironment
    door: Door
    streams: int
    options: RailOptions
    silence_s: float = 3600.0

    def __call__(self, generation: Generation, timeout_s: float) -> Rails:
        """The open rails by number."""
        environment = self.environment
        assert environment.members is not None, "rails without members"
        regions = environment.members.only(generation.regions)
        here = regions.index(environment.region)
        opened: dict[int, Rail] = {}
        try:
            for number in range(environment.rank, environment.members.rails, environment.world_size):
                place = (regions, here, number, self.streams, timeout_s, self.options)
                rail = opened[number] = Rail.open(*place, generation=generation.number, door=self.door)
                rail.timeout_s = self.silence_s
        except BaseException:
            for rail in opened.values():
                rail.abort(PeerLostError("another rail of this rank did not open"))
                with suppress(OSError, RuntimeError):
                    rail.close()
            raise
        return opened
