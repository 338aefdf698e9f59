"""One AMQP 1.0 connection over one transport: the engine of both the client and the endpoint.

    connection = Connection(options, handshake=ClientHandshake(host), handler=handler)
    await loop.create_connection(lambda: connection, host, port)
    await connection.opened()
    link = connection.begin().attach("name", role=RECEIVER, source=..., target=..., handler=link_handler)
    await link.attached()
    link.grant(1000)                    # link_handler.on_deliveries gets what comes, in bulk
    ...
    connection.close()
    await connection.closed()

The transport reads straight into the frame reader's buffer. What the peer sends is bounded by credit, by the size of
frames and messages, and by ``hold``; what is sent, by ``is_writable``, which every sender waits for. A peer that says
what it may not is told so and closed; one that is silent for too long is closed, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Protocol

from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import Begin, Close, End, Error, Fields, Open
from hubline.amqp.transport.errors import AmqpDecodeError, AmqpFrameError
from hubline.amqp.transport.frames import AMQP_HEADER, FRAME_BYTES_MIN_MAX, HEARTBEAT, Frame, FrameReader, encode_frame
from hubline.amqp.transport.handshake import Handshake
from hubline.amqp.transport.link import CONNECTION_FORCED, RESOURCE_LIMIT_EXCEEDED, AmqpClosed, Link
from hubline.amqp.transport.session import NOT_ALLOWED, Session

DECODE_ERROR: Final = "amqp:decode-error"
FRAMING_ERROR: Final = "amqp:connection:framing-error"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
INTERNAL_ERROR: Final = "amqp:internal-error"

# As the service has it: a larger one gains nothing, and a message of 1 MiB still takes few.
FRAME_BYTES_MAX: Final = 64 * 1024

# The most sessions a connection may have: the SDKs use one per link, and one connection for at most a whole hub.
CHANNEL_MAX: Final = 2047

# A peer that has not said who it is by then is not going to.
OPEN_SECONDS: Final = 30.0

# A peer that has not confirmed a close by then, or not read what is left for it, is cut off.
CLOSE_SECONDS: Final = 5.0

# Senders wait while more than this is not written: enough to keep a fast peer busy.
WRITE_BYTES_HIGH: Final = 1024 * 1024

# What the transport gets at once. It copies what its socket does not take, and moves it about; so it gets little.
WRITE_PIECE_BYTES: Final = 256 * 1024

# What is said at once is put together, but for pieces as large as this: they go by themselves, and are not copied.
LARGE_BYTES_MIN: Final = 64 * 1024

# Answers that a peer asks for and does not read: beyond this it is cut off.
WRITE_BYTES_MAX: Final = 16 * 1024 * 1024

# Messages that have begun and not ended, of all links together.
PARTS_BYTES_MAX: Final = 64 * 1024 * 1024

# No peer needs to hear of us more often, whatever it says.
HEARTBEAT_SECONDS_MIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What this side announces in its open, and how much it holds for its peer."""

    container_id: str
    hostname: str | None = None
    idle_seconds: float = 60.0
    """The peer is taken for dead when nothing came for so long; it is told half of it."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    held_bytes_max: int = 16 * 1024 * 1024
    """Reading pauses while handlers hold more than this."""
    properties: Fields | None = None


class ConnectionHandler(Protocol):
    """What happens on a connection beside its links. Calls must not block."""

    def on_open(self, connection: Connection, remote: Open) -> None:
        """The peer said who it is. Called at most once."""
        ...

    def on_link(self, link: Link) -> None:
        """The peer asks for a link: ``accept`` or ``refuse`` it, now or later. ``link.remote`` is what it asks."""
        ...

    def on_closed(self, connection: Connection, error: Error | None) -> None:
        """The connection is over. Called once, if it was ever made, after ``on_detached`` of all its links."""
        ...


class Connection(asyncio.BufferedProtocol):
    """See the module. Used from one event loop."""

    def __init__(self, options: ConnectionOptions, *, handshake: Handshake, handler: ConnectionHandler) -> None:
        self.options = options
        self.handshake = handshake
        self.remote: Open | None = None
        """What the peer said in its open."""
        self.error: Error | None = None
        """Why the connection is over, if it is."""
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(frame_bytes_max=options.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._pending: list[Bytes] = []
        self._is_flush_scheduled = False
        self._outgoing: deque[memoryview] = deque()
        self._outgoing_bytes = 0
        self._is_transport_full = False
        self._is_closing_transport = False
        self._sessions: dict[int, Session] = {}
        self._by_remote_channel: dict[int, Session] = {}
        self._ended_channels: set[int] = set()
        self._is_open_sent = False
        self._is_close_sent = False
        self._held_bytes = 0
        self._parts_bytes = 0
        self._received_at = self._sent_at = self._loop.time()
        self._heartbeat_seconds: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._opened: asyncio.Future[Open] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._opened.add_done_callback(lambda future: future.cancelled() or future.exception())

    # For who uses the connection.

    async def opened(self) -> Open:
        """Waits for the peer's open. Raises AmqpClosed."""
        return await asyncio.shield(self._opened)

    async def closed(self) -> None:
        """Waits until the transport is gone."""
        await asyncio.shield(self._closed)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be said: closing, closed or lost."""
        return self._is_close_sent or self._closed.done()

    @property
    def is_writable(self) -> bool:
        """Whether there is room for more; senders wait for it."""
        return self._outgoing_bytes < WRITE_BYTES_HIGH

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the peer takes."""
        return FRAME_BYTES_MIN_MAX if self.remote is None else max(self.remote.max_frame_size, FRAME_BYTES_MIN_MAX)

    @property
    def peer(self) -> str:
        """Where the peer is, for messages and logs."""
        address = self._transport.get_extra_info("peername") if self._transport else None
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"

    def begin(self) -> Session:
        """Starts a session. It may be used at once."""
        session = self._new_session()
        session.send_begin(None)
        return session

    def close(self, error: Error | None = None) -> None:
        """Says goodbye. Links and sessions are over at once; the transport goes once the peer has answered."""
        if self.is_over:
            return
        if self.error is None:
            self.error = error
        if self._is_open_sent:
            self.send(0, Close(error))
        self._is_close_sent = True
        self._end_sessions(error)
        self._flush()
        self._set_deadline(CLOSE_SECONDS)
        if not self._is_open_sent:
            self._close_transport()

    def abort(self) -> None:
        """Drops the transport at once."""
        if self._transport is not None:
            self._transport.abort()

    def hold(self, bytes_count: int) -> None:
        """Counts what a handler keeps of the peer's; beyond a bound nothing more is read."""
        was_reading = self._is_reading
        self._held_bytes += bytes_count
        if was_reading and not self._is_reading and self._transport is not None:
            self._transport.pause_reading()

    def release(self, bytes_count: int) -> None:
        """Gives back what :meth:`hold` counted."""
        was_reading = self._is_reading
        self._held_bytes -= bytes_count
        if not was_reading and self._is_reading and self._transport is not None and not self._closed.done():
            self._received_at = self._loop.time()  # the peer could not be heard meanwhile
            self._transport.resume_reading()

    # For sessions and links.

    def send(self, channel: int, performative: Composite) -> None:
        """Sends a frame, together with others of the same moment."""
        if self.is_over:
            return
        frame = encode_frame(channel, performative)
        if self.remote is not None and len(frame) > self.frame_bytes_max:
            self._fail(FRAME_SIZE_TOO_SMALL, f"an answer takes {len(frame):,} bytes: announce larger frames")
            return
        self._pending.append(frame)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write(self, *frames: Bytes) -> None:
        """Sends frames that are encoded already, in pieces, after all that was sent before."""
        if not self.is_over:
            self._pending.extend(frames)
            self._flush()

    def take_link(self, link: Link) -> None:
        self._handler.on_link(link)

    def count_parts(self, bytes_count: int) -> None:
        """Counts what incomplete messages take."""
        self._parts_bytes += bytes_count
        if self._parts_bytes > PARTS_BYTES_MAX:
            self._fail(RESOURCE_LIMIT_EXCEEDED, "too much is sent of messages that are not complete")

    # For the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        # Full as soon as it keeps anything. With 0, that of TLS would take itself for full when it is empty.
        transport.set_write_buffer_limits(high=1, low=0)
        if self._is_close_sent:
            self._close_transport()
            return
        self._set_deadline(OPEN_SECONDS)
        self._write(self.handshake.start())

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._reader.writable()

    def buffer_updated(self, bytes_count: int) -> None:
        self._received_at = self._loop.time()
        self._reader.filled(bytes_count)
        try:
            self._take_all()
        except AmqpFrameError as error:
            self._fail(FRAMING_ERROR, str(error))
        except AmqpDecodeError as error:
            self._fail(DECODE_ERROR, str(error))
        except Exception as error:  # noqa: BLE001 (a handler's bug ends this connection, and no other)
            self._fail(INTERNAL_ERROR, "the connection cannot go on for a reason of this side")
            self._loop.call_exception_handler(
                {"message": f"a handler of the connection of {self.peer} failed", "exception": error, "protocol": self}
            )
        self._flush()

    def eof_received(self) -> bool:
        return False  # the transport closes itself, and connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        if self.error is None and not self._is_close_sent:
            self.error = Error(CONNECTION_FORCED, f"the connection was lost: {exc or 'the peer closed it'}")
        self._closed.set_result(None)
        self._end_sessions(self.error)
        if not self._opened.done():
            self._opened.set_exception(AmqpClosed("the connection", self.error))
        self._handler.on_closed(self, self.error)

    def pause_writing(self) -> None:
        self._is_transport_full = True

    def resume_writing(self) -> None:
        self._is_transport_full = False
        was_writable = self.is_writable
        self._write_outgoing()
        if self.is_writable and not was_writable:
            for session in list(self._sessions.values()):
                session.wake()

    # Taking what came.

    def _take_all(self) -> None:
        if not self._is_open_sent and not self._handshake():
            return
        for item in self._reader.take_frames():
            if self._closed.done():
                return
            if isinstance(item, Frame):
                self._take_frame(item)
            elif session := self._session(item.channel):
                session.take_deliveries(item)

    def _handshake(self) -> bool:
        """Whether that is done, and frames follow."""
        while (answer := self.handshake.advance(self._reader)) is not None:
            self._write(answer)
            if self.handshake.is_done:
                self._send_open()
                return True
        return False

    def _take_frame(self, frame: Frame) -> None:
        match frame.performative:
            case None:
                pass
            case Close(error=error):
                self._take_close(error)
            case _ if self._is_close_sent:
                pass  # what the peer said before it heard of our close
            case Open() as remote:
                self._take_open(remote)
            case _ if self.remote is None:
                self._fail(NOT_ALLOWED, "open has to come first")
            case Begin() as begin:
                self._take_begin(frame.channel, begin)
            case End() as end:
                if session := self._session(frame.channel):
                    self._by_remote_channel.pop(frame.channel)
                    self._ended_channels.add(frame.channel)
                    session.take_end(end)
                    self._sessions.pop(session.channel, None)
            case performative:
                if session := self._session(frame.channel):
                    session.take(performative, frame.payload)

    def _take_open(self, remote: Open) -> None:
        if self.remote is not None:
            self._fail(NOT_ALLOWED, "open came twice")
            return
        self.remote = remote
        if self._deadline is not None:
            self._deadline.cancel()
        if remote.idle_time_out:
            self._heartbeat_seconds = max(remote.idle_time_out / 1000 / 4, HEARTBEAT_SECONDS_MIN)
        self._watch()
        self._handler.on_open(self, remote)
        if not self._opened.done():
            self._opened.set_result(remote)

    def _take_begin(self, remote_channel: int, begin: Begin) -> None:
        if remote_channel in self._by_remote_channel:
            self._fail(NOT_ALLOWED, f"channel {remote_channel} is in use")
            return
        if begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None:
                self._fail(NOT_ALLOWED, f"a begin answers channel {begin.remote_channel}, which is not in use")
                return
        elif remote_channel > CHANNEL_MAX or len(self._sessions) > CHANNEL_MAX:
            self._fail(NOT_ALLOWED, f"a connection has at most {CHANNEL_MAX + 1} sessions")
            return
        else:
            session = self._new_session()
            session.send_begin(remote_channel)
        self._by_remote_channel[remote_channel] = session
        self._ended_channels.discard(remote_channel)
        session.take_begin(begin)

    def _take_close(self, error: Error | None) -> None:
        if self.error is None:
            self.error = error
        if not self._is_close_sent:
            self.send(0, Close())
            self._flush()
            self._is_close_sent = True
            self._end_sessions(error)
        self._close_transport()

    def _session(self, remote_channel: int) -> Session | None:
        """The session of a channel; None, and the connection fails, if there never was one."""
        session = self._by_remote_channel.get(remote_channel)
        # Some clients go on to detach links after they ended the session.
        if session is None and remote_channel not in self._ended_channels and not self._is_close_sent:
            self._fail(NOT_ALLOWED, f"channel {remote_channel} has no session")
        return session

    def _new_session(self) -> Session:
        channel = next(number for number in range(CHANNEL_MAX + 2) if number not in self._sessions)
        session = self._sessions[channel] = Session(self, channel)
        return session

    def _end_sessions(self, error: Error | None) -> None:
        sessions = list(self._sessions.values())
        self._sessions.clear()
        self._by_remote_channel.clear()
        for session in sessions:
            session.close(error)

    # Saying.

    def _send_open(self) -> None:
        self._is_open_sent = True
        self.send(
            0,
            Open(
                self.options.container_id,
                hostname=self.options.hostname,
                max_frame_size=self.options.frame_bytes_max,
                channel_max=CHANNEL_MAX,
                idle_time_out=int(self.options.idle_seconds * 1000 / 2),
                properties=self.options.properties,
            ),
        )

    def _fail(self, condition: str, description: str) -> None:
        """Closes the connection for what the peer did."""
        if self.is_over:
            return
        if not self._is_open_sent:
            self._write(AMQP_HEADER)  # AMQP's way to tell a stranger what is spoken here
        self.close(Error(condition, description))
        self._close_transport()

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        pending, self._pending = self._pending, []
        for is_large, pieces in groupby(pending, lambda data: len(data) >= LARGE_BYTES_MIN):
            for data in pieces if is_large else [b"".join(pieces)]:
                self._write(data)

    def _write(self, data: Bytes) -> None:
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._outgoing.append(memoryview(data))
        self._outgoing_bytes += len(data)
        self._sent_at = self._loop.time()
        self._write_outgoing()
        if self._outgoing_bytes > WRITE_BYTES_MAX:
            self.error = Error(RESOURCE_LIMIT_EXCEEDED, "the peer does not read what it asks for")
            self._transport.abort()

    def _write_outgoing(self) -> None:
        """Gives the transport what it takes without copying much."""
        assert self._transport is not None  # noqa: S101
        while self._outgoing and not self._is_transport_full:
            data = self._outgoing.popleft()
            if len(data) > WRITE_PIECE_BYTES:
                self._outgoing.appendleft(data[WRITE_PIECE_BYTES:])
                data = data[:WRITE_PIECE_BYTES]
            self._outgoing_bytes -= len(data)
            self._transport.write(data)
        if self._is_closing_transport and not self._outgoing:
            self._transport.close()

    def _close_transport(self) -> None:
        """Lets the transport go once everything is written."""
        if self._transport is not None:
            self._is_closing_transport = True
            self._set_deadline(CLOSE_SECONDS)
            self._write_outgoing()

    # Time.

    @property
    def _is_reading(self) -> bool:
        return self._held_bytes <= self.options.held_bytes_max

    def _set_deadline(self, seconds: float) -> None:
        """The transport is dropped then, unless the deadline is moved or cancelled."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self.abort)

    def _watch(self) -> None:
        """Says that we are alive, if nothing else did, and looks whether the peer is."""
        now = self._loop.time()
        if self._heartbeat_seconds is not None and now - self._sent_at >= self._heartbeat_seconds / 2:
            self._write(HEARTBEAT)
        if self._is_reading and now - self._received_at > self.options.idle_seconds:
            self._fail(RESOURCE_LIMIT_EXCEEDED, f"nothing was heard for {self.options.idle_seconds:g} seconds")
            return
        every_seconds = min(self.options.idle_seconds / 2, self._heartbeat_seconds or self.options.idle_seconds)
        self._timer = self._loop.call_later(every_seconds, self._watch)
