"""How a program ends on SIGTERM, SIGINT and SIGHUP: handlers that set a flag, and waits that look at it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_log = logging.getLogger(__name__)

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_TELL_S: Final = 0.5
"""So long it may take to log that a node is ended by force: the log may lie on the disk that hangs."""


class StopFlag:
    """A flag that a signal handler sets, and that the main thread waits for, without a lock: a handler runs within the
    main thread, and would wait for what that holds."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Sleep for so long unless the flag is set, then tell whether it is. A signal does not shorten the sleep."""
        if not self._is_set:
            time.sleep(seconds)
        return self._is_set


@contextmanager
def stop_signals_call(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGTERM, SIGINT and SIGHUP within the block, instead of ending the process. `stop` may take
    no lock that the main thread can hold. SIGHUP stays ignored if it was: by nohup."""
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
    """Call `reload` in the running event loop for each SIGHUP within the block, unless it is ignored: by nohup."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


class ForcedStop:
    """Ends the process by force if it has not ended some seconds after the first signal that stops it. For a node whose
    disk may hang, and with it the event loop. So the signals are blocked in all other threads, and come to a thread
    that does nothing else. A context manager of the main thread, to be entered before other threads are started."""

    def __init__(self, within_s: float, exit_code: int) -> None:
        self._within_s = within_s
        self._exit_code = exit_code
        self._ended = False
        self._end = threading.Timer(within_s, self._force)
        self._end.daemon = True
        self._thread = threading.Thread(target=self._wait, name="stop signals", daemon=True)
        self._before: set[int] = set()
        self.stop: Callable[[], None] = lambda: None
        """Called, in that thread, with each of the signals."""

    def __enter__(self) -> ForcedStop:
        self._before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._end.cancel()
        if self._thread.is_alive():
            assert self._thread.ident is not None
            signal.pthread_kill(self._thread.ident, signal.SIGTERM)  # it waits for a signal, and for nothing else
            self._thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

    def _wait(self) -> None:
        while True:
            signal.sigwait(STOPS)
            if self._ended:
                return
            if not self._end.is_alive():
                self._end.start()
            self.stop()

    def _force(self) -> None:
        told = threading.Thread(
            target=lambda: _log.critical(
                "this process is ended by force: it has not stopped within %g s, most likely because a disk hangs. "
                "What was acknowledged is durable; what was not may be there or not, as after a power failure",
                self._within_s,
            ),
            daemon=True,
        )
        told.start()
        told.join(_TELL_S)
        os._exit(self._exit_code)


STOP_S: Final = 12.0
"""So long a node has to stop once standard input has ended."""


def stop_when_stdin_ends(within_s: float = STOP_S) -> None:
    """Stop this process by SIGTERM when standard input ends, and by SIGKILL after `within_s` seconds. SIGTERM is
    handled by the event loop, and one that hangs handles nothing."""

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they are for whoever stops the node, and not for this thread
        try:
            while os.read(0, 4096):
                pass
        except OSError:  # a closed standard input, or a terminal that is gone, is an end, too
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(within_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
