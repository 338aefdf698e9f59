"""The stage of windows.py on a few events: `pytest examples/windows`."""

import json
from datetime import UTC, datetime

from windows import minutes

from hubline.testing import run_stage

DEVICES = [{"device": "d1", "site": "north"}, {"device": "d2", "site": "north"}]


def reading(device, at, celsius):
    return json.dumps({"device": device, "at": f"2026-01-01T12:{at}Z", "celsius": celsius})


def test_a_minute_is_written_when_it_is_over():
    readings = [reading("d1", "00:10", 20.0), reading("d2", "00:59", 25.0), reading("d1", "01:09", 30.0)]
    assert run_stage(minutes, readings, tables={"devices": DEVICES}).rows == []

    readings.append(reading("d1", "01:10", 30.0))  # ten seconds after the end of the first minute
    (row,) = run_stage(minutes, readings, tables={"devices": DEVICES}).rows
    assert row == {"minute": datetime(2026, 1, 1, 12, 0, tzinfo=UTC), "site": "north", "readings": 2, "warmest": 25.0}


def test_readings_of_unknown_devices_are_left_out():
    readings = [reading("d9", "00:10", 20.0), reading("d1", "09:00", 20.0)]
    assert run_stage(minutes, readings, tables={"devices": DEVICES}).rows == []
