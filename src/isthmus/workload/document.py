"""`workload.yaml`: what the user writes, and the table of presets, which is written the same way."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from isthmus.documents import Document, Fraction, Lines, Path_
from isthmus.workload.model import Attention, ModelShape, Precision

__all__ = ["GradientDtype", "Preset", "PresetTable", "ShapeDocument", "WorkloadDocument", "shape_of"]

GradientDtype = Literal["fp32", "bf16", "fp16", "fp8"]
GRADIENT_BYTES: dict[GradientDtype, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]
Some = Annotated[int, Field(ge=1, le=10**9, strict=True)]


class ShapeDocument(Document):
    """A model written out; the meaning of every key is that of `ModelShape`.

    `kv_heads` left out means one per head, `head_dim` left out means hidden / heads. `norm` is `rms` or
    `layer`.
    """

    layers: Some
    hidden: Some
    heads: Some
    kv_heads: Some | None = None
    head_dim: Some | None = None
    ffn: Some
    gated: bool
    vocabulary: Some
    tied: bool
    positions: Count = 0
    biases: bool = False
    qkv_biases: bool = False
    qk_norm: bool = False
    norm: Literal["rms", "layer"] = "rms"
    block_norms: Some = 2
    experts: Count = 0
    experts_active: Count = 0
    expert_ffn: Count = 0
    shared_experts: Count = 0
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: Count = 0
    attention: Attention = "mha-gqa"
    q_rank: Count = 0
    kv_rank: Count = 0
    rope_dim: Count = 0
    nope_dim: Count = 0
    window: Count = 0
    windowed_layers: Count = 0
    dropout: bool = False
    mtp_layers: Count = 0


def _kind(value: object) -> str:
    return "a preset or a path" if isinstance(value, str) else "a shape"


def _text_or_keys(value: object) -> object:
    if not isinstance(value, str | dict | ShapeDocument):
        raise ValueError(f"found {value!r}, expected a preset, a path or a shape written out")
    return value  # pyright: ignore[reportUnknownVariableType]


Model = Annotated[
    Annotated[str, Tag("a preset or a path")] | Annotated[ShapeDocument, Tag("a shape")],
    Discriminator(_kind),
    BeforeValidator(_text_or_keys),
]


class WorkloadDocument(Document):
    """One model and what one optimizer step feeds it.

    `model` is a preset, the path of a Hugging Face config.json (from this file's folder), or a shape written
    out. Batch, precision and gradient format left out are the preset's; a model that is not a preset must
    state `sequence_length` and one of `sequences_per_step` and `tokens_per_step`.
    """

    version: Literal[1] = 1
    name: str | None = None
    model: Model
    sequence_length: Some | None = None
    sequences_per_step: Some | None = None
    tokens_per_step: Annotated[int, Field(ge=1, le=10**12, strict=True)] | None = None
    precision: Precision | None = None
    gradient_dtype: GradientDtype | None = None
    mfu: Annotated[Fraction, Field(gt=0, le=1)] | None = None


class Preset(Document):
    """A published model: everything a workload needs, and where it was published."""

    source: str
    assumed: tuple[str, ...] = ()
    sequence_length: Some
    sequences_per_step: Some
    precision: Precision
    gradient_dtype: GradientDtype
    model: ShapeDocument


class PresetTable(Document):
    """`presets.yaml`."""

    presets: dict[str, Preset]


def shape_of(document: ShapeDocument, name: str, lines: Lines, path: Path_) -> ModelShape:
    """The model that `document` writes out.

    Raises:
        InputError: Keys contradict each other; points at the line of one of them.
    """
    kv_heads, head_dim = document.kv_heads or document.heads, document.head_dim
    if head_dim is None and document.hidden % document.heads:
        raise lines.error(
            (*path, "heads"),
            f"heads: hidden {document.hidden} is not a multiple of {document.heads}",
            "state head_dim, or change one of them",
        )
    if document.heads % kv_heads:
        raise lines.error(
            (*path, "kv_heads"), f"kv_heads: {document.heads} heads are not a multiple of {kv_heads}"
        )
    for key, fault in _faults(document):
        raise lines.error((*path, key), f"{key}: {fault}")
    stated = document.model_dump(exclude={"kv_heads", "head_dim", "norm"})
    return ModelShape(
        name=name,
        kv_heads=kv_heads,
        head_dim=head_dim or document.hidden // document.heads,
        norm_tensors=2 if document.norm == "layer" else 1,
        **stated,
    )


def _faults(document: ShapeDocument) -> list[tuple[str, str]]:
    """(key, what is wrong) of every contradiction between keys that each are well-formed."""
    d = document
    expert_keys = (
        "experts_active",
        "expert_ffn",
        "shared_experts",
        "dense_layers",
        "shared_gate",
        "router_bias",
    )
    mla_keys = ("q_rank", "kv_rank", "rope_dim", "nope_dim")
    faults = [(key, "needs experts") for key in expert_keys if not d.experts and getattr(d, key)]
    faults += [(key, "needs attention: mla") for key in mla_keys if d.attention != "mla" and getattr(d, key)]
    checks = (
        (d.experts and not d.expert_ffn, "experts", "needs expert_ffn, the inner width of one expert"),
        (
            d.experts and not 1 <= d.experts_active <= d.experts,
            "experts_active",
            f"found {d.experts_active}, expected 1 to {d.experts} (experts)",
        ),
        (
            d.dense_layers >= d.layers,
            "dense_layers",
            f"found {d.dense_layers}, leaves no expert layer of {d.layers}",
        ),
        (
            d.attention == "mla" and not (d.kv_rank and d.rope_dim and d.nope_dim and d.head_dim),
            "attention",
            "mla needs kv_rank, rope_dim, nope_dim and head_dim (of the values)",
        ),
        (
            d.attention == "mla" and d.kv_heads not in (None, d.heads),
            "kv_heads",
            "mla has one key and value per head",
        ),
        (
            d.attention == "mla" and (d.biases or d.qkv_biases or d.qk_norm),
            "attention",
            "mla takes no biases or qk_norm",
        ),
        (
            d.windowed_layers > d.layers,
            "windowed_layers",
            f"found {d.windowed_layers}, more than {d.layers} layers",
        ),
        (
            bool(d.window) != bool(d.windowed_layers),
            "window" if d.window else "windowed_layers",
            "window and windowed_layers go together",
        ),
    )
    return faults + [(key, text) for wrong, key, text in checks if wrong]
