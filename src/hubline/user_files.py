"""Python files of the user's that a command names: a pipeline, or the processor of a redrive."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from hubline.errors import ConfigError


def import_file(path: Path, *, prefix: str) -> ModuleType:
    """Runs a file as Python does a script: what lies beside it can be imported.

    Args:
        path: The file. Tracebacks show it as it is given.
        prefix: Begins the module's name, so that it hides no package of the file's name.

    Returns:
        The module, which is in `sys.modules`.

    Raises:
        ConfigError: If the file's name does not end as those of Python files do.
        BaseException: Whatever the file raises. The module then is not in `sys.modules`.
    """
    name = prefix + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the name of the Python file {path.name!a} must end in .py.")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
