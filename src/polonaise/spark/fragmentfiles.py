"""Read fragments in object stores: columns, footers, the transaction at a commit time. Errors name the fragment."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from polonaise.client.batchreader import future_times
from polonaise.errors import (
    FragmentDamaged,
    NotFound,
    PolonaiseError,
    StoreUnavailable,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.fragments.columns import ROWS_MAX, columns_in
from polonaise.fragments.format import Footer, open_fragment
from polonaise.fragments.objects import MEND
from polonaise.fragments.protocol.coverage import FragmentRange, Span, cover
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import RangeFile
from polonaise.fragments.store import ObstoreStore
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("polonaise.spark")


def columns_from(
    store: ObstoreStore,
    name: FragmentName,
    size: int,
    span: Span,
    columns: Sequence[str],
    *,
    rows_max: int = ROWS_MAX,
    cluster_key: bytes | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the fragment of this name and size (bytes). See `fragments.columns.columns_in`."""
    with _opened(store, name, size) as source:
        yield from columns_in(source, name, span, columns, rows_max=rows_max, cluster_key=cluster_key)


def footer_from(store: ObstoreStore, name: FragmentName, size: int, cluster_key: bytes | None = None) -> Footer:
    """Return the fragment's footer. Raises what `fragments.format.open_fragment` raises, naming the fragment."""
    with _opened(store, name, size) as source:
        return open_fragment(source, cluster_key)[0]


@lru_cache(maxsize=1024)
def footer_kept(store: ObstoreStore, name: FragmentName, size: int) -> Footer:
    """Return the fragment's footer, of whatever log. It is read once: a name holds the digest of what it names."""
    return footer_from(store, name, size)


def first_at(
    store: ObstoreStore,
    fragments: Mapping[FragmentName, int],
    time_us: int,
    end: TransactionId,
    cluster_key: bytes | None,
) -> Span:
    """Return the ids of which one is the first below `end` committed at `time_us` (microseconds UTC) or later. That is
    one id, or `end` if there is none; and those right before it which no fragment holds, because nobody knows their
    times. `fragments` are those of one partition, with their sizes in bytes."""

    def times(piece: FragmentRange, span: Span) -> Any:
        size = fragments[piece.fragment]
        batches = columns_from(store, piece.fragment, size, span, ["timestamp"], cluster_key=cluster_key)
        return np.concatenate([batch.column(0).cast("int64").to_numpy() for batch in batches])

    def last_time(piece: FragmentRange) -> int:
        return int(times(piece, Span(piece.span.last, piece.span.last))[0])

    pieces, holes = cover(fragments, Span(0, end - 1))
    index = bisect_left(pieces, time_us, key=last_time)
    found = end
    if index < len(pieces):
        span = pieces[index].span
        all_times = times(pieces[index], span)
        at = int(np.searchsorted(all_times, time_us))
        found = span.first + at
        tell_future(pieces[index].fragment.partition, found, int(all_times[at]))
    return Span(next((hole.first for hole in holes if hole.last == found - 1), found), found)


def tell_future(partition: PartitionId, id: TransactionId, commit_time_us: int) -> None:
    """Warn if a range was chosen by a commit time that is of the future: times stand still there."""
    if text := future_times(partition, id, commit_time_us, time.time_ns() // 1_000):
        _log.warning("%s", text)


@contextmanager
def _opened(store: ObstoreStore, name: FragmentName, size: int) -> Iterator[str | RangeFile]:
    source = store.source(name.path, size)
    try:
        if isinstance(source, RangeFile):
            with closing(source):
                yield source
        else:
            yield source
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path} in {store}: {error.text}: {MEND}") from error
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{name.path} in {store}: {error.text}") from error
    except NotFound as error:
        raise _gone(store, name) from error
    except WrongClusterKey as error:
        raise WrongClusterKey(
            f"{name.path} in {store} is of another cluster's log: correct the option fragments, or cluster"
        ) from error


def _gone(store: ObstoreStore, name: FragmentName) -> PolonaiseError:
    """Return the error for a fragment that was listed, and is not there any more."""
    try:
        store.check_there()
    except NotFound:
        return StoreUnavailable(f"no directory {store}: mount what belongs there, and run the query again")
    return NotFound(f"{name.path} is not in {store} any more: mount what belongs there, and run the query again")
