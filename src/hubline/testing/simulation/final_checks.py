"""What has to be so at the end of a simulation, once the faults have ended and the group had time to recover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from hubline.coordination.strategies import Fixed
from hubline.testing.simulation.virtual_loop import run_now

if TYPE_CHECKING:
    from hubline.testing.simulation.simulator import Simulation

Objection: TypeAlias = tuple[str, str]
"""A law, and how it is broken."""


def owners(simulation: Simulation) -> dict[str, str]:
    """The active owners of partitions."""
    state = run_now(simulation.store.list_ownership(simulation.group))
    living = {host.processor.owner_id for host in simulation.hosts if host.is_up}
    return {
        o.key.partition: o.owner_id
        for o in state.ownerships
        if o.owner_id in living and o.age_seconds < simulation.lease.lease_seconds
    }


def last_sequence(simulation: Simulation, partition: str) -> int:
    return run_now(simulation.hub.describe_partition(partition)).last_sequence


def liveness(simulation: Simulation) -> Iterator[Objection]:
    """Every partition is owned, as far as the strategy lets it be, and its events are handled or dead letters."""
    ids, owned = simulation.hub.partition_ids, owners(simulation)
    expected, strategy = len(ids), simulation.strategy
    if isinstance(strategy, Fixed):
        expected = min(len(ids), strategy.count * sum(host.is_up for host in simulation.hosts))
    if len(owned) < expected:
        yield "liveness", f"{len(owned)} of {len(ids)} partitions have an active owner"
    for partition in owned:
        last, book = last_sequence(simulation, partition), simulation.ledger.partition(partition)
        if book.handled_to != last:
            checkpoint = (
                "" if book.checkpoint_sequence < 0 else f", and the checkpoint is at {book.checkpoint_sequence}"
            )
            lost = f"event {book.handled_to + 1} of 0 to {last} was never handled to its end, nor made a dead letter"
            yield "liveness", f"partition {partition}: {lost}{checkpoint}"
        elif simulation.has_sink and book.committed_to != last:
            yield "liveness", f"partition {partition}: event {book.committed_to + 1} of 0 to {last} is not in the sink"
