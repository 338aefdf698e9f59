"""AMQP values as text, for columns that hold nothing else.

null                            no text (None)
string, symbol, char            themselves
boolean                         true, false
integers                        decimal digits
float, double                   the shortest digits that give the same number again; nan, inf, -inf
timestamp                       2026-01-31T12:00:00.000Z; the milliseconds where no calendar has the time
uuid                            8-4-4-4-12 hexadecimal digits
binary                          base64
decimal                         0x and its bytes in hexadecimal digits
list, array, map                JSON, in which the above are strings, except numbers, booleans and null
described                       as the value without its descriptor
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import numpy as np

from hubline.amqp.codec.types import SIMPLE_TYPES, Char, Decimal, Described, Float, Symbol, Timestamp

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMAL_BYTES: Final = (4, 8, 16)


def to_text(value: object) -> str | None:
    """The text of a value; None of null."""
    if value is None or type(value) is str:
        return value
    plain = _plain(value)
    if isinstance(plain, str):
        return str(plain)
    if isinstance(plain, float):
        return _float_text(plain)
    return _json(plain)


def from_text(text: str, type_name: str) -> object:
    """The value of a simple type whose text this is; None if there is none, or no such type."""
    kind = SIMPLE_TYPES.get(type_name)
    if kind is None:
        return None
    try:
        return _READERS.get(kind, kind)(text)
    except (ValueError, OverflowError):
        return None


def _read_boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text)


def _read_timestamp(text: str) -> Timestamp:
    if text.endswith("Z"):
        return Timestamp((datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1))
    return Timestamp(text)


def _read_decimal(text: str) -> Decimal | None:
    octets = bytes.fromhex(text.removeprefix("0x"))
    return Decimal(octets) if len(octets) in _DECIMAL_BYTES else None


def _read_symbol(text: str) -> Symbol | None:
    return Symbol(text) if text.isascii() else None


def _read_char(text: str) -> Char | None:
    return Char(text) if len(text) == 1 else None


_READERS: Final[Mapping[type, Callable[[str], object]]] = {
    bool: _read_boolean,
    Timestamp: _read_timestamp,
    Decimal: _read_decimal,
    Symbol: _read_symbol,
    Char: _read_char,
    bytes: lambda text: base64.b64decode(text, validate=True),
}


def to_json(value: object) -> str:
    """A value as JSON."""
    return _json(_plain(value))


def _json(plain: object) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: object) -> object:
    """What JSON can say of the value."""
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Decimal):
        return f"0x{value.hex()}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Timestamp):
        return timestamp_text(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float):
        return _plain_float(value)
    return value


def _key(key: object) -> str:
    text = to_text(key)
    return "null" if text is None else text


def _plain_float(value: float) -> float | str:
    if not math.isfinite(value):  # JSON has no such numbers
        return _float_text(value)
    return float(_float_text(value))


def _float_text(value: float) -> str:
    # Four bytes have shorter digits than the eight that Python makes of them.
    return str(np.float32(value)) if isinstance(value, Float) else repr(value)


def timestamp_text(milliseconds: int) -> str:
    """ISO 8601 in UTC; the number where no calendar has the time."""
    try:
        time = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(int(milliseconds))
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}Z"
