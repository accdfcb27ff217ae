"""Which figures of a process have grown while its work stayed the same."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from polonaise_proving.record.sampling import FIGURES, Sample

SAMPLES_MIN: Final = 24
"""The least number of samples after the warm-up; a stretch with fewer is too short to be judged."""


class Tolerance(NamedTuple):
    """The growth that a figure may have: a fixed amount, plus a share of its early value."""

    absolute: float
    relative: float


TOLERANCES: Final = {
    "files": Tolerance(2, 0.05),
    "sockets": Tolerance(3, 0.10),
    "other": Tolerance(2, 0.10),
    "threads": Tolerance(2, 0.0),
    "tasks": Tolerance(4, 0.15),
    "memory_mb": Tolerance(12, 0.05),
}


class Stretch(NamedTuple):
    """A part of one life of a process in which it does the same all the time."""

    name: str
    samples: Sequence[Sample]


class Course(NamedTuple):
    """The course of one figure over one stretch."""

    stretch: str
    figure: str
    early: float
    """The median of the second quarter after the warm-up."""
    late: float
    """The median of the last quarter."""
    growth: float
    grown: bool
    """Whether the figure has grown by more than is tolerated."""


def courses(stretch: Stretch, warm_up_s: float) -> list[Course]:
    """Every figure's course; none for a stretch that is too short to be judged.

    A figure has grown if both its median and its low values have. Work that happens to be heavier at the end raises
    only the median; what is never given back raises both.
    """
    since_s = stretch.samples[0].at_s + warm_up_s if stretch.samples else 0.0
    samples = [sample for sample in stretch.samples if sample.at_s >= since_s]
    if len(samples) < SAMPLES_MIN:
        return []
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    made = []
    for figure in FIGURES:
        early = [float(getattr(sample, figure)) for sample in second]
        late = [float(getattr(sample, figure)) for sample in last]
        if min(early + late) < 0:  # the process does not say
            continue
        growth = min(of(late) - of(early) for of in _STATISTICS)
        allowed = TOLERANCES[figure]
        usual = statistics.median(early)
        grown = growth > allowed.absolute + allowed.relative * usual
        made.append(Course(stretch.name, figure, usual, statistics.median(late), growth, grown))
    return made


def _low(values: list[float]) -> float:
    return sorted(values)[len(values) // 10]


_STATISTICS: Final[tuple[Callable[[list[float]], float], ...]] = (statistics.median, _low)
