"""Every public option, given every wrong type: refused where it is given, with its name and what to write."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hubline
from hubline import (
    Balanced,
    BufferedProducer,
    CheckpointPolicy,
    Fixed,
    Greedy,
    LeaseOptions,
    Pipeline,
    Processor,
    ProcessorOptions,
    Producer,
    RetryPolicy,
    SqlSink,
    open_hub,
    spark,
)
from hubline.adapters import open_store
from hubline.addresses.choices import choice_of
from hubline.addresses.option_checks import check_value, checked
from hubline.addresses.option_kinds import ByteSize, Count, Seconds
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.dead_letters import DeadLetterHub
from hubline.errors import ConfigError
from hubline.hubs.local import Retention, create_hub, grow_hub
from hubline.pipeline.stage_options import FrameStageOptions
from hubline.spark import SqlBatchWriter
from hubline.testing.memory_hub import MemoryHub

PLANTED = "pLaNtEd"

given: Any = hubline
"""Without types: what a type checker would refuse is given here on purpose."""


def some_function() -> None: ...


WRONG: dict[str, Any] = {
    "None": None,
    "a truth": True,
    "another truth": False,
    "a whole number": 7,
    "a negative number": -7,
    "a fraction": 2.5,
    "not a number": math.nan,
    "endless": math.inf,
    "text": "wrong",
    "text of a number": "7",
    "bytes": b"7",
    "a list": [7],
    "a dictionary": {"wrong": 7},
    "a set": {7},
    "a date": timedelta(seconds=7),
    "an object": object(),
    "a class": Fixed,
    "a function": some_function,
}

NONE, TRUTH = {"None"}, {"a truth", "another truth"}
WHOLE = {"a whole number"}
NUMBER = {"a whole number", "a fraction"}
TEXT = {"text", "text of a number"}
CHOICE: set[str] = set()
OBJECT: set[str] = set()


@dataclass(frozen=True)
class Options:
    """Something with options.

    Attributes:
        make: Makes it.
        right: The values of `WRONG` that each option takes all the same.
        base: Arguments that it cannot do without.
    """

    make: Callable[..., object]
    right: dict[str, set[str]]
    base: dict[str, Any]

    def given(self, option: str, value: object) -> object:
        return self.make(**{**self.base, option: value})


def stage_of(**options: Any) -> object:
    return Pipeline("telemetry").stage(**options)


def batch_stage_of(**options: Any) -> object:
    return Pipeline("telemetry").batch_stage(**options)


def event_stage_of(**options: Any) -> object:
    return Pipeline("telemetry").event_stage(**options)


def session_of(app_name: Any = "tests", master: Any = None) -> object:
    return spark.session(app_name, master=master)


def run_of(**options: Any) -> None:
    Pipeline("telemetry").run(**options)


STAGE = dict.fromkeys(FrameStageOptions.__annotations__, CHOICE) | {
    "consumer_group": TEXT,
    "queries": WHOLE,
    "max_batch_size": WHOLE,
    "lookback": NONE,
    "dead_letters": TEXT | NONE,
    "event_ids": TRUTH,
    "name": TEXT | NONE,
    "source": TEXT,
    "sink": TEXT,
}

PUBLIC = {
    "Balanced": Options(Balanced, {"max_partitions": WHOLE | NONE}, {}),
    "Greedy": Options(Greedy, {"max_partitions": WHOLE | NONE}, {}),
    "Fixed": Options(Fixed, {"count": WHOLE, "lease": NONE}, {"count": 1}),
    "RetryPolicy": Options(
        RetryPolicy,
        {"max_attempts": WHOLE, "initial_backoff_seconds": NUMBER, "max_backoff_seconds": NUMBER},
        {},
    ),
    "CheckpointPolicy": Options(
        CheckpointPolicy, {"events": WHOLE | NONE, "seconds": NUMBER | NONE, "at_renewal": TRUTH}, {}
    ),
    "CheckpointPolicy.every": Options(
        CheckpointPolicy.every, {"events": WHOLE | NONE, "seconds": NUMBER | NONE}, {"events": 1, "seconds": 1.0}
    ),
    "LeaseOptions": Options(
        LeaseOptions,
        {
            "lease_seconds": NUMBER,
            "renew_interval_seconds": NUMBER,
            "load_balancing_interval_seconds": NUMBER,
            "handover_timeout_seconds": NUMBER,
            "startup_delay_seconds": NUMBER,
            "sdk_lease_seconds": NUMBER,
        },
        {"lease_seconds": 30},
    ),
    "ProcessorOptions": Options(
        ProcessorOptions,
        {
            "max_batch_size": WHOLE,
            "max_wait_seconds": NUMBER,
            "heartbeat": TRUTH,
            "prefetch_bytes": WHOLE | {"text of a number"},
            "max_prefetch_bytes": WHOLE | {"text of a number"},
            "checkpoint_policy": OBJECT,
            "lease": OBJECT,
            "handler_retry": OBJECT,
            "reconnect_backoff": OBJECT,
            "on_failure": NONE,
            "max_consecutive_failures": WHOLE,
            "max_failure_ratio": CHOICE,
            "preserve_key_order": TRUTH,
            "on_data_loss": CHOICE,
            "handler_timeout_seconds": NUMBER | NONE,
            "slow_handler_seconds": NUMBER,
            "hub_timeout_seconds": NUMBER,
            "stop_timeout_seconds": NUMBER,
        },
        {"max_wait_seconds": 1.0},
    ),
    "Processor": Options(
        Processor,
        {
            "hub": OBJECT,
            "store": OBJECT,
            "consumer_group": TEXT,
            "starting_position": OBJECT,
            "load_balancing": OBJECT,
            "owner_id": TEXT | NONE,
            "options": NONE,
            "sink": NONE,
            "dead_letters": NONE,
        },
        {"hub": MemoryHub(1), "store": MemoryStore(), "consumer_group": "tests", "starting_position": "earliest"},
    ),
    "SqlSink": Options(
        SqlSink,
        {
            "url": OBJECT,
            "table": TEXT | NONE,
            "upsert_key": TEXT,
            "create_table": TRUTH,
            "keep_dead_letter_bodies": TRUTH,
            "drop_duplicates": CHOICE,
            "duplicate_window_seconds": NUMBER,
            "max_connections": WHOLE,
            "transaction_timeout_seconds": WHOLE,
        },
        {"url": "sqlite:///results.db", "table": "results"},
    ),
    "SqlBatchWriter": Options(
        SqlBatchWriter,
        {
            "url": OBJECT,
            "table": TEXT,
            "upsert_key": TEXT,
            "create_table": TRUTH,
            "keep_dead_letter_bodies": TRUTH,
            "drop_duplicates": CHOICE,
            "duplicate_window_seconds": NUMBER,
            "commit_by": CHOICE,
            "on_commit": NONE | {"a function", "a class"},
        },
        {"url": "sqlite:///results.db", "table": "results"},
    ),
    "DeadLetterHub": Options(DeadLetterHub, {"hub": OBJECT}, {}),
    "Producer": Options(Producer, {"hub": OBJECT, "max_outage_seconds": NUMBER}, {"hub": MemoryHub(1)}),
    "BufferedProducer": Options(
        BufferedProducer,
        {
            "hub": OBJECT,
            "on_error": NONE | {"a function", "a class"},
            "max_buffer_bytes": WHOLE | {"text of a number"},
            "max_buffer_events": WHOLE,
            "max_outage_seconds": NUMBER,
        },
        {"hub": MemoryHub(1)},
    ),
    "open_hub": Options(open_hub, {"hub": OBJECT}, {}),
    "Retention": Options(Retention, {"seconds": NUMBER | NONE, "bytes": WHOLE | NONE}, {}),
    "create_hub": Options(
        create_hub,
        {"root": TEXT, "name": TEXT, "partitions": WHOLE, "retention": NONE, "exist_ok": TRUTH},
        {"root": "hubs", "name": "telemetry", "partitions": 1},
    ),
    "grow_hub": Options(
        grow_hub,
        {"root": TEXT, "name": TEXT, "partitions": WHOLE},
        {"root": "hubs", "name": "telemetry", "partitions": 1},
    ),
    "spark.session": Options(session_of, {"app_name": TEXT, "master": TEXT | NONE}, {}),
    "Pipeline": Options(Pipeline, {"name": TEXT, "config": TEXT | NONE}, {"name": "telemetry"}),
    "Pipeline.batch_stage": Options(batch_stage_of, {"schema": TEXT}, {"source": "raw", "sink": "clean"}),
    "Pipeline.event_stage": Options(event_stage_of, {"schema": TEXT}, {"source": "raw", "sink": "clean"}),
    "Pipeline.run": Options(
        run_of,
        {
            "stages": OBJECT,
            "master": TEXT | NONE,
            "once": TRUTH,
            "overrides": NONE,
            "config": TEXT | NONE,
        },
        {},
    ),
    "Pipeline.stage": Options(stage_of, STAGE, {"source": "raw", "sink": "clean"}),
}
NO_OPTIONS = {"Event", "EventBatch", "PartitionContext", "Position", "new_events"}
"""Public names that are not options, or that are not made by people."""


def is_refused(options: Options, option: str, value: object) -> bool:
    """Whether the value is refused by a message that names the option, and the value where it is short."""
    try:
        options.given(option, value)
    except ConfigError as refused:
        text = str(refused)
        is_named = option in text.replace(" ", "_") or option in ("source", "sink", "url", "name")
        is_shown = not (value is None or isinstance(value, int)) or str(value) in text
        return is_named and is_shown and refused.__cause__ is None
    return False


@pytest.mark.parametrize("name", PUBLIC)
def test_a_value_of_a_wrong_type_is_refused_with_the_name_of_its_option(name: str) -> None:
    options = PUBLIC[name]
    wrong = [(option, what) for option, right in options.right.items() for what in WRONG if what not in right]
    assert len(wrong) > 10
    assert [each for each in wrong if not is_refused(options, each[0], WRONG[each[1]])] == []


def test_every_public_option_is_tried() -> None:
    public = {name.partition(".")[0] for name in PUBLIC}
    elsewhere = {"DeadLetterHub", "Retention", "SqlBatchWriter", "create_hub", "grow_hub", "spark"}
    assert public - elsewhere == set(hubline.__all__) - NO_OPTIONS
    for name, options in PUBLIC.items():
        if not name.startswith("Pipeline."):
            parameters = inspect.signature(options.make).parameters
            assert set(options.right) == set(parameters) - {"self", "cls"}, name


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: given.ProcessorOptions(checkpoint_policy=False),
            "ProcessorOptions: checkpoint_policy must be a CheckpointPolicy or never, not False. "
            'Write checkpoint_policy="never".',
        ),
        (
            lambda: given.ProcessorOptions(checkpoint_policy="none"),
            "ProcessorOptions: checkpoint_policy must be a CheckpointPolicy or never, not 'none'. "
            'Write checkpoint_policy="never".',
        ),
        (
            lambda: given.ProcessorOptions(checkpoint_policy="every_bach"),
            "ProcessorOptions: checkpoint_policy must be a CheckpointPolicy or never, not 'every_bach'. "
            "Write checkpoint_policy=CheckpointPolicy.every_batch().",
        ),
        (
            lambda: given.ProcessorOptions(checkpoint_policy="5s"),
            "ProcessorOptions: checkpoint_policy must be a CheckpointPolicy or never, not '5s'. "
            "Write checkpoint_policy=CheckpointPolicy.every(seconds=5).",
        ),
        (
            lambda: given.ProcessorOptions(lease={"lease_second": 10}),
            "ProcessorOptions: lease must be a LeaseOptions, not {'lease_second': 10}. "
            "Write lease=LeaseOptions(lease_seconds=10).",
        ),
        (
            lambda: given.ProcessorOptions(handler_retry=RetryPolicy),
            "ProcessorOptions: handler_retry must be a RetryPolicy, not the class RetryPolicy. "
            "Write handler_retry=RetryPolicy(...).",
        ),
        (
            lambda: given.ProcessorOptions(lease=None),
            "ProcessorOptions: lease must be a LeaseOptions, not None. Leave it out to use the default.",
        ),
        (
            lambda: given.ProcessorOptions(on_failure="dead-letter"),
            "ProcessorOptions: on_failure must be stop, dead_letter or None, not 'dead-letter' "
            "(did you mean dead_letter?).",
        ),
        (
            lambda: given.ProcessorOptions(heartbeat="yes"),
            "ProcessorOptions: heartbeat must be True or False, not 'yes'. Write heartbeat=True.",
        ),
        (
            lambda: given.ProcessorOptions(max_failure_ratio=2),
            "ProcessorOptions: max_failure_ratio must be a number, above 0 and at most 1, not 2.",
        ),
        (
            lambda: given.ProcessorOptions(prefetch_bytes_max="1MiB"),
            "ProcessorOptions has no option prefetch_bytes_max. Did you mean prefetch_bytes?",
        ),
        (
            lambda: given.ProcessorOptions(prefetch_bytes="1 mile"),
            "ProcessorOptions: prefetch_bytes: the size '1 mile' is unknown. "
            "Write bytes as in 200, or 64KiB, 10MB, 1.5GB, 2TB.",
        ),
        (
            lambda: given.ProcessorOptions(lease_seconds=10),
            "ProcessorOptions has no option lease_seconds. Write lease=LeaseOptions(lease_seconds=...).",
        ),
        (
            lambda: given.LeaseOptions(lease_seconds="30s"),
            "LeaseOptions: lease_seconds must be a number of seconds, above 0, not '30s'. Write lease_seconds=30.",
        ),
        (
            lambda: given.LeaseOptions(lease_seconds=timedelta(milliseconds=1500)),
            "LeaseOptions: lease_seconds must be a number of seconds, above 0, not an object of class timedelta. "
            "Write lease_seconds=1.5.",
        ),
        (lambda: given.Fixed(2.5), "Fixed: count must be a whole number, 1 or more, not 2.5."),
        (lambda: given.Fixed(2.0), "Fixed: count must be a whole number, 1 or more, not 2.0. Write count=2."),
        (lambda: given.Fixed("2"), "Fixed: count must be a whole number, 1 or more, not '2'. Write count=2."),
        (lambda: given.Fixed(True), "Fixed: count must be a whole number, 1 or more, not True."),
        (lambda: given.Fixed(count=2, leese="30s"), "Fixed has no option leese. Did you mean lease?"),
        (
            lambda: given.CheckpointPolicy.every(second=5),
            "CheckpointPolicy.every has no option second. Did you mean seconds?",
        ),
        (
            lambda: given.RetryPolicy(initial_backoff_seconds=5, max_backoff_seconds=1),
            "RetryPolicy: initial_backoff_seconds must be at most max_backoff_seconds, and 5 is more than 1. "
            "Change one of them.",
        ),
        (
            lambda: given.SqlSink(Path("results.db")),
            "SqlSink: url must be the address of a SQL database, such as 'sqlite:///results.db', not "
            "an object of class PosixPath. Write url='sqlite:///results.db'.",
        ),
        (
            lambda: given.SqlSink("sqlite:///results.db", table="results", upsert_key={"id"}),
            "SqlSink: upsert_key must be text or a list of text, not {'id'}. Write upsert_key=[...].",
        ),
        (
            lambda: given.SqlSink("sqlite:///results.db", transaction_timeout_seconds=1.5),
            "SqlSink: transaction_timeout_seconds must be a whole number of seconds, 1 or more, not 1.5.",
        ),
        (
            lambda: given.Pipeline("telemetry").run(stages="store"),
            "Pipeline.run: stages must be a list of text, not 'store'. Write stages=['store'].",
        ),
    ],
)  # fmt: skip
def test_the_error_says_what_to_write(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == says


def processor_of(**arguments: Any) -> Processor:
    return Processor(
        **{
            "hub": MemoryHub(1),
            "store": MemoryStore(),
            "consumer_group": "tests",
            "starting_position": "earliest",
            **arguments,
        }
    )


class Store:
    """A store of the official SDKs' four methods; one has a slip in its name."""

    async def list_ownership(self, namespace: str, hub: str, group: str) -> None: ...

    async def claim_ownerships(self, claims: object) -> None: ...

    async def list_checkpoints(self, namespace: str, hub: str, group: str) -> None: ...

    async def update_checkpoint(self, checkpoint: object) -> None: ...

    fence = None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"hub": object()},
            "Processor: hub must be a Hub, and an object of class object lacks namespace, name, describe, "
            "describe_partition, open_receiver, open_sender and close: hubline.ports.Hub says what each must do.",
        ),
        (
            {"store": Store()},
            "Processor: store must be a CheckpointStore, and an object of class Store lacks "
            "claim_ownership (it has claim_ownerships), renew_ownership, request_handover, fence, "
            "reset_checkpoint and close: hubline.ports.CheckpointStore says what each must do.",
        ),
        (
            {"store": MemoryStore},
            "Processor: store must be a CheckpointStore, not the class MemoryStore. Write MemoryStore(...).",
        ),
        (
            {"sink": "sqlite:///x.db"},
            "Processor: sink must be a SqlSink or None, not 'sqlite:///x.db'. "
            "Write sink=SqlSink('sqlite:///x.db', table='TABLE').",
        ),
        (
            {"sink": f"postgresql://me:{PLANTED}@host/db"},
            "Processor: sink must be a SqlSink or None, not text (not shown, it may hold a secret). "
            "Write sink=SqlSink(ADDRESS, table='TABLE').",
        ),
        (
            {"dead_letters": "local:./data/failed"},
            "Processor: dead_letters must be a DeadLetterSink or None, not 'local:./data/failed'. Write "
            "dead_letters=hubline.dead_letters.DeadLetterHub(hubline.open_hub('local:./data/failed')).",
        ),
        (
            {"options": {"max_batch_size": 5}},
            "Processor: options must be a ProcessorOptions or None, not {'max_batch_size': 5}. "
            "Write options=ProcessorOptions(max_batch_size=5).",
        ),
        (
            {"options": LeaseOptions()},
            "Processor: options must be a ProcessorOptions or None, not an object of class LeaseOptions. "
            "Write options=ProcessorOptions(lease=LeaseOptions(...)).",
        ),
        (
            {"lease_seconds": 10},
            "Processor has no option lease_seconds. "
            "Write options=ProcessorOptions(lease=LeaseOptions(lease_seconds=...)).",
        ),
        ({"grup": "x"}, "Processor has no option grup. Did you mean consumer_group?"),
        (
            {"consumer_group": 5},
            "Processor: consumer_group must be text, not 5.",
        ),
        (
            {"load_balancing": Fixed},
            "Processor: load_balancing must be a Strategy, not the class Fixed. Write Fixed(...).",
        ),
    ],
)  # fmt: skip
def test_a_processor_says_what_to_write(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        processor_of(**arguments)
    assert str(refused.value) == says


def test_the_reference_shows_errors_as_they_are() -> None:
    page = (Path(__file__).parents[1] / "docs/reference/processor.md").read_text()
    shown = page.partition("```text\nProcessorOptions: ")[2].partition("```")[0]
    makers: list[Callable[[], object]] = [
        lambda: given.ProcessorOptions(checkpoint_policy=False),
        lambda: given.ProcessorOptions(prefetch_byte=1),
        lambda: processor_of(lease_seconds=10),
        lambda: processor_of(sink="sqlite:///x.db"),
    ]
    lines = []
    for make in makers:
        with pytest.raises(ConfigError) as refused:
            make()
        lines.append(str(refused.value))
    assert f"ProcessorOptions: {shown}".splitlines() == lines


def test_an_object_that_is_no_hub_or_store_is_not_opened() -> None:
    with pytest.raises(ConfigError, match="hub must be a Hub, and an object of class object lacks namespace"):
        open_hub(object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"store must be an address such as .*, not 5"):
        open_store(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "count"), [("1MiB", 1024**2), ("64 kib", 65_536), ("10MB", 10_000_000), (5, 5)])
