"""Topics: named groups of partitions in one cluster, and how an application's partition numbers become cluster ids."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from polonaise.errors import BadOption, UnknownPartition
from polonaise.redaction import redacted
from polonaise.terms import PartitionId, is_topic_name


def check_topic_name(name: str) -> str:
    """Return the name. Raises `BadOption` unless a topic may have it."""
    if not is_topic_name(name):
        raise BadOption(
            f"invalid name of a topic {redacted(name)!r}: write 1 to 63 letters a to z, digits, '.', '_' or '-', and "
            "begin with a letter or a digit; addresses can't hold other names"
        )
    return name


def where_of(topic: str) -> str:
    """Return what the partitions are of, for messages: this topic, or the cluster."""
    return f"topic {topic}" if topic else "this cluster"


def log_key_of(cluster_key: bytes, topic: str) -> bytes:
    """Return the key, 16 bytes, that only this topic has; the cluster's for the log's own partitions."""
    return sha256(b"polonaise topic\0" + cluster_key + topic.encode()).digest()[:16] if topic else cluster_key


class TopicPartitions(NamedTuple):
    """The partitions of a topic, as one version of the cluster's description has them. The application sees numbers 0,
    1, 2, …; the cluster has an id for each, unique among all its partitions. A topic only grows: numbers keep their
    ids."""

    version: int
    total: int
    """The number of partitions of the whole cluster: ids are 0 to `total - 1`."""
    ids: tuple[PartitionId, ...]
    """The id of each partition of the topic, by its number."""
    name: str = ""
    """Empty for the log's own partitions, which are in no topic: their numbers are their ids."""

    def id_of(self, number: PartitionId) -> PartitionId:
        """Return a partition's id; raises `UnknownPartition`."""
        if not 0 <= number < len(self.ids):
            raise UnknownPartition(f"partition {number}; {where_of(self.name)} has partitions 0 to {len(self.ids) - 1}")
        return self.ids[number]

    def goes_on_from(self, before: TopicPartitions) -> bool:
        """Whether this may follow `before`: no older description, no number lost or with another id."""
        return self.version >= before.version and self.ids[: len(before.ids)] == before.ids
