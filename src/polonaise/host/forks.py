"""What a forked child shares with its parent and must not touch: what the parent's event loops wait for."""

from __future__ import annotations

import asyncio
import os
import select
from typing import Any, Final
from weakref import WeakSet

_loops: Final[WeakSet[asyncio.AbstractEventLoop]] = WeakSet()


def keep_apart(loop: asyncio.AbstractEventLoop) -> None:
    """Let no child that this process forks take the loop's sockets out of what the loop waits for. They share the
    kernel's list of them (epoll): a child that ends as programs end closes the sockets that it inherited, and its
    parent would be deaf."""
    _loops.add(loop)


def _detach_all() -> None:
    for loop in list(_loops):
        selector: Any = getattr(loop, "_selector", None)
        shared = getattr(selector, "_selector", None)
        # Other kinds are not inherited, or not shared. uvloop's can't be reached, and does nothing unless its handles
        # are closed: what the library runs in loops of its own is never let go of in a child.
        if hasattr(select, "epoll") and isinstance(shared, select.epoll):
            selector._selector = select.epoll()
            shared.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_detach_all)
