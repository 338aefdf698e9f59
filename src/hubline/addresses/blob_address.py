"""Addresses of containers in Azure Blob Storage."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from hubline.addresses.connection_strings import connection_string_parts, host_and_port, query_parameters, required
from hubline.addresses.credential_choice import CredentialChoice, parse_credential
from hubline.addresses.names import validated
from hubline.addresses.references import resolve
from hubline.errors import ConfigError
from hubline.secrets import Secret


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """A container of Azure Blob Storage, or of what speaks its protocol.

    ``endpoint`` has no slash at its end; where the account is not part of the host's name, it ends in ``/ACCOUNT``.
    There is the account's key, or a signature (the query of a signed URL), or neither: then an Entra credential is
    used, the default one unless ``credential`` names another.
    """

    endpoint: str
    account: str
    container: str
    key: Secret | None = None
    signature: Secret | None = None
    credential: CredentialChoice | None = None

    @property
    def takes_credential(self) -> bool:
        """Whether an Entra credential proves who asks."""
        return self.key is None and self.signature is None

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.container}"


# Blob containers ---------------------------------------------------------------------------------------------------

EMULATOR_ACCOUNT: Final = "devstoreaccount1"
# The same in every emulator, and published: it protects nothing.
EMULATOR_KEY: Final = Secret("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
EMULATOR_ENDPOINT: Final = f"http://127.0.0.1:10000/{EMULATOR_ACCOUNT}"
BLOB_FORM: Final = "https://ACCOUNT.blob.core.windows.net/CONTAINER"

_STORAGE_PART_NAMES: Final = (
    "DefaultEndpointsProtocol",
    "AccountName",
    "AccountKey",
    "SharedAccessSignature",
    "BlobEndpoint",
    "EndpointSuffix",
    "UseDevelopmentStorage",
    "Container",
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
ACCOUNT = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,61})[a-z0-9]")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")


def parse_blob_url(what: str, text: str) -> BlobAddress:
    match = re.fullmatch(r"(https?)://([^/?#]*)((?:/[^/?#]+){1,2})/?(?:\?([^#]*))?", text, re.IGNORECASE)
    if not match:
        raise ConfigError(
            f"the {what} is not the address of a container. Write {BLOB_FORM}, or "
            f"http://127.0.0.1:PORT/{EMULATOR_ACCOUNT}/CONTAINER."
        )
    *account, container = match[3].split("/")[1:]
    endpoint = _blob_endpoint(what, match[1], match[2], account[0] if account else None)
    bare = BlobAddress(*endpoint, container=_container_name(what, container))
    found = _blob_parameters(what, match[4] or "")
    choice = found.get("credential")
    return _authorized(
        what,
        bare,
        key=_secret(what, "key", found.get("key")),
        signature=Secret(found["signature"]) if "signature" in found else _secret(what, "sas", found.get("sas")),
        credential=None if choice is None else parse_credential(choice, what=f"{what}: credential"),
    )


def _blob_parameters(what: str, query: str) -> dict[str, str]:
    """A signed URL's query is the signature; else ``key`` and ``sas`` name where the secret is kept."""
    if re.search(r"(?:^|&)sig=", query):
        return {"signature": query}
    fix = (
        "Write a whole signature (with its sig=), key= or sas= followed by env:NAME or file:PATH, where the "
        "account's key or a signature is kept, or credential=... for an Entra credential."
    )
    return dict(query_parameters(what, query, ("key", "sas", "credential"), fix=fix))


def _secret(what: str, name: str, reference: str | None) -> Secret | None:
    if reference is None:
        return None
    if not reference.startswith(("env:", "file:")):
        raise ConfigError(
            f"{what}: {name}= must not hold the secret itself, because addresses are printed. Store it in "
            f"an environment variable or a file, and write {name}=env:NAME or {name}=file:PATH."
        )
    return Secret(resolve(f"{name} of the {what}", reference)[1])


