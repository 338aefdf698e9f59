"""What AMQP peers say to each other: the performatives, the terminuses and outcomes in them, and SASL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, TypeAlias

from hubline.amqp.codec.composites import (
    BINARY,
    BOOLEAN,
    MAP,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Composite,
    Registry,
    composite,
)
from hubline.amqp.codec.types import Described

Fields: TypeAlias = Mapping[object, object]

UINT_MAX: Final = 0xFFFF_FFFF
USHORT_MAX: Final = 0xFFFF

# Roles in attach and disposition.
SENDER: Final = False
RECEIVER: Final = True

# Settle modes of the sending and of the receiving side.
SEND_UNSETTLED: Final = 0
SEND_SETTLED: Final = 1
SEND_MIXED: Final = 2
RECEIVE_FIRST: Final = 0
RECEIVE_SECOND: Final = 1

# Outcomes of SASL.
SASL_OK: Final = 0
SASL_REFUSED: Final = 1


@dataclass(frozen=True, slots=True)
class Error(Composite):
    """Why a link, session or connection ends, or a delivery is rejected."""

    CODE: ClassVar[int] = 0x1D
    NAME: ClassVar[str] = "amqp:error:list"
    condition: Annotated[str, SYMBOL]
    description: Annotated[str | None, STRING] = None
    info: Annotated[Fields | None, MAP] = None


ERROR: Final = composite(Registry(Error))


@dataclass(frozen=True, slots=True)
class Received(Composite):
    CODE: ClassVar[int] = 0x23
    NAME: ClassVar[str] = "amqp:received:list"
    section_number: Annotated[int, UINT]
    section_offset: Annotated[int, ULONG]


@dataclass(frozen=True, slots=True)
class Accepted(Composite):
    CODE: ClassVar[int] = 0x24
    NAME: ClassVar[str] = "amqp:accepted:list"


@dataclass(frozen=True, slots=True)
class Rejected(Composite):
    CODE: ClassVar[int] = 0x25
    NAME: ClassVar[str] = "amqp:rejected:list"
    error: Annotated[Error | None, ERROR] = None


@dataclass(frozen=True, slots=True)
class Released(Composite):
    CODE: ClassVar[int] = 0x26
    NAME: ClassVar[str] = "amqp:released:list"


@dataclass(frozen=True, slots=True)
class Modified(Composite):
    CODE: ClassVar[int] = 0x27
    NAME: ClassVar[str] = "amqp:modified:list"
    delivery_failed: Annotated[bool, BOOLEAN] = False
    undeliverable_here: Annotated[bool, BOOLEAN] = False
    message_annotations: Annotated[Fields | None, MAP] = None


DeliveryState: TypeAlias = Received | Accepted | Rejected | Released | Modified | Described
STATE: Final = composite(Registry(Received, Accepted, Rejected, Released, Modified))


@dataclass(frozen=True, slots=True)
class Source(Composite):
    """Where messages of a link come from. ``filter`` maps symbols to described values."""

    CODE: ClassVar[int] = 0x28
    NAME: ClassVar[str] = "amqp:source:list"
    address: Annotated[str | None, STRING] = None
    durable: Annotated[int, UINT] = 0
    expiry_policy: Annotated[str, SYMBOL] = "session-end"
    timeout: Annotated[int, UINT] = 0
    dynamic: Annotated[bool, BOOLEAN] = False
    dynamic_node_properties: Annotated[Fields | None, MAP] = None
    distribution_mode: Annotated[str | None, SYMBOL] = None
    filter: Annotated[Fields | None, MAP] = None
    default_outcome: Annotated[DeliveryState | None, STATE] = None
    outcomes: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None


@dataclass(frozen=True, slots=True)
class Target(Composite):
    """Where messages of a link go."""

    CODE: ClassVar[int] = 0x29
    NAME: ClassVar[str] = "amqp:target:list"
    address: Annotated[str | None, STRING] = None
    durable: Annotated[int, UINT] = 0
    expiry_policy: Annotated[str, SYMBOL] = "session-end"
    timeout: Annotated[int, UINT] = 0
    dynamic: Annotated[bool, BOOLEAN] = False
    dynamic_node_properties: Annotated[Fields | None, MAP] = None
    capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None


SOURCE: Final = composite(Registry(Source))
TARGET: Final = composite(Registry(Target))


@dataclass(frozen=True, slots=True)
class Open(Composite):
    CODE: ClassVar[int] = 0x10
    NAME: ClassVar[str] = "amqp:open:list"
    container_id: Annotated[str, STRING]
    hostname: Annotated[str | None, STRING] = None
    max_frame_size: Annotated[int, UINT] = UINT_MAX
    channel_max: Annotated[int, USHORT] = USHORT_MAX
    idle_time_out: Annotated[int | None, UINT] = None
    outgoing_locales: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    incoming_locales: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    offered_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    desired_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    properties: Annotated[Fields | None, MAP] = None


@dataclass(frozen=True, slots=True)
class Begin(Composite):
    CODE: ClassVar[int] = 0x11
    NAME: ClassVar[str] = "amqp:begin:list"
    remote_channel: Annotated[int | None, USHORT] = None
    next_outgoing_id: Annotated[int, UINT] = 0
    incoming_window: Annotated[int, UINT] = 0
    outgoing_window: Annotated[int, UINT] = 0
    handle_max: Annotated[int, UINT] = UINT_MAX
    offered_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    desired_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    properties: Annotated[Fields | None, MAP] = None


@dataclass(frozen=True, slots=True)
class Attach(Composite):
    CODE: ClassVar[int] = 0x12
    NAME: ClassVar[str] = "amqp:attach:list"
    name: Annotated[str, STRING]
    handle: Annotated[int, UINT]
    role: Annotated[bool, BOOLEAN]
    snd_settle_mode: Annotated[int, UBYTE] = SEND_MIXED
    rcv_settle_mode: Annotated[int, UBYTE] = RECEIVE_FIRST
    source: Annotated[Source | Described | None, SOURCE] = None
    target: Annotated[Target | Described | None, TARGET] = None
    unsettled: Annotated[Fields | None, MAP] = None
    incomplete_unsettled: Annotated[bool, BOOLEAN] = False
    initial_delivery_count: Annotated[int | None, UINT] = None
    max_message_size: Annotated[int | None, ULONG] = None
    offered_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    desired_capabilities: Annotated[tuple[str, ...] | None, SYMBOLS] = None
    properties: Annotated[Fields | None, MAP] = None


@dataclass(frozen=True, slots=True)
class Flow(Composite):
    CODE: ClassVar[int] = 0x13
    NAME: ClassVar[str] = "amqp:flow:list"
    next_incoming_id: Annotated[int | None, UINT] = None
    incoming_window: Annotated[int, UINT] = 0
    next_outgoing_id: Annotated[int, UINT] = 0
    outgoing_window: Annotated[int, UINT] = 0
    handle: Annotated[int | None, UINT] = None
    delivery_count: Annotated[int | None, UINT] = None
    link_credit: Annotated[int | None, UINT] = None
    available: Annotated[int | None, UINT] = None
    drain: Annotated[bool, BOOLEAN] = False
    echo: Annotated[bool, BOOLEAN] = False
    properties: Annotated[Fields | None, MAP] = None


@dataclass(frozen=True, slots=True)
class Transfer(Composite):
    """A delivery, or a part of one; its bytes follow in the same frame."""

    CODE: ClassVar[int] = 0x14
    NAME: ClassVar[str] = "amqp:transfer:list"
    handle: Annotated[int, UINT]
    delivery_id: Annotated[int | None, UINT] = None
    delivery_tag: Annotated[bytes | None, BINARY] = None
    message_format: Annotated[int | None, UINT] = None
    settled: Annotated[bool | None, BOOLEAN] = None
    more: Annotated[bool, BOOLEAN] = False
    rcv_settle_mode: Annotated[int | None, UBYTE] = None
    state: Annotated[DeliveryState | None, STATE] = None
    resume: Annotated[bool, BOOLEAN] = False
    aborted: Annotated[bool, BOOLEAN] = False
    batchable: Annotated[bool, BOOLEAN] = False


@dataclass(frozen=True, slots=True)
class Disposition(Composite):
    CODE: ClassVar[int] = 0x15
    NAME: ClassVar[str] = "amqp:disposition:list"
    role: Annotated[bool, BOOLEAN]
    first: Annotated[int, UINT]
    last: Annotated[int | None, UINT] = None
    settled: Annotated[bool, BOOLEAN] = False
    state: Annotated[DeliveryState | None, STATE] = None
    batchable: Annotated[bool, BOOLEAN] = False


@dataclass(frozen=True, slots=True)
class Detach(Composite):
    CODE: ClassVar[int] = 0x16
    NAME: ClassVar[str] = "amqp:detach:list"
    handle: Annotated[int, UINT]
    closed: Annotated[bool, BOOLEAN] = False
    error: Annotated[Error | None, ERROR] = None


@dataclass(frozen=True, slots=True)
class End(Composite):
    CODE: ClassVar[int] = 0x17
    NAME: ClassVar[str] = "amqp:end:list"
    error: Annotated[Error | None, ERROR] = None


@dataclass(frozen=True, slots=True)
class Close(Composite):
    CODE: ClassVar[int] = 0x18
    NAME: ClassVar[str] = "amqp:close:list"
    error: Annotated[Error | None, ERROR] = None


@dataclass(frozen=True, slots=True)
class SaslMechanisms(Composite):
    CODE: ClassVar[int] = 0x40
    NAME: ClassVar[str] = "amqp:sasl-mechanisms:list"
    sasl_server_mechanisms: Annotated[tuple[str, ...], SYMBOLS]


@dataclass(frozen=True, slots=True)
class SaslInit(Composite):
    CODE: ClassVar[int] = 0x41
    NAME: ClassVar[str] = "amqp:sasl-init:list"
    mechanism: Annotated[str, SYMBOL]
    initial_response: Annotated[bytes | None, BINARY] = None
    hostname: Annotated[str | None, STRING] = None


@dataclass(frozen=True, slots=True)
class SaslChallenge(Composite):
    CODE: ClassVar[int] = 0x42
    NAME: ClassVar[str] = "amqp:sasl-challenge:list"
    challenge: Annotated[bytes, BINARY]


@dataclass(frozen=True, slots=True)
class SaslResponse(Composite):
    CODE: ClassVar[int] = 0x43
    NAME: ClassVar[str] = "amqp:sasl-response:list"
    response: Annotated[bytes, BINARY]


@dataclass(frozen=True, slots=True)
class SaslOutcome(Composite):
    CODE: ClassVar[int] = 0x44
    NAME: ClassVar[str] = "amqp:sasl-outcome:list"
    code: Annotated[int, UBYTE]
    additional_data: Annotated[bytes | None, BINARY] = None


Performative: TypeAlias = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
SaslPerformative: TypeAlias = SaslMechanisms | SaslInit | SaslChallenge | SaslResponse | SaslOutcome

PERFORMATIVES: Final = Registry(Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close)
SASL_PERFORMATIVES: Final = Registry(SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome)
