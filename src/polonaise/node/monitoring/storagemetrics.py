"""Read the metrics of a storage node from its state, on request."""

from __future__ import annotations

import asyncio
from typing import Final

from polonaise.host import DiskSpace
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.samples import Detail, Samples
from polonaise.node.reasons import OF_STORAGE, storage_reasons
from polonaise.storage.measures import ReplicaMeasures
from polonaise.storage.node import StorageNode

_TURN_PARTITIONS: Final = 100
"""The most replicas read in one turn of the event loop."""


async def storage_samples(node: StorageNode, space: DiskSpace | None, detail: Detail) -> Samples:
    samples, measures = Samples(), node.measures()
    samples.add_read(metrics.READ_OF_STORAGE, measures)
    samples.add_histogram(metrics.SYNC_SECONDS, measures.syncs)
    if space is not None:
        samples.add(metrics.DISK_BYTES, space.total_bytes)
        samples.add(metrics.DISK_FREE, space.free_bytes)
    samples.add_reasons({reason for reason, _ in storage_reasons(measures.health)}, OF_STORAGE)
    replicas = node.replicas()
    listed = detail.partitions.lists(len(replicas))
    looked: list[ReplicaMeasures] = []
    for number, replica in enumerate(replicas, 1):
        measured = replica.measures()
        looked.append(measured)
        if listed:
            _add_replica(samples, measured)
        if number % _TURN_PARTITIONS == 0:
            await asyncio.sleep(0)
    given_up = node.given_up
    members = [each for each in looked if each.partition not in given_up]
    known = node.measures().health.partitions - len(given_up)
    usable = sum(each.usable for each in members)
    samples.add(metrics.STORAGE_PARTITIONS, usable, "usable")
    samples.add(metrics.STORAGE_PARTITIONS, len(members) - usable, "unusable")
    samples.add(metrics.STORAGE_PARTITIONS, max(0, known - len(members)), "unopened")
    samples.add(metrics.STORAGE_PARTITIONS, len(given_up), "given_up")
    samples.add(metrics.STORAGE_QUEUE, sum(each.queue_entries for each in looked))
    samples.add(metrics.STORAGE_QUEUE_BYTES, sum(each.queue_bytes for each in looked))
    samples.add(metrics.SEGMENTS, sum(each.segments for each in looked))
    samples.add(metrics.LOG_BYTES, sum(each.log_bytes for each in looked))
    return samples


def _add_replica(samples: Samples, measured: ReplicaMeasures) -> None:
    number = measured.partition
    samples.add(metrics.REPLICA_USABLE, int(measured.usable), number)
    samples.add(metrics.REPLICA_QUEUE_BYTES, measured.queue_bytes, number)
    if measured.usable:  # otherwise nothing is known of the replica's files
        samples.add(metrics.REPLICA_SESSION, measured.session, number)
        samples.add(metrics.REPLICA_LAST, measured.last, number)
        samples.add(metrics.REPLICA_CONFIRMED, measured.confirmed, number)
        samples.add(metrics.REPLICA_SEGMENTS, measured.segments, number)
        samples.add(metrics.REPLICA_BYTES, measured.log_bytes, number)
