"""Bytes that the codecs of the plan put on the wire, per byte of fp32 input."""

from isthmus.plan import CodecName

__all__ = ["BLOCK_ELEMENTS", "SCALE_BYTES", "codec_ratio"]

BLOCK_ELEMENTS: dict[CodecName, int] = {"int8": 256, "int4": 256}
"""Elements that share one block; must be those of isthmus.runtime.codecs.coding (a test compares)."""

SCALE_BYTES: dict[CodecName, int] = {"int8": 4, "int4": 4 + 256 // 32}
"""Scales of one block: one of fp32, in int4 also a byte for each 32 elements."""

_ELEMENT_BITS: dict[CodecName, int] = {"none": 32, "bf16": 16, "int8": 8, "int4": 4}


def codec_ratio(codec: CodecName) -> float:
    """Encoded bytes per byte of fp32 input: bits / 32 + scale bytes / (4 x block).  int4: 0.1367."""
    scale = SCALE_BYTES[codec] / (4 * BLOCK_ELEMENTS[codec]) if codec in BLOCK_ELEMENTS else 0.0
    return _ELEMENT_BITS[codec] / 32 + scale
