"""Tells whether gevent or eventlet has put something else in the place of threads and of what event loops wait with."""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from polonaise.errors import fault


class PatchingLibrary(NamedTuple):
    name: str
    module: str
    """Loaded if anything was patched; it knows what."""
    tells: str
    """Its function that tells whether a module is patched."""
    threads: tuple[str, ...]
    """If these are patched, threads, and event loops in them, are none."""
    together: tuple[str, ...]
    """Those that have to be patched all, if one of `threads` is."""
    whole: str
    """The call that patches all of them."""
    spared: str
    """The call that leaves threads as they are."""

    def patched(self) -> list[str]:
        """Return those of `threads` and `together` that are patched; none if no one of `threads` is."""
        module = sys.modules.get(self.module)
        if module is None:
            return []
        patched = [name for name in self.together if getattr(module, self.tells)(name)]
        return patched if set(patched) & set(self.threads) else []


_LIBRARIES: Final = (
    PatchingLibrary(
        "gevent",
        "gevent.monkey",
        "is_module_patched",
        threads=("threading", "queue", "select"),
        together=("threading", "queue", "select"),
        whole="monkey.patch_all()",
        spared="monkey.patch_all(thread=False, queue=False, select=False)",
    ),
    PatchingLibrary(
        "eventlet",
        "eventlet.patcher",
        "is_monkey_patched",
        threads=("thread",),  # its `select` serves an event loop in a real thread, too
        together=("thread", "select"),
        whole="eventlet.monkey_patch()",
        spared="eventlet.monkey_patch(thread=False)",
    ),
)


def patched_threads() -> PatchingLibrary | None:
    """Return which library has patched threads, or a part of what they wait with, if any."""
    return next((each for each in _LIBRARIES if each.patched()), None)


def check_patches() -> None:
    """Raise `half_patched` if only a part of what threads and event loops stand on is patched: a wait would not end."""
    for each in _LIBRARIES:
        patched = each.patched()
        left = [name for name in each.together if name not in patched]
        if patched and left:
            raise fault(
                "half_patched",
                f"{each.name} has patched {' and '.join(patched)} in this process, but not {' and '.join(left)}, and "
                f"what waits in one for the other would wait for ever: leave all of them as they are, by "
                f"{each.spared}, or patch all, by {each.whole}, with which a process can open logs, but host none",
            )
