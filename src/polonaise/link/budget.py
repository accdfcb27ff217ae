"""The memory budget that all connections accepted by a node share."""

from __future__ import annotations

from typing import Final, Protocol

from polonaise.errors import Overloaded, PolonaiseError

_STEP_BYTES: Final = 65_536
"""Smaller changes are not booked: most connections hold next to nothing."""


class Holder(Protocol):
    """A connection: `peer_name` for messages, and `abort` to cut it off."""

    @property
    def peer_name(self) -> str: ...

    def abort(self, error: PolonaiseError) -> None: ...


class Budget:
    """Bounds the bytes that are held for all connections together: frames not handled yet, and answers not taken.

    Each has limits of its own, but there may be thousands. When half of the budget is used, every connection is given
    less at a time. When all of it is used, those that hold the most are cut off, until the rest fits: a peer that sends
    and reads as it should holds little.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Held at present, exact to a step of 64 KiB per connection."""
        self.cut_off = 0
        """How many connections were."""

    @property
    def tight(self) -> bool:
        """Whether more than half of the budget is used."""
        return self.total > self._bytes_max // 2

    def book(self, holder: Holder, held_bytes: int) -> None:
        """Note how many bytes a connection holds now; cut off the largest holders if that is too much."""
        before = self._held.get(holder, 0)
        if abs(held_bytes - before) < _STEP_BYTES:
            return
        self._held[holder] = held_bytes
        self.total += held_bytes - before
        while self.total > self._bytes_max:
            greediest = max(self._held, key=self._held.__getitem__)
            # Before the abort, which may book or release by itself.
            self.release(greediest)
            self.cut_off += 1
            greediest.abort(
                Overloaded(
                    f"all connections together hold more than {self._bytes_max} bytes, "
                    f"{greediest.peer_name} the most of them"
                )
            )

    def release(self, holder: Holder) -> None:
        """Forget a connection that is gone."""
        self.total -= self._held.pop(holder, 0)
