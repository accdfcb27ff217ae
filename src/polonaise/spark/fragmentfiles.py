"""Columns of a fragment in an object store, whatever kind of store; what is wrong with it is said with its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from polonaise.errors import FragmentDamaged
from polonaise.fragments.columns import ROWS_MAX, columns_in
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import RangeFile
from polonaise.fragments.store import ObstoreStore

if TYPE_CHECKING:
    import pyarrow as pa


def columns_from(
    store: ObstoreStore, name: FragmentName, size: int, span: Span, columns: Sequence[str], rows_max: int = ROWS_MAX
) -> Iterator[pa.RecordBatch]:
    """As `fragments.columns.columns_in`, from the fragment of this name and size."""
    source = store.source(name.path, size)
    try:
        if isinstance(source, RangeFile):
            with closing(source):
                yield from columns_in(source, name, span, columns, rows_max=rows_max)
        else:
            yield from columns_in(source, name, span, columns, rows_max=rows_max)
    except FragmentDamaged as error:
        raise FragmentDamaged(f"{name.path} in {store}: {error.text}: restore it from a copy") from error
