"""What an application's code raises: it holds up what that code is for, is told, and is tried again."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from polonaise import Transaction, testing
from polonaise.applicationcode import OrdinaryErrors, is_being_cancelled, ordinary
from polonaise.errors import WorkerFenced
from rigs.raised import IN_A_THREAD, ON_THE_LOOP
from rigs.waiting import wait_until


def called(raised: BaseException) -> BaseException:
    """Return what comes of it."""
    try:
        with OrdinaryErrors("the handler"):
            raise raised
    except BaseException as error:  # noqa: BLE001 - it is looked at
        return error


@pytest.mark.parametrize("raised", IN_A_THREAD)
def test_what_is_raised_in_another_thread_is_an_ordinary_error(raised: BaseException) -> None:
    with ThreadPoolExecutor(1) as executor:
        error = executor.submit(called, raised).result()
    assert type(error) is RuntimeError
    assert "the handler raised" in str(error)
    assert "no stomach" in str(error)
    assert error.__cause__ is raised


@pytest.mark.parametrize("raised", [ValueError("x"), OSError("y")])
def test_an_ordinary_error_stays_what_it_is(raised: Exception) -> None:
    assert called(raised) is raised
    assert ordinary(raised, "the handler", None) is raised


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_in_the_main_thread_is_the_process_s_own(raised: BaseException) -> None:
    assert threading.current_thread() is threading.main_thread()
    assert called(raised) is raised


async def test_a_cancellation_that_somebody_has_asked_for_passes_and_another_one_does_not() -> None:
    outcomes: list[BaseException] = []

    async def work(waiting: Callable[[], asyncio.Future[None]]) -> None:
        try:
            with OrdinaryErrors("the handler"):
                await waiting()
        except BaseException as error:  # noqa: BLE001 - it is looked at
            outcomes.append(error)

    loop = asyncio.get_running_loop()
    cancelled = loop.create_future()
    cancelled.cancel()
    await work(lambda: cancelled)
    task = asyncio.create_task(work(loop.create_future))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert [type(each) for each in outcomes] == [RuntimeError, asyncio.CancelledError]
    assert not is_being_cancelled()


@pytest.mark.parametrize("closes", ["coroutine", "loop"])
def test_a_coroutine_that_is_closed_ends_as_one(closes: str) -> None:
    ended: list[type[BaseException]] = []

    async def work() -> None:
        try:
            with OrdinaryErrors("the handler"):
                await asyncio.get_running_loop().create_future()
        except BaseException as error:
            ended.append(type(error))
            raise

    async def closed_by_another_task() -> None:
        coroutine = work()
        coroutine.send(None)
        await asyncio.create_task(_closing(coroutine))

    loop = asyncio.new_event_loop()
    if closes == "coroutine":
        loop.run_until_complete(closed_by_another_task())
    else:
        loop.run_until_complete(_left(work(), loop))
    loop.close()
    gc.collect()
    assert ended == [GeneratorExit]


async def _closing(coroutine: Coroutine[Any, Any, None]) -> None:
    coroutine.close()


async def _left(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    """Begin a task that nobody keeps or waits for, as its loop ends."""
    task = loop.create_task(coroutine)
    await asyncio.sleep(0)
    task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("raised", [*ON_THE_LOOP, pytest.param(WorkerFenced("of another group"), id="WorkerFenced")])
async def test_a_worker_whose_handler_raises_it_says_so_and_tries_again(raised: BaseException) -> None:
    handled: list[bytes] = []
    calls = 0
    raises = True

    async def handle(tx: Transaction) -> None:
        nonlocal calls
        calls += 1
        if raises:
            raise raised
        handled.append(tx.data)

    async with testing.log() as log, log.group("g", handler=handle) as group:
        await log.append(b"0", 0)
        await wait_until(lambda: calls >= 3)
        health = group.health()
        assert not health["well"]
        assert "raised" in health["partitions"]["0"]["trouble"]
        assert health["partitions"]["0"]["epoch"] == 1, "it keeps the partition"
        mark = await log.high_water_mark(0)
        await wait_until(lambda: calls >= 5)
        assert await log.high_water_mark(0) == mark, "and appends nothing"
        raises = False
        await wait_until(lambda: handled == [b"0"])
        await wait_until(lambda: group.health()["well"])


class Sums:
    """A view that raises what it is told to."""

    def __init__(self, raised: BaseException) -> None:
        self.raised: BaseException | None = raised
        self.applied = -1
        self.failures: list[Exception] = []

    def high_water_mark(self, partition: int) -> int:
        return self.applied

    def apply(self, tx: Transaction) -> None:
        if self.raised is not None:
            raise self.raised
        self.applied = tx.id

    def failed(self, partition: int, id: int, error: Exception) -> None:
        self.failures.append(error)


@pytest.mark.parametrize("raised", ON_THE_LOOP)
async def test_a_view_that_raises_it_is_told_so_and_given_the_transaction_again(raised: BaseException) -> None:
    view = Sums(raised)
    async with testing.log(view=view) as log:
        receipt = log.append(b"0", 0)
        await wait_until(lambda: len(view.failures) >= 2)
        assert "no stomach" in str(log.trouble(0))
        view.raised = None
        await receipt.applied()
        assert view.applied == 0
