"""SQL about dead letters. The two databases differ in a few words; values are bound, and names are constants."""

# ruff: noqa: S608 - what is put into the texts are constants of this module, and the names of bound values

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hubline.dead_letters.selection import LetterChoice, LetterId
from hubline.model.dead_letters import DeadLetter, LetterState
from hubline.model.keys import PartitionKey
from hubline.sql.dead_letter_table import COLUMNS, storable
from hubline.sql.dialect import Params, Statement
from hubline.sql.sqlite import NOW

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
Values = dict[str, str | int | float | None]

PAUSE_SECONDS_MAX = 600
"""How long handlers, or a hub, may be at a lot of letters. Only other redrives wait for it, and a processor that fails
the same event again."""

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_TABLE = "hubline_dead_letter"
KEY_COLUMNS = COLUMNS[:5]
_KEY = ", ".join(KEY_COLUMNS)
_IN_KEY_ORDER = f"ORDER BY {_KEY} LIMIT :max_count"


@dataclass(frozen=True, slots=True)
class LetterDialect:
    """What the databases write differently. Times are counted in microseconds since 1970."""

    parameter: str
    """How a value's place is written."""
    micros: Callable[[str], str]
    """The time in a column, as microseconds."""
    failed_micros: str
    """The same for ``failed_at``, which SQLite keeps in milliseconds."""
    time: Callable[[str], str]
    """Microseconds as a time that ``failed_at`` can be compared with."""
    contains: Callable[[str, str], str]
    now: str
    now_micros: str
    locked: str
    locked_unless_busy: str
    try_lock: str
    """Takes a partition's letters for this transaction; false if another one has them."""
    be_patient: str
    """Lets this transaction pause for long between two statements; nothing where there is no bound on that."""

    def statement(self, text: str, params: Params) -> Statement:
        return Statement(_PARAMETER.sub(self.parameter, text), params)


SQLITE = LetterDialect(
    parameter=r":\1",
    micros=lambda column: column,
    failed_micros="failed_at * 1000",
    time=lambda micros: f"{micros} / 1000.0",
    contains=lambda column, part: f"instr(lower({column}), lower({part})) > 0",
    now=NOW,
    now_micros=f"{NOW} * 1000",
    locked="",  # a transaction here locks the whole database
    locked_unless_busy="",
    try_lock="SELECT :partition_lock IS NOT NULL",
    be_patient="",
)

POSTGRES = LetterDialect(
    parameter=r"%(\1)s",
    micros=lambda column: f"CAST(extract(epoch FROM {column}) * 1000000 AS bigint)",
    failed_micros="CAST(extract(epoch FROM failed_at) * 1000000 AS bigint)",
    time=lambda micros: f"to_timestamp(0) + CAST({micros} AS bigint) * interval '1 microsecond'",
    contains=lambda column, part: f"strpos(lower({column}), lower(CAST({part} AS text))) > 0",
    now="clock_timestamp()",
    now_micros="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    locked="FOR UPDATE",
    locked_unless_busy="FOR UPDATE SKIP LOCKED",
    # By partition, and not by row: a second redrive that skipped the locked rows would run later events of a key first.
    try_lock="SELECT pg_try_advisory_xact_lock(hashtextextended(CAST(:partition_lock AS text), 0))",
    be_patient=f"SET LOCAL idle_in_transaction_session_timeout = '{PAUSE_SECONDS_MAX}s'",
)


