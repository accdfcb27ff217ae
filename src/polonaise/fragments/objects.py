"""Fragments as objects in a store: listed, opened, looked at, written once, and verified, in threads of their own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa

from polonaise.errors import (
    BatchDamaged,
    FragmentDamaged,
    InvariantViolated,
    PolonaiseError,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.fragments.agreement import FragmentFacts
from polonaise.fragments.format import Footer, FragmentWriter, batches_in, open_fragment, opened_by
from polonaise.fragments.groups import (
    ends_in_group,
    first_of_group,
    group_batches,
    groups_of,
    parts_for_ends,
    parts_for_group,
)
from polonaise.fragments.mark import is_marked, unmarked
from polonaise.fragments.protocol.coverage import FRAGMENT_BYTES
from polonaise.fragments.protocol.names import FragmentName, partition_prefix
from polonaise.fragments.ranges import FOOTER_BYTES, Parts
from polonaise.fragments.store import ObjectStore, ReadableStore
from polonaise.log.batch import Batch
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger(__name__)

MEND: Final = (
    "write it again from the log, if that still holds its transactions (polonaise archive verify STORE --repair LOG), "
    "or restore it from a copy"
)
"""What to do about a fragment that is not as it was written, for messages."""
PUT_BACK: Final = (
    "put the fragments back, or write them again from the log, if that still holds these ids: "
    "polonaise archive run LOG STORE"
)
"""What to do about fragments that are missing, for messages."""
_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""How many bytes of batches are handed to another thread at a time."""


class ArchivedFragment(NamedTuple):
    """A fragment that was written just now, or found in the store as the same object."""

    fragment: FragmentName
    bytes: int
    """Size of the object."""


@contextlib.contextmanager
def of_fragment(name: FragmentName) -> Iterator[None]:
    """Name the fragment in the errors about its bytes that are raised within; for damage, say what to do besides.
    Whatever decoding raises is damage: bytes that nobody foresaw."""
    try:
        yield
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path}: {error.text}: {MEND}") from error
    except (UnsupportedFormat, WrongClusterKey) as error:
        raise type(error)(f"{name.path}: {error.text}") from error
    except (PolonaiseError, InvariantViolated, MemoryError):
        raise
    except Exception as error:
        raise FragmentDamaged(f"{name.path} can't be read ({error!r}): {MEND}") from error


async def fragments_of(store: ReadableStore, partition: PartitionId | None = None) -> dict[FragmentName, int]:
    """Return the fragments of a partition, or of all, in the order of their names, and how many bytes each has."""
    listed = await store.list("" if partition is None else partition_prefix(partition))
    return {name: each.bytes for each in listed if (name := FragmentName.parse(each.path)) is not None}


async def partitions_in(store: ReadableStore) -> list[PartitionId]:
    """Return the partitions that have fragments in the store, in ascending order."""
    return sorted({name.partition for name in await fragments_of(store)})


async def footer_of(store: ReadableStore, name: FragmentName, size: int) -> Footer:
    """Return the footer of a fragment of `size` bytes. Raises what `looked_at` does."""
    return (await looked_at(store, name, size, ())).footer


async def looked_at(
    store: ReadableStore, name: FragmentName, size: int, ids: Collection[TransactionId]
) -> FragmentFacts:
    """Return the footer of a fragment of `size` bytes, and the CRCs of the batches that end at these of its ids.
    Fetches the whole object only if its end does not suffice for the footer. Raises `FragmentDamaged`, also when the
    object holds other ids than its name says, and `UnsupportedFormat`, which name the object, and what the store
    raises."""
    length = min(size, FOOTER_BYTES)
    with of_fragment(name):
        opened = opened_by(await store.get_range(name.path, size - length, length))
    if opened is None:
        return _facts(await store.get(name.path), name, ids)
    footer, metadata = _checked(opened[0], name), opened[1]
    ends: dict[TransactionId, int | None] = {}
    with of_fragment(name):
        firsts = [first_of_group(metadata, number) for number in range(metadata.num_row_groups)] if ids else []
        for number, within in groups_of(firsts, ids).items():
            parts = {
                part.start: await store.get_range(name.path, part.start, part.stop - part.start)
                for part in parts_for_ends(metadata, number)
            }
            source = pa.PythonFile(Parts(parts, size), mode="r")
            ends.update(await asyncio.to_thread(ends_in_group, source, metadata, number, within))
    return FragmentFacts(name, footer, ends)


# ------------------------------------------------------------------ writing


