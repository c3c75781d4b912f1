"""The planner: candidates, what fits, what each costs, which one is chosen and why."""

from isthmus.planner.choose import choose_plan

__all__ = ["choose_plan"]
