"""Charts of a report, from plain values: `Bars`, `Lines` and `Flows`, with `Series` and `Mark`.

`figures` says what each looks like; `canvas` draws them, and alone imports matplotlib.
"""

from polonaise.pipelines.charts.figures import Bars, Chart, Flows, Lines, Mark, Series

__all__ = ["Bars", "Chart", "Flows", "Lines", "Mark", "Series"]
