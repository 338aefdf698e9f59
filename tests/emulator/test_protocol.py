"""What the endpoint does beyond what the official SDKs show: limits, tokens, refusals, hostile peers."""

from __future__ import annotations

import asyncio
import gc
import socket
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from hubline.amqp.codec.message import Data, Message, Value
from hubline.amqp.codec.performatives import (
    RECEIVE_FIRST,
    RECEIVE_SECOND,
    SEND_SETTLED,
    SEND_UNSETTLED,
    SENDER,
    Accepted,
    Attach,
    Rejected,
    Source,
    Target,
)
from hubline.amqp.codec.types import Described, Int, Symbol, ULong
from hubline.amqp.events.encoder import encode_batches
from hubline.amqp.service_names import SAS_TYPE, SELECTOR
from hubline.amqp.transport.connection import Connection, ConnectionOptions
from hubline.amqp.transport.errors import AmqpClosed
from hubline.amqp.transport.frames import AMQP_HEADER
from hubline.amqp.transport.handshake import ClientHandshake
from hubline.emulator import Endpoint, is_loopback
from hubline.emulator.authorization import Grants, SharedKey, TokenRefused, sign
from hubline.emulator.errors import error_of
from hubline.emulator.link_addresses import (
    Address,
    CbsAddress,
    ManagementAddress,
    ReceiverAddress,
    SenderAddress,
    parse_address,
)
from hubline.emulator.receivers import READERS_WITHOUT_EPOCH_MAX
from hubline.emulator.requests import REQUESTS_MAX
from hubline.emulator.start_filter import SELECTOR_CODE, parse_filter, parse_selector
from hubline.errors import (
    ConfigError,
    EventTooLarge,
    HubDamaged,
    HubError,
    HubFull,
    HubNotFound,
    HubUnavailable,
    PartitionNotFound,
    PositionInvalid,
    ReaderRefused,
    ReaderStolen,
)
from hubline.hubs.local import LocalHub
from hubline.hubs.local import sqlite_files as database
from hubline.model.events import new_events
from hubline.model.positions import Position
from hubline.ports import Sender
from hubline.secrets import Secret
from tests.amqp.connections import Recorder, everything, until
from tests.emulator.serving import PATIENCE_SECONDS, SHARED_KEY, Client, FewHubs, client, endpoint, local_hub

BATCH_FORMAT = 0x80013700
READ = "telemetry/ConsumerGroups/$Default/Partitions/0"


def batch_of(*bodies: bytes) -> bytes:
    (batch,) = encode_batches(new_events(list(bodies)), max_bytes=1024 * 1024)
    return bytes(batch.payload)


def token(path: str, *, key: SharedKey = SHARED_KEY, expires_in: float = 60, now: float | None = None) -> str:
    resource = quote_plus(f"sb://localhost/{path}")
    expiry = str(int((time.time() if now is None else now) + expires_in))
    return (
        f"SharedAccessSignature sr={resource}&sig={quote_plus(sign(resource, expiry, key))}&se={expiry}&skn={key.name}"
    )


async def ask(peer: Client, address: str, body: object, properties: Mapping[object, object]) -> Message:
    """One request, and its answer."""
    session = peer.connection.begin()
    handler = Recorder()
    answers = session.attach_receiver("answers", source=Source(address), target=Target("me"), handler=handler)
    requests = session.attach_sender("requests", source=Source("me"), target=Target(address), handler=handler)
    await answers.attached()
    await requests.sendable()
    requests.send(Message(Value(body), application_properties=properties).encode(), settled=True)
    await handler.until_received(1)
    return Message.decode(handler.received[0])


async def put_token(peer: Client, audience: str, text: str) -> int:
    about: dict[object, object] = {"operation": "put-token", "type": SAS_TYPE, "name": f"sb://localhost/{audience}"}
    answer = await ask(peer, "$cbs", text, about)
    assert answer.application_properties is not None
    status = answer.application_properties["status-code"]
    assert isinstance(status, Int)
    return int(status)


