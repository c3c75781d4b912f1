"""Prediction by playing: flows on the real graph of a fabric, with max-min fair shares, from event to event.

`map_fabric` wires a fabric up, `phases_of` turns a collective into streams, `play_phases` plays them. This room and `cost`
know nothing of each other: each is a witness for the other.
"""

from isthmus.sim.fabric_map import FabricMap, map_fabric, with_faults
from isthmus.sim.graph import Carriage, Shares
from isthmus.sim.patterns import ALGORITHMS, COLLECTIVES, Collective, phases_of
from isthmus.sim.play import PhasePlayed, play_phase, play_phases

__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "Carriage",
    "Collective",
    "FabricMap",
    "PhasePlayed",
    "Shares",
    "map_fabric",
    "phases_of",
    "play_phase",
    "play_phases",
    "with_faults",
]
