"""What all connections that a node has accepted may hold in its memory together."""

from __future__ import annotations

from typing import Final, Protocol

from polonaise.errors import Overloaded, PolonaiseError

_STEP_BYTES: Final = 65_536
"""Smaller changes are not booked: most connections hold next to nothing."""


class Holder(Protocol):
    """A connection, as far as it is booked here."""

    @property
    def peer_name(self) -> str: ...

    def abort(self, error: PolonaiseError) -> None: ...


class Budget:
    """Bytes of frames that have arrived in part, and of answers that are not taken yet, over all connections.

    Each of them has limits of its own, but there may be thousands. From half of it on, everybody is given less at a
    time. When it is used up, the connection that holds the most is cut off, and the next one, until it fits: who sends
    and reads as it should holds little at any time, and stays.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}
        self.total = 0
        """Bytes held at present, up to a step per connection."""
        self.cut_off = 0
        """Connections that had to go."""

    @property
    def tight(self) -> bool:
        """Whether it is time to hold less."""
        return self.total > self._bytes_max // 2

    def book(self, holder: Holder, held_bytes: int) -> None:
        """`holder` holds so much now."""
        before = self._held.get(holder, 0)
        if abs(held_bytes - before) < _STEP_BYTES:
            return
        self._held[holder] = held_bytes
        self.total += held_bytes - before
        while self.total > self._bytes_max:
            greediest = max(self._held, key=self._held.__getitem__)
            self.release(greediest)
            self.cut_off += 1
            greediest.abort(
                Overloaded(f"all connections hold more than {self._bytes_max} bytes; {greediest.peer_name} the most")
            )

    def release(self, holder: Holder) -> None:
        """`holder` is gone."""
        self.total -= self._held.pop(holder, 0)
