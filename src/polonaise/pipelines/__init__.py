"""Jobs on Spark over the whole history: archive, views, report, audit. Each is a function and a command.

Begin with `views`, the job most others resemble: `declarations` says what a view is, `viewsource` reads the log for it,
and `targets` is the interface of the tables. A table keeps its marks and, by `definitions`, its view's definition: each
commit changes these and the rows in one step. `audit` compares such a table with the log, `logaudit` the log's copies
with each other. `pip install 'polonaise[spark]'` brings what the jobs need.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("pyspark") is None:
    raise ExtraMissing("the pipeline needs PySpark: pip install 'polonaise[spark]'")
