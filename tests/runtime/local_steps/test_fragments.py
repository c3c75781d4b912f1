"""The cut into fragments, and residuals in its numbering."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.runtime.codecs.feedback import ErrorFeedback
from isthmus.runtime.local_steps.fragments import FragmentDraft, cut

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=12)


@given(sizes=SIZES, data=st.data(), shards=st.integers(1, 5))
def test_a_cut_has_every_element_once_and_lines_up_with_the_model(sizes: list[int], data: st.DataObject, shards: int) -> None:
    fragments = cut(sizes, data.draw(st.integers(1, len(sizes))), shards)
    tensors = list(torch.arange(float(sum(sizes))).split(sizes))
    seen: list[float] = []
    for fragment in fragments:
        flat = fragment.read(tensors)
        assert flat.numel() == fragment.elements == fragment.shards * fragment.shard_elements
        assert flat.numel() - sum(fragment.sizes) < shards
        for offset, first, count in fragment.pieces(0, fragment.elements):
            assert flat[offset : offset + count].tolist() == list(range(first, first + count))
            seen += flat[offset : offset + count].tolist()
    assert sorted(seen) == list(range(sum(sizes)))


@given(sizes=SIZES, data=st.data())
def test_fragments_are_strided_and_even(sizes: list[int], data: st.DataObject) -> None:
    # Of every F parameters in a row each is in another fragment; and no two fragments differ by more than the sum of the
    # largest differences in a row, which is at most the largest parameter: the lighter gets the larger of every row.
    count = data.draw(st.integers(1, len(sizes)))
    fragments = cut(sizes, count, 1)
    owner = {member: fragment.number for fragment in fragments for member in fragment.members}
    for first in range(0, len(sizes), count):
        row = range(first, min(first + count, len(sizes)))
        assert len({owner[member] for member in row}) == len(row)
    totals = [sum(fragment.sizes) for fragment in fragments]
    assert max(totals) - min(totals) <= max(sizes)


@given(data=st.data())
def test_residuals_keep_their_elements_through_drafts_of_any_cut(data: st.DataObject) -> None:
    sizes = [5, 3, 8, 2]
    feedback = ErrorFeedback()
    feedback.residual(0, 18).copy_(torch.arange(18.0))
    for count in data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        for fragment in cut(sizes, count, 2):
            draft = FragmentDraft(feedback, fragment)
            for shard in range(2):
                start = shard * fragment.shard_elements
                part = draft.residual(start, fragment.shard_elements)
                for offset, first, size in fragment.pieces(start, fragment.shard_elements):
                    assert part[offset : offset + size].tolist() == list(range(first, first + size))
            draft.commit()
    assert torch.equal(feedback.residual(0, 18), torch.arange(18.0))


def test_a_draft_that_is_dropped_changes_nothing() -> None:
    feedback = ErrorFeedback()
    draft = FragmentDraft(feedback, cut([4, 4], 2, 1)[1])
    draft.residual(0, 4).fill_(7.0)
    assert feedback.residual(4, 4).tolist() == [0.0] * 4
    draft.commit()
    assert feedback.residual(0, 8).tolist() == [0.0] * 4 + [7.0] * 4


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_model_of_equal_layers_is_cut_evenly(count: int) -> None:
    # Three layers of a large and a small parameter, strided by 1, 2 or 3: the larger of each row goes to the lighter.
    totals = [sum(fragment.sizes) for fragment in cut([9, 3] * 3, count, 1)]
    assert max(totals) - min(totals) <= {1: 0, 2: 6, 3: 9}[count]
