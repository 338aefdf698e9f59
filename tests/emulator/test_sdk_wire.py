"""What the SDKs for Rust, JavaScript, Go and Java say to the endpoint, byte by byte where their bytes matter.

The bytes are those of fe2o3-amqp, on which the SDK for Rust stands, and of @azure/event-hubs 6.0.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from hubline.amqp import conditions
from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.data_sections import DATA_SECTIONS
from hubline.amqp.codec.message import Body, Data, Message, Value
from hubline.amqp.codec.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Open,
    Rejected,
    Source,
    Target,
    Transfer,
)
from hubline.amqp.codec.types import Int
from hubline.amqp.events.decoder import BULK_COUNT_MIN
from hubline.amqp.events.reference_decoder import BATCH_FORMAT
from hubline.amqp.transport.errors import AmqpClosed
from hubline.amqp.transport.frames import AMQP_HEADER, HEADER_BYTES, decode_frame, encode_frame
from hubline.amqp.transport.link import Link
from hubline.emulator.senders import CREDIT, MESSAGE_BYTES_MAX
from hubline.hubs.local import LocalHub
from hubline.model.events import new_events
from hubline.model.positions import Position
from tests.emulator.serving import PATIENCE_SECONDS, SHARED_KEY, Client, client, endpoint, local_hub
from tests.emulator.test_protocol import ask, token

READ = "telemetry/ConsumerGroups/$Default/Partitions/0"
SEND = "telemetry/Partitions/0"

MAX = "70ffffffff"

Kind = TypeVar("Kind", bound=Composite)


def frame(head: str, payload: bytes = b"") -> bytes:
    """A frame of channel 0: its performative, in hexadecimal digits, and what follows that."""
    body = bytes.fromhex(head) + payload
    return (8 + len(body)).to_bytes(4, "big") + b"\2\0\0\0" + body


def rust_uint(number: int) -> str:
    return f"70{number:08x}" if number > 0xFF else f"52{number:02x}" if number else "43"


def rust_list(code: int, *values: str) -> str:
    """A performative as the SDK for Rust writes it, which leaves out what it has not at its end."""
    fields = "".join(values)
    return f"0053{code:02x}c0{len(fields) // 2 + 1:02x}{len(values):02x}{fields}"


def rust_begin() -> bytes:
    """An incoming window of 2**32 - 1: the client takes whatever comes."""
    return frame(rust_list(0x11, "40", rust_uint(0), MAX, MAX))


def rust_flow(received: int) -> bytes:
    """So many have come; there is credit for 300 more, and the window is as it was."""
    count = rust_uint(received)
    return frame(rust_list(0x13, count, MAX, rust_uint(0), MAX, rust_uint(0), count, rust_uint(300)))


class RawClient:
    """A client that writes bytes, and reads what the endpoint says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def say(self, *frames: bytes) -> None:
        self._writer.write(b"".join(frames))
        await self._writer.drain()

    async def hear(self, kind: type[Kind]) -> tuple[Kind, bytes]:
        """The next of a kind, and its payload. What is said before is passed over, but for the end of a link."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                size = await self._reader.readexactly(4)
                data = size + await self._reader.readexactly(int.from_bytes(size) - 4)
                heard = decode_frame(data, 0, len(data))
                if isinstance(heard.performative, kind):
                    return heard.performative, bytes(heard.payload)
                assert not isinstance(heard.performative, Detach), heard.performative

    async def hear_bodies(self, count: int) -> list[bytes]:
        """The bodies of so many events."""
        messages = [Message.decode((await self.hear(Transfer))[1]) for _ in range(count)]
        return [body for message in messages for body in parts_of(message.body)]


@asynccontextmanager
async def raw_client(port: int, begin: bytes) -> AsyncIterator[RawClient]:
    """A client with a session on channel 0."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(AMQP_HEADER + encode_frame(0, Open("raw", max_frame_size=65536)) + begin)
        assert await reader.readexactly(HEADER_BYTES) == AMQP_HEADER
        peer = RawClient(reader, writer)
        await peer.hear(Begin)
        yield peer
    finally:
        writer.close()
        await writer.wait_closed()


def attach(role: bool, address: str) -> bytes:
    source, target = (Source(address), Target("me")) if role is RECEIVER else (Source("me"), Target(address))
    count = 0 if role is SENDER else None
    return encode_frame(0, Attach("link", 0, role, source=source, target=target, initial_delivery_count=count))


def parts_of(body: Body) -> list[bytes]:
    assert isinstance(body, Data)
    return [part for part in body.parts if part is not None]


