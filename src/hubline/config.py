"""What people type, parsed in one place: addresses, names, positions, durations, sizes.

Every problem is a :class:`~hubline.errors.ConfigError` that says what is wrong, where, and what to do, and that
shows no secret. Parsing reads nothing but the environment variable or file that an ``env:`` or ``file:`` address
names, and connects to nothing.

Errors are raised outside of ``except`` blocks throughout: what a library says about a malformed address quotes it,
password and all, and a chained exception would print that.
"""

from __future__ import annotations

import base64
import difflib
import enum
import hmac
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from hubline.errors import ConfigError

if TYPE_CHECKING:
    from hubline.model import Position

DEFAULT_GROUP: Final = "$Default"
"""The consumer group that every hub has."""

# The limits are those of the Event Hubs service, so that a local name also works there.
HUB_NAME_LENGTH_MAX: Final = 256
GROUP_NAME_LENGTH_MAX: Final = 50
# Service ids are small decimal numbers; more room costs nothing and still fits any folder or key.
PARTITION_ID_LENGTH_MAX: Final = 64
# The SDKs use 36-character UUIDs; people use host names (at most 253) or shorter.
OWNER_ID_LENGTH_MAX: Final = 256
# A signed address is about 600 characters; an attacker's should not cost memory or fill a log.
ADDRESS_LENGTH_MAX: Final = 8192
# A file system's limit for one name, which a local hub's folder has to keep.
LOCAL_NAME_LENGTH_MAX: Final = 255

AMQPS_PORT: Final = 5671
AMQP_PORT: Final = 5672
SERVICE_DOMAIN: Final = "servicebus.windows.net"


