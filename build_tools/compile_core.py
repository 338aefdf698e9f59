"""Compiles the AMQP core, src/hubline/amqp/core, with the machine's C compiler. Run by hand, in place.

Where there is no compiler, and ziglang is installed, that one. Where that fails too, hubline works without the core,
and decodes messages one by one in Python.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src"
CORE: Final = Path("hubline/amqp/core")
LIBRARY: Final = "libhubline.so"
FLAGS: Final = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


def find_compiler() -> Sequence[str] | None:
    """The command of a C compiler; None if there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        command = shlex.split(name)
        if command and shutil.which(command[0]):
            return command
    return (sys.executable, "-m", "ziglang", "cc") if find_spec("ziglang") else None


def compile_core(folder: Path) -> bool:
    """Compiles the core into a folder of packages. Says in one line why, if it cannot."""
    compiler = find_compiler()
    if compiler is None:
        return _without("there is no C compiler")
    target = folder / CORE / LIBRARY
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, LIBRARY)
        sources = sorted(map(str, (SOURCE / CORE).glob("*.c")))
        command = [*compiler, *FLAGS, "-o", str(built), *sources]
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return _without(f"{shlex.join(command)} failed: {' '.join(done.stderr.split())}")
        # Processes that have loaded the one before keep it: it is replaced, not written over.
        shutil.copyfile(built, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)
    return True


def _without(reason: str) -> bool:
    print(f"hubline is built without its compiled core, and decodes AMQP in Python: {reason}", file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(not compile_core(SOURCE))