async def write_fragments(
    store: ObjectStore,
    cluster_key: bytes,
    batches: AsyncIterable[Batch],
    *,
    fragment_bytes: int = FRAGMENT_BYTES,
    rest: bool = True,
) -> AsyncGenerator[ArchivedFragment, None]:
    """Write consecutive batches of one partition as fragments; yield each once it is stored and verified. A fragment
    ends with the batch that brings it to `fragment_bytes`, so every writer that is given the same batches writes the
    same objects. The last one may not reach that size: it is written if `rest`. Memory holds two. Raises what
    `batches`, `is_marked` and the store raise, `NotFound` for a store without a mark, `BatchDamaged` for batches that
    do not follow each other, and `FragmentDamaged` for an object that does not read back as it was written."""
    making = _Making(cluster_key)
    storing: asyncio.Task[ArchivedFragment] | None = None
    try:
        async for batch in batches:
            await making.add(batch)
            full = making.bytes >= fragment_bytes
            if storing is not None and (full or storing.done()):
                stored, storing = storing, None
                yield await stored
            if full:
                storing = asyncio.create_task(_put(store, making))
                making = _Making(cluster_key)
    except Exception:
        # A fragment that was whole before the failure is kept: what comes before damaged batches can be archived so.
        if storing is not None:
            stored, storing = storing, None
            yield await stored
        raise
    else:
        if storing is not None:
            yield await storing
        if making.bytes and rest:
            yield await _put(store, making)
    finally:
        if storing is not None:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)


class _Making:
    """A fragment in the making. Batches go to the writer some at a time, in another thread."""

    def __init__(self, cluster_key: bytes) -> None:
        self.cluster_key = cluster_key
        self._writer = FragmentWriter(cluster_key)
        self._waiting: list[Batch] = []
        self._waiting_bytes = 0
        self.bytes = 0

    async def add(self, batch: Batch) -> None:
        """Add the next batch. Raises `BatchDamaged`, in this or a later call, if it does not follow the one before."""
        self._waiting.append(batch)
        self._waiting_bytes += batch.length
        self.bytes += batch.length
        if self._waiting_bytes >= _CHUNK_BYTES:
            await asyncio.to_thread(self._write)

    def _write(self) -> None:
        for batch in self._waiting:
            self._writer.add(batch)
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> tuple[FragmentName, bytes]:
        """Return the fragment's name and bytes, after checking that its batches can be made again. Raises
        `BatchDamaged` for batches that do not follow each other, or none; `FragmentDamaged` if the check fails."""
        self._write()
        footer, raw = self._writer.finish()
        name = FragmentName(footer.partition, footer.first, footer.last, hashlib.sha256(raw).hexdigest())
        _check_batches(raw, name)
        return name, raw


async def made_again(cluster_key: bytes, name: FragmentName, batches: AsyncIterable[Batch]) -> bytes:
    """Return the object that a fragment's name stands for, made of the batches of its ids, to replace a damaged one.
    The digest in the name decides, whatever the log holds. Raises `FragmentDamaged` where the batches make another
    object, and what `batches` raise."""
    making = _Making(cluster_key)
    try:
        async for batch in batches:
            await making.add(batch)
        made, raw = await asyncio.to_thread(making.finish)
    except BatchDamaged as error:
        raise FragmentDamaged(f"{name.path} can't be written again from the log: {error.text}") from error
    if made != name:
        raise FragmentDamaged(
            f"{name.path} can't be written again: from the log's transactions {name.first} to {name.last} this version "
            "makes another object. Restore it from a copy; or move it out of the store, and run polonaise archive run, "
            "which writes these ids anew"
        )
    return raw


async def _put(store: ObjectStore, making: _Making) -> ArchivedFragment:
    """Store the fragment, if its batches can be made again and the store has its mark; then read the object back."""
    name, raw = await asyncio.to_thread(making.finish)
    # Each time: an archive takes hours, and another store, or none, may be at the address by now.
    if not await is_marked(store, making.cluster_key):
        raise unmarked(store)
    written = await store.put_if_absent(name.path, raw)
    if not await store.holds(name.path, raw):
        raise FragmentDamaged(
            f"{name.path} does not read back as it was written: repair it (polonaise archive verify --repair LOG), or "
            "move it out of the store, and archive again"
        )
    _log.info("%s %s, %d bytes", "wrote" if written else "found", name.path, len(raw))
    return ArchivedFragment(name, len(raw))


# ------------------------------------------------------------------ verifying


def open_bytes(raw: bytes, name: FragmentName) -> Footer:
    """Return the footer of an object that was fetched whole, after checking its digest and ids against its name."""
    if hashlib.sha256(raw).hexdigest() != name.digest:
        raise FragmentDamaged(f"{name.path}: its SHA-256 is not the one in its name: {MEND}")
    try:
        footer, _ = open_fragment(raw)
    except (FragmentDamaged, UnsupportedFormat) as error:
        raise type(error)(f"{name.path}: {error.text}") from error
    return _checked(footer, name)


