"""@azure/event-hubs for JavaScript, as it comes, against a running ``hubline serve``."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.test_python_sdk import send
from tests.support.npm import NodeMissing, event_hubs_sdk

SCRIPTS = Path(__file__).parent / "js"
PATIENCE_SECONDS = 90
# Longer than the idle time-out that the client announces.
IDLE_SECONDS = 75


@pytest.fixture(scope="session")
def modules() -> Path:
    """The folder of the package, installed once a machine."""
    try:
        return event_hubs_sdk()
    except NodeMissing as missing:
        pytest.skip(f"the JavaScript SDK: {missing}")


def run(modules: Path, script: str, *args: str, timeout: float = PATIENCE_SECONDS) -> Any:
    """What a scenario reports."""
    environment = {**os.environ, "NODE_PATH": str(modules)}
    command = ["node", str(SCRIPTS / script), *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_sent_is_received(modules: Path, hub: str) -> None:
    result = run(modules, "exchange.js", hub)
    assert result["partitionIds"] == ["0", "1", "2", "3"]
    assert result["lastSequence"] == 49
    assert result["errors"] == []
    events = [event for event in result["events"] if event["partition"] == "1"]
    assert [event["body"] for event in events] == [{"number": number} for number in range(50)]
    assert [event["sequenceNumber"] for event in events] == list(range(50))
    assert {event["lastSequence"] for event in events} == {49}
    assert events[0]["properties"] == {"color": "green", "count": 5, "hot": True}
    assert (events[0]["messageId"], events[0]["contentType"]) == ("m", "text/x")
    others = {event["body"]: event for event in result["events"] if event["partition"] != "1"}
    assert others["by key"]["key"] == "alphabet"
    assert others["x" * 10]["partition"] == "3"
    assert others[None]["partition"] == "2"
    assert result["tooLarge"] == "MessageTooLargeError"


def test_higher_owner_level_takes_over_with_the_official_errors(modules: Path, hub: str) -> None:
    send(hub, ["x"], partition_id="0")
    result = run(modules, "takeover.js", hub)
    assert result["low"][0]["code"] == "ReceiverDisconnectedError"
    assert result["late"][0]["code"] == "ReceiverDisconnectedError"
    assert result["high"] == []


def test_two_consumers_share_the_partitions(modules: Path, hub: str) -> None:
    for partition in range(4):
        send(hub, [f"event {partition}"], partition_id=str(partition))
    result = run(modules, "balance.js", hub)
    assert sorted(chain(*result["owned"])) == ["0", "1", "2", "3"]
    assert len(result["seen"]) == 4
    assert result["checkpoints"] == 4


def test_wrong_key_is_refused(modules: Path, hub: str) -> None:
    wrong = hub.replace("SharedAccessKey=c2Vj", "SharedAccessKey=AAAA")
    assert run(modules, "refused.js", wrong) == {"code": "UnauthorizedError"}


@pytest.mark.slow
def test_clients_that_are_idle_for_long_go_on(modules: Path, hub: str) -> None:
    result = run(modules, "idle.js", hub, str(IDLE_SECONDS), timeout=IDLE_SECONDS + PATIENCE_SECONDS)
    assert result["bodies"] == ["before", "after"]
    assert result["errors"] == []
