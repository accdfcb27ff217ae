"""The mark of a store: one small object that names the cluster whose fragments are kept there.

It is there before the first fragment. A directory that is not mounted, or a wrong address, has no fragments either; in
a store with the mark, a listing proves that there is none.
"""

from __future__ import annotations

import json
from typing import Final

from polonaise.errors import FragmentDamaged, NotFound, WrongClusterKey
from polonaise.fragments.store import INIT, ObjectStore, ReadableStore

MARK: Final = "_cluster.json"
"""The mark's name, which readers of Parquet pass over."""


def mark_of(cluster_key: bytes) -> bytes:
    return json.dumps({"cluster_key": cluster_key.hex()}).encode() + b"\n"


async def is_marked(store: ReadableStore, cluster_key: bytes) -> bool:
    """Tell whether the store has this cluster's mark: False if it has none at all. Raises `WrongClusterKey` for another
    cluster's mark, `FragmentDamaged` for a mark that can't be read."""
    try:
        mark = await store.get(MARK)
    except NotFound:
        return False
    if mark == mark_of(cluster_key):
        return True
    try:
        other = bytes.fromhex(json.loads(mark)["cluster_key"])
    except (ValueError, TypeError, KeyError) as error:
        raise FragmentDamaged(
            f"{MARK} in {store} can't be read: remove it, and declare the store again: {INIT}"
        ) from error
    raise WrongClusterKey(
        f"{store} belongs to cluster {other.hex()}, and this is cluster {cluster_key.hex()}: choose another address, "
        "one per cluster"
    )


async def put_mark(store: ObjectStore, cluster_key: bytes) -> None:
    """Mark a store as this cluster's. Raises what `is_marked` does."""
    if not await store.put_if_absent(MARK, mark_of(cluster_key)):
        await is_marked(store, cluster_key)


def unmarked(store: ReadableStore, why: str = "") -> NotFound:
    """Return the error for a store without a mark; `why` says more of why it can't be taken for new."""
    return NotFound(
        f"{store} has no mark of a log{why}: mount what belongs there, or correct the address; if it is new, or was "
        f"filled without a mark, declare it once: {INIT}"
    )


async def claim(store: ObjectStore, cluster_key: bytes) -> None:
    """Mark a store before its use. Raises as `is_marked`, and `NotFound` for a directory that existed unmarked."""
    if await is_marked(store, cluster_key):
        return
    if not store.empty_is_new:
        raise unmarked(store)
    try:
        await put_mark(store, cluster_key)
    except BaseException:
        # A directory that was just made and kept without a mark would be refused at the next try.
        store.unmake()
        raise
