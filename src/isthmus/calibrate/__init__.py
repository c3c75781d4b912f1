"""Measurements to constants: what a fabric's own collectives say about the constants that predictions rest on."""
