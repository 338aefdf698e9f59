"""The process that runs the commands of pages that use Spark: Java starts once."""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback


def run(words: list[str]) -> int:
    """Runs `hubline ...` or `python FILE.py ...`, as a process of its own would."""
    try:
        if words[0] == "hubline":
            from hubline.cli.app import main

            return main(words[1:])
        sys.argv = words[1:]
        session = runpy.run_path(words[1], run_name="__main__").get("spark")
        if session is not None:
            session.stop()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        order = json.loads(line)
        os.environ.update(order["variables"])
        file = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
        code = run(order["words"])
        sys.stdout.flush()
        sys.stderr.flush()
        print(code, file=answers)


if __name__ == "__main__":
    serve()
