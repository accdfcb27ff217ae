"""The connections of one Spark process: logs and object stores, opened once and kept for its next task.

Spark reuses its Python processes, and ends them without notice: nothing here waits to be closed, and a forked child
opens connections of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import polonaise.blocking
from polonaise.blocking.background import Background
from polonaise.blocking.log import Log
from polonaise.client.settings import ClientSettings
from polonaise.errors import NotInitialized
from polonaise.fragments.store import Listed, ObstoreStore, open_store
from polonaise.host.tls import TlsFiles
from polonaise.node.embedded import SCHEME, is_there
from polonaise.redaction import redacted_address

T = TypeVar("T")

_LISTINGS_MAX: Final = 256
_GROWTH_S: Final = 0.05
"""Seconds between two looks whether a topic has grown, which the connection learns by itself."""

_guard = threading.Lock()
_logs: dict[tuple[str, TlsFiles | None], Log] = {}
_stores: dict[str, ObstoreStore] = {}
_listings: dict[tuple[str, str], tuple[float, list[Listed]]] = {}
"""By URL and prefix, each with the monotonic time at which it was made."""
_background: Background | None = None
_pid = os.getpid()


def log_at(address: str, tls: TlsFiles | None = None) -> Log:
    """Return this process's connection to the log at this address, made with these TLS files if need be. Raises what
    `polonaise.blocking.connect` raises, and `NotInitialized` for an embedded log that does not exist: reading a log
    must not make one."""
    with _guard:
        _forget_parents()
        log = _logs.get((address, tls))
        # A connection that has failed stays failed: the next task gets a new one.
        if log is None or log.failure is not None:
            if address.startswith(SCHEME) and not is_there(address):
                shown = redacted_address(address)
                raise NotInitialized(f"there is no log at {shown}: correct the path; polonaise.connect makes a log")
            log = polonaise.blocking.connect(address, settings=ClientSettings(name="spark"), tls=tls)
            _logs[address, tls] = log
        return log


def wait_for_partition(log: Log, partition: int, timeout_s: float) -> None:
    """Wait, for up to `timeout_s` seconds, until this process has learnt that a topic has this partition."""
    until_s = time.monotonic() + timeout_s
    while log.topic and partition >= log.partition_count and time.monotonic() < until_s:
        time.sleep(_GROWTH_S)


def store_at(url: str, *, make: bool = False) -> ObstoreStore:
    """Return the object store at this URL, opened once per process; run its asynchronous methods by `wait`. A directory
    that does not exist is made if `make` is true. Raises what `open_store` raises."""
    with _guard:
        _forget_parents()
        store = _stores.get(url)
        if store is None:
            store = _stores[url] = open_store(url, make=make)
        return store


def listed(url: str, prefix: str, age_s_max: float) -> list[Listed]:
    """Return the objects of a store below this prefix, by a listing of this process at most `age_s_max` seconds old."""
    store = store_at(url)
    listing = _listings.get((url, prefix))
    if listing is None or time.monotonic() - listing[0] > age_s_max:
        listing = (time.monotonic(), wait(lambda: store.list(prefix)))
        while len(_listings) >= _LISTINGS_MAX:
            _listings.pop(next(iter(_listings)), None)
        _listings[url, prefix] = listing
    return listing[1]


def wait(make: Callable[[], Awaitable[T]]) -> T:
    """Call `make`, await in a background thread what it returns, and return the result. Blocks until then."""
    global _background
    with _guard:
        _forget_parents()
        if _background is None:
            _background = Background("polonaise stores")
        background = _background
    return background.call(make)


def _forget_parents() -> None:
    """Forget the parent's connections and threads after a fork, which they do not survive."""
    global _pid, _background
    if _pid != os.getpid():
        _pid = os.getpid()
        _background = None
        _logs.clear()
        _stores.clear()
        _listings.clear()


def _new_guard(*_: Any) -> None:
    # A thread of the parent may have held the guard at the fork: in the child nobody would ever release it.
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_new_guard)
