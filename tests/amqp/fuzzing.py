"""Damaged messages against the compiled core under the address and undefined-behavior sanitizers: `make fuzz`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hubline.amqp.codec.performatives import Transfer
from hubline.amqp.core.library import LIBRARY
from hubline.amqp.transport.frames import encode_frame
from tests.amqp.sdk_messages import REAL_PROPERTIES, message_of, placed, sdk_messages

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
HARNESS = Path(__file__).with_suffix(".c")


def build(folder: Path) -> Path | None:
    """Compiles the core with its harness; None where no compiler has the sanitizers."""
    fuzzing = folder / "fuzzing"
    sources = [HARNESS, LIBRARY.with_name("text.c")]
    options = ["-std=c11", "-g", "-O1", *SANITIZERS, f"-I{LIBRARY.parent}"]
    for compiler in ("clang", "cc"):
        if shutil.which(compiler):
            command = [compiler, *options, "-o", fuzzing, *sources]
            if subprocess.run(command, check=False, capture_output=True).returncode == 0:
                return fuzzing
    return None


def corpus() -> Sequence[bytes]:
    """What peers send: messages, batches of them, and frames."""
    messages = [message_of(properties) for properties in REAL_PROPERTIES]
    messages += [message for sent in sdk_messages() for message in (sent, placed(sent))]
    batches = [b"\x00\x53\x75\xb0" + len(each).to_bytes(4, "big") + each for each in messages[::20]]
    transfers = [Transfer(1, number, b"t", 0, settled=bool(number % 2)) for number in range(8)]
    frames = [
        encode_frame(2, transfer, message[:60]) * 3 for transfer, message in zip(transfers, messages, strict=False)
    ]
    return [*messages, *batches, *frames]


def run(fuzzing: Path, folder: Path, *, executions: int, seed: int) -> str:
    """What the harness says. Raises CalledProcessError where a sanitizer stopped it."""
    file = folder / "corpus"
    file.write_bytes(b"".join(len(message).to_bytes(4, "little") + message for message in corpus()))
    command = [str(fuzzing), str(file), str(executions), str(seed)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=100_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fuzzing = build(folder)
        if fuzzing is None:
            print("no compiler with the address and undefined-behavior sanitizers")
            return 1
        print(run(fuzzing, folder, executions=arguments.executions, seed=arguments.seed), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
