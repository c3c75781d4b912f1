"""A Hugging Face `config.json` becomes a `ModelShape`: one function for each family, none guessed.

Where a key may be left out, its meaning is the one the family's configuration class documents; keys that
decide the size of the model have no such default here, except the number of key/value heads of Llama and
Phi-3.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.workload.config_json import Config
from isthmus.workload.model import ModelShape

__all__ = ["MODEL_TYPES", "HuggingFaceModel", "read_config"]


@dataclass(frozen=True, slots=True)
class HuggingFaceModel:
    """The shape, and the longest sequence the config allows (0 where it states none)."""

    shape: ModelShape
    positions_max: int


def read_config(path: Path | str) -> HuggingFaceModel:
    """Read the `config.json` at `path`.

    Raises:
        InputError: Not readable, not JSON, an unknown `model_type`, or keys that are missing or contradict.
    """
    config = Config.read(path)
    model_type = config.values.get("model_type")
    if not isinstance(model_type, str):
        raise config.error(
            "model_type",
            "the key 'model_type' is missing"
            if model_type is None
            else f"model_type: found {model_type!r}, expected a name",
            f"known: {', '.join(sorted(MODEL_TYPES))}",
        )
    if model_type not in MODEL_TYPES:
        raise config.error(
            "model_type",
            f"unknown model_type {model_type!r}; known: {', '.join(sorted(MODEL_TYPES))}",
            "write the shape out under model: in a workload.yaml",
        )
    longest = config.whole("n_positions" if model_type == "gpt2" else "max_position_embeddings", 0)
    return HuggingFaceModel(MODEL_TYPES[model_type](config), longest)


def _decoder(config: Config, kv_heads: int | None, tied: bool = False) -> dict[str, Any]:
    """What families with Llama's key names share: RMSNorm, gated feed-forward, rotary positions, no biases.

    `kv_heads` is the family's default, None where it must be stated; `tied` is the default of the embedding.
    """
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    stated = config.whole("head_dim", 0)
    if not stated and hidden % heads:
        raise config.error(
            "num_attention_heads",
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            " and head_dim is not stated",
        )
    groups = config.size("num_key_value_heads", kv_heads)
    if heads % groups:
        raise config.error(
            "num_key_value_heads",
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {groups}",
        )
    return {
        "name": config.values["model_type"],
        "layers": config.size("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": groups,
        "head_dim": stated or hidden // heads,
        "ffn": config.size("intermediate_size"),
        "gated": True,
        "vocabulary": config.size("vocab_size"),
        "tied": config.flag("tie_word_embeddings", tied),
    }


def _replaced(shape: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return shape | fields


def _with_attention_bias(config: Config, shape: dict[str, Any]) -> ModelShape:
    """Refuses half-biased blocks, which no published model of these families has."""
    attention, mlp = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    if attention != mlp:
        key = "attention_bias" if attention else "mlp_bias"
        raise config.error(
            key,
            f"{key}: true in only one half of the block is not supported",
            "write the shape out under model: in a workload.yaml",
        )
    return ModelShape(**shape, biases=attention)


def _llama(config: Config) -> ModelShape:
    return _with_attention_bias(config, _decoder(config, config.size("num_attention_heads")))


def _window(config: Config, layers: int, windowed: int) -> dict[str, Any]:
    window = config.whole("sliding_window", 0)
    return {"window": window, "windowed_layers": min(windowed, layers)} if window and windowed else {}


def _mistral(config: Config) -> ModelShape:
    shape = _decoder(config, None)
    return ModelShape(**shape, **_window(config, shape["layers"], shape["layers"]))


def _mixtral(config: Config) -> ModelShape:
    shape = _decoder(config, None)
    return ModelShape(
        **shape,
        **_window(config, shape["layers"], shape["layers"]),
        **_experts(config, "num_local_experts", shape["ffn"]),
    )


def _experts(config: Config, key: str, width: int) -> dict[str, Any]:
    experts, active = config.size(key), config.size("num_experts_per_tok")
    if active > experts:
        raise config.error(
            "num_experts_per_tok", f"num_experts_per_tok {active} is more than {key} {experts}"
        )
    return {"experts": experts, "experts_active": active, "expert_ffn": width}


def _qwen_window(config: Config, layers: int) -> dict[str, Any]:
    """Layers from `max_window_layers` on are windowed, if `use_sliding_window` says so."""
    if not config.flag("use_sliding_window", False):
        return {}
    return _window(config, layers, layers - min(layers, config.whole("max_window_layers")))


def _qwen2(config: Config) -> ModelShape:
    shape = _decoder(config, None)
    return ModelShape(**shape, qkv_biases=True, **_qwen_window(config, shape["layers"]))


def _qwen3(config: Config) -> ModelShape:
    shape = _decoder(config, None)
    return ModelShape(**shape, qk_norm=True, **_qwen_window(config, shape["layers"]))


def _qwen_experts(config: Config, layers: int) -> dict[str, Any]:
    stride, dense = config.size("decoder_sparse_step", 1), config.layers_listed("mlp_only_layers", layers)
    sparse = sum((layer + 1) % stride == 0 and layer not in dense for layer in range(layers))
    if not sparse:
        raise config.error("mlp_only_layers", "decoder_sparse_step and mlp_only_layers leave no expert layer")
    return {
        **_experts(config, "num_experts", config.size("moe_intermediate_size")),
        "dense_layers": layers - sparse,
    }


def _qwen2_moe(config: Config) -> ModelShape:
    shape = _decoder(config, None)
    experts = _qwen_experts(config, shape["layers"])
    shared = config.size("shared_expert_intermediate_size")
    if shared % experts["expert_ffn"]:
        raise config.error(
            "shared_expert_intermediate_size",
            f"shared_expert_intermediate_size {shared} is not a "
            f"multiple of moe_intermediate_size {experts['expert_ffn']}",
        )
    return ModelShape(
        **shape,
        **experts,
        qkv_biases=True,
        shared_experts=shared // experts["expert_ffn"],
        shared_gate=True,
        **_qwen_window(config, shape["layers"]),
    )


def _qwen3_moe(config: Config) -> ModelShape:
    shape = _decoder(config, None)
    return ModelShape(
        **shape,
        **_qwen_experts(config, shape["layers"]),
        qk_norm=True,
        **_qwen_window(config, shape["layers"]),
    )


def _deepseek(config: Config) -> ModelShape:
    """DeepSeek-V2 and V3; V3 has a balancing bias per expert and may have multi-token-prediction blocks."""
    shape = _decoder(config, config.size("num_attention_heads"))
    if shape["kv_heads"] != shape["heads"]:
        raise config.error(
            "num_key_value_heads",
            f"num_key_value_heads {shape['kv_heads']} differs from "
            f"num_attention_heads {shape['heads']}: latent attention has no groups",
        )
    layers, dense = shape["layers"], config.whole("first_k_dense_replace")
    stride = config.size("moe_layer_freq", 1)
    sparse = sum(layer >= dense and layer % stride == 0 for layer in range(layers))
    if not sparse:
        raise config.error(
            "first_k_dense_replace", f"first_k_dense_replace {dense} leaves no expert layer of {layers}"
        )
    shape["head_dim"] = config.size("v_head_dim")
    newer = config.values["model_type"] == "deepseek_v3"
    return ModelShape(
        **shape,
        attention="mla",
        q_rank=config.whole("q_lora_rank", 0),
        kv_rank=config.size("kv_lora_rank"),
        rope_dim=config.size("qk_rope_head_dim"),
        nope_dim=config.size("qk_nope_head_dim"),
        **_experts(config, "n_routed_experts", config.size("moe_intermediate_size")),
        shared_experts=config.whole("n_shared_experts", 0),
        dense_layers=layers - sparse,
        router_bias=newer,
        mtp_layers=config.whole("num_nextn_predict_layers", 0) if newer else 0,
    )


def _phi3(config: Config) -> ModelShape:
    shape = _decoder(config, config.size("num_attention_heads"))
    return ModelShape(**shape, **_window(config, shape["layers"], shape["layers"]))


def _gemma(config: Config) -> ModelShape:
    return ModelShape(**_replaced(_decoder(config, None, tied=True), head_dim=config.size("head_dim")))


def _gemma2(config: Config) -> ModelShape:
    """Every second layer is windowed, the first included; norms stand before and after both halves."""
    shape = _replaced(_decoder(config, None, tied=True), head_dim=config.size("head_dim"))
    return ModelShape(**shape, block_norms=4, **_window(config, shape["layers"], (shape["layers"] + 1) // 2))


def _gpt_neox(config: Config) -> ModelShape:
    """Pythia and GPT-NeoX: rotary positions, LayerNorm, biases, output projection of its own."""
    shape = _replaced(_decoder(config, config.size("num_attention_heads")), gated=False, norm_tensors=2)
    if not config.flag("attention_bias", True):
        raise config.error(
            "attention_bias", "attention_bias: false beside a biased feed-forward is not supported"
        )
    dropout = config.ratio("hidden_dropout", 0.0) + config.ratio("attention_dropout", 0.0) > 0
    return ModelShape(**shape, biases=True, dropout=dropout)


def _gpt2(config: Config) -> ModelShape:
    hidden, heads = config.size("n_embd"), config.size("n_head")
    if hidden % heads:
        raise config.error("n_head", f"n_embd {hidden} is not a multiple of n_head {heads}")
    return ModelShape(
        name="gpt2",
        layers=config.size("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=config.size("n_inner", 4 * hidden),
        gated=False,
        vocabulary=config.size("vocab_size"),
        tied=config.flag("tie_word_embeddings", True),
        positions=config.size("n_positions"),
        biases=True,
        norm_tensors=2,
        dropout=config.ratio("resid_pdrop", 0.1) + config.ratio("attn_pdrop", 0.1) > 0,
    )


MODEL_TYPES = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
