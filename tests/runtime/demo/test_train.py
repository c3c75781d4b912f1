"""The reference model, its text, and the training script that runs alone as well as in regions."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InputError
from isthmus.runtime.demo.data import TextWindows, read_corpus
from isthmus.runtime.demo.model import PRESETS, ByteGPT, Shape, next_byte_loss
from isthmus.runtime.demo.train import learning_rate, parse_options, train
from isthmus.runtime.sampling import ShardedBatches


def closed_form_parameters(shape: Shape) -> int:
    # Per block: two LayerNorms (4h), qkv (3h^2 + 3h), out (h^2 + h), up (hf + f), down (fh + h).
    h, f = shape.hidden, shape.ffn
    block = 4 * h + 3 * h * h + 3 * h + h * h + h + h * f + f + f * h + h
    return shape.layers * block + (shape.vocabulary + shape.positions) * h + 2 * h + shape.vocabulary * h


@pytest.mark.parametrize("name", PRESETS)
def test_the_model_has_the_parameters_of_its_shape(name: str) -> None:
    assert sum(parameter.numel() for parameter in ByteGPT(PRESETS[name]).parameters()) == closed_form_parameters(PRESETS[name])


def test_a_position_never_sees_what_follows_it() -> None:
    torch.manual_seed(0)
    model = ByteGPT(PRESETS["mini"]).eval()
    text = torch.randint(0, 256, (1, 20))
    changed = text.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 256
    first, second = model(text), model(changed)
    torch.testing.assert_close(first[0, :12], second[0, :12])
    assert not torch.allclose(first[0, 12:], second[0, 12:])


def test_an_untrained_model_knows_as_much_as_a_die_of_256_faces() -> None:
    torch.manual_seed(0)
    text = torch.randint(0, 256, (4, 64))
    assert next_byte_loss(ByteGPT(PRESETS["mini"])(text), text).item() == pytest.approx(math.log(256), rel=0.02)


def test_the_corpus_is_split_by_file_in_the_order_of_names(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"m{number:02}.py").write_text(f"x = {number}")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "m00.py").write_text("left out")
    corpus = read_corpus(tmp_path)
    assert bytes(corpus.held_out.numpy()) == b"x = 8"
    assert bytes(corpus.train.numpy()) == b"\n".join(b"x = %d" % number for number in range(20) if number != 8)


def test_a_python_without_its_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds 0 \.py files, at least 16 are needed"):
        read_corpus(tmp_path)


@settings(deadline=None, max_examples=30)
@given(length=st.integers(1, 60), ranks=st.integers(1, 5), batch=st.integers(1, 4), seed=st.integers(0, 5))
def test_ranks_share_an_epoch_without_overlap(length: int, ranks: int, batch: int, seed: int) -> None:
    windows = TextWindows(torch.arange(length * 3 + 1, dtype=torch.uint8), 3)
    if length < ranks * batch:
        with pytest.raises(InputError, match="one step of"):
            ShardedBatches(windows, batch_size=batch, rank=0, ranks=ranks, seed=seed)
        return
    sources = [ShardedBatches(windows, batch_size=batch, rank=rank, ranks=ranks, seed=seed) for rank in range(ranks)]
    steps = sources[0].steps_per_epoch
    read = [index for step in range(steps) for source in sources for index in source.indices(step)]
    assert len(read) == len(set(read)) == steps * ranks * batch
    # A step's samples are those one rank with the whole batch would read: strategies differ in nothing but the exchange.
    whole = ShardedBatches(windows, batch_size=batch * ranks, rank=0, ranks=1, seed=seed)
    assert read == [index for step in range(steps) for index in whole.indices(step)]


def test_targets_are_the_inputs_one_byte_later() -> None:
    inputs, targets = TextWindows(torch.arange(30, dtype=torch.uint8), 7)[2]
    assert inputs.tolist() == list(range(14, 21))
    assert targets.tolist() == list(range(15, 22))


@given(step=st.integers(0, 5000), steps=st.integers(1, 3000))
@settings(deadline=None)
def test_the_learning_rate_factor_stays_within_a_tenth_and_one(step: int, steps: int) -> None:
    factor = learning_rate(step, steps)
    assert 0 < factor <= 1
    if step >= max(20, steps):
        assert factor == pytest.approx(0.1)


def test_the_script_trains_alone_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_METRICS", str(tmp_path))
    train(parse_options(["--preset", "mini", "--steps", "12", "--batch", "4", "--eval-every", "6", "--eval-windows", "8"]))
    rows = [json.loads(line) for line in (tmp_path / "here-0.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    assert [row["tokens"] for row in evaluations] == [6 * 4 * 64, 12 * 4 * 64]
    assert evaluations[-1]["loss"] < evaluations[0]["loss"] < math.log(256)
