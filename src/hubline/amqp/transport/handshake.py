"""How a connection begins: protocol headers and SASL, until both sides send AMQP frames. No I/O here.

A side is made, says its :meth:`~Handshake.start`, and answers what the peer says with :meth:`~Handshake.advance` until
``is_done``. What a peer may not say raises AmqpFrameError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.performatives import (
    SASL_OK,
    SASL_REFUSED,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
)
from hubline.amqp.transport.errors import AmqpFrameError
from hubline.amqp.transport.frames import AMQP_HEADER, SASL_HEADER, FrameReader, encode_frame

# What Event Hubs offers. The first is for clients that authorize themselves over $cbs, as all of these may.
MECHANISMS: Final = ("MSSBCBS", "ANONYMOUS", "EXTERNAL", "PLAIN")
ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"

Expected = TypeVar("Expected", bound=Composite)


class Handshake(Protocol):
    """One side of the beginning of a connection."""

    is_done: bool

    def start(self) -> bytes:
        """What to say unasked."""
        ...

    def advance(self, reader: FrameReader) -> bytes | None:
        """What to answer to the next thing that the peer said; None if it is not all there yet."""
        ...


class ClientHandshake:
    """The side that connects: ANONYMOUS, since authorization goes over $cbs."""

    def __init__(self, hostname: str | None) -> None:
        self.is_done = False
        self._hostname = hostname
        self._step: Callable[[FrameReader], bytes | None] = self._take_sasl_header

    def start(self) -> bytes:
        return SASL_HEADER

    def advance(self, reader: FrameReader) -> bytes | None:
        return self._step(reader)

    def _take_sasl_header(self, reader: FrameReader) -> bytes | None:
        header = reader.take_header()
        if header is None:
            return None
        if header != SASL_HEADER:
            raise AmqpFrameError(f"the peer wants no SASL: it answered with the header {header!r}")
        self._step = self._take_mechanisms
        return b""

    def _take_mechanisms(self, reader: FrameReader) -> bytes | None:
        performative = _sasl(reader, SaslMechanisms)
        if performative is None:
            return None
        if ANONYMOUS not in performative.sasl_server_mechanisms:
            offered = ", ".join(performative.sasl_server_mechanisms)
            raise AmqpFrameError(f"the peer does not offer {ANONYMOUS}, only: {offered[:200]}")
        self._step = self._take_outcome
        return encode_frame(0, SaslInit(ANONYMOUS, b"", self._hostname))

    def _take_outcome(self, reader: FrameReader) -> bytes | None:
        performative = _sasl(reader, SaslOutcome)
        if performative is None:
            return None
        if performative.code != SASL_OK:
            raise AmqpFrameError(f"the peer refused {ANONYMOUS} with the code {performative.code}")
        self._step = self._take_amqp_header
        return AMQP_HEADER

    def _take_amqp_header(self, reader: FrameReader) -> bytes | None:
        header = reader.take_header()
        if header is None:
            return None
        if header != AMQP_HEADER:
            raise AmqpFrameError(f"the peer does not speak AMQP 1.0: it answered with the header {header!r}")
        self.is_done = True
        return b""


class ServerHandshake:
    """The side that is connected to.

    ``is_password_right`` is asked about name and password of a peer that chose PLAIN. Peers that chose another
    mechanism, or none, are let in: they authorize themselves over $cbs.
    """

    def __init__(self, is_password_right: Callable[[str, str], bool]) -> None:
        self.is_done = False
        self._is_password_right = is_password_right
        self._is_after_sasl = False
        self._step: Callable[[FrameReader], bytes | None] = self._take_header

    def start(self) -> bytes:
        return b""

    def advance(self, reader: FrameReader) -> bytes | None:
        return self._step(reader)

    def _take_header(self, reader: FrameReader) -> bytes | None:
        header = reader.take_header()
        if header is None:
            return None
        if header == AMQP_HEADER:
            self.is_done = True
            return AMQP_HEADER
        if header != SASL_HEADER or self._is_after_sasl:
            raise AmqpFrameError(f"AMQP 1.0 is spoken here, with or without SASL: the header {header!r} is neither")
        self._step = self._take_init
        return SASL_HEADER + encode_frame(0, SaslMechanisms(MECHANISMS))

    def _take_init(self, reader: FrameReader) -> bytes | None:
        performative = _sasl(reader, SaslInit)
        if performative is None:
            return None
        self._is_after_sasl = True
        self._step = self._take_header if self._lets_in(performative) else self._take_nothing
        code = SASL_REFUSED if self._step == self._take_nothing else SASL_OK
        return encode_frame(0, SaslOutcome(code))

    def _take_nothing(self, _reader: FrameReader) -> bytes | None:
        raise AmqpFrameError("the peer was not let in")

    def _lets_in(self, init: SaslInit) -> bool:
        if init.mechanism != PLAIN:
            return init.mechanism in MECHANISMS
        _, name, password = (*(init.initial_response or b"").split(b"\0"), b"", b"", b"")[:3]
        return self._is_password_right(name.decode("utf-8", "replace"), password.decode("utf-8", "replace"))


def _sasl(reader: FrameReader, expected: type[Expected]) -> Expected | None:
    frame = reader.take_frame()
    if frame is None:
        return None
    if not isinstance(frame.performative, expected):
        raise AmqpFrameError(f"{expected.NAME} is expected, not {type(frame.performative).__name__}")
    return frame.performative
