"""Appends by other parts of the library, which change registers under the library's own prefixes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polonaise.client.appends import Receipt
from polonaise.client.partitions import UsedPartitions
from polonaise.client.protocol.draft import Change, Expectation, operations
from polonaise.client.protocol.group import Group
from polonaise.terms import ChangeKind, OwnKind, PartitionId
from polonaise.wire.appends import CHANGE

_OWN: Final = (CHANGE + ChangeKind.OWN, b"", b"")


def append_own(
    partitions: UsedPartitions,
    partition: PartitionId,
    kind: OwnKind,
    *,
    expectations: Iterable[Expectation] = (),
    changes: Iterable[Change] = (),
) -> Receipt:
    """Append an own transaction, whose header is `kind` and which changes registers; otherwise as `Log.append`."""
    appends = partitions.appends_of(partition)
    return appends.append(b"", int(kind), None, b"", [*operations(expectations, changes, own=True), _OWN])


def append_group_own(
    partitions: UsedPartitions,
    partition: PartitionId,
    group: Group,
    *,
    expectations: Iterable[Expectation] = (),
    changes: Iterable[Change] = (),
) -> Receipt:
    """Append an application's transactions with changes of the library's registers; otherwise as `Log.append_group`."""
    appends = partitions.appends_of(partition)
    group.check(partitions.parts.settings.limits)
    return appends.append_group(group, None, operations(expectations, changes, own=True))