def test_a_size_may_be_text(size: int | str, count: int) -> None:
    assert ProcessorOptions(prefetch_bytes=size).prefetch_bytes == count


def test_a_size_of_no_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefetch_bytes: it must be at least 1 byte"):
        ProcessorOptions(prefetch_bytes="0MiB")


def test_numbers_of_numpy_are_numbers() -> None:
    policy = RetryPolicy(max_attempts=np.int64(3), max_backoff_seconds=np.float32(2.5))  # type: ignore[arg-type]
    assert (policy, type(policy.max_attempts)) == (RetryPolicy(3, max_backoff_seconds=2.5), int)


def test_a_missing_argument_is_named_with_what_to_give_and_one_too_many_by_python() -> None:
    with pytest.raises(ConfigError, match=r"^Fixed needs count\. Give a whole number, 1 or more\.$") as raised:
        Fixed()  # type: ignore[call-arg]
    assert raised.value.__context__ is None
    with pytest.raises(ConfigError, match=r"^Processor needs starting_position\. Give a Position, text such as 'earl"):
        Processor("local:./data/telemetry", "memory:", consumer_group="billing")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes from 2 to 3 positional arguments but 4 were given"):
        Fixed(1, None, 2)  # type: ignore[call-arg]


def test_checked_functions_look_as_they_were_written() -> None:
    assert list(inspect.signature(Processor).parameters)[:2] == ["hub", "store"]
    assert inspect.signature(Fixed).parameters["lease"].default is None
    assert str(Fixed.__init__.__qualname__).endswith("__init__")


