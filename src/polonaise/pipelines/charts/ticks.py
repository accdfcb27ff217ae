"""Where an axis is marked, and how: round numbers, and the beginnings of days, months and years."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from polonaise.pipelines.values import time_at

_SCALES: Final = ((1e12, "trillions"), (1e9, "billions"), (1e6, "millions"))
_MINUTE, _HOUR = 60, 3600
DAY: Final = 86400.0
MONTH: Final = 30.44 * DAY
_MONDAY: Final = 4 * DAY
"""The first Monday after the beginning of 1970."""


class Tick(NamedTuple):
    at: float
    label: str
    below: str = ""
    """In a second line: the year of a month, where it changes."""


class Scale(NamedTuple):
    """The ticks of an axis with numbers, from the first to the last of which it goes."""

    ticks: tuple[Tick, ...]
    factor: str
    """`millions`, where the labels are that; else empty."""

    @property
    def low(self) -> float:
        return self.ticks[0].at

    @property
    def high(self) -> float:
        return self.ticks[-1].at


def number_scale(low: float, high: float, *, about: int = 5, whole: bool = False) -> Scale:
    """Round numbers around `low` and `high`; `whole` for what there are no halves of."""
    if high - low <= 1e-12 * max(abs(low), abs(high)):  # nothing, or less than numbers of this size can tell apart
        high = low + (abs(low) or 1.0)
    step, exponent = _round_step((high / about) - (low / about))
    if whole and step < 1:
        step, exponent = 1.0, 0
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    size = max(abs(first), abs(last)) * step
    factor, name = next(((factor, name) for factor, name in _SCALES if size >= 2 * factor), (1.0, ""))
    decimals = max(0, round(math.log10(factor)) - exponent)
    labels = (f"{place * step / factor:,.{decimals}f}" for place in range(first, last + 1))
    ticks = (
        Tick(round(place * step, max(0, -exponent)), label.replace("-", "\N{MINUS SIGN}"))
        for place, label in zip(range(first, last + 1), labels, strict=True)
    )
    return Scale(tuple(ticks), name)


def _round_step(rough: float) -> tuple[float, int]:
    """1, 2 or 5 times a power of ten, at least about `rough`; and the power."""
    exponent = math.floor(math.log10(rough))
    for mantissa in (1, 2, 5):
        if mantissa * 10.0**exponent >= rough * 0.999:
            return mantissa * 10.0**exponent, exponent
    return 10.0 ** (exponent + 1), exponent + 1


# ------------------------------------------------------------------ time


class _Step(NamedTuple):
    about_s: float
    places: Callable[[float, float], Iterator[float]]
    label: Callable[[datetime], str]
    below: Callable[[datetime], str]


def time_ticks(first_s: float, last_s: float, *, count_max: int = 9, least_s: float = 0.0) -> list[Tick]:
    """The beginnings of the shortest periods of which there are no more than this between two times.

    None are shorter than `least_s`, about.
    """
    span = last_s - first_s
    step = next((step for step in _STEPS if span / step.about_s <= count_max and step.about_s >= least_s), _STEPS[-1])
    ticks: list[Tick] = []
    before = ""
    for at in step.places(first_s, last_s):
        moment = time_at(at)
        below = step.below(moment)
        ticks.append(Tick(at, step.label(moment), below if below != before else ""))
        before = below
    return ticks


def _every(seconds: float, offset: float = 0.0) -> Callable[[float, float], Iterator[float]]:
    def places(first_s: float, last_s: float) -> Iterator[float]:
        number = math.ceil((first_s - offset) / seconds)
        while number * seconds + offset <= last_s:
            yield number * seconds + offset
            number += 1

    return places


def _months(every: int) -> Callable[[float, float], Iterator[float]]:
    def places(first_s: float, last_s: float) -> Iterator[float]:
        begin = time_at(first_s)
        number = (begin.year * 12 + begin.month - 1) // every * every
        while number // 12 <= 9999:
            at = datetime(max(1, number // 12), number % 12 + 1, 1, tzinfo=UTC).timestamp()
            if at > last_s:
                return
            if at >= first_s:
                yield at
            number += every

    return places


def _day_and_year(moment: datetime) -> str:
    return f"{moment.day} {moment:%b} {moment.year}"


_STEPS: Final = (
    *(_Step(n, _every(n), lambda at: f"{at:%H:%M:%S}", _day_and_year) for n in (1, 5, 15, 30)),
    *(_Step(n * _MINUTE, _every(n * _MINUTE), lambda at: f"{at:%H:%M}", _day_and_year) for n in (1, 5, 15, 30)),
    *(_Step(n * _HOUR, _every(n * _HOUR), lambda at: f"{at:%H:%M}", _day_and_year) for n in (1, 3, 6, 12)),
    *(_Step(n * DAY, _every(n * DAY), lambda at: f"{at.day} {at:%b}", lambda at: str(at.year)) for n in (1, 2)),
    _Step(7 * DAY, _every(7 * DAY, _MONDAY), lambda at: f"{at.day} {at:%b}", lambda at: str(at.year)),
    *(_Step(n * MONTH, _months(n), lambda at: f"{at:%b}", lambda at: str(at.year)) for n in (1, 3, 6)),
    *(
        _Step(n * 12 * MONTH, _months(n * 12), lambda at: str(at.year), lambda _: "")
        for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    ),
)
