"""An exception of a handler of signals, anywhere in a blocking call, breaks off that call and nothing else."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from polonaise import Group, blocking, testing
from polonaise.client.protocol.draft import Draft
from polonaise.errors import Closed
from rigs.waiting import block_until

# A handler may raise in a callback of a weak reference, too, and Python passes over that.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Limit(Exception):
    """What the handler raises."""


KINDS = [Limit, KeyboardInterrupt, SystemExit, TimeoutError, RuntimeError, asyncio.CancelledError]
"""What handlers raise, among it what the library itself waits for or catches in its own threads."""


class Interruption:
    """Raises an error in this thread at the `at`-th place where a handler of signals could, counted from its start.

    Python looks for signals where a function begins, and where one written in C has returned.
    """

    def __init__(self, at: int, kind: type[BaseException] = Limit) -> None:
        self._left = at
        self.raised = kind("of a handler")
        self.happened = False
        self._looking = self._look  # kept: Python does not, while it runs

    def __enter__(self) -> Interruption:
        sys.setprofile(self._looking)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self._left -= 1
            if self._left < 0:
                self.happened = True
                sys.setprofile(None)
                raise self.raised


def everywhere() -> Iterator[Interruption]:
    """Interruptions at one place after the other, until one has come to no place any more."""
    for at in itertools.count():
        interruption = Interruption(at)
        yield interruption
        if not interruption.happened:
            assert at > 5, "it was broken off at several places"
            return


def _build(tx: Draft) -> int:
    tx.append(b"of a context")
    return tx.high_water_mark


def _read(log: blocking.Log) -> None:
    with log.read(0) as reading:
        next(reading)


def _leased(log: blocking.Log, use: Callable[[blocking.Lease], object]) -> None:
    """Use a lease of a name that nobody has asked for."""
    lease = log.lease(f"lease {next(_numbers)}", duration_s=1.0)
    try:
        use(lease)
    finally:
        if sys.exception() is None:
            lease.release()


def _grouped(log: blocking.Log, use: Callable[[blocking.WorkerGroup], object]) -> None:
    """Join a group of a name that nobody has used, and leave it."""
    with log.group(f"group-{next(_numbers)}", handler=lambda _: None, lease_s=1.0) as group:
        use(group)


def _produce(producer: blocking.Producer) -> int:
    return producer.append(producer.last_sequence + 1, b"x")


def _ended(group: blocking.WorkerGroup) -> None:
    group.leave()
    with suppress(Closed):
        group.ended()


_numbers = itertools.count()

CALLS: dict[str, Callable[[blocking.Log], object]] = {
    "Log.append": lambda log: log.append(b"x"),
    "Log.append_group": lambda log: log.append_group(Group.of([b"x", b"y"])).result(),
    "Log.ready": lambda log: log.ready(),
    "Log.flush": lambda log: log.flush(),
    "Log.producer": lambda log: log.producer("name"),
    "Log.lease": lambda log: log.lease("name"),
    "Log.list_leases": lambda log: log.list_leases(),
    "Log.group": lambda log: log.group("name", handler=lambda _: None),
    "Log.applied": lambda log: log.applied(),
    "Log.wait_applied": lambda log: log.wait_applied(0),
    "Log.wait_committed": lambda log: log.wait_committed({0: -1}, timeout=10),
    "Log.high_water_mark": lambda log: log.high_water_mark(),
    "Log.high_water_marks": lambda log: log.high_water_marks([0]),
    "Log.register": lambda log: log.register(b"key"),
    "Log.list_registers": lambda log: log.list_registers(),
    "Log.health": lambda log: log.health(),
    "Log.read": _read,
    "Log.read_batches": lambda log: next(log.read_batches(0)),
    "Log.transaction": lambda log: log.transaction(0),
    "Log.trouble": lambda log: log.trouble(0),
    "Log.failure": lambda log: log.failure,
    "Log.clock_ahead_s": lambda log: log.clock_ahead_s,
    "Log.call": lambda log: log.call(lambda log: log.high_water_mark()),
    "Log.run": lambda log: log.run(_build),
    "Log.submit": lambda log: log.submit(_build),
    "Submission.result": lambda log: log.submit(_build).result(),
    "Submission.outcome": lambda log: log.submit(_build).outcome(10),
    "Submission.cancel": lambda log: log.submit(_build).cancel(),
    "Receipt.result": lambda log: log.append(b"x").result(),
    "Receipt.wait": lambda log: log.append(b"x").wait(10),
    "Receipt.applied": lambda log: log.append(b"x").applied(timeout=10),
    "Producer.append": lambda log: _produce(log.producer("name")),
    "Lease.acquire": lambda log: _leased(log, lambda lease: lease.acquire()),
    "Lease.release": lambda log: _leased(log, lambda lease: (lease.acquire(), lease.release())),
    "Lease.lost": lambda log: _leased(log, lambda lease: lease.lost()),
    "Lease.held": lambda log: _leased(log, lambda lease: lease.held),
    "Reading.close": lambda log: log.read(0).close(),
    "WorkerGroup.leave": lambda log: _grouped(log, lambda group: group.leave()),
    "WorkerGroup.ended": lambda log: _grouped(log, _ended),
    "WorkerGroup.health": lambda log: _grouped(log, lambda group: group.health()),
    "WorkerGroup.partitions": lambda log: _grouped(log, lambda group: group.partitions),
}
ASKS_NO_OTHER_THREAD = {"Log.decode"}
WITH_TESTS_OF_THEIR_OWN = {"Log.close"}
OF_ANOTHER_LOG = {"Log.trim", "Log.read_time", "Log.once"}
"""What a log in memory does not have: they are made of the same parts."""


def test_no_method_that_waits_is_forgotten() -> None:
    """A property is one that waits if it asks the background thread."""
    classes = (
        blocking.Log, blocking.Receipt, blocking.Submission, blocking.Producer, blocking.Lease, blocking.Reading,
        blocking.WorkerGroup,
    )  # fmt: skip
    there = set()
    for kind in classes:
        for name, what in vars(kind).items():
            asks = isinstance(what, property) and "self._background.now" in inspect.getsource(what.fget or kind)
            if not name.startswith("_") and (inspect.isfunction(what) or asks):
                there.add(f"{kind.__name__}.{name}")
    assert there == (CALLS.keys() - {"Log.failure"}) | ASKS_NO_OTHER_THREAD | WITH_TESTS_OF_THEIR_OWN | OF_ANOTHER_LOG


def _works(log: blocking.Log) -> list[object]:
    """Use the log in another thread, and return what was raised there."""
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def use() -> None:
        try:
            log.append(b"after").result(timeout=10)
            told.put([log.failure, log.trouble(0)])
        except Exception as error:  # noqa: BLE001 - compared by the caller
            told.put(error)

    threading.Thread(target=use, daemon=True).start()
    return told.get(timeout=10)  # type: ignore[no-any-return]


@pytest.mark.exhaustive  # of methods
@pytest.mark.parametrize("what", CALLS)
def test_a_call_is_broken_off_wherever_and_the_log_goes_on(what: str) -> None:
    with testing.blocking_log() as log:
        log.append(b"first").result()
        at = 0
        while True:
            kind = KINDS[at % len(KINDS)]
            interruption = Interruption(at, kind)
            with suppress(kind), interruption:
                CALLS[what](log)
            if not interruption.happened:
                break
            at += 1
            assert _works(log) == [None, None], f"at place {at} of {what}"
            assert log.append(b"here").result(timeout=10).committed
        assert at, "it was broken off at no place"
        log.flush()
        assert not log._background.calls, "what nobody waits for is not kept"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["Receipt.result", "Receipt.wait", "Receipt.applied", "Submission.outcome", "Log.run"])
def test_what_a_handler_raises_is_what_the_call_raises(what: str, kind: type[BaseException]) -> None:
    with testing.blocking_log() as log:
        log.append(b"first").result()
        at = 0
        while True:
            interruption = Interruption(at, kind)
            raised: BaseException | None = None
            try:
                with interruption:
                    CALLS[what](log)
            except BaseException as error:  # noqa: BLE001 - it is looked at
                raised = error
            if not interruption.happened:
                assert raised is None
                break
            # None where Python passes over it.
            assert raised in (interruption.raised, None), f"at place {at}"
            at += 1


def test_a_lease_whose_acquisition_is_broken_off_is_not_kept() -> None:
    with testing.blocking_log() as log:
        log.append(b"first").result()
        for interruption in everywhere():
            lease = log.lease("name", duration_s=60.0)
            try:
                with interruption:
                    lease.acquire()
            except Limit:
                block_until(lambda lease=lease: not lease.held)  # type: ignore[misc]
                with log.lease("name", duration_s=60.0) as other:
                    assert other.held
            else:
                lease.release()


def test_a_lease_that_was_held_before_is_kept_if_asking_for_it_again_is_broken_off() -> None:
    with testing.blocking_log() as log, log.lease("name") as lease:
        for interruption in everywhere():
            with suppress(Limit), interruption:
                lease.acquire()
            log.high_water_mark(0)
            assert lease.held


def test_a_group_that_nobody_has_joined_in_the_end_works_on_nothing() -> None:
    with testing.blocking_log() as log:
        log.append(b"first").result()
        for interruption in everywhere():
            group = log.group("name", handler=lambda _: None)
            try:
                with interruption:
                    group.__enter__()
            except Limit:
                block_until(lambda group=group: not group.partitions)  # type: ignore[misc]
                with log.group("name", handler=lambda _: None) as other:
                    block_until(lambda other=other: other.partitions == (0,))  # type: ignore[misc]
            else:
                group.leave()


def test_a_reading_whose_making_is_broken_off_reads_nothing_ahead() -> None:
    with testing.blocking_log() as log:
        log.append(b"first").result()
        for interruption in everywhere():
            with suppress(Limit), interruption:
                log.read(0).close()
        gc.collect()
        block_until(
            lambda: not any("_Pump" in repr(task) for task in log.call(lambda _: _tasks())), "the readers have ended"
        )


async def _tasks() -> list[asyncio.Task[Any]]:
    return list(asyncio.all_tasks())


@pytest.mark.slow
def test_an_iteration_that_is_broken_off_passes_over_nothing() -> None:
    with testing.blocking_log() as log:
        for number in range(40):
            log.append(b"%d" % number)
        log.flush()
        for at in range(200):
            found: list[bytes] = []
            with log.read(0) as reading:
                interruption = Interruption(at)
                while True:
                    item = None
                    try:
                        if interruption.happened:
                            item = next(reading, None)
                        else:
                            with interruption:
                                item = next(reading, None)
                    except Limit:
                        continue
                    if item is None:
                        break
                    found.append(item.data)
            assert found == [b"%d" % number for number in range(40)], f"broken off at place {at}"


def test_a_close_that_is_broken_off_can_be_called_again() -> None:
    for interruption in everywhere():
        log = testing.blocking_log()
        thread = log._background._thread
        with suppress(Limit), interruption:
            log.close()
        log.close()
        thread.join(10)
        assert not thread.is_alive()
        with pytest.raises(Closed):
            log.append(b"x")


@pytest.mark.slow
def test_a_log_outlives_a_thousand_alarms() -> None:
    def ring(*_: object) -> None:
        raise Limit

    draws, broken_off = random.Random(27), 0
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with testing.blocking_log() as log:
            log.append(b"first").result()
            until_s = time.monotonic() + 20
            while broken_off < 1000 and time.monotonic() < until_s:
                try:
                    signal.setitimer(signal.ITIMER_REAL, draws.uniform(0.00002, 0.002))
                    log.append(b"x").result(timeout=10)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Limit:
                    broken_off += 1
            assert _works(log) == [None, None]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert broken_off