def test_arguments_of_any_function_can_be_checked() -> None:
    @checked
    def limited(size: ByteSize, *rest: int, wait: Seconds = 0.0, **more: Count) -> tuple[object, ...]:
        return size, rest, wait, more

    assert limited("1KiB", 2, wait=1, other=3) == (1024, (2,), 1, {"other": 3})
    with pytest.raises(ConfigError, match="limited: wait must be a number of seconds, 0 or more, not -1"):
        limited(1, wait=-1)


def test_a_single_value_is_checked_by_any_annotation() -> None:
    assert check_value("size", int | None, None) is None
    with pytest.raises(ConfigError, match=r"^it must be a whole number or None, not 'x'\.$"):
        check_value("size", int | None, "x", subject="it")
    with pytest.raises(ConfigError, match=r"^word must be a or b, not text \(not shown"):
        choice_of(f"sb://{PLANTED}", ("a", "b"), option="word")


def test_no_secret_is_in_an_error() -> None:
    secret = f"Endpoint=sb://x/;SharedAccessKey={PLANTED}"
    for options in PUBLIC.values():
        for option, right in options.right.items():
            if TEXT & right:
                continue
            for value in (secret, [7, secret], {"password": [secret]}):
                with pytest.raises(ConfigError) as refused:
                    options.given(option, value)
                assert PLANTED not in str(refused.value), option
