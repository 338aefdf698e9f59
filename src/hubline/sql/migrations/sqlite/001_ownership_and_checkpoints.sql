-- Times are milliseconds since 1970 by the clock of the machine, UTC.

CREATE TABLE hubline_schema (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER))
);

CREATE TABLE hubline_ownership (
    namespace TEXT NOT NULL,
    hub TEXT NOT NULL,
    consumer_group TEXT NOT NULL,
    partition_id TEXT NOT NULL,
    owner_id TEXT NOT NULL,  -- empty: given up
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    modified_at INTEGER NOT NULL,
    requested_by TEXT,
    requested_at INTEGER,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITHOUT ROWID;

CREATE TABLE hubline_member (
    namespace TEXT NOT NULL,
    hub TEXT NOT NULL,
    consumer_group TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    max_partitions INTEGER,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, owner_id)
) WITHOUT ROWID;

CREATE TABLE hubline_checkpoint (
    namespace TEXT NOT NULL,
    hub TEXT NOT NULL,
    consumer_group TEXT NOT NULL,
    partition_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    "offset" TEXT,  -- with sequence_number: NULL while fenced, and nothing done yet
    sequence_number INTEGER,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITHOUT ROWID;
