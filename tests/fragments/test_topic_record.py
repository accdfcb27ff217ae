"""A store's record of topics: which id is which number of which topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.errors import FragmentDamaged, LogForked, WrongClusterKey
from polonaise.fragments.objects import fragments_of
from polonaise.fragments.store import ObstoreStore
from polonaise.fragments.topicrecord import record_topics, recorded_topics
from polonaise.topics import ClusterTopics

KEY = bytes(range(16))
FIRST = ClusterTopics(1, {"a": (2,), "b": (1,)})
GROWN = ClusterTopics(1, {"a": (2, 4, 3), "b": (1,)})


async def test_the_latest_record_counts_and_keeps_the_order_of_ids(store: ObstoreStore) -> None:
    assert await recorded_topics(store, KEY) is None
    await record_topics(store, KEY, ClusterTopics(1, {}))
    assert await recorded_topics(store, KEY) is None  # a store without topics is as before
    for topics in (FIRST, GROWN, GROWN, FIRST):  # the last one by an archiver that read before the topic grew
        await record_topics(store, KEY, topics)
    assert await recorded_topics(store, KEY) == GROWN
    assert await fragments_of(store) == {}


@pytest.mark.parametrize(
    "other", [ClusterTopics(1, {"a": (1,), "b": (2,)}), ClusterTopics(1, {"a": (1, 2, 3, 4), "b": (5,)})]
)
async def test_other_ids_for_the_same_numbers_are_refused(store: ObstoreStore, other: ClusterTopics) -> None:
    await record_topics(store, KEY, FIRST)
    with pytest.raises(LogForked, match="names other partitions for a topic"):
        await record_topics(store, KEY, other)
    assert await recorded_topics(store, KEY) == FIRST


async def test_a_record_of_another_cluster_or_a_damaged_one_is_refused(store: ObstoreStore, tmp_path: Path) -> None:
    await record_topics(store, KEY, FIRST)
    with pytest.raises(WrongClusterKey):
        await recorded_topics(store, bytes(16))
    (tmp_path / "store" / "_topics" / "0000000003.json").write_bytes(b"{}")
    with pytest.raises(FragmentDamaged, match="can't be read"):
        await recorded_topics(store, KEY)