async def fill(hub: LocalHub, bodies: Sequence[bytes]) -> None:
    sender = await hub.open_sender()
    await sender.send(new_events(list(bodies)), partition="0")
    await sender.close()


# The SDK for Rust takes all that comes.


def test_client_with_the_largest_window_there_is_receives(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port):
            bodies = [b"%d" % number for number in range(500)]
            await fill(hub, bodies)
            async with raw_client(port, rust_begin()) as peer:
                await peer.say(attach(RECEIVER, READ), rust_flow(0))
                assert await peer.hear_bodies(300) == bodies[:300]
                await peer.say(rust_flow(300))
                assert await peer.hear_bodies(200) == bodies[300:]

    asyncio.run(run())


def test_client_that_has_not_seen_all_yet_has_what_is_left_of_its_window(tmp_path: Path) -> None:
    begin = encode_frame(0, Begin(None, 0, 3, 2**31))

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port):
            bodies = [b"%d" % number for number in range(10)]
            await fill(hub, bodies)
            async with raw_client(port, begin) as peer:
                credit = Flow(0, 3, 0, 2**31, handle=0, delivery_count=0, link_credit=100)
                await peer.say(attach(RECEIVER, READ), encode_frame(0, credit))
                assert await peer.hear_bodies(3) == bodies[:3]
                # Of the three it has seen one: there is room for one more, and then for all.
                await peer.say(encode_frame(0, Flow(1, 3, 0, 2**31)))
                assert await peer.hear_bodies(1) == bodies[3:4]
                await peer.say(encode_frame(0, Flow(2**32 - 1, 1, 0, 2**31)), encode_frame(0, Flow(4, 2**32 - 1, 0, 9)))
                assert await peer.hear_bodies(6) == bodies[4:]

    asyncio.run(run())


def test_partition_has_the_epochs_of_its_sequence_numbers(tmp_path: Path) -> None:
    about: dict[object, object] = {
        "operation": "READ",
        "type": "com.microsoft:partition",
        "name": "telemetry",
        "partition": "0",
    }

    async def run() -> object:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            body = (await ask(peer, "$management", None, about)).body
            assert isinstance(body, Value)
            return body.value

    answer = asyncio.run(run())
    assert isinstance(answer, dict)
    epochs = [answer[f"{name}_epoch"] for name in ("begin_sequence_number", "last_enqueued_sequence_number")]
    assert epochs == [-1, -1]
    assert [type(epoch) for epoch in epochs] == [Int, Int]


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda: token("telemetry"), 200),
        (lambda: token("other"), 401),
        (lambda: token("telemetry", expires_in=-5), 401),
        (lambda: "nonsense", 401),
    ],
    ids=["right", "of another hub", "expired", "nonsense"],
)
def test_request_may_have_the_token_that_nobody_put(tmp_path: Path, make: Callable[[], str], status: int) -> None:
    """The SDK for Java asks for properties so."""
    about: dict[object, object] = {
        "operation": "READ",
        "type": "com.microsoft:eventhub",
        "name": "telemetry",
        "security_token": make(),
    }

    async def run() -> object:
        async with local_hub(tmp_path) as hub, endpoint(hub, key=SHARED_KEY) as (_, port), client(port) as peer:
            answer = await ask(peer, "$management", None, about)
            assert answer.application_properties is not None
            return answer.application_properties["status-code"]

    assert asyncio.run(run()) == status


# Messages that are too large.


# What fits into a frame of the endpoint's, beside a head.
PART_BYTES = 65_000


def cuts(payload: bytes, count: int) -> Iterator[bytes]:
    return (payload[start : start + count] for start in range(0, len(payload), count))


def rust_transfers(message: bytes) -> Iterator[bytes]:
    """A message as the SDK for Rust sends it, which cuts it where the link's limit is. Where there are two pieces, the
    second one has the tag of the first and a delivery id of its own."""
    pieces = list(cuts(message, MESSAGE_BYTES_MAX))
    for number, piece in enumerate(pieces):
        parts = list(cuts(piece, PART_BYTES))
        for index, part in enumerate(parts):
            is_last = number + 1 == len(pieces) and index + 1 == len(parts)
            names = [rust_uint(number), "a00400000000", "7080013700", "42"]
            if index or (number and len(pieces) > 2):
                names = [] if is_last else ["40"] * 4
            yield frame(rust_list(0x14, rust_uint(0), *names, *([] if is_last else ["41"])), part)


def javascript_transfers(message: bytes) -> Iterator[bytes]:
    """A message as @azure/event-hubs sends it: each part has the delivery id."""
    parts = list(cuts(message, PART_BYTES))
    for index, part in enumerate(parts):
        more = "41" if index + 1 < len(parts) else "42"
        yield frame(f"005314d0 00000010 00000006 43 43 a00130 7080013700 42 {more}", part)


