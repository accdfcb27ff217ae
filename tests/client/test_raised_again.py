"""What is kept and raised again does not grow, however often: neither its traceback nor what hangs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from polonaise import Log, blocking, testing
from polonaise.errors import AppendUnknown, Closed, ConnectionLost, LockConflict, PolonaiseError, ViewUnfit, fresh
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink
from polonaise.wire.messages import HighWaterMark
from rigs.clients import World
from rigs.raising import check_small, raised
from rigs.storage import FixedAddresses
from rigs.waiting import time_passes


class Unfit:
    def high_water_mark(self, partition: int) -> int:
        raise ViewUnfit("not what is needed")

    def apply(self, tx: Any) -> None:
        raise AssertionError

    def failed(self, partition: int, id: int, error: Exception) -> None:
        raise AssertionError


async def _append(log: Any) -> None:
    log.append(b"x")


async def _append_group(log: Any) -> None:
    from polonaise import Group

    log.append_group(Group.of([b"x"]))


ASKED: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "append": _append,
    "append_group": _append_group,
    "run": lambda log: log.run(lambda tx: tx.append(b"x")),
    "flush": lambda log: log.flush(),
    "ready": lambda log: log.ready(),
    "wait_applied": lambda log: log.wait_applied(7),
}


@pytest.mark.parametrize("asked", ASKED)
async def test_the_error_of_a_partition_that_has_stopped_stays_small(asked: str) -> None:
    async with testing.log(view=Unfit()) as log:
        with pytest.raises(ViewUnfit):
            await log.wait_applied(7, timeout=5)
        error = await raised(lambda: ASKED[asked](log))
        assert isinstance(error, ViewUnfit)
        check_small(error)
        check_small(log.trouble(0) or error)


async def test_the_error_of_a_client_whose_host_failed_stays_small(client: Log) -> None:
    client.fail(OSError("no disk"))
    error = await raised(lambda: _append(client))
    assert isinstance(error, PolonaiseError)
    check_small(error)


async def test_the_error_of_a_submission_that_has_ended_stays_small(client: Log) -> None:

    def stumbles(tx: Any) -> None:
        raise ValueError("the application's own")

    async def wait(submission: Any) -> None:
        await submission

    for context in (stumbles, lambda tx: tx.abandon("no")):
        submission = client.submit(context)
        await time_passes(0.01)  # it has ended
        error = await raised(lambda submission=submission: wait(submission))  # type: ignore[misc]
        check_small(error)
        if isinstance(error, ValueError):
            assert error.__traceback__ is not None, "where it went wrong is still told"


async def test_those_who_wait_are_each_told_with_an_exception_of_their_own(client: Log) -> None:
    waiting = [asyncio.ensure_future(client.wait_applied(5)) for _ in range(100)]
    await time_passes(0.01)  # all of them wait
    await client.close()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    errors = [error for error in told if isinstance(error, Closed)]
    assert len(errors) == 100
    assert len({id(error) for error in errors}) == len(errors)


def test_a_fresh_copy_of_an_error_says_the_same() -> None:
    receipt = object()
    unknown = AppendUnknown("not decided", receipt)
    unknown.add_note("because")
    unknown.__cause__ = OSError("gone")
    made = fresh(unknown)
    assert (type(made), made.text, made.receipt, made.__cause__) == (
        AppendUnknown,
        "not decided",
        receipt,
        unknown.__cause__,
    )
    made.add_note("another")
    assert unknown.__notes__ == ["because"]
    assert fresh(LockConflict("stale", 7)).conflict == 7


async def test_the_error_of_a_storage_node_that_is_away_stays_small(world: World) -> None:
    settings = ServerSettings()
    link = StorageLink(world.host, "storage:1", 1, b"k" * 16, settings, {}, FixedAddresses())  # type: ignore[arg-type]
    link.last_error = ConnectionLost("nobody there")
    error = await raised(lambda: link.ask_bulk(HighWaterMark(), 0))
    assert isinstance(error, ConnectionLost)
    check_small(error)
    check_small(link.last_error)


def test_the_error_of_a_submission_that_threads_wait_for_stays_small(tmp_path: Path) -> None:
    def stumbles(tx: Any) -> None:
        raise ValueError("the application's own")

    with blocking.connect(f"embedded:{tmp_path / 'log'}") as log:
        submission = log.submit(stumbles)
        last: Exception | None = None
        for _ in range(1_000):
            try:
                submission.result()
            except ValueError as error:
                last = error
        assert last is not None
        check_small(last)
