"""The link to a storage node: what is told of its two connections, each of which breaks by itself."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.errors import ConnectionLost, DeadlineExceeded, PolonaiseError
from polonaise.host.real import RealHost
from polonaise.link.protocol.inbox import OWN_REQUESTS
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink
from polonaise.wire.messages import HighWaterMark, Refused
from rigs.storage import FixedAddresses
from rigs.waiting import wait_until


def connection() -> Any:
    return SimpleNamespace(closed=None, peer=None, close=lambda: None)


def test_a_late_refusal_of_a_request_is_no_fault_of_the_session() -> None:
    link = StorageLink(None, "storage:1", 1, b"k" * 16, ServerSettings(), {}, FixedAddresses())  # type: ignore[arg-type]
    failed: list[Any] = []
    link.session = connection()
    link.listen(0, SimpleNamespace(on_replica_failed=lambda *fault: failed.append(fault)))  # type: ignore[arg-type]
    refusal = Refused(detail=0, code="fenced", text="an earlier session's")
    link._on_message(link.session, refusal, OWN_REQUESTS | 7, 0)
    assert failed == []
    link._on_message(link.session, refusal, 7, 0)
    assert len(failed) == 1


async def test_what_is_asked_for_over_the_bulk_connection_is_waited_for_as_long_as_the_node_needs() -> None:
    """A copy takes syncs: on a slow disk, none would ever be made within a fixed time."""
    host = RealHost()
    link = StorageLink(host, "storage:1", 1, b"k" * 16, ServerSettings(), {}, FixedAddresses())
    waited_s: list[float] = []

    async def request(message: Any, *, partition: int, deadline_s: float) -> Any:
        waited_s.append(deadline_s)
        raise DeadlineExceeded("late")

    link.bulk = SimpleNamespace(request=request)  # type: ignore[assignment]
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            await link.ask_bulk(HighWaterMark(), 0)
    host.close()
    assert waited_s == [5, 10, 20, 40, 60]


async def test_a_bulk_connection_that_fails_is_told_until_it_is_made_again_and_the_other_one_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = RealHost()
    settings = ServerSettings(retry_s_min=0.01, retry_s_max=0.01)
    link = StorageLink(host, "storage:1", 1, b"k" * 16, settings, {}, FixedAddresses())
    first, second = connection(), connection()
    bulks: deque[Any] = deque([ConnectionLost("too many sockets"), first])

    async def connect(purpose: str, address: str) -> Any:
        if purpose == "session":
            return connection()
        made = bulks.popleft() if bulks else ConnectionLost("still away")
        if isinstance(made, PolonaiseError):
            raise made
        return made

    monkeypatch.setattr(link, "_connect", connect)
    link.start()
    try:
        await wait_until(lambda: link.bulk_error)
        with pytest.raises(ConnectionLost, match="too many sockets"):
            await link.ask_bulk(HighWaterMark(), 0)
        await wait_until(lambda: link.bulk)
        assert link.bulk_error is None
        first.closed = ConnectionLost("reset by the peer")
        link._on_closed(first, first.closed)
        await wait_until(lambda: link.bulk is None)
        with pytest.raises(ConnectionLost, match=r"reset by the peer|still away"):
            await link.ask_bulk(HighWaterMark(), 0)
        bulks.append(second)
        await wait_until(lambda: link.bulk)
        assert link.bulk_error is None
        assert link.last_error is None
    finally:
        link.close()
        host.close()
