"""What Spark pickles to other processes, and what they say where they lack this hubline.

Without hubline, a node could say no more than that a module is missing. So the function that unpickles is sent along
whole: it needs nothing that is not in Python itself.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle

from hubline._version import __version__


class Travelling:
    """An object that is checked where it arrives: hubline has to be there, in the same version."""

    def __reduce__(self) -> tuple[Any, ...]:
        content = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return arrived, (__version__, content)


def arrived(version: str, content: bytes) -> Any:
    """Unpickles an object of this version of hubline. Raises ImportError that names the host."""
    import pickle
    import socket

    host, python = socket.gethostname(), sys.executable
    try:
        from hubline._version import __version__ as found
    except ModuleNotFoundError as error:
        if error.name not in ("hubline", "hubline._version"):
            raise
        raise ImportError(
            f"hubline is not installed on {host}, for {python}. Install hubline {version} on every node."
        ) from None
    if found != version:
        raise ImportError(
            f"hubline {found} is installed on {host}, for {python}, and {version} on the driver. Install the same "
            "version on every node."
        )
    kind, state = pickle.loads(content)  # noqa: S301 - it comes from Spark, which runs what is in it
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


# By value, and not by the name of a module that may be missing there.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
