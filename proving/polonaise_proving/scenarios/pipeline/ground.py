"""A cluster of real processes with rows to read, partitions to write to, and what must be in them at the end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import polonaise.blocking
from polonaise.client.protocol.group import Group
from polonaise.errors import PolonaiseError
from polonaise.node.local import LocalCluster
from polonaise_proving.scenarios.pipeline.drivers import wait_for
from polonaise_proving.stages.databaseservers import Databases

FEW = (0, 1)
"""Source partitions of a few hundred rows: many micro-batches."""
MANY = (2, 3)
"""Source partitions with so many rows that a micro-batch takes several groups of the log."""
TARGETS = (4, 5)
OTHER_TARGETS = (6, 7)
BUSY = 8
"""The source partition that is appended to while it is read."""
PARTITIONS = 9
FEW_ROWS = 250
MANY_ROWS = 10_000


UNANSWERED_S = 0.3
AWAY_S = 0.3


class Ground:
    """The cluster with its source rows, and faults of its nodes. Use as a context manager."""

    def __init__(self, directory: Path, servers: int = 1, databases: Databases | None = None) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.local = LocalCluster(directory / "cluster", storage=3, servers=servers, partitions=PARTITIONS)
        self._scratch = 0
        self.databases = databases or Databases("sqlite", directory)
        """Of copies into tables."""
        self.accounted = dict.fromkeys(TARGETS + OTHER_TARGETS, -1)
        """By target partition: the id up to which its rows have been compared. Rows that come later, however late,
        count as the next copy's."""

    def __enter__(self) -> Ground:
        self.local.__enter__()
        try:
            self.log = polonaise.blocking.connect(self.cluster)
            for partition, count in [(each, FEW_ROWS) for each in FEW] + [(each, MANY_ROWS) for each in MANY]:
                self._fill(partition, count)
        except BaseException:
            self.local.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()
        self.local.stop()

    @property
    def cluster(self) -> str:
        """The log's address: Spark's drivers and tasks know the servers alone, and no coordinator."""
        return "polonaise://" + ",".join(server.address for server in self.local.servers)

    def _fill(self, partition: int, count: int) -> None:
        rows = bodies(partition, count)
        for start in range(0, count, 4_000):
            group = Group.of([row.encode() for row in rows[start : start + 4_000]])
            self.log.append_group(group, partition).result(60)

    def scratch(self, name: str) -> Path:
        """Make a new directory, whose name contains `name`."""
        self._scratch += 1
        directory = self.directory / f"{self._scratch:03d}-{name}"
        directory.mkdir()
        return directory

    # ------------------------------------------------------------------ what is there, and what should be

    def expected(self, sources: tuple[int, ...]) -> dict[int, list[str]]:
        """Return the rows that these source partitions have."""
        return {each: bodies(each, FEW_ROWS if each in FEW else MANY_ROWS) for each in sources}

    def end(self, partition: int) -> int:
        """Return the partition's last committed id; -1 for none."""
        return self.log.high_water_mark(partition, timeout=60)

    def account(self) -> None:
        """Note that the rows now in the target partitions were compared: later comparisons begin after them."""
        self.accounted = {partition: self.end(partition) for partition in self.accounted}

    def written(self, marks: Mapping[int, int]) -> dict[int, list[str]]:
        """Return the rows of each of these partitions after the given id."""
        return {partition: self._after(mark, partition) for partition, mark in marks.items()}

    def _after(self, mark: int, partition: int) -> list[str]:
        end = self.end(partition)
        if end == mark:
            return []
        return [tx.data.decode() for tx in self.log.read(partition, after=mark, until=end, timeout=60)]

    # ------------------------------------------------------------------ what is done to it

    def break_server(self, meanwhile: Callable[[], None], number: int = 0) -> None:
        """Stop a server, so that requests stay unanswered for a moment; then kill it, and later start it again."""
        server = self.local.servers[number]
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        meanwhile()
        time.sleep(UNANSWERED_S)
        server.kill()
        time.sleep(AWAY_S)
        server.start()

    def lose_storage(self, number: int) -> None:
        """Kill a storage node and delete its disk."""
        self.local.storage[number].kill()
        shutil.rmtree(self.local.storage_directories[number])

    def replace_storage(self, number: int) -> None:
        """Start the lost storage node again with an empty disk, and wait until the log is replicated to it, too."""
        self.local.storage[number].start()
        wait_for(self._all_engaged, "the new replica", every_s=0.1)

    def _all_engaged(self) -> bool:
        try:
            return all(self._engaged(partition) == 3 for partition in range(PARTITIONS))
        except PolonaiseError:
            return False

    def _engaged(self, partition: int) -> int:
        """Return the number of a partition's engaged replicas, as its owner says."""
        owner = self.log.health(partition, timeout=10)["partitions"]
        return len(owner[str(partition)]["engaged"])


def bodies(partition: int, count: int) -> list[str]:
    return [f"{partition}/{id:06d}" for id in range(count)]
