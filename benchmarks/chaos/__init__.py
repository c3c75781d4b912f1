"""Scripted faults, drawn from a seed, against runs of the demo trainer; and a checker of what the ranks wrote meanwhile."""
