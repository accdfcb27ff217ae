"""Payments as a streaming table, which each run adds to, and balances as a view that is summed up anew over it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from polonaise.spark.source import PolonaiseSource

spark = SparkSession.active()
spark.dataSource.register(PolonaiseSource)


@dp.table
def payments() -> DataFrame:
    """Each transaction once, however often the pipeline is run. One flow per table: two would lose rows."""
    log = spark.readStream.format("polonaise").options(
        cluster=spark.conf.get("bank.log"), decoder="json", decoderSchema="account long, amount decimal(12,2)"
    )
    return log.load().select("partition", "transaction_id", "timestamp", "account", "amount")


@dp.materialized_view
def balances() -> DataFrame:
    return spark.read.table("payments").groupBy("account").agg(F.sum("amount").alias("balance"))
