"""Processes and clients that grow on purpose: a judgement that finds none of these would find nothing.

`python -m polonaise_proving.work.leaks KIND` leaks by itself, for as long as somebody reads what it prints.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

EVERY_S: Final = 0.005

_kept: list[Any] = []


def _file() -> None:
    _kept.append(os.open(os.devnull, os.O_RDONLY))


def _socket() -> None:
    _kept.append(socket.socket())


def _pipe() -> None:
    _kept.append(os.pipe())


def _thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def _task() -> None:
    _kept.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))


def _memory() -> None:
    _kept.append(os.urandom(600_000))


LEAKS: Final[dict[str, Callable[[], None]]] = {
    "files": _file,
    "sockets": _socket,
    "other": _pipe,
    "threads": _thread,
    "tasks": _task,
    "memory_mb": _memory,
}
"""The ways to leak, by the figure that grows."""


async def leak(kind: str, every_s: float) -> None:
    """Leak one resource of this kind again and again, until cancelled; do nothing if the kind is empty."""
    while kind:
        LEAKS[kind]()
        await asyncio.sleep(every_s)


async def _alone(kind: str) -> None:
    """Leak, and print the number of tasks, one line each time, for as long as somebody reads."""
    leaking = asyncio.create_task(leak(kind, EVERY_S))
    while True:
        print(len(asyncio.all_tasks()), flush=True)  # noqa: T201
        await asyncio.sleep(EVERY_S)
        if leaking.done():
            leaking.result()


if __name__ == "__main__":
    try:
        asyncio.run(_alone(sys.argv[1]))
    except BrokenPipeError:
        os._exit(0)
