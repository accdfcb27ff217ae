"""The topics of a cluster as plain values: their names, and which ids their partitions have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from polonaise.terms import PartitionId

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_topic_name(name: str) -> bool:
    """Tell whether a topic may have this name: in addresses, none of its characters may need quoting."""
    return _NAME.fullmatch(name) is not None


class ClusterTopics(NamedTuple):
    """The partitions of a whole cluster in one version of its description: its own ones and its topics'."""

    partitions: int
    """The log's own partitions, whose ids are 0 to `partitions - 1`."""
    topics: Mapping[str, tuple[PartitionId, ...]]
    """By topic: the ids of its partitions, by their numbers in it."""

    @property
    def total(self) -> int:
        return self.partitions + sum(map(len, self.topics.values()))

    def number_of(self, partition: PartitionId) -> tuple[str, PartitionId]:
        """Return the topic and number of the partition with this id; an empty name and the id if no topic has it."""
        for name, ids in self.topics.items():
            if partition in ids:
                return name, ids.index(partition)
        return "", partition

    def may_follow(self, before: ClusterTopics) -> bool:
        """Tell whether the cluster can have grown from `before` to this: no number has another id."""
        return self.partitions == before.partitions and all(
            self.topics.get(name, ())[: len(ids)] == ids for name, ids in before.topics.items()
        )


def check_topics(own: int, topics: object) -> dict[str, tuple[PartitionId, ...]]:
    """Return the ids of each topic's partitions, as read from JSON; they begin after the `own` partitions of the log.
    Raises `TypeError` and `ValueError` unless names are valid and no id is left out or there twice."""
    if not isinstance(topics, dict) or not all(isinstance(ids, list) and ids for ids in topics.values()):
        raise TypeError(f"topics is {topics!r} instead of a list of partitions for each topic")
    if bad := [name for name in topics if not is_topic_name(name)]:
        raise ValueError(f"no topic may have the name {bad[0]!r}")
    ids = [partition for listed in topics.values() for partition in listed]
    if not all(type(partition) is int for partition in ids) or sorted(ids) != [*range(own, own + len(ids))]:
        raise ValueError(f"the ids of the topics' partitions are not each number from {own} on once")
    return {name: tuple(listed) for name, listed in topics.items()}
