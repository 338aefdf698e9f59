"""A commit whose answer is lost: it took effect or it did not, which is found out, and it is never done twice."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from psycopg.conninfo import conninfo_to_dict

from hubline.errors import StoreUnavailable
from hubline.sinks import OpenedPartition, SqlSink
from tests.sinks.conftest import PostgresSinkDatabase
from tests.sinks.test_commit import KEY, at, rows

COMMIT = b"COMMIT\x00"
"""How the message ends by which a client asks for a commit."""


class Proxy:
    """Stands between a client and PostgreSQL, and cuts the line at the next commit, if ``cut`` is set.

    ``cut`` is "after" the server was asked for the commit and before its answer, "before" it is asked, or "late": the
    client's end is cut at once, and the server is asked only when ``release`` is set.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.cut: str | None = None
        self.release = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self.release.set()
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for thread in (
                    threading.Thread(target=self._ask, args=(client, server)),
                    threading.Thread(target=self._answer, args=(client, server)),
                ):
                    self._threads.append(thread)
                    thread.start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65_536):
                if data.endswith(COMMIT) and self.cut:
                    self._cut_now(client, server, data)
                    return
                server.sendall(data)
        _shut(server)

    def _cut_now(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        how, self.cut = self.cut, None
        _shut(client)
        if how == "late":
            self.release.wait()
        if how != "before":
            server.sendall(data)
            while server.recv(65_536):  # the answer, which nobody hears; then the server is done
                break
        _shut(server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while (data := server.recv(65_536, socket.MSG_PEEK)) and client.fileno() >= 0:
                client.sendall(server.recv(len(data)))


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@pytest.fixture
def proxy(postgres: PostgresSinkDatabase) -> Iterator[Proxy]:
    postgres.execute("CREATE TABLE readings (id bigint, name text)")
    params = conninfo_to_dict(postgres.url)
    with closing(Proxy(str(params["host"]), int(str(params["port"])))) as made:
        yield made


@pytest.fixture
def partition(postgres: PostgresSinkDatabase, proxy: Proxy) -> Iterator[OpenedPartition]:
    port = conninfo_to_dict(postgres.url)["port"]
    with closing(SqlSink(postgres.url.replace(f":{port}/", f":{proxy.port}/"), table="readings")) as sink:
        yield sink.open(KEY, 1)


def ids(database: PostgresSinkDatabase) -> list[int]:
    return [row[0] for row in database.execute("SELECT id FROM readings ORDER BY id")]


def test_a_commit_that_took_effect_is_known_to_have(
    postgres: PostgresSinkDatabase, proxy: Proxy, partition: OpenedPartition
) -> None:
    proxy.cut = "after"

    partition.commit(at(1), rows(0, 1))
    partition.commit(at(2), rows(2))

    assert (ids(postgres), postgres.checkpoint()) == ([0, 1, 2], 2)


def test_a_commit_that_did_not_is_known_not_to_have(
    postgres: PostgresSinkDatabase, proxy: Proxy, partition: OpenedPartition
) -> None:
    proxy.cut = "before"

    with pytest.raises(StoreUnavailable, match="did not take effect"):
        partition.commit(at(1), rows(0, 1))
    partition.commit(at(1), rows(0, 1))

    assert (ids(postgres), postgres.checkpoint()) == ([0, 1], 1)


def test_a_commit_that_is_still_on_its_way_is_waited_for(
    postgres: PostgresSinkDatabase, proxy: Proxy, partition: OpenedPartition
) -> None:
    """The server hears of the commit only while its client, on a new line, already asks what became of it."""
    proxy.cut = "late"
    committing = threading.Thread(target=partition.commit, args=(at(1), rows(0, 1)))
    committing.start()
    while not postgres.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
        assert committing.is_alive()

    proxy.release.set()
    committing.join()

    assert (ids(postgres), postgres.checkpoint()) == ([0, 1], 1)
    assert partition.checkpoint == at(1)


def test_a_transaction_that_the_server_ended_meanwhile_did_not_take_effect(
    postgres: PostgresSinkDatabase, proxy: Proxy, partition: OpenedPartition
) -> None:
    proxy.cut = "late"
    ended: list[StoreUnavailable] = []

    def commit() -> None:
        try:
            partition.commit(at(1), rows(0, 1))
        except StoreUnavailable as error:
            ended.append(error)

    committing = threading.Thread(target=commit)
    committing.start()
    while not postgres.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
        assert committing.is_alive()
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE state = 'idle in transaction' AND datname = current_database()"
    )
    committing.join()

    assert "did not take effect" in str(ended[0])
    assert (ids(postgres), postgres.checkpoint()) == ([], None)