class LetterQueries:
    """The statements of one dialect."""

    def __init__(self, dialect: LetterDialect) -> None:
        self._dialect = dialect

    def now(self) -> Statement:
        """The database's time, in microseconds."""
        return self._dialect.statement(f"SELECT {self._dialect.now_micros}", {})

    def count(self, choice: LetterChoice) -> Statement:
        """How many letters there are by namespace, hub, group, partition, state and type of error, and the newest."""
        where, params = self._where(choice)
        grouped = f"{', '.join(KEY_COLUMNS[:4])}, state, error_type"
        found = f"SELECT {grouped}, count(*), max(sequence_number) FROM {_TABLE} WHERE {where}"
        return self._dialect.statement(f"{found} GROUP BY {grouped} ORDER BY {grouped}", params)

    def page(self, choice: LetterChoice, *, after: LetterId | None, max_count: int, bodies: bool) -> Statement:
        """Letters in the order of their keys, which new ones do not change; ``after`` is the last one of before."""
        where, params = self._where(choice, after)
        text = f"SELECT {self._columns(bodies=bodies)} FROM {_TABLE} WHERE {where} {_IN_KEY_ORDER}"
        return self._dialect.statement(text, {**params, "max_count": max_count})

    def try_lock(self, key: PartitionKey) -> Statement:
        return self._dialect.statement(self._dialect.try_lock, {"partition_lock": f"hubline dead letters {key}"})

    def be_patient(self) -> Statement | None:
        return self._dialect.statement(self._dialect.be_patient, {}) if self._dialect.be_patient else None

    def take(
        self, key: PartitionKey, choice: LetterChoice, *, after_sequence: int, last_sequence: int, max_count: int
    ) -> Statement:
        """The oldest letters of a partition within bounds, locked to the end of the transaction.

        The last column tells whether an earlier letter of the same partition key waits that was not chosen.
        """
        of_partition = replace(
            choice, namespace=key.namespace, hub=key.hub, group=key.group, partitions=(key.partition,)
        )
        where, params = self._where(of_partition)
        found = (
            f"SELECT {self._columns(bodies=True)}, {self._is_behind(choice)} FROM {_TABLE} AS letter "
            f"WHERE {where} AND sequence_number > :after_sequence AND sequence_number <= :last_sequence "
            f"ORDER BY sequence_number LIMIT :max_count {self._dialect.locked}"
        )
        bounds = {"after_sequence": after_sequence, "last_sequence": last_sequence, "max_count": max_count}
        return self._dialect.statement(found, {**params, **bounds})

    def settle(self, key: PartitionKey, sequences: Sequence[int], *, removes: bool) -> Statement:
        """Marks letters as redriven, or removes them."""
        where, params = _of_partition(key)
        places = [f"sequence_{index}" for index in range(len(sequences))]
        where = f"{where} AND sequence_number IN ({', '.join(f':{place}' for place in places)})"
        params.update(zip(places, sequences, strict=True))
        if removes:
            return self._dialect.statement(f"DELETE FROM {_TABLE} WHERE {where}", params)
        params["state"] = LetterState.REDRIVEN.value
        return self._dialect.statement(f"UPDATE {_TABLE} SET state = :state WHERE {where}", params)

    def fail_again(self, letter: DeadLetter) -> Statement:
        """Notes that a letter failed once more, with its new error, and how often it was tried."""
        where, params = _of_partition(letter.key)
        params |= {
            "sequence_number": letter.event.sequence_number,
            "stage": storable(letter.stage),
            "error_type": storable(letter.error_type),
            "error_text": storable(letter.error_text),
            "traceback": storable(letter.traceback),
            "attempts": letter.attempts,
        }
        text = (
            f"UPDATE {_TABLE} SET stage = :stage, error_type = :error_type, error_text = :error_text, "
            f"traceback = :traceback, attempts = attempts + :attempts, failed_at = {self._dialect.now} "
            f"WHERE {where} AND sequence_number = :sequence_number"
        )
        return self._dialect.statement(text, params)

    def mark_some(self, choice: LetterChoice, state: LetterState, *, max_count: int) -> Statement:
        """Marks letters, unless another transaction has them; answers with a row for each."""
        where, params = self._where(choice)
        text = f"UPDATE {_TABLE} SET state = :new_state WHERE {self._are_some(where)} RETURNING sequence_number"
        return self._dialect.statement(text, {**params, "new_state": state.value, "max_count": max_count})

    def delete_some(self, choice: LetterChoice, *, max_count: int) -> Statement:
        """Removes letters, unless another transaction has them; answers with a row for each."""
        where, params = self._where(choice)
        text = f"DELETE FROM {_TABLE} WHERE {self._are_some(where)} RETURNING sequence_number"
        return self._dialect.statement(text, {**params, "max_count": max_count})

    def _are_some(self, where: str) -> str:
        found = f"SELECT {_KEY} FROM {_TABLE} WHERE {where} {_IN_KEY_ORDER} {self._dialect.locked_unless_busy}"
        return f"({_KEY}) IN ({found})"

    def _is_behind(self, choice: LetterChoice) -> str:
        narrowing, _ = self._narrowing(choice)
        if not narrowing:
            return "1 = 0"  # all that wait are chosen
        same = " AND ".join(f"earlier.{column} = letter.{column}" for column in (*KEY_COLUMNS[:4], "partition_key"))
        return (
            f"EXISTS (SELECT 1 FROM {_TABLE} AS earlier WHERE {same} AND earlier.state = 'waiting' "
            f"AND earlier.sequence_number < letter.sequence_number AND NOT ({' AND '.join(narrowing)}))"
        )

    def _columns(self, *, bodies: bool) -> str:
        """As :func:`~hubline.sql.dead_letter_table.read_letter` takes them, behind the three of the group."""
        changed = {"enqueued_at": self._dialect.micros("enqueued_at")}
        if not bodies:
            changed["body"] = "substr(body, 1, 0)"  # nothing of one that is there
        return ", ".join((*(changed.get(name, name) for name in COLUMNS), self._dialect.failed_micros))

    def _where(self, choice: LetterChoice, after: LetterId | None = None) -> tuple[str, Params]:
        named = {
            "namespace": choice.namespace,
            "hub": choice.hub,
            "consumer_group": choice.group,
            "state": choice.state.value if choice.state else None,
        }
        conditions = [f"{column} = :{column}" for column, value in named.items() if value is not None]
        params: Values = {column: value for column, value in named.items() if value is not None}
        if choice.partitions:
            places = [f"partition_{index}" for index in range(len(choice.partitions))]
            conditions.append(f"partition_id IN ({', '.join(f':{place}' for place in places)})")
            params.update(zip(places, choice.partitions, strict=True))
        narrowing, values = self._narrowing(choice)
        conditions += narrowing
        params |= values
        if after is not None:
            conditions.append(_after(after, params))
        return " AND ".join(conditions) or "1 = 1", params

    def _narrowing(self, choice: LetterChoice) -> tuple[list[str], Values]:
        """What is asked of the single letters of a partition."""
        conditions: list[str] = []
        params: Values = {}
        for name, sign, time in (("since", ">=", choice.since), ("until", "<=", choice.until)):
            if time is not None:
                conditions.append(f"failed_at {sign} {self._dialect.time(f':{name}')}")
                params[name] = (time - _EPOCH) // _MICROSECOND
        if choice.error_type is not None:
            # With the name of its module before it, or without.
            ends = "substr(error_type, length(error_type) - length(:error_type)) = '.' || :error_type"
            conditions.append(_typed(f"(error_type = :error_type OR {ends})", "error_type"))
            params["error_type"] = choice.error_type
        if choice.error_text is not None:
            conditions.append(self._dialect.contains("error_text", ":error_text"))
            params["error_text"] = choice.error_text
        if choice.ids:
            conditions.append(_any_of(choice.ids, params))
        return conditions, params


