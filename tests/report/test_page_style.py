"""The page's colours, checked against the definitions of contrast (WCAG 2.1) and of colour-blind sight."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from isthmus.report.svg import HUES

CSS = files("isthmus.report").joinpath("templates/page.css").read_text(encoding="utf-8")
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})\b", block)) for block in re.findall(r":root \{([^}]*)\}", CSS))
THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
# Machado, Oliveira & Fernandes, IEEE TVCG 15(6), 2009: severity 1.0, on linear RGB.
SIGHT = {
    "full": np.eye(3),
    "protan": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deutan": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritan": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]


def linear(colour: str) -> Vector:
    srgb = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Vector) -> Vector:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_black_on_white_has_the_contrast_that_the_definition_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


@THEMES
def test_both_themes_define_the_same_colours(theme: dict[str, str]) -> None:
    assert set(theme) == set(LIGHT)
    assert {f"c{index}" for index in range(HUES)} < set(theme)


@THEMES
def test_all_text_has_a_contrast_of_at_least_4_5(theme: dict[str, str]) -> None:
    texts = ["ink", "muted", "good", "warn", "neutral", *(f"c{index}" for index in range(HUES))]
    pairs = [(name, "card") for name in texts] + [
        ("ink", "page"),
        ("muted", "page"),
        ("muted", "box"),
        ("ink", "box"),
        ("warn", "warn-back"),
    ]
    assert {
        pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in pairs if contrast(theme[pair[0]], theme[pair[1]]) < 4.5
    } == {}


@THEMES
@pytest.mark.parametrize("sight", SIGHT)
def test_strategy_colours_stay_apart_for_every_kind_of_sight(theme: dict[str, str], sight: str) -> None:
    # CIE 1976 difference; about 2 is just noticeable side by side.
    seen = [lab(SIGHT[sight] @ linear(theme[f"c{index}"])) for index in range(HUES)]
    apart = {pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]])) for pair in combinations(range(HUES), 2)}
    assert min(distance for pair, distance in apart.items() if max(pair) < 5) > 15
    assert min(apart.values()) > 10


def test_the_style_sheet_asks_nothing_of_the_network() -> None:
    assert not re.search(r"url\(|@import|@font-face|expression\(|//", CSS)
