"""``hubline serve``: local hubs over AMQP, for the official Event Hubs clients."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubline.addresses.hub_address import AMQP_PORT, AMQPS_PORT, parse_local_root
from hubline.addresses.names import validate_hub_name
from hubline.cli.arguments import JsonOption, env_variable, option
from hubline.cli.exit_codes import say
from hubline.cli.output import print_json
from hubline.errors import ConfigError
from hubline.secrets import Secret
from hubline.text import counted

if TYPE_CHECKING:
    from hubline.emulator import SharedKey

DEFAULT_KEY_NAME: Final = "RootManageSharedAccessKey"
# The environment variable that may hold the key. A flag would show the key in the list of processes.
KEY_VARIABLE: Final = "HUBLINE_SERVE_KEY"
# What the service generates: 32 random bytes.
KEY_BYTES: Final = 32
KEY_LENGTH_MAX: Final = 1024
DEFAULT_PARTITIONS: Final = 4


def serve(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            envvar=env_variable("serve-folder"),
            help="The folder of the hubs. It is created if it does not exist.",
        ),
    ],
    create: Annotated[
        list[str] | None,
        option(
            "--create",
            f"Create this hub if it does not exist, with N partitions (default: {DEFAULT_PARTITIONS}). "
            "You can give it several times. All hubs of the folder are served.",
            metavar="NAME[:N]",
        ),
    ] = None,
    host: Annotated[
        str, option("--host", "The address to listen on. All except loopback addresses need a key.", metavar="HOST")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        option("--port", "The port; 0 chooses a free one. Default: 5672, or 5671 with --tls.", min=0, max=65535),
    ] = None,
    tls: Annotated[
        tuple[Path, Path] | None,
        option("--tls", "Use TLS with this certificate (chain) and key, both PEM files.", metavar="CERT KEY"),
    ] = None,
    key_name: Annotated[str, option("--key-name", "The name of the shared access key.", metavar="NAME")] = (
        DEFAULT_KEY_NAME
    ),
    key_file: Annotated[
        Path | None,
        option(
            "--key-file",
            f"A file with the shared access key. You can also set {KEY_VARIABLE} to the key itself. "
            "By default, any key is accepted, but only on loopback.",
            metavar="FILE",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Serve local hubs over AMQP, as Event Hubs does.

    The official Event Hubs clients connect to it without changes. When the server is ready, it prints a connection
    string for each hub. On Ctrl-C or SIGTERM, it writes and acknowledges all events that clients have sent, then stops.

    \b
    Examples:
      hubline serve ./data --create telemetry:4
      hubline serve ./data --create telemetry:4 --create orders:8 --port 0 --json
      HUBLINE_SERVE_KEY=... hubline serve ./data --host 0.0.0.0
    """
    serving = _Serving(
        folder=parse_local_root(folder) if folder.startswith("local:") else Path(folder),
        new_hubs=[_parse_hub(text) for text in create or []],
        host=host,
        port=(AMQPS_PORT if tls else AMQP_PORT) if port is None else port,
        tls=_tls_context(*tls) if tls else None,
        key=_configured_key(key_name, key_file),
        key_name=key_name,
        json=json,
    )
    asyncio.run(_serve(serving))


@dataclass(frozen=True, slots=True)
class _NewHub:
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class _Serving:
    """The options of the command, checked."""

    folder: Path
    new_hubs: list[_NewHub]
    host: str
    port: int
    tls: ssl.SSLContext | None
    key: SharedKey | None
    key_name: str
    json: bool


async def _serve(serving: _Serving) -> None:
    from hubline.emulator import Endpoint
    from hubline.hubs.local import create_hub, list_hubs
    from hubline.hubs.local.folder_hubs import FolderHubs

    for hub in serving.new_hubs:
        await create_hub(serving.folder, hub.name, partitions=hub.partitions, exist_ok=True)
    names = await list_hubs(serving.folder)
    if not names:
        raise ConfigError(f"there are no hubs in {serving.folder}. Create one with --create NAME:N.")
    stopping = _stop_signal()
    hubs = FolderHubs(serving.folder)
    endpoint = Endpoint(hubs, key=serving.key)
    try:
        port = await endpoint.start(serving.host, serving.port, tls=serving.tls)
        _announce(serving, port, names)
        await stopping.wait()
        say(f"stopping, and closing {counted(endpoint.connections_count, 'client connection')}")
    finally:
        await endpoint.stop()
        await hubs.close()


def _stop_signal() -> asyncio.Event:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


def _announce(serving: _Serving, port: int, names: list[str]) -> None:
    """Prints a connection string for each hub. Scripts wait for the first line: then the server is ready."""
    shown_host = "localhost" if serving.host in ("127.0.0.1", "0.0.0.0", "::", "::1") else serving.host  # noqa: S104
    # A configured key is not shown. Without one, the server accepts any key, but clients require one.
    key = "<the configured key>" if serving.key else secrets.token_urlsafe(KEY_BYTES)
    before = (
        f"Endpoint=sb://{shown_host}:{port};SharedAccessKeyName={serving.key_name};SharedAccessKey={key};EntityPath="
    )
    after = "" if serving.tls else ";UseDevelopmentEmulator=true"
    connection_strings = {name: f"{before}{name}{after}" for name in names}
    if serving.json:
        hubs = [{"hub": name, "connectionString": text} for name, text in connection_strings.items()]
        print_json({"host": serving.host, "port": port, "hubs": hubs})
    else:
        print("\n".join(connection_strings.values()))
    sys.stdout.flush()
    say(f"serving {counted(len(names), 'hub')} of {serving.folder} on {serving.host}:{port}: {', '.join(names)}")
    if serving.key:
        say(f"clients need the key {serving.key.name}. Replace <the configured key> with it.")


def _parse_hub(text: str) -> _NewHub:
    name, colon, count = text.partition(":")
    if colon and not (count.isascii() and count.isdigit() and int(count) > 0):
        raise ConfigError(
            f"--create {text} does not give a number of partitions. Write NAME or NAME:N, such as telemetry:4."
        )
    return _NewHub(validate_hub_name(name), int(count) if colon else DEFAULT_PARTITIONS)


def _configured_key(name: str, file: Path | None) -> SharedKey | None:
    from hubline.emulator import SharedKey

    text = os.environ.get(KEY_VARIABLE, "")
    if text and file is not None:
        raise ConfigError(f"--key-file and {KEY_VARIABLE} both give the key. Use one of them.")
    if file is not None:
        text = _read_key(file)
    if not text:
        return None
    if len(text) > KEY_LENGTH_MAX or not text.isprintable() or ";" in text:
        raise ConfigError(f"the key must be one line of at most {KEY_LENGTH_MAX} printable characters, without ';'.")
    return SharedKey(name, Secret(text))


def _read_key(file: Path) -> str:
    with file.open("rb") as opened:
        text = opened.read(KEY_LENGTH_MAX + 2).decode("utf-8", "replace").strip()
    if not text:
        raise ConfigError(f"the key file {file} is empty. Write the key into it.")
    return text


def _tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ConfigError(
            f"--tls {certificate} {key}: not a certificate and its key ({error.reason}). Give two PEM files."
        ) from None
    return context
