"""Jobs on Spark over the whole history: archive, views, report, audit. Each is a function and a command.

Begin with `views`, the job most others resemble: `declarations` says what a view is, `viewsource` reads the log for it,
`targets` is the interface of the tables (`parquettarget`, `deltatarget`, `sqltarget`), and `targetaddress` opens them.
A table keeps its marks and, by `definitions`, its view's definition: each commit changes these and the rows in one
step. `audit` compares such a table with the log (`tablecomparison`); `logaudit` compares the log's copies with each
other (`copies`, `chains`). `archive` writes fragments, `deltaarchive` a Delta table over them. `report` writes an HTML
`page` of `tables` and `charts` from `summaries`; `formatting` writes values, `markup` escapes. `tasks` runs functions
in Spark's tasks, `runs` keeps the outcome of a run. `pip install 'polonaise[spark]'` brings what the jobs need.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("pyspark") is None:
    raise ExtraMissing("the pipeline needs PySpark: pip install 'polonaise[spark]'")