def _of_partition(key: PartitionKey) -> tuple[str, Values]:
    values: Values = dict(zip(KEY_COLUMNS[:4], (key.namespace, key.hub, key.group, key.partition), strict=True))
    return " AND ".join(f"{column} = :{column}" for column in values), values


def _typed(text: str, name: str) -> str:
    """PostgreSQL does not guess the type of a value that only functions see."""
    return text.replace(f":{name}", f"CAST(:{name} AS text)")


def _any_of(ids: Iterable[LetterId], params: Values) -> str:
    conditions = []
    for index, letter in enumerate(ids):
        parts: dict[str, str | int] = {"partition_id": letter.partition, "sequence_number": letter.sequence_number}
        if letter.group is not None:
            group = letter.group
            parts |= {"namespace": group.namespace, "hub": group.hub, "consumer_group": group.group}
        conditions.append(" AND ".join(f"{column} = :id_{column}_{index}" for column in parts))
        params.update({f"id_{column}_{index}": value for column, value in parts.items()})
    return f"({' OR '.join(conditions)})"


def _after(letter: LetterId, params: Values) -> str:
    assert letter.group is not None  # noqa: S101 (a letter that was read has one)
    values = (letter.group.namespace, letter.group.hub, letter.group.group, letter.partition, letter.sequence_number)
    places = [f"after_{column}" for column in KEY_COLUMNS]
    params.update(zip(places, values, strict=True))
    return f"({_KEY}) > ({', '.join(f':{place}' for place in places)})"
