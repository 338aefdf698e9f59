"""How PostgreSQL itself finds the rows that it refuses: a temporary table without constraints, and a loop over it.

The rows are brought there once. The server then inserts them in order, many events at a time, each chunk in a
subtransaction. Where it refuses a chunk, a sequence, which no rollback resets, shows the event that it had come to,
most likely the one to blame. What is before it is tried, and then that event alone: only what is rejected alone is
rejected, and the server says why. Where the guess was wrong, as with a foreign key, which is looked at after the last
row of a chunk, smaller chunks are tried, down to a single event.
"""

from __future__ import annotations

from typing import Final

from hubline.sinks.sql_sink.table_schema import InsertPlan, insertion, quoted

EVENTS_MAX: Final = 64
"""Events that are tried together: with one in a hundred rejected, half of such chunks are taken."""

TABLE: Final = "hubline_reject_loop"
ROW: Final = "hubline_row"
EVENT: Final = "hubline_event"
_REACHED: Final = "hubline_reached"

COLUMNS: Final = f"CAST(0 AS bigint) AS {ROW}, CAST(0 AS bigint) AS {EVENT}, CAST(NULL AS text[]) AS hubline_rejection"
BESIDE: Final = f"""
    CREATE INDEX ON {TABLE} ({EVENT});
    CREATE TEMPORARY SEQUENCE {_REACHED} MINVALUE 0 OWNED BY {TABLE}.{EVENT}
"""
"""What is made with the temporary table, and goes with it."""
OVERRIDING: Final = "OVERRIDING SYSTEM VALUE"
"""Before what is inserted: an identity that is given is taken, as COPY takes it."""
IMMEDIATE: Final = "SET CONSTRAINTS ALL IMMEDIATE"

REJECTED: Final = f"""
    SELECT DISTINCT ON ({EVENT}) {EVENT}, hubline_rejection[1], hubline_rejection[2], hubline_rejection[3]
    FROM {TABLE} WHERE hubline_rejection IS NOT NULL ORDER BY {EVENT}
"""  # noqa: S608 - constants
EMPTY: Final = f"DELETE FROM {TABLE}"  # noqa: S608 - constants

# The conditions are those that blame a row, which a default without any more numbers does not. Variables have the
# block's name before them: columns may have any.
_LOOP: Final = f"""
#variable_conflict use_column
<<hubline>>
DECLARE
    first bigint := 0;
    beyond bigint;
    reached bigint;
    size bigint := {EVENTS_MAX};
    state text;
    message text;
    detail text;
BEGIN
    WHILE hubline.first < {{count}} LOOP
        hubline.beyond := least(hubline.first + hubline.size, {{count}});
        PERFORM setval('{_REACHED}', hubline.beyond);
        BEGIN
            {{insertion}};
            {{immediate}}
            hubline.first := hubline.beyond;
            hubline.size := least(hubline.size * 2, {EVENTS_MAX});
            IF hubline.first = hubline.reached THEN
                hubline.size := 1;
            END IF;
        EXCEPTION WHEN sequence_generator_limit_exceeded THEN
            RAISE;
        WHEN data_exception OR integrity_constraint_violation OR raise_exception
                OR with_check_option_violation OR program_limit_exceeded THEN
            IF hubline.beyond - hubline.first > 1 THEN
                hubline.reached := currval('{_REACHED}');
                hubline.size := CASE
                    WHEN hubline.reached = hubline.first THEN 1
                    WHEN hubline.reached < hubline.beyond - 1 THEN hubline.reached - hubline.first
                    ELSE (hubline.beyond - hubline.first + 3) / 4
                END;
            ELSE
                GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
                UPDATE {TABLE} SET hubline_rejection = ARRAY[hubline.state, hubline.message, hubline.detail]
                WHERE {EVENT} = hubline.first;
                hubline.size := CASE WHEN hubline.first = hubline.reached THEN {EVENTS_MAX} ELSE 1 END;
                hubline.first := hubline.beyond;
            END IF;
        END;
    END LOOP;
END
"""  # noqa: S608 - constants


def loop(plan: InsertPlan, *, count: int, is_deferrable: bool, are_nulls_apart: bool) -> str:
    """The body of a DO statement that inserts the events 0 to ``count`` from the temporary table."""
    which = f"{EVENT} >= hubline.first AND {EVENT} < hubline.beyond"
    seen = f"setval('{_REACHED}', {EVENT}) IS NOT NULL"
    return _LOOP.format(
        insertion=inserted(plan, TABLE, which=which, seen=seen, are_nulls_apart=are_nulls_apart),
        immediate=f"{IMMEDIATE};" if is_deferrable else "",
        count=count,
    )


def inserted(
    plan: InsertPlan, stage: str, *, which: str, seen: str | None = None, are_nulls_apart: bool = False
) -> str:
    """From a temporary table into the sink's. Of rows with the same key the last one counts, as if written singly.

    `seen`, which is true, is called with each row just before that is inserted. Where nulls are apart, a row that
    has one in its key is like no other.
    """
    key, names = ", ".join(map(quoted, plan.key)), ", ".join(map(quoted, plan.names))
    if are_nulls_apart:
        key += f", CASE WHEN {' OR '.join(f'{quoted(name)} IS NULL' for name in plan.key)} THEN {ROW} END"
    columns = f"{names}, {EVENT}" if seen else names
    # Sorted by key: transactions that overlap lock in one order, and never wait in a circle.
    chosen = (
        f"SELECT DISTINCT ON ({key}) {columns} FROM {stage} WHERE {which} ORDER BY {key}, {ROW} DESC"  # noqa: S608
        if key
        else f"SELECT {columns} FROM {stage} WHERE {which} ORDER BY {ROW}"  # noqa: S608 - quoted
    )
    if seen:
        # The OFFSET keeps the condition outside: it would be asked before the rows are sorted, and of all of them.
        chosen = f"SELECT {names} FROM ({chosen} OFFSET 0) AS chosen WHERE {seen}"  # noqa: S608 - quoted
    return insertion(plan, f"{OVERRIDING} {chosen}")
