"""Codecs of the WAN level, with error feedback."""
