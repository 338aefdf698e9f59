"""The sessions of a connection, by our channels and by the peer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hubline.amqp.codec.performatives import Begin, End, Error
from hubline.amqp.transport.errors import AmqpNotAllowed
from hubline.amqp.transport.session import Session

if TYPE_CHECKING:
    from hubline.amqp.transport.connection import Connection

# The most sessions a connection may have: the SDKs use one per link, and one connection for at most a whole hub.
CHANNEL_MAX: Final = 2047


class Channels:
    """Which session a frame is for. What a peer may not do raises AmqpNotAllowed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sessions: dict[int, Session] = {}
        self._by_remote_channel: dict[int, Session] = {}
        self._ended: set[int] = set()

    def open(self) -> Session:
        """A session on a channel of ours that is free."""
        channel = next(number for number in range(CHANNEL_MAX + 2) if number not in self._sessions)
        session = self._sessions[channel] = Session(self._connection, channel)
        return session

    def find(self, remote_channel: int) -> Session | None:
        """The session that the peer has on its channel; None if it has ended."""
        session = self._by_remote_channel.get(remote_channel)
        # Some clients detach links even after they ended the session.
        if session is None and remote_channel not in self._ended:
            raise AmqpNotAllowed(f"channel {remote_channel} has no session")
        return session

    def take_begin(self, remote_channel: int, begin: Begin) -> None:
        """The peer's begin: of a session of its own, or the answer to ours."""
        if remote_channel in self._by_remote_channel:
            raise AmqpNotAllowed(f"channel {remote_channel} is in use")
        if begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None:
                raise AmqpNotAllowed(f"a begin answers channel {begin.remote_channel}, which is not in use")
        elif remote_channel > CHANNEL_MAX or len(self._sessions) > CHANNEL_MAX:
            raise AmqpNotAllowed(f"a connection has at most {CHANNEL_MAX + 1} sessions")
        else:
            session = self.open()
            session.send_begin(remote_channel)
        self._by_remote_channel[remote_channel] = session
        self._ended.discard(remote_channel)
        session.take_begin(begin)

    def take_end(self, remote_channel: int, end: End) -> None:
        if session := self.find(remote_channel):
            self._by_remote_channel.pop(remote_channel)
            self._ended.add(remote_channel)
            session.take_end(end)
            self._sessions.pop(session.channel, None)

    def wake(self) -> None:
        """Senders may send again."""
        for session in list(self._sessions.values()):
            session.wake()

    def close(self, error: Error | None) -> None:
        """The connection is over, and its sessions with it."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        self._by_remote_channel.clear()
        for session in sessions:
            session.close(error)
