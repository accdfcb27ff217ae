"""An area between two axes: what bars and lines have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polonaise.pipelines.charts.figure import TEXT, WIDTH, text, title_of
from polonaise.pipelines.charts.ticks import Scale, Tick
from polonaise.pipelines.markup import Markup, element, joined
from polonaise.pipelines.values import width_of


@dataclass(frozen=True)
class Plot:
    """Values from left to right on `low` to `high`, and from the bottom to the top on `scale`."""

    scale: Scale
    low: float
    high: float
    unit: str
    right: float = 16.0
    """Room on the right, for labels."""
    top: float = 30.0
    inner: float = 250.0
    """How high the area is."""

    @property
    def left(self) -> float:
        return 14.0 + max(width_of(tick.label, TEXT) for tick in self.scale.ticks)

    @property
    def width(self) -> float:
        return WIDTH - self.left - self.right

    @property
    def bottom(self) -> float:
        return self.top + self.inner

    @property
    def height(self) -> float:
        return self.bottom + 40

    def x(self, place: float) -> float:
        """Where a place is, from left to right."""
        span = (self.high - self.low) or 1.0
        return self.left + (place - self.low) / span * self.width

    def y(self, value: float) -> float:
        """Where a value is, from top to bottom."""
        share = (value - self.scale.low) / (self.scale.high - self.scale.low)
        return self.bottom - share * self.inner

    def axes(self, ticks: Sequence[Tick], *, marked: bool = True) -> Markup:
        """Lines across, the labels of both axes, and the unit; `marked` draws a short stroke at each place below."""
        drawn = [text(title_of(self.unit, self.scale.factor), 0, 12, class_="axis")]
        for tick in self.scale.ticks:
            at = self.y(tick.at)
            zero = "zero" if tick.at == 0 else None
            drawn.append(element("line", x1=self.left, x2=WIDTH - self.right, y1=at, y2=at, class_=zero or "grid"))
            drawn.append(text(tick.label, self.left - 8, at + 4, anchor="end"))
        for tick in ticks:
            at = self.x(tick.at)
            if marked:
                drawn.append(element("line", x1=at, x2=at, y1=self.bottom, y2=self.bottom + 5, class_="tick"))
            drawn.append(text(tick.label, at, self.bottom + 18, anchor="middle"))
            if tick.below:
                drawn.append(text(tick.below, at, self.bottom + 33, anchor="middle", class_="axis"))
        return joined(*drawn)
