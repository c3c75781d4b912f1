import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import InputError
from isthmus.workload import read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_key_value_heads": 2}
NONE = object()


def shape(tmp_path: Path, **keys: Any):
    (tmp_path / "config.json").write_text(
        json.dumps({k: v for k, v in (LLAMA | keys).items() if v is not NONE}, indent=0)
    )
    return read_config(tmp_path / "config.json").shape


def refusal(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as caught:
        read_config(path)
    return str(caught.value).replace(str(path), "config.json")


def test_layers_without_experts_are_counted_wherever_they_stand(tmp_path: Path) -> None:
    # Layers 1 and 3 by the stride of two, of which 3 is listed as dense: one expert layer of four.
    found = shape(tmp_path, model_type="qwen3_moe", **EXPERTS, decoder_sparse_step=2, mlp_only_layers=[3])
    assert (found.dense_layers, found.expert_layers) == (3, 1)


def test_windows_cover_the_layers_the_family_gives_them(tmp_path: Path) -> None:
    windows = {
        "mistral": shape(tmp_path, model_type="mistral", num_key_value_heads=2, sliding_window=8),
        "none": shape(tmp_path, model_type="mistral", num_key_value_heads=2, sliding_window=None),
        "gemma2": shape(tmp_path, model_type="gemma2", num_key_value_heads=2, head_dim=16, sliding_window=8),
        "qwen2": shape(
            tmp_path,
            model_type="qwen2",
            num_key_value_heads=2,
            sliding_window=8,
            use_sliding_window=True,
            max_window_layers=3,
        ),
        "off": shape(
            tmp_path, model_type="qwen2", num_key_value_heads=2, sliding_window=8, use_sliding_window=False
        ),
    }
    assert {name: found.windowed_layers for name, found in windows.items()} == {
        "mistral": 4,
        "none": 0,
        "gemma2": 2,
        "qwen2": 1,
        "off": 0,
    }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"model_type": "lama"},
            "config.json:2: unknown model_type 'lama'; known: deepseek_v2, deepseek_v3, gemma, gemma2, "
            "gpt2, gpt_neox, llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe\n"
            "  hint: write the shape out under model: in a workload.yaml",
        ),
        (
            {"model_type": NONE},
            "config.json: the key 'model_type' is missing\n  hint: known: deepseek_v2, deepseek_v3, gemma, "
            "gemma2, gpt2, gpt_neox, llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe",
        ),
        (
            {"hidden_size": NONE},
            "config.json: the key 'hidden_size' is missing\n  hint: model_type 'llama' needs it",
        ),
        (
            {"model_type": "mistral"},
            "config.json: the key 'num_key_value_heads' is missing\n  hint: model_type 'mistral' needs it",
        ),
        (
            {"vocab_size": -1},
            "config.json:7: vocab_size: found -1, expected a whole number from 1 to 1000000000",
        ),
        (
            {"vocab_size": True},
            "config.json:7: vocab_size: found True, expected a whole number from 1 to 1000000000",
        ),
        (
            {"vocab_size": "100"},
            "config.json:7: vocab_size: found '100', expected a whole number from 1 to 1000000000",
        ),
        (
            {"num_attention_heads": 5},
            "config.json:4: hidden_size 64 is not a multiple of num_attention_heads 5 and head_dim "
            "is not stated",
        ),
        (
            {"num_key_value_heads": 3},
            "config.json:8: num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        (
            {"attention_bias": True},
            "config.json:8: attention_bias: true in only one half of the block is not supported\n"
            "  hint: write the shape out under model: in a workload.yaml",
        ),
        ({"tie_word_embeddings": 1}, "config.json:8: tie_word_embeddings: found 1, expected true or false"),
        (
            {
                "model_type": "mixtral",
                "num_key_value_heads": 2,
                "num_local_experts": 2,
                "num_experts_per_tok": 3,
            },
            "config.json:10: num_experts_per_tok 3 is more than num_local_experts 2",
        ),
        (
            {"model_type": "qwen3_moe", **EXPERTS, "mlp_only_layers": [0, 9]},
            "config.json:12: mlp_only_layers: found [0, 9], expected a list of layers from 0 to 3",
        ),
        (
            {"model_type": "deepseek_v3", "num_key_value_heads": 2},
            "config.json:8: num_key_value_heads 2 differs from "
            "num_attention_heads 4: latent attention has no groups",
        ),
        (
            {"model_type": "deepseek_v3", "first_k_dense_replace": 4},
            "config.json:8: first_k_dense_replace 4 leaves no expert layer of 4",
        ),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused_with_file_and_key(tmp_path: Path, keys, message) -> None:
    values = {k: v for k, v in (LLAMA | keys).items() if v is not NONE}
    assert refusal(tmp_path, json.dumps(values, indent=0)) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama",\n "hidden_size": }', "config.json:2: is not JSON: Expecting value"),
        ("[1, 2]", "config.json: expected the keys and values of a Hugging Face config.json"),
        (b'{"a": "\xff"}', "config.json:1: byte 0xff is not UTF-8\n  hint: save the file as UTF-8"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text, message) -> None:
    assert refusal(tmp_path, text) == message


def test_nesting_without_end_is_refused_without_a_traceback(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[" * 200_000).startswith("config.json: is not JSON that can be read: ")
