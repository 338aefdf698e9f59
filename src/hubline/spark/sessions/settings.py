"""The settings of a session: the user's, and hubline's where the user has none."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hubline.errors import ConfigError
from hubline.secrets import Secret
from hubline.spark.compatibility import CHECKPOINT_FILES
from hubline.spark.sessions.redaction import hiding, is_hidden

if TYPE_CHECKING:
    from pyspark import SparkConf

# A task that fails is tried so often in all, as on a cluster; plain local[N] gives up at once.
TASK_ATTEMPTS: Final = 4
LOCAL_MASTER: Final = f"local[*,{TASK_ATTEMPTS}]"

LOOPBACK: Final = "127.0.0.1"

SETTINGS: Final[Mapping[str, str]] = {
    # Sockets that other users of the machine cannot connect to, and that save about 40 ms a micro-batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # Connections to hubs are kept in the workers.
    "spark.python.worker.reuse": "true",
    # Times of events are in UTC; so is what is shown of them.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # By rows alone (10,000), events of 1 MB would make batches of 10 GB.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.log.level": "WARN",
}
"""What a session of any kind gets."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # The default starts some 40 processes a micro-batch to write its logs: this, and no files of checksums, make 15 ms
    # of 70. It is for folders of this machine, which is where a session without a cluster keeps its checkpoints.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    # Its workers have what they need loaded: half a second of processor time less for each. On a cluster, Python may be
    # one without hubline where an application does not read hubs.
    "spark.python.daemon.module": "hubline.spark.tasks.worker_daemon",
    # Each of Spark's 200 would cost a task, and files of state, in every micro-batch that shuffles.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}
"""What a session without a cluster gets in addition."""

# Settings that have an effect only where Java is started.
_AT_START: Final = ("spark.master", "spark.driver.", "spark.jars", "spark.files", "spark.archives", "spark.submit")

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>[^\],]+)(?P<attempts>,[^\]]+)?\])?")


def is_local(master: str) -> bool:
    """Whether it is this machine, without a cluster."""
    return _LOCAL.fullmatch(master) is not None


def requested_settings(app_name: str, master: str | None, config: Mapping[str, object]) -> dict[str, str]:
    """What the caller asked for, as Spark takes it."""
    for name, value in config.items():
        if not name.startswith("spark."):
            raise ConfigError(
                f'{name} is not a setting of Spark. Write its whole name, which starts with "spark.", such as '
                "spark.ui.enabled."
            )
        if not isinstance(value, str | int | float | Secret):
            raise ConfigError(f"{name} must be text, a number, True or False, not {type(value).__name__}.")
    given = {name: _as_text(value) for name, value in config.items()}
    given["spark.app.name"] = app_name
    if master := master or given.get("spark.master"):
        given["spark.master"] = with_attempts(master)
    return given


def _as_text(value: object) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_attempts(master: str) -> str:
    match = _LOCAL.fullmatch(master)
    if match is None or match["attempts"]:
        return master
    return f"local[{match['cores'] or 1},{TASK_ATTEMPTS}]"


def has_master() -> bool:
    """Whether Spark itself knows where to run, from spark-submit or in its files."""
    in_arguments = "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    in_file = re.search(r"^\s*spark\.master\b", defaults_file(), re.MULTILINE)
    return is_submitted() or in_arguments or in_file is not None


def is_submitted() -> bool:
    """Whether spark-submit started this program: then Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def defaults_file() -> str:
    """The text of spark-defaults.conf, or nothing."""
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(os.environ.get("SPARK_HOME", ""), "conf"))
    try:
        return Path(folder, "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return ""


def settings_at_start(given: Mapping[str, str], secrets: Collection[str]) -> dict[str, str]:
    own = given.get("spark.redaction.regex")
    return {
        name: value
        for name, value in given.items()
        if name.startswith(_AT_START) or not (name in secrets or is_hidden(name, value, given=own))
    }


def completed_settings(conf: SparkConf, given: Mapping[str, str], secrets: Collection[str]) -> SparkConf:
    """The settings of the user, and ours where the user has none."""
    settled = {**dict(conf.getAll()), **given}
    settled["spark.master"] = with_attempts(settled.get("spark.master", LOCAL_MASTER))
    ours = {**SETTINGS, **(LOCAL_SETTINGS if is_local(settled["spark.master"]) else {})}
    return conf.setAll(list({**ours, **settled, **hiding(settled, secrets)}.items()))
