"""What becomes of dead letters: looked at, exported, discarded, and reprocessed or sent again."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubline.model.dead_letters import DeadLetter
    from hubline.sinks.dead_letter_hub import DeadLetterHub

__all__ = ["DeadLetter", "DeadLetterHub"]

_MODULES = {"DeadLetter": "hubline.model.dead_letters", "DeadLetterHub": "hubline.sinks.dead_letter_hub"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Loads a name when it is first asked for: the command line's help must not cost Arrow."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)
