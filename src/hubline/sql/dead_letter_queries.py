"""SQL about dead letters that are listed, redriven or discarded. Values are bound; names are constants."""

# ruff: noqa: S608 - what is put into the texts are constants of this module, and the names of bound values

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hubline.model.dead_letters import DeadLetter, DeadLetterId, DeadLetterSelection, DeadLetterState
from hubline.model.keys import PartitionKey
from hubline.sql.dead_letter_table import COLUMNS, storable
from hubline.sql.dialect import Dialect, Params, Statement

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
Values = dict[str, str | int | float | None]

_TABLE = "hubline_dead_letter"
KEY_COLUMNS = COLUMNS[:5]
_KEY = ", ".join(KEY_COLUMNS)
_IN_KEY_ORDER = f"ORDER BY {_KEY} LIMIT :max_count"


class DeadLetterQueries:
    """The statements about dead letters, in one dialect. Times are counted in microseconds since 1970."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def now(self) -> Statement:
        """The database's time, in microseconds."""
        return self._dialect.statement(f"SELECT {self._dialect.now_micros}", {})

    def count(self, selection: DeadLetterSelection) -> Statement:
        """Counts dead letters by namespace, hub, group, partition, state and type of error; and the newest of each."""
        where, params = self._where(selection)
        grouped = f"{', '.join(KEY_COLUMNS[:4])}, state, error_type"
        found = f"SELECT {grouped}, count(*), max(sequence_number) FROM {_TABLE} WHERE {where}"
        return self._dialect.statement(f"{found} GROUP BY {grouped} ORDER BY {grouped}", params)

    def page(
        self, selection: DeadLetterSelection, *, after: DeadLetterId | None, max_count: int, bodies: bool
    ) -> Statement:
        """Dead letters in the order of their keys, which new ones do not change, behind `after`."""
        where, params = self._where(selection, after)
        text = f"SELECT {self._columns(bodies=bodies)} FROM {_TABLE} WHERE {where} {_IN_KEY_ORDER}"
        return self._dialect.statement(text, {**params, "max_count": max_count})

    def try_lock(self, key: PartitionKey) -> Statement:
        return self._dialect.statement(self._dialect.try_lock, {"partition_lock": f"hubline dead letters {key}"})

    def allow_long_pauses(self) -> Statement | None:
        return self._dialect.statement(self._dialect.allow_long_pauses, {}) if self._dialect.allow_long_pauses else None

    def take(
        self,
        key: PartitionKey,
        selection: DeadLetterSelection,
        *,
        after_sequence: int,
        last_sequence: int,
        max_count: int,
    ) -> Statement:
        """The oldest dead letters of a partition within bounds, locked to the end of the transaction.

        The last column says whether an earlier one of the same partition key waits that was not selected.
        """
        of_partition = replace(
            selection, namespace=key.namespace, hub=key.hub, group=key.group, partitions=(key.partition,)
        )
        where, params = self._where(of_partition)
        found = (
            f"SELECT {self._columns(bodies=True)}, {self._is_behind(selection)} FROM {_TABLE} AS dead_letter "
            f"WHERE {where} AND sequence_number > :after_sequence AND sequence_number <= :last_sequence "
            f"ORDER BY sequence_number LIMIT :max_count {self._dialect.locked_for_removal}"
        )
        bounds = {"after_sequence": after_sequence, "last_sequence": last_sequence, "max_count": max_count}
        return self._dialect.statement(found, {**params, **bounds})

    def settle(self, key: PartitionKey, sequences: Sequence[int], *, removes: bool) -> Statement:
        """Marks dead letters as redriven, or removes them."""
        where, params = _of_partition(key)
        places = [f"sequence_{index}" for index in range(len(sequences))]
        where = f"{where} AND sequence_number IN ({', '.join(f':{place}' for place in places)})"
        params.update(zip(places, sequences, strict=True))
        if removes:
            return self._dialect.statement(f"DELETE FROM {_TABLE} WHERE {where}", params)
        params["state"] = DeadLetterState.REDRIVEN.value
        return self._dialect.statement(f"UPDATE {_TABLE} SET state = :state WHERE {where}", params)

    def fail_again(self, dead_letter: DeadLetter) -> Statement:
        """Records that a dead letter failed once more, with its new error, and how often it was tried."""
        where, params = _of_partition(dead_letter.key)
        params |= {
            "sequence_number": dead_letter.event.sequence_number,
            "stage": storable(dead_letter.stage),
            "error_type": storable(dead_letter.error_type),
            "error_text": storable(dead_letter.error_text),
            "traceback": storable(dead_letter.traceback),
            "attempts": dead_letter.attempts,
        }
        text = (
            f"UPDATE {_TABLE} SET stage = :stage, error_type = :error_type, error_text = :error_text, "
            f"traceback = :traceback, attempts = attempts + :attempts, failed_at = {self._dialect.now} "
            f"WHERE {where} AND sequence_number = :sequence_number"
        )
        return self._dialect.statement(text, params)

    def mark_some(self, selection: DeadLetterSelection, state: DeadLetterState, *, max_count: int) -> Statement:
        """Marks dead letters, unless another transaction has them; answers with a row for each."""
        where, params = self._where(selection)
        text = f"UPDATE {_TABLE} SET state = :new_state WHERE {self._are_some(where)} RETURNING sequence_number"
        return self._dialect.statement(text, {**params, "new_state": state.value, "max_count": max_count})

    def delete_some(self, selection: DeadLetterSelection, *, max_count: int) -> Statement:
        """Removes dead letters, unless another transaction has them; answers with a row for each."""
        where, params = self._where(selection)
        text = f"DELETE FROM {_TABLE} WHERE {self._are_some(where)} RETURNING sequence_number"
        return self._dialect.statement(text, {**params, "max_count": max_count})

    def _are_some(self, where: str) -> str:
        found = f"SELECT {_KEY} FROM {_TABLE} WHERE {where} {_IN_KEY_ORDER} {self._dialect.skip_locked}"
        return f"({_KEY}) IN ({found})"

    def _is_behind(self, selection: DeadLetterSelection) -> str:
        narrowing, _ = self._narrowing(selection)
        if not narrowing:
            return "1 = 0"  # all that wait are selected
        same = " AND ".join(
            f"earlier.{column} = dead_letter.{column}" for column in (*KEY_COLUMNS[:4], "partition_key")
        )
        return (
            f"EXISTS (SELECT 1 FROM {_TABLE} AS earlier WHERE {same} AND earlier.state = 'waiting' "
            f"AND earlier.sequence_number < dead_letter.sequence_number AND NOT ({' AND '.join(narrowing)}))"
        )

    def _columns(self, *, bodies: bool) -> str:
        """As :func:`~hubline.sql.dead_letter_table.read_dead_letter` takes them, behind the three of the group."""
        changed = {"enqueued_at": self._dialect.micros("enqueued_at")}
        if not bodies:
            changed["body"] = "substr(body, 1, 0)"  # nothing of one that is there
        return ", ".join((*(changed.get(name, name) for name in COLUMNS), self._dialect.failed_micros))

    def _where(self, selection: DeadLetterSelection, after: DeadLetterId | None = None) -> tuple[str, Params]:
        named = {
            "namespace": selection.namespace,
            "hub": selection.hub,
            "consumer_group": selection.group,
            "state": selection.state.value if selection.state else None,
        }
        conditions = [f"{column} = :{column}" for column, value in named.items() if value is not None]
        params: Values = {column: value for column, value in named.items() if value is not None}
        if selection.partitions:
            places = [f"partition_{index}" for index in range(len(selection.partitions))]
            conditions.append(f"partition_id IN ({', '.join(f':{place}' for place in places)})")
            params.update(zip(places, selection.partitions, strict=True))
        narrowing, values = self._narrowing(selection)
        conditions += narrowing
        params |= values
        if after is not None:
            conditions.append(_after(after, params))
        return " AND ".join(conditions) or "1 = 1", params

    def _narrowing(self, selection: DeadLetterSelection) -> tuple[list[str], Values]:
        """The conditions on single dead letters of a partition."""
        conditions: list[str] = []
        params: Values = {}
        for name, sign, time in (("since", ">=", selection.since), ("until", "<=", selection.until)):
            if time is not None:
                conditions.append(f"failed_at {sign} {self._dialect.failed_time(f':{name}')}")
                params[name] = (time - _EPOCH) // _MICROSECOND
        if selection.error_type is not None:
            # With the name of its module before it, or without.
            ends = "substr(error_type, length(error_type) - length(:error_type)) = '.' || :error_type"
            conditions.append(_typed(f"(error_type = :error_type OR {ends})", "error_type"))
            params["error_type"] = selection.error_type
        if selection.error_text is not None:
            conditions.append(self._dialect.contains_text("error_text", ":error_text"))
            params["error_text"] = selection.error_text
        if selection.ids:
            conditions.append(_any_of(selection.ids, params))
        return conditions, params


