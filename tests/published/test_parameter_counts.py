"""Parameter counts against the published ones.

Exact counts are the totals of the public checkpoints (the `total` of safetensors metadata on each model's
page); rounded ones are the figures of the papers named beside them. Configs are the size-deciding keys of the
public files.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.workload import (
    active_parameter_count,
    mtp_parameter_count,
    parameter_count,
    preset_names,
    read_config,
    read_workload,
)


def decoder(model_type: str, sizes: tuple[int, ...], **keys: Any) -> dict[str, Any]:
    """sizes: layers, hidden, heads, kv heads, ffn, vocabulary."""
    names = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    )
    return {"model_type": model_type, **dict(zip(names, sizes, strict=True)), **keys}


LATENT = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
}

CHECKPOINTS: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt2": (
        124_439_808,
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
    ),
    "gpt2-xl": (
        1_557_611_200,
        {
            "model_type": "gpt2",
            "n_embd": 1600,
            "n_layer": 48,
            "n_head": 25,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
    ),
    "pythia-160m": (162_322_944, decoder("gpt_neox", (12, 768, 12, 12, 3072, 50304))),
    "gpt-neox-20b": (20_554_567_680, decoder("gpt_neox", (44, 6144, 64, 64, 24576, 50432))),
    "llama-2-7b": (6_738_415_616, decoder("llama", (32, 4096, 32, 32, 11008, 32000))),
    "llama-3-8b": (8_030_261_248, decoder("llama", (32, 4096, 32, 8, 14336, 128256))),
    "llama-3.2-1b": (
        1_235_814_400,
        decoder("llama", (16, 2048, 32, 8, 8192, 128256), head_dim=64, tie_word_embeddings=True),
    ),
    "mistral-7b": (7_241_732_096, decoder("mistral", (32, 4096, 32, 8, 14336, 32000), sliding_window=4096)),
    "mixtral-8x7b": (
        46_702_792_704,
        decoder("mixtral", (32, 4096, 32, 8, 14336, 32000), num_local_experts=8, num_experts_per_tok=2),
    ),
    "qwen2.5-7b": (7_615_616_512, decoder("qwen2", (28, 3584, 28, 4, 18944, 152064))),
    "qwen3-8b": (8_190_735_360, decoder("qwen3", (36, 4096, 32, 8, 12288, 151936), head_dim=128)),
    "qwen1.5-moe-a2.7b": (
        14_315_784_192,
        decoder(
            "qwen2_moe",
            (24, 2048, 16, 16, 5632, 151936),
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
        ),
    ),
    "qwen3-30b-a3b": (
        30_532_122_624,
        decoder(
            "qwen3_moe",
            (48, 2048, 32, 4, 6144, 151936),
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
        ),
    ),
    "phi-3-mini": (3_821_079_552, decoder("phi3", (32, 3072, 32, 32, 8192, 32064), sliding_window=2047)),
    "gemma-7b": (8_537_680_896, decoder("gemma", (28, 3072, 16, 16, 24576, 256000), head_dim=256)),
    "gemma-2-2b": (2_614_341_888, decoder("gemma2", (26, 2304, 8, 4, 9216, 256000), head_dim=256)),
    "gemma-2-9b": (9_241_705_984, decoder("gemma2", (42, 3584, 16, 8, 14336, 256000), head_dim=256)),
    "deepseek-v2-lite": (
        15_706_484_224,
        decoder(
            "deepseek_v2",
            (27, 2048, 16, 16, 10944, 102400),
            **LATENT,
            q_lora_rank=None,
            n_routed_experts=64,
            moe_intermediate_size=1408,
        ),
    ),
    "deepseek-v2": (
        235_741_434_880,
        decoder(
            "deepseek_v2",
            (60, 5120, 128, 128, 12288, 102400),
            **LATENT,
            q_lora_rank=1536,
            n_routed_experts=160,
            moe_intermediate_size=1536,
        ),
    ),
    "deepseek-v3": (
        671_026_419_200,
        decoder(
            "deepseek_v3",
            (61, 7168, 128, 128, 18432, 129280),
            **LATENT | {"first_k_dense_replace": 3, "num_experts_per_tok": 8, "n_shared_experts": 1},
            q_lora_rank=1536,
            n_routed_experts=256,
            moe_intermediate_size=2048,
            num_nextn_predict_layers=1,
        ),
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_public_config_gives_its_checkpoints_count_to_the_last_parameter(name: str, tmp_path: Path) -> None:
    published, config = CHECKPOINTS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert parameter_count(read_config(tmp_path / "config.json").shape) == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-v3", 671_026_419_200),
    ],
)
def test_a_preset_has_its_checkpoints_count(name: str, published: int) -> None:
    assert parameter_count(read_workload(name).shape) == published


@pytest.mark.parametrize(
    ("name", "published", "relative"),
    [
        (
            "gpt3-175b",
            174.6e9,
            1e-3,
        ),  # arXiv 2005.14165 says 175.0B; 174.6B is the count of its shape in arXiv 2104.04473
        ("gpt3-175b", 175.0e9, 3e-3),
        ("llama-3-405b", 405e9, 3e-3),  # arXiv 2407.21783
        ("mixtral-8x7b", 46.7e9, 1e-3),  # arXiv 2401.04088: "47B"
        ("deepseek-v3", 671e9, 1e-3),  # arXiv 2412.19437, without the MTP block
    ],
)
def test_a_preset_agrees_with_its_paper(name: str, published: float, relative: float) -> None:
    assert parameter_count(read_workload(name).shape) == pytest.approx(published, rel=relative)


def test_mixtral_activates_12_9_billion_with_both_embeddings() -> None:
    assert active_parameter_count(read_workload("mixtral-8x7b").shape) == pytest.approx(12.9e9, rel=3e-3)


def test_deepseek_activates_37_billion_and_36_6_without_the_token_table() -> None:
    # The paper rounds to 37B; README_WEIGHTS.md of the checkpoint says 36.6B "including 0.9B for the output
    # head", that is without the 129,280 x 7,168 token table, of which a token reads one row.
    shape = read_workload("deepseek-v3").shape
    assert active_parameter_count(shape) == pytest.approx(37e9, rel=0.02)
    assert active_parameter_count(shape) - shape.vocabulary * shape.hidden == pytest.approx(
        36.6e9, abs=0.05e9
    )


def test_deepseeks_mtp_block_is_11_5_billion_of_its_own() -> None:
    # README_WEIGHTS.md: 11.5B unique parameters; our count is 11.61B, of which the 2h x h projection is
    # 0.10B.
    assert mtp_parameter_count(read_workload("deepseek-v3").shape) == pytest.approx(11.5e9, rel=0.012)


def test_every_preset_names_its_source() -> None:
    for name in preset_names():
        source = read_workload(name).source
        assert "arXiv" in source or source.startswith("isthmus"), (name, source)
