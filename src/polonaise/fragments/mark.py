"""The mark of a store: one small object that says whose fragments are kept there, put before the first of them.

Not to find a fragment is no evidence: where a directory is not mounted, or the address is not the right one, nothing is
found either, or what an archiver wrote below the mount. Beside the mark it is.
"""

from __future__ import annotations

import json
from typing import Final

from polonaise.errors import FragmentDamaged, NotFound, WrongClusterKey
from polonaise.fragments.store import ObjectStore, ReadableStore

MARK: Final = "_cluster.json"
"""Its name. Readers of Parquet pass over names that begin like this."""
INIT: Final = "polonaise archive init LOG STORE"
"""Said by somebody who knows that a store is new."""


def mark_of(cluster_key: bytes) -> bytes:
    """What the mark of this cluster's store says."""
    return json.dumps({"cluster_key": cluster_key.hex()}).encode() + b"\n"


async def is_marked(store: ReadableStore, cluster_key: bytes) -> bool:
    """Whether fragments of this cluster are, or will be, kept in this store.

    Raises `WrongClusterKey` for another cluster's, `FragmentDamaged` for a mark that can't be read.
    """
    try:
        said = await store.get(MARK)
    except NotFound:
        return False
    if said == mark_of(cluster_key):
        return True
    try:
        other = bytes.fromhex(json.loads(said)["cluster_key"])
    except (ValueError, TypeError, KeyError) as error:
        raise FragmentDamaged(
            f"{MARK} in {store} can't be read: remove it, and say again whose it is: {INIT}"
        ) from error
    raise WrongClusterKey(
        f"{store} is of another cluster, {other.hex()}, and this one is {cluster_key.hex()}: choose another address, "
        "one per cluster"
    )


async def put_mark(store: ObjectStore, cluster_key: bytes) -> None:
    """Mark a store as this cluster's. Raises as `is_marked`."""
    if not await store.put_if_absent(MARK, mark_of(cluster_key)):
        await is_marked(store, cluster_key)


async def claim(store: ObjectStore, cluster_key: bytes) -> None:
    """See to it that a store is marked before it is used, unless it may be one that is not mounted.

    Raises `NotFound` for a directory that was there before and has no mark, and as `is_marked`.
    """
    if await is_marked(store, cluster_key):
        return
    if not store.empty_is_new:
        raise NotFound(
            f"{store} is there, and has no mark of this log: mount what belongs there, or correct the address; if it "
            f"is new, or was filled without a mark, say so once: {INIT}"
        )
    try:
        await put_mark(store, cluster_key)
    except BaseException:
        store.unmake()  # else it would be one that was there before
        raise
