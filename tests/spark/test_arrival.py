"""What Spark's other processes say if they lack hubline, or have another version of it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from hubline import _version
from hubline.spark import EventHubs
from hubline.spark.compatibility import OlderReader
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.sink.writer import BatchWriter, StreamWriter
from hubline.spark.source.batch_reader import BatchReader
from hubline.spark.source.stream_reader import StreamReader


def pickled(value: object) -> bytes:
    """As Spark does it."""
    content: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return content


@pytest.fixture
def source(tmp_path: Path) -> EventHubs:
    return EventHubs({"hub": f"local:{tmp_path}/telemetry"})


@pytest.mark.parametrize("kind", [BatchReader, StreamReader, BatchWriter, StreamWriter])
def test_what_arrives_is_what_was_sent(source: EventHubs, kind: type[BatchReader]) -> None:
    arrived = cloudpickle.loads(pickled(kind(source.parsed, SOURCE_SCHEMA)))
    assert type(arrived) is kind
    assert arrived._options == source.parsed


def test_readers_of_older_versions_arrive_too(source: EventHubs) -> None:
    reader = OlderReader(StreamReader(source.parsed, SOURCE_SCHEMA), limits_first_batch=True, is_ended_by_batches=True)
    assert cloudpickle.loads(pickled(reader))._limits_first_batch


def test_node_without_hubline_says_so_and_names_itself(source: EventHubs, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(pickled(source))
    program = f"import pickle, sys; sys.modules['hubline'] = None; pickle.loads(open({str(sent)!r}, 'rb').read())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    wanted = f"hubline is not installed on {socket.gethostname()}, for {sys.executable}. Install hubline "
    assert ran.stderr.splitlines()[-1] == f"ImportError: {wanted}{_version.__version__} on every node."


def test_node_with_another_hubline_says_so_and_names_itself(source: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickled(source)
    monkeypatch.setattr(_version, "__version__", "0.0.9")

    with pytest.raises(ImportError, match=f"hubline 0.0.9 is installed on {socket.gethostname()}, for "):
        cloudpickle.loads(sent)
