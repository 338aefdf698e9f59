"""Small helpers for Arrow arrays: repeated text, and Python values as columns without silent changes.

Arrow cuts fractions off where a column has none, and times off dates; it makes numbers that are too large infinite; it
takes numbers for times, in whatever unit the column has; it leaves out what a struct does not name. `exact` refuses
all of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa


def repeated(text: str, count: int) -> pa.StringArray:
    """The same text so many times."""
    octets = text.encode()
    return pa.StringArray.from_buffers(count, equal_offsets(len(octets), count), pa.py_buffer(octets * count))


def equal_offsets(width: int, count: int) -> pa.Buffer:
    """Where each of so many texts of one width begins, and where the last one ends."""
    return pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(width))


def exact(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """The values as a column. Raises where one is no such value: ValueError where Arrow itself would not."""
    array = pa.array(values, kind)
    _require_kept(values, kind)
    return array


def _require_kept(values: Iterable[Any], kind: pa.DataType) -> None:
    """Looks at columns as a whole: what has the type already that the column gives back is not changed."""
    given = [value for value in values if value is not None]
    if not given:
        return
    if pa.types.is_map(kind):
        pairs = list(chain.from_iterable(each.items() if isinstance(each, Mapping) else each for each in given))
        _require_kept((key for key, _ in pairs), kind.key_type)
        _require_kept((value for _, value in pairs), kind.item_type)
    elif pa.types.is_struct(kind):
        records = [dict(zip(kind.names, each, strict=True) if isinstance(each, tuple) else each) for each in given]
        if unknown := set[Any]().union(*records) - set(kind.names):
            raise ValueError(f"{min(map(ascii, unknown))} is none of its fields")
        for field in kind:
            _require_kept((record.get(field.name) for record in records), field.type)
    elif pa.types.is_nested(kind):
        _require_kept(chain.from_iterable(given), kind.value_type)
    elif pa.types.is_float32(kind) or set(map(type, given)) != {type(pa.scalar(given[0], kind).as_py())}:
        for value, kept in zip(given, pa.array(given, kind).to_pylist(), strict=True):
            if not _is_same(value, kept):
                raise ValueError(f"{value!r} would become {kept!r}")


def _is_same(given: object, kept: object) -> bool:
    match kept:
        case float():  # which rounds, and that is all
            return kept == given or not (kept == 0 or math.isinf(kept))
        case str() | bytes():
            return True
        case datetime():
            return isinstance(given, datetime)  # of any zone, or none: that is UTC
        case date():
            return given == (datetime.combine(kept, time(), given.tzinfo) if isinstance(given, datetime) else kept)
    return kept == given
