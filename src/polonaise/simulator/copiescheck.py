"""The check of what applications are told of appends that need copies, at the moment when they are told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from polonaise.simulator.cluster import Cluster
from polonaise.simulator.observations import History
from polonaise.terms import PartitionId, TransactionId

NOBODY_HAS: Final = 99
"""More copies than any simulated cluster has storage nodes: an append that needs them is refused, whatever happens."""
_PROMISE: Final = "P1 durability"


def check_copies(
    cluster: Cluster,
    history: History,
    spoilt: Collection[str],
    partition: PartitionId,
    last: TransactionId,
    copies: int,
) -> None:
    """Check that as many disks as an append needs hold it durably, now that its application is told of its success.

    `last` is the id of its last transaction. A spoilt disk may have held it, and counts as holding it; so does that of
    a node whose copy was given up meanwhile.
    """
    nodes = (*cluster.storage, *cluster.spares)
    holding = [node.name for node in nodes if node.name in spoilt or node.durable_last(partition) >= last]
    if len(holding) < copies:
        expected = f"{last} of partition {partition}, told as on {copies} copies, on as many disks"
        history.violated(_PROMISE, expected, f"it is on {', '.join(holding) or 'none'}")
