"""Which Entra credential proves who asks, as people write it: `credential=` in an address, or an option of that name.

It names a credential and holds none: it may be pickled, printed and compared. Each process makes its own from it.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from hubline.addresses.did_you_mean import nearest
from hubline.errors import ConfigError
from hubline.secrets import shown


class CredentialKind(enum.StrEnum):
    DEFAULT = "default"
    """azure-identity's DefaultAzureCredential: environment, managed identity, the developer's own login."""

    MANAGED_IDENTITY = "managed-identity"
    """The identity that Azure gives a machine, an app or a container."""

    WORKLOAD_IDENTITY = "workload-identity"
    """The identity of a Kubernetes service account."""

    DATABRICKS = "databricks"
    """A service credential of Unity Catalog, by its name."""

    FABRIC = "fabric"
    """The identity that a Microsoft Fabric notebook runs as."""

    FACTORY = "factory"
    """Whatever a function of the user's returns."""


@dataclass(frozen=True, slots=True)
class CredentialChoice:
    """``name`` is the client id, the service credential's name, or ``package.module:function``; empty without any."""

    kind: CredentialKind = CredentialKind.DEFAULT
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind.value


CREDENTIAL_FORMS: Final = (
    "default, managed-identity, managed-identity:CLIENT_ID, workload-identity, databricks:NAME, fabric, "
    "factory:package.module:function"
)

_NAMED: Final = {
    CredentialKind.MANAGED_IDENTITY: (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "CLIENT_ID, the identity's UUID"),
    CredentialKind.DATABRICKS: (r"[\w-]{1,255}", "NAME, the name of the service credential in Unity Catalog"),
    CredentialKind.FACTORY: (r"(?!\d)\w+(?:\.(?!\d)\w+)*:(?!\d)\w+", "package.module:function"),
}
"""What the name must look like, and what to write in its place."""


def parse_credential(text: str, *, what: str = "") -> CredentialChoice:
    """One of ``CREDENTIAL_FORMS``. Nothing is imported or asked for here: this holds on every machine alike.

    ``what`` begins errors, where the caller names nothing itself.
    """
    where = f"{what}: " if what else ""
    kind_text, colon, name = text.partition(":")
    known = [kind.value for kind in CredentialKind]
    if kind_text not in known:
        suggestion = nearest(kind_text, known)
        raise ConfigError(f"{where}{shown(kind_text)} is unknown{suggestion}. Use one of: {CREDENTIAL_FORMS}.")
    kind = CredentialKind(kind_text)
    if kind not in _NAMED:
        if colon:
            raise ConfigError(f"{where}{kind} takes no name. Write {kind}, without the colon and what follows.")
        return CredentialChoice(kind)
    expression, form = _NAMED[kind]
    if not colon and kind is CredentialKind.MANAGED_IDENTITY:
        return CredentialChoice(kind)
    if not re.fullmatch(expression, name, re.IGNORECASE):
        raise ConfigError(f"{where}{shown(name)} is not the name that {kind} needs. Write {kind}:{form}.")
    return CredentialChoice(kind, name)