def small_transfer(delivery_id: int) -> bytes:
    return encode_frame(0, Transfer(0, delivery_id, b"9", 0, settled=False), Message(Data((b"small",))).encode())


@pytest.mark.parametrize("transfers", [rust_transfers, javascript_transfers])
@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX + 1, 3 * MESSAGE_BYTES_MAX // 2, 5 * MESSAGE_BYTES_MAX])
def test_message_that_is_too_large_is_rejected_and_the_link_goes_on(
    tmp_path: Path, transfers: Callable[[bytes], Iterator[bytes]], size: int
) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port):
            async with raw_client(port, rust_begin()) as peer:
                await peer.say(attach(SENDER, SEND))
                await peer.hear(Flow)
                await peer.say(*transfers(bytes(size)))
                refused, _ = await peer.hear(Disposition)
                assert (refused.role, refused.first, refused.last, refused.settled) == (RECEIVER, 0, 0, True)
                assert isinstance(refused.state, Rejected)
                assert refused.state.error is not None
                assert refused.state.error.condition == conditions.MESSAGE_SIZE_EXCEEDED
                assert refused.state.error.description == (
                    f"The received message (delivery-id:0, size:{size} bytes) exceeds the limit "
                    f"({MESSAGE_BYTES_MAX} bytes) currently allowed on the link."
                )
                await peer.say(small_transfer(9))
                taken, _ = await peer.hear(Disposition)
                assert (taken.first, taken.state) == (9, Accepted())
            assert (await hub.describe_partition("0")).last_sequence == 0

    asyncio.run(run())


def test_any_number_of_messages_that_are_too_large_leaves_credit_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubline.emulator.client_session.MESSAGE_BYTES_MAX", 1000)
    is_small = [number % 50 == 7 for number in range(2 * CREDIT)]

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, handler = peer.sender()
            for each in is_small:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await link.sendable()
                link.send(Message(Data((bytes(10 if each else 1001),))).encode())
            await handler.until_outcomes(len(is_small))
            assert not handler.detached
            kinds = {number: type(state) for number, state in handler.outcomes}
            assert [kinds[number] is Accepted for number in range(len(is_small))] == is_small
            assert (await hub.describe_partition("0")).last_sequence == sum(is_small) - 1

    asyncio.run(run())


