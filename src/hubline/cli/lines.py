"""Reads lines of stdin or of files, as they arrive."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import BinaryIO, Final

from hubline.errors import ConfigError

# Read at once. A pipe is widened to it: the lines that its writer adds during one send make the next batch.
CHUNK_BYTES: Final = 1024 * 1024
# No hub accepts events of this size: a file without line ends is refused before it fills the memory.
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


async def read_lines(file: BinaryIO, *, max_count: int) -> AsyncIterator[list[bytes]]:
    """The lines without their ends, at most ``max_count`` at a time.

    Lines are passed on at once: none is held back to fill a batch.
    """
    with suppress(OSError, AttributeError):  # not a pipe; not Linux
        fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
    rest = b""
    while chunk := await _read_some(file.fileno()):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ConfigError(
                f"{file.name}: a line is longer than {LINE_BYTES_MAX:,} bytes. Split it before you send it."
            )
        for batch in batched(lines, max_count):
            yield batch
    if rest:
        yield [rest]


async def _read_some(descriptor: int) -> bytes:
    """The bytes that can be read now; waits if there are none yet. Empty at the end. Blocks neither loop nor Ctrl-C."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:
        return os.read(descriptor, CHUNK_BYTES)  # a plain file: reading it never waits
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)


def batched(lines: list[bytes], max_count: int) -> Iterator[list[bytes]]:
    """The lines in order, at most ``max_count`` at a time."""
    for start in range(0, len(lines), max_count):
        yield lines[start : start + max_count]