class Secret:
    """Text that must not be shown: ``repr``, ``str`` and formatting give ``***``, only :meth:`reveal` the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)


# Names -------------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NAME_RULE = "letters, digits, '.', '-' and '_', starting and ending with a letter or digit"
_VISIBLE = re.compile(r"[\x21-\x7e]+")


def validate_hub_name(name: str) -> str:
    """The name itself, if a hub may have it."""
    return _plain_name("hub name", name)


def validate_group_name(name: str) -> str:
    """The name itself, if a consumer group may have it; the default group in its usual spelling."""
    if name.lower() == DEFAULT_GROUP.lower():
        return DEFAULT_GROUP
    rule = f"{_NAME_RULE}; or {DEFAULT_GROUP}"
    return _validated("consumer group", name, _NAME, length_max=GROUP_NAME_LENGTH_MAX, rule=rule)


def validate_partition_id(partition: str) -> str:
    """The id itself, if a partition may have it."""
    return _validated("partition id", partition, _NAME, length_max=PARTITION_ID_LENGTH_MAX, rule=_NAME_RULE)


def validate_owner_id(owner_id: str) -> str:
    """The id itself, if it can stand in a log line and in an HTTP header: visible ASCII without spaces."""
    rule = "visible ASCII characters without spaces"
    return _validated("owner id", owner_id, _VISIBLE, length_max=OWNER_ID_LENGTH_MAX, rule=rule)


def _plain_name(what: str, name: str, *, length_max: int = HUB_NAME_LENGTH_MAX) -> str:
    return _validated(what, name, _NAME, length_max=length_max, rule=_NAME_RULE)


def _validated(what: str, name: str, pattern: re.Pattern[str], *, length_max: int, rule: str) -> str:
    if not name:
        raise ConfigError(f"the {what} is empty: give 1 to {length_max} characters ({rule})")
    if len(name) > length_max:
        raise ConfigError(f"the {what} {_shown(name)} has {len(name)} characters: at most {length_max} are allowed")
    if not pattern.fullmatch(name):
        raise ConfigError(f"the {what} {_shown(name)} is not allowed: use {rule}")
    return name


_SHOWN_LENGTH_MAX: Final = 40


def may_hold_secret(text: str) -> bool:
    """Whether it looks like an address or connection string in the wrong place, which no message repeats."""
    return re.search(r"://|[=;@]|sharedaccess|password", text, re.IGNORECASE) is not None


def _shown(text: str) -> str:
    """Text from a person, safe for terminal and log: escaped, cut, and left out where it may hold a secret."""
    if may_hold_secret(text):
        return "(not shown, it may hold a secret)"
    if len(text) > _SHOWN_LENGTH_MAX:
        return ascii(text[:_SHOWN_LENGTH_MAX]) + "..."
    return ascii(text)


def parse_secret(what: str, text: str) -> Secret:
    """What the environment variable or the file holds that ``env:NAME`` or ``file:PATH`` names."""
    return Secret(_resolved(what, text)[1])


# Hub addresses -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalHubAddress:
    """``local:PATH/NAME``: a hub in a folder of this machine. ``root`` is absolute."""

    root: Path
    name: str

    def __str__(self) -> str:
        return f"local:{self.root}/{self.name}"


class Transport(enum.StrEnum):
    """How the service is spoken to."""

    AMQP = "amqp"
    """AMQP over TLS, port 5671."""

    WEBSOCKET = "websocket"
    """The same inside of HTTPS, port 443: for networks that let nothing else out."""

    SDK = "sdk"
    """The official azure-eventhub package: slower, to compare with or to fall back on."""


def parse_transport(text: str, *, what: str = "transport") -> Transport:
    """One of the ways to speak to the service, by its name."""
    known = [transport.value for transport in Transport]
    if text not in known:
        raise ConfigError(f"{what}: {_shown(text)} is unknown{_nearest(text, known)}: write {', '.join(known)}")
    return Transport(text)


@dataclass(frozen=True, slots=True)
class EventHubsAddress:
    """A hub of the Event Hubs service, or of what speaks its protocol.

    There is a key name with a key, or a signature, or neither: then Entra credentials are used.
    ``emulator`` means plain TCP instead of TLS. Without a ``transport``, whoever opens the hub chooses.
    """

    namespace: str
    port: int
    name: str
    key_name: str | None = None
    key: Secret | None = None
    signature: Secret | None = None
    emulator: bool = False
    transport: Transport | None = None

    @property
    def key_namespace(self) -> str:
        """The namespace as the official SDKs write it into their stores: with the port, if that is not the usual."""
        usual = AMQP_PORT if self.emulator else AMQPS_PORT
        return self.namespace if self.port == usual else f"{self.namespace}:{self.port}"

    def __str__(self) -> str:
        return f"eventhubs://{self.namespace}/{self.name}"


HubAddress = LocalHubAddress | EventHubsAddress

HUB_FORMS: Final = "local:PATH/NAME, an Event Hubs connection string, or eventhubs://NAMESPACE/NAME"


def parse_hub(text: str) -> HubAddress:
    """A hub's address: ``local:PATH/NAME``, an Event Hubs connection string, or ``eventhubs://NAMESPACE/NAME``.

    ``env:NAME`` and ``file:PATH`` stand for what that variable or file holds.
    """
    what, text = _resolved("hub address", text)
    scheme = _scheme(text)
    if scheme == "local":
        return _parse_local(what, text)
    if scheme == "eventhubs":
        return _parse_eventhubs(what, text)
    if re.match(r"\s*(endpoint|sharedaccess\w*|entitypath)\s*=", text, re.IGNORECASE):
        return _parse_connection_string(what, text)
    raise _unknown_scheme(what, scheme, known=("local", "eventhubs"), forms=HUB_FORMS)


def parse_local_root(text: str) -> Path:
    """The folder of local hubs that ``local:PATH`` names."""
    what, text = _resolved("folder of hubs", text)
    scheme = _scheme(text)
    if scheme != "local":
        raise _unknown_scheme(what, scheme, known=("local",), forms="local:PATH")
    return parse_path(what, _local_path(what, text))


def _parse_local(what: str, text: str) -> LocalHubAddress:
    # A shell's completion leaves a slash at the end of a folder.
    folder, slash, name = _local_path(what, text).removesuffix("/").rpartition("/")
    if not slash:
        raise ConfigError(f"{what}: local: needs a folder and a name: write local:PATH/NAME, for instance local:./NAME")
    name = _plain_name(f"hub name in the {what}", name, length_max=LOCAL_NAME_LENGTH_MAX)
    return LocalHubAddress(parse_path(what, folder or "/"), name)


def _local_path(what: str, text: str) -> str:
    path = text[len("local:") :]
    if path.startswith("//"):
        raise ConfigError(f"{what}: local: takes a path, not a URL: write local:PATH/NAME without the //")
    return path


def _parse_eventhubs(what: str, text: str) -> EventHubsAddress:
    match = re.fullmatch(r"eventhubs://([^/]*)/([^/]*?)(?:\?transport=([^/]*))?", text, re.IGNORECASE)
    if not match:
        raise ConfigError(
            f"{what}: write eventhubs://NAMESPACE/NAME, with one hub and nothing after it but ?transport=..."
        )
    host, port = _host_and_port(what, match[1])
    if "." not in host and host != "localhost":
        host = f"{host}.{SERVICE_DOMAIN}"
    name = _plain_name(f"hub name in the {what}", match[2])
    return EventHubsAddress(host, port or AMQPS_PORT, name, transport=_optional_transport(what, match[3]))


def _optional_transport(what: str, text: str | None) -> Transport | None:
    return None if text is None else parse_transport(text, what=f"{what}: transport")


_PART_NAMES: Final = (
    "Endpoint",
    "SharedAccessKeyName",
    "SharedAccessKey",
    "SharedAccessSignature",
    "EntityPath",
    "UseDevelopmentEmulator",
    "Transport",
)


def _parse_connection_string(what: str, text: str) -> EventHubsAddress:
    parts = _connection_string_parts(what, text, _PART_NAMES)
    host, port = _parse_endpoint(what, _required(what, parts, "Endpoint", "=sb://NAMESPACE.servicebus.windows.net/"))
    entity_path = _required(what, parts, "EntityPath", "=HUB, the hub's name")
    name = _plain_name(f"EntityPath of the {what}", entity_path)
    emulator = _parse_emulator_flag(what, parts.get("UseDevelopmentEmulator"))
    transport = _optional_transport(what, parts.get("Transport"))
    unsigned = EventHubsAddress(
        host, port or (AMQP_PORT if emulator else AMQPS_PORT), name, emulator=emulator, transport=transport
    )
    if "SharedAccessSignature" in parts:
        _refuse_key_beside_signature(what, parts)
        return replace(unsigned, signature=Secret(parts["SharedAccessSignature"]))
    key_name = _required(what, parts, "SharedAccessKeyName", "=POLICY (with its SharedAccessKey=...)")
    key = Secret(_required(what, parts, "SharedAccessKey", "=KEY (the policy's primary or secondary key)"))
    return replace(unsigned, key_name=key_name, key=key)


def _connection_string_parts(what: str, text: str, names: Sequence[str]) -> dict[str, str]:
    """The parts by their usual spelling. What is unknown is named by its place: it may be a piece of a key."""
    spelling = {name.lower(): name for name in names}
    parts: dict[str, str] = {}
    for number, part in enumerate(text.strip().removesuffix(";").split(";"), start=1):
        # Keys and signatures contain '=' themselves: only the first one separates.
        raw_name, separator, value = (piece.strip() for piece in part.partition("="))
        name = spelling.get(raw_name.lower())
        if name is None or not separator:
            hint = _nearest(raw_name, names)
            known = f"the parts are {', '.join(names)}"
            raise ConfigError(f"{what}: part {number} is not NAME=VALUE with a known name{hint}: {known}")
        if name in parts:
            raise ConfigError(f"{what}: {name} stands there twice (part {number}): keep one")
        if not value:
            raise ConfigError(f"{what}: {name} (part {number}) is empty: give it a value or leave it out")
        parts[name] = value
    return parts


def _required(what: str, parts: Mapping[str, str], name: str, rest: str) -> str:
    if name not in parts:
        raise ConfigError(f"{what}: {name} is missing: add {name}{rest}")
    return parts[name]


def _refuse_key_beside_signature(what: str, parts: Mapping[str, str]) -> None:
    if "SharedAccessKey" in parts or "SharedAccessKeyName" in parts:
        raise ConfigError(
            f"{what}: there is both a key and a signature: keep SharedAccessKeyName and SharedAccessKey, "
            "or SharedAccessSignature"
        )


def _parse_emulator_flag(what: str, value: str | None) -> bool:
    # The SDKs take the exact word only, and ignore others in silence: then nobody knows if TLS is used.
    if value not in (None, "true", "false"):
        raise ConfigError(f"{what}: UseDevelopmentEmulator takes true or false, in lower case")
    return value == "true"


def _parse_endpoint(what: str, endpoint: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(?i:sb)://([^/]*)/?", endpoint)
    if not match:
        raise ConfigError(f"{what}: Endpoint has to look like sb://HOST/ or sb://HOST:PORT/, without a path")
    return _host_and_port(f"{what}: Endpoint", match[1])


_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,62})(?:\.[a-z0-9](?:[a-z0-9-]{0,62}))*")


def _host_and_port(what: str, authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise ConfigError(f"{what}: a user or password before the host is not allowed: remove all up to the '@'")
    host, colon, port = authority.lower().partition(":")
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{what}: the host is missing or not a host name: letters, digits, '-' and '.'")
    if not colon:
        return host, None
    if not _is_port(port):
        raise ConfigError(f"{what}: the port is not a number from 1 to 65535")
    return host, int(port)


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 1 <= int(text) <= 65535


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


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """A container of Azure Blob Storage, or of what speaks its protocol.

    ``endpoint`` has no slash at its end; where the account is not part of the host's name, it ends in ``/ACCOUNT``.
    There is the account's key, or a signature (the query of a signed URL), or neither: then Entra credentials are used.
    With ``lease_seconds``, partitions are locked by the service's own leases of that length.
    """

    endpoint: str
    account: str
    container: str
    key: Secret | None = None
    signature: Secret | None = None
    lease_seconds: int | None = None

    def __str__(self) -> str:
        lease = "" if self.lease_seconds is None else f"?lease={self.lease_seconds}s"
        return f"{self.endpoint}/{self.container}{lease}"


StoreAddress = MemoryAddress | SqliteAddress | PostgresAddress | BlobAddress

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
    what, text = _resolved("store address", text)
    if re.match(rf"\s*({'|'.join(_STORAGE_PART_NAMES)})\s*=", text, re.IGNORECASE):
        return _parse_storage_connection_string(what, text)
    match _scheme(text):
        case "memory":
            return _parse_memory(what, text)
        case "sqlite":
            return _parse_sqlite(what, text)
        case "postgresql" | "postgres":
            return _parse_postgres(what, text)
        case "http" | "https":
            return _parse_blob_url(what, text)
        case scheme:
            raise _unknown_scheme(what, scheme, known=("memory", "sqlite", "postgresql", "https"), forms=STORE_FORMS)


def _parse_memory(what: str, text: str) -> MemoryAddress:
    name = text[len("memory:") :]
    return MemoryAddress(_plain_name(f"name in the {what}", name) if name else "")


def _parse_sqlite(what: str, text: str) -> SqliteAddress:
    match = re.fullmatch(r"sqlite:///(.*[^/])", text, re.IGNORECASE)
    if not match:
        raise ConfigError(f"{what}: write sqlite:///relative/file.db or sqlite:////absolute/file.db; or use memory:")
    if "?" in match[1] or "#" in match[1]:
        raise ConfigError(f"{what}: sqlite:/// takes a path and no options: remove '?' or '#' and what follows")
    return SqliteAddress(parse_path(what, match[1]))


def _parse_postgres(what: str, text: str) -> PostgresAddress:
    if not re.match(r"postgres(ql)?://", text, re.IGNORECASE):
        raise ConfigError(f"{what}: write postgresql://USER@HOST:PORT/DATABASE")
    text = "postgresql" + text[text.index(":") :]
    params = _conninfo_params(text)
    if params is None:
        raise ConfigError(
            f"{what}: PostgreSQL cannot read it: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE?NAME=VALUE, "
            "percent-encode special characters (@ is %40, / is %2F, % is %25), and use libpq's parameter names only"
        )
    hosts, ports = params.get("host", ""), params.get("port", "")
    if not all(re.fullmatch(r"[A-Za-z0-9.:_-]*|/[^@]*", host) for host in hosts.split(",")):
        raise ConfigError(f"{what}: the host is not a host name; if the password contains '@', write it as %40")
    if "@" in params.get("dbname", ""):
        raise ConfigError(f"{what}: there is an '@' in the database; if the password contains '/', write it as %2F")
    if ports and not all(_is_port(port) for port in ports.split(",")):
        raise ConfigError(f"{what}: the port is not a number from 1 to 65535; percent-encode ':' in a password as %3A")
    return PostgresAddress(Secret(text), _postgres_shown(params))


def _conninfo_params(text: str) -> dict[str, str] | None:
    import psycopg  # slow to load, and of use only here
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except psycopg.Error:
        return None  # its message quotes the text it cannot read, which may be the password


def _postgres_shown(params: Mapping[str, str]) -> str:
    hosts, ports = params.get("host", "").split(","), params.get("port", "").split(",")
    # libpq: as many ports as hosts, or one for all.
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    servers = ",".join(quote(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=True))
    user = f"{quote(params['user'])}@" if params.get("user") else ""
    return f"postgresql://{user}{servers}/{quote(params.get('dbname', ''))}"


# Blob containers ---------------------------------------------------------------------------------------------------

EMULATOR_ACCOUNT: Final = "devstoreaccount1"
# The same in every emulator, and published: it protects nothing.
EMULATOR_KEY: Final = Secret("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
EMULATOR_ENDPOINT: Final = f"http://127.0.0.1:10000/{EMULATOR_ACCOUNT}"
BLOB_FORM: Final = "https://ACCOUNT.blob.core.windows.net/CONTAINER"
# What the service grants. It also has leases without an end, which a crash would make everlasting.
BLOB_LEASE_SECONDS_MIN: Final = 15
BLOB_LEASE_SECONDS_MAX: Final = 60

_STORAGE_PART_NAMES: Final = (
    "DefaultEndpointsProtocol",
    "AccountName",
    "AccountKey",
    "SharedAccessSignature",
    "BlobEndpoint",
    "EndpointSuffix",
    "UseDevelopmentStorage",
    "Container",
    "Lease",
    # Of other services, and of use to nobody here; portals put them into what people copy.
    "BlobSecondaryEndpoint",
    "QueueEndpoint",
    "QueueSecondaryEndpoint",
    "TableEndpoint",
    "TableSecondaryEndpoint",
    "FileEndpoint",
    "FileSecondaryEndpoint",
    "DevelopmentStorageProxyUri",
)
_ACCOUNT = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,61})[a-z0-9]")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")


def _parse_blob_url(what: str, text: str) -> BlobAddress:
    match = re.fullmatch(r"(https?)://([^/?#]*)((?:/[^/?#]+){1,2})/?(?:\?([^#]*))?", text, re.IGNORECASE)
    if not match:
        raise ConfigError(f"{what}: write {BLOB_FORM}, or http://127.0.0.1:PORT/{EMULATOR_ACCOUNT}/CONTAINER")
    *account, container = match[3].split("/")[1:]
    endpoint = _blob_endpoint(what, match[1], match[2], account[0] if account else None)
    lease_seconds, query = _blob_lease(what, match[4] or "")
    bare = BlobAddress(*endpoint, container=_container_name(what, container), lease_seconds=lease_seconds)
    return _with_credential(what, bare, **_blob_secrets(what, query))


def _blob_lease(what: str, query: str) -> tuple[int | None, str]:
    """The lease that a query asks for, and the rest of the query."""
    parts = query.split("&")
    leases = [part.partition("=")[2] for part in parts if part.partition("=")[0] == "lease"]
    rest = "&".join(part for part in parts if part.partition("=")[0] != "lease")
    if len(leases) > 1:
        raise ConfigError(f"{what}: lease= stands there twice: keep one of them")
    return (_lease_seconds(what, leases[0]) if leases else None), rest


def _lease_seconds(what: str, text: str) -> int:
    seconds = parse_duration(text).total_seconds()
    if not (BLOB_LEASE_SECONDS_MIN <= seconds <= BLOB_LEASE_SECONDS_MAX and seconds.is_integer()):
        raise ConfigError(
            f"{what}: Blob Storage grants leases of {BLOB_LEASE_SECONDS_MIN} to {BLOB_LEASE_SECONDS_MAX} whole "
            f"seconds, not {_shown(text)}: write lease=30s, or leave it out to do without the service's leases"
        )
    return int(seconds)


def _blob_secrets(what: str, query: str) -> dict[str, Secret]:
    """A signed URL's query is the signature; else ``key`` and ``sas`` name where the secret is kept."""
    if re.search(r"(?:^|&)sig=", query):
        return {"signature": Secret(query)}
    secrets: dict[str, Secret] = {}
    for part in filter(None, query.split("&")):
        name, _, reference = part.partition("=")
        if name not in ("key", "sas"):
            raise ConfigError(
                f"{what}: after the '?' stands a whole signature (with its sig=...), or key= or sas= followed by "
                "env:NAME or file:PATH, where the account's key or a signature is kept; and lease=30s for Fixed(count)"
            )
        if not reference.startswith(("env:", "file:")):
            raise ConfigError(
                f"{what}: {name}= takes env:NAME or file:PATH, the variable or file that holds the secret, not the "
                "secret itself: addresses are shown to people"
            )
        secrets["key" if name == "key" else "signature"] = Secret(_resolved(f"{name} of the {what}", reference)[1])
    return secrets


