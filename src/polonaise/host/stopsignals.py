"""Ends a program on SIGTERM, SIGINT and SIGHUP: handlers that set a flag, and waits that look at it.

A node that reads its settings again on SIGHUP has that signal call it in its event loop.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopFlag:
    """A flag that a signal handler sets, and that the main thread waits for.

    It has no lock, unlike `threading.Event`. A handler runs within the main thread, which holds the lock of an event
    for moments while it waits for it: a handler that came in such a moment would wait for that lock for ever.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Set the flag, for good."""
        self._is_set = True

    def is_set(self) -> bool:
        """Tell whether the flag is set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Sleep for so long unless the flag is set already, then tell whether it is.

        A signal does not shorten the sleep: keep it short.
        """
        if not self._is_set:
            time.sleep(seconds)
        return self._is_set


@contextmanager
def stop_signals_call(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGTERM, SIGINT and SIGHUP within the block, instead of ending the process.

    `stop` may take no lock that the main thread can hold. SIGHUP stays ignored if it was: by nohup, so that the program
    goes on when its terminal is gone.
    """
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hangups_call(reload: Callable[[], None]) -> Iterator[None]:
    """Call `reload` in the running event loop for each SIGHUP within the block, instead of ending the process.

    SIGHUP stays ignored if it was: by nohup, so that the program goes on, as it is, when its terminal is gone.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
