"""What has to be so at the end of a simulation, once the faults have ended and the group had time to recover."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hubline.coordination.strategies import Fixed
from hubline.testing.simulation.virtual_loop import run_now

if TYPE_CHECKING:
    from hubline.testing.simulation.simulator import Simulation


def check_liveness(simulation: Simulation) -> None:
    """Every partition is owned, processed and checkpointed to its end, and shares are even."""
    state = run_now(simulation.store.list_ownership(simulation.group))
    lease = simulation.scenario.options.lease.lease_seconds
    living = {host.processor.owner_id for host in simulation.hosts if host.is_up}
    owners = {o.key.partition: o.owner_id for o in state.ownerships if o.age_seconds < lease}
    ids = simulation.hub.partition_ids
    strategy = simulation.scenario.strategy
    if isinstance(strategy, Fixed):
        expected = min(len(ids), strategy.count * len(living))
    else:
        expected = len(ids)
        counts = [sum(owner == name for owner in owners.values()) for name in living]
        if max(counts) - min(counts) > 1:
            simulation.ledger.object("liveness", f"shares are uneven: {sorted(counts)}")
    owned = [p for p in ids if owners.get(p) in living]
    if len(owned) < expected:
        simulation.ledger.object("liveness", f"{len(owned)} of {len(ids)} partitions are owned by the living")
    for partition in owned:
        book = simulation.ledger.partition(partition)
        last = run_now(simulation.hub.describe_partition(partition)).last_sequence
        # With a sink, its own checkpoint counts: an operator's hand on the store's changes nothing there.
        checkpoint = last if simulation.scenario.into_sink else book.checkpoint_sequence
        if book.handled_to != last or checkpoint != last:
            simulation.ledger.object(
                "liveness",
                f"partition {partition} ends at {last}, was handled to {book.handled_to} "
                f"and checkpointed to {book.checkpoint_sequence}",
            )
        if simulation.scenario.is_calm and book.repeats_count:
            simulation.ledger.object(
                "no repeats", f"partition {partition}: {book.repeats_count} events, without a fault"
            )


def check_sink(simulation: Simulation) -> None:
    """Every event is in the table or among the dead letters, once, and in order."""
    if simulation.database is None:
        return
    for partition in simulation.hub.partition_ids:
        last = run_now(simulation.hub.describe_partition(partition)).last_sequence
        if simulation.ledger.partition(partition).handled_to != last:
            continue  # nobody owns it, which liveness is about
        written, failed = simulation.database.rows(partition), simulation.database.dead_letters(partition)
        if sorted(written + failed) != list(range(last + 1)):
            counts = Counter(written + failed)
            wrong = [sequence for sequence in range(last + 1) if counts[sequence] != 1]
            simulation.ledger.object("exactly once", f"partition {partition}: not so for events {wrong[:10]}")
        if written != sorted(written):
            simulation.ledger.object("order in the sink", f"partition {partition}: rows stand in another order")
