"""Polonaise: a distributed write-ahead log for Python.

::

    async with polonaise.connect("embedded:./bank", view=balances) as log:
        receipt = await log.run(transfer, 1, 2, 500, partition=0, timeout=10)
        await receipt.applied()

Errors are in `polonaise.errors`, which says of each whether to try again; `polonaise.blocking` is the same for threads,
`polonaise.player` delivers to shards, and `polonaise.testing` is a log in memory for tests. Every name here is imported
when it is first used, so that `import polonaise` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polonaise import blocking as blocking
    from polonaise import player as player
    from polonaise import testing as testing
    from polonaise.client.appends import Receipt
    from polonaise.client.batchreader import BatchReader, TransactionReader
    from polonaise.client.lease import Lease
    from polonaise.client.log import Log
    from polonaise.client.options import Serializer
    from polonaise.client.producer import Producer
    from polonaise.client.protocol.draft import Change, Draft, Expectation, Limits
    from polonaise.client.protocol.group import Group
    from polonaise.client.protocol.locks import Lock
    from polonaise.client.protocol.oncekeys import Once
    from polonaise.client.running import Outcome, OutcomeKind, Submission
    from polonaise.client.settings import ClientSettings
    from polonaise.client.view import RunView, View
    from polonaise.client.workergroup import WorkerGroup
    from polonaise.errors import PolonaiseError, Retry
    from polonaise.host.tls import TlsFiles
    from polonaise.log.batch import Batch
    from polonaise.node.connecting import connect
    from polonaise.terms import BodyForm, LockMode, Transaction
    from polonaise.views.sql import SqlView

__all__ = [
    "Batch",
    "BatchReader",
    "BodyForm",
    "Change",
    "ClientSettings",
    "Draft",
    "Expectation",
    "Group",
    "Lease",
    "Limits",
    "Lock",
    "LockMode",
    "Log",
    "Once",
    "Outcome",
    "OutcomeKind",
    "PolonaiseError",
    "Producer",
    "Receipt",
    "Retry",
    "RunView",
    "Serializer",
    "SqlView",
    "Submission",
    "TlsFiles",
    "Transaction",
    "TransactionReader",
    "View",
    "WorkerGroup",
    "connect",
]

_HOMES = {
    "polonaise.client.log": ("Log",),
    "polonaise.client.options": ("Serializer",),
    "polonaise.client.lease": ("Lease",),
    "polonaise.client.producer": ("Producer",),
    "polonaise.client.protocol.draft": ("Change", "Draft", "Expectation", "Limits"),
    "polonaise.client.protocol.group": ("Group",),
    "polonaise.client.protocol.locks": ("Lock",),
    "polonaise.client.protocol.oncekeys": ("Once",),
    "polonaise.client.batchreader": ("BatchReader", "TransactionReader"),
    "polonaise.client.appends": ("Receipt",),
    "polonaise.client.running": ("Outcome", "OutcomeKind", "Submission"),
    "polonaise.client.settings": ("ClientSettings",),
    "polonaise.client.view": ("RunView", "View"),
    "polonaise.client.workergroup": ("WorkerGroup",),
    "polonaise.errors": ("PolonaiseError", "Retry"),
    "polonaise.host.tls": ("TlsFiles",),
    "polonaise.log.batch": ("Batch",),
    "polonaise.node.connecting": ("connect",),
    "polonaise.terms": ("BodyForm", "LockMode", "Transaction"),
    "polonaise.views.sql": ("SqlView",),
}
_MODULES = ("blocking", "player", "testing")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"polonaise.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'polonaise' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__, *_MODULES]
