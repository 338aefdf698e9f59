"""How a processor works: leases, batches, checkpoints, retries. Values that refuse what cannot work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from hubline.addresses.did_you_mean import nearest_name
from hubline.addresses.option_checks import checked, checked_options
from hubline.addresses.option_kinds import ByteSize, Count, Meant, PositiveSeconds, Range, Seconds
from hubline.addresses.values import DURATION_SECONDS_MAX, parse_duration
from hubline.coordination.lease_options import LeaseOptions
from hubline.errors import ConfigError
from hubline.model.positions import OnDataLoss
from hubline.retry import RetryPolicy

OnFailure = Literal["stop", "dead_letter"]
"""What to do with a batch whose handler still fails after its retries.

`"stop"` stops the partition; it reopens from its checkpoint after a while (the default without a sink). `"dead_letter"`
finds the failing events and keeps each with its error; the partition continues (the default with a sink).
"""


@checked_options
@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a processor writes checkpoints. Make one with the class methods.

    With every policy but `manual`, a processor also writes a checkpoint before it hands a partition over or stops. To
    keep no checkpoints at all, use `checkpoint_policy="never"` instead.

    Attributes:
        events: After so many events. Default: None.
        seconds: After so many seconds. Default: None.
        at_renewal: Each time the lease is renewed. Default: False.

    Raises:
        ConfigError: An option is of the wrong type, or is not allowed.
    """

    events: Count | None = None
    seconds: PositiveSeconds | None = None
    at_renewal: bool = False

    @classmethod
    def manual(cls) -> CheckpointPolicy:
        """Write a checkpoint only when a handler calls `partition.checkpoint()`."""
        return cls()

    @classmethod
    def on_renewal(cls) -> CheckpointPolicy:
        """Write a checkpoint each time the lease is renewed."""
        return cls(at_renewal=True)

    @classmethod
    @checked
    def every(cls, *, events: Count | None = None, seconds: PositiveSeconds | None = None) -> CheckpointPolicy:
        """Write a checkpoint after so many events or seconds, whichever comes first, but never inside a batch.

        Args:
            events: How many events. Default: no limit.
            seconds: How many seconds. Default: no limit.

        Raises:
            ConfigError: Neither is given, or one is not a positive number.
        """
        if events is None and seconds is None:
            raise ConfigError(
                "CheckpointPolicy.every: say after how many events or seconds a checkpoint is written. "
                "Write for instance CheckpointPolicy.every(seconds=5)."
            )
        return cls(events=events, seconds=seconds)

    @classmethod
    def every_batch(cls) -> CheckpointPolicy:
        """Write a checkpoint after every batch, or with `on_event` after every event.

        The fewest events are processed again after a crash, at the price of the most writes.
        """
        return cls(events=1)

    @property
    def is_automatic(self) -> bool:
        return self.at_renewal or self.events is not None or self.seconds is not None


def _meant_policy(value: object) -> str | None:
    """The policy that a value of another type was meant to be, as code."""
    if value is False:
        return _POLICIES["never"]
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= DURATION_SECONDS_MAX:
        return f"CheckpointPolicy.every(seconds={value})"
    if not isinstance(value, str):
        return None
    try:
        return f"CheckpointPolicy.every(seconds={parse_duration(value).total_seconds():g})"
    except ConfigError:
        name = nearest_name(value, _POLICIES)
    return None if name is None else _POLICIES[name]


_POLICIES: Final = {
    **{name: f"CheckpointPolicy.{name}()" for name in ("every_batch", "on_renewal", "manual")},
    **dict.fromkeys(("never", "none", "off"), '"never"'),
}
"""What people write for policies, and the code of each."""


@checked_options
@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """Everything about a processor that has a sensible default. A wrong type or value is refused at once.

    Attributes:
        max_batch_size: The most events in a batch. Default: 1,000.
        max_wait_seconds: How long a batch may wait to fill up. By default 0: what is there is delivered at once.
        heartbeat: Deliver an empty batch when nothing came within `max_wait_seconds`.
        prefetch_bytes: The most that is held of a partition's events before the handler gets them, the batch that is
            being filled included; or one event, if it alone is larger. In bytes, or as text such as `"4MiB"`. Default:
            16 MiB.
        max_prefetch_bytes: The most that is held of all partitions of the processor together, each of which gets an
            equal part; but one event of each is always held. Default: 256 MiB.
        checkpoint_policy: When progress is written to the store. With `"never"` the store keeps who owns what and no
            progress: a partition starts at the starting position whenever it opens. By default every 5 seconds.
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

    Raises:
        ConfigError: An option is unknown, of the wrong type, or not allowed.
    """

    max_batch_size: Count = 1_000
    max_wait_seconds: Seconds = 0.0
    heartbeat: bool = False
    prefetch_bytes: ByteSize = 16 * 1024 * 1024
    max_prefetch_bytes: ByteSize = 256 * 1024 * 1024
    checkpoint_policy: Annotated[CheckpointPolicy | Literal["never"], Meant(_meant_policy)] = field(
        default_factory=lambda: CheckpointPolicy.every(seconds=5.0)
    )
    lease: LeaseOptions = field(default_factory=LeaseOptions)
    handler_retry: RetryPolicy = field(default_factory=RetryPolicy)
    reconnect_backoff: RetryPolicy = field(
        default_factory=lambda: RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=60.0)
    )
    on_failure: OnFailure | None = None
    max_consecutive_failures: Count = 100
    max_failure_ratio: Annotated[float, Range(above=0, most=1)] = 0.5
    preserve_key_order: bool = False
    on_data_loss: OnDataLoss = "fail"
    handler_timeout_seconds: PositiveSeconds | None = None
    slow_handler_seconds: PositiveSeconds = 60.0
    hub_timeout_seconds: PositiveSeconds = 60.0
    stop_timeout_seconds: PositiveSeconds = 30.0

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether progress is kept in the store."""
        return self.checkpoint_policy != "never"

    def __post_init__(self) -> None:
        if self.heartbeat and self.max_wait_seconds == 0:
            raise ConfigError(
                "ProcessorOptions: heartbeat=True needs a max_wait_seconds above 0, which is the interval of "
                "heartbeats. Set it."
            )
