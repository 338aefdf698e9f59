-- What a sink has of events that carry an id: of each origin partition the highest, or every id for a while.

CREATE TABLE hubline_origin (
    namespace text COLLATE "C" NOT NULL,
    hub text COLLATE "C" NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    partition_id text COLLATE "C" NOT NULL,
    origin text COLLATE "C" NOT NULL,
    sequence_number bigint NOT NULL,
    output_index bigint NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id, origin)
);

CREATE TABLE hubline_origin_id (
    namespace text COLLATE "C" NOT NULL,
    hub text COLLATE "C" NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace, hub, consumer_group, id)
);

CREATE INDEX hubline_origin_id_seen ON hubline_origin_id (namespace, hub, consumer_group, seen_at);
