"""What is raised: an application's code holds up what it is for; errors are pickled, and do not grow."""

from __future__ import annotations

import asyncio
import copy
import gc
import importlib
import inspect
import multiprocessing
import pickle
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import polonaise
import polonaise_proving
from polonaise import Log, Transaction, blocking, errors, testing
from polonaise.applicationcode import OrdinaryErrors, is_being_cancelled, ordinary
from polonaise.errors import (
    CODES,
    AppendUnknown,
    Closed,
    ConnectionLost,
    CopiesUnproved,
    LockConflict,
    PolonaiseError,
    Retry,
    ViewUnfit,
    WorkerFenced,
    error_of,
    fault,
    fresh,
)
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink
from polonaise.wire.messages import HighWaterMark
from rigs.clients import Memo, World
from rigs.raised import IN_A_THREAD, ON_THE_LOOP
from rigs.raising import check_small, raised
from rigs.storage import FixedAddresses
from rigs.waiting import time_passes, wait_until


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


class Raising(Memo):
    """A view that raises what it is told to."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised: BaseException | None = raised

    def apply(self, tx: Transaction) -> None:  # type: ignore[override]  # a plain function, as most views have it
        if self.raised is not None:
            raise self.raised
        self.mark = tx.id


@pytest.mark.parametrize("raised", ON_THE_LOOP)
async def test_a_view_that_raises_it_is_told_so_and_given_the_transaction_again(raised: BaseException) -> None:
    view = Raising(raised)
    async with testing.log(view=view) as log:
        receipt = log.append(b"0", 0)
        await wait_until(lambda: len(view.failures) >= 2)
        assert "no stomach" in str(log.trouble(0))
        view.raised = None
        await receipt.applied()
        assert view.mark == 0


PACKAGES = (polonaise, polonaise_proving)
NAMES = "|".join(name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception))


def _import_all_kinds() -> None:
    """Import each module that has a fault of its own: what else was imported may not decide which tests there are."""
    own = re.compile(rf"^class \w+\((.*\b)?({NAMES})\b", re.MULTILINE)
    for root in (Path(package.__file__).parent for package in PACKAGES):
        for path in sorted(root.rglob("*.py")):
            if own.search(path.read_text()):
                importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


def _kinds(kind: type[PolonaiseError] = PolonaiseError) -> Iterator[type[PolonaiseError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__.split(".")[0] in {package.__name__ for package in PACKAGES}:
            yield from _kinds(each)


_import_all_kinds()
KINDS = sorted(set(_kinds()), key=lambda kind: kind.__name__)


def _told(error: PolonaiseError) -> tuple[Any, ...]:
    parts = {name: part for name, part in vars(error).items() if name != "receipt"}
    return type(error), error.code, error.retry, str(error), error.text, error.args, parts


def _needed(kind: type[PolonaiseError]) -> list[int]:
    """Return values for the arguments without which, beside the message, the fault can't be made."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[2:]
    return [7 for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]


TEXT = "what happened, and what to do"
FAULTS = [kind(TEXT, *_needed(kind)) for kind in KINDS] + [fault(code, TEXT) for code in CODES]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: error.code)
def test_a_fault_is_the_same_after_it_was_pickled_and_copied(error: PolonaiseError) -> None:
    error.add_note("because of something")
    for number in range(pickle.HIGHEST_PROTOCOL + 1):
        assert _told(pickle.loads(pickle.dumps(error, number))) == _told(error)
    for copied in (copy.copy(error), copy.deepcopy(error), fresh(error)):
        assert _told(copied) == _told(error)
        assert copied is not error


@pytest.mark.parametrize("code", CODES)
def test_a_fault_without_a_class_is_the_same_on_the_other_side_of_a_connection(code: str) -> None:
    error = fault(code, TEXT)
    assert (error.code, error.retry, str(error)) == (code, CODES[code].retry, f"[{code}] {TEXT}")
    assert _told(error_of(error.code, error.text)) == _told(error)
    assert (PolonaiseError.code, PolonaiseError.retry) == ("internal", Retry.NEVER), "of others nothing is changed"


@pytest.mark.parametrize("kind", [AppendUnknown, CopiesUnproved])
def test_what_belongs_to_the_process_stays_in_a_copy_and_is_none_in_another_process(kind: Any) -> None:
    receipt = threading.Lock()  # like a receipt, it can't be pickled
    error = kind("not decided by the deadline", receipt)
    assert copy.copy(error).receipt is receipt
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is kind
    assert arrived.receipt is None
    assert arrived.text == "not decided by the deadline"


def test_attributes_and_arguments_that_can_be_sent_are_sent() -> None:
    assert pickle.loads(pickle.dumps(LockConflict("stale", 17))).conflict == 17
    assert pickle.loads(pickle.dumps(PolonaiseError(threading.Lock()))).text.startswith("<unlocked _thread.lock")


def _append() -> None:
    with testing.blocking_log() as log:
        raise AppendUnknown("not decided by the deadline", log.append(b"x"))


@pytest.mark.slow
def test_unknown_is_told_as_unknown_by_a_pool_of_processes() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        appended = pool.submit(_append)
    with pytest.raises(AppendUnknown, match="not decided by the deadline") as caught:
        appended.result(timeout=60)
    assert caught.value.receipt is None


def test_a_receipt_says_that_it_can_not_be_pickled() -> None:
    with testing.blocking_log() as log, pytest.raises(TypeError, match="send another one its id"):
        pickle.dumps(log.append(b"x"))


class Unfit(Memo):
    def high_water_mark(self, partition: int) -> int:
        raise ViewUnfit("not what is needed")


async def _append_in_a_while(log: Any) -> None:
    log.append(b"x")


async def _append_group(log: Any) -> None:
    from polonaise import Group

    log.append_group(Group.of([b"x"]))


ASKED: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "append": _append_in_a_while,
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
    error = await raised(lambda: _append_in_a_while(client))
    assert isinstance(error, PolonaiseError)
    check_small(error)


@pytest.mark.slow
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
