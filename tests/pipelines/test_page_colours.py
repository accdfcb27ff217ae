"""The colours of lines in reports: told apart by people with any kind of colour vision, and seen on their page.

The matrices are those of Machado, Oliveira and Fernandes (2009) for a vision that lacks one kind of cone; the distance
is that of CIE 1976 in L*a*b*, in which 2 is just visible side by side.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import polonaise.pipelines
from polonaise.pipelines.charts.canvas import COLOURS

CSS = (Path(polonaise.pipelines.__file__).parent / "page.css").read_text()
VISIONS = {
    "all cones": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])

# One for a light screen, one for a dark one, and one for paper.
PALETTES = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in CSS.split(":root {")[1:4]]


def linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = XYZ @ np.clip(rgb, 0, 1) / WHITE
    root = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(float(XYZ[1] @ linear(colour)) for colour in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("palette", PALETTES, ids=["light", "dark", "print"])
@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_lines_have_colours_that_look_alike(palette: dict[str, str], vision: str) -> None:
    seen = {n: lab(VISIONS[vision] @ linear(palette[f"s{n}"])) for n in range(COLOURS)}
    for one, other in combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 12, (one, other)


@pytest.mark.parametrize("palette", PALETTES, ids=["light", "dark", "print"])
def test_lines_stand_out_from_their_page(palette: dict[str, str]) -> None:
    for n in range(COLOURS):
        assert contrast(palette[f"s{n}"], palette["page"]) >= 4.4, n
