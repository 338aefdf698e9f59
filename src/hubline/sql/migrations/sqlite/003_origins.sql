-- What a sink has of events that carry an id: of each origin partition the highest, or every id for a while.

CREATE TABLE hubline_origin (
    namespace TEXT NOT NULL,
    hub TEXT NOT NULL,
    consumer_group TEXT NOT NULL,
    partition_id TEXT NOT NULL,
    origin TEXT NOT NULL,
    sequence_number INTEGER NOT NULL,
    output_index INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id, origin)
) WITHOUT ROWID;

CREATE TABLE hubline_origin_id (
    namespace TEXT NOT NULL,
    hub TEXT NOT NULL,
    consumer_group TEXT NOT NULL,
    id TEXT NOT NULL,
    seen_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)),
    PRIMARY KEY (namespace, hub, consumer_group, id)
) WITHOUT ROWID;

CREATE INDEX hubline_origin_id_seen ON hubline_origin_id (namespace, hub, consumer_group, seen_at);
