"""The planner's codec sizes are the runtime's, byte for byte."""

from typing import get_args

import pytest

from isthmus.cost.codecs import BLOCK_ELEMENTS, Matrices, codec_ratio, coding_traffic_bytes, low_rank_ratio, low_rank_share
from isthmus.errors import InfeasibleError
from isthmus.plan import CodecName

codecs = pytest.importorskip("isthmus.runtime.codecs.coding", exc_type=ImportError)
DENSE = [name for name in get_args(CodecName) if name not in ("topk", "topk-int4", "powersgd")]


@pytest.mark.parametrize("codec", DENSE)
@pytest.mark.parametrize("blocks", [1, 7, 4096])
def test_encoded_bytes_of_whole_blocks_are_the_predicted_share(codec: CodecName, blocks: int) -> None:
    elements = blocks * BLOCK_ELEMENTS.get(codec, 256)
    assert codecs.encoded_bytes(codec, elements) == elements * 4 * codec_ratio(codec)


@pytest.mark.parametrize("codec", ["topk", "topk-int4"])
@pytest.mark.parametrize("density", [0.0001, 0.01, 0.1, 0.5, 1.0])
def test_encoded_bytes_of_top_k_are_the_predicted_share(codec: CodecName, density: float) -> None:
    # 256 blocks of 4096: the kept values are then whole blocks of the inner codec, and the places whole words of 4 bytes.
    elements = 256 * 4096
    assert codecs.encoded_bytes(codecs.Codec(codec, density), elements) == elements * 4 * codec_ratio(codec, density)


def test_low_rank_of_a_matrix_too_small_for_it_is_the_matrix() -> None:
    assert low_rank_ratio(1024, 1024, 4) == 4 * 2048 / 1024**2
    assert low_rank_ratio(4, 4, 4) == 1.0
    with pytest.raises(InfeasibleError, match="low_rank_ratio"):
        codec_ratio("powersgd")


def test_low_rank_codes_whole_rows_of_a_shard_and_leaves_the_rest_as_it_is() -> None:
    # 1,000 x 500 and 100 loose elements, rank 4: shards of 50,000 are 100 rows: 4 x 600 / 50,000 = 4.8% of the matrix.
    matrices = [Matrices(rows=1000, columns=500, count=1)]
    assert low_rank_share(matrices, 500_100, 4, 50_000) == pytest.approx((0.048 * 500_000 + 100) / 500_100)
    assert low_rank_share(matrices, 500_100, 4, 1e9) == pytest.approx((4 * 1500 + 100) / 500_100)
    assert low_rank_share(matrices, 500_100, 4, 1) == 1


def test_coding_moves_what_is_read_and_written() -> None:
    # int8 of two regions: 4 + 4 read, 4 + 1.0156 written; decoded twice, 1.0156 read and 8 for the sum.
    ratio = codec_ratio("int8")
    assert coding_traffic_bytes("int8", 2, ratio) == pytest.approx((12 + 4 * ratio, 2 * (8 + 4 * ratio)))
    assert coding_traffic_bytes("none", 2, 1.0) == (0, 0)
