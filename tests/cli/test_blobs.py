"""Verbs on a blob container: old blobs are moved, progress is copied there and back, the doctor sees what is wrong."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.storage.blob import (
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    RetentionPolicy,
    generate_container_sas,
)

from hubline.adapters import open_hub, open_store
from hubline.addresses.blob_address import EMULATOR_KEY
from hubline.checkpoint_stores.blob import Container
from hubline.cli.exit_codes import ExitCode
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from tests.cli.conftest import Cli, Group, Result, append
from tests.support.azurite import Azurite

pytestmark = pytest.mark.xdist_group("azurite")

FORK = "Acme.servicebus.windows.net/Orders/Billing"
NEW = FORK.lower()
PLANTED = "hUnTeR2pLaNtEd"


@pytest.fixture
def service(azurite_server: Azurite) -> Iterator[BlobServiceClient]:
    """The official client of the account."""
    with BlobServiceClient.from_connection_string(azurite_server.connection_string) as client:
        yield client


@pytest.fixture
def blobs(service: BlobServiceClient, container: str) -> ContainerClient:
    """The official client of the container."""
    return service.get_container_client(container.rpartition("/")[2])


@pytest.fixture
def shared(hub: str, container: str) -> Group:
    """A group of the hub whose progress is in the container."""
    opened = open_hub(hub)
    return Group(container, open_store(container), GroupKey(opened.namespace, opened.name, "billing"))


def put(blobs: ContainerClient, name: str, body: bytes = b"", **metadata: str) -> Any:
    client = blobs.get_blob_client(name)
    client.upload_blob(body, metadata=metadata, overwrite=True)
    return client


def checkpoint(blobs: ContainerClient, place: str, partition: str, sequence: int) -> Any:
    name = f"{place}/checkpoint/{partition}"
    return put(blobs, name, offset=str(sequence * 100), sequencenumber=str(sequence))


def lease(blobs: ContainerClient, partition: str, sequence: int, *, owner: str | None = None) -> Any:
    content = {
        "Offset": str(sequence * 100),
        "SequenceNumber": sequence,
        "PartitionId": partition,
        "Owner": owner,
        "Token": "",
        "Epoch": 4,
    }
    return put(blobs, f"{FORK}/{partition}", json.dumps(content).encode())


def sequences(blobs: ContainerClient, place: str = NEW) -> dict[str, int]:
    found = blobs.list_blobs(name_starts_with=f"{place}/checkpoint/", include=["metadata"])
    return {each.name.rpartition("/")[2]: int(each.metadata["sequencenumber"]) for each in found}


def names(blobs: ContainerClient) -> set[str]:
    return {each.name for each in blobs.list_blobs()}


def steps(result: Result) -> dict[str, str]:
    return {each["partition"]: each["step"] for each in result.json_lines}


def by_code(result: Result) -> Mapping[str, Any]:
    return {each["code"]: each for each in result.json_lines}


def partitions_of(finding: Mapping[str, Any]) -> dict[str, str]:
    return {each["partition"]: each["message"] for each in finding["partitions"]}


def run(group: Group, *calls: Any) -> None:
    async def running() -> None:
        for call in calls:
            await call
        await group.store.close()

    asyncio.run(running())


# migrate -----------------------------------------------------------------------------------------------------------


def test_the_further_of_two_forks_is_kept(cli: Cli, container: str, blobs: ContainerClient) -> None:
    for partition, old, new in (("0", 9, None), ("1", 9, 3), ("2", 3, 9)):
        checkpoint(blobs, FORK, partition, old)
        if new is not None:
            checkpoint(blobs, NEW, partition, new)
    before = names(blobs)
    result = cli("checkpoints", "migrate", container, "--yes", "--json")
    assert result.code == 0
    assert steps(result) == {"0": "set", "1": "forward", "2": "kept"}
    assert set(result.json_lines[0]) == {
        "namespace", "hub", "consumerGroup", "partition", "step", "done", "source", "before", "checkpoint", "reason",
        "oldBlobs", "deletedBlobs",
    }  # fmt: skip
    assert sequences(blobs) == {"0": 9, "1": 9, "2": 9}
    assert sequences(blobs, FORK) == {"0": 9, "1": 9, "2": 3}  # originals stay
    assert names(blobs) - before == {f"{NEW}/checkpoint/0"}


def test_leases_of_the_event_processor_host_become_checkpoints(
    cli: Cli, container: str, blobs: ContainerClient
) -> None:
    lease(blobs, "0", 12)
    lease(blobs, "1", 0)
    put(blobs, f"{FORK}/2", json.dumps({"Offset": None, "SequenceNumber": 0, "Owner": "", "Epoch": 0}).encode())
    put(blobs, f"{FORK}/3", b"something else of four names")
    result = cli("checkpoints", "migrate", container, "--yes", "--json")
    assert result.code == 0
    assert steps(result) == {"0": "set", "1": "set", "2": "same"}
    assert sequences(blobs) == {"0": 12, "1": 0}


def test_migrating_again_changes_nothing(cli: Cli, container: str, blobs: ContainerClient) -> None:
    checkpoint(blobs, FORK, "0", 9)
    assert cli("checkpoints", "migrate", container, "--yes").code == 0
    again = cli("checkpoints", "migrate", container)
    assert again.code == 0
    assert "nothing to change" in again.err


def test_old_blobs_are_deleted_if_asked_for(cli: Cli, container: str, blobs: ContainerClient) -> None:
    checkpoint(blobs, FORK, "0", 9)
    put(blobs, f"{FORK}/ownership/0", ownerid="")
    lease(blobs, "1", 3)
    put(blobs, f"{FORK}/notes", b"mine")
    result = cli("checkpoints", "migrate", container, "--delete-old", "--yes")
    assert result.code == 0
    assert "deleted 3 old blobs" in result.err
    assert names(blobs) == {f"{NEW}/checkpoint/0", f"{NEW}/checkpoint/1", f"{FORK}/notes"}


@pytest.mark.parametrize(
    ("flags", "code"), [(("--dry-run",), ExitCode.OK), ((), ExitCode.NOT_CONFIRMED)], ids=["dry run", "no answer"]
)
def test_nothing_is_moved_unasked(
    cli: Cli, container: str, blobs: ContainerClient, flags: tuple[str, ...], code: ExitCode
) -> None:
    checkpoint(blobs, FORK, "0", 9)
    before = names(blobs)
    result = cli("checkpoints", "migrate", container, "--delete-old", *flags)
    assert result.code == code
    assert "becomes" in result.err
    assert names(blobs) == before


def test_old_blobs_that_somebody_still_writes_are_left_alone(cli: Cli, container: str, blobs: ContainerClient) -> None:
    checkpoint(blobs, FORK, "0", 9)
    put(blobs, f"{FORK}/ownership/0", ownerid="a-go-processor")
    held = lease(blobs, "1", 3, owner="a-host").acquire_lease(lease_duration=60)
    checkpoint(blobs, FORK, "2", 5)
    result = cli("checkpoints", "migrate", container, "--delete-old", "--yes", "--json")
    assert result.code == ExitCode.FAILED
    assert steps(result) == {"0": "owned", "1": "owned", "2": "set"}
    assert ["a-go-processor" in str(each["reason"]) for each in result.json_lines] == [True, False, False]
    assert sequences(blobs) == {"2": 5}
    assert {f"{FORK}/checkpoint/0", f"{FORK}/ownership/0", f"{FORK}/1"} <= names(blobs)
    held.release()


def test_an_old_blob_written_meanwhile_is_not_deleted(
    cli: Cli, container: str, blobs: ContainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(blobs, FORK, "0", 9)
    delete = Container.delete

    async def late(self: Container, name: str, *, etag: str | None = None) -> bool:
        if name == f"{FORK}/checkpoint/0":
            checkpoint(blobs, FORK, "0", 11)
        return await delete(self, name, etag=etag)

    monkeypatch.setattr(Container, "delete", late)
    result = cli("checkpoints", "migrate", container, "--delete-old", "--yes", "--json")
    assert result.code == ExitCode.FAILED
    assert "written meanwhile" in result.json["reason"]
    assert sequences(blobs, FORK) == {"0": 11}
    monkeypatch.undo()
    assert cli("checkpoints", "migrate", container, "--delete-old", "--yes").code == 0
    assert sequences(blobs) == {"0": 11}
    assert sequences(blobs, FORK) == {}


@pytest.mark.kills
def test_a_migration_that_was_killed_is_finished_by_the_next(cli: Cli, container: str, blobs: ContainerClient) -> None:
    for partition in "012":
        checkpoint(blobs, FORK, partition, 9)
    program = f"""
