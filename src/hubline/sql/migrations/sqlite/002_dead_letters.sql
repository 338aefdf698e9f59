-- Events that could not be taken, written in the transaction that moves the checkpoint past them.

CREATE TABLE hubline_dead_letter (
    namespace TEXT NOT NULL,
    hub TEXT NOT NULL,
    consumer_group TEXT NOT NULL,
    partition_id TEXT NOT NULL,
    sequence_number INTEGER NOT NULL,
    "offset" TEXT NOT NULL,
    enqueued_at INTEGER NOT NULL,  -- in microseconds, as the hub gave it
    partition_key TEXT,
    body BLOB,  -- NULL: a pointer only
    properties TEXT,  -- a JSON object
    stage TEXT NOT NULL,
    error_type TEXT NOT NULL,
    error_text TEXT NOT NULL,
    traceback TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    state TEXT NOT NULL,
    failed_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, hub, consumer_group, partition_id, sequence_number)
);

-- What waits is looked for with every batch where keys are quarantined.
CREATE INDEX hubline_dead_letter_waiting
    ON hubline_dead_letter (namespace, hub, consumer_group, partition_id, partition_key)
    WHERE state = 'waiting' AND partition_key IS NOT NULL;
