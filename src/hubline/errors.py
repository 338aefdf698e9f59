"""Every error hubline raises on purpose.

    HublineError
    ├── ConfigError            what a person typed is wrong: a URL, a name, an option (also a ValueError)
    ├── HubError               a hub cannot do what was asked
    │   ├── HubNotFound
    │   ├── HubExists
    │   ├── AccessDenied       the key, signature or identity is wrong, expired, or may not do this
    │   ├── PartitionNotFound
    │   ├── HubUnavailable     try again later: unreachable, locked, throttled
    │   ├── HubFull            the hub cannot take more: disk or quota
    │   ├── HubDamaged         stored data cannot be read
    │   ├── EventTooLarge
    │   ├── SendFailed         a producer could not send some events: it names them, with the error of each
    │   ├── PositionInvalid    the position is expired, beyond the end, or another hub's
    │   ├── ReaderRefused      a reader with a higher epoch holds the partition
    │   └── ReaderStolen       a reader with an equal or higher epoch took the partition
    ├── StoreError             the checkpoint store cannot do what was asked
    │   ├── StoreUnavailable   try again later
    │   ├── StoreNotFound      there is no such container, or no such file
    │   ├── GroupNotFound      the store knows no such consumer group
    │   ├── StoreIncompatible  the schema is newer than this hubline
    │   ├── RecordDamaged      one record cannot be read; the others are fine
    │   ├── Fenced             a newer epoch holds the checkpoint: what this owner did must not count
    │   └── SinkError          the sink's table cannot take the rows: missing, altered, other columns, no rights
    │       └── RowsRejected    the database refuses rows, and nothing tells of which events they came
    ├── ProcessorError         processing a partition went wrong
    │   ├── HandlerFailed      the handler raised, also after its retries
    │   ├── HandlerStalled     a handler has been running for very long
    │   ├── PartitionStalled   the hub has events, and none arrive
    │   ├── SinkMissing        a handler returned rows, and there is no sink
    │   ├── DeadLetterLimit    too many events failed: in a row, of all, or in a minute
    │   └── LeaseLost          another processor took the partition, or the lease expired
    └── PipelineError          a pipeline cannot run
        ├── PipelineInvalid    its checks found problems: nothing was started
        └── StageFailed        a stage failed more often than it may be started again

Errors carry plain fields, so that a caller can act on them without reading the text, and never a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hubline.text import sentences

if TYPE_CHECKING:
    import pyarrow as pa


class HublineError(Exception):
    """The base of all errors that hubline raises on purpose."""


class ConfigError(HublineError, ValueError):
    """Something a person typed is wrong. The message says what, where and what to do; it shows no secret."""


class HubError(HublineError):
    """A hub cannot do what was asked."""

    def __init__(self, message: str, *, hub: str = "", partition: str | None = None) -> None:
        super().__init__(message)
        self.hub = hub
        self.partition = partition


class HubNotFound(HubError):
    """There is no hub of that name there."""


class HubExists(HubError):
    """A hub of that name is there already."""


class AccessDenied(HubError):
    """The hub does not let this key, signature or identity in, or not do this. Trying again does not help."""


class PartitionNotFound(HubError):
    """The hub has no partition of that id."""


class HubUnavailable(HubError):
    """The hub cannot be reached now; trying again may help."""


class HubFull(HubError):
    """The hub cannot take more events: no disk space or no quota left. Nothing of the batch was kept."""


class HubDamaged(HubError):
    """Stored data of the hub cannot be read."""


class EventTooLarge(HubError):
    """An event is larger than the hub takes. ``index`` is its place in what was sent."""

    def __init__(self, message: str, *, hub: str = "", index: int, bytes_count: int, max_bytes: int) -> None:
        super().__init__(message, hub=hub)
        self.index = index
        self.bytes_count = bytes_count
        self.max_bytes = max_bytes


@dataclass(frozen=True, slots=True, eq=False)
class FailedSend:
    """Events that a producer could not send, and why.

    Attributes:
        events: The events, in their order. `send` takes them as they are, to try again.
        partition_id: The partition that they were for. None: any.
        error: Why. If the hub was lost while they were on their way (HubUnavailable), it may have kept some of them.
    """

    events: pa.RecordBatch
    partition_id: str | None
    error: Exception

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the events."""
        bodies: list[bytes] = self.events.column("body").to_pylist()
        return bodies


class SendFailed(HubError):
    """A producer could not send some events. ``failures`` has them, with the error of each; all others were sent."""

    def __init__(self, message: str, *, hub: str = "", failures: Iterable[FailedSend]) -> None:
        super().__init__(message, hub=hub)
        self.failures = tuple(failures)


