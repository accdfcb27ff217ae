"""Appends that change registers of the library's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from polonaise.client.protocol.draft import Change, Expectation, operations
from polonaise.terms import ChangeKind, OwnKind, PartitionId
from polonaise.wire.appends import CHANGE

if TYPE_CHECKING:
    from polonaise.client.log import Log
    from polonaise.client.protocol.group import Group
    from polonaise.client.receipt import Receipt

_OWN: Final = (CHANGE + ChangeKind.OWN, b"", b"")


def append_own(
    log: Log,
    partition: PartitionId,
    kind: OwnKind,
    *,
    expectations: Iterable[Expectation] = (),
    changes: Iterable[Change] = (),
) -> Receipt:
    """Append a transaction that says what `kind` means by the registers that it changes. As `Log.append`.

    No application is given it.
    """
    appends = log._appends_of(partition)
    return appends.append(b"", int(kind), None, b"", [*operations(expectations, changes, own=True), _OWN])


def append_group_own(
    log: Log,
    partition: PartitionId,
    group: Group,
    *,
    expectations: Iterable[Expectation] = (),
    changes: Iterable[Change] = (),
) -> Receipt:
    """Append an application's transactions, with changes of registers that are the library's. As `Log.append_group`."""
    appends = log._appends_of(partition)
    group.check(log._settings.limits)
    return appends.append_group(group, None, operations(expectations, changes, own=True))
