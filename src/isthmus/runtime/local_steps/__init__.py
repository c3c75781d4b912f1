"""Local steps: regions train alone and agree now and then.

    sync        LocalSync: counts steps, begins rounds when they are due and applies them later (the training thread)
    outer       OuterLoop: deltas in, an outer step on their mean, in attempts and commits (the communication thread)
    fragments   which parameters are exchanged together
    windows     unequal steps: a round waits for a slow region no longer than a grace
    state       checkpoints, and what another layout makes of them
    link        the seam to the world: through the federation's rounds, or over a lone rail
"""