async def refusal(link: Any) -> str | None:
    with pytest.raises(AmqpClosed) as caught:
        await asyncio.wait_for(link.attached(), PATIENCE_SECONDS)
    condition: str | None = caught.value.condition
    return condition


# Addresses and selectors.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("$cbs", CbsAddress()),
        ("amqps://localhost:5672/$cbs", CbsAddress()),
        ("$management", ManagementAddress()),
        ("telemetry/$management", ManagementAddress()),
        ("telemetry", SenderAddress("telemetry")),
        ("/telemetry/", SenderAddress("telemetry")),
        ("amqps://localhost:5672/telemetry/Partitions/3", SenderAddress("telemetry", "3")),
        ("h/ConsumerGroups/$Default/Partitions/0", ReceiverAddress("h", "$Default", "0")),
        ("amqp://x/h/consumergroups/g/partitions/12", ReceiverAddress("h", "g", "12")),
        ("h/ConsumerGroups/%24Default/Partitions/0", ReceiverAddress("h", "$Default", "0")),
        ("h/Nonsense/0", None),
        ("h/ConsumerGroups/g", None),
        ("", None),
        (None, None),
        ("x" * 5000, None),
    ],
)
def test_addresses_name_what_clients_mean(text: str | None, address: Address | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("selector", "position"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", Position.earliest()),
        ("amqp.annotation.x-opt-offset > '@latest'", Position.latest()),
        ("amqp.annotation.x-opt-offset >= '@latest'", Position.latest(inclusive=True)),
        ("amqp.annotation.x-opt-offset > '123'", Position.offset("123")),
        ("amqp.annotation.x-opt-offset >= '123'", Position.offset("123", inclusive=True)),
        ("amqp.annotation.x-opt-sequence-number > '-1'", Position.sequence(-1)),
        ("amqp.annotation.x-opt-sequence-number >= '7'", Position.sequence(7, inclusive=True)),
        ("  amqp.annotation.x-opt-sequence-number   >   '7'  ", Position.sequence(7)),
    ],
)
def test_selectors_become_positions(selector: str, position: Position) -> None:
    assert parse_selector(selector) == position
    for descriptor in (Symbol(SELECTOR), ULong(SELECTOR_CODE)):
        assert parse_filter({Symbol(SELECTOR): Described(descriptor, selector)}) == position


def test_selector_by_time_becomes_a_position() -> None:
    at = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert parse_selector("amqp.annotation.x-opt-enqueued-time >= '1700000000123'") == Position.enqueued(at)
    # Clients see milliseconds: an event that they see at the time is not after it.
    later = at + timedelta(milliseconds=1)
    assert parse_selector("amqp.annotation.x-opt-enqueued-time > '1700000000123'") == Position.enqueued(later)


def test_no_filter_is_the_first_event() -> None:
    assert parse_filter(None) == Position.earliest()


@pytest.mark.parametrize(
    "selector", ["", "nonsense", "amqp.annotation.x-opt-offset < '1'", "amqp.annotation.x-opt-sequence-number > 'x'", 7]
)
def test_unknown_selector_is_an_error(selector: object) -> None:
    with pytest.raises(ConfigError):
        parse_selector(selector)


# Tokens.


def test_token_covers_its_entity_and_what_is_below() -> None:
    grants = Grants(SHARED_KEY)
    assert not grants.allows(["telemetry"])
    grants.put("sb://localhost/telemetry", token("telemetry"), SAS_TYPE)
    assert grants.allows(["telemetry"])
    assert grants.allows(["Telemetry", "ConsumerGroups", "$Default", "Partitions", "0"])
    assert not grants.allows(["other"])
    assert not grants.allows(["telemetry2"])


@pytest.mark.parametrize(
    "text",
    [
        token("telemetry", key=SharedKey(SHARED_KEY.name, Secret("another"))),
        token("telemetry", key=SharedKey("other", SHARED_KEY.secret)),
        token("telemetry", expires_in=-5),
        token("other"),
        token("telemetry").replace("&se=", "&se=9"),
        token("telemetry").replace("telemetry", "tele"),
        "SharedAccessSignature sr=a&sig=b",
        "nonsense",
        "",
        "SharedAccessSignature " + "x" * 10000,
    ],
    ids=["key", "name", "expired", "entity", "later", "changed", "parts", "words", "empty", "long"],
)
def test_token_that_does_not_hold_is_refused(text: str) -> None:
    grants = Grants(SHARED_KEY)
    with pytest.raises(TokenRefused) as caught:
        grants.put("sb://localhost/telemetry", text, SAS_TYPE)
    assert SHARED_KEY.secret.reveal() not in str(caught.value)
    assert not grants.allows(["telemetry"])


