"""Tests of the stage, without a hub or a database: python -m pytest"""

from project_name import store

from hubline.testing import run_stage


def test_readings_become_rows_and_other_events_dead_letters() -> None:
    result = run_stage(store, ['{"device": "kitchen", "celsius": 20.5}', '{"device": "garden"}'])

    assert result.rows == [{"device": "kitchen", "celsius": 20.5, "fahrenheit": 68.9}]
    assert [each.error_text for each in result.dead_letters] == ["the field celsius is missing"]