def _authorized(
    what: str,
    address: BlobAddress,
    *,
    key: Secret | None = None,
    signature: Secret | None = None,
    credential: CredentialChoice | None = None,
) -> BlobAddress:
    given = [name for name, value in (("key", key), ("signature", signature), ("credential", credential)) if value]
    if len(given) > 1:
        raise ConfigError(f"{what}: it has both a {given[0]} and a {given[1]}. Keep one of them.")
    if key and not _is_base64(key):
        raise ConfigError(f"{what}: the account's key is not base64. Copy all of it, with the = at its end.")
    if signature:
        signature = Secret(signature.reveal().removeprefix("?"))
        if not re.search(r"(?:^|&)sig=[^&]", signature.reveal()):
            raise ConfigError(f"{what}: the signature has no sig= part. Copy all of it, from sv= to its end.")
    if not given and address.account == EMULATOR_ACCOUNT:
        key = EMULATOR_KEY
    return replace(address, key=key, signature=signature, credential=credential)


def _is_base64(key: Secret) -> bool:
    try:
        return len(base64.b64decode(key.reveal(), validate=True)) > 0
    except ValueError:
        return False  # its message may quote the key


def _blob_endpoint(what: str, scheme: str, authority: str, account: str | None) -> tuple[str, str]:
    """The endpoint and the account's name, which is in the path, or the first part of the host's name."""
    host, port = host_and_port(what, authority)
    endpoint = f"{scheme.lower()}://{host}" + (f":{port}" if port else "")
    name = account or host.partition(".")[0]
    if not ACCOUNT.fullmatch(name):
        raise ConfigError(f"{what}: the account's name is missing or not valid. Write {BLOB_FORM}.")
    is_local = host == "localhost" or host.startswith("127.")
    if scheme.lower() == "http" and not is_local and name != EMULATOR_ACCOUNT:
        raise ConfigError(f"{what}: http:// is not encrypted, so it is for emulators only. Write https://.")
    return (f"{endpoint}/{account}" if account else endpoint), name


def _container_name(what: str, name: str) -> str:
    rule = "3 to 63 lower-case letters, digits and single '-', starting and ending with a letter or digit"
    return validated(f"container in the {what}", name, _CONTAINER, length_max=63, rule=rule)


def parse_storage_connection_string(what: str, text: str) -> BlobAddress:
    parts = connection_string_parts(what, text, _STORAGE_PART_NAMES)
    container = _container_name(what, required(what, parts, "Container", "=NAME, the container of the checkpoints"))
    if "UseDevelopmentStorage" in parts:
        if parts["UseDevelopmentStorage"].lower() != "true":
            raise ConfigError(f"{what}: UseDevelopmentStorage must be true. Write true, or remove it.")
        return BlobAddress(EMULATOR_ENDPOINT, EMULATOR_ACCOUNT, container, key=EMULATOR_KEY)
    bare = BlobAddress(*_connection_string_endpoint(what, parts), container=container)
    key, signature = (
        Secret(parts[name]) if name in parts else None for name in ("AccountKey", "SharedAccessSignature")
    )
    return _authorized(what, bare, key=key, signature=signature)


def _connection_string_endpoint(what: str, parts: Mapping[str, str]) -> tuple[str, str]:
    if "BlobEndpoint" in parts:
        match = re.fullmatch(r"(https?)://([^/?#]*)(?:/([^/?#]+))?/?", parts["BlobEndpoint"], re.IGNORECASE)
        if not match:
            raise ConfigError(
                f"{what}: BlobEndpoint is not the address of an account. Write "
                "BlobEndpoint=https://ACCOUNT.blob.core.windows.net/."
            )
        endpoint, account = _blob_endpoint(what, match[1], match[2], match[3])
        return endpoint, parts.get("AccountName", account)
    account = required(what, parts, "AccountName", "=ACCOUNT, or BlobEndpoint=https://ACCOUNT.blob...")
    scheme = parts.get("DefaultEndpointsProtocol", "https")
    if scheme.lower() not in ("http", "https"):
        raise ConfigError(f"{what}: DefaultEndpointsProtocol must be https, or http for an emulator.")
    authority = f"{account}.blob.{parts.get('EndpointSuffix', 'core.windows.net')}"
    return _blob_endpoint(what, scheme, authority, None)
