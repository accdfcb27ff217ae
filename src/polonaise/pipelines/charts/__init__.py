"""Charts of a report, from plain values: `Bars`, `Lines` and `Flows`, with `Series` and `Mark`.

`figure` has what all of them share, `canvas` draws them, and alone imports matplotlib.
"""

from polonaise.pipelines.charts.bars import Bars
from polonaise.pipelines.charts.figure import Chart, Mark
from polonaise.pipelines.charts.flows import Flows
from polonaise.pipelines.charts.lines import Lines, Series

__all__ = ["Bars", "Chart", "Flows", "Lines", "Mark", "Series"]
