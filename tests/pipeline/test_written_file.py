"""What batches wrote reaches the run once, by a file that another process writes."""

from __future__ import annotations

import pickle
from pathlib import Path

from hubline.pipeline.written_file import WrittenFile
from hubline.spark.sql_sink.batch_target import Written


def test_what_another_process_adds_is_taken_once_and_in_order(tmp_path: Path) -> None:
    reading = WrittenFile(tmp_path / "written")
    writing = pickle.loads(pickle.dumps(reading))  # noqa: S301 - its own
    assert list(reading.take()) == []

    writing(first := Written(rows=3))
    writing(second := Written(rows=4))
    assert list(reading.take()) == [first, second]
    assert list(reading.take()) == []

    writing(third := Written(rows=5))
    assert list(reading.take()) == [third]


def test_a_line_that_is_half_written_is_left_for_the_next_time(tmp_path: Path) -> None:
    reading = WrittenFile(tmp_path / "written")
    reading(whole := Written(rows=3))
    text = reading.path.read_bytes()
    reading.path.write_bytes(text + text[:7])
    assert list(reading.take()) == [whole]

    reading.path.write_bytes(text + text)
    assert list(reading.take()) == [whole]