def _with_credential(
    what: str, address: BlobAddress, *, key: Secret | None = None, signature: Secret | None = None
) -> BlobAddress:
    if key and signature:
        raise ConfigError(f"{what}: there is both a key and a signature: keep one of them")
    if key and not _is_base64(key):
        raise ConfigError(f"{what}: the account's key is not base64: copy all of it, with the = at its end")
    if signature:
        signature = Secret(signature.reveal().removeprefix("?"))
        if not re.search(r"(?:^|&)sig=[^&]", signature.reveal()):
            raise ConfigError(f"{what}: the signature has no sig=...: copy all of it, from sv= to its end")
    if not (key or signature) and address.account == EMULATOR_ACCOUNT:
        key = EMULATOR_KEY
    return replace(address, key=key, signature=signature)


def _is_base64(key: Secret) -> bool:
    try:
        return len(base64.b64decode(key.reveal(), validate=True)) > 0
    except ValueError:
        return False  # its message may quote the key


def _blob_endpoint(what: str, scheme: str, authority: str, account: str | None) -> tuple[str, str]:
    """The endpoint and the account's name, which is in the path, or the first part of the host's name."""
    host, port = _host_and_port(what, authority)
    endpoint = f"{scheme.lower()}://{host}" + (f":{port}" if port else "")
    name = account or host.partition(".")[0]
    if not _ACCOUNT.fullmatch(name):
        raise ConfigError(f"{what}: the account's name is missing or not one: write {BLOB_FORM}")
    is_local = host == "localhost" or host.startswith("127.")
    if scheme.lower() == "http" and not is_local and name != EMULATOR_ACCOUNT:
        raise ConfigError(f"{what}: http:// is for emulators only, for everybody can read along: write https://")
    return (f"{endpoint}/{account}" if account else endpoint), name