import os, signal, sys
from hubline.cli.app import main
from hubline.checkpoint_stores.blob import Container
delete = Container.delete
async def dies_after_the_first(self, name, **kwargs):
    await delete(self, name, **kwargs)
    if name.startswith({FORK!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    return True
Container.delete = dies_after_the_first
main(sys.argv[1:])
"""
    args = ("checkpoints", "migrate", container, "--delete-old", "--yes")
    killed = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sequences(blobs) == {"0": 9, "1": 9, "2": 9}
    assert len(sequences(blobs, FORK)) < 3
    assert cli(*args).code == 0
    assert (sequences(blobs), sequences(blobs, FORK)) == ({"0": 9, "1": 9, "2": 9}, {})


def test_a_container_without_old_blobs_needs_nothing(cli: Cli, container: str, blobs: ContainerClient) -> None:
    checkpoint(blobs, NEW, "0", 9)
    result = cli("checkpoints", "migrate", container, "--yes")
    assert (result.code, result.out) == (0, "")
    assert "no old blobs" in result.err


def test_only_containers_are_migrated(cli: Cli) -> None:
    result = cli("checkpoints", "migrate", "sqlite:///state.db")
    assert result.code == ExitCode.USAGE
    assert "blob containers" in result.err


def test_a_prefix_limits_what_is_moved(cli: Cli, container: str, blobs: ContainerClient) -> None:
    checkpoint(blobs, FORK, "0", 9)
    checkpoint(blobs, "Other.servicebus.windows.net/h/g", "0", 9)
    assert cli("checkpoints", "migrate", container, "--prefix", "Acme.", "--yes").code == 0
    assert sequences(blobs) == {"0": 9}
    assert sequences(blobs, "other.servicebus.windows.net/h/g") == {}


# copy --------------------------------------------------------------------------------------------------------------


def test_progress_goes_from_a_container_to_a_file_and_back(
    cli: Cli, hub: str, container: str, azurite_server: Azurite, shared: Group
) -> None:
    keys = [shared.key.partition(name) for name in "01"]
    run(shared, *(shared.store.reset_checkpoint(key, Checkpoint(key, "640", 7)) for key in keys))
    elsewhere = azurite_server.new_container()
    file = "sqlite:///state.db"
    for source, target in ((container, file), (file, elsewhere)):
        copied = cli(
            "checkpoints", "copy", hub, "--from-store", source, "--to-store", target, "--group", "billing", "--yes"
        )
        assert copied.code == 0, copied.err
    shown = cli("checkpoints", "show", hub, "--store", elsewhere, "--group", "billing", "--json").json_lines
    assert [each["checkpoint"] for each in shown] == [{"sequenceNumber": 7, "offset": "640"}] * 2


def test_copy_never_moves_a_containers_checkpoint_back(cli: Cli, hub: str, shared: Group, container: str) -> None:
    key = shared.key.partition("0")
    run(shared, shared.store.reset_checkpoint(key, Checkpoint(key, "900", 9)))
    cli(
        "checkpoints",
        "copy",
        hub,
        "--from-store",
        container,
        "--to-store",
        "sqlite:///a.db",
        "--group",
        "billing",
        "--yes",
    )
    behind = open_store("sqlite:///a.db")

    async def put_behind() -> None:
        await behind.reset_checkpoint(key, Checkpoint(key, "500", 5))
        await behind.close()

    asyncio.run(put_behind())
    args = (
        "checkpoints",
        "copy",
        hub,
        "--from-store",
        "sqlite:///a.db",
        "--to-store",
        container,
        "--group",
        "billing",
        "--yes",
    )
    assert steps(cli(*args, "--json")) == {"0": "kept"}
    assert steps(cli(*args, "--overwrite", "--json")) == {"0": "back"}


# doctor ------------------------------------------------------------------------------------------------------------


def test_a_container_that_is_well(cli: Cli, hub: str, shared: Group) -> None:
    claims = [Ownership(shared.key.partition(name), "a", epoch=1) for name in "0123"]
    store = shared.store
    run(shared, store.renew_ownership(shared.key, Member("a"), []), store.claim_ownership(claims))
    result = cli("doctor", hub, *shared.args, "--json")
    assert result.code == 0, result.out
    found = by_code(result)
    assert {"blob.settings", "blob.layout", "store.ok", "store.clock", "group.members"} <= set(found)
    assert all(each["severity"] in ("ok", "note") for each in found.values())
    assert found["blob.settings"]["severity"] == "ok"


def test_forks_are_found(cli: Cli, hub: str, shared: Group, blobs: ContainerClient) -> None:
    namespace, name, group = shared.key.namespace, shared.key.hub.capitalize(), shared.key.group
    checkpoint(blobs, f"{namespace}/{name}/{group}", "0", 9)
    checkpoint(blobs, FORK, "0", 9)
    found = by_code(cli("doctor", hub, *shared.args, "--json"))
    assert "a checkpoint at 9" in partitions_of(found["blob.old"])["0"]
    assert found["blob.old-others"]["where"] == NEW


def test_the_doctor_is_content_after_the_migration_that_it_names(
    cli: Cli, hub: str, shared: Group, blobs: ContainerClient
) -> None:
    """Also of blobs that were left, which it says how to delete."""
    place = f"{shared.key.namespace}/{shared.key.hub.capitalize()}/{shared.key.group}"
    append(hub, "0", *"abcdefghij")
    last = asyncio.run(open_hub(hub).describe_partition("0"))
    put(blobs, f"{place}/checkpoint/0", offset=str(last.last_offset), sequencenumber=str(last.last_sequence))
    before = cli("doctor", hub, *shared.args, "--json")
    assert before.code == ExitCode.WARNED
    assert "checkpoints migrate STORE" in by_code(before)["blob.old"]["fix"]

    migrated = cli("checkpoints", "migrate", shared.args[1], "--yes")
    assert "1 old blob can be deleted. Run the command again with --delete-old." in migrated.err

    after = cli("doctor", hub, *shared.args, "--json")
    assert after.code == ExitCode.OK, after.out
    assert "blob.old" not in by_code(after)
    assert "--delete-old" in by_code(after)["blob.old-moved"]["fix"]
    assert cli("checkpoints", "migrate", shared.args[1], "--delete-old", "--yes").code == 0
    assert by_code(cli("doctor", hub, *shared.args, "--json"))["blob.layout"]["severity"] == "ok"


def test_what_old_blobs_say_after_a_migration_is_a_warning_again(
    cli: Cli, hub: str, shared: Group, blobs: ContainerClient
) -> None:
    place = f"{shared.key.namespace}/{shared.key.hub.capitalize()}/{shared.key.group}"
    checkpoint(blobs, place, "0", 9)
    assert cli("checkpoints", "migrate", shared.args[1], "--yes").code == 0
    checkpoint(blobs, place, "0", 11)
    assert "a checkpoint at 11" in partitions_of(by_code(cli("doctor", hub, *shared.args, "--json"))["blob.old"])["0"]


def test_members_with_an_official_sdk_are_found(cli: Cli, hub: str, shared: Group, blobs: ContainerClient) -> None:
    place = f"{shared.key.namespace}/{shared.key.hub}/{shared.key.group}".lower()
    put(blobs, f"{place}/ownership/0", ownerid="a-python-sdk")
    found = by_code(cli("doctor", hub, *shared.args, "--json"))
    assert found["group.sdk-members"]["where"] == "a-python-sdk"
    assert "interval.sdk-lease" not in found
    short = by_code(cli("doctor", hub, *shared.args, "--sdk-lease", "1m", "--json"))
    assert short["interval.sdk-lease"]["severity"] == "error"


def test_soft_delete_is_found(cli: Cli, hub: str, shared: Group, service: BlobServiceClient) -> None:
    service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=5))
    try:
        found = by_code(cli("doctor", hub, *shared.args, "--json"))
    finally:
        service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))
    assert "5 days" in found["blob.soft-delete"]["message"]


def test_a_container_that_is_not_there_is_found(cli: Cli, hub: str, container: str) -> None:
    result = cli("doctor", hub, "--store", f"{container}-elsewhere", "--json")
    assert result.code == ExitCode.FAILED
    assert "create it" in by_code(result)["store.missing"]["fix"]


def test_a_wrong_key_is_found_and_not_shown(
    cli: Cli, hub: str, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = "A" * 40 + EMULATOR_KEY.reveal()[40:]
    monkeypatch.setenv("STORAGE_KEY", wrong)
    result = cli("doctor", hub, "--store", f"{container}?key=env:STORAGE_KEY", "--json")
    assert by_code(result)["store.refused"]["severity"] == "error"
    assert wrong not in result.out + result.err


def test_a_signature_that_may_only_read_is_found(cli: Cli, hub: str, container: str, blobs: ContainerClient) -> None:
    signature = generate_container_sas(
        blobs.account_name,
        blobs.container_name,
        account_key=EMULATOR_KEY.reveal(),
        permission=ContainerSasPermissions(read=True, list=True),
        expiry=datetime.now(UTC) + timedelta(hours=1),
    )
    result = cli("doctor", hub, "--store", f"{container}?{signature}", "--json")
    found = by_code(result)
    assert found["store.ok"]
    assert found["store.read-only"]["severity"] == "error"
    assert "can't read whether" in found["blob.settings"]["message"]
    assert signature.rpartition("sig=")[2] not in result.out + result.err


def test_a_damaged_checkpoint_blob_is_found(cli: Cli, hub: str, shared: Group, blobs: ContainerClient) -> None:
    append(hub, "0", "a")
    place = f"{shared.key.namespace}/{shared.key.hub}/{shared.key.group}".lower()
    put(blobs, f"{place}/checkpoint/0", offset="", sequencenumber="")
    found = by_code(cli("doctor", hub, *shared.args, "--json"))
    assert list(partitions_of(found["checkpoint.damaged"])) == ["0"]
