"""Columns for DataFrames of events."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from hubline.addresses.hub_address import HubAddress, parse_hub
from hubline.event_ids import ID_PATTERN, ID_PROPERTY, OUTPUTS_MAX, origin_of
from hubline.model.hubs import HubProperties
from hubline.spark.tasks.event_loop import run, shared_hub


def event_id(hub: str, place: Column | None = None) -> Column:
    """Make the column `eventId`, by which the next stage or table recognizes duplicates.

    The id says where the event first came from: its hub, partition and sequence number. An event that already carries a
    valid id keeps it. hubline asks the hub once for its name.

    Args:
        hub: The address of the hub that the events were read from.
        place: If one event becomes several (as by `posexplode`), a column that counts them from 0. Default: None.

    Returns:
        The column. It needs the source's columns `partition`, `sequenceNumber` and `properties`.

    Raises:
        ConfigError: The address is not valid.
        HubError: The hub does not answer.

    Example:
        events.select("body", hubline.spark.event_id("env:TELEMETRY").alias("eventId"))
    """
    return id_of(origin_of(run(_described(parse_hub(hub)))), place)


def id_of(hub_origin: str, place: Column | None = None) -> Column:
    """As `event_id`, for a hub whose origin is known."""
    origin = F.lit(hub_origin)
    text = F.col("properties")[ID_PROPERTY]
    # Any producer can send the property. A value that is not an id would stop the stage that publishes the event, for
    # good.
    carried = F.when(text.rlike(ID_PATTERN), text)
    if place is None:
        return F.coalesce(carried, _joined(origin, F.lit("0")))
    return F.coalesce(derived_id(carried, place), _joined(origin, _checked(place).cast("string")))


async def _described(address: HubAddress) -> HubProperties:
    async with shared_hub(address) as opened:
        return await opened.hub.describe()


def _joined(origin: Column, index: Column) -> Column:
    return F.concat_ws("/", origin, "partition", F.col("sequenceNumber").cast("string"), index)


def derived_id(carried: Column, place: Column) -> Column:
    """As :func:`hubline.event_ids.derived_ids`, in the words of Spark; null where there is no id."""
    origin = F.regexp_extract(carried, r"^([^\n]+)/[0-9]+\z", 1)
    index = F.substring_index(carried, "/", -1).try_cast("bigint")
    return F.concat(origin, F.lit("/"), (index * OUTPUTS_MAX + _checked(place)).cast("string"))


def _checked(place: Column) -> Column:
    return F.when(place < OUTPUTS_MAX, place).otherwise(
        F.raise_error(F.lit(f"one event may become {OUTPUTS_MAX:,} events at most"))
    )
