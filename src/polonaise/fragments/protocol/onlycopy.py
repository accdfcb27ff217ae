"""Words on committed transactions that may be in fragments only, for whoever is about to give them up."""

from __future__ import annotations

from polonaise.terms import PartitionId, TransactionId


def may_be_only_copy(store: object, partition: PartitionId, first: TransactionId, last: TransactionId) -> str:
    """Return why ids that lie in a store are not to be given up lightly, and how they are kept, as sentences."""
    return (
        f"The ids {first} to {last} of partition {partition} are committed, as nothing else is archived, and {store} "
        f"may have their only copy. {how_to_keep(store)}"
    )


def how_to_keep(store: object) -> str:
    return (
        f"To keep them, archive what the other partitions hold, once they are open (polonaise archive run LOG {store} "
        "--rest), stop this cluster for good, and make it again from the store (polonaise archive restore "
        f"{store} NEW-DIRECTORY --nodes A=HOST:PORT,…)"
    )
