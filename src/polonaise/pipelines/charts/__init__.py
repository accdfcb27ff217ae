"""Charts of a report as SVG, from plain values: `Bars`, `Lines` and `Flows`, with `Series` and `Mark`.

`ticks` says where an axis is marked, `plot` draws what bars and lines have in common, `figure` what all have: title,
remarks, and the same figures as a table for those who can't see or want to copy them. Each kind has its own module.
"""

from polonaise.pipelines.charts.bars import Bars
from polonaise.pipelines.charts.figure import Chart, Mark
from polonaise.pipelines.charts.flows import Flows
from polonaise.pipelines.charts.lines import Lines, Series

__all__ = ["Bars", "Chart", "Flows", "Lines", "Mark", "Series"]
