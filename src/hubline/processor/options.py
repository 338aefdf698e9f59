"""How a processor works: leases, batches, checkpoints, retries. Values that refuse what cannot work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from hubline.addresses.choices import choice_of
from hubline.coordination.lease_options import LeaseOptions
from hubline.errors import ConfigError
from hubline.model.positions import ON_DATA_LOSS, OnDataLoss
from hubline.retry import RetryPolicy

OnFailure = Literal["stop", "dead_letter"]
"""What to do with a batch whose handler still fails after its retries.

`"stop"` stops the partition; it reopens from its checkpoint after a while (the default without a sink). `"dead_letter"`
finds the failing events and keeps each with its error; the partition continues (the default with a sink).
"""

ON_FAILURE: Final[tuple[OnFailure, ...]] = get_args(OnFailure)


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When progress is written to the store. Make one with the class methods.

    Whatever the policy, a partition is checkpointed before it is handed over or its processor stops, unless the policy
    is `manual`.
    """

    events: int | None = None
    seconds: float | None = None
    at_renewal: bool = False

    def __post_init__(self) -> None:
        if self.events is not None and self.events < 1:
            raise ConfigError(f"events must be 1 or more, and is {self.events}")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"seconds must be more than 0, and is {self.seconds}")

    @classmethod
    def manual(cls) -> CheckpointPolicy:
        """Only when the handler calls ``partition.checkpoint()``."""
        return cls()

    @classmethod
    def on_renewal(cls) -> CheckpointPolicy:
        """Each time the lease is renewed."""
        return cls(at_renewal=True)

    @classmethod
    def every(cls, *, events: int | None = None, seconds: float | None = None) -> CheckpointPolicy:
        """After this many events or seconds, whichever comes first: never inside a batch that one call handles."""
        if events is None and seconds is None:
            raise ConfigError("say after how many events or seconds a checkpoint is written")
        return cls(events=events, seconds=seconds)

    @classmethod
    def every_batch(cls) -> CheckpointPolicy:
        """After every batch, with `on_event` after every event: the fewest events come again after a crash, at the
        price of the most writes."""
        return cls(events=1)

    @property
    def is_automatic(self) -> bool:
        return self.at_renewal or self.events is not None or self.seconds is not None


@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """Everything about a processor that has a sensible default.

    Attributes:
        max_batch_size: The most events in a batch. Default: 1,000.
        max_wait_seconds: How long a batch may wait to fill up. By default 0: what is there is delivered at once.
        heartbeat: Deliver an empty batch when nothing came within `max_wait_seconds`.
        prefetch_bytes: How far the receiver of a partition reads ahead of the handler; the batch that is being filled
            comes on top. Default: 16 MiB.
        checkpoint_policy: When progress is written to the store. By default every 5 seconds.
        lease: How partitions are owned.
        handler_retry: How often a handler is called again for what it failed with.
        reconnect_backoff: The pauses before a partition that failed is opened again, and before its receiver is.
            From 1 to 60 seconds by default.
        on_failure: What to do with events whose handler fails after its retries: `"stop"` or `"dead_letter"`. By
            default `"dead_letter"` with a sink, else `"stop"`.
        max_consecutive_failures: After this many failing events in a row, the partition stops. Default: 100.
        max_failure_ratio: So it does when more than this part of its last 1,000 events failed. Default: 0.5.
        preserve_key_order: The later events of a failed event's partition key follow it to the dead letters.
        on_data_loss: What to do where events have expired or are another hub's: `"fail"`, `"earliest"` or `"latest"`.
        handler_timeout_seconds: An async handler that runs longer is cancelled, and has failed. By default none is.
        slow_handler_seconds: A handler that runs longer is reported to `on_error`, as is a blocked event loop.
            Default: 60.
        hub_timeout_seconds: How long a call of the hub may take, and a partition that has events may deliver none
            before its receiver is replaced. Default: 60.
        stop_timeout_seconds: How long a stop waits for batches in progress. Default: 30.
    """

    max_batch_size: int = 1_000
    max_wait_seconds: float = 0.0
    heartbeat: bool = False
    prefetch_bytes: int = 16 * 1024 * 1024
    checkpoint_policy: CheckpointPolicy = field(default_factory=lambda: CheckpointPolicy.every(seconds=5.0))
    lease: LeaseOptions = field(default_factory=LeaseOptions)
    handler_retry: RetryPolicy = field(default_factory=RetryPolicy)
    reconnect_backoff: RetryPolicy = field(
        default_factory=lambda: RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=60.0)
    )
    on_failure: OnFailure | None = None
    max_consecutive_failures: int = 100
    max_failure_ratio: float = 0.5
    preserve_key_order: bool = False
    on_data_loss: OnDataLoss = "fail"
    handler_timeout_seconds: float | None = None
    slow_handler_seconds: float = 60.0
    hub_timeout_seconds: float = 60.0
    stop_timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        _at_least_one("max_batch_size", self.max_batch_size)
        _at_least_one("prefetch_bytes", self.prefetch_bytes)
        _at_least_one("max_consecutive_failures", self.max_consecutive_failures)
        if not self.max_wait_seconds >= 0:
            raise ConfigError(f"max_wait_seconds is not negative, and is {self.max_wait_seconds:g}")
        if self.heartbeat and self.max_wait_seconds == 0:
            raise ConfigError("heartbeat batches need a max_wait_seconds above 0: that is their interval")
        for name, seconds in (
            ("slow_handler_seconds", self.slow_handler_seconds),
            ("hub_timeout_seconds", self.hub_timeout_seconds),
            ("stop_timeout_seconds", self.stop_timeout_seconds),
            ("handler_timeout_seconds", self.handler_timeout_seconds),
        ):
            if seconds is not None and not seconds > 0:
                raise ConfigError(f"{name} is above 0, and is {seconds:g}")
        if not 0 < self.max_failure_ratio <= 1:
            raise ConfigError(f"max_failure_ratio is above 0 and at most 1, and is {self.max_failure_ratio:g}")
        if self.on_failure is not None:
            choice_of(self.on_failure, ON_FAILURE, option="on_failure")
        choice_of(self.on_data_loss, ON_DATA_LOSS, option="on_data_loss")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is at least 1, and is {value}")
