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

__all__ = [
    "Calibration", "ClassBands", "MeasuredLink", "calibration_text", "constants_with", "default_values", "link_changes",
    "read_calibration", "read_measured_links",
]  # fmt: skip

Ratio = Annotated[float, Field(gt=0)]


class ClassBands(Document):
    """p10 and p90 of measured / predicted on one class of fabric, from 128 MB, from 8 MB and below; None where nothing was
    measured.
    """

    wire: tuple[Ratio, Ratio] | None = None
    large: tuple[Ratio, Ratio] | None = None
    small: tuple[Ratio, Ratio] | None = None


class MeasuredLink(Document):
    """What a link between regions really carries, by `isthmus bench wan`; in place of what the fabric states."""

    rate_bytes_per_s: Ratio = Field(description="Of IP bytes, the slower way.")
    rate_low_bytes_per_s: Ratio = Field(description="The slowest repeat of either way.")
    rate_high_bytes_per_s: Ratio = Field(description="The quickest.")
    rtt_s: Annotated[float, Field(gt=0, le=10)] = Field(description="Of a small message and its answer; median.")
    rtt_low_s: Ratio = Field(description="The least.")
    rtt_high_s: Ratio = Field(description="The 99th percentile.")
    streams: Annotated[int, Field(ge=1)] = Field(description="The fewest a rail that filled it.")
    made_from: str = ""


class Calibration(Document):
    """What `isthmus calibrate` writes and predictions take."""

    version: Literal[1]
    made_from: list[str] = Field(default_factory=list[str], description="Runs that it was fitted to.")
    constants: dict[str, Ratio] = Field(
        default_factory=dict[str, Ratio], description="By name, such as nvlink4.sustained; others stay as isthmus ships them."
    )
    bands: dict[str, ClassBands] = Field(default_factory=dict[str, ClassBands], description="By class, such as nvlink4+efa.")
    wan: dict[str, MeasuredLink] = Field(default_factory=dict[str, MeasuredLink], description="By link, such as west-east.")
    exchange: Ratio | None = Field(default=None, description="Measured all-reduces over the regions / the limit of these links.")


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


def read_measured_links(path: Path | str) -> Calibration:
    """The calibration at `path` as it is written; `read_calibration` is for its constants.

    Raises:
        InputError: It is no calibration.
    """
    return load_document(path, Calibration)[0]


def link_changes(links: Mapping[str, MeasuredLink]) -> dict[str, float | int | str]:
    """Path in a fabric document -> what was measured there, for `isthmus.fabric.edited`."""
    changes: dict[str, float | int | str] = {}
    for name, link in links.items():
        changes[f"wan.{name}.rate"] = f"{link.rate_bytes_per_s * 8 / 1e9:.6g} Gb/s"
        changes[f"wan.{name}.rtt"] = f"{link.rtt_s * 1e3:.6g} ms"
    return changes


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
    for link in plain["wan"].values():
        link |= {name: float(f"{value:.4g}") for name, value in link.items() if isinstance(value, float)}
    if "exchange" in plain:
        plain["exchange"] = float(f"{plain['exchange']:.4g}")
    return yaml.safe_dump(plain, sort_keys=False, width=110)  # pyright: ignore[reportUnknownMemberType]
