"""Charts of a report, from plain values: `Bars`, `Lines` and `Flows`, with `Series` and `Mark`.

`figure` has what all of them share, `canvas` draws them, and alone imports matplotlib.
"""

from polonaise.pipelines.charts.figures import Bars, Chart, Flows, Lines, Mark, Series

__all__ = ["Bars", "Chart", "Flows", "Lines", "Mark", "Series"]
