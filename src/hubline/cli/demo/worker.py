"""One processor of the demo, in a process of its own: ``demo_worker NAME HUB STORE GROUP JOURNAL``."""

from __future__ import annotations

import os
import sys

from hubline import (
    CheckpointPolicy,
    EventBatch,
    Greedy,
    LeaseOptions,
    PartitionContext,
    Position,
    Processor,
    ProcessorOptions,
)

# Short enough that a kill and its recovery can be watched; in production a lease lasts 30 seconds.
LEASE = LeaseOptions(lease_seconds=3.0, load_balancing_interval_seconds=1.0, startup_delay_seconds=0.3)


def main(name: str, hub: str, store: str, group: str, journal: str) -> None:
    processor = Processor(
        hub,
        store,
        consumer_group=group,
        starting_position=Position.earliest(),
        load_balancing=Greedy(),
        owner_id=name,
        options=ProcessorOptions(
            max_batch_size=500,
            checkpoint_policy=CheckpointPolicy.every(seconds=1.0),
            lease=LEASE,
            stop_timeout_seconds=10.0,
        ),
    )
    # The kernel writes this even if the process is killed right after it, so the journal shows what really happened.
    handled = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @processor.on_batch
    def handle(batch: EventBatch, partition: PartitionContext) -> None:
        line = f"{name} {batch.partition} {partition.epoch} {batch.first_sequence} {batch.last_sequence}\n"
        os.write(handled, line.encode())

    processor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
