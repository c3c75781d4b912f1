"""The wind tunnel's run: ask, measure compute, predict, train every strategy for real, compare.

The one room that may know planner, tunnel and report together. It starts ranks and reads what they write; it has no
torch of its own.
"""

from isthmus.trial.request import TrialRequest
from isthmus.trial.run import run_trial
from isthmus.trial.show import show_results

__all__ = ["TrialRequest", "run_trial", "show_results"]
