import json
from pathlib import Path

import pytest

from isthmus.errors import InputError
from isthmus.workload import WorkloadDocument, parameter_count, preset_names, read_workload

EXAMPLES = Path(__file__).parents[2] / "examples" / "workloads"
SHAPE = "model: {layers: 2, hidden: 8, heads: 2, ffn: 16, gated: true, vocabulary: 10, tied: true%s}\n"
BATCH = "sequence_length: 16\nsequences_per_step: 4\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    return path


def refusal(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        read_workload(path)
    return str(caught.value).replace(str(path), Path(path).name)


def test_every_example_reads_and_states_a_positive_batch() -> None:
    names = {path.name: read_workload(path) for path in EXAMPLES.glob("*.yaml")}
    assert names["gpt3-175b-1024.yaml"].tokens_per_step == 1024 * 2048
    assert names["gpt3-175b-1024.yaml"].mfu == 0.4
    assert names["llama-3-8b-1m.yaml"].sequences_per_step == 128
    assert names["llama-3-8b-1m.yaml"].gradient_bytes == 2
    assert parameter_count(names["own-shape.yaml"].shape) == 1_235_814_400  # the shape of Llama-3.2-1B
    assert names["tiny.yaml"].shape == read_workload("tiny").shape


def test_published_batches() -> None:
    tokens = {name: read_workload(name).tokens_per_step for name in preset_names()}
    assert tokens["gpt3-175b"] == pytest.approx(3.2e6, rel=0.02)  # arXiv 2005.14165, table 2.1
    assert tokens["llama-3-405b"] == pytest.approx(16e6, rel=0.05)  # arXiv 2407.21783, table 4
    assert tokens["deepseek-v3"] == 15360 * 4096  # arXiv 2412.19437, section 4.2
    assert tokens["tiny"] == tokens["small"] == 32 * 128


def test_a_preset_that_publishes_no_batch_says_what_was_assumed() -> None:
    assert "405B only" in read_workload("llama-3-8b").assumed[0]
    assert read_workload("llama-3-405b").assumed == ()


def test_a_workload_over_a_config_takes_its_shape_and_its_own_batch(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    workload = read_workload(
        write(
            tmp_path,
            "model: config.json\ntokens_per_step: 524288\nsequence_length: 1024\n"
            "precision: fp16\ngradient_dtype: fp32\nmfu: 35%\n",
        )
    )
    assert (workload.sequences_per_step, workload.precision, workload.gradient_bytes) == (512, "fp16", 4)
    assert workload.mfu == pytest.approx(0.35)
    assert workload.assumed == ()
    assert parameter_count(workload.shape) == 124_439_808


def test_a_config_alone_says_that_its_batch_is_assumed(tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        workload = read_workload(path)
        assert workload.sequence_length == 1024
        assert workload.assumed == (
            "1,024 sequences of 1,024 tokens a step, bf16 with bf16 gradients: a config.json "
            "states none; write a workload.yaml to set them",
        )


def test_an_unknown_preset_names_the_nearest() -> None:
    assert refusal("lama3-8b") == (
        "<workload>: 'lama3-8b' is neither a preset nor a .yaml or .json file\n"
        "  hint: did you mean 'llama-3-8b'?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: gpt3-175\n",
            "w.yaml:1: model: 'gpt3-175' is neither a preset nor a config.json\n"
            "  hint: did you mean 'gpt3-175b'?",
        ),
        (
            "model: tiny\nsequence_lenght: 3\n",
            "w.yaml:2: unknown key 'sequence_lenght'\n  hint: did you mean 'sequence_length'?",
        ),
        (
            "model: tiny\nsequence_length: 256\nsequences_per_step: 1\n",
            "w.yaml:2: sequence_length: found 256, but the model has 128 learned positions",
        ),
        (
            "model: tiny\nsequence_length: 64\n",
            "w.yaml:2: sequence_length: differs from the preset's 128, "
            "so its published batch no longer applies\n"
            "  hint: add sequences_per_step or tokens_per_step",
        ),
        (
            "model: tiny\nsequences_per_step: 8\ntokens_per_step: 1024\n",
            "w.yaml:3: sequences_per_step and tokens_per_step are both given\n  hint: keep one",
        ),
        (
            "model: tiny\ntokens_per_step: 1000\n",
            "w.yaml:2: tokens_per_step: 1000 is not a whole number of sequences of 128\n  hint: e.g. 896",
        ),
        (
            "model: tiny\nsequences_per_step: -4\n",
            "w.yaml:2: sequences_per_step: found -4, expected at least 1",
        ),
        (
            "model: tiny\nprecision: bf61\n",
            "w.yaml:2: precision: found 'bf61', expected one of fp32, bf16, fp16, fp8\n"
            "  hint: did you mean 'bf16'?",
        ),
        ("model: tiny\nmfu: 40\n", "w.yaml:2: mfu: found 40, expected at most 1"),
        (
            SHAPE % "" + "sequences_per_step: 4\n",
            "w.yaml:1: the key 'sequence_length' is missing\n  hint: only presets have a published one",
        ),
        (
            SHAPE % "" + "sequence_length: 16\n",
            "w.yaml:1: one of 'sequences_per_step' and 'tokens_per_step' is missing\n"
            "  hint: only presets have a published batch",
        ),
        (SHAPE % ", kv_heads: 3" + BATCH, "w.yaml:1: kv_heads: 2 heads are not a multiple of 3"),
        (SHAPE % ", experts_active: 2" + BATCH, "w.yaml:1: experts_active: needs experts"),
        (
            SHAPE % ", experts: 4, expert_ffn: 8, experts_active: 5" + BATCH,
            "w.yaml:1: experts_active: found 5, expected 1 to 4 (experts)",
        ),
        (
            SHAPE % ", attention: mla" + BATCH,
            "w.yaml:1: attention: mla needs kv_rank, rope_dim, nope_dim and head_dim (of the values)",
        ),
        (
            SHAPE % ", hidden_size: 8" + BATCH,
            "w.yaml:1: unknown key 'hidden_size'\n  hint: did you mean 'hidden'?",
        ),
        (
            "model:\n  layers: 2\n  hidden: 9\n  heads: 2\n  ffn: 1\n  gated: true\n"
            "  vocabulary: 5\n  tied: true\n"
            + BATCH,
            "w.yaml:4: heads: hidden 9 is not a multiple of 2\n  hint: state head_dim, or change one of them",
        ),
        (
            "model: {layers: 2}\n" + BATCH,
            "w.yaml:1: the key 'hidden' is missing (5 more faults in this file)\n"
            "  hint: every entry of 'model' needs it",
        ),
        ("model: 3\n", "w.yaml:1: model: found 3, expected a preset, a path or a shape written out"),
        (
            "",
            "w.yaml: is empty\n  hint: expected the keys version, name, model, sequence_length, "
            "sequences_per_step, tokens_per_step, precision, gradient_dtype, mfu",
        ),
    ],
)
def test_a_faulty_workload_is_refused_with_its_line_and_a_hint(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refusal(write(tmp_path, text)) == message


def test_the_schema_offers_a_name_or_a_shape_and_accepts_no_other_key() -> None:
    schema = WorkloadDocument.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["model"]
    assert schema["properties"]["model"]["oneOf"] == [{"type": "string"}, {"$ref": "#/$defs/ShapeDocument"}]
