"""Columns of a fragment in an object store: of a local file mapped, of others fetched in ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from polonaise.errors import FragmentDamaged
from polonaise.fragments.columns import ROWS_MAX, columns_in
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import Range, RangeFile
from polonaise.fragments.store import ObjectStore
from polonaise.spark import clusters

if TYPE_CHECKING:
    import pyarrow as pa


def columns_from(
    store: ObjectStore, name: FragmentName, size: int, span: Span, columns: Sequence[str], rows_max: int = ROWS_MAX
) -> Iterator[pa.RecordBatch]:
    """As `fragments.columns.columns_in`, from the fragment of this name and size; what is wrong with it names it."""
    path = store.local_path(name.path)
    try:
        if path is not None:
            yield from columns_in(path, name, span, columns, rows_max=rows_max)
            return
        with closing(RangeFile(lambda ranges: _fetched(store, name, ranges), size)) as file:
            yield from columns_in(file, name, span, columns, rows_max=rows_max)
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path} in {store}: {error.text}: restore it from a copy") from error


def _fetched(store: ObjectStore, name: FragmentName, ranges: Sequence[Range]) -> list[bytes]:
    async def fetch() -> list[bytes]:
        return await asyncio.gather(
            *(store.get_range(name.path, each.start, each.stop - each.start) for each in ranges)
        )

    return clusters.wait(fetch)
