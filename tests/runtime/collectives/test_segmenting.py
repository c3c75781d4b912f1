"""How a tensor is cut for the pipeline: small buckets whole, since each segment costs; large ones so that the wire can follow."""

import pytest

from isthmus.runtime.collectives.hierarchical import HierarchicalReducer, ReducerOptions

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size_bytes", "segments"),
    [(4, 1), (1_187_840, 1), (2 * MIB - 4, 1), (2 * MIB, 2), (16 * MIB, 16), (64 * MIB, 16), (64 * MIB + 4, 17), (128 * MIB, 32)],
)
def test_one_segment_a_mebibyte_at_most_sixteen_and_none_above_four_mebibytes(size_bytes: int, segments: int) -> None:
    pieces = HierarchicalReducer(None, None).owned(size_bytes // 4)
    assert len(pieces) == segments
    assert sum(elements for _, elements in pieces) == size_bytes // 4
    assert max(elements for _, elements in pieces) <= MIB  # 4 MiB of float32


def test_a_segment_size_that_is_asked_for_is_never_exceeded() -> None:
    pieces = HierarchicalReducer(None, None, options=ReducerOptions(segment_bytes=1000)).owned(12_345)
    assert max(elements for _, elements in pieces) <= 250
