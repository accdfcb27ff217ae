"""Reading a storage node's segments without the node: what one replica holds, and what it alone can prove.

Nothing is locked or changed, and the node may be running. What is committed only a quorum can prove.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

from polonaise.errors import SegmentDamaged, UnsupportedFormat, WrongClusterKey
from polonaise.host.files import ReadOnlyFile
from polonaise.log.batch import Batch
from polonaise.log.recovery import begins_log
from polonaise.log.segment import (
    HEADER_BYTES,
    Scan,
    SegmentHeader,
    SegmentRemoved,
    intact_batches,
    name,
    read_preamble,
    seed_of,
    walk,
)
from polonaise.log.tail import empty_scan
from polonaise.storage.files import Files, evidence_in, first_of, found_again, trimmed_in
from polonaise.storage.protocol.standing import Bounds
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

T = TypeVar("T")


def bounds_in(files: Files) -> Bounds:
    """Return the bounds that the control file gives; without one nothing is known to be committed."""
    if files.control is None:
        return Bounds(NO_TRANSACTION)
    promises = files.control.promises
    return Bounds(
        promises.confirmed,
        promises.untrusted_above if promises.untrusted else None,
        promises.lost_above if promises.may_have_lost else None,
    )


def caution(partition: PartitionId | None, directory: str, bounds: Bounds, trimmed: TransactionId = 0) -> str:
    """Return the warning for readers of a single replica. `trimmed` is the first id left after a trim, 0 for none."""
    warning = (
        f"CAUTION: this is one replica of partition {'?' if partition is None else partition}, in {directory}, and not "
        f"the log. It knows ids up to {bounds.confirmed} to be committed; what it holds above that may NEVER HAVE BEEN "
        "COMMITTED, and what is committed may be missing."
    )
    if trimmed:
        warning += f" It begins with {trimmed}: what was below was trimmed, and is in the fragments."
    if bounds.lost is not None:
        warning += f" Its node says that it may have lost what was above {bounds.lost}."
    if bounds.trusted is not None:
        warning += f" It does not trust what it holds above {bounds.trusted}."
    return warning


async def header_of(file: ReadOnlyFile, path: str, files: Files) -> SegmentHeader:
    """Read a segment's header. Raises `SegmentDamaged`, also for another file's, and as `SegmentHeader.decode`.

    Raises `WrongClusterKey` for a header of another cluster than the control file's.
    """
    try:
        header = SegmentHeader.decode(await file.read(0, HEADER_BYTES))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error.text}") from error
    if files.control is not None and header.cluster_key != files.control.cluster_key:
        raise WrongClusterKey(f"{path} belongs to another cluster than the storage directory it lies in")
    if header.first != first_of(path) or files.partition not in (None, header.partition):
        raise SegmentDamaged(f"it is segment {name(header.first)} of partition {header.partition} under another name")
    return header


class Dumped(NamedTuple):
    """A batch that was read from a file, whatever lies before it."""

    path: str
    offset: int
    """Where its frame begins in the file, in bytes."""
    batch: Batch
    behind_damage: bool
    """Whether something before it in this file is damaged, so that the batch, though whole, may not be on the log."""


async def dump(files: Files, damaged: Callable[[SegmentDamaged], None] | None = None) -> AsyncGenerator[Dumped, None]:
    """Yield every batch of every file. Each file is read by itself: a missing file between two is not noticed.

    Raises `SegmentDamaged` at the first damage; an unfinished write only ends its file. `damaged`, if given, is called
    with the error instead, and reading goes on behind the damage; where a file's beginning is damaged, only if a
    control file says whose it is. Raises `WrongClusterKey`, `UnsupportedFormat`, and `NotFound` for a file that a
    running node has removed meanwhile.
    """
    for path in files.paths:
        with ReadOnlyFile(path) as file:
            try:
                scanned, header = await opened(file, path, files)
            except SegmentRemoved:
                continue
            except SegmentDamaged as error:
                if damaged is None:
                    raise
                damaged(error)
                if files.control is None or files.partition is None:
                    continue
                start, seed = HEADER_BYTES, seed_of(files.control.cluster_key, files.partition, first_of(path))
            else:
                async with aclosing(walk(file, header, scanned, file.size())) as batches:
                    async for offset, batch in batches:
                        yield Dumped(path, offset, batch, behind_damage=False)
                if not scanned.bad or scanned.torn:
                    continue
                damage = _damaged(path, scanned.bad, scanned.last + 1)
                if damaged is None:
                    raise damage
                damaged(damage)
                start, seed = scanned.end + 1, header.seed
            async with aclosing(intact_batches(file, seed, start, file.size())) as behind:
                async for offset, batch in behind:
                    yield Dumped(path, offset, batch, behind_damage=True)


async def opened(file: ReadOnlyFile, path: str, files: Files) -> tuple[Scan, SegmentHeader]:
    """Begin to scan a segment: read its header and preamble. Raises what `header_of` does, damage with the path."""
    try:
        header = await header_of(file, path, files)
        return empty_scan(header, await read_preamble(file, header)), header
    except SegmentRemoved:
        raise
    except SegmentDamaged as error:
        raise _damaged(path, error.text, first_of(path)) from error


async def batches_of(files: Files, after: TransactionId = NO_TRANSACTION) -> AsyncGenerator[Batch, None]:
    """Yield the batches of one partition that hold anything above `after`, in order and without a gap.

    Raises `SegmentDamaged` at the first batch that is damaged or, as far as a control file tells, missing; and
    `WrongClusterKey`, `UnsupportedFormat`, and `NotFound` for a file that a running node has removed meanwhile.
    """
    before: Scan | None = None
    for path in _from(files, after):
        with ReadOnlyFile(path) as file:
            try:
                scanned, header = await opened(file, path, files)
            except SegmentRemoved:
                continue
            _check_follows(files, path, header, before, is_begun=path == files.paths[0])
            async with aclosing(walk(file, header, scanned, file.size())) as batches:
                async for _, batch in batches:
                    if batch.last > after:
                        yield batch
            if scanned.bad and not scanned.torn:
                raise _damaged(path, scanned.bad, scanned.last + 1)
            before = scanned
    last = NO_TRANSACTION if before is None else before.last
    if files.whole and evidence_in(files).last > last and (synced := evidence_in(found_again(files)).last) > last:
        raise SegmentDamaged(
            f"partition {files.partition} in {files.directory} ends with {last}, and {synced} had been synced; the "
            f"first transaction that can't be had is {last + 1}"
        )


def _from(files: Files, after: TransactionId) -> tuple[str, ...]:
    """Return the paths of the segments that may hold ids above `after`, going by the first ids in their names."""
    below = sum(first_of(path) <= after + 1 for path in files.paths)
    return files.paths[max(below - 1, 0) :]


def _check_follows(files: Files, path: str, header: SegmentHeader, before: Scan | None, *, is_begun: bool) -> None:
    """Raise `SegmentDamaged` if a segment does not go on from the one before it."""
    if not files.whole:
        return
    if before is None:
        if is_begun and files.control is not None and not begins_log(header, trimmed_in(files)):
            raise _damaged(path, "the segment before it is missing", trimmed_in(files).first)
    elif (header.first - 1, header.previous_crc) != (before.last, before.last_crc):
        raise _damaged(path, f"it does not follow {before.last}, where the segment before it ends", before.last + 1)


def _damaged(path: str, damage: str, first: TransactionId) -> SegmentDamaged:
    return SegmentDamaged(f"{path}: {damage}; the first transaction that can't be had is {first}")


def unwaited(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, as none in this module does, and return its result.

    Without an event loop, because the caller may be in one already, as code in a notebook is.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("work that must never wait has waited")


def each_unwaited(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous generator that never waits, and close it."""
    try:
        while True:
            yield unwaited(items.__anext__())
    except StopAsyncIteration:
        return
    finally:
        unwaited(items.aclose())
