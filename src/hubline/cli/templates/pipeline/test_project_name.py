"""Tests of the stage, without a hub or a database: python -m pytest"""

from project_name import store

import hubline.spark


def test_readings_become_rows_and_other_events_dead_letters() -> None:
    spark = hubline.spark.session("tests")
    bodies = [(b'{"device": "kitchen", "celsius": 20.5}',), (b'{"device": "garden"}',)]
    row, dead_letter = store(spark.createDataFrame(bodies, "body binary")).collect()

    assert (row["device"], row["fahrenheit"], row["_error"]) == ("kitchen", 68.9, None)
    assert dead_letter["_error"] == "the field celsius is missing"