def test_settled_message_that_is_too_large_ends_the_link(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            link, handler = peer.sender()
            await link.sendable()
            link.send(bytes(MESSAGE_BYTES_MAX + 1), settled=True)
            error = await handler.until_detached()
            assert error is not None
            assert error.condition == conditions.MESSAGE_SIZE_EXCEEDED

    asyncio.run(run())


# Links that are refused.


@pytest.mark.parametrize("address", ["telemetry/Partitions/9", "nowhere", "telemetry/Nonsense/1/2"])
def test_refused_sender_hears_how_large_messages_may_be(tmp_path: Path, address: str) -> None:
    """The SDKs for Go and Java look at that first, and would tell of the size in place of what is missing."""

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await expect_refusal(peer.sender(address)[0])

    asyncio.run(run())


def test_refused_receiver_hears_it_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await expect_refusal(peer.receiver("telemetry/ConsumerGroups/$Default/Partitions/9")[0])

    asyncio.run(run())


async def expect_refusal(link: Link) -> None:
    with pytest.raises(AmqpClosed) as refused:
        await asyncio.wait_for(link.attached(), PATIENCE_SECONDS)
    assert refused.value.condition == conditions.NOT_FOUND
    assert link.remote is not None
    assert link.remote.max_message_size == MESSAGE_BYTES_MAX


# Bodies.

# sendBatch([{ body: null }]): a data section that is null, in the only message of a batch.
JAVASCRIPT_NULL = "00537045005372d100000004000000000053734500537540"
JAVASCRIPT_BATCH = f"00537045005372d1000000040000000000537345005375a018{JAVASCRIPT_NULL}"

SECTIONS: list[tuple[bytes | None, ...]] = [
    (b"aa", b"bb", b"cc"),
    (None,),
    (b"", b"a", b""),
    (b"x" * 300, None, b"y"),
    (b"", b""),
]


async def send_payload(peer: Client, payload: bytes, message_format: int) -> None:
    link, handler = peer.sender()
    await link.sendable()
    link.send(payload, message_format=message_format)
    await handler.until_outcomes(1)
    assert handler.outcomes[0][1] == Accepted()
    link.detach()


async def received_bodies(peer: Client, count: int) -> list[Body]:
    _, handler = peer.receiver()
    await handler.until_received(count)
    return [Message.decode(payload).body for payload in handler.received]


async def stored(hub: LocalHub) -> list[tuple[bytes, list[tuple[str, str]] | None]]:
    """Bodies and properties, as a reader of the hub's own files has them."""
    receiver = await hub.open_receiver("0", group="$Default", position=Position.earliest())
    events = (await receiver.receive(max_count=1000, wait_seconds=0)).arrow
    await receiver.close()
    return list(zip(*(events.column(name).to_pylist() for name in ("body", "properties")), strict=True))


def batch_of(messages: Sequence[Message]) -> bytes:
    encoded = [message.encode() for message in messages]
    return b"".join(b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message for message in encoded)


def test_null_body_of_javascript_comes_back_as_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await send_payload(peer, bytes.fromhex(JAVASCRIPT_BATCH), BATCH_FORMAT)
            assert await received_bodies(peer, 1) == [Data((None,))]
            assert await stored(hub) == [(b"", [(DATA_SECTIONS, "[null]")])]

    asyncio.run(run())


@pytest.mark.parametrize("sections", SECTIONS)
def test_sections_of_a_body_come_back_apart(tmp_path: Path, sections: tuple[bytes | None, ...]) -> None:
    async def run() -> list[Body]:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await send_payload(peer, Message(Data(sections)).encode(), 0)
            return await received_bodies(peer, 1)

    assert asyncio.run(run()) == [Data(sections)]


def test_sections_come_back_apart_among_many_bodies_that_have_one(tmp_path: Path) -> None:
    bodies = [Data(SECTIONS[number % 5] if number % 3 == 0 else (b"%d" % number,)) for number in range(60)]
    properties: list[dict[object, object] | None] = [{"n": Int(1)}, {"text": "t"}, None, {"amqp:other": "x"}]
    messages = [Message(body, application_properties=properties[number % 4]) for number, body in enumerate(bodies)]
    assert len(messages) > BULK_COUNT_MIN

    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await send_payload(peer, batch_of(messages), BATCH_FORMAT)
            _, handler = peer.receiver()
            await handler.until_received(60)
            received = [Message.decode(payload) for payload in handler.received]
            assert [message.body for message in received] == bodies
            assert [message.application_properties for message in received] == [
                message.application_properties for message in messages
            ]

    asyncio.run(run())


def test_local_hub_keeps_one_body_and_notes_its_sections_only_if_there_are_several(tmp_path: Path) -> None:
    async def run() -> None:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            several, one = Message(Data((b"aa", b"bb", b"cc"))), Message(Data((b"aabbcc",)))
            typed = Message(Data((b"a", b"b")), application_properties={"n": Int(1)})
            await send_payload(peer, batch_of([several, one, typed]), BATCH_FORMAT)
            assert await stored(hub) == [
                (b"aabbcc", [("amqp:data-sections", "[2,2,2]")]),
                (b"aabbcc", None),
                (b"ab", [("n", "1"), ("amqp:types", '{"n":"int"}'), ("amqp:data-sections", "[1,1]")]),
            ]

    asyncio.run(run())


@pytest.mark.parametrize(
    "note",
    ["[2,2]", "no json", "[7]", "[-1,7]", "[true,5]", "[3.0,3]", "[]", "{}", "[" * 10_000, "[3,3]" + " " * 65_536],
    ids=["less", "words", "more", "negative", "boolean", "float", "none", "map", "deep", "long"],
)
def test_note_that_does_not_fit_the_body_leaves_it_whole(tmp_path: Path, note: str) -> None:
    async def run() -> list[Message]:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            sender = await hub.open_sender()
            events = new_events([{"body": b"aabbcc", "properties": {DATA_SECTIONS: note, "a": "b"}}])
            await sender.send(events, partition="0")
            _, handler = peer.receiver()
            await handler.until_received(1)
            return [Message.decode(payload) for payload in handler.received]

    (message,) = asyncio.run(run())
    assert (message.body, message.application_properties) == (Data((b"aabbcc",)), {"a": "b"})


def test_body_in_more_sections_than_are_noted_comes_back_whole(tmp_path: Path) -> None:
    sections = tuple(b"%d" % number for number in range(40_000))

    async def run() -> list[Body]:
        async with local_hub(tmp_path) as hub, endpoint(hub) as (_, port), client(port) as peer:
            await send_payload(peer, Message(Data(sections)).encode(), 0)
            return await received_bodies(peer, 1)

    assert asyncio.run(run()) == [Data((b"".join(sections),))]
