"""The job restore: makes a log again from its fragments, with progress and a report of the run.

It runs without Spark: the limit is the disk that is written, and one process fills it. `polonaise archive restore` is
the same without a report.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from polonaise.admin import restore as admin
from polonaise.admin.restore import HowToRestore, Restored
from polonaise.fragments.objects import partitions_in
from polonaise.fragments.store import open_store
from polonaise.pipelines.progress import JobProgress, Silence
from polonaise.redaction import redacted, redacted_repr


@redacted_repr
@dataclass(frozen=True)
class RestoreReport:
    """A log that was restored. Always well: what goes wrong is raised."""

    store: str
    restored: Restored

    @property
    def well(self) -> bool:
        return True

    def fields(self) -> dict[str, Any]:
        return {
            "store": redacted(self.store),
            "directory": self.restored.directory,
            "cluster_key": self.restored.cluster_key.hex(),
            "partitions": [
                {
                    "partition": each.partition,
                    "last": each.last,
                    "in_store_up_to": each.in_store_up_to,
                    "batch_left_out": None if each.cut is None else each.cut._asdict(),
                    "batches": each.batches,
                    "bytes": each.bytes,
                }
                for each in self.restored.partitions
            ],
        }


def restore(
    store: str, directory: str, how: HowToRestore | None = None, *, progress: JobProgress | None = None
) -> RestoreReport:
    """Restore a log from a store's URL, as `polonaise.admin.restore.restore` does; `progress` counts partitions.

    If it is killed, the directory holds no log and says so; run it again, and it begins anew. Raises what that raises.
    """
    opened, hearing = open_store(store, make=False), progress or Silence()

    async def restored() -> Restored:
        hearing.begin("partitions", max(await partitions_in(opened), default=-1) + 1)
        done: list[int] = []

        def tell(partition: admin.RestoredPartition) -> None:
            done.append(partition.partition)
            hearing.done(len(done))

        return await admin.restore(opened, directory, how or HowToRestore(), tell)

    return RestoreReport(str(opened), asyncio.run(restored()))


if __name__ == "__main__":
    from polonaise.pipelines.program import main

    main("restore")
