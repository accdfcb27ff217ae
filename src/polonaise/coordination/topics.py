"""Topics: named groups of partitions in one cluster, and how an application's partition numbers become cluster ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from polonaise.errors import BadOption, UnknownPartition
from polonaise.redaction import redacted
from polonaise.terms import PartitionId

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def is_topic_name(name: str) -> bool:
    """Tell whether a topic may have this name: it stands in addresses, so it has only letters that need no quoting."""
    return _NAME.fullmatch(name) is not None


def check_topic_name(name: str) -> str:
    """Return the name. Raises `BadOption` unless a topic may have it."""
    if not is_topic_name(name):
        raise BadOption(
            f"invalid name of a topic {redacted(name)!r}: write 1 to 63 letters a to z, digits, '.', '_' or '-', and "
            "begin with a letter or a digit; addresses can't hold other names"
        )
    return name


def log_key_of(cluster_key: bytes, topic: str) -> bytes:
    """Return the key, 16 bytes, of a topic of this cluster: no other topic or cluster has it.

    For an empty name, which stands for the log's own partitions, it is the cluster's key.
    """
    return sha256(b"polonaise topic\0" + cluster_key + topic.encode()).digest()[:16] if topic else cluster_key


class TopicPartitions(NamedTuple):
    """The partitions of a topic, as one version of the cluster's description has them.

    The application sees partition numbers 0, 1, 2, …; the cluster has an id for each, unique among all its partitions.
    A topic only grows: numbers that it has keep their ids.
    """

    version: int
    """The version of the description."""
    total: int
    """The number of partitions of the whole cluster in that description: ids are 0 to `total - 1`."""
    ids: tuple[PartitionId, ...]
    """The id of each partition of the topic, by its number."""
    name: str = ""
    """The topic's name; empty for the log's own partitions, which are in no topic: their numbers are their ids."""

    @property
    def where(self) -> str:
        """What has these partitions, in words, for messages."""
        return f"topic {self.name}" if self.name else "this cluster"

    def id_of(self, number: PartitionId) -> PartitionId:
        """Return the id of a partition of the topic. Raises `UnknownPartition`."""
        if not 0 <= number < len(self.ids):
            raise UnknownPartition(f"partition {number}; {self.where} has partitions 0 to {len(self.ids) - 1}")
        return self.ids[number]

    def goes_on_from(self, before: TopicPartitions) -> bool:
        """Tell whether this may follow `before`: not an older description, and no number has another id."""
        return self.version >= before.version and self.ids[: len(before.ids)] == before.ids


class ClusterTopics(NamedTuple):
    """The partitions of a whole cluster, as one version of its description has them: its own ones and its topics'."""

    partitions: int
    """The number of the log's own partitions, whose ids are 0 to `partitions - 1`."""
    topics: Mapping[str, tuple[PartitionId, ...]]
    """The ids of each topic's partitions, by their numbers in the topic."""

    @property
    def total(self) -> int:
        """The number of all partitions: ids are 0 to `total - 1`. It tells versions apart, as topics only grow."""
        return self.partitions + sum(map(len, self.topics.values()))

    def number_of(self, partition: PartitionId) -> tuple[str, PartitionId]:
        """Return the topic and number of the partition with this id; an empty name for one of the log's own."""
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
    """Return the ids of each topic's partitions, as read from JSON.

    `own` is the number of the log's own partitions, after which the ids of topics begin. Raises `TypeError` and
    `ValueError` unless names are valid and no id is left out or there twice.
    """
    if not isinstance(topics, dict) or not all(isinstance(ids, list) and ids for ids in topics.values()):
        raise TypeError(f"topics is {topics!r} instead of a list of partitions for each topic")
    if bad := [name for name in topics if not is_topic_name(name)]:
        raise ValueError(f"no topic may have the name {bad[0]!r}")
    ids = [partition for listed in topics.values() for partition in listed]
    if not all(type(partition) is int for partition in ids) or sorted(ids) != [*range(own, own + len(ids))]:
        raise ValueError(f"the ids of the topics' partitions are not each number from {own} on once")
    return {name: tuple(listed) for name, listed in topics.items()}
