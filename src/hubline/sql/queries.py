"""The queries, by name, written once for both databases.

``{...}`` stands for a part that is shared or that a dialect spells in its own way, ``:name`` for a bound value.
Times and ages are by the database's clock alone. Rows to write arrive as one JSON array in ``:rows``, sorted by
partition: ``[[partition, owner, epoch, known version], ...]``.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass

from hubline.sql.dialect import Dialect

GROUP = "namespace = :namespace AND hub = :hub AND consumer_group = :consumer_group"


@dataclass(frozen=True, slots=True)
class Queries:
    """The texts. The defaults are the templates that :func:`queries_for` fills in."""

    # Ownership records and members, distinguished by their first column: one round trip, one snapshot.
    list_group: str = """
        SELECT 'ownership', {ownership} FROM hubline_ownership WHERE {group}
        UNION ALL
        SELECT 'member', NULL, owner_id, max_partitions, NULL, {seen_age}, NULL, NULL
        FROM hubline_member WHERE {group}
    """

    insert_ownership: str = """
        INSERT INTO hubline_ownership
            (namespace, hub, consumer_group, partition_id, owner_id, epoch, version, modified_at)
        SELECT :namespace, :hub, :consumer_group, new_partition, new_owner, new_epoch, 1, {now}
        FROM {rows} AS wanted WHERE true
        ON CONFLICT DO NOTHING
        RETURNING {ownership}
    """

    # The request outlives giving the partition up, and whatever leaves the epoch as it is.
    update_ownership: str = """
        WITH wanted AS MATERIALIZED {locked_rows}
        UPDATE hubline_ownership
        SET owner_id = new_owner, epoch = new_epoch, version = version + 1, modified_at = {now},
            requested_by = CASE WHEN new_owner = '' OR new_epoch = epoch THEN requested_by END,
            requested_at = CASE WHEN new_owner = '' OR new_epoch = epoch THEN requested_at END
        FROM wanted
        WHERE {group} AND partition_id = new_partition AND CAST(version AS TEXT) = known_version
        RETURNING {ownership}
    """

    renew_ownership: str = """
        WITH wanted AS MATERIALIZED {locked_rows}
        UPDATE hubline_ownership SET version = version + 1, modified_at = {now}
        FROM wanted
        WHERE {group} AND partition_id = new_partition AND CAST(version AS TEXT) = known_version
        RETURNING {ownership}
    """

    request_handover: str = """
        WITH wanted AS MATERIALIZED {locked_rows}
        UPDATE hubline_ownership SET requested_by = :owner_id, requested_at = {now}
        FROM wanted
        WHERE {group} AND partition_id = new_partition
    """

    announce_member: str = """
        INSERT INTO hubline_member (namespace, hub, consumer_group, owner_id, max_partitions, seen_at)
        VALUES (:namespace, :hub, :consumer_group, :owner_id, :max_partitions, {now})
        ON CONFLICT (namespace, hub, consumer_group, owner_id)
        DO UPDATE SET max_partitions = excluded.max_partitions, seen_at = excluded.seen_at
    """

    # Two processors that clean up at once must not wait for each other: what one has locked, the other leaves.
    forget_members: str = """
        DELETE FROM hubline_member WHERE {group} AND owner_id IN (
            SELECT owner_id FROM hubline_member WHERE {group} AND {seen_age} > :age_seconds_max {skip_locked}
        )
    """

    leave: str = "DELETE FROM hubline_member WHERE {group} AND owner_id = :owner_id"

    list_checkpoints: str = """
        SELECT partition_id, epoch, "offset", sequence_number FROM hubline_checkpoint WHERE {group}
    """

    read_clock: str = "SELECT {epoch_seconds}"

    read_checkpoint: str = 'SELECT epoch, "offset", sequence_number FROM hubline_checkpoint WHERE {key}'

    # The first statement of a sink's transaction: from then on nobody else moves the checkpoint or takes its fence.
    lock_checkpoint: str = 'SELECT epoch, "offset", sequence_number FROM hubline_checkpoint WHERE {key} {locked}'

    # One statement: between reading the position and raising the epoch the former owner could still write.
    fence: str = """
        INSERT INTO hubline_checkpoint (namespace, hub, consumer_group, partition_id, epoch, updated_at)
        VALUES (:namespace, :hub, :consumer_group, :partition_id, :epoch, {now})
        ON CONFLICT (namespace, hub, consumer_group, partition_id)
        DO UPDATE SET epoch = excluded.epoch, updated_at = excluded.updated_at
            WHERE hubline_checkpoint.epoch BETWEEN 0 AND excluded.epoch
        RETURNING epoch, "offset", sequence_number
    """

    update_checkpoint: str = """
        UPDATE hubline_checkpoint
        SET "offset" = :offset, sequence_number = :sequence_number, updated_at = {now}
        WHERE {key} AND epoch = :epoch AND (sequence_number IS NULL OR sequence_number < :sequence_number)
        RETURNING epoch
    """

    read_origins: str = "SELECT origin, sequence_number, output_index FROM hubline_origin WHERE {key}"

    write_origin: str = """
        INSERT INTO hubline_origin
            (namespace, hub, consumer_group, partition_id, origin, sequence_number, output_index)
        VALUES (:namespace, :hub, :consumer_group, :partition_id, :origin, :sequence_number, :output_index)
        ON CONFLICT (namespace, hub, consumer_group, partition_id, origin)
        DO UPDATE SET sequence_number = excluded.sequence_number, output_index = excluded.output_index
    """

    # The ids arrive as one JSON array, sorted: transactions that overlap wait for each other, and not in a circle.
    known_ids: str = "SELECT id FROM hubline_origin_id WHERE {group} AND id IN ({texts})"

    add_ids: str = """
        INSERT INTO hubline_origin_id (namespace, hub, consumer_group, id)
        SELECT :namespace, :hub, :consumer_group, wanted.value FROM ({texts}) AS wanted WHERE true
        ON CONFLICT DO NOTHING
        RETURNING id
    """

    forget_ids: str = "DELETE FROM hubline_origin_id WHERE {group} AND {id_age} > :age_seconds_max"

    last_dead_letter: str = "SELECT max(sequence_number) FROM hubline_dead_letter WHERE {key}"

    remove_dead_letter: str = "DELETE FROM hubline_dead_letter WHERE {key} AND sequence_number = :sequence_number"

    waiting_keys: str = """
        SELECT DISTINCT partition_key FROM hubline_dead_letter
        WHERE {key} AND state = 'waiting' AND partition_key IS NOT NULL AND sequence_number <= :last_sequence
    """

    waiting_dead_letters: str = """
        SELECT sequence_number FROM hubline_dead_letter
        WHERE {key} AND state = 'waiting' AND sequence_number BETWEEN :first_sequence AND :last_sequence
    """

    settle_dead_letter: str = """
        UPDATE hubline_dead_letter SET state = 'redriven'
        WHERE {key} AND sequence_number = :sequence_number AND state = 'waiting'
    """

    take_ownership: str = """
        UPDATE hubline_ownership SET owner_id = '', epoch = epoch + 1, version = version + 1, modified_at = {now}
        WHERE {group} AND partition_id = :partition_id
    """

    reset_checkpoint: str = """
        INSERT INTO hubline_checkpoint
            (namespace, hub, consumer_group, partition_id, epoch, "offset", sequence_number, updated_at)
        VALUES (:namespace, :hub, :consumer_group, :partition_id, 0, :offset, :sequence_number, {now})
        ON CONFLICT (namespace, hub, consumer_group, partition_id)
        DO UPDATE SET epoch = {largest}(coalesce(hubline_checkpoint.epoch, -1), -1) + 1,
            "offset" = excluded."offset", sequence_number = excluded.sequence_number, updated_at = excluded.updated_at
    """


_OWNERSHIP = "partition_id, owner_id, epoch, version, {modified_age}, requested_by, {requested_age}"


@functools.cache
def queries_for(dialect: Dialect) -> Queries:
    """The queries as a dialect writes them."""
    ages = {"modified_age": dialect.age("modified_at"), "requested_age": dialect.age("requested_at")}
    parts = {
        "now": dialect.now,
        "epoch_seconds": dialect.epoch_seconds,
        "texts": dialect.texts,
        "rows": dialect.rows,
        "locked_rows": dialect.locked_rows,
        "skip_locked": dialect.skip_locked,
        "locked": dialect.locked,
        "largest": dialect.largest,
        "seen_age": dialect.age("seen_at"),
        "id_age": dialect.age("seen_at"),
        "group": GROUP,
        "key": f"{GROUP} AND partition_id = :partition_id",
        "ownership": _OWNERSHIP.format(**ages),
    }
    texts = {name: template.format(**parts) for name, template in asdict(Queries()).items()}
    return Queries(**{name: dialect.spelled(text) for name, text in texts.items()})
