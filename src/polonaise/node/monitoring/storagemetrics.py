"""Read the metrics of a storage node from its state, on request."""

from __future__ import annotations

import asyncio
from typing import Final

from polonaise.host import DiskSpace
from polonaise.node.condition import storage_reasons
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.samples import Detail, Samples
from polonaise.node.reasons import OF_STORAGE
from polonaise.storage.measures import ReplicaMeasures
from polonaise.storage.node import StorageNode

_TURN_PARTITIONS: Final = 100
"""The most replicas read in one turn of the event loop."""


async def storage_samples(node: StorageNode, space: DiskSpace | None, detail: Detail) -> Samples:
    samples = Samples()
    _add_node(samples, node, space)
    samples.add_reasons({reason for reason, _ in storage_reasons(node.health())}, OF_STORAGE)
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
    known = node.measures().partitions_known - len(given_up)
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


def _add_node(samples: Samples, node: StorageNode, space: DiskSpace | None) -> None:
    measures = node.measures()
    totals, scrubbed, add = measures.totals, measures.scrubbed, samples.add
    add(metrics.STORED_TRANSACTIONS, totals.get("transactions", 0))
    add(metrics.STORED_BATCHES, totals.get("batches", 0))
    add(metrics.STORED_BYTES, totals.get("bytes", 0))
    samples.add_histogram(metrics.SYNC_SECONDS, measures.syncs)
    add(metrics.STORAGE_REFUSED, totals.get("refused", 0))
    add(metrics.STORAGE_CONNECTIONS, measures.connections)
    add(metrics.STORAGE_CONNECTIONS_BYTES, measures.connections_bytes)
    add(metrics.STORAGE_READS, measures.reads)
    add(metrics.OPEN_FILES, measures.open_files)
    add(metrics.OPEN_FILES_MAX, measures.open_files_max)
    if space is not None:
        add(metrics.DISK_BYTES, space.total_bytes)
        add(metrics.DISK_FREE, space.free_bytes)
    add(metrics.DISK_WAITS, measures.disk_waits_s)
    add(metrics.DIRECTORY_GONE, int(measures.gone))
    add(metrics.SCRUB_RATE, measures.scrub_bytes_per_s)
    add(metrics.SCRUB_ROUNDS, scrubbed.rounds)
    add(metrics.SCRUB_DONE, scrubbed.partitions)
    add(metrics.SCRUB_OF, scrubbed.partitions_of)
    add(metrics.SCRUB_BYTES, scrubbed.bytes)
    add(metrics.SCRUB_FINISHED, scrubbed.finished_us / 1e6)
    add(metrics.SCRUB_FOUND, scrubbed.found)
    add(metrics.SCRUB_REPAIRED, scrubbed.repaired)
    add(metrics.SCRUB_UNREPAIRED, scrubbed.found - scrubbed.repaired)


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
