"""Addresses of checkpoint stores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from hubline.addresses.blob_address import (
    _STORAGE_PART_NAMES,
    BlobAddress,
    parse_blob_url,
    parse_storage_connection_string,
)
from hubline.addresses.connection_strings import _is_port, scheme_of, unknown_scheme
from hubline.addresses.did_you_mean import nearest
from hubline.addresses.names import plain_name
from hubline.addresses.references import parse_path, resolve
from hubline.errors import ConfigError
from hubline.secrets import Secret

# Store addresses ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryAddress:
    """``memory:`` or ``memory:NAME``: one store for all that name it within this process."""

    name: str = ""

    def __str__(self) -> str:
        return f"memory:{self.name}"


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    """``sqlite:///PATH``: a file that processes of this machine share. ``path`` is absolute."""

    path: Path

    def __str__(self) -> str:
        return f"sqlite:///{self.path}"


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """``postgresql://...``: ``conninfo`` is for the driver, ``shown`` for people."""

    conninfo: Secret
    shown: str

    def __str__(self) -> str:
        return self.shown


SqlAddress: TypeAlias = SqliteAddress | PostgresAddress
"""A SQL database: it keeps checkpoints, a sink's rows and dead letters."""

StoreAddress: TypeAlias = MemoryAddress | SqlAddress | BlobAddress

STORE_FORMS: Final = (
    "memory:, sqlite:///PATH, postgresql://USER@HOST/DATABASE, https://ACCOUNT.blob.core.windows.net/CONTAINER, "
    "or a storage connection string with ;Container=NAME"
)


def parse_store(text: str) -> StoreAddress:
    """A checkpoint store's address.

    ``memory:[NAME]``, ``sqlite:///PATH``, ``postgresql://...``, ``https://ACCOUNT.blob.core.windows.net/CONTAINER``, or
    a storage account's connection string with ``Container=NAME``. ``env:NAME`` and ``file:PATH`` stand for what that
    variable or file holds.
    """
    what, text = resolve("store address", text)
    if re.match(rf"\s*({'|'.join(_STORAGE_PART_NAMES)})\s*=", text, re.IGNORECASE):
        return parse_storage_connection_string(what, text)
    match scheme_of(text):
        case "memory":
            return _parse_memory(what, text)
        case "sqlite":
            return _parse_sqlite(what, text)
        case "postgresql" | "postgres":
            return _parse_postgres(what, text)
        case "http" | "https":
            return parse_blob_url(what, text)
        case scheme:
            raise unknown_scheme(what, scheme, known=("memory", "sqlite", "postgresql", "https"), forms=STORE_FORMS)


def _parse_memory(what: str, text: str) -> MemoryAddress:
    name = text[len("memory:") :]
    return MemoryAddress(plain_name(f"name in the {what}", name) if name else "")


def _parse_sqlite(what: str, text: str) -> SqliteAddress:
    match = re.fullmatch(r"sqlite:///(.*[^/])", text, re.IGNORECASE)
    if not match:
        raise ConfigError(
            f"the {what} has no path of a file. Write sqlite:///relative/file.db or sqlite:////absolute/file.db."
        )
    if "?" in match[1] or "#" in match[1]:
        raise ConfigError(
            f"the {what} has options, but sqlite:/// takes only a path. Remove '?' or '#' and what follows."
        )
    return SqliteAddress(parse_path(what, match[1]))


def _parse_postgres(what: str, text: str) -> PostgresAddress:
    if not re.match(r"postgres(ql)?://", text, re.IGNORECASE):
        raise ConfigError(f"the {what} is not a URL. Write postgresql://USER@HOST:PORT/DATABASE.")
    text = "postgresql" + text[text.index(":") :]
    params = _conninfo_params(text)
    if params is None:
        raise ConfigError(
            f"{what}: PostgreSQL cannot read it. Write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE, "
            "percent-encode special characters (@ is %40, / is %2F, % is %25), and use libpq's parameter names only"
            f"{_nearest_parameter(text)}."
        )
    hosts, ports = params.get("host", ""), params.get("port", "")
    if not all(re.fullmatch(r"[A-Za-z0-9.:_-]*|/[^@]*", host) for host in hosts.split(",")):
        raise ConfigError(f"{what}: the host is not a host name. If the password contains '@', write it as %40.")
    if "@" in params.get("dbname", ""):
        raise ConfigError(f"{what}: the database's name contains '@'. If the password contains '/', write it as %2F.")
    if ports and not all(_is_port(port) for port in ports.split(",")):
        raise ConfigError(
            f"{what}: the port must be a number from 1 to 65535. Percent-encode ':' in a password as %3A."
        )
    return PostgresAddress(Secret(text), _postgres_shown(params))


def _conninfo_params(text: str) -> dict[str, str] | None:
    try:
        import pgpq  # noqa: F401 - loaded later, by the sink
        import psycopg  # slow to load, and of use only here
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ConfigError(
            "PostgreSQL needs the packages psycopg and pgpq. Install them: pip install 'hubline[postgres]'."
        ) from None

    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except psycopg.Error:
        return None  # its message quotes the text it cannot read, which may be the password


def _nearest_parameter(text: str) -> str:
    """The parameter of libpq that was meant by the first one that it does not know."""
    from psycopg import pq

    known = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
    names = [part.partition("=")[0] for part in text.partition("?")[2].split("&")]
    return next((nearest(name, known) for name in names if name not in known), "")


def _postgres_shown(params: Mapping[str, str]) -> str:
    hosts, ports = params.get("host", "").split(","), params.get("port", "").split(",")
    # libpq: as many ports as hosts, or one for all.
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    servers = ",".join(quote(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=True))
    user = f"{quote(params['user'])}@" if params.get("user") else ""
    return f"postgresql://{user}{servers}/{quote(params.get('dbname', ''))}"
