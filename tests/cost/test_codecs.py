"""The planner's codec sizes are the runtime's, byte for byte."""

import pytest

from isthmus.cost.codecs import codec_ratio
from isthmus.plan import CodecName

codecs = pytest.importorskip("isthmus.runtime.codecs.coding", exc_type=ImportError)


@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4"])
@pytest.mark.parametrize("blocks", [1, 7, 4096])
def test_encoded_bytes_of_whole_blocks_are_the_predicted_share(codec: CodecName, blocks: int) -> None:
    elements = blocks * codecs.BLOCK_ELEMENTS
    assert codecs.encoded_bytes(codec, elements) == elements * 4 * codec_ratio(codec)
