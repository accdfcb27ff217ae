"""Jobs on Spark over the whole history: archive, views, report, audit, restore. Each is a function and a command.

`page` is what a report is written on: one HTML file, with `tables` and `charts` of plain values, no Spark in them.
`values` says how these are read, `markup` keeps text from being taken for HTML.

`pip install 'polonaise[spark]'` brings what they need.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("pyspark") is None:
    raise ExtraMissing("the pipeline needs PySpark: pip install 'polonaise[spark]'")