def _container_name(what: str, name: str) -> str:
    rule = "3 to 63 lower-case letters, digits and single '-', starting and ending with a letter or digit"
    return _validated(f"container in the {what}", name, _CONTAINER, length_max=63, rule=rule)


def _parse_storage_connection_string(what: str, text: str) -> BlobAddress:
    parts = _connection_string_parts(what, text, _STORAGE_PART_NAMES)
    container = _container_name(what, _required(what, parts, "Container", "=NAME, the container of the checkpoints"))
    lease = _lease_seconds(what, parts["Lease"]) if "Lease" in parts else None
    if "UseDevelopmentStorage" in parts:
        if parts["UseDevelopmentStorage"].lower() != "true":
            raise ConfigError(f"{what}: UseDevelopmentStorage takes true, or is left out")
        return BlobAddress(EMULATOR_ENDPOINT, EMULATOR_ACCOUNT, container, key=EMULATOR_KEY, lease_seconds=lease)
    bare = BlobAddress(*_connection_string_endpoint(what, parts), container=container, lease_seconds=lease)
    secrets = {"key": parts.get("AccountKey"), "signature": parts.get("SharedAccessSignature")}
    return _with_credential(what, bare, **{name: Secret(text) for name, text in secrets.items() if text})


def _connection_string_endpoint(what: str, parts: Mapping[str, str]) -> tuple[str, str]:
    if "BlobEndpoint" in parts:
        match = re.fullmatch(r"(https?)://([^/?#]*)(?:/([^/?#]+))?/?", parts["BlobEndpoint"], re.IGNORECASE)
        if not match:
            raise ConfigError(f"{what}: BlobEndpoint has to look like https://ACCOUNT.blob.core.windows.net/")
        endpoint, account = _blob_endpoint(what, match[1], match[2], match[3])
        return endpoint, parts.get("AccountName", account)
    account = _required(what, parts, "AccountName", "=ACCOUNT, or BlobEndpoint=https://ACCOUNT.blob...")
    scheme = parts.get("DefaultEndpointsProtocol", "https")
    if scheme.lower() not in ("http", "https"):
        raise ConfigError(f"{what}: DefaultEndpointsProtocol takes https (or http, for an emulator)")
    authority = f"{account}.blob.{parts.get('EndpointSuffix', 'core.windows.net')}"
    return _blob_endpoint(what, scheme, authority, None)


