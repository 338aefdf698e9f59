"""A sink that goes to other processes by the name of its address, so that no secret is pickled."""

from __future__ import annotations

from typing import Any

from hubline.addresses.store_address import PostgresAddress, SqliteAddress
from hubline.errors import ConfigError
from hubline.secrets import redact
from hubline.sinks import SqlSink


class NamedSink(SqlSink):
    """A `SqlSink` whose copies look its address up where they are: `env:NAME` or `file:PATH`.

    Args:
        url: The address, or its name.
        settings: Those of a `SqlSink`.

    Raises:
        ConfigError: The address itself was given, and has a password in it.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        is_name = url.startswith(("env:", "file:"))
        if isinstance(self.address, PostgresAddress) and not is_name and redact(url) != url:
            raise ConfigError(
                "the address of the database has a password in it, which would be sent to the server of Spark Connect. "
                "Name the address: env:NAME or file:PATH, a variable or a file of the server and its workers."
            )
        # A path is that of the process which was given it.
        self._url = str(self.address) if isinstance(self.address, SqliteAddress) and not is_name else url
        self._given = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return _named_sink, (self._url, self._given)


def _named_sink(url: str, settings: dict[str, Any]) -> NamedSink:
    return NamedSink(url, **settings)
