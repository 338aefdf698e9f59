"""The parts of connection strings and addresses: schemes, hosts, ports, key=value pairs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hubline.addresses.did_you_mean import nearest
from hubline.errors import ConfigError


def connection_string_parts(what: str, text: str, names: Sequence[str]) -> dict[str, str]:
    """The parts by their usual spelling. What is unknown is named by its place: it may be a piece of a key."""
    spelling = {name.lower(): name for name in names}
    parts: dict[str, str] = {}
    for number, part in enumerate(text.strip().removesuffix(";").split(";"), start=1):
        # Keys and signatures contain '=' themselves: only the first one separates.
        raw_name, separator, value = (piece.strip() for piece in part.partition("="))
        name = spelling.get(raw_name.lower())
        if name is None or not separator:
            hint = nearest(raw_name, names)
            known = f"Use these parts: {', '.join(names)}."
            raise ConfigError(f"{what}: part {number} is not NAME=VALUE with a known name{hint}. {known}")
        if name in parts:
            raise ConfigError(f"{what}: {name} is given twice (again in part {number}). Keep one.")
        if not value:
            raise ConfigError(f"{what}: {name} (part {number}) is empty. Give it a value or leave it out.")
        parts[name] = value
    return parts


def query_parameters(what: str, query: str, names: Sequence[str], *, fix: str) -> Iterator[tuple[str, str]]:
    """The parameters after the '?' of an address, each by its name. What is unknown is named by its place alone.

    ``fix`` is what the error for an unknown name recommends.
    """
    found: set[str] = set()
    for number, part in enumerate(filter(None, query.split("&")), start=1):
        raw_name, _, value = part.partition("=")
        name = raw_name.lower()
        if name not in names:
            hint = nearest(raw_name, names)
            raise ConfigError(f"{what}: parameter {number} after the '?' is not allowed{hint}. {fix}")
        if name in found:
            raise ConfigError(f"{what}: {name}= is given twice. Keep one.")
        found.add(name)
        yield name, value


def required(what: str, parts: Mapping[str, str], name: str, rest: str) -> str:
    if name not in parts:
        raise ConfigError(f"{what}: {name} is missing. Add {name}{rest}.")
    return parts[name]


_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,62})(?:\.[a-z0-9](?:[a-z0-9-]{0,62}))*")


def host_and_port(what: str, authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise ConfigError(
            f"{what}: a user or password before the host is not allowed. Remove everything up to the '@'."
        )
    host, colon, port = authority.lower().partition(":")
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{what}: the host is missing or is not a host name. Use letters, digits, '-' and '.'.")
    if not colon:
        return host, None
    if not _is_port(port):
        raise ConfigError(f"{what}: the port must be a number from 1 to 65535.")
    return host, int(port)


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 1 <= int(text) <= 65535


def scheme_of(text: str) -> str:
    match = re.match(r"([A-Za-z][A-Za-z0-9+]{0,19}):", text)
    return match[1].lower() if match else ""


def unknown_scheme(what: str, scheme: str, *, known: Iterable[str], forms: str) -> ConfigError:
    if not scheme:
        return ConfigError(f"the {what} has no known form. Write {forms}.")
    return ConfigError(f"the {what} begins with {scheme}:, which is unknown{nearest(scheme, known)}. Write {forms}.")
