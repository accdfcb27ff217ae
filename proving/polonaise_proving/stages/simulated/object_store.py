"""The object store of a simulated cluster: keeps objects in memory, may be out of reach, and lets objects rot."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from polonaise.errors import NotFound, StoreUnavailable
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import Listed
from polonaise_proving.stages.simulated.environment import Environment
from polonaise_proving.stages.simulated.loop import LIFE
from polonaise_proving.stages.simulated.process import Process

_LATENCY_S: Final = 0.002
_FAR_S: Final = 0.05
"""The longest one-way latency to or from the store, in virtual seconds, for one message in twenty; for the others it is
`_LATENCY_S`."""


class SimulatedStore:
    """One object store for all processes of a world: `fragments.store.ObjectStore`.

    An object that was put is durable, as in real stores. A call whose caller dies may have been carried out. The store
    itself never loses an object: `damage` stands for the disks below it, and `restore` for an operator with a copy.
    """

    def __init__(self, environment: Environment) -> None:
        self._faults = environment.faults
        self._random: random.Random = environment.random("store")
        self._objects: dict[str, bytes] = {}
        self._sound: dict[str, bytes] = {}
        """The damaged objects' contents as they were written, by path."""
        self.away = False
        """Whether the store answers nobody."""
        self.unmounted = False
        """Whether an empty directory is in the store's place, as where a file system is not mounted."""
        self._unmounted_objects: dict[str, bytes] = {}
        """The objects that were put while the store was unmounted."""
        environment.tellers.append(self._in_force)

    def _in_force(self) -> Iterator[str]:
        if self.away:
            yield f"{self} answers nobody"
        if self.unmounted:
            yield f"{self} is unmounted"
        yield from (f"{path} in {self} is damaged" for path in self.damaged)

    def __str__(self) -> str:
        return "the store"

    @property
    def empty_is_new(self) -> bool:
        return False

    def unmake(self) -> None:
        """Do nothing: opening this store has made nothing."""

    # ------------------------------------------------------------------ what it is asked

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        await self._travel()
        if path in self._visible:
            return False
        self._visible[path] = bytes(data)
        await self._travel()
        return True

    async def replace(self, path: str, data: bytes) -> None:
        await self._travel()
        visible = self._visible
        visible[path] = bytes(data)
        # While the store is not mounted, the damaged object stays as it is: the new one is in another directory.
        if visible is self._objects and self._sound.pop(path, None) is not None:
            self._faults.count("fragment_mended")
        await self._travel()

    async def make_durable(self, path: str) -> None:
        await self._travel()
        self._object(path)

    async def get(self, path: str) -> bytes:
        await self._travel()
        return self._object(path)

    async def holds(self, path: str, data: bytes) -> bool:
        await self._travel()
        return self._object(path) == data

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        await self._travel()
        self._faults.count("fragment_read")
        return self._object(path)[offset : offset + length]

    async def list(self, prefix: str = "") -> list[Listed]:
        await self._travel()
        return sorted(Listed(path, len(raw)) for path, raw in self._visible.items() if path.startswith(prefix))

    async def delete(self, path: str) -> None:
        await self._travel()
        self._visible.pop(path, None)

    @property
    def _visible(self) -> dict[str, bytes]:
        if not self.unmounted:
            return self._objects
        self._faults.count("store_unmounted")
        return self._unmounted_objects

    def _object(self, path: str) -> bytes:
        raw = self._visible.get(path)
        if raw is None:
            raise NotFound(f"no object {path!r} in {self}")
        return raw

    async def _travel(self) -> None:
        """Wait as long as one way to the store or back takes; the caller may die meanwhile.

        Raises `StoreUnavailable` while the store is away.
        """
        process = LIFE.get()
        if isinstance(process, Process):
            process.call()
        far = self._random.random() < 0.05
        await asyncio.sleep((_FAR_S if far else _LATENCY_S) * self._random.random())
        if self.away:
            self._faults.count("store_away")
            raise StoreUnavailable(f"{self} does not answer")

    # ------------------------------------------------------------------ what happens to it

    def put_now(self, path: str, data: bytes) -> None:
        """Put an object at once, as another writer would."""
        self._objects[path] = data

    def damage(self, may_be: Callable[[str], object] = bool) -> bool:
        """Flip one bit of an undamaged object for whose path `may_be` is true. Returns False if there is none."""
        whole = [path for path in sorted(self._objects) if path not in self._sound and may_be(path)]
        if not whole:
            return False
        path = self._random.choice(whole)
        raw = bytearray(self._objects[path])
        self._sound[path] = bytes(raw)
        raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
        self._objects[path] = bytes(raw)
        self._faults.count("damaged_object")
        return True

    @property
    def damaged(self) -> tuple[str, ...]:
        """The paths of the objects that are not as they were written."""
        return tuple(sorted(self._sound))

    def restore(self) -> None:
        """Put back every damaged object as it was written."""
        self._objects.update(self._sound)
        self._sound.clear()

    def fragments(self) -> dict[FragmentName, bytes]:
        """Return every fragment as it was written: what an operator with copies could still read."""
        written = {**self._objects, **self._sound}
        return {name: raw for path, raw in sorted(written.items()) if (name := _fragment_at(path)) is not None}


_fragment_at = lru_cache(maxsize=1024)(FragmentName.parse)
"""Checks look at all fragments many times a second."""
