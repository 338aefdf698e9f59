"""The stages of telemetry.py, each on a few events: `pytest examples/telemetry`."""

import json

from telemetry import ingest, recent, store

from hubline.testing import run_stage


def reading(**changes):
    return json.dumps({"id": "r1", "device": "d1", "at": "2026-01-01T12:00:00Z", "celsius": 20.0} | changes)


def test_ingest_keys_readings_by_device():
    result = run_stage(ingest, [reading(device="d7"), {"body": "not JSON", "partitionKey": "d8"}])

    assert [row["partitionKey"] for row in result.rows] == ["d7", "d8"]
    assert not result.dead_letters  # they are for the stage store to find


def test_recent_averages_a_device_over_24_hours():
    result = run_stage(recent, [reading(celsius=20.0), reading(celsius=23.0), "not JSON"])

    averages = [json.loads(row["body"]) for row in result.rows]
    assert sorted(average["until"] for average in averages) == [
        "2026-01-01T18:00:00.000Z",
        "2026-01-02T00:00:00.000Z",
        "2026-01-02T06:00:00.000Z",
        "2026-01-02T12:00:00.000Z",
    ]
    assert {(average["celsius"], average["readings"]) for average in averages} == {(21.5, 2)}


def test_store_keeps_what_does_not_read_as_a_dead_letter():
    result = run_stage(store, [reading(id="r1"), "not JSON", reading(id=None), reading(id="r4", celsius="warm")])

    assert [row["id"] for row in result.rows] == ["r1"]
    assert [letter.event.sequence_number for letter in result.dead_letters] == [1, 2, 3]
    assert result.dead_letters[1].error_text == "the field id is missing"
