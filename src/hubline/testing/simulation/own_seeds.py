"""hubline's own seeds: groups of processors with a handler that fails at times, and laws of their own.

``run_seed(seed)`` draws a scenario and runs it. With ``into_sink``, the processors write into a database, where every
event has to be at the end: in the table or among the dead letters, once, and in order.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from hubline.coordination.strategies import Fixed
from hubline.model.events import EventBatch, NewEvent
from hubline.processor import Processor
from hubline.sinks import SqlSink
from hubline.testing.simulation.final_checks import Objection, last_sequence, liveness, owners
from hubline.testing.simulation.instance import Instance
from hubline.testing.simulation.scenario import Scenario
from hubline.testing.simulation.simulator import Program, Report, Simulation, without_garbage_collection

BAD = b"bad"
"""The body of an event whose row the table refuses."""

BAD_SHARE = 0.05
"""How many events the table of a sink refuses."""

_TABLE = """
    CREATE TABLE IF NOT EXISTS results (
        place INTEGER PRIMARY KEY, partition TEXT, sequence INTEGER, body TEXT CHECK (body <> 'bad')
    )
"""


@without_garbage_collection()
def run_seed(seed: int, *, into_sink: bool = False) -> Report:
    """Runs one seed to its end."""
    scenario = Scenario.draw(seed, into_sink=into_sink)
    return Simulation(scenario, OwnProgram(scenario)).run()


class OwnProgram(Program):
    """The processors of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def event(self, number: int, rng: random.Random) -> NewEvent:  # noqa: ARG002
        return BAD if self.scenario.into_sink and rng.random() < BAD_SHARE else b"x"

    def build(self, instance: Instance, simulation: Simulation) -> Processor:
        scenario, rng, into_sink = self.scenario, instance.rng, self.scenario.into_sink
        sink = None
        if into_sink:
            instance.world.database.execute(_TABLE)
            sink = SqlSink("sqlite:///results.db", table="results")
        processor = Processor(
            instance.hub,
            instance.store,
            consumer_group="simulated",
            starting_position="earliest",
            load_balancing=scenario.strategy,
            options=scenario.options,
            sink=sink,
        )

        @processor.on_batch
        async def handle(batch: EventBatch) -> pa.Table | None:
            is_recovering = simulation.is_recovering
            await asyncio.sleep(0 if is_recovering else rng.uniform(0, scenario.handler_timeout_seconds))
            if not simulation.is_recovering and rng.random() < scenario.handler_failure:
                simulation.weather.count("handler_failure")
                raise RuntimeError("injected")
            return rows_of(batch) if into_sink else None

        return processor

    def objections(self, simulation: Simulation) -> Iterator[Objection]:
        yield from liveness(simulation)
        yield from self._uneven_shares(simulation)
        yield from self._not_checkpointed(simulation)
        yield from self._not_in_the_table(simulation)

    def _uneven_shares(self, simulation: Simulation) -> Iterator[Objection]:
        if isinstance(self.scenario.strategy, Fixed):
            return
        owned = Counter(owners(simulation).values())
        counts = [owned[host.processor.owner_id] for host in simulation.hosts if host.is_up]
        if max(counts) - min(counts) > 1:
            yield "liveness", f"shares are uneven: {sorted(counts)}"

    def _not_checkpointed(self, simulation: Simulation) -> Iterator[Objection]:
        for partition in owners(simulation):
            book = simulation.ledger.partition(partition)
            last = last_sequence(simulation, partition)
            # With a sink, its own checkpoint counts: an operator's hand on the store's changes nothing there.
            if book.checkpoint_sequence != last and not self.scenario.into_sink:
                yield "liveness", f"partition {partition} ends at {last}, its checkpoint at {book.checkpoint_sequence}"
            if self.scenario.is_calm and book.repeats_count:
                yield "no repeats", f"partition {partition}: {book.repeats_count} events, without a fault"

    def _not_in_the_table(self, simulation: Simulation) -> Iterator[Objection]:
        """Every event is in the table or among the dead letters, once, and in order."""
        if not self.scenario.into_sink:
            return
        simulated = simulation.shared.simulated
        for partition in simulation.hub.partition_ids:
            last = last_sequence(simulation, partition)
            if simulation.ledger.partition(partition).handled_to != last:
                continue  # nobody owns it, which liveness is about
            query = "SELECT sequence FROM results WHERE partition = ? ORDER BY place"
            written = [sequence for (sequence,) in simulated.connection.driver.execute(query, [partition])]
            failed = simulated.dead_letters(partition)
            if sorted(written + failed) != list(range(last + 1)):
                counts = Counter(written + failed)
                wrong = [sequence for sequence in range(last + 1) if counts[sequence] != 1]
                yield "exactly once", f"partition {partition}: not so for events {wrong[:10]}"
            if written != sorted(written):
                yield "order in the sink", f"partition {partition}: rows stand in another order"

    def after(self, simulation: Simulation) -> None:
        """There is no more to ask."""


def rows_of(batch: EventBatch) -> pa.Table:
    """A row an event."""
    events = batch.arrow
    return pa.table(
        {
            "partition": events.column("partition"),
            "sequence": events.column("sequenceNumber"),
            "body": pc.cast(events.column("body"), pa.string()),
            "sequenceNumber": events.column("sequenceNumber"),
        }
    )
