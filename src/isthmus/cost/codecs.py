"""What the codecs of the plan cost: bytes on the wire per byte of fp32 input, and the memory traffic of coding on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.errors import InfeasibleError
from isthmus.plan import Assumption, CodecName

__all__ = [
    "BLOCK_ELEMENTS",
    "CODEC_MEMORY_SHARE",
    "SCALE_BYTES",
    "SPARSE_BLOCK_ELEMENTS",
    "Matrices",
    "codec_ratio",
    "coding_traffic_bytes",
    "low_rank_ratio",
    "low_rank_share",
]

CODEC_MEMORY_SHARE = Assumption(
    name="memory bandwidth that a codec reaches on a GPU, share of peak",
    value=0.5,
    unit="",
    source="guess: one pass over memory, no GPU was measured; on CPU cores `make bench-codecs` measures 0.16 to 0.41 of a copy",
)

_PASSES: dict[CodecName, float] = {"sign": 1, "sign-majority": 1, "topk": 3, "topk-int4": 3, "powersgd": 3}
"""Reads of the input beyond the first: sign's mean, the selection of top-k (a guess), PowerSGD's products and its rebuilding."""

BLOCK_ELEMENTS: dict[CodecName, int] = {
    "int8": 256, "int7": 256, "int6": 256, "int5": 256, "int4": 256, "int3": 256, "int2": 256, "sign": 256, "sign-majority": 256,
}  # fmt: skip
"""Elements that share one block; must be those of isthmus.runtime.codecs.coding (a test compares)."""

_SUB_SCALES = 256 // 32
SCALE_BYTES: dict[CodecName, int] = {
    name: 4 if name in ("int8", "sign", "sign-majority") else 4 + _SUB_SCALES for name in BLOCK_ELEMENTS
}
"""Scales of one block: one of fp32, in int2 to int7 also a byte for each 32 elements."""

SPARSE_BLOCK_ELEMENTS = 4096
"""Elements of one block of top-k."""

_ELEMENT_BITS: dict[CodecName, int] = {
    "none": 32, "bf16": 16, "int8": 8, "int7": 7, "int6": 6, "int5": 5, "int4": 4, "int3": 3, "int2": 2, "sign": 1,
    "sign-majority": 1,
}  # fmt: skip


def codec_ratio(codec: CodecName, density: float = 0.01) -> float:
    """Encoded bytes per byte of fp32 input, of whole blocks.  int4: 0.1367; topk at 1%: 0.0077.

    Dense codecs: bits / 32 + scale bytes / (4 x block).
    Top-k keeps k = ceil(density x 4096) of a block of n = 4096: places of l = floor(log2(n / k)) bits each, in whole bytes,
    a bit string of k + ((n - 1) >> l) bits in whole bytes, and k values as bf16 or int4.
    Left out: the last, shorter block; padding of all places to 4 bytes.

    Raises:
        InfeasibleError: powersgd has no ratio of its own, see `low_rank_ratio`.
    """
    if codec == "powersgd":
        raise InfeasibleError("powersgd has no fixed ratio", "shapes of the parameters must be known: low_rank_ratio")
    if codec in ("topk", "topk-int4"):
        block = SPARSE_BLOCK_ELEMENTS
        keep = min(block, max(1, -int(-density * block // 1)))
        low = (block // keep).bit_length() - 1
        places = -(-keep * low // 8) - (-(keep + ((block - 1) >> low)) // 8)
        return (places + 4 * keep * codec_ratio("bf16" if codec == "topk" else "int4")) / (4 * block)
    scale = SCALE_BYTES[codec] / (4 * BLOCK_ELEMENTS[codec]) if codec in BLOCK_ELEMENTS else 0.0
    return _ELEMENT_BITS[codec] / 32 + scale


def low_rank_ratio(rows: int, columns: int, rank: int) -> float:
    """Share of the bytes of a matrix that PowerSGD exchanges: r (m + n) / (m n), and all of it where that is not less.

    m = rows, n = columns, r = rank. Source: Vogels et al., NeurIPS 2019.
    """
    return min(1.0, rank * (rows + columns) / (rows * columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """`count` parameters of `rows` x `columns` elements."""

    rows: int
    columns: int
    count: int


def low_rank_share(matrices: Sequence[Matrices], parameters: float, rank: int, shard_elements: float) -> float:
    """Share of all elements that PowerSGD exchanges when a rank codes shards of `shard_elements` at a time.

    Of a matrix only the whole rows in one shard are a matrix of their own, so small shards lose: with s = shard elements, of
    m x n it codes pieces of min(m, s / n) rows. What is no matrix is exchanged as it is.
    """
    matrix_elements = sum(each.rows * each.columns * each.count for each in matrices)
    coded = 0.0
    for each in matrices:
        rows = max(1, int(min(each.rows, shard_elements / each.columns)))
        coded += low_rank_ratio(rows, each.columns, rank) * each.rows * each.columns * each.count
    return (coded + max(0.0, parameters - matrix_elements)) / parameters


def coding_traffic_bytes(codec: CodecName, regions: int, ratio: float) -> tuple[float, float]:
    """(before, after the wire) bytes of memory traffic for each fp32 element of a rank's shard, with error feedback.

    Encoding reads element and residual and writes residual and code: 12 + 4c bytes, c = `ratio`, and 4 for every further pass;
    decoding reads the code and writes or adds the element: 8 + 4c. Of two regions a rank encodes its shard once and decodes
    both; of R >= 3 it encodes it and the R-th it adds up, and decodes (R - 1)/R and the whole result.
    """
    if codec == "none":
        return 0.0, 0.0
    encode = 12 + 4 * ratio + 4 * _PASSES.get(codec, 0)
    decode = 8 + 4 * ratio
    if regions == 2:
        return encode, 2 * decode
    return encode, (2 * regions - 1) / regions * decode + encode / regions