# What all addresses share ------------------------------------------------------------------------------------------


def _resolved(what: str, text: str) -> tuple[str, str]:
    """Follows ``env:NAME`` and ``file:PATH``, once; returns how to name the address in errors, and its text."""
    _refuse_unprintable(what, text)
    scheme, _, rest = text.partition(":")
    if scheme == "env":
        what, text = f"{what} (from the environment variable {_shown(rest)})", _from_environment(what, rest)
    elif scheme == "file":
        what, text = f"{what} (from the file {_shown(rest)})", _from_file(what, rest)
    else:
        return what, text
    text = text.strip()
    _refuse_unprintable(what, text)
    return what, text


def _refuse_unprintable(what: str, text: str) -> None:
    if not text.strip():
        raise ConfigError(f"the {what} is empty")
    if len(text) > ADDRESS_LENGTH_MAX:
        raise ConfigError(f"the {what} has {len(text)} characters: at most {ADDRESS_LENGTH_MAX} are allowed")
    for place, character in enumerate(text, start=1):
        if not character.isprintable():
            raise ConfigError(f"the {what} has a control character ({character!a}) at place {place}: remove it")


def _from_environment(what: str, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(f"{what}: env: needs the name of an environment variable, not {_shown(name)}")
    text = os.environ.get(name)
    if text is None:
        raise ConfigError(f"{what}: the environment variable {_shown(name)} is not set: set it, or correct the name")
    return text


def _from_file(what: str, name: str) -> str:
    if not name:
        raise ConfigError(f"{what}: file: needs the path of a file that holds the address")
    path = parse_path(what, name)
    try:
        with path.open("rb") as file:
            content = file.read(ADDRESS_LENGTH_MAX + 1)
        problem = None
    except OSError as error:
        content, problem = b"", error.strerror
    if problem is not None:
        raise ConfigError(f"{what}: the file {_shown(name)} cannot be read: {problem}")
    text = _decoded(content)
    if text is None:
        raise ConfigError(f"{what}: the file {_shown(name)} is not UTF-8 text")
    return text


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None  # the exception holds the content


def parse_path(what: str, path: str) -> Path:
    """The absolute path, ``~`` expanded and links followed, so that one place has one name."""
    absolute = _expanded(path)
    if absolute is None:
        raise ConfigError(f"{what}: the path {_shown(path)} leads nowhere: check '~' and symbolic links")
    return absolute


def _expanded(path: str) -> Path | None:
    try:
        return Path(path).expanduser().resolve()
    except (RuntimeError, OSError, ValueError):  # an unknown user after ~, links in a circle, or a null byte
        return None


def _scheme(text: str) -> str:
    match = re.match(r"([A-Za-z][A-Za-z0-9+]{0,19}):", text)
    return match[1].lower() if match else ""


def _unknown_scheme(what: str, scheme: str, *, known: Iterable[str], forms: str) -> ConfigError:
    if not scheme:
        return ConfigError(f"the {what} names no known kind: write {forms}")
    return ConfigError(f"{what}: {scheme}: is unknown{_nearest(scheme, known)}: write {forms}")


def _nearest(word: str, known: Iterable[str]) -> str:
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower()[:_SHOWN_LENGTH_MAX], by_lower, n=1)
    return f" (did you mean {by_lower[matches[0]]}?)" if matches else ""


