"""The connection engine: both ends of it together, and one end against a stranger that misbehaves."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from hubline.amqp import conditions
from hubline.amqp.codec.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from hubline.amqp.transport import input_limits, transfer_window
from hubline.amqp.transport.connection import ConnectionOptions
from hubline.amqp.transport.errors import AmqpClosed, AmqpError
from hubline.amqp.transport.frames import (
    AMQP_HEADER,
    HEADER_BYTES,
    HEARTBEAT,
    SASL_HEADER,
    decode_frame,
    encode_frame,
    encode_transfer,
)
from hubline.amqp.transport.link import Link, left_of
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.session import AnyLink
from tests.amqp.connections import (
    MESSAGE_BYTES_MAX,
    PATIENCE_SECONDS,
    Recorder,
    connected,
    everything,
    options,
    receiver_of,
    sender_of,
    stranger,
    until,
)

GREETING = AMQP_HEADER + encode_frame(0, Open("stranger", max_frame_size=4096))
SESSION = encode_frame(0, Begin(None, 0, 100, 100))


def attach(handle: int = 0, *, role: bool = SENDER, name: str = "link", channel: int = 0) -> bytes:
    count = 0 if role is SENDER else None
    return encode_frame(
        channel, Attach(name, handle, role, source=Source("a"), target=Target("b"), initial_delivery_count=count)
    )


def transfer(handle: int, delivery_id: int, payload: bytes, *, more: bool = False) -> bytes:
    return encode_frame(0, Transfer(handle, delivery_id, b"t", 0, settled=True, more=more), payload)


def said(data: bytes) -> list[object]:
    """The performatives between and after protocol headers; what is incomplete is left out."""
    performatives: list[object] = []
    position = 0
    while position + 8 <= len(data):
        if data[position : position + 4] == b"AMQP":
            position += HEADER_BYTES
            continue
        end = position + int.from_bytes(data[position : position + 4])
        if end > len(data):
            break
        performatives.append(decode_frame(data, position, end).performative)
        position = end
    return performatives


def ending(data: bytes) -> Error | None:
    close = next(item for item in said(data) if isinstance(item, Close))
    return close.error


async def answer_to(data: bytes, server: Recorder | None = None) -> bytes:
    """All that a server says to a stranger that sends this and then waits for the end."""
    async with stranger(server or Recorder()) as (sock, _):
        with suppress(ConnectionError):  # closed before all was read
            await asyncio.get_running_loop().sock_sendall(sock, data)
        return await everything(sock)


def test_messages_arrive_in_order_and_are_settled() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(credit=3)
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            for number in range(50):
                await link.sendable()
                link.send(b"message %d" % number)
            await server.until_received(50)
            await client.until_outcomes(50)
        assert server.received == [b"message %d" % number for number in range(50)]
        assert client.outcomes == [(number, Accepted()) for number in range(50)]

    asyncio.run(run())


def test_many_prebuilt_transfers_arrive_in_bulk() -> None:
    async def run() -> None:
        client, server = Recorder(credit=1000), Recorder()
        async with connected(client, server) as (ours, _):
            receiver_of(ours, client)
            link = await _server_link(server, SenderLink)
            first = link.next_delivery_id
            assert await link.sendable() == 1000
            frames = b"".join(
                encode_frame(
                    link.session.channel, Transfer(link.handle, first + number, b"\0", 0, settled=True), b"%d" % number
                )
                for number in range(1000)
            )
            link.send_frames(frames, count=1000)
            await client.until_received(1000)
        assert client.received == [b"%d" % number for number in range(1000)]
        assert len(client.bulks) < 100

    asyncio.run(run())


def test_large_message_goes_over_many_frames_and_comes_whole() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder()
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            await link.sendable()
            message = bytes(range(256)) * 4000
            link.send(message, message_format=0x80013700)
            await client.until_outcomes(1)
        assert server.received == [message]
        assert server.formats == [0x80013700]

    asyncio.run(run())


@pytest.mark.parametrize("large_bytes", [200_000, 500_000, 1_000_000])
@pytest.mark.parametrize("frame_bytes_max", [64 * 1024, 600_000, 8 * 1024 * 1024])
def test_large_messages_among_many_small_ones_come_whole_and_in_order(large_bytes: int, frame_bytes_max: int) -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(credit=1000)
        options = ConnectionOptions("server", frame_bytes_max=frame_bytes_max)
        async with connected(client, server, server_options=options) as (ours, _):
            link = sender_of(ours, client)
            messages = [bytes([number]) * (large_bytes if number % 20 == 7 else 30) for number in range(200)]
            for message in messages:
                await link.sendable()
                link.send(message, settled=True)
            await server.until_received(200)
        assert server.received == messages

    asyncio.run(run())


@pytest.mark.parametrize("parts", [(b"abc", b""), (b"", b"abc"), (b"a", b"", b"bc"), (b"", b"")])
def test_a_part_of_a_message_may_be_empty(parts: tuple[bytes, ...]) -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder()
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            await link.sendable()
            for number, part in enumerate(parts, start=1):
                ours.write(transfer(link.handle, 0, part, more=number < len(parts)))
            await server.until_received(1)
        assert server.received == [b"".join(parts)]

    asyncio.run(run())


def test_nothing_is_sent_without_credit() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(credit=2)
        server.on_message = lambda link, message: server.received.append(b"")  # type: ignore[method-assign]
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            for _ in range(2):
                await link.sendable()
                link.send(b"x", settled=True)
            assert link.sendable_count == 0
            waiting = asyncio.create_task(link.sendable())
            far_end = await _server_link(server, ReceiverLink)
            await until(lambda: len(server.received) == 2)
            assert not waiting.done()
            far_end.grant(5)
            assert await asyncio.wait_for(waiting, PATIENCE_SECONDS) == 5

    asyncio.run(run())


def test_credit_that_was_taken_back_too_late_may_have_been_used_and_no_more_than_that() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(credit=5, tops_up=False)
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            await link.sendable()
            far_end = await _server_link(server, ReceiverLink)
            for _ in range(4):
                link.send(b"x", settled=True)
            far_end.grant(0)
            await server.until_received(4)
            await until(lambda: link.credit == 0)
            far_end.grant(2)
            await until(lambda: link.credit == 2)
            for _ in range(2):
                link.send(b"x", settled=True)
            await server.until_received(6)
            assert far_end.credit == 0
            link.credit = 1  # of its own making
            link.send(b"x", settled=True)
            error = await client.until_detached()
            assert error is not None
            assert error.condition == conditions.TRANSFER_LIMIT_EXCEEDED
        assert len(server.received) == 6

    asyncio.run(run())


@pytest.mark.parametrize(
    ("allowed", "sent", "seen", "left"),
    [
        (100, 7, 7, 100),
        (100, 17, 7, 90),
        (10, 17, 7, 0),
        (3, 17, 7, 0),
        (0, 7, 7, 0),
        (2**32 - 1, 0, 0, 2**32 - 1),
        (2**32 - 1, 5, 2**32 - 5, 2**32 - 11),
        (10, 7, 8, 10),
    ],
    ids=["all seen", "some on the way", "used up", "taken back", "none", "most there is", "wrapped", "miscounted"],
)
def test_what_a_peer_allows_is_left_but_for_what_it_has_not_seen(allowed: int, sent: int, seen: int, left: int) -> None:
    assert left_of(allowed, sent=sent, seen=seen) == left


def test_a_message_larger_than_the_window_goes_frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(transfer_window, "INCOMING_WINDOW", 2)
        client, server = Recorder(), Recorder()
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            await link.sendable()
            message = bytes(range(256)) * 4000
            link.send(message, settled=True)
            far_end = await _server_link(server, ReceiverLink)
            while not server.received:
                far_end.grant(100)  # sends the window again
                await asyncio.sleep(0)
        assert server.received == [message]

    asyncio.run(run())


def test_drain_uses_up_the_credit() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder()
        async with connected(client, server) as (ours, _):
            link = receiver_of(ours, client)
            far_end = await _server_link(server, SenderLink)
            await far_end.sendable()
            link.session.send_flow(handle=link.handle, delivery_count=0, credit=7, drain=True)
            await until(lambda: far_end.is_draining)
            far_end.drained()
            assert far_end.credit == 0
            await until(lambda: link.credit == 0)

    asyncio.run(run())


def test_refused_link_raises_the_reason() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(refuses=Error("amqp:not-found", "no such hub"))
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            with pytest.raises(AmqpClosed, match="no such hub") as caught:
                await asyncio.wait_for(link.attached(), PATIENCE_SECONDS)
            assert caught.value.condition == "amqp:not-found"
            with pytest.raises(AmqpClosed):
                await link.sendable()

    asyncio.run(run())


def test_what_does_not_fit_into_the_frames_of_the_peer_is_not_sent() -> None:
    async def run() -> Error | None:
        client = Recorder()
        small = options("client", frame_bytes_max=512)
        async with connected(client, Recorder(), client_options=small) as (ours, _):
            sender_of(ours, client, name="long" * 200)
            return await client.until_closed()

    error = asyncio.run(run())
    assert error is not None
    assert error.condition == "amqp:frame-size-too-small"


def test_detach_by_one_side_is_reported_to_the_other_once() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder()
        async with connected(client, server) as (ours, _):
            link = receiver_of(ours, client)
            await link.attached()
            far_end = await _server_link(server, Link)
            far_end.detach(Error("amqp:link:stolen", "another reader came"))
            assert await client.until_detached() == Error("amqp:link:stolen", "another reader came")
        assert len(client.detached) == 1
        assert server.detached == []

    asyncio.run(run())


def test_ended_session_ends_its_links_and_leaves_the_others() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder()
        async with connected(client, server) as (ours, _):
            doomed, staying = sender_of(ours, client, "doomed"), sender_of(ours, client, "staying")
            await doomed.attached()
            await staying.attached()
            server.links[0].session.end(Error("amqp:internal-error", "sorry"))
            assert await client.until_detached() == Error("amqp:internal-error", "sorry")
            await staying.sendable()
            staying.send(b"still here")
            await server.until_received(1)
            assert doomed.is_over
            assert not staying.is_over

    asyncio.run(run())


def test_lost_connection_ends_links_and_waiters() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(credit=0)
        async with connected(client, server) as (ours, theirs):
            link = sender_of(ours, client)
            await link.attached()
            waiting = asyncio.create_task(link.sendable())
            await asyncio.sleep(0)
            theirs.abort()
            error = await client.until_closed()
            assert error is not None
            with pytest.raises(AmqpClosed, match="lost"):
                await waiting
        assert len(client.detached) == 1

    asyncio.run(run())


def test_close_carries_its_reason() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder()
        async with connected(client, server) as (_, theirs):
            theirs.close(Error("amqp:connection:forced", "the server stops"))
            assert await client.until_closed() == Error("amqp:connection:forced", "the server stops")

    asyncio.run(run())


def test_quiet_connections_stay_open_by_heartbeats() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder()
        short = {"idle_seconds": 0.4}
        async with connected(
            client, server, client_options=options("client", **short), server_options=options("server", **short)
        ) as (ours, theirs):
            await asyncio.sleep(1.2)  # time is what this is about
            assert not ours.is_over
            assert not theirs.is_over

    asyncio.run(run())


def test_silent_peer_is_closed() -> None:
    async def run() -> bytes:
        async with stranger(Recorder(), idle_seconds=0.2) as (sock, _):
            await asyncio.get_running_loop().sock_sendall(sock, GREETING)
            return await everything(sock)

    error = ending(asyncio.run(run()))
    assert error is not None
    assert error.condition == conditions.RESOURCE_LIMIT_EXCEEDED


def test_slow_reader_stops_the_sender_and_not_the_memory() -> None:
    async def run() -> None:
        server = Recorder()
        async with stranger(server) as (sock, theirs):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, GREETING + SESSION + attach(role=RECEIVER))
            flow = Flow(0, 1_000_000, 0, 1_000_000, handle=0, delivery_count=0, link_credit=1_000_000)
            await loop.sock_sendall(sock, encode_frame(0, flow))
            link = await _server_link(server, SenderLink)
            sent_bytes = 0
            while await asyncio.wait_for(link.sendable(), PATIENCE_SECONDS):
                link.send(bytes(4000), settled=True)
                sent_bytes += 4000
                if not theirs.is_writable:
                    break
            assert link.sendable_count == 0
            assert sent_bytes < 8 * 1024 * 1024

    asyncio.run(run())


def test_reading_pauses_while_handlers_hold_too_much() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(credit=1000)
        async with connected(client, server, server_options=options("server", held_bytes_max=10)) as (ours, theirs):
            link = sender_of(ours, client)
            await link.attached()
            theirs.input_limits.hold(11)
            await link.sendable()
            link.send(b"waits", settled=True)
            for _ in range(20):
                await asyncio.sleep(0)
            assert server.received == []
            theirs.input_limits.release(11)
            await server.until_received(1)

    asyncio.run(run())


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"AMQP\x00\x00\x09\x01", b"A" * 100],
    ids=["http", "tls", "amqp-0-9-1", "text"],
)
def test_stranger_is_sent_the_supported_header_and_closed(garbage: bytes) -> None:
    assert asyncio.run(answer_to(garbage)) == AMQP_HEADER


def test_half_a_header_waits_and_an_end_ends_it() -> None:
    async def run() -> None:
        server = Recorder()
        async with stranger(server) as (sock, _):
            await asyncio.get_running_loop().sock_sendall(sock, b"AMQ")
            sock.close()
            error = await server.until_closed()
            assert error is not None

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"\xff\xff\xff\xff\x02\x00\x00\x00", conditions.FRAMING_ERROR),
        (b"\x00\x00\x00\x04", conditions.FRAMING_ERROR),
        (b"\x00\x00\x00\x08\x09\x00\x00\x00", conditions.FRAMING_ERROR),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\xff\xff\xff\xff", conditions.DECODE_ERROR),
        (encode_frame(0, Open("again")), conditions.NOT_ALLOWED),
        (encode_frame(7, Flow(0, 1, 0, 1)), conditions.NOT_ALLOWED),
        (SESSION + SESSION, conditions.NOT_ALLOWED),
        (encode_frame(0, Begin(9, 0, 1, 1)), conditions.NOT_ALLOWED),
        (encode_frame(60000, Begin(None, 0, 1, 1)), conditions.NOT_ALLOWED),
    ],
)
def test_peer_that_breaks_the_rules_is_closed_with_the_condition(data: bytes, condition: str) -> None:
    error = ending(asyncio.run(answer_to(GREETING + data)))
    assert error is not None
    assert error.condition == condition


def test_frames_before_open_are_refused() -> None:
    error = ending(asyncio.run(answer_to(AMQP_HEADER + SESSION)))
    assert error is not None
    assert error.condition == conditions.NOT_ALLOWED


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (transfer(5, 0, b"x"), conditions.UNATTACHED_HANDLE),
        (attach(0) + attach(0, name="other"), conditions.HANDLE_IN_USE),
        (attach(0) + attach(1), conditions.NOT_ALLOWED),
        (attach(70000), conditions.NOT_ALLOWED),
        (attach(0, role=RECEIVER) + transfer(0, 0, b"x"), conditions.NOT_ALLOWED),
    ],
)
def test_session_that_breaks_the_rules_is_ended_with_the_condition(data: bytes, condition: str) -> None:
    ended = said(asyncio.run(answer_to(GREETING + SESSION + data + encode_frame(0, Close()))))
    errors = [item.error for item in ended if isinstance(item, End)]
    assert [error.condition for error in errors if error] == [condition]


def test_messages_beyond_the_credit_detach_the_link() -> None:
    data = attach() + b"".join(transfer(0, number, b"x") for number in range(20))
    ended = said(asyncio.run(answer_to(GREETING + SESSION + data + encode_frame(0, Close()), Recorder(credit=0))))
    assert [item.error.condition for item in ended if isinstance(item, Detach) and item.error] == [
        conditions.TRANSFER_LIMIT_EXCEEDED
    ]


def test_message_beyond_the_size_detaches_the_link() -> None:
    message = b"".join(
        encode_transfer(0, Transfer(0, 0, b"t", 0, settled=True), bytes(MESSAGE_BYTES_MAX + 1), frame_bytes_max=65536)
    )
    ended = said(asyncio.run(answer_to(GREETING + SESSION + attach() + message + encode_frame(0, Close()))))
    assert [item.error.condition for item in ended if isinstance(item, Detach) and item.error] == [
        conditions.MESSAGE_SIZE_EXCEEDED
    ]


def test_messages_never_finished_are_bounded_over_all_links() -> None:
    names = range(100)
    data = b"".join(attach(number, name=str(number)) for number in names)
    parts = b"".join(
        transfer(number, 0, bytes(60_000), more=True) for _ in range(17) for number in names
    )  # each below the size of a message
    error = ending(asyncio.run(answer_to(GREETING + SESSION + data + parts)))
    assert error is not None
    assert error.condition == conditions.RESOURCE_LIMIT_EXCEEDED


def test_message_whose_last_part_is_too_much_for_all_links_is_not_handed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(input_limits, "PARTS_BYTES_MAX", 100_000)
    server = Recorder()
    parts = [transfer(0, 0, bytes(60_000), more=True), transfer(0, 0, bytes(60_000))]
    error = ending(asyncio.run(answer_to(GREETING + SESSION + attach() + b"".join(parts), server)))
    assert error is not None
    assert error.condition == conditions.RESOURCE_LIMIT_EXCEEDED
    assert server.received == []
    assert not caplog.records, "the handler was called, or failed"


def test_what_some_clients_send_too_late_is_passed_over() -> None:
    late = [
        encode_frame(0, Flow(0, 100, 0, 100, handle=3, delivery_count=0, link_credit=10)),
        encode_frame(0, Detach(3, closed=True)),
        encode_frame(0, End()),
        encode_frame(0, Detach(0, closed=True)),
        encode_frame(0, Flow(0, 100, 0, 100)),
        HEARTBEAT,
        encode_frame(0, Close()),
    ]
    heard = said(asyncio.run(answer_to(GREETING + SESSION + attach() + b"".join(late))))
    assert [item for item in heard if isinstance(item, End | Close)] == [End(), Close()]


def test_aborted_message_is_dropped() -> None:
    async def run() -> None:
        server = Recorder()
        async with stranger(server) as (sock, _):
            aborted = encode_frame(0, Transfer(0, 0, b"t", 0, settled=True, aborted=True))
            data = attach() + transfer(0, 0, b"never", more=True) + aborted + transfer(0, 1, b"whole")
            await asyncio.get_running_loop().sock_sendall(sock, GREETING + SESSION + data)
            await server.until_received(1)
        assert server.received == [b"whole"]

    asyncio.run(run())


def test_sasl_lets_in_known_mechanisms_and_checks_passwords() -> None:
    async def outcome(init: SaslInit) -> object:
        async with stranger(Recorder()) as (sock, _):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, SASL_HEADER + encode_frame(0, init))
            data = b""
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not any(isinstance(item, SaslOutcome) for item in said(data)):
                    data += await loop.sock_recv(sock, 4096)
            return said(data)[-1]

    assert asyncio.run(outcome(SaslInit("ANONYMOUS", b"\0key"))) == SaslOutcome(0)
    assert asyncio.run(outcome(SaslInit("MSSBCBS"))) == SaslOutcome(0)
    assert asyncio.run(outcome(SaslInit("PLAIN", b"\0name\0wrong"))) == SaslOutcome(1)
    assert asyncio.run(outcome(SaslInit("SCRAM-SHA-256"))) == SaslOutcome(1)


def test_handler_that_fails_closes_its_own_connection_only() -> None:
    async def run() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
        server = Recorder()
        server.on_link = _fail  # type: ignore[method-assign,assignment]
        client, other_client, other_server = Recorder(), Recorder(), Recorder()
        async with (
            connected(client, server) as (ours, _),
            connected(other_client, other_server) as (others, _),
        ):
            sender_of(ours, client)
            error = await client.until_closed()
            assert error is not None
            assert error.condition == "amqp:internal-error"
            await sender_of(others, other_client).attached()
        assert [str(failure) for failure in failures] == ["a bug"]

    asyncio.run(run())


def test_errors_of_the_engine_are_errors_of_amqp() -> None:
    assert issubclass(AmqpClosed, AmqpError)


def _fail(_link: Link) -> None:
    raise RuntimeError("a bug")


async def _server_link(server: Recorder, kind: type[AnyLink]) -> AnyLink:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not server.links:
            await server.happened.wait()
    link = server.links[0]
    assert isinstance(link, kind)
    return link


def test_a_small_message_after_a_large_one_keeps_no_more_memory_than_it_takes() -> None:
    async def run() -> None:
        client, server = Recorder(), Recorder(credit=10)
        kept: list[memoryview] = []
        server.on_message = lambda link, message: kept.append(memoryview(message.payload))  # type: ignore[method-assign]
        messages = [bytes([number]) * size for number, size in enumerate((900_000, 100_000, 900_000, 10))]
        async with connected(client, server) as (ours, _):
            link = sender_of(ours, client)
            for message in messages:
                await link.sendable()
                link.send(message, message_format=1, settled=True)
            await until(lambda: len(kept) == len(messages))
        assert kept == messages
        assert all(memoryview(each.obj).nbytes <= 2 * each.nbytes for each in kept)

    asyncio.run(run())
