"""The player: it delivers the log's transactions to targets, each once and in order.

::

    async with Player(log, "accounts", route, {"shard-0": Accounts(url), …}) as player:
        await player.ended()

`Player` runs it; `SqlDeliveryTarget` is a target in a SQL database, `JsonLinesTarget` one in a file. For a store of
another kind write a `DeliveryTarget`: a `Reception` decides what to do with each batch.

In the code begin with `protocol/`, the decisions. `delivery.py` carries them out: it reads the log, has `routing.py`
say which target gets what, and keeps a stream to each target by a transport behind `endpoint.py`: `directstream.py`
within its own process, the link (`linkendpoint.py`, `linkserver.py`) or gRPC (`grpctransport/`) to others. The targets'
side of one stream of any transport is `targetsession.py`. Names are imported when they are first used, because SQL
targets need the extra `sql`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource, DeliveryTarget
    from polonaise.player.endpoint import DeliveryEndpoint
    from polonaise.player.jsonlines import JsonLinesTarget
    from polonaise.player.player import Player
    from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
    from polonaise.player.protocol.reception import Reception, Verdict
    from polonaise.player.protocol.settings import PlayerSettings
    from polonaise.player.remotetargets import remote
    from polonaise.player.serving import TargetServer, serve
    from polonaise.player.sqldelivery import SqlDeliveryTarget

__all__ = [
    "NO_FENCE",
    "Acceptance",
    "AppliedBatch",
    "DeliveryBatch",
    "DeliveryEndpoint",
    "DeliverySource",
    "DeliveryTarget",
    "Fence",
    "JsonLinesTarget",
    "Player",
    "PlayerSettings",
    "Reception",
    "RoutedEntry",
    "SqlDeliveryTarget",
    "TargetServer",
    "Verdict",
    "remote",
    "serve",
]

_HOMES = {
    "polonaise.player.deliverytarget": ("Acceptance", "AppliedBatch", "DeliverySource", "DeliveryTarget"),
    "polonaise.player.endpoint": ("DeliveryEndpoint",),
    "polonaise.player.jsonlines": ("JsonLinesTarget",),
    "polonaise.player.player": ("Player",),
    "polonaise.player.protocol.entries": ("NO_FENCE", "DeliveryBatch", "Fence", "RoutedEntry"),
    "polonaise.player.protocol.reception": ("Reception", "Verdict"),
    "polonaise.player.protocol.settings": ("PlayerSettings",),
    "polonaise.player.remotetargets": ("remote",),
    "polonaise.player.serving": ("TargetServer", "serve"),
    "polonaise.player.sqldelivery": ("SqlDeliveryTarget",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'polonaise.player' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
