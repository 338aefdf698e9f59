"""What a run needs before Spark starts: the checkpoint folder for itself alone, and the hubs that it is to create."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hubline.addresses.hub_address import LocalHubAddress
from hubline.addresses.store_address import SqliteAddress, parse_store
from hubline.errors import ConfigError
from hubline.hubs.local import create_hub
from hubline.pipeline.datasets import HubDataset
from hubline.pipeline.plan import Plan, PlannedQuery, local_folder
from hubline.pipeline.progress import View
from hubline.pipeline.stop_gate import Gate
from hubline.text import counted


@contextmanager
def locked(plan: Plan) -> Iterator[None]:
    """The checkpoint folder, for this run alone: two runs in one folder would write over each other's batches."""
    folder = local_folder(plan.run.spark_checkpoints)
    if folder is None:
        yield
        return
    import fcntl

    with _lock_file(folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The store that is made where none is named lies in the folder: another folder would read all of it again.
            store = " and name a store for both (--set run.store=URL)" if plan.default_store else ""
            raise ConfigError(
                f"another run uses the folder {folder}. Stop it, or give this one a folder of its own (--set "
                f"run.spark_checkpoints=PATH){store}. Instances share their work through the store."
            ) from None
        yield


def _lock_file(folder: Path) -> BinaryIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / ".lock").open("wb")
    except OSError as error:
        reason = error.strerror or type(error).__name__
    raise ConfigError(
        f"the folder {folder} cannot be written to ({reason}). Give this user the right, or name another folder "
        "(--set run.spark_checkpoints=PATH)."
    )


def create_what_is_missing(plan: Plan, view: View) -> None:
    """Creates what the plan said it would: folders of databases, and hubs."""
    for stage in plan.stages:
        store = parse_store(stage.store) if stage.store else None
        if isinstance(store, SqliteAddress):
            store.path.parent.mkdir(parents=True, exist_ok=True)
    datasets = [dataset for stage in plan.stages for dataset in (*stage.sources, stage.sink, stage.dead_letters)]
    hubs = {dataset.name: dataset for dataset in datasets if isinstance(dataset, HubDataset)}
    for dataset in [hub for hub in hubs.values() if hub.create_if_missing]:
        address = dataset.address
        if isinstance(address, LocalHubAddress) and not (address.root / address.name).exists():
            asyncio.run(create_hub(address.root, address.name, partitions=dataset.partitions, exist_ok=True))
            view.note(f"created hub {dataset} with {counted(dataset.partitions, 'partition')}")


def owner_id_of(plan: Plan) -> str | None:
    """The same after a crash, so that partitions are taken back at once. By the lock, nobody else has it."""
    folder = local_folder(plan.run.spark_checkpoints)
    if folder is None:
        return None
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"{plan.name}@{socket.gethostname()[:40]}-{mark}"


def gate_of(plan: Plan, query: PlannedQuery) -> Gate:
    """Within the checkpoint folder, where that is on this machine: nobody cleans up there while the run continues."""
    folder = local_folder(plan.run.spark_checkpoints)
    return Gate(folder / f".gate-{query.id}" if folder else Path(tempfile.mkdtemp(prefix="hubline-gate-")))
