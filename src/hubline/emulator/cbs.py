"""``$cbs``: where clients put the tokens that allow them the links they attach afterwards."""

from __future__ import annotations

from collections.abc import Callable

from hubline.amqp.codec.message import Message, Value
from hubline.emulator.authorization import Grants, TokenRefused
from hubline.emulator.requests import ACCEPTED, BAD_REQUEST, UNAUTHORIZED, Answer, text_property


class TokenNode:
    """Answers put-token requests of one connection. ``on_put`` is called after each that was accepted."""

    def __init__(self, grants: Grants, on_put: Callable[[], None]) -> None:
        self._grants = grants
        self._on_put = on_put

    async def answer(self, request: Message) -> Answer:
        operation = text_property(request, "operation")
        if operation != "put-token":
            return Answer(BAD_REQUEST, f"{operation[:64]!r} is not supported here. Use put-token.")
        token = request.body.value if isinstance(request.body, Value) else None
        if not isinstance(token, str):
            return Answer(BAD_REQUEST, "put-token needs a token. Send it as a body of type string.")
        try:
            self._grants.put(text_property(request, "name"), token, text_property(request, "type"))
        except TokenRefused as error:
            # No condition: the Python SDK would take it for a fault of the link, and not tell of the refusal.
            return Answer(UNAUTHORIZED, str(error))
        self._on_put()
        return Answer(ACCEPTED, "Accepted")
