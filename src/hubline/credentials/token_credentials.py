"""The credential that an address or an option names, made in the process that uses it.

A credential is never pickled: addresses carry its name, and the driver and each worker make their own. What cannot be
made is a ConfigError that names the address, the credential, and the machine, since workers are not the driver.
"""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

from hubline.addresses.credential_choice import CredentialChoice, CredentialKind
from hubline.credentials.entra_tokens import Credential, LentCredential
from hubline.errors import ConfigError
from hubline.secrets import redact

_KEYS_FIX: Final = (
    "Or give a key: SharedAccessKeyName and SharedAccessKey in a hub's connection string, ?key=env:NAME in a "
    "container's address."
)
_WORKLOAD_VARIABLES: Final = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE")


def token_credential(choice: CredentialChoice | None, *, where: str) -> Credential:
    """The credential of this name, for the hub or store ``where``. Without a choice, azure-identity's default one.

    Raises ConfigError if it cannot be made in this process.
    """
    choice = choice or CredentialChoice()
    try:
        made = _checked(_MAKERS[choice.kind](choice.name))
        return LentCredential(made) if choice.kind is CredentialKind.FACTORY else made
    except ConfigError as problem:
        message = f"{where}: the credential {choice} cannot be made {_here()}: {problem}"
    raise ConfigError(message)


def in_spark_task() -> bool:
    """Whether this process runs a task of Spark now. Planning runs in Python processes that run no task."""
    taskcontext = sys.modules.get("pyspark.taskcontext")
    return taskcontext is not None and taskcontext.TaskContext.get() is not None


def _here() -> str:
    return f"on {socket.gethostname()}{', in a Spark task' if in_spark_task() else ''}"


def _checked(made: Any) -> Credential:
    kind = f"the class {made.__name__}" if isinstance(made, type) else f"an object of class {type(made).__name__}"
    get_token = None if isinstance(made, type) else getattr(made, "get_token", None)
    if not callable(get_token):
        raise ConfigError(f"it is {kind}, which has no get_token(scope). Return a TokenCredential of azure-core.")
    if inspect.iscoroutinefunction(get_token):
        raise ConfigError(
            f"it is asynchronous ({kind}). Use the class of the same name in azure.identity, not azure.identity.aio."
        )
    credential: Credential = made
    return credential


# azure-identity ----------------------------------------------------------------------------------------------------


def _default(_name: str) -> object:
    return _identity().DefaultAzureCredential()


def _managed_identity(client_id: str) -> object:
    return _identity().ManagedIdentityCredential(**({"client_id": client_id} if client_id else {}))


def _workload_identity(_name: str) -> object:
    if missing := [name for name in _WORKLOAD_VARIABLES if not os.environ.get(name)]:
        raise ConfigError(
            f"the environment variable {missing[0]} is not set. Let the pod use a service account with workload "
            "identity (label azure.workload.identity/use), or set it."
        )
    return _identity().WorkloadIdentityCredential()


def _identity() -> ModuleType:
    try:
        return importlib.import_module("azure.identity")
    except ImportError:
        raise ConfigError(
            f"the package azure-identity is not installed. Install it: pip install 'hubline[entra]'. {_KEYS_FIX}"
        ) from None


# Databricks and Fabric ---------------------------------------------------------------------------------------------


def _databricks(name: str) -> object:
    """Databricks has one function for notebooks and one for workers; planning runs in either kind of process."""
    finders = (_provider_of_workers, _provider_of_dbutils)
    for find in finders if in_spark_task() else reversed(finders):
        if provider := find():
            return _called(provider, name, fix="Check its name, and that you may use it")
    raise ConfigError(
        "there is no Databricks runtime with service credentials (16.2 or later). Run it there, or choose another "
        "credential."
    )


def _provider_of_workers() -> Callable[[str], object] | None:
    try:
        module = importlib.import_module("databricks.service_credentials")
    except ImportError:
        return None
    provider: Callable[[str], object] | None = getattr(module, "getServiceCredentialsProvider", None)
    return provider


def _provider_of_dbutils() -> Callable[[str], object] | None:
    credentials = getattr(_dbutils(), "credentials", None)
    provider: Callable[[str], object] | None = getattr(credentials, "getServiceCredentialsProvider", None)
    return provider


def _dbutils() -> object:
    """A notebook's own, which its program is given; or that of the running session."""
    if given := getattr(sys.modules.get("__main__"), "dbutils", None):
        return given
    try:
        module = importlib.import_module("databricks.sdk.runtime")
        return getattr(module, "dbutils", None)
    except (ImportError, ValueError):  # ValueError: it finds no workspace, as outside of Databricks
        return None


def _fabric(_name: str) -> object:
    from hubline.credentials.fabric import FabricCredential, notebook_credentials

    credentials = notebook_credentials()
    if credentials is None:
        raise ConfigError(
            "there is no notebookutils, which Microsoft Fabric and Synapse give their notebooks. Run it there, or "
            "choose another credential."
        )
    return FabricCredential(credentials)


# Factories ---------------------------------------------------------------------------------------------------------


def _factory(path: str) -> object:
    """Calls the function that the person who wrote the configuration named."""
    module_name, _, function_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module of the user's may raise anything
        raise ConfigError(
            f"the module {module_name} cannot be imported ({_reason(error)}). Install it in the Python of this "
            "machine, or add its directory to PYTHONPATH."
        ) from None
    factory: Any = getattr(module, function_name, None)
    if not callable(factory):
        raise ConfigError(f"the module {module_name} has no function {function_name}. Add it, or correct the name.")
    return _called(factory, fix="Correct the function")


def _called(make: Callable[..., object], *arguments: str, fix: str) -> object:
    try:
        return make(*arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is not ours
        raise ConfigError(f"it failed ({_reason(error)}). {fix}, or choose another credential.") from None


def _reason(error: BaseException) -> str:
    """On one line, and without what looks like a secret."""
    text = " ".join(redact(str(error)).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_MAKERS: Final[Mapping[CredentialKind, Callable[[str], object]]] = {
    CredentialKind.DEFAULT: _default,
    CredentialKind.MANAGED_IDENTITY: _managed_identity,
    CredentialKind.WORKLOAD_IDENTITY: _workload_identity,
    CredentialKind.DATABRICKS: _databricks,
    CredentialKind.FABRIC: _fabric,
    CredentialKind.FACTORY: _factory,
}
