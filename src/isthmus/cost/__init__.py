"""Prediction by formula: collectives, transports, the step's timeline, and the wind tunnel's run.

Each formula takes plain numbers in SI units and names its source; nothing here reads a file, a clock or a
random number.
"""

from isthmus.cost.tunnel import TrialInputs, predict_trial

__all__ = ["TrialInputs", "predict_trial"]
