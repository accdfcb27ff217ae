"""The Spark data source and sink `polonaise`.

Read `source` first to follow a query, and `sink` to follow a write. Reading: `batchreader` and `streamreader` plan the
tasks, `taskreader` runs in each of them, `query` is the function `polonaise.spark.read`. Writing: `rows` are checked
and divided among partitions, `staging` keeps them, and `publishing` appends them to the log, each exactly once.
`protocol/` decides, without I/O, what each task reads and what is published.

The layouts of a block, of a plan and of the sink's two registers (`spark/<appId>`, and the one of `sink`)
outlive a process. Beside this package only `pipelines` imports pyspark, which `pip install 'polonaise[spark]'` brings.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("pyspark") is None:
    raise ExtraMissing("polonaise.spark needs PySpark: pip install 'polonaise[spark]'")

from polonaise.spark.query import read, register

__all__ = ["read", "register"]
