-- Events that could not be taken, written in the transaction that moves the checkpoint past them.

CREATE TABLE hubline_dead_letter (
    namespace text COLLATE "C" NOT NULL,
    hub text COLLATE "C" NOT NULL,
    consumer_group text COLLATE "C" NOT NULL,
    partition_id text COLLATE "C" NOT NULL,
    sequence_number bigint NOT NULL,
    "offset" text NOT NULL,
    enqueued_at timestamptz NOT NULL,
    partition_key text,
    body bytea,  -- NULL: a pointer only
    properties text,  -- a JSON object
    stage text NOT NULL,
    error_type text NOT NULL,
    error_text text NOT NULL,
    traceback text NOT NULL,
    attempts bigint NOT NULL,
    state text NOT NULL,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace, hub, consumer_group, partition_id, sequence_number)
);

-- What waits is looked for with every batch where keys are quarantined.
CREATE INDEX hubline_dead_letter_waiting
    ON hubline_dead_letter (namespace, hub, consumer_group, partition_id, partition_key)
    WHERE state = 'waiting' AND partition_key IS NOT NULL;
