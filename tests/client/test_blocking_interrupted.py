"""An exception of a handler of signals, anywhere in a blocking call, breaks off that call and nothing else."""

from __future__ import annotations

import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from polonaise import blocking, testing
from polonaise.client.protocol.draft import Draft
from polonaise.errors import Closed

# A handler may raise in a callback of a weak reference, too, and Python passes over that.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Limit(Exception):
    """What the handler raises."""


class Interruption:
    """Raises `Limit` in this thread at the `at`-th place where a handler of signals could, counted from its start.

    Python looks for signals where a function begins, and where one written in C has returned.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.happened = False

    def __enter__(self) -> Interruption:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename != __file__:
            self._left -= 1
            if self._left < 0:
                self.happened = True
                sys.setprofile(None)
                raise Limit


def _build(tx: Draft) -> int:
    tx.append(b"of a context")
    return tx.high_water_mark


def _read(log: blocking.Log) -> None:
    with log.read(0) as reading:
        next(reading)


CALLS: dict[str, Callable[[blocking.Log], object]] = {
    "append": lambda log: log.append(b"x"),
    "result": lambda log: log.append(b"x").result(),
    "applied": lambda log: log.append(b"x").applied(timeout=10),
    "flush": lambda log: log.flush(),
    "failure": lambda log: log.failure,
    "trouble": lambda log: log.trouble(0),
    "run": lambda log: log.run(_build),
    "submit": lambda log: log.submit(_build).result(),
    "high_water_mark": lambda log: log.high_water_mark(),
    "read": _read,
}


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


@pytest.mark.parametrize("what", CALLS)
def test_a_call_is_broken_off_wherever_and_the_log_goes_on(what: str) -> None:
    with testing.blocking_log() as log:
        log.append(b"first").result()
        at = 0
        while True:
            interruption = Interruption(at)
            try:
                with interruption:
                    CALLS[what](log)
            except Limit:
                pass
            if not interruption.happened:
                break
            at += 1
            assert _works(log) == [None, None], f"at place {at} of {what}"
            assert log.append(b"here").result(timeout=10).committed
        assert at, "it was broken off at no place"
        log.flush()
        assert not log._background.calls, "what nobody waits for is not kept"


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
    at, happened = 0, True
    while happened:
        log = testing.blocking_log()
        thread = log._background._thread
        interruption = Interruption(at)
        try:
            with interruption:
                log.close()
        except Limit:
            pass
        log.close()
        thread.join(10)
        assert not thread.is_alive()
        with pytest.raises(Closed):
            log.append(b"x")
        at, happened = at + 1, interruption.happened
    assert at > 5


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