# Positions, durations, sizes ---------------------------------------------------------------------------------------

POSITION_FORMS: Final = "earliest, latest, offset:VALUE, sequence:N, time:2026-01-31T12:00:00Z or time:-24h"
_INT64_MAX: Final = 2**63 - 1


def parse_position(text: str, *, now: datetime | None = None) -> Position:
    """Where to start reading, with the defaults of :class:`~hubline.model.Position`.

    ``earliest``; ``latest``; ``offset:VALUE`` and ``sequence:N`` (after that event); ``time:ISO8601`` with a time
    zone, or ``time:-24h`` (that long ago), at or after it. A last ``:inclusive`` or ``:exclusive`` says
    whether the event at the position itself is read.
    """
    from hubline.model import Position  # brings pyarrow along, which the command line's help can do without

    bare, inclusive = _split_inclusive(text)
    given = {} if inclusive is None else {"inclusive": inclusive}
    kind, _, value = bare.partition(":")
    match kind:
        case "earliest" if bare == text == kind:
            return Position.earliest()
        case "latest" if bare == kind:
            return Position.latest(**given)
        case "offset" if value and value.isprintable():
            return Position.offset(value, **given)
        case "sequence" if re.fullmatch(r"[0-9]{1,19}", value) and int(value) <= _INT64_MAX:
            return Position.sequence(int(value), **given)
        case "time":
            return Position.enqueued(parse_time(value, now=now), **given)
    raise ConfigError(f"the position {_shown(text)} is unknown: write {POSITION_FORMS}; :inclusive may follow")


