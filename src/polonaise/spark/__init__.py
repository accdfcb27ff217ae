"""The log in Spark: the data source and sink `polonaise`.

`options` is what a query may say, checked before anything runs. `clusters` is what a process is connected to.
`source`, `batchreader` and `streamreader` read history, `query` is the function `read`. `decoders` make columns of
bodies: those that are `decodable`, of JSON by `jsonbodies`, of rows by `rowvalues`. `sink` is what Spark sees when it
writes: `rows` are checked and divided, and `staging` keeps them until `publishing` has them in the log, exactly once.
`protocol/` decides: what each task reads, and what is published.
`sessions` makes a Spark session without set-up, on a Java that `java` finds.

This room and `pipelines` are the only ones that import pyspark; `pip install 'polonaise[spark]'` brings it.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("pyspark") is None:
    raise ExtraMissing("the pipeline needs PySpark: pip install 'polonaise[spark]'")

from polonaise.spark.query import read, register

__all__ = ["read", "register"]