def test_token_of_another_kind_is_refused() -> None:
    with pytest.raises(TokenRefused, match="jwt"):
        Grants(SHARED_KEY).put("sb://localhost/telemetry", "eyJ", "jwt")


def test_token_expires() -> None:
    now = 1000.0
    grants = Grants(SHARED_KEY, lambda: now)
    grants.put("sb://localhost/telemetry", token("telemetry", expires_in=10, now=now), SAS_TYPE)
    assert grants.allows(["telemetry"])
    now = 1011.0
    assert not grants.allows(["telemetry"])


def test_links_need_a_token_and_end_when_it_expires(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub, key=SHARED_KEY) as (_, port), client(port) as peer:
            early, _ = peer.sender(name="early")
            assert await refusal(early) == "amqp:unauthorized-access"
            assert await put_token(peer, "telemetry", token("other")) == 401
            assert await put_token(peer, "telemetry", token("telemetry", expires_in=2)) == 202
            link, handler = peer.sender(name="late")
            await link.attached()
            error = await handler.until_detached()
            assert error is not None
            assert error.condition == "amqp:unauthorized-access"

    asyncio.run(run())


# Sending.


def test_batches_and_single_messages_are_accepted_once_they_are_durable(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, handler = peer.sender()
            for number in range(20):
                await link.sendable()
                link.send(batch_of(b"%d a" % number, b"%d b" % number), message_format=BATCH_FORMAT)
            await link.sendable()
            link.send(Message(Data((b"single",))).encode())
            await handler.until_outcomes(21)
            assert {type(state) for _, state in handler.outcomes} == {Accepted}
            assert (await hub.describe_partition("0")).last_sequence == 40

    asyncio.run(run())


def test_events_without_a_key_go_to_the_partitions_in_turn(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, handler = peer.sender("telemetry")
            for count in range(1, 9):
                await link.sendable()
                link.send(batch_of(b"x"), message_format=BATCH_FORMAT)
                await handler.until_outcomes(count)
            held = [await hub.describe_partition(str(index)) for index in range(4)]
            assert [each.last_sequence for each in held] == [1, 1, 1, 1]

    asyncio.run(run())


def test_nonsense_is_rejected_and_the_link_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, handler = peer.sender()
            await link.sendable()
            link.send(b"\xff\xff\xff nonsense")
            link.send(batch_of(b"fine"), message_format=BATCH_FORMAT)
            await handler.until_outcomes(2)
            by_id = dict(handler.outcomes)
            assert isinstance(by_id[0], Rejected)
            assert by_id[0].error is not None
            assert by_id[0].error.condition == "amqp:decode-error"
            assert by_id[1] == Accepted()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (HubFull("no room"), "amqp:resource-limit-exceeded"),
        (HubUnavailable("locked"), "com.microsoft:server-busy"),
        (HubError("broken"), "amqp:internal-error"),
    ],
)
def test_what_cannot_be_kept_is_rejected_with_the_reason(tmp_path: Path, error: HubError, condition: str) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub:
            hub.open_sender = lambda: _failing_sender(error)  # type: ignore[method-assign,assignment,return-value]
            async with endpoint(hub) as (_, port), client(port) as peer:
                link, handler = peer.sender()
                await link.sendable()
                link.send(batch_of(b"x"), message_format=BATCH_FORMAT)
                await handler.until_outcomes(1)
                (_, state), *_ = handler.outcomes
                assert isinstance(state, Rejected)
                assert state.error is not None
                assert state.error.condition == condition

    asyncio.run(run())