def _split_inclusive(text: str) -> tuple[str, bool | None]:
    for suffix, inclusive in ((":inclusive", True), (":exclusive", False)):
        if text.endswith(suffix):
            return text.removesuffix(suffix), inclusive
    return text, None


def parse_time(text: str, *, now: datetime | None = None) -> datetime:
    """``2026-01-31T12:00:00Z``, with a time zone; or ``-24h``, that long ago."""
    if text.startswith("-"):
        return _ago(parse_duration(text[1:]), now or datetime.now(UTC))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None:
        raise ConfigError(f"the time {_shown(text)} is unknown: write 2026-01-31T12:00:00Z, or -24h for 24 hours ago")
    if time.tzinfo is None:
        raise ConfigError(f"the time {_shown(text)} has no time zone: add Z for UTC, or an offset such as +02:00")
    return time


def _ago(duration: timedelta, now: datetime) -> datetime:
    try:
        return now - duration
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)  # longer ago than calendars go: all there is


_DURATION_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
# A thousand years: longer than anything kept, short enough for any clock arithmetic.
_DURATION_DAYS_MAX: Final = 365_000


def parse_duration(text: str) -> timedelta:
    """``250ms``, ``30s``, ``5m``, ``1.5h``, ``7d``."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", text)
    if not match:
        raise ConfigError(f"the duration {_shown(text)} is unknown: write a number and ms, s, m, h or d, as in 30s")
    seconds = float(match[1]) * _DURATION_SECONDS[match[2]]
    if seconds > _DURATION_DAYS_MAX * 86400:
        raise ConfigError(f"the duration {_shown(text)} is too long: at most {_DURATION_DAYS_MAX}d")
    return timedelta(seconds=seconds)


_SIZE_BYTES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}


def parse_size(text: str) -> int:
    """Bytes, from ``200``, ``64KiB`` (powers of 1,024) or ``10GB`` (powers of 1,000)."""
    match = re.fullmatch(r"([0-9]{1,19}(?:\.[0-9]{1,6})?) ?([A-Za-z]{0,3})", text)
    unit = _SIZE_BYTES.get(match[2].lower()) if match else None
    if not match or unit is None:
        raise ConfigError(f"the size {_shown(text)} is unknown: write bytes as in 200, or 64KiB, 10MB, 1.5GB, 2TB")
    size = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if size > _INT64_MAX:
        raise ConfigError(f"the size {_shown(text)} is too large: at most {_INT64_MAX} bytes")
    return size
