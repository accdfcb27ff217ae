"""A fragment in an object store as a file that pyarrow can read: fetched in ranges, a row group's columns at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias

from polonaise.errors import StoreUnavailable

FOOTER_BYTES: Final = 64 * 1024
"""Bytes fetched of a fragment's end to read its footer: more than most footers have."""
_APART_MAX: Final = 256 * 1024
"""The largest gap, in bytes, between ranges that are fetched as one: a further request costs more than these bytes."""


class Range(NamedTuple):
    """Bytes of an object, from `start` up to, and without, `stop`."""

    start: int
    stop: int


Fetch: TypeAlias = Callable[[Sequence[Range]], list[bytes]]
"""Fetches ranges of one object, blocking; returns the bytes of each, in their order. Raises what the store raises."""


class _ObjectFile(io.RawIOBase):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


class RangeFile(_ObjectFile):
    """An object as a file to read. `will_read` announces what will be read next, and fetches it in the background. The
    last two announcements are in memory. Other parts are fetched when read, and not kept. For one thread; `close`
    it."""

    def __init__(self, fetch: Fetch, size: int, name: str = "an object") -> None:
        """Read an object of this size (bytes); errors call it `name`."""
        super().__init__(size)
        self._fetch = fetch
        self._name = name
        self._fetching = ThreadPoolExecutor(1, "fragment ranges")
        self._announced: list[tuple[list[Range], Future[list[bytes]]]] = []
        # Every reader of Parquet begins with the footer, in several small reads.
        self.will_read([Range(max(0, size - FOOTER_BYTES), size)])

    def will_read(self, ranges: Sequence[Range]) -> None:
        """Begin to fetch these ranges in the background. Forgets all earlier announcements but the last one."""
        merged = _merged(ranges)
        fetching = self._fetching.submit(self._fetch, merged)
        self._announced = [*self._announced[-1:], (merged, fetching)]

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end of the object; all of the rest if `size` is below 0.
        Raises `StoreUnavailable` if the store returns fewer bytes than it was asked for, and what the store raises."""
        stop = self._size if size < 0 else min(self._at + size, self._size)
        asked = Range(self._at, stop)
        if asked.start >= asked.stop:
            return b""
        data = self._announced_bytes(asked)
        if data is None:
            (data,) = self._fetch([asked])
        if len(data) != asked.stop - asked.start:
            raise StoreUnavailable(
                f"the store returned {len(data)} of {asked.stop - asked.start} bytes of {self._name}: try again"
            )
        self._at = stop
        return data

    def _announced_bytes(self, asked: Range) -> bytes | None:
        """Return the bytes if an announced range holds them, waiting until it is fetched; None otherwise."""
        for ranges, fetching in reversed(self._announced):
            for number, announced in enumerate(ranges):
                if announced.start <= asked.start and asked.stop <= announced.stop:
                    return fetching.result()[number][asked.start - announced.start : asked.stop - announced.start]
        return None

    def close(self) -> None:
        """Stop fetching, and forget what was fetched."""
        self._fetching.shutdown(wait=False, cancel_futures=True)
        self._announced = []
        super().close()


def _merged(ranges: Sequence[Range]) -> list[Range]:
    """Return these ranges in ascending order, those that are at most `_APART_MAX` bytes apart joined to one."""
    merged: list[Range] = []
    for each in sorted(ranges):
        if merged and each.start - merged[-1].stop <= _APART_MAX:
            merged[-1] = Range(merged[-1].start, max(merged[-1].stop, each.stop))
        else:
            merged.append(each)
    return merged


class Parts(_ObjectFile):
    """A file of which only some parts were fetched: `parts` holds them by their offsets in the file."""

    def __init__(self, parts: Mapping[int, bytes], size: int) -> None:
        super().__init__(size)
        self._parts = parts

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, as `RangeFile.read`. Raises `OSError` for bytes that were not fetched."""
        stop = self._size if size < 0 else min(self._at + size, self._size)
        for start, part in self._parts.items():
            if start <= self._at and stop <= start + len(part):
                data = part[self._at - start : stop - start]
                self._at += len(data)
                return data
        raise OSError(f"bytes {self._at} to {stop} of a fragment were not fetched")
