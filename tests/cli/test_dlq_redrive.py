"""``hubline dlq redrive``: by a processor in a file of one's own, or to a hub."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hubline.adapters import open_hub
from hubline.cli.exit_codes import ExitCode
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection
from hubline.model.keys import GroupKey
from hubline.model.positions import Position
from hubline.processor import Processor
from hubline.sinks import SqlSink
from hubline.sinks.sql_sink.redrive_transaction import Chunk, RedriveTransaction
from tests.cli.conftest import Cli, append
from tests.dead_letters.conftest import dead_letter, keep

APP = """
import hubline
import helper

processor = hubline.Processor(
    "{hub}", "memory:", consumer_group="billing", starting_position=hubline.Position.earliest(),
    sink=hubline.SqlSink("{sink}", table="orders", create_table=True),
    options=hubline.ProcessorOptions(handler_retry=hubline.RetryPolicy(max_attempts=1)),
)


@processor.on_event
def handle(event):
    if event.sequence_number in helper.FAILING:
        raise LookupError("no customer")
    return {{"n": event.sequence_number, "body": event.text()}}


text = "no processor"

if __name__ == "__main__":
    processor.run()
"""


class Scene:
    """A hub, a database with dead letters of it, and the file of the processor that failed them."""

    def __init__(self, hub: str, root: Path) -> None:
        opened = open_hub(hub)
        self.hub = hub
        self.root = root
        self.group = GroupKey(opened.namespace, opened.name, "billing")
        self.path = root / "sink.db"
        self.sink = f"sqlite:///{self.path}"
        (root / "app.py").write_text(APP.format(hub=hub, sink=self.sink))
        (root / "helper.py").write_text("FAILING = {2}\n")
        keep(self.sink, [dead_letter(sequence, group=self.group, partition="1") for sequence in range(4)])

    def execute(self, text: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(text).fetchall()

    def states(self) -> list[tuple[object, ...]]:
        return self.execute("SELECT sequence_number, state FROM hubline_dead_letter ORDER BY 1")


@pytest.fixture
def scene(hub: str, tmp_path: Path) -> Iterator[Scene]:
    path = list(sys.path)
    yield Scene(hub, tmp_path)
    # What a file brought along stays loaded, as in a process of its own; the next test has files of the same names.
    sys.path[:] = path
    sys.modules.pop("helper", None)


class TestByHandler:
    def test_what_succeeds_is_settled_and_what_fails_is_named(self, cli: Cli, scene: Scene) -> None:
        result = cli("dlq", "redrive", "--sink", scene.sink, "--processor", "app.py:processor")
        assert result.code == ExitCode.FAILED
        assert "1/2 failed: LookupError: no customer" in result.err
        assert "redriven 3 dead letters; 1 failed" in result.err
        assert scene.execute("SELECT n, body FROM orders ORDER BY n") == [
            (0, "event 0"),
            (1, "event 1"),
            (3, "event 3"),
        ]
        assert scene.states() == [(0, "redriven"), (1, "redriven"), (2, "waiting"), (3, "redriven")]

    def test_json_has_a_line_for_each_dead_letter(self, cli: Cli, scene: Scene) -> None:
        lines = cli("dlq", "redrive", "--sink", scene.sink, "--processor", "app.py:processor", "--json").json_lines
        assert [each["outcome"] for each in lines] == ["redriven", "redriven", "failed", "redriven"]
        assert lines[2] == {
            "id": f"{scene.group}/1/2", "outcome": "failed", "reason": "LookupError: no customer",
        }  # fmt: skip

    def test_dry_run_changes_nothing(self, cli: Cli, scene: Scene) -> None:
        result = cli(
            "dlq", "redrive", "--sink", scene.sink, "--processor", "app.py:processor", "--dry-run", "--limit", "3"
        )
        assert result.code == 0
        assert "would redrive 3 dead letters; nothing was changed" in result.err
        assert "…" not in result.err
        assert {state for _, state in scene.states()} == {"waiting"}

    def test_single_dead_letters_and_a_limit_can_be_chosen(self, cli: Cli, scene: Scene) -> None:
        result = cli("dlq", "redrive", "1/3", "--sink", scene.sink, "--processor", "app.py:processor", "--delete")
        assert result.code == 0
        assert [sequence for sequence, _ in scene.states()] == [0, 1, 2]
        cli("dlq", "redrive", "--sink", scene.sink, "--processor", "app.py:processor", "--limit", "1")
        assert scene.states() == [(0, "redriven"), (1, "waiting"), (2, "waiting")]

    def test_nothing_to_redrive_is_no_failure(self, cli: Cli, scene: Scene) -> None:
        result = cli(
            "dlq", "redrive", "--sink", scene.sink, "--processor", "app.py:processor", "--error-type", "KeyError"
        )
        assert (result.code, result.err) == (0, "no dead letters match. Check --group, --state and --since.\n")

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            ((), "Add --processor FILE:NAME"),
            (("--processor", "app.py:processor", "--to-hub", "local:./data/orders"), "exactly one of"),
            (("--processor", "app.py"), "Write FILE:NAME"),
            (("--processor", "none.py:processor"), "no such file"),
            (("--processor", "app.py:nothing"), "nothing is not defined in this file. Give"),
            (("--processor", "app.py:text"), "text is a str. Give the name of a hubline.Processor"),
            (("--processor", "app.py:processor", "--group", "audit"), "--group is audit"),
            (("--processor", "app.py:processor", "--hub", "local:./data/others"), "--hub is"),
            (("--processor", "notes.txt:processor"), "must end in .py"),
            (("--processor", "broken.py:processor"), "ZeroDivisionError in line 1"),
            (("--processor", "ending.py:processor"), "SystemExit"),
            (("--processor", "running.py:processor"), "Put processor.run() below if __name__"),
        ],
    )
    def test_wrong_usage_is_reported(self, cli: Cli, scene: Scene, flags: tuple[str, ...], says: str) -> None:
        (scene.root / "notes.txt").write_text("processor = 1")
        (scene.root / "broken.py").write_text("1 / 0")
        (scene.root / "ending.py").write_text("import sys; sys.exit()")
        (scene.root / "running.py").write_text(
            (scene.root / "app.py").read_text().replace("__main__", "hubline_redrive_running")
        )
        result = cli("dlq", "redrive", "--sink", scene.sink, *flags)
        assert result.code == ExitCode.USAGE
        assert says in result.err
        assert {state for _, state in scene.states()} == {"waiting"}

    def test_processor_of_another_database_is_refused(self, cli: Cli, scene: Scene) -> None:
        other = f"sqlite:///{scene.root}/other.db"
        keep(other, [dead_letter(1, group=scene.group)])
        result = cli("dlq", "redrive", "--sink", other, "--processor", "app.py:processor")
        assert result.code == ExitCode.USAGE
        assert "Use the same address in both" in result.err

    def test_bodies_that_are_not_kept_are_read_from_the_processors_hub(self, cli: Cli, scene: Scene) -> None:
        append(scene.hub, "0", "zero", "one")
        keep(scene.sink, events_as_dead_letters(scene, "0"), keep_dead_letter_bodies=False)
        cli("dlq", "redrive", "--sink", scene.sink, "--processor", "app.py:processor", "--partition", "0")
        assert scene.execute("SELECT n, body FROM orders ORDER BY n") == [(0, "zero"), (1, "one")]


def events_as_dead_letters(scene: Scene, partition: str) -> list[DeadLetter]:
    async def read() -> list[DeadLetter]:
        hub = open_hub(scene.hub)
        receiver = await hub.open_receiver(partition, group="readers", position=Position.earliest())
        batch = await receiver.receive(max_count=100, wait_seconds=10)
        await receiver.close()
        await hub.close()
        key = scene.group.partition(partition)
        return [DeadLetter.of(key, event, ValueError("no"), attempts=1) for event in batch]

    return asyncio.run(read())


class TestToHub:
    def test_events_come_back_into_the_hub(self, cli: Cli, scene: Scene) -> None:
        result = cli("dlq", "redrive", "--sink", scene.sink, "--to-hub", scene.hub, "--limit", "3")
        assert result.code == 0
        assert "redriven 3 dead letters; 0 failed, 0 missing, 0 held" in result.err
        events = cli("tail", scene.hub, "--no-follow", "--json").json_lines
        assert [(each["partition"], each["body"]) for each in events] == [("1", f"event {n}") for n in range(3)]
        assert events[0]["properties"]["hubline-redriven"] == f"{scene.group}/1/0"
        assert [state for _, state in scene.states()] == ["redriven"] * 3 + ["waiting"]

    def test_dead_letter_whose_event_is_gone_is_named_and_stays(self, cli: Cli, scene: Scene) -> None:
        keep(scene.sink, [dead_letter(9, group=scene.group, partition="2")], keep_dead_letter_bodies=False)
        result = cli("dlq", "redrive", "2/9", "--sink", scene.sink, "--to-hub", scene.hub)
        assert result.code == ExitCode.FAILED
        assert "2/9 missing: the hub has forgotten the event" in result.err
        assert (9, "waiting") in scene.states()

    def test_hub_that_is_not_there_is_reported_and_nothing_changed(self, cli: Cli, scene: Scene) -> None:
        result = cli("dlq", "redrive", "--sink", scene.sink, "--to-hub", "local:./data/none")
        assert result.code == ExitCode.NOT_FOUND
        assert {state for _, state in scene.states()} == {"waiting"}

    def test_hub_that_fails_on_the_way_leaves_the_rest_for_later(
        self, cli: Cli, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from hubline.errors import HubFull
        from hubline.hubs.local.sender import LocalSender

        async def full(*_args: object, **_kwargs: object) -> None:
            raise HubFull("no room")

        monkeypatch.setattr(LocalSender, "send", full)
        result = cli("dlq", "redrive", "--sink", scene.sink, "--to-hub", scene.hub)
        assert result.code == ExitCode.FAILED
        assert "redriven 0 dead letters, then stopped. You can repeat the command." in result.err
        assert {state for _, state in scene.states()} == {"waiting"}


def test_partition_that_another_redrive_has_is_left_to_it(cli: Cli, hub: str, postgres_database: object) -> None:
    url = postgres_database.reveal()  # type: ignore[attr-defined]
    opened = open_hub(hub)
    key = GroupKey(opened.namespace, opened.name, "billing").partition("1")
    keep(url, [dead_letter(1, group=key.group_key, partition="1")])
    with closing(SqlSink(url)) as sink:
        other = RedriveTransaction(sink.database, Chunk(key, DeadLetterSelection(), -1, 10))
        other.take()
        result = cli("dlq", "redrive", "--sink", url, "--to-hub", hub)
        other.rollback()
    assert result.code == ExitCode.UNAVAILABLE
    assert f"skipped {key}, because another redrive is working on it" in result.err
    assert cli("dlq", "redrive", "--sink", url, "--to-hub", hub).code == 0


def test_whole_way_from_a_failing_processor_to_its_fixed_handler(cli: Cli, scene: Scene) -> None:
    """A processor leaves dead letters behind; its handler is fixed; the redrive has the rows."""
    append(scene.hub, "3", *(f"event {n}" for n in range(5)))
    sink = f"sqlite:///{scene.root}/whole.db"
    (scene.root / "app.py").write_text(APP.format(hub=scene.hub, sink=sink))
    processor = Processor(
        scene.hub,
        "memory:",
        consumer_group="billing",
        starting_position=Position.earliest(),
        sink=SqlSink(sink, table="orders", create_table=True),
    )
    seen = asyncio.Event()

    @processor.on_event
    async def handle(event: object) -> None:
        raise ZeroDivisionError

    @processor.on_dead_letter
    async def report(dead: DeadLetter) -> None:
        if dead.event.sequence_number == 4:
            seen.set()

    async def run() -> None:
        async with processor:
            await asyncio.wait_for(seen.wait(), 60)

    asyncio.run(run())
    assert len(cli("dlq", "list", "--sink", sink, "--json").json_lines) == 5
    (scene.root / "helper.py").write_text("FAILING = ()\n")
    assert cli("dlq", "redrive", "--sink", sink, "--processor", "app.py:processor").code == 0
    with closing(sqlite3.connect(scene.root / "whole.db")) as connection:
        assert connection.execute("SELECT n, body FROM orders ORDER BY n").fetchall() == [
            (n, f"event {n}") for n in range(5)
        ]