def _checked(footer: Footer, name: FragmentName) -> Footer:
    if footer[1:4] != name[:3]:
        raise FragmentDamaged(
            f"{name.path} holds other ids than its name says: {footer.first} to {footer.last} of partition "
            f"{footer.partition}"
        )
    return footer


async def verified(store: ReadableStore, name: FragmentName, ids: Collection[TransactionId] = ()) -> FragmentFacts:
    """Fetch a fragment, make every batch of it again, and return its footer, and the batches' CRCs at these ids. Raises
    `FragmentDamaged` and `UnsupportedFormat`, which name the fragment, and what the store raises, as `NotFound`."""
    return await asyncio.to_thread(_verify, await store.get(name.path), name, ids)


def _verify(raw: bytes, name: FragmentName, ids: Collection[TransactionId]) -> FragmentFacts:
    facts = _facts(raw, name, ids)
    _check_batches(raw, name)
    return facts


def _facts(raw: bytes, name: FragmentName, ids: Collection[TransactionId]) -> FragmentFacts:
    footer = open_bytes(raw, name)
    ends: dict[TransactionId, int | None] = {}
    if ids:
        with of_fragment(name):
            metadata = open_fragment(raw)[1].metadata
            firsts = [first_of_group(metadata, number) for number in range(metadata.num_row_groups)]
            for number, within in groups_of(firsts, ids).items():
                ends.update(ends_in_group(pa.BufferReader(raw), metadata, number, within))
    return FragmentFacts(name, footer, ends)


def _check_batches(raw: bytes, name: FragmentName) -> None:
    try:
        for _ in batches_in(raw):
            pass
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path}: {error.text}") from error


@dataclass(slots=True)
class OpenFragment:
    """A fragment whose footer was read."""

    name: FragmentName
    size: int
    """Bytes of the whole fragment."""
    metadata: Any
    """The metadata of its Parquet file."""
    firsts: list[TransactionId]
    """The first id of each row group."""
    footer: Footer
    ends: dict[TransactionId, int | None] = field(default_factory=dict)
    """The CRC of the batch that ends at an id, None where none ends, for the ids that were looked up."""
    verified: bool = False
    """Whether all its bytes were read, and have the digest in its name."""

    @property
    def facts(self) -> FragmentFacts:
        return FragmentFacts(self.name, self.footer, self.ends)


def opened_by_end(name: FragmentName, size: int, end: bytes, cluster_key: bytes) -> OpenFragment:
    """Return the fragment whose end this is. Raises `FragmentDamaged`, `UnsupportedFormat`, `WrongClusterKey`."""
    with of_fragment(name):
        footer, file = open_fragment(end, cluster_key)
        if footer[1:4] != name[:3]:
            raise FragmentDamaged(
                f"it holds other ids than its name says: {footer.first} to {footer.last} of partition "
                f"{footer.partition}"
            )
        metadata = file.metadata
        needed = max(part.stop for part in parts_for_group(metadata, metadata.num_row_groups - 1))
        if size < needed + metadata.serialized_size:
            raise FragmentDamaged(f"it has {size} bytes, and its rows alone reach up to byte {needed}")
        firsts = [first_of_group(metadata, number) for number in range(metadata.num_row_groups)]
        return OpenFragment(name, size, metadata, firsts, footer)


def decoded_group(opened: OpenFragment, number: int, parts: Mapping[int, bytes]) -> list[Batch]:
    """Decode a row group from parts of its fragment, keyed by offset. Making the batches compares each with its CRC."""
    source = pa.PythonFile(Parts(parts, opened.size), mode="r")
    return [Batch.parse(raw, verify=False) for raw in group_batches(source, opened.metadata, number)]


def decoded_end(opened: OpenFragment, number: int, parts: Mapping[int, bytes], id: TransactionId) -> int | None:
    """Return the CRC of the batch that ends at an id of a row group, from parts of the fragment, or None."""
    source = pa.PythonFile(Parts(parts, opened.size), mode="r")
    return ends_in_group(source, opened.metadata, number, [id])[id]


def span_of(
    batches: list[Batch], first: TransactionId, last: TransactionId, bytes_max: int, after_time_us: int
) -> list[Batch]:
    """Return those of a row group's batches that `FragmentHistory.read` is to return, given its arguments."""
    chosen: list[Batch] = []
    size = 0
    for batch in batches:
        if batch.last < first or batch.commit_time_us < after_time_us:
            continue
        size += batch.length
        if batch.last > last or (chosen and size > bytes_max):
            break
        chosen.append(batch)
    return chosen