async def _failing_sender(error: HubError) -> Sender:
    class Failing:
        async def send(self, events: object, **_where: object) -> None:
            raise error

        async def close(self) -> None: ...

    return Failing()


def test_what_is_kept_is_kept_once_where_another_partition_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that wait are written together, each partition's by itself."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, handler = peer.sender("telemetry")
            await link.sendable()
            (file,) = (tmp_path / "telemetry").glob("2.*.db")
            with closing(sqlite3.connect(file)) as other:
                other.execute("BEGIN IMMEDIATE")
                for number in range(40):
                    key: dict[object, object] = {Symbol("x-opt-partition-key"): f"key {number}"}
                    link.send(Message(Data((b"%d" % number,)), message_annotations=key).encode())
                await handler.until_outcomes(40)
            accepted = sorted(delivery_id for delivery_id, state in handler.outcomes if state == Accepted())
            held = [await _bodies(hub, str(index)) for index in range(4)]
            assert 0 < len(accepted) < 40
            assert held[2] == []
            assert sorted(int(body) for bodies in held for body in bodies) == accepted

    asyncio.run(run())


async def _bodies(hub: LocalHub, partition: str) -> list[bytes]:
    receiver = await hub.open_receiver(partition, group="$Default", position=Position.earliest())
    batch = await receiver.receive(max_count=100, wait_seconds=0)
    await receiver.close()
    return [bytes(body) for body in batch.arrow.column("body").to_pylist()]


def test_settle_modes_are_answered_with_what_is_done(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            asked = Attach("a", 0, SENDER, snd_settle_mode=SEND_UNSETTLED, rcv_settle_mode=RECEIVE_SECOND)
            session = peer.connection.begin()
            sender = session.attach_sender(
                "out", source=Source("me"), target=Target("telemetry"), handler=Recorder(), details=asked
            )
            receiver = session.attach_receiver(
                "in", source=Source(READ), target=Target("me"), handler=Recorder(), details=asked
            )
            answer = await sender.attached()
            assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (SEND_UNSETTLED, RECEIVE_FIRST)
            assert (await receiver.attached()).snd_settle_mode == SEND_SETTLED

    asyncio.run(run())


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("nowhere", "amqp:not-found"),
        ("telemetry/Partitions/9", "amqp:not-found"),
        ("telemetry/Nonsense/1/2", "amqp:not-found"),
    ],
)
def test_link_to_nothing_is_refused(tmp_path: Path, address: str, condition: str) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, _ = peer.sender(address)
            assert await refusal(link) == condition

    asyncio.run(run())


# Receiving.


async def _fill(hub: Any, count: int, *, size: int = 20, partition: str = "0") -> None:
    sender = await hub.open_sender()
    await sender.send(new_events([b"%d".ljust(size) % number for number in range(count)]), partition=partition)


