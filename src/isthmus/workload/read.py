"""From a name or a file to a `Workload`; the only way to make one from text."""

from dataclasses import dataclass
from os.path import isdir, isfile  # unlike Path's, false for names no file can have
from pathlib import Path

from isthmus.documents import Lines, load_document
from isthmus.errors import InputError, nearest
from isthmus.workload.document import (
    GRADIENT_BYTES,
    GradientDtype,
    PresetTable,
    ShapeDocument,
    WorkloadDocument,
    shape_of,
)
from isthmus.workload.huggingface import read_config
from isthmus.workload.model import ModelShape, Precision, Workload

__all__ = ["preset_names", "read_workload"]

PRESETS = Path(__file__).with_name("presets.yaml")
# A config.json states no batch. These are shown as assumptions wherever one is read without a workload.yaml.
ASSUMED_TOKENS_PER_SEQUENCE = 4096
ASSUMED_SEQUENCES = 1024


def read_workload(name_or_path: str | Path) -> Workload:
    """The workload of a preset's name, a `workload.yaml`, or a Hugging Face `config.json` (or its folder).

    A config.json alone states no batch: sequences of 4,096 tokens (or fewer where the model takes fewer),
    1,024 of them a step, are assumed and listed in `Workload.assumed`.

    Raises:
        InputError: The name is unknown, or the file cannot be read or contradicts itself.
    """
    name = str(name_or_path)
    presets = _presets()
    if name in presets:
        return presets[name]
    path = Path(name_or_path)
    if isdir(path):
        path = path / "config.json"
    if path.suffix == ".json":
        return _from_config(path)
    if path.suffix in (".yaml", ".yml") or isfile(path):
        return _from_document(path, presets)
    raise InputError(
        "<workload>", f"{name!r} is neither a preset nor a .yaml or .json file", nearest(name, presets)
    )


def preset_names() -> tuple[str, ...]:
    """Names of the presets, as `presets.yaml` orders them."""
    return tuple(_presets())


def _presets() -> dict[str, Workload]:
    table, lines = load_document(PRESETS, PresetTable)
    return {
        name: Workload(
            name=name,
            shape=shape_of(preset.model, name, lines, ("presets", name, "model")),
            sequence_length=preset.sequence_length,
            sequences_per_step=preset.sequences_per_step,
            precision=preset.precision,
            gradient_bytes=GRADIENT_BYTES[preset.gradient_dtype],
            mfu=None,
            source=preset.source,
            assumed=preset.assumed,
        )
        for name, preset in table.presets.items()
    }


def _from_config(path: Path) -> Workload:
    config = read_config(path)
    length = min(ASSUMED_TOKENS_PER_SEQUENCE, config.positions_max or ASSUMED_TOKENS_PER_SEQUENCE)
    assumed = (
        f"{ASSUMED_SEQUENCES:,} sequences of {length:,} tokens a step, bf16 with bf16 gradients: "
        "a config.json states none; write a workload.yaml to set them",
    )
    return Workload(
        name=config.shape.name,
        shape=config.shape,
        sequence_length=length,
        sequences_per_step=ASSUMED_SEQUENCES,
        precision="bf16",
        gradient_bytes=2,
        mfu=None,
        source=str(path),
        assumed=assumed,
    )


@dataclass(frozen=True, slots=True)
class _Model:
    """A shape, and the workload it was published with where it is a preset."""

    shape: ModelShape
    source: str
    preset: Workload | None = None


def _from_document(path: Path, presets: dict[str, Workload]) -> Workload:
    document, lines = load_document(path, WorkloadDocument)
    model = _model(document, lines, path, presets)
    preset = model.preset
    length = document.sequence_length or (preset.sequence_length if preset else None)
    if length is None:
        raise lines.error((), "the key 'sequence_length' is missing", "only presets have a published one")
    if model.shape.positions and length > model.shape.positions:
        raise lines.error(
            ("sequence_length",),
            f"sequence_length: found {length}, but the model has {model.shape.positions} learned positions",
        )
    precision, gradient_bytes, assumed = _formats(document, preset)
    return Workload(
        name=document.name or path.stem,
        shape=model.shape,
        sequence_length=length,
        sequences_per_step=_sequences(document, lines, length, preset),
        precision=precision,
        gradient_bytes=gradient_bytes,
        mfu=document.mfu,
        source=f"{path}: {model.source}",
        assumed=assumed,
    )


def _model(document: WorkloadDocument, lines: Lines, path: Path, presets: dict[str, Workload]) -> _Model:
    match document.model:
        case ShapeDocument() as shape:
            return _Model(shape_of(shape, document.name or path.stem, lines, ("model",)), "shape written out")
        case str() as name if name in presets:
            return _Model(presets[name].shape, presets[name].source, presets[name])
        case str() as name:
            config = path.parent / name
            if isdir(config):
                config = config / "config.json"
            if config.suffix != ".json":
                raise lines.error(
                    ("model",),
                    f"model: {name!r} is neither a preset nor a config.json",
                    nearest(name, presets),
                )
            if not isfile(config):
                raise lines.error(
                    ("model",),
                    f"model: no such file {str(config)!r}",
                    "a path counts from the folder of this workload",
                )
            return _Model(read_config(config).shape, str(config))


def _sequences(document: WorkloadDocument, lines: Lines, length: int, preset: Workload | None) -> int:
    if document.sequences_per_step is not None and document.tokens_per_step is not None:
        raise lines.error(
            ("tokens_per_step",), "sequences_per_step and tokens_per_step are both given", "keep one"
        )
    if document.sequences_per_step is not None:
        return document.sequences_per_step
    if document.tokens_per_step is not None:
        if document.tokens_per_step % length:
            below = document.tokens_per_step // length * length
            raise lines.error(
                ("tokens_per_step",),
                f"tokens_per_step: {document.tokens_per_step} is not a whole number of sequences of {length}",
                f"e.g. {below or length}",
            )
        return document.tokens_per_step // length
    if preset is None:
        raise lines.error(
            (),
            "one of 'sequences_per_step' and 'tokens_per_step' is missing",
            "only presets have a published batch",
        )
    if document.sequence_length not in (None, preset.sequence_length):
        raise lines.error(
            ("sequence_length",),
            f"sequence_length: differs from the preset's {preset.sequence_length}, "
            "so its published batch no longer applies",
            "add sequences_per_step or tokens_per_step",
        )
    return preset.sequences_per_step


def _formats(document: WorkloadDocument, preset: Workload | None) -> tuple[Precision, int, tuple[str, ...]]:
    """Precision, bytes per gradient, and what had to be assumed about them."""
    assumed: list[str] = []
    precision = document.precision or (preset.precision if preset else None)
    if precision is None:
        precision = "bf16"
        assumed.append("bf16: the workload states no precision")
    if document.gradient_dtype is not None:
        gradient_bytes = GRADIENT_BYTES[document.gradient_dtype]
    elif preset is not None and document.precision in (None, preset.precision):
        gradient_bytes = preset.gradient_bytes
    else:
        dtype: GradientDtype = "bf16" if precision == "fp8" else precision
        gradient_bytes = GRADIENT_BYTES[dtype]
        assumed.append(f"{dtype} gradients: the workload states no gradient_dtype")
    return precision, gradient_bytes, tuple(assumed)
