"""Fragments as a Delta table, by delta-rs: the files stay as they are, and each run that adds some makes a version.

Polonaise reads `_delta_log` only here, to add to it: it is for engines that read Delta.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from polonaise.errors import ExtraMissing, StoreUnavailable
from polonaise.fragments.arrow import SCHEMA
from polonaise.fragments.protocol.coverage import Span
from polonaise.fragments.protocol.names import FragmentName
from polonaise.redaction import redacted, redacted_address
from polonaise.terms import PartitionId

if find_spec("deltalake") is None:
    raise ExtraMissing("a Delta table needs delta-rs: pip install 'polonaise[delta]'")

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

_APP: Final = "polonaise archive"
"""The application id of commits: each raises its version by one, so that delta-rs refuses one of two at a time."""
_ATTEMPTS_MAX: Final = 10


class Registered(NamedTuple):
    """The state of a store's Delta table after `register`."""

    version: int
    """The table's version."""
    added: int
    """Number of fragments that this call has added."""
    overlapping: tuple[FragmentName, ...]
    """Fragments left out because others in the table have some of their ids."""


def register(url: str, fragments: Mapping[FragmentName, int]) -> Registered:
    """Add a store's fragments that are not in its Delta table yet; `fragments` gives the size of each in bytes. All
    that are added become one version of the table. May be killed, run again, and run by several at the same time.
    Raises `StoreUnavailable` for what delta-rs can't do, in its words, and if others were faster at every attempt."""
    try:
        for _ in range(_ATTEMPTS_MAX):
            table = _table(url)
            new, overlapping = to_register(fragments, _registered(table))
            if not new:
                return Registered(table.version(), 0, overlapping)
            try:
                _commit(table, {name: fragments[name] for name in new})
            except CommitFailedError:
                continue  # another writer was faster: read the table again
            table.update_incremental()
            return Registered(table.version(), len(new), overlapping)
    except (DeltaError, OSError) as error:
        raise StoreUnavailable(f"the Delta table in {redacted_address(url)}: {redacted(error)}") from error
    raise StoreUnavailable(
        f"the Delta table in {redacted_address(url)} was changed by other writers at every attempt: run this again"
    )


def to_register(
    fragments: Iterable[FragmentName], registered: Iterable[FragmentName]
) -> tuple[list[FragmentName], tuple[FragmentName, ...]]:
    """Return the fragments to add, and those left out because they share an id with one that is added or registered."""
    registered = set(registered)
    taken: dict[PartitionId, list[Span]] = {}
    for name in sorted(registered):
        taken.setdefault(name.partition, []).append(Span(name.first, name.last))
    new: list[FragmentName] = []
    overlapping: list[FragmentName] = []
    # Of several that begin with the same id, the longest first: it is added, and the shorter ones are left out.
    for name in sorted(set(fragments) - registered, key=lambda each: (each.partition, each.first, -each.last)):
        before = new[-1] if new and new[-1].partition == name.partition else None
        if (before is not None and name.first <= before.last) or _meets(taken.get(name.partition, []), name):
            overlapping.append(name)
        else:
            new.append(name)
    return new, tuple(overlapping)


def _meets(spans: Sequence[Span], name: FragmentName) -> bool:
    """Whether one of the spans has an id of the fragment. The spans are ascending and disjoint."""
    index = bisect_right(spans, name.last, key=lambda span: span.first)
    return index > 0 and spans[index - 1].last >= name.first


# ------------------------------------------------------------------ delta-rs


def _table(url: str) -> DeltaTable:
    return DeltaTable.create(
        url, schema=SCHEMA, mode="ignore", name="polonaise", configuration={"delta.appendOnly": "true"}
    )


def _registered(table: DeltaTable) -> list[FragmentName]:
    paths: Any = table.get_add_actions().column("path").to_pylist()
    return [name for path in paths if (name := FragmentName.parse(path)) is not None]


def _commit(table: DeltaTable, new: Mapping[FragmentName, int]) -> None:
    """Add fragments to the version of the table that was read. Raises `CommitFailedError` if that is not the last."""
    seen = table.transaction_version(_APP)
    transaction = Transaction(_APP, 0 if seen is None else seen + 1)
    table.create_write_transaction(
        [_added(name, size) for name, size in new.items()],
        mode="append",
        schema=SCHEMA,
        commit_properties=CommitProperties(app_transactions=[transaction]),
    )


def _added(name: FragmentName, size: int) -> AddAction:
    def values(id: int) -> dict[str, Any]:
        return {"partition": name.partition, "transaction_id": id}

    stats = {
        "numRecords": name.last - name.first + 1,
        "minValues": values(name.first),
        "maxValues": values(name.last),
        "nullCount": dict.fromkeys(values(0), 0),
    }
    return AddAction(name.path, size, {}, time.time_ns() // 1_000_000, True, json.dumps(stats))
