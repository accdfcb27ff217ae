"""The record of a cluster's topics in its fragment store, where fragments are named by the ids of partitions.

It is there before the first fragment of a topic's partition. A cluster that grows gets another object, and none is ever
changed.
"""

from __future__ import annotations

import json
from typing import Final

from polonaise.errors import FragmentDamaged, LogForked, WrongClusterKey
from polonaise.fragments.store import ObjectStore, ReadableStore
from polonaise.terms import ClusterTopics, check_topics

_FOLDER: Final = "_topics/"
"""The folder of the records, which readers of Parquet pass over."""


def _encode(cluster_key: bytes, topics: ClusterTopics) -> bytes:
    named = {name: list(ids) for name, ids in topics.topics.items()}
    fields = {"cluster_key": cluster_key.hex(), "partitions": topics.partitions, "topics": named}
    return json.dumps(fields, sort_keys=True).encode() + b"\n"


async def recorded_topics(store: ReadableStore, cluster_key: bytes) -> ClusterTopics | None:
    """Return the topics that the store names; None for a store without topics. Raises `WrongClusterKey` for another
    cluster's, `FragmentDamaged` if they can't be read, and what the store raises."""
    paths = [each.path for each in await store.list(_FOLDER) if each.path.endswith(".json")]
    if not paths:
        return None
    path = max(paths)  # the names have equally many digits
    raw = await store.get(path)
    try:
        fields = json.loads(raw)
        key, own = bytes.fromhex(fields["cluster_key"]), int(fields["partitions"])
        topics = ClusterTopics(own, check_topics(own, fields["topics"]))
        if raw != _encode(key, topics) or path != _path(topics):
            raise ValueError("not in the form in which it is written")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise FragmentDamaged(
            f"{path} in {store} can't be read ({error}): restore it from a copy of the store, or remove it and run "
            "polonaise archive run, which writes it again while the cluster is there"
        ) from error
    if key != cluster_key:
        raise WrongClusterKey(f"{path} in {store} is of cluster {key.hex()}, and this is cluster {cluster_key.hex()}")
    return topics


async def record_topics(store: ObjectStore, cluster_key: bytes, topics: ClusterTopics) -> None:
    """Record the topics of a cluster durably, unless the store has them, or later ones. Raises what `recorded_topics`
    does, and `LogForked` if the store has other ids for the same numbers."""
    if not topics.topics:
        return
    there = await recorded_topics(store, cluster_key)
    if there is None or there.total < topics.total:
        path, raw = _path(topics), _encode(cluster_key, topics)
        goes_on = there is None or topics.may_follow(there)
        if goes_on and (await store.put_if_absent(path, raw) or await store.get(path) == raw):
            await store.make_durable(path)
            return
    elif there.may_follow(topics):
        return
    raise LogForked(
        f"{store} names other partitions for a topic than the cluster has now: the cluster was restored from a copy, "
        "and has grown differently since. Nothing was written. Archive it into a store of its own"
    )


def _path(topics: ClusterTopics) -> str:
    return f"{_FOLDER}{topics.total:010d}.json"
