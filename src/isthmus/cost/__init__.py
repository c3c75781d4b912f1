"""Prediction by formula: collectives, transports, the step's timeline, and the wind tunnel's run.

Each formula takes plain numbers in SI units and names its source; nothing here reads a clock or a random number.
"""

from isthmus.cost.segments import Segment, trial_segments
from isthmus.cost.tunnel import TrialInputs, predict_trial

__all__ = ["Segment", "TrialInputs", "predict_trial", "trial_segments"]
