"""``hubline status``: shows the owner, the checkpoint and the lag of each partition."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from hubline.addresses.names import DEFAULT_GROUP, validate_group_name
from hubline.addresses.values import parse_duration
from hubline.cli.arguments import GroupOption, HubArgument, JsonOption, StoreOption, option
from hubline.cli.checkpoints.view import checkpoint_data
from hubline.cli.exit_codes import complain
from hubline.cli.output import escaped, json_time, print_json, seconds_text, stdout_console, table, timestamp
from hubline.cli.session import existing_store, using_hub, using_store
from hubline.errors import GroupNotFound, HublineError, HubUnavailable, StoreUnavailable
from hubline.monitoring.lag import GroupLag, PartitionLag, measure
from hubline.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hubline.model.keys import GroupKey


def status(
    hub: HubArgument,
    store: StoreOption,
    group: GroupOption = DEFAULT_GROUP,
    watch: Annotated[bool, option("--watch", "Update until Ctrl-C.")] = False,
    interval: Annotated[
        str, option("--interval", "With --watch: the time between two updates.", metavar="DURATION")
    ] = "2s",
    json: JsonOption = False,
) -> None:
    """Show owner, lease, checkpoint and lag of each partition.

    The command also shows the members of the group. It does not affect consumers. The lag time is the age of the oldest
    event that is not processed. If the store does not know the group, the command exits with 3.

    \b
    Examples:
      hubline status local:./data/orders --store sqlite:///state.db
      hubline status env:HUB --store env:STORE --group billing --watch
      hubline status env:HUB --store env:STORE --json | jq .lagEvents
    """
    interval_seconds = parse_duration(interval).total_seconds() if watch else None
    look = _Look(hub, existing_store(store), validate_group_name(group), interval_seconds)
    if json:
        asyncio.run(_report(look, lambda lag: print_json(_data(lag)), _complain))
    elif watch and sys.stdout.isatty():
        _report_live(look)
    else:
        console = stdout_console()
        asyncio.run(_report(look, lambda lag: console.print(_view(lag)), _complain))


@dataclass(frozen=True, slots=True)
class _Look:
    """What to show: once, or at an interval."""

    hub: str
    store: str
    group: str
    interval_seconds: float | None


def _report_live(look: _Look) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=stdout_console(), auto_refresh=False) as live:

        def complain_live(problem: HublineError) -> None:
            live.update(Text(f"at {timestamp(datetime.now(UTC))}: {escaped(str(problem))}"), refresh=True)

        asyncio.run(_report(look, lambda lag: live.update(_view(lag), refresh=True), complain_live))


def _complain(problem: HublineError) -> None:
    complain(problem, debug=False)


async def _report(look: _Look, show: Callable[[GroupLag], None], fail: Callable[[HublineError], None]) -> None:
    """Shows the lag of the group. While watching, an outage is shown by ``fail`` and does not end the command."""
    from hubline.model.keys import GroupKey

    async with using_hub(look.hub) as hub, using_store(look.store) as store:
        group = GroupKey(hub.namespace, hub.name, look.group)
        while True:
            try:
                lag = await measure(hub, store, group, now=datetime.now(UTC))
                show(lag)
                if not lag.is_known and look.interval_seconds is None:
                    raise _unknown(group)
            except (HubUnavailable, StoreUnavailable) as problem:
                if look.interval_seconds is None:
                    raise
                fail(problem)
            sys.stdout.flush()
            if look.interval_seconds is None:
                return
            await asyncio.sleep(look.interval_seconds)


def _unknown(group: GroupKey) -> GroupNotFound:
    return GroupNotFound(
        f"the store knows no consumer group {group.group} of the hub {group.hub}. Correct --group or --store, or start "
        "a processor of this group."
    )


def _view(lag: GroupLag) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    summary = f"{lag.group.hub}, group {lag.group.group}, at {timestamp(lag.time)}: {_lag_text(lag)}"
    columns = (
        "partition", "owner", ">age", ">epoch", ">checkpoint", ">last", ">lag", ">lag time", "?requested by",
        "?problem",
    )  # fmt: skip
    partitions = table(columns, [_partition_row(each) for each in lag.partitions])
    owned = lag.owned_count
    members = table(
        ("member", ">partitions", ">at most", ">age"),
        [
            (each.owner_id, owned[each.owner_id], each.max_partitions, seconds_text(each.age_seconds))
            for each in lag.members
        ],
    )
    return Group(Text(summary), "", partitions, "", members if lag.members else Text(_without_members(lag)))


def _without_members(lag: GroupLag) -> str:
    return "no members" if lag.is_known else "no members: the store does not know this group"


def _lag_text(lag: GroupLag) -> str:
    parts = []
    if lag.lag_events:
        parts.append(f"lag {counted(lag.lag_events, 'event')}, the oldest for {seconds_text(lag.lag_seconds)}")
        if not any(each.checkpoint for each in lag.partitions):
            parts.append("the group has no checkpoints, so the lag is all that the hub holds")
    if lag.unknown_count:
        of = counted(len(lag.partitions), "partition")
        parts.append(f"lag unknown for {lag.unknown_count} of {of}")
    return "; ".join(parts) or "no lag: all events are processed"


def _partition_row(lag: PartitionLag) -> tuple[object, ...]:
    ownership = lag.ownership
    return (
        lag.held.partition,
        (ownership.owner_id or None) if ownership else None,
        seconds_text(ownership.age_seconds) if ownership else None,
        ownership.epoch if ownership else None,
        lag.checkpoint.last_sequence if lag.checkpoint else None,
        None if lag.held.last_sequence < 0 else lag.held.last_sequence,
        lag.lag_events,
        seconds_text(lag.lag_seconds),
        ownership.requested_by if ownership else None,
        lag.problem,
    )


def _data(lag: GroupLag) -> dict[str, object]:
    owned = lag.owned_count
    return {
        "namespace": lag.group.namespace,
        "hub": lag.group.hub,
        "consumerGroup": lag.group.group,
        "time": json_time(lag.time),
        "lagEvents": lag.lag_events,
        "lagSeconds": round(lag.lag_seconds, 3),
        "partitions": [_partition_data(each) for each in lag.partitions],
        "members": [
            {
                "ownerId": each.owner_id,
                "ownedPartitions": owned[each.owner_id],
                "maxPartitions": each.max_partitions,
                "ageSeconds": round(each.age_seconds, 3),
            }
            for each in lag.members
        ],
    }


def _partition_data(lag: PartitionLag) -> dict[str, object]:
    ownership = lag.ownership
    return {
        "partition": lag.held.partition,
        "ownerId": (ownership.owner_id or None) if ownership else None,
        "ageSeconds": round(ownership.age_seconds, 3) if ownership else None,
        "epoch": ownership.epoch if ownership else None,
        "requestedBy": ownership.requested_by if ownership else None,
        "checkpoint": checkpoint_data(lag.checkpoint),
        "beginningSequenceNumber": lag.held.begin_sequence,
        "lastEnqueuedSequenceNumber": lag.held.last_sequence,
        "lagEvents": lag.lag_events,
        "lagSeconds": None if lag.lag_seconds is None else round(lag.lag_seconds, 3),
        "problem": lag.problem,
    }
