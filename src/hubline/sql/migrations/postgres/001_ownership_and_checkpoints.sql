-- Keys are sorted by bytes everywhere: row locks are taken in that order, whatever the database's own collation is.
-- A quarter of each page stays free: renewals then rewrite rows in place, without touching the index.

CREATE TABLE hubline_schema (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE hubline_ownership (
    namespace text COLLATE "C" NOT NULL,
    hub text COLLATE "C" NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    partition_id text COLLATE "C" NOT NULL,
    owner_id text NOT NULL,  -- empty: given up
    epoch bigint NOT NULL,
    version bigint NOT NULL,
    modified_at timestamptz NOT NULL,
    requested_by text,
    requested_at timestamptz,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITH (fillfactor = 75);

CREATE TABLE hubline_member (
    namespace text COLLATE "C" NOT NULL,
    hub text COLLATE "C" NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    owner_id text COLLATE "C" NOT NULL,
    max_partitions bigint,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, owner_id)
) WITH (fillfactor = 75);

CREATE TABLE hubline_checkpoint (
    namespace text COLLATE "C" NOT NULL,
    hub text COLLATE "C" NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    partition_id text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    "offset" text,  -- with sequence_number: NULL while fenced, and nothing done yet
    sequence_number bigint,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id)
) WITH (fillfactor = 75);