def _of_partition(key: PartitionKey) -> tuple[str, Values]:
    values: Values = dict(zip(KEY_COLUMNS[:4], (key.namespace, key.hub, key.group, key.partition), strict=True))
    return " AND ".join(f"{column} = :{column}" for column in values), values


def _typed(text: str, name: str) -> str:
    """PostgreSQL does not guess the type of a value that only functions see."""
    return text.replace(f":{name}", f"CAST(:{name} AS text)")


def _any_of(ids: Iterable[DeadLetterId], params: Values) -> str:
    conditions = []
    for index, one in enumerate(ids):
        parts: dict[str, str | int] = {"partition_id": one.partition, "sequence_number": one.sequence_number}
        if one.group is not None:
            group = one.group
            parts |= {"namespace": group.namespace, "hub": group.hub, "consumer_group": group.group}
        conditions.append(" AND ".join(f"{column} = :id_{column}_{index}" for column in parts))
        params.update({f"id_{column}_{index}": value for column, value in parts.items()})
    return f"({' OR '.join(conditions)})"


def _after(last: DeadLetterId, params: Values) -> str:
    assert last.group is not None  # noqa: S101 (a dead letter that was read has one)
    values = (last.group.namespace, last.group.hub, last.group.group, last.partition, last.sequence_number)
    places = [f"after_{column}" for column in KEY_COLUMNS]
    params.update(zip(places, values, strict=True))
    return f"({_KEY}) > ({', '.join(f':{place}' for place in places)})"
