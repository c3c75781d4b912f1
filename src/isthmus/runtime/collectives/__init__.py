"""Collectives over both levels: the exchange between regions, and the hierarchy around it."""
