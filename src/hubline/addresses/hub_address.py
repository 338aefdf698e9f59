"""Addresses of hubs: local folders, connection strings, and `eventhubs://NAMESPACE/NAME`."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hubline.addresses.connection_strings import (
    connection_string_parts,
    host_and_port,
    query_parameters,
    required,
    scheme_of,
    unknown_scheme,
)
from hubline.addresses.credential_choice import CredentialChoice, parse_credential
from hubline.addresses.did_you_mean import nearest
from hubline.addresses.names import LOCAL_NAME_LENGTH_MAX, plain_name
from hubline.addresses.references import parse_path, resolve
from hubline.errors import ConfigError
from hubline.secrets import Secret, shown

AMQPS_PORT: Final = 5671
AMQP_PORT: Final = 5672
SERVICE_DOMAIN: Final = "servicebus.windows.net"


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
        raise ConfigError(f"{what}: {shown(text)} is unknown{nearest(text, known)}. Use one of: {', '.join(known)}.")
    return Transport(text)


@dataclass(frozen=True, slots=True)
class EventHubsAddress:
    """A hub of the Event Hubs service, or of what speaks its protocol.

    There is a key name with a key, or a signature, or neither: then an Entra credential is used, the default one unless
    ``credential`` names another. ``emulator`` means plain TCP instead of TLS. Without a ``transport``, the caller of
    ``open_hub`` chooses.
    """

    namespace: str
    port: int
    name: str
    key_name: str | None = None
    key: Secret | None = None
    signature: Secret | None = None
    emulator: bool = False
    transport: Transport | None = None
    credential: CredentialChoice | None = None

    @property
    def takes_credential(self) -> bool:
        """Whether an Entra credential proves who asks."""
        return self.key is None and self.signature is None

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
    what, text = resolve("hub address", text)
    scheme = scheme_of(text)
    if scheme == "local":
        return _parse_local(what, text)
    if scheme == "eventhubs":
        return _parse_eventhubs(what, text)
    if re.match(r"\s*(endpoint|sharedaccess\w*|entitypath)\s*=", text, re.IGNORECASE):
        return _parse_connection_string(what, text)
    raise unknown_scheme(what, scheme, known=("local", "eventhubs"), forms=HUB_FORMS)


def parse_local_root(text: str) -> Path:
    """The folder of local hubs that ``local:PATH`` names."""
    what, text = resolve("folder of hubs", text)
    scheme = scheme_of(text)
    if scheme != "local":
        raise unknown_scheme(what, scheme, known=("local",), forms="local:PATH")
    return parse_path(what, _local_path(what, text))


def _parse_local(what: str, text: str) -> LocalHubAddress:
    # A shell's completion leaves a slash at the end of a folder.
    folder, slash, name = _local_path(what, text).removesuffix("/").rpartition("/")
    if not slash:
        raise ConfigError(
            f"the {what} lacks a folder or a name: local: needs a folder and a name. Write local:PATH/NAME, "
            "such as local:./telemetry."
        )
    name = plain_name(f"hub name in the {what}", name, length_max=LOCAL_NAME_LENGTH_MAX)
    return LocalHubAddress(parse_path(what, folder or "/"), name)


def _local_path(what: str, text: str) -> str:
    path = text[len("local:") :]
    if path.startswith("//"):
        raise ConfigError(f"the {what} is a URL, but local: takes a path. Write local:PATH/NAME without the //.")
    return path


def _parse_eventhubs(what: str, text: str) -> EventHubsAddress:
    match = re.fullmatch(r"eventhubs://([^/]*)/([^/?]*)(?:\?([^/]*))?", text, re.IGNORECASE)
    if not match:
        raise ConfigError(
            f"the {what} is not a namespace and one hub. Write eventhubs://NAMESPACE/NAME; only "
            "?credential=... and ?transport=... may follow."
        )
    host, port = host_and_port(what, match[1])
    if "." not in host and host != "localhost":
        host = f"{host}.{SERVICE_DOMAIN}"
    name = plain_name(f"hub name in the {what}", match[2])
    fix = "Write ?credential=..., ?transport=..., both with an & between them, or nothing."
    given = dict(query_parameters(what, match[3] or "", ("credential", "transport"), fix=fix))
    return EventHubsAddress(
        host,
        port or AMQPS_PORT,
        name,
        transport=_optional_transport(what, given.get("transport")),
        credential=_optional_credential(what, given.get("credential")),
    )


def _optional_transport(what: str, text: str | None) -> Transport | None:
    return None if text is None else parse_transport(text, what=f"{what}: transport")


def _optional_credential(what: str, text: str | None) -> CredentialChoice | None:
    return None if text is None else parse_credential(text, what=f"{what}: credential")


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
    parts = connection_string_parts(what, text, _PART_NAMES)
    host, port = _parse_endpoint(what, required(what, parts, "Endpoint", "=sb://NAMESPACE.servicebus.windows.net/"))
    entity_path = required(what, parts, "EntityPath", "=HUB, the hub's name")
    name = plain_name(f"EntityPath of the {what}", entity_path)
    emulator = _parse_emulator_flag(what, parts.get("UseDevelopmentEmulator"))
    transport = _optional_transport(what, parts.get("Transport"))
    unsigned = EventHubsAddress(
        host, port or (AMQP_PORT if emulator else AMQPS_PORT), name, emulator=emulator, transport=transport
    )
    if "SharedAccessSignature" in parts:
        _refuse_key_beside_signature(what, parts)
        return replace(unsigned, signature=Secret(parts["SharedAccessSignature"]))
    key_name = required(what, parts, "SharedAccessKeyName", "=POLICY (with its SharedAccessKey=...)")
    key = Secret(required(what, parts, "SharedAccessKey", "=KEY (the policy's primary or secondary key)"))
    return replace(unsigned, key_name=key_name, key=key)


def _refuse_key_beside_signature(what: str, parts: Mapping[str, str]) -> None:
    if "SharedAccessKey" in parts or "SharedAccessKeyName" in parts:
        raise ConfigError(
            f"{what}: it has both a key and a signature. Keep SharedAccessKeyName and SharedAccessKey, or "
            "SharedAccessSignature."
        )


def _parse_emulator_flag(what: str, value: str | None) -> bool:
    # The SDKs take the exact word only, and ignore others in silence: then nobody knows if TLS is used.
    if value not in (None, "true", "false"):
        raise ConfigError(f"{what}: UseDevelopmentEmulator must be true or false, in lower case.")
    return value == "true"


def _parse_endpoint(what: str, endpoint: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(?i:sb)://([^/]*)/?", endpoint)
    if not match:
        raise ConfigError(f"{what}: Endpoint is not valid. Write sb://HOST/ or sb://HOST:PORT/, without a path.")
    return host_and_port(f"{what}: Endpoint", match[1])
