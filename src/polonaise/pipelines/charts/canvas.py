"""Draw with matplotlib for a page: areas with axes, numbered marks, and SVG. No other module imports matplotlib.

A drawing takes its colours and its font from the page, and its texts stay texts. Nothing here touches what matplotlib
keeps for the whole process, so any thread may draw.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from typing import Any, Final

from polonaise.errors import ExtraMissing
from polonaise.pipelines.formatting import Number, finite, width_of
from polonaise.pipelines.markup import Markup, element, printable

if find_spec("matplotlib") is None:
    raise ExtraMissing("charts need matplotlib: pip install 'polonaise[spark]'")

from matplotlib.axes import Axes as Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.colors import to_hex
from matplotlib.dates import AutoDateLocator, num2date
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

WIDTH: Final = 760.0
"""Width of a drawing in its own units, which are pixels where there is room for them."""
TEXT: Final = 12.0
"""Font size of labels, in the units of a drawing."""
SMALL: Final = 11.0
"""Font size of values that stand beside their bars, and of sums."""
COLOURS: Final = 7
"""Number of colours for lines, which `page.css` defines for any kind of colour vision."""

_NAMES: Final = ("text", "soft", "rule", "zero", "page", "bad", "heat", "other", *(f"s{n}" for n in range(COLOURS)))
COLOUR: Final = {name: f"#0000{place:02x}" for place, name in enumerate(_NAMES)}
"""For each colour of the page, by name, what stands for it while matplotlib draws, until `svg`."""
_SCALES: Final = ((1e12, "trillions"), (1e9, "billions"), (1e6, "millions"))


def area(height: float, left: float, right: float, top: float, bottom: float, heading: str) -> Axes:
    """Make an empty area with these margins in a drawing of this height, and a heading above. Sizes in its units."""
    figure = Figure((WIDTH / 72, height / 72), dpi=72, frameon=False)
    width, inner = WIDTH - left - right, height - top - bottom
    axes = figure.add_axes((left / WIDTH, bottom / height, width / WIDTH, inner / height), frameon=False)
    axes.set_axisbelow(True)
    axes.grid(visible=False)  # whatever style an application has set
    axes.tick_params(length=0, pad=8, labelsize=TEXT, labelcolor=COLOUR["text"], color=COLOUR["zero"])
    axes.annotate(heading, (0, height - 12), xycoords="figure points", size=TEXT, color=COLOUR["soft"])
    return axes


def upright_area(values: Sequence[Number], unit: str, *, right: float = 16, top: float = 30) -> Axes:
    """Make an area for these values, with round numbers at its left, and zero unless all values lie far from it."""
    low, high = finite(min(values)), finite(max(values))
    near, far = sorted((abs(low), abs(high)))
    if near < 0.6 * far or low == high:
        low, high = min(low, 0.0), max(high, 0.0)
    whole = all(isinstance(value, int) for value in values)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10], integer=whole).tick_values(low, high if high > low else low + 1)
    labels, factor = _read_numbers(ticks)
    left = max(44.0, 14 + max(width_of(label, TEXT) for label in labels))
    axes = area(top + 290, left, right, top, 40, ", ".join(part for part in (unit, factor) if part))
    axes.set_ylim(ticks[0], ticks[-1])
    axes.set_yticks(ticks, labels)
    axes.grid(axis="y", color=COLOUR["rule"], linewidth=1, linestyle="-")
    if ticks[0] <= 0 <= ticks[-1]:
        axes.axhline(0, color=COLOUR["zero"], linewidth=1)
    return axes


def number_axis(axes: Axes, low: float, high: float) -> None:
    """Let the axis below go from `low` to `high`, and label round numbers on it."""
    axes.set_xlim(low, high)
    ticks = [at for at in MaxNLocator(7, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= at <= high]
    labels, factor = _read_numbers(ticks)
    axes.set_xticks(ticks, [f"{label} {factor}".rstrip() for label in labels])


def _read_numbers(numbers: Sequence[float]) -> tuple[list[str], str]:
    """Write round numbers, and name the factor that all are to be multiplied by, such as `millions`; empty for none."""
    most = max(abs(number) for number in numbers)
    factor, name = next(((factor, name) for factor, name in _SCALES if most >= 2 * factor), (1.0, ""))
    texts = (f"{number / factor + 0.0:,.10g}" for number in numbers)  # adding 0.0 makes -0.0 a zero without a sign
    return [text.replace("-", "\N{MINUS SIGN}") for text in texts], name


def time_axis(axes: Axes, low: float, high: float, *, least: int = 5) -> None:
    """Let the axis below go from `low` to `high`, days since 1970, with labels where long periods begin."""
    axes.set_xlim(low, high)
    locator = AutoDateLocator(tz=UTC, minticks=least, maxticks=10)
    ticks = [at for at in locator.tick_values(*num2date((low, high), UTC)) if low <= at <= high]
    _label_times(axes, ticks, num2date(ticks, UTC))


def month_axis(axes: Axes, low: float, high: float) -> None:
    """Let the axis below go from `low` to `high`, months since the year 0."""
    axes.set_xlim(low, high)
    step = next(step for step in (1, 3, 6, 12, 24, 60, 120, 600, 1200, 12000) if high - low <= 14 * step)
    ticks = [at for at in range(math.ceil(low), math.ceil(high)) if at % step == 0]
    _label_times(axes, ticks, [datetime(at // 12, at % 12 + 1, 1, tzinfo=UTC) for at in ticks])


def _label_times(axes: Axes, ticks: Sequence[float], times: Sequence[datetime]) -> None:
    """Label times as shortly as their distance allows, with the year or the day in a second line where it changes."""
    step = min((after - before for before, after in pairwise(times)), default=timedelta(days=1))
    if step >= timedelta(days=360):
        first, second = "{0:%Y}", ""
    elif step >= timedelta(days=28):
        first, second = "{0:%b}", "{0:%Y}"
    elif step >= timedelta(days=1):
        first, second = "{0.day} {0:%b}", "{0:%Y}"
    else:
        first = "{0:%H:%M}" if step >= timedelta(minutes=1) else "{0:%H:%M:%S}"
        second = "{0.day} {0:%b} {0:%Y}"
    changes = pairwise(["", *(second.format(at) for at in times)])
    below = [after if after != before else "" for before, after in changes]
    axes.set_xticks(ticks, [f"{first.format(at)}\n{text}" for at, text in zip(times, below, strict=True)])


def number_mark(axes: Axes, number: int, at: tuple[float, float], offset: tuple[float, float], why: str) -> None:
    """Draw the number of a mark in a disc, `offset` units of the drawing from the point `at`; `why` is its title."""
    disc = {"boxstyle": "circle,pad=0.2", "facecolor": COLOUR["bad"], "linewidth": 0}
    style: dict[str, Any] = {"size": 10.5, "weight": "bold", "color": COLOUR["page"], "bbox": disc}
    axes.annotate(str(number), at, offset, textcoords="offset points", ha="center", va="center", gid=why, **style)


class _Renderer(RendererSVG):
    """matplotlib's SVG, with texts in the font of the page, and with the `gid` of an artist as its title."""

    # By default one marker is drawn and referred to by an id; ids of several drawings on a page would be the same.
    draw_markers = RendererBase.draw_markers

    def draw_path(self, gc: Any, path: Path, transform: Any, rgbFace: Any = None) -> None:  # noqa: N803
        path.simplify_threshold = 0.5  # pixels, where there are very many points
        super().draw_path(gc, path, transform, rgbFace)

    def open_group(self, s: str, gid: str | None = None) -> None:
        self.writer.start("g")
        if gid:
            self.writer.element("title", printable(gid))

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        size = prop.get_size()
        return width_of(s, size), size, 0.2 * size

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, prop: Any, angle: float, ismath: Any = False, mtext: Any = None
    ) -> None:
        # `x` is the left end by our estimate of the width; the browser, which knows better, is told the fixed point.
        # `mtext` is None for one of several lines, and these are centred.
        if not s:
            return
        side = mtext.get_ha() if mtext else "center"
        anchor, share = {"left": ("start", 0.0), "center": ("middle", 0.5), "right": ("end", 1.0)}[side]
        x += share * width_of(s, prop.get_size())
        style = f"font-size: {prop.get_size():g}px; font-weight: {prop.get_weight()}; fill: {to_hex(gc.get_rgb())}"
        attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "style": style}
        if angle:
            attributes["transform"] = f"rotate({-angle:g} {x:.1f} {y:.1f})"
        self.writer.element("text", printable(s), attrib=attributes)


def svg(axes: Axes, label: str, summary: str) -> Markup:
    """Return the drawing as an SVG element: for screen readers one picture, named `label`, told by `summary`."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    for artist in figure.findobj():
        artist.set_clip_on(False)  # a clip path has an id, and ids of several drawings on a page would be the same
        if isinstance(artist, Text):
            artist.set_parse_math(False)  # a text with dollar signs is no formula
            artist.set_usetex(False)
    height, written = figure.get_figheight() * 72, StringIO()
    renderer = _Renderer(WIDTH, height, written)
    figure.draw(renderer)
    renderer.finalize()
    drawn = written.getvalue().partition("</defs>")[2].rpartition("</svg>")[0]  # without styles for a whole document
    # One digit is enough for the eye.
    drawn = re.sub(r'<path d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), drawn)
    drawn = re.sub(r"#0000(..)(?=[^<]*>)", lambda colour: f"var(--{_NAMES[int(colour[1], 16)]})", drawn)
    return element(
        "svg",
        element("desc", summary, id=f"{label}-summary"),
        Markup(drawn),
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_labelledby=label,
        aria_describedby=f"{label}-summary",
    )
