"""A streaming table from a hub, a materialized view of it, and a sink that is a hub.

Nothing registers `eventhubs`: Spark finds it where hubline is installed.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

# Spark 4.1 has no global `spark`.
spark = SparkSession.active()


@dp.table
def readings() -> DataFrame:
    events = spark.readStream.format("eventhubs").options(hub="env:READINGS", startingPosition="earliest").load()
    reading = F.from_json(F.col("body").cast("string"), "device string, celsius double")
    place = events.select("partition", "sequenceNumber", "enqueuedTime", reading.alias("reading"))
    return place.select("partition", "sequenceNumber", "enqueuedTime", "reading.*")


@dp.materialized_view
def warmest() -> DataFrame:
    return spark.read.table("readings").groupBy("device").agg(F.max("celsius").alias("celsius"))


dp.create_sink("warm", "eventhubs", {"hub": "env:WARM"})


@dp.append_flow(target="warm")
def warm_readings() -> DataFrame:
    table = spark.readStream.table("readings").where("celsius >= 25")
    return table.select(F.to_json(F.struct("device", "celsius")).alias("body"), F.col("device").alias("partitionKey"))
