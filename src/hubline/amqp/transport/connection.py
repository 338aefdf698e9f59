"""One AMQP 1.0 connection over one transport: the engine of both the client and the emulator.

    connection = Connection(options, handshake=ClientHandshake(host), handler=handler)
    await loop.create_connection(lambda: connection, host, port)
    await connection.opened()
    link = connection.begin().attach_receiver("name", source=..., target=..., handler=link_handler)
    await link.attached()
    link.grant(1000)                    # link_handler.on_deliveries gets what comes, in bulk
    ...
    connection.close()
    await connection.closed()

The transport reads straight into the frame reader's buffer. Credit, the sizes of frames and messages, and
``input_limits`` bound what the peer can send; ``is_writable``, which every sender waits for, bounds what is sent. The
connection closes with an error when the peer breaks the protocol, and when it is silent for too long.

Here is what the connection itself says and hears: how it opens and closes, and what the transport calls. The rest is
in modules of its own:

    handshake        what comes before the open
    frames           frames from bytes, and bytes from frames
    channels         which session a frame is for; session: which link
    transfer_window  how many transfers a session's peer takes
    input_limits     how much is held of what the peer has sent
    output_buffer    what waits to be written
    heartbeat        keeping a quiet connection open, and noticing that the peer is gone
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from hubline.amqp import conditions
from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import Begin, Close, End, Error, Fields, Open
from hubline.amqp.transport.channels import CHANNEL_MAX, Channels
from hubline.amqp.transport.errors import AmqpClosed, AmqpDecodeError, AmqpFrameError, AmqpNotAllowed
from hubline.amqp.transport.frames import AMQP_HEADER, FRAME_BYTES_MIN_MAX, Frame, FrameReader, encode_frame
from hubline.amqp.transport.handshake import Handshake
from hubline.amqp.transport.heartbeat import Heartbeat
from hubline.amqp.transport.input_limits import InputLimits
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.output_buffer import OutputBuffer
from hubline.amqp.transport.session import Session

# As the service has it: a larger one gains nothing, and a message of 1 MiB still takes few.
FRAME_BYTES_MAX: Final = 64 * 1024

# A peer that has not said who it is by then is not going to.
OPEN_SECONDS: Final = 30.0

# A peer that has not confirmed a close by then, or not read what is left for it, is cut off.
CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """What this side announces in its open, and how much it holds for its peer."""

    container_id: str
    hostname: str | None = None
    idle_seconds: float = 60.0
    """The peer is taken for dead when nothing came for this long; half of it is announced to the peer."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    held_bytes_max: int = 16 * 1024 * 1024
    """Reading pauses while handlers hold more than this: see InputLimits."""
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
        self._output = OutputBuffer(self._loop, on_overflow=self._cut_off)
        self._heartbeat = Heartbeat(
            self._loop, self._output, idle_seconds=options.idle_seconds, on_silence=self._end_silence
        )
        self.input_limits = InputLimits(
            self._heartbeat, held_bytes_max=options.held_bytes_max, on_overflow=self._end_parts
        )
        self._channels = Channels(self)
        self._is_open_sent = False
        self._is_close_sent = False
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
        return self._output.has_room

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
        session = self._channels.open()
        session.send_begin(None)
        return session

    def close(self, error: Error | None = None) -> None:
        """Closes the connection. Links and sessions are over at once; the transport goes once the peer has answered."""
        if self.is_over:
            return
        if self.error is None:
            self.error = error
        if self._is_open_sent:
            self.send(0, Close(error))
        self._is_close_sent = True
        self._channels.close(error)
        self._output.flush()
        self._set_deadline(CLOSE_SECONDS)
        if not self._is_open_sent:
            self._close_transport()

    def abort(self) -> None:
        """Drops the transport at once."""
        if self._transport is not None:
            self._transport.abort()

    # For sessions and links.

    def send(self, channel: int, performative: Composite) -> None:
        """Sends a frame, together with others of the same moment."""
        if self.is_over:
            return
        frame = encode_frame(channel, performative)
        if self.remote is not None and len(frame) > self.frame_bytes_max:
            self._fail(conditions.FRAME_SIZE_TOO_SMALL, f"an answer takes {len(frame):,} bytes: announce larger frames")
            return
        self._output.add(frame)

    def write(self, *frames: Bytes) -> None:
        """Sends frames that are encoded already, in pieces, after all that was sent before."""
        if not self.is_over:
            self._output.extend(frames)

    def take_link(self, link: Link) -> None:
        self._handler.on_link(link)

    # For the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self.use_transport(transport)
        if self._is_close_sent:
            self._close_transport()
            return
        self._set_deadline(OPEN_SECONDS)
        self._output.write(self.handshake.start())

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Uses another transport from now on, such as a WebSocket on the same stream; before anything was said."""
        self._transport = transport
        self._output.connect(transport)
        self.input_limits.connect(transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._reader.writable()

    def buffer_updated(self, bytes_count: int) -> None:
        self._heartbeat.heard()
        self._reader.filled(bytes_count)
        try:
            self._take_all()
        except AmqpFrameError as error:
            self._fail(conditions.FRAMING_ERROR, str(error))
        except AmqpDecodeError as error:
            self._fail(conditions.DECODE_ERROR, str(error))
        except AmqpNotAllowed as error:
            self._fail(conditions.NOT_ALLOWED, str(error))
        except Exception as error:  # noqa: BLE001 (a handler's bug ends this connection, and no other)
            self._fail(conditions.INTERNAL_ERROR, "the connection cannot continue for a reason of this side")
            self._loop.call_exception_handler(
                {"message": f"a handler of the connection of {self.peer} failed", "exception": error, "protocol": self}
            )
        self._output.flush()

    def eof_received(self) -> bool:
        return False  # the transport closes itself, and connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self._heartbeat.stop()
        self.input_limits.connect(None)
        self._cancel_deadline()
        if self.error is None and not self._is_close_sent:
            self.error = Error(conditions.CONNECTION_FORCED, f"the connection was lost: {exc or 'the peer closed it'}")
        self._closed.set_result(None)
        self._channels.close(self.error)
        if not self._opened.done():
            self._opened.set_exception(AmqpClosed("the connection", self.error))
        self._handler.on_closed(self, self.error)

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        if self._output.resume():
            self._channels.wake()

    # Taking what came.

    def _take_all(self) -> None:
        if not self._is_open_sent and not self._handshake():
            return
        for item in self._reader.take_frames():
            if self._closed.done():
                return
            if isinstance(item, Frame):
                self._take_frame(item)
            elif not self._is_close_sent and (session := self._channels.find(item.channel)):
                session.take_deliveries(item)

    def _handshake(self) -> bool:
        """Whether that is done, and frames follow."""
        while (answer := self.handshake.advance(self._reader)) is not None:
            self._output.write(answer)
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
                raise AmqpNotAllowed("open has to come first")
            case Begin() as begin:
                self._channels.take_begin(frame.channel, begin)
            case End() as end:
                self._channels.take_end(frame.channel, end)
            case performative:
                if session := self._channels.find(frame.channel):
                    session.take(performative, frame.payload)

    def _take_open(self, remote: Open) -> None:
        if self.remote is not None:
            raise AmqpNotAllowed("open came twice")
        self.remote = remote
        self._cancel_deadline()
        self._heartbeat.start(remote.idle_time_out)
        self._handler.on_open(self, remote)
        if not self._opened.done():
            self._opened.set_result(remote)

    def _take_close(self, error: Error | None) -> None:
        if self.error is None:
            self.error = error
        if not self._is_close_sent:
            self.send(0, Close())
            self._output.flush()
            self._is_close_sent = True
            self._channels.close(error)
        self._close_transport()

    # Sending.

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
            self._output.write(AMQP_HEADER)  # AMQP's way to tell a stranger what is spoken here
        self.close(Error(condition, description))
        self._close_transport()

    def _cut_off(self) -> None:
        """The peer asks for more than it reads."""
        self.error = Error(conditions.RESOURCE_LIMIT_EXCEEDED, "the peer does not read what it asks for")
        self.abort()

    def _end_silence(self) -> None:
        self._fail(conditions.RESOURCE_LIMIT_EXCEEDED, f"nothing was heard for {self.options.idle_seconds:g} seconds")

    def _end_parts(self) -> None:
        self._fail(conditions.RESOURCE_LIMIT_EXCEEDED, "too much is sent of messages that are not complete")

    def _close_transport(self) -> None:
        """Lets the transport go once everything is written."""
        if self._transport is not None:
            self._set_deadline(CLOSE_SECONDS)
            self._output.close()

    # Time.

    def _set_deadline(self, seconds: float) -> None:
        """The transport is dropped then, unless the deadline is moved or cancelled."""
        self._cancel_deadline()
        self._deadline = self._loop.call_later(seconds, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
