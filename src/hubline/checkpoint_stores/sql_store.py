"""What the stores in SQL databases share: all of it but how the database is opened.

It is written with RETURNING, ON CONFLICT and UPDATE ... FROM. A database that has these takes a dialect, see
`hubline.sql.dialect`, and a subclass like `sqlite.SqliteStore`. One that lacks them, such as MySQL, takes a store of
its own in this folder, with the methods of :class:`~hubline.ports.CheckpointStore`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby

from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal, StoreExamination
from hubline.sql.checkpoint_rows import (
    damaged_checkpoints,
    of_checkpoint,
    of_group,
    of_partition,
    read_checkpoints,
    read_group,
    read_written,
)
from hubline.sql.dialect import Connection, Database, Statement
from hubline.sql.fence import fenced, stored_checkpoint, take_fence
from hubline.sql.pool import CALL_SECONDS_MAX, AsyncSqlPool
from hubline.sql.queries import queries_for

MEMBER_SECONDS_MAX = 86_400.0
"""A member that has not renewed for a day is deleted when another renews. No lease is that long."""


class SqlStore:
    """A :class:`~hubline.ports.CheckpointStore` in a SQL database. Nothing is opened before the first call.

    Every method is one transaction in one round trip; where the fence is not the caller's, a second one finds out
    whose it is. Calls run in a few threads of the store's own, so that a slow one blocks no other; the store may be
    used from any event loop, one at a time.
    """

    _shown = "an address that does not read"  # while its constructor runs

    def __init__(self, database: Database, *, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        self._shown = database.shown
        self._queries = queries_for(database.dialect)
        self._pool = AsyncSqlPool(database, call_seconds_max=call_seconds_max)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"

    async def list_ownership(self, group: GroupKey) -> GroupState:
        listing = Statement(self._queries.list_group, of_group(group))
        return await self._pool.run(lambda connection: read_group(group, connection.read(listing)))

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        # Always in the same order of groups, then partitions: transactions that overlap wait, and never in a circle.
        ordered = sorted(claims, key=lambda claim: _lock_order(claim.key))
        writes = [
            (group, Statement(query, {**of_group(group), "rows": _rows(records)}))
            for group, claimed in groupby(ordered, key=lambda claim: claim.key.group_key)
            for query, records in self._by_query(claimed)
            if records
        ]
        if not writes:
            return []

        def work(connection: Connection) -> list[Ownership]:
            written = connection.write(*(statement for _, statement in writes))
            groups = (group for group, _ in writes)
            return [one for group, rows in zip(groups, written, strict=True) for one in read_written(group, rows)]

        return await self._pool.run(work)

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        named = of_group(group)
        announced = {**named, "owner_id": member.owner_id, "max_partitions": member.max_partitions}
        if member.max_partitions == 0 and not owned:
            leaving = Statement(self._queries.leave, announced)
            await self._pool.run(lambda connection: connection.write(leaving))
            return Renewal([])
        statements = [
            Statement(self._queries.announce_member, announced),
            Statement(self._queries.forget_members, {**named, "age_seconds_max": MEMBER_SECONDS_MAX}),
        ]
        if owned:
            own = filter(_has_version, owned)
            rows = _rows(sorted(own, key=lambda ownership: _lock_order(ownership.key)))
            statements.append(Statement(self._queries.renew_ownership, {**named, "rows": rows}))

        def work(connection: Connection) -> Renewal:
            _, _, *renewed = connection.write(*statements)
            return Renewal(read_written(group, renewed[0]) if renewed else [])

        return await self._pool.run(work)

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        if not keys:
            return
        requests = [
            Statement(
                self._queries.request_handover,
                {**of_group(group), "owner_id": owner_id, "rows": json.dumps([[key.partition] for key in wanted])},
            )
            for group, wanted in groupby(sorted(keys, key=_lock_order), key=lambda key: key.group_key)
        ]
        await self._pool.run(lambda connection: connection.write(*requests))

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        return await self._pool.run(lambda connection: take_fence(connection, self._queries, key, epoch=epoch))

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        listing = Statement(self._queries.list_checkpoints, of_group(group))
        return await self._pool.run(lambda connection: read_checkpoints(group, connection.read(listing)))

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        key = checkpoint.key
        moving = Statement(self._queries.update_checkpoint, {**of_checkpoint(key, checkpoint), "epoch": epoch})

        def work(connection: Connection) -> None:
            (rows,) = connection.write(moving)
            if not rows:
                held_epoch, _ = stored_checkpoint(connection, self._queries, key)
                if held_epoch != epoch:
                    raise fenced(key, epoch=epoch, held_epoch=held_epoch)
                # Otherwise what is stored is as far already, or further.

        await self._pool.run(work)

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        taking = Statement(self._queries.take_ownership, of_partition(key))
        resetting = Statement(self._queries.reset_checkpoint, of_checkpoint(key, checkpoint))
        await self._pool.run(lambda connection: connection.write(taking, resetting))

    async def examine(self, group: GroupKey) -> StoreExamination:
        clock = Statement(self._queries.read_clock, {})
        listing = Statement(self._queries.list_checkpoints, of_group(group))

        def work(connection: Connection) -> StoreExamination:
            ((seconds,),) = connection.read(clock)
            assert isinstance(seconds, float)  # noqa: S101 (the query has no other answer)
            damaged = damaged_checkpoints(group, connection.read(listing))
            return StoreExamination(datetime.fromtimestamp(seconds, UTC), damaged)

        return await self._pool.run(work)

    async def close(self) -> None:
        await self._pool.close()

    def _by_query(self, claims: Iterable[Ownership]) -> tuple[tuple[str, list[Ownership]], ...]:
        fresh: list[Ownership] = []
        known: list[Ownership] = []
        for claim in claims:
            if claim.version is None:
                fresh.append(claim)
            elif _has_version(claim):
                known.append(claim)
        return (self._queries.insert_ownership, fresh), (self._queries.update_ownership, known)


def _lock_order(key: PartitionKey) -> tuple[str, str, str, str]:
    """The order of keys, as plain tuples: comparing the keys themselves takes ten times as long."""
    return key.namespace, key.hub, key.group, key.partition


def _has_version(ownership: Ownership) -> bool:
    """Whether the version may be one of this store's: SQLite ends a text at a NUL, and PostgreSQL refuses one."""
    return ownership.version is not None and ownership.version.isascii() and ownership.version.isdigit()


def _rows(records: Iterable[Ownership]) -> str:
    return json.dumps([[one.key.partition, one.owner_id, one.epoch, one.version] for one in records])
