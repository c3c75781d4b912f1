from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from isthmus.documents import Count, Document, Fraction, RateBytesPerS, TimeS, parse_document
from isthmus.errors import InputError
from isthmus.fabric import parse_fabric


class Leaf(Document):
    rate: RateBytesPerS
    many: Annotated[Count, Field(ge=1)] = 1


class Tree(Document):
    title: str
    leaves: dict[str, Leaf] = Field(default_factory=dict)
    either: Leaf | Literal["none"] = "none"
    on: bool = False
    rtt: TimeS = 0.0
    loss: Fraction = 0.0


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        parse_document(text, "t.yaml", Tree)
    return str(error.value)


def test_every_value_knows_its_line_through_flow_block_and_alias() -> None:
    text = "title: x\nleaves:\n  a: &a\n    rate: 8 b/s\n  b: {rate: 16 b/s,\n      many: 3}\n  c: *a\n"
    tree, lines = parse_document(text, "t.yaml", Tree)
    assert [leaf.rate for leaf in tree.leaves.values()] == [1.0, 2.0, 1.0]
    assert lines.where(("leaves", "a", "rate")) == "t.yaml:4"
    assert lines.where(("leaves", "b", "many")) == "t.yaml:6"
    assert lines.where(("leaves", "c")) == "t.yaml:7"
    assert lines.where(("leaves", "b", "nothing", 3)) == "t.yaml:5"  # the nearest value that encloses it


def test_zero_needs_no_unit_and_a_fraction_none_at_all() -> None:
    tree, _ = parse_document("{title: x, rtt: 0, loss: 0.5}", "t.yaml", Tree)
    assert (tree.rtt, tree.loss) == (0.0, 0.5)


def test_a_byte_order_mark_is_read_over(tmp_path: object) -> None:
    from pathlib import Path

    from isthmus.documents import load_document

    file = Path(str(tmp_path)) / "t.yaml"
    file.write_bytes(b"\xef\xbb\xbftitle: x\n")
    assert load_document(file, Tree)[0].title == "x"


def test_dates_and_version_numbers_in_text_stay_text() -> None:
    assert parse_document("title: 2026-11-30", "t.yaml", Tree)[0].title == "2026-11-30"


def test_a_truth_value_is_read_where_one_belongs_only() -> None:
    assert parse_document("{title: x, on: yes}", "t.yaml", Tree)[0].on is True
    assert refused("title: x\nrtt: off\n").startswith("t.yaml:2: rtt: found false, a truth value")
    assert refused("title: x\non: maybe\n") == "t.yaml:2: on: found 'maybe', expected true or false"


def test_a_fault_inside_a_union_points_at_the_line_of_the_value() -> None:
    assert refused("title: x\neither:\n  rate: 8 b/s\n  many: 0\n").startswith("t.yaml:4: many: found 0, expected at least 1")


def test_a_value_of_any_length_is_shown_in_one_line() -> None:
    message = refused("title: x\nrtt: " + "9" * 5000 + "\n")
    assert len(message) < 200
    assert len(refused("title: x\n" + "k" * 900 + ": 1\n")) < 300


def test_the_first_of_several_faults_is_told_and_the_others_counted() -> None:
    assert refused("title: 3\nrtt: 4\nloss: 7 m\nzzz: 1\n").startswith("t.yaml:4: unknown key 'zzz' (3 more faults in this file)")


@settings(max_examples=300)
@given(text=st.text(max_size=200))
def test_no_text_ends_otherwise_than_read_or_refused(text: str) -> None:
    try:
        parse_document(text, "t.yaml", Tree)
    except InputError as error:
        told = error.where
    else:
        told = "t.yaml"
    assert told.startswith("t.yaml")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["18 ms", "hgx-h100"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "regions", "wan", "nodes", "count", "kind", "between", "rate", "rtt", "nics", "west"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(value=VALUES)
def test_no_tree_of_values_breaks_the_reader_of_fabrics(value: object) -> None:
    text = yaml.safe_dump({"name": "x", "regions": {"west": value}, "wan": value})
    try:
        parse_fabric(text, "f.yaml")
    except InputError as error:
        told = error.where
    else:
        told = "f.yaml"
    assert told.startswith("f.yaml")
