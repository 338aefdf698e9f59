"""Tests of the processor, without a hub or a database: python -m pytest"""

from project_name import processor

from hubline.testing import run_processor


def test_readings_become_rows_and_other_events_dead_letters() -> None:
    result = run_processor(processor, ['{"device": "kitchen", "celsius": 20.5}', '{"device": "garden"}'])

    assert result.rows == [{"device": "kitchen", "celsius": 20.5, "fahrenheit": 68.9}]
    assert [each.event.text() for each in result.dead_letters] == ['{"device": "garden"}']
