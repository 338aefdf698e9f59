"""Which partition a partition key belongs to: the hash of the Event Hubs service.

The service hashes the UTF-8 key with Bob Jenkins' lookup3 (``hashlittle2``, both seeds 0), folds the two 32-bit
results to a signed 16-bit number, and takes the magnitude of its remainder by the partition count. A key therefore
lands in the same partition here, in the service, and with the official .NET, Java and JavaScript SDKs. (The Python
SDK's buffered producer rounds the other way, and puts a key with a negative hash elsewhere.)

There is one implementation, over whole columns: a column of a thousand keys takes as many steps as its longest key
has 12-byte blocks. Arithmetic is on uint32 arrays, which wrap as the algorithm wants.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words: TypeAlias = npt.NDArray[np.uint32]

_BLOCK_BYTES: Final = 12
_SEED: Final = 0xDEADBEEF
_MIX_BITS: Final = (4, 6, 8, 16, 19, 4)
_FINAL_BITS: Final = (14, 11, 25, 16, 4, 14, 24)


def partition_index(key: str, partition_count: int) -> int:
    """The index of the partition that events with this key go to."""
    return int(partition_indexes(pa.array([key], pa.string()), partition_count)[0])


def partition_indexes(keys: pa.StringArray, partition_count: int) -> npt.NDArray[np.int64]:
    """The index of the partition of each key. The column holds no nulls."""
    return np.abs(hash_codes(keys).astype(np.int64)) % partition_count


def partition_targets(keys: pa.StringArray, partition_count: int, *, keyless: int) -> npt.NDArray[np.int64]:
    """The index of the partition of each key, and ``keyless`` for each null."""
    if not keys.null_count:
        return partition_indexes(keys, partition_count)
    targets = np.full(len(keys), keyless, np.int64)
    if keys.null_count < len(keys):
        targets[keys.is_valid().to_numpy(zero_copy_only=False)] = partition_indexes(keys.drop_null(), partition_count)
    return targets


def hash_codes(keys: pa.StringArray) -> npt.NDArray[np.int16]:
    """The service's hash of each key. The column holds no nulls."""
    text, starts, lengths = _utf8(keys)
    a = lengths.astype(np.uint32) + np.uint32(_SEED)
    b, c = a.copy(), a.copy()
    while (longer := np.flatnonzero(lengths > _BLOCK_BYTES)).size:
        words = _block(text, starts[longer], lengths[longer])
        a[longer], b[longer], c[longer] = _mix(a[longer] + words[0], b[longer] + words[1], c[longer] + words[2])
        starts[longer] += _BLOCK_BYTES
        lengths[longer] -= _BLOCK_BYTES
    words = _block(text, starts, lengths)
    folded = _final(a + words[0], b + words[1], c + words[2])
    # An empty key skips the last step of the algorithm; its two results are equal, so they fold to 0.
    return np.where(lengths == 0, np.uint32(0), folded).astype(np.uint16).view(np.int16)


def _utf8(keys: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The bytes of the column, and where in them each key starts and how long it is."""
    _, offsets_buffer, text_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    text = np.frombuffer(text_buffer, np.uint8) if text_buffer else np.zeros(0, np.uint8)
    # Padded, so that gathering a block at the very end stays inside; what lies past a key's end is masked anyway.
    padded = np.concatenate([text[: offsets[-1]], np.zeros(_BLOCK_BYTES, np.uint8)])
    return padded, offsets[:-1].copy(), np.diff(offsets)


def _block(
    text: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[Words, Words, Words]:
    """The next 12 bytes of each key as three little-endian words, with zeros past its end."""
    columns = np.arange(_BLOCK_BYTES)
    block = np.where(columns < lengths[:, None], text[starts[:, None] + columns], 0).astype(np.uint8)
    words = block.view("<u4").astype(np.uint32, copy=False)
    return words[:, 0], words[:, 1], words[:, 2]


def _mix(a: Words, b: Words, c: Words) -> tuple[Words, Words, Words]:
    # The three change roles with every round; after six they are back in place.
    for bits in _MIX_BITS:
        a, b, c = b, c + b, (a - c) ^ _rotate(c, bits)
    return a, b, c


def _final(a: Words, b: Words, c: Words) -> Words:
    """The last step, folded: the exclusive or of both 32-bit results."""
    for bits in _FINAL_BITS:
        a, b, c = b, (c ^ b) - _rotate(b, bits), a
    return a ^ b


def _rotate(word: Words, bits: int) -> Words:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
