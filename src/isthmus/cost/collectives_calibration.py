"""calibration.yaml: the constants that a fabric's own measurements moved, laid over those that isthmus ships."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from isthmus.cost.collectives_constants import Bands, Constants, constants_from, default_constants, known_constants
from isthmus.documents import Document, load_document
from isthmus.errors import nearest

__all__ = ["Calibration", "ClassBands", "calibration_text", "constants_with", "default_values", "read_calibration"]

Ratio = Annotated[float, Field(gt=0)]


class ClassBands(Document):
    """p10 and p90 of measured / predicted on one class of fabric, from 128 MB, from 8 MB and below; None where nothing was
    measured.
    """

    wire: tuple[Ratio, Ratio] | None = None
    large: tuple[Ratio, Ratio] | None = None
    small: tuple[Ratio, Ratio] | None = None


class Calibration(Document):
    """What `isthmus calibrate` writes and predictions take."""

    version: Literal[1]
    made_from: list[str] = Field(default_factory=list[str], description="Runs that it was fitted to.")
    constants: dict[str, Ratio] = Field(description="By name, such as nvlink4.sustained; others stay as isthmus ships them.")
    bands: dict[str, ClassBands] = Field(default_factory=dict[str, ClassBands], description="By class, such as nvlink4+efa.")


def default_values() -> dict[str, float]:
    """The shipped constants by name."""
    return {each.name: each.value for each in known_constants()}


def read_calibration(path: Path | str) -> Constants:
    """The constants of the calibration at `path` laid over the shipped ones.

    Raises:
        InputError: It is no calibration, or names a constant that there is not.
    """
    document, lines = load_document(path, Calibration)
    known = default_values()
    for name in document.constants:
        if name not in known:
            raise lines.error(("constants", name), f"unknown constant {name!r}", nearest(name, known))
    return constants_with(document)


def constants_with(calibration: Calibration) -> Constants:
    """The shipped constants with those of `calibration` in their place."""
    base = default_constants()
    laid = constants_from({**default_values(), **calibration.constants}, base.bands, base.classes)
    return replace(laid, own=_own(calibration.bands, base.bands))


def _own(found: Mapping[str, ClassBands], shipped: Bands) -> dict[str, Bands]:
    return {
        name: replace(
            shipped,
            wire=bands.wire or shipped.wire,
            large=bands.large or shipped.large,
            small=bands.small or shipped.small,
        )
        for name, bands in found.items()
    }


def calibration_text(calibration: Calibration) -> str:
    """`calibration` as the YAML that `read_calibration` takes."""
    plain = calibration.model_dump(mode="json", exclude_none=True)
    plain["constants"] = {name: float(f"{value:.4g}") for name, value in plain["constants"].items()}
    return yaml.safe_dump(plain, sort_keys=False, width=110)  # pyright: ignore[reportUnknownMemberType]