def test_credit_is_honoured(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await _fill(hub, 100)
            link, handler = peer.receiver(credit=0)
            handler.tops_up = False
            await link.attached()
            link.grant(7)
            await handler.until_received(7)
            assert len(handler.received) == 7
            link.grant(93)
            await handler.until_received(100)

    asyncio.run(run())


@pytest.mark.parametrize("credit", [0, 7])
def test_drain_is_answered_at_once_where_nothing_is_left(tmp_path: Path, credit: int) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await _fill(hub, 3)
            link, handler = peer.receiver(credit=0)
            handler.tops_up = False
            await link.attached()
            link.credit = credit
            link._send_flow(drain=True)
            link.credit = credit or -1  # the answer makes it 0
            await handler.until_received(min(credit, 3))
            await until(lambda: link.credit == 0)

    asyncio.run(run())


def test_large_and_small_events_arrive_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            bodies = [bytes([number]) * (300_000 if number % 10 == 3 else 50) for number in range(60)]
            sender = await hub.open_sender()
            await sender.send(new_events(bodies), partition="0")
            _, handler = peer.receiver(credit=1000)
            await handler.until_received(60)
            received = [Message.decode(payload).body for payload in handler.received]
            assert received == [Data((body,)) for body in bodies]

    asyncio.run(run())


def test_sixth_reader_without_epoch_is_refused_until_one_leaves(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            links = [peer.receiver(name=str(number))[0] for number in range(READERS_WITHOUT_EPOCH_MAX)]
            for link in links:
                await link.attached()
            sixth, _ = peer.receiver(name="sixth")
            assert await refusal(sixth) == "amqp:resource-limit-exceeded"
            other, _ = peer.receiver("telemetry/ConsumerGroups/other/Partitions/0", name="other")
            await other.attached()
            links[0].detach()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    again, _ = peer.receiver(name="again")
                    try:
                        await again.attached()
                    except AmqpClosed:
                        continue
                    break

    asyncio.run(run())


def test_reader_without_epoch_is_refused_beside_one_with(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            holder, _ = peer.receiver(name="holder", epoch=3)
            await holder.attached()
            for number, epoch in enumerate((None, 2)):
                link, _ = peer.receiver(name=f"late {number}", epoch=epoch)
                with pytest.raises(AmqpClosed) as refused:
                    await asyncio.wait_for(link.attached(), PATIENCE_SECONDS)
                error = refused.value.error
                assert error is not None
                assert error.description is not None
                assert error.condition == "amqp:link:stolen"
                assert "epoch '3'" in error.description or "epoch of '3'" in error.description
                assert "partition 0 of hub telemetry" in error.description
                assert str(tmp_path) not in error.description

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "details", "expected"),
    [
        (HubNotFound, {}, "hub telemetry does not exist"),
        (PartitionNotFound, {"partition": "7"}, "partition 7 of hub telemetry does not exist"),
        (HubUnavailable, {"partition": "0"}, "partition 0 of hub telemetry is not available now. Try again."),
        (HubFull, {"partition": "0"}, "partition 0 of hub telemetry has no space left, so nothing was stored"),
        (
            HubDamaged,
            {"partition": "0"},
            "partition 0 of hub telemetry cannot be used, because of an error of the server",
        ),
        (EventTooLarge, {"index": 3, "bytes_count": 2000, "max_bytes": 1000}, "event 3 has 2,000 bytes: hub telemetry"),
        (ReaderRefused, {"partition": "0", "epoch": 1, "held_epoch": 2}, "Receiver with epoch 1 cannot be created"),
        (ReaderRefused, {"partition": "0", "epoch": None, "held_epoch": 2}, "non-epoch receiver is not allowed"),
        (ReaderStolen, {"partition": "0", "epoch": 1, "taken_by_epoch": 2}, "New receiver with higher epoch of '2'"),
        (
            PositionInvalid,
            {"partition": "0", "reason": "expired", "begin_sequence": 5, "last_sequence": 9},
            "partition 0 of hub telemetry holds only the sequence numbers 5 to 9",
        ),
    ],
)
def test_errors_do_not_show_peers_where_hubs_are_kept(kind: type[HubError], details: Any, expected: str) -> None:
    error = kind("/srv/secret/telemetry/0.db", hub="local:/srv/secret/telemetry", **details)
    description = error_of(error).description
    assert description is not None
    assert expected in description
    assert "/srv" not in description


def test_reason_of_this_side_is_logged_for_who_runs_it(caplog: pytest.LogCaptureFixture) -> None:
    error_of(HubUnavailable("/srv/telemetry/0.db is locked", hub="local:/srv/telemetry"))
    assert "/srv/telemetry/0.db is locked" in caplog.text


def test_reader_with_epoch_takes_over_from_those_without(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            weak, handler = peer.receiver(name="weak")
            await weak.attached()
            strong, _ = peer.receiver(name="strong", epoch=0)
            await strong.attached()
            error = await handler.until_detached()
            assert error is not None
            assert error.condition == "amqp:link:stolen"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("selector", "condition"),
    [
        ("amqp.annotation.x-opt-sequence-number > '1000'", "com.microsoft:argument-error"),
        ("amqp.annotation.x-opt-offset > 'elsewhere'", "com.microsoft:argument-error"),
        ("nonsense", "com.microsoft:argument-error"),
    ],
)
def test_position_that_cannot_be_is_refused(tmp_path: Path, selector: str, condition: str) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, _ = peer.receiver(selector=selector)
            assert await refusal(link) == condition

    asyncio.run(run())


# Management.


def test_unknown_requests_and_missing_things_have_their_status(tmp_path: Path) -> None:
    async def run() -> list[object]:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            hub_type, partition_type = "com.microsoft:eventhub", "com.microsoft:partition"
            asked: list[Mapping[object, object]] = [
                {"operation": "READ", "type": hub_type, "name": "telemetry"},
                {"operation": "READ", "type": hub_type, "name": "nowhere"},
                {"operation": "READ", "type": partition_type, "name": "telemetry", "partition": "0"},
                {"operation": "READ", "type": partition_type, "name": "telemetry", "partition": "9"},
                {"operation": "DELETE", "type": hub_type, "name": "telemetry"},
                {},
            ]
            answers = [await ask(peer, "$management", None, properties) for properties in asked]
            return [(answer.application_properties or {})["status-code"] for answer in answers]

    assert asyncio.run(run()) == [200, 404, 200, 404, 400, 400]


def test_every_link_of_a_session_has_requests_of_its_own(tmp_path: Path) -> None:
    request = Message(Value(None), application_properties={"operation": "READ"}).encode()

    async def run() -> list[int]:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            session, handler = peer.connection.begin(), Recorder(credit=1000)
            node, here = "$management", "me"
            session.attach_receiver("answers", source=Source(node), target=Target(here), handler=handler)
            links = [
                session.attach_sender(f"requests {number}", source=Source(here), target=Target(node), handler=handler)
                for number in range(3)
            ]
            for link in links:
                await link.sendable()
            for link in links * REQUESTS_MAX:
                link.send(request, settled=True)
            await handler.until_received(3 * REQUESTS_MAX)
            await until(lambda: all(link.credit == REQUESTS_MAX for link in links))
            return [link.credit for link in links]

    assert asyncio.run(run()) == [REQUESTS_MAX] * 3


# Strangers and crowds.


@pytest.mark.parametrize("garbage", [b"POST / HTTP/1.1\r\n\r\n", bytes(range(256)), b"\x16\x03\x01" + bytes(100)])
def test_garbage_is_answered_and_closed_while_others_are_served(tmp_path: Path, garbage: bytes) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, handler = peer.sender()
            await link.sendable()
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(sock, garbage)
                assert await everything(sock) == AMQP_HEADER
            link.send(batch_of(b"x"), message_format=BATCH_FORMAT)
            await handler.until_outcomes(1)

    asyncio.run(run())


def test_half_open_and_vanished_connections_are_forgotten(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (served, port):
            sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
            for index, sock in enumerate(sockets):
                sock.sendall(AMQP_HEADER[: index % 8])
            await until(lambda: served.connections_count == 20)
            for sock in sockets:
                sock.close()
            await until(lambda: served.connections_count == 0)

    asyncio.run(run())


def test_reader_that_stops_reading_holds_little_and_hinders_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (served, port):
            sender = await hub.open_sender()
            for _ in range(8):
                await sender.send(new_events([bytes(10_000)] * 400), partition="0")
            async with client(port) as slow, client(port) as quick:
                link, _ = slow.receiver(credit=100_000)
                await link.attached()
                stuck = next(iter(served._clients))
                transport = slow.connection._transport
                assert transport is not None
                transport.pause_reading()
                await until(lambda: not stuck.is_writable)
                assert stuck._transport is not None
                assert stuck._transport.get_write_buffer_size() < 8 * 1024 * 1024
                _, handler = quick.receiver(credit=4000)
                await handler.until_received(3200)
                transport.resume_reading()

    asyncio.run(run())


def test_two_hundred_connections_send_and_receive(tmp_path: Path) -> None:
    async def one(port: int, number: int) -> None:
        async with client(port) as peer:
            link, handler = peer.sender(f"telemetry/Partitions/{number % 4}")
            await link.sendable()
            link.send(batch_of(b"%d" % number), message_format=BATCH_FORMAT)
            await handler.until_outcomes(1)
            assert handler.outcomes[0][1] == Accepted()

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (served, port):
            await asyncio.gather(*(one(port, number) for number in range(200)))
            held = [await hub.describe_partition(str(index)) for index in range(4)]
            assert [each.last_sequence for each in held] == [49, 49, 49, 49]
            await until(lambda: served.connections_count == 0)

    asyncio.run(run())


# Starting and stopping.


def test_stop_answers_what_was_sent_and_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (served, port), client(port) as peer:
            link, handler = peer.sender()
            for _ in range(50):
                await link.sendable()
                link.send(batch_of(bytes(1000)), message_format=BATCH_FORMAT)
            await handler.until_outcomes(1)
            await served.stop()
            error = await peer.recorder.until_closed()
            assert error is not None
            assert error.condition == "amqp:connection:forced"
            accepted = len(handler.outcomes)
            assert (await hub.describe_partition("0")).last_sequence >= accepted - 1

    asyncio.run(run())


def test_port_in_use_is_reported() -> None:
    async def run() -> None:
        async with endpoint() as (_, port):
            with pytest.raises(HubUnavailable, match=str(port)):
                await Endpoint(FewHubs()).start(port=port)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("192.0.2.1", False), ("example.com", False)],
)
def test_only_loopback_is_open_to_everybody(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    if not expected:
        with pytest.raises(ConfigError, match="key"):
            asyncio.run(Endpoint(FewHubs()).start(host))


def test_tls_is_spoken_with_a_certificate(tmp_path: Path, certificate: Callable[[], tuple[Path, Path]]) -> None:
    cert, key = certificate()

    async def run() -> None:
        server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_side.load_cert_chain(cert, key)
        client_side = ssl.create_default_context(cafile=str(cert))
        async with local_hub(tmp_path) as hub:
            served = Endpoint(FewHubs(hub))
            port = await served.start(tls=server_side)
            recorder = Recorder()
            connection = Connection(ConnectionOptions("t"), handshake=ClientHandshake("localhost"), handler=recorder)
            loop = asyncio.get_running_loop()
            await loop.create_connection(
                lambda: connection, "127.0.0.1", port, ssl=client_side, server_hostname="localhost"
            )
            await asyncio.wait_for(connection.opened(), PATIENCE_SECONDS)
            link, handler = Client(connection, recorder).sender()
            await link.sendable()
            link.send(batch_of(bytes(500_000)), message_format=BATCH_FORMAT)
            await handler.until_outcomes(1)
            connection.close()
            await connection.closed()
            await served.stop()

    asyncio.run(run())


@pytest.fixture
def certificate(tmp_path: Path) -> Callable[[], tuple[Path, Path]]:
    def make() -> tuple[Path, Path]:
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
        return cert, key

    return make


def test_links_detached_before_they_are_answered_leave_nothing_behind(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (served, port), client(port) as peer:
            for number in range(20):
                link, _ = peer.receiver(name=f"hasty {number}")
                link.detach()
            await ask(peer, "$management", None, {})  # answered after all of them were heard
            await until(lambda: served._shared.readers._counts == {})
            await peer.receiver(name="steady")[0].attached()

    asyncio.run(run())


def test_more_links_than_a_connection_may_have_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubline.emulator.client_session.LINKS_MAX", 3)

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            for address in ("telemetry", "$cbs", "$management"):
                await peer.sender(address, name=address)[0].attached()
            assert await refusal(peer.sender(name="fourth")[0]) == "amqp:resource-limit-exceeded"

    asyncio.run(run())


def test_hub_that_breaks_in_an_unforeseen_way_ends_the_link_alone(tmp_path: Path) -> None:
    async def broken(*_args: object, **_named: object) -> None:
        raise RuntimeError("a bug")

    async def run() -> list[str]:
        failures: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
        async with local_hub(tmp_path) as hub:
            hub.open_sender = broken  # type: ignore[method-assign,assignment]
            async with endpoint(hub) as (_, port), client(port) as peer:
                assert await refusal(peer.sender()[0]) == "amqp:internal-error"
                await peer.receiver()[0].attached()
        return failures

    failures = asyncio.run(run())
    gc.collect()
    assert set(failures) <= {"a bug"}
