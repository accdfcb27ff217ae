"""A cluster's store of fragments as servers ask it: with a deadline, and what is missing is believed with its mark."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from polonaise.errors import FragmentDamaged, InvariantViolated, NotFound, PolonaiseError, StoreUnavailable
from polonaise.fragments.mark import MARK, is_marked
from polonaise.fragments.objects import MEND
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import INIT, MendableStore
from polonaise.redaction import redacted_line

T = TypeVar("T")


class MarkedStore:
    """One cluster's store. Every method may raise `StoreUnavailable`, and `WrongClusterKey` for another's mark."""

    def __init__(self, store: MendableStore, cluster_key: bytes, answer_s_max: float) -> None:
        """`answer_s_max` is the deadline of one call, in seconds."""
        self.store = store
        self._cluster_key = cluster_key
        self._answer_s_max = answer_s_max

    def __str__(self) -> str:
        return str(self.store)

    async def get(self, name: FragmentName, offset: int, length: int) -> bytes:
        """Fetch a part of a fragment. Raises `NotFound` if a store with its mark lacks the fragment, `StoreUnavailable`
        if the mark is missing as well, and `FragmentDamaged` for a fragment that is shorter than listed."""
        try:
            raw = await self.asked(self.store.get_range(name.path, offset, length))
        except NotFound:
            # In a store that is not mounted nothing is found, and nothing is missing either. The second look has the
            # mark before and after it: between the first one and a mark the store may have been mounted again.
            await self.check_mark()
            try:
                raw = await self.asked(self.store.get_range(name.path, offset, length))
            except NotFound:
                await self.check_mark()
                raise
        if len(raw) != length:
            raise FragmentDamaged(f"{name.path} is shorter than its store says: {MEND}")
        return raw

    async def check_mark(self) -> None:
        """Raise `StoreUnavailable` for a store without the mark: one that is not mounted may miss everything."""
        try:
            marked = await self.asked(is_marked(self.store, self._cluster_key))
        except FragmentDamaged as error:
            # It would be taken for damage of the fragment that is being read.
            raise StoreUnavailable(error.text) from error
        if not marked:
            raise StoreUnavailable(
                f"{self} has no {MARK} of this cluster: mount what belongs there, or correct the address; if it "
                f"is new, declare it once: {INIT}"
            )

    async def asked(self, call: Awaitable[T]) -> T:
        """Await a call to the store, with the deadline."""
        try:
            async with asyncio.timeout(self._answer_s_max):
                return await call
        except TimeoutError:
            raise StoreUnavailable(
                f"{self} did not answer within {self._answer_s_max:g} s: see that it can be reached"
            ) from None
        except (PolonaiseError, InvariantViolated):
            raise
        except Exception as error:  # of the way to the store: no look at it may end the server
            raise StoreUnavailable(f"{self}: {told(error)}") from error


def told(error: Exception) -> str:
    """Return an error that nobody foresaw in words, on one line and without secrets."""
    return f"{type(error).__name__}: {redacted_line(error)}"
