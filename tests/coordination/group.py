"""A whole group, in a tiny model: a store in memory, a clock that only tests move, and members that plan and act."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Plan, Strategy
from hubline.model.ownership import GroupState, Member, Ownership
from hubline.testing.simulation.virtual_loop import run_now
from tests.coordination.layouts import GRACE_SECONDS, GROUP, LEASE_SECONDS

ROUND_SECONDS = 10.0
"""Members renew and plan once in a round; a lease lasts three of them."""

DEAD = ("y", "z")
"""Members that announced themselves when they last renewed, and are gone. Other owners that do not act never did."""


@dataclass(frozen=True, slots=True)
class Cell:
    """How a partition starts: who owns it ('' if given up, None if never owned), and who asked for it."""

    owner: str | None = None
    age_seconds: float = 0.0
    requester: str | None = None
    asked_ago_seconds: float = 0.0


@dataclass(slots=True)
class Actor:
    """A living member and what it holds."""

    member: Member
    strategy: Strategy
    held: dict[str, Ownership] = field(default_factory=dict)
    seen: Snapshot | None = None


class Group:
    """Members that share partitions. ``moves`` counts claims that took effect."""

    def __init__(self, strategies: Mapping[str, Strategy], cells: Sequence[Cell], rng: random.Random) -> None:
        self.now = 0.0
        self.rng = rng
        self.moves = 0
        self.partitions = [str(number) for number in range(len(cells))]
        self._store = MemoryStore(now=lambda: self.now)
        self.actors = {name: Actor(Member(name, s.max_partitions), s) for name, s in strategies.items()}
        self._place(cells)
        self.renew()

    def _place(self, cells: Sequence[Cell]) -> None:
        """Lets history happen, oldest first."""
        placed = zip(self.partitions, cells, strict=True)
        for partition, cell in sorted(placed, key=lambda item: -item[1].age_seconds):
            if cell.owner is None:
                continue
            self.now = -cell.age_seconds
            if cell.owner in DEAD:
                run_now(self._store.renew_ownership(GROUP, Member(cell.owner), ()))
            claim = Ownership(GROUP.partition(partition), cell.owner, epoch=1)
            [record] = run_now(self._store.claim_ownership([claim]))
            if cell.owner in self.actors and cell.age_seconds < LEASE_SECONDS:
                self.actors[cell.owner].held[partition] = record
            if cell.requester is not None:
                self.now = -cell.asked_ago_seconds
                run_now(self._store.request_handover([record.key], owner_id=cell.requester))
        self.now = 0.0

    # What happens

    def renew(self) -> None:
        for actor in self.actors.values():
            renewed = run_now(self._store.renew_ownership(GROUP, actor.member, list(actor.held.values()))).renewed
            actor.held = {record.key.partition: record for record in renewed}

    def ask(self, requesters: Mapping[str, str]) -> None:
        for partition, requester in requesters.items():
            run_now(self._store.request_handover([GROUP.partition(partition)], owner_id=requester))

    def look(self, name: str) -> None:
        """A member lists the group; what it does later, it does from what it saw."""
        actor = self.actors[name]
        state = run_now(self._store.list_ownership(GROUP))
        actor.seen = self._snapshot(actor, state)

    def act(self, name: str) -> Plan:
        """A member plans from what it saw last, and does it. Giving up takes no time here."""
        actor = self.actors[name]
        assert actor.seen is not None
        plan = actor.strategy.plan(actor.seen, self.rng)
        self._claim(actor, [*plan.claims, *plan.steals], actor.seen)
        if plan.requests:
            run_now(self._store.request_handover([GROUP.partition(p) for p in plan.requests], owner_id=name))
        self._give_up(actor, plan.releases)
        return plan

    def round(self, *, is_stale: bool = False) -> bool:
        """Everyone renews and has one turn, in random order; stale: others act between a look and its act.

        Returns whether all were idle.
        """
        self.now += ROUND_SECONDS
        self.renew()
        turns = [name for name in self.actors for _ in range(2)]
        self.rng.shuffle(turns)
        if not is_stale:
            turns = [name for name in dict.fromkeys(turns) for _ in range(2)]
        are_idle = True
        looked: set[str] = set()
        for name in turns:
            if name in looked:
                are_idle &= self.act(name).is_idle
            else:
                self.look(name)
                looked.add(name)
        return are_idle

    def run_until_quiet(self, rounds_max: int, *, is_stale: bool = False) -> None:
        """Until nobody has anything to do, also after every grace and every lease that might still run out."""
        waits = [GRACE_SECONDS, LEASE_SECONDS]
        for _ in range(rounds_max):
            if not self.round(is_stale=is_stale):
                waits = [GRACE_SECONDS, LEASE_SECONDS]
            elif waits:
                self._let_pass(waits.pop(0))
            else:
                return
        raise AssertionError(f"not quiet after {rounds_max} rounds: {self.owners()}")

    def _let_pass(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += ROUND_SECONDS
            self.renew()

    # What came of it

    def owners(self) -> dict[str, str]:
        """Who owns what, under a lease that runs."""
        state = run_now(self._store.list_ownership(GROUP))
        return {o.key.partition: o.owner_id for o in state.ownerships if o.owner_id and o.age_seconds < LEASE_SECONDS}

    def counts(self) -> dict[str, int]:
        """How many partitions each living member holds."""
        return {name: len(actor.held) for name, actor in self.actors.items()}

    def _snapshot(self, actor: Actor, state: GroupState) -> Snapshot:
        return Snapshot(
            me=actor.member,
            partitions=self.partitions,
            ownerships={ownership.key.partition: ownership for ownership in state.ownerships},
            members=state.members,
            held=frozenset(actor.held),
            lease_seconds=LEASE_SECONDS,
            handover_timeout_seconds=GRACE_SECONDS,
        )

    def _claim(self, actor: Actor, partitions: Iterable[str], seen: Snapshot) -> None:
        claims = []
        for partition in partitions:
            record = seen.ownerships.get(partition)
            epoch, version = (record.epoch + 1, record.version) if record else (1, None)
            claims.append(Ownership(GROUP.partition(partition), actor.member.owner_id, epoch, version))
        for ownership in run_now(self._store.claim_ownership(claims)):
            # Who loses it learns so when its renewal fails; here, at once.
            for other in self.actors.values():
                other.held.pop(ownership.key.partition, None)
            actor.held[ownership.key.partition] = ownership
            self.moves += 1

    def _give_up(self, actor: Actor, partitions: Iterable[str]) -> None:
        for partition in partitions:
            held = actor.held.pop(partition, None)
            if held is not None:
                run_now(self._store.claim_ownership([Ownership(held.key, "", epoch=held.epoch, version=held.version)]))
