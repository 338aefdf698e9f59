"""What the endpoint serves: a directory of hubs, given by who starts it."""

from __future__ import annotations

from typing import Protocol

from hubline.ports import Hub


class Hubs(Protocol):
    """Hubs by name. The endpoint asks at every link and at every request, and closes none of them."""

    async def find(self, name: str) -> Hub | None:
        """The hub of that name, open; None if there is none. Names come from strangers: anything is possible."""
        ...
