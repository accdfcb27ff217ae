"""The HTTP listener has bounds, and nothing that happens to it or in it reaches the node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from polonaise.errors import AddressInUse, BadOption, PartitionNotReady
from polonaise.histogram import Histogram
from polonaise.host.real import RealHost, stop_at_mistakes
from polonaise.node.monitoring import httplistener
from polonaise.node.monitoring.exposition import Exposition
from polonaise.node.monitoring.face import HttpFace
from polonaise.node.monitoring.httplistener import CONNECTIONS_MAX, HttpAnswer, HttpListener, HttpRequest
from polonaise.storage.settings import StorageSettings
from rigs.httpget import dialled, exchanged, http_get, parsed
from rigs.observed import observed_storage
from rigs.waiting import PATIENCE_S, wait_until
from rigs.watchedhost import Watched

ANY_PORT = "127.0.0.1:0"
ASKED = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def listening(answering: Any) -> AsyncIterator[tuple[HttpListener, str]]:
    host = Watched()
    stop_at_mistakes(asyncio.get_running_loop(), host)
    listener = HttpListener(host, answering)
    try:
        yield listener, await listener.open(ANY_PORT)
        assert host.failures == [], "nothing may end the node"
    finally:
        await listener.close()
        host.close()


async def hello(asked: HttpRequest) -> HttpAnswer:
    return HttpAnswer(200, "text/plain", asked.path.encode())


async def test_a_port_in_use_is_told_and_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    async with listening(hello) as (_, address):
        with pytest.raises(AddressInUse, match=address):
            await started_storage_at(tmp_path / "storage", address)
    assert not (tmp_path / "storage").exists()


async def started_storage_at(directory: Path, http: str) -> None:
    from polonaise.node.processes import Http, run_storage

    host = RealHost()
    try:
        await run_storage(host, StorageSettings(str(directory)), lambda _: None, Http(http, lambda _: None))
    finally:
        host.close()


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:70000", "192.0.2.1:9101"])
async def test_an_address_that_cannot_be_had_is_told(tmp_path: Path, address: str) -> None:
    with pytest.raises(BadOption, match=address):
        await started_storage_at(tmp_path / "storage", address)
    assert not (tmp_path / "storage").exists()


async def test_one_request_for_each_connection() -> None:
    async with listening(hello) as (_, address):
        said = parsed(await exchanged(address, ASKED + ASKED))
        assert (said.status, said.body, said.headers["connection"]) == (200, b"/health", "close")


async def test_who_sends_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httplistener, "CONNECTION_S_MAX", 0.05)
    async with listening(hello) as (_, address):
        assert await exchanged(address, ASKED[:10]) == b""


async def test_who_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httplistener, "CONNECTION_S_MAX", 0.2)

    async def large(_: HttpRequest) -> HttpAnswer:
        return HttpAnswer(200, "text/plain", bytes(64 * 2**20))

    async with listening(large) as (listener, address):
        _, writer = await dialled(address, limit=1024)
        writer.write(ASKED)
        await wait_until(lambda: listener._connections)
        await wait_until(lambda: not listener._connections)
        writer.close()
        await wait_until(lambda: not listener._server.connections)


async def test_more_connections_than_the_bound_are_closed_at_once() -> None:
    async with listening(hello) as (listener, address):
        idle = [await dialled(address) for _ in range(CONNECTIONS_MAX)]
        await wait_until(lambda: len(listener._connections) == CONNECTIONS_MAX)
        assert await exchanged(address, ASKED) == b""
        for _, writer in idle:
            writer.close()
        await wait_until(lambda: not listener._connections)
        assert parsed(await exchanged(address, ASKED)).status == 200


async def asked_and_left(address: str, began: asyncio.Event) -> None:
    """Ask, and leave as soon as the answer is being made."""
    began.clear()
    _, writer = await dialled(address)
    writer.write(ASKED)
    await asyncio.wait_for(began.wait(), PATIENCE_S)
    writer.transport.abort()


async def test_an_answer_is_cancelled_when_its_asker_leaves() -> None:
    began, cancelled = asyncio.Event(), 0

    async def endless(_: HttpRequest) -> HttpAnswer:
        nonlocal cancelled
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise
        raise AssertionError

    async with listening(endless) as (listener, address):
        before = len(asyncio.all_tasks())
        for _ in range(CONNECTIONS_MAX + 8):
            await asked_and_left(address, began)
            await wait_until(lambda: not listener._connections)
        assert cancelled == CONNECTIONS_MAX + 8
        await wait_until(lambda: len(asyncio.all_tasks()) <= before)


async def test_an_answer_that_is_not_at_its_end_keeps_its_place_when_its_asker_leaves() -> None:
    began, may_end, at_work = asyncio.Event(), asyncio.Event(), 0

    async def slow_to_end(asked: HttpRequest) -> HttpAnswer:
        nonlocal at_work
        began.set()
        at_work += 1
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            at_work -= 1
        return await hello(asked)

    async with listening(slow_to_end) as (listener, address):
        for _ in range(CONNECTIONS_MAX):
            await asked_and_left(address, began)
        assert await exchanged(address, ASKED) == b""
        assert at_work == len(listener._connections) == CONNECTIONS_MAX
        may_end.set()
        await wait_until(lambda: not listener._connections)
        assert at_work == 0
        await asked_and_left(address, began)


async def test_a_node_lives_whatever_it_waits_for() -> None:
    class Waiting:
        asked = False

        def not_ready(self) -> str:
            return "partition 0 waits for an operator"

        async def health(self) -> dict[str, Any]:
            self.asked = True
            await asyncio.Event().wait()
            raise AssertionError

    node = Waiting()
    face = HttpFace(node, RealHost().clock, Exposition().text, Histogram(), "1")  # type: ignore[arg-type]
    async with listening(face.answer) as (_, address):
        asking = asyncio.create_task(http_get(address, "/health"))
        await wait_until(lambda: node.asked)
        said = await http_get(address, "/live")
        assert (said.status, said.document) == (200, {"live": True})
        assert (await http_get(address, "/ready")).status == 503
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def test_the_page_for_operators_probes_whether_a_node_lives_without_asking_others() -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    assert "livenessProbe: {httpGet: {path: /live," in page


async def test_who_asks_all_the_time_whether_a_node_is_ready_gets_a_verdict_that_stands_for_a_second() -> None:
    class Judged:
        looks = 0

        def not_ready(self) -> str:
            self.looks += 1
            return f"look {self.looks}"

    class Stopped:
        now_s = 100.0

        def monotonic_s(self) -> float:
            return self.now_s

    node, clock = Judged(), Stopped()
    face = HttpFace(node, clock, Exposition().text, Histogram(), "1")  # type: ignore[arg-type]
    for at_s, looks in ((100.0, 1), (100.0, 1), (100.9, 1), (101.0, 2), (101.5, 2)):
        clock.now_s = at_s
        said = await face.answer(HttpRequest("/ready", {}, ""))
        assert said.status == 503
        assert json.loads(said.body)["reason"] == f"look {looks}"
    assert node.looks == 2


@pytest.mark.parametrize(
    "request_sent",
    [
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 10_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(1000)) + b"\r\n",
        b"\0\1\2\3 not HTTP at all\r\n\r\n",
    ],
)
async def test_requests_that_are_too_large_or_no_http_are_refused(request_sent: bytes) -> None:
    async with listening(hello) as (_, address):
        assert parsed(await exchanged(address, request_sent)).status == 400


async def test_a_body_is_not_read() -> None:
    async with listening(hello) as (_, address):
        said = await exchanged(address, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nbegin")
        assert parsed(said).status == 405


async def test_a_fault_of_the_node_is_an_answer() -> None:
    async def faulty(_: HttpRequest) -> HttpAnswer:
        raise PartitionNotReady("it has not begun")

    async with listening(faulty) as (_, address):
        said = await http_get(address, "/health")
        assert (said.status, said.body) == (503, b"[partition_not_ready] it has not begun\n")


async def test_a_mistake_in_an_answer_ends_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    async def mistaken(asked: HttpRequest) -> HttpAnswer:
        if asked.path == "/mistake":
            raise ZeroDivisionError("a mistake of ours")
        return await hello(asked)

    async with listening(mistaken) as (_, address):
        said = await http_get(address, "/mistake")
        assert said.status == 500
        assert b"ZeroDivisionError" not in said.body
        assert (await http_get(address, "/health")).status == 200
    assert "a mistake of ours" in caplog.text


async def test_a_mistake_of_the_library_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError("a mistake of theirs")

    async with listening(hello) as (listener, address):
        server = listener._server
        monkeypatch.setattr(listener, "_server", Broken)
        with caplog.at_level(logging.ERROR):
            assert await exchanged(address, ASKED) == b""
        monkeypatch.setattr(listener, "_server", server)
        assert (await http_get(address, "/health")).status == 200
    assert "a mistake of theirs" in caplog.text


async def test_a_listener_that_is_dead_does_not_stop_its_node(tmp_path: Path) -> None:
    async with observed_storage(tmp_path / "storage") as node:
        writers = [(await dialled(node.http))[1] for _ in range(CONNECTIONS_MAX + 8)]
        assert await exchanged(node.http, ASKED) == b""
        assert not node.task.done()
        for writer in writers:
            writer.close()

        async def look() -> bool:
            said = await exchanged(node.http, ASKED)
            return bool(said) and parsed(said).status == 200

        await wait_until(look, "it answers again", every_s=0.05)