class PositionInvalid(HubError):
    """Reading cannot start where asked without skipping events or reading another hub's.

    ``reason`` is ``"expired"`` (retention removed the events there), ``"beyond"`` (after the last event) or
    ``"foreign"`` (it is of another hub, or of this one from before it was deleted and re-created).
    ``begin_sequence`` and ``last_sequence`` tell what the partition holds now.
    """

    def __init__(
        self,
        message: str,
        *,
        hub: str = "",
        partition: str,
        reason: str,
        begin_sequence: int,
        last_sequence: int,
    ) -> None:
        super().__init__(message, hub=hub, partition=partition)
        self.reason = reason
        self.begin_sequence = begin_sequence
        self.last_sequence = last_sequence


class ReaderRefused(HubError):
    """Another reader of the group holds the partition with a higher epoch."""

    def __init__(self, message: str, *, hub: str = "", partition: str, epoch: int | None, held_epoch: int) -> None:
        super().__init__(message, hub=hub, partition=partition)
        self.epoch = epoch
        self.held_epoch = held_epoch


class ReaderStolen(HubError):
    """Another reader of the group took the partition with an equal or higher epoch."""

    def __init__(self, message: str, *, hub: str = "", partition: str, epoch: int | None, taken_by_epoch: int) -> None:
        super().__init__(message, hub=hub, partition=partition)
        self.epoch = epoch
        self.taken_by_epoch = taken_by_epoch


class StoreError(HublineError):
    """The checkpoint store cannot do what was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be reached now; trying again may help."""


class StoreNotFound(StoreError):
    """There is no store at that address, and none is made: create it, or correct the address."""


class GroupNotFound(StoreError):
    """The store has nothing of the consumer group: no owner, no member and no checkpoint."""


class StoreIncompatible(StoreError):
    """The store's schema was made by a newer hubline than this one."""


class RecordDamaged(StoreError):
    """One record of the store cannot be read. Its partition stops; the others continue."""

    def __init__(self, message: str, *, partition: str, record: str) -> None:
        super().__init__(message)
        self.partition = partition
        self.record = record


class Fenced(StoreError):
    """A newer epoch holds the partition's checkpoint: nothing of this owner may count any more."""

    def __init__(self, message: str, *, partition: str, epoch: int, held_epoch: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.epoch = epoch
        self.held_epoch = held_epoch


class SinkError(StoreError):
    """The sink's table cannot take what it is given. Nothing was written; it stays so until somebody fixes it."""

    def __init__(self, message: str, *, table: str = "") -> None:
        super().__init__(message)
        self.table = table


class RowsRejected(SinkError):
    """The database refuses rows of which it is not known from which events they came. Nothing was written."""


class ProcessorError(HublineError):
    """Processing a partition went wrong."""

    def __init__(self, message: str, *, partition: str) -> None:
        super().__init__(message)
        self.partition = partition


class HandlerFailed(ProcessorError):
    """The handler raised, also after its retries; ``__cause__`` is what it raised last."""

    def __init__(self, message: str, *, partition: str, first_sequence: int, last_sequence: int, attempts: int) -> None:
        super().__init__(message, partition=partition)
        self.first_sequence = first_sequence
        self.last_sequence = last_sequence
        self.attempts = attempts


class HandlerStalled(ProcessorError):
    """A handler has been running for very long; the partition makes no progress meanwhile."""

    def __init__(self, message: str, *, partition: str, seconds: float) -> None:
        super().__init__(message, partition=partition)
        self.seconds = seconds


class PartitionStalled(ProcessorError):
    """The hub has events for the partition, and none arrive: the receiver is opened again."""


class DeadLetterLimit(ProcessorError):
    """Too many events failed: more likely the handler, or what it needs, is broken than the events.

    ``limit`` is which one: ``"in a row"``, ``"ratio"`` or ``"per minute"``.
    """

    def __init__(self, message: str, *, partition: str, limit: str = "in a row") -> None:
        super().__init__(message, partition=partition)
        self.limit = limit


class SinkMissing(ProcessorError):
    """A handler returned rows, and the processor has no sink that could write them."""


class LeaseLost(ProcessorError):
    """Another processor took the partition, or the lease could not be renewed in time."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a pipeline: in which file and line, what it is, and how to fix it. Shows no secret.

    `code` is the line of the user's own code that raised an error, and `error` is that error.
    """

    file: str
    line: int
    message: str
    fix: str = ""
    code: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        code = f"{self.code}\n  " if self.code else ""
        return f"{where}: {code}{sentences(self.message, self.fix)}"


class PipelineError(HublineError):
    """A pipeline cannot run."""


class PipelineInvalid(PipelineError):
    """The checks of a pipeline found problems, and lists all of them. No stage was started."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class StageFailed(PipelineError):
    """A stage failed more often than it may be started again; the message says why it failed last."""

    def __init__(self, message: str, *, stage: str) -> None:
        super().__init__(message)
        self.stage = stage
