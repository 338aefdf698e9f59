"""Sessions of Spark Connect: the client of a server, without a Java process of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException, PySparkImportError

from hubline.errors import ConfigError
from hubline.secrets import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_RETRIES: Final = 6
"""Of a call that does not reach the server: with the pauses below it fails after some 15 s. By default, Spark waits for
ten minutes. A supervisor starts the run again."""
INITIAL_BACKOFF_MILLISECONDS: Final = 100
MAX_BACKOFF_MILLISECONDS: Final = 5000

# What calls say once the server has ended, or another one answers at its address. The classes of these errors cannot be
# imported without gRPC.
_GONE: Final = re.compile(
    r"RETRIES_EXCEEDED|StatusCode\.UNAVAILABLE|INVALID_HANDLE\.SESSION_|SESSION_NOT_(?:FOUND|SAME)|NO_ACTIVE_SESSION"
)


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is Spark Connect's. By its name: the class cannot be imported without gRPC."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_server_gone(error: BaseException) -> bool:
    """Whether a call failed because its server has ended."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return _GONE.search(f"{condition} {error}") is not None


def validate_remote(text: str) -> str:
    """The address of a server of Spark Connect."""
    if re.match(r"sc://[^/;\s]+", text):
        return text
    raise ConfigError(f"{text[:80]!a} is not the address of a Spark Connect server. Write sc://HOST:PORT.")


def remote_session(url: str, app_name: str, settings: Mapping[str, str | Secret]) -> SparkSession:
    """A new session of a server of Spark Connect. Raises what Spark raises where none answers."""
    from pyspark.sql import SparkSession

    missing = None
    try:
        from pyspark.sql.connect.client.retries import DefaultPolicy

        builder = SparkSession.builder.remote(validate_remote(url)).appName(app_name)
        for name, value in settings.items():
            builder = builder.config(name, value.reveal() if isinstance(value, Secret) else value)
        spark = builder.create()
    except (ImportError, PySparkImportError) as error:
        missing = str(error).partition("\n")[0]
    if missing is not None:
        raise ConfigError(
            f"Spark Connect needs gRPC's packages: {missing}. Install them: pip install 'hubline[connect]'."
        )
    policy = DefaultPolicy(
        max_retries=MAX_RETRIES,
        initial_backoff=INITIAL_BACKOFF_MILLISECONDS,
        max_backoff=MAX_BACKOFF_MILLISECONDS,
    )
    spark.client.set_retry_policies([policy])
    return spark
