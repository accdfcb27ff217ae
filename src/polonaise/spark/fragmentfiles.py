"""Read columns of a fragment in any kind of object store; errors name the fragment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from polonaise.errors import FragmentDamaged, NotFound, UnsupportedFormat, WrongClusterKey
from polonaise.fragments.columns import ROWS_MAX, columns_in
from polonaise.fragments.format import Footer, open_fragment
from polonaise.fragments.objects import MEND
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.ranges import RangeFile
from polonaise.fragments.store import ObstoreStore

if TYPE_CHECKING:
    import pyarrow as pa


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
        raise NotFound(f"{name.path} is not in {store} any more: plan the query again") from error
    except WrongClusterKey as error:
        raise WrongClusterKey(
            f"{name.path} in {store} is of another cluster's log: correct the option fragments, or cluster"
        ) from error
