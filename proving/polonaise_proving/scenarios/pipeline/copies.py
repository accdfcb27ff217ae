"""The three ways out of the log: each copies source partitions, through any number of drivers, and is compared."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import column, create_engine, select, table, text
from sqlalchemy.pool import NullPool

from polonaise_proving.judges.rows import judge, judge_files
from polonaise_proving.scenarios.pipeline.drivers import Driver
from polonaise_proving.scenarios.pipeline.faults import SparkFault
from polonaise_proving.scenarios.pipeline.ground import FEW, TARGETS, Ground

SPLIT = {"minPartitions": "2"}
FINER = {"minPartitions": "4"}
BY_BYTES = {"maxBytesPerSplit": "300k"}


class TorturedCopy(ABC):
    """One query, through all its lives: its source partitions, its checkpoint and its output."""

    job = ""

    def __init__(self, ground: Ground, sources: tuple[int, ...] = FEW, trigger: int | None = 100) -> None:
        self.ground = ground
        self.sources = sources
        self.directory = ground.scratch(self.job)
        self._trigger = trigger
        self._faults = 0
        self.shuffled = False

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def begun(self) -> bool:
        """Whether a first micro-batch is planned."""
        return (self.checkpoint / "offsets" / "0").exists()

    def fault(self, step: str, do: str, **narrower: Any) -> SparkFault:
        """Make a fault for this copy."""
        self._faults += 1
        directory = self.directory / f"fault-{self._faults}"
        directory.mkdir()
        return SparkFault(step, do, str(directory), **narrower)

    def life(
        self, split: dict[str, str], fault: SparkFault | None = None, shuffle: int | None = None
    ) -> dict[str, Any]:
        """Return the job that a driver is told to do for one life of this query."""
        self.shuffled |= shuffle is not None
        return {
            "job": self.job,
            "cluster": self.ground.cluster,
            "partitions": ",".join(map(str, self.sources)),
            "split": split,
            "trigger": self._trigger,
            "shuffle": shuffle,
            "fault": asdict(fault) if fault is not None else None,
            "checkpoint": str(self.checkpoint),
            **self._own(),
        }

    @abstractmethod
    def _own(self) -> dict[str, Any]: ...

    @abstractmethod
    def wrong(self, driver: Driver) -> list[str]:
        """Return the mistakes in the output, which the driver may be asked to read. The copy is over afterwards."""

    def forget(self) -> None:
        """Delete what the copy left on disk."""
        shutil.rmtree(self.directory)


class ToLog(TorturedCopy):
    """A copy by the sink, or by one of `faulty.NAIVE`, into other partitions of the same log."""

    job = "to_log"

    def __init__(
        self,
        ground: Ground,
        sources: tuple[int, ...] = FEW,
        trigger: int | None = 100,
        *,
        sink: str = "real",
        targets: tuple[int, ...] = TARGETS,
        **options: str,
    ) -> None:
        super().__init__(ground, sources, trigger)
        self._sink = sink
        self._targets = targets
        self._marks = {partition: ground.accounted[partition] for partition in targets}
        # Shared by all copies, unless one has its own.
        self._options = {"staging": str(ground.directory / "staging"), **options}

    def _own(self) -> dict[str, Any]:
        return {"offset": self._targets[0] - self.sources[0], "sink": self._sink, "options": self._options}

    def wrong(self, driver: Driver) -> list[str]:
        expected = dict(zip(self._targets, self.ground.expected(self.sources).values(), strict=True))
        rows_by_target = self.written()
        self.ground.accounted |= {
            partition: self._marks[partition] + len(rows) for partition, rows in rows_by_target.items()
        }
        return judge(expected, rows_by_target, ordered=not self.shuffled)

    def written(self) -> dict[int, list[str]]:
        """The rows in the copy's target partitions."""
        return self.ground.written(self._marks)

    def staged(self) -> list[Path]:
        """The objects that the copy's tasks have put into its staging store."""
        return [path for path in Path(self._options["staging"], "staged").rglob("*") if path.is_file()]

    def count(self, partition: int) -> int:
        """The number of rows in one of the copy's target partitions."""
        return self.ground.end(partition) - self._marks[partition]


class ToParquet(TorturedCopy):
    """A copy by Spark's own sink into files, which Spark's reader reads."""

    job = "to_parquet"

    def _own(self) -> dict[str, Any]:
        return {"path": str(self.path)}

    @property
    def path(self) -> Path:
        return self.directory / "files"

    def wrong(self, driver: Driver) -> list[str]:
        answer = driver.run({"job": "parquet", "path": str(self.path)})
        if not answer["ok"]:
            return [f"the files can't be read: {answer['error']}"]
        return judge_files(self.ground.expected(self.sources), answer["value"], ordered=not self.shuffled)

    def committed_by_sink(self, batch: int) -> bool:
        return Path(self.path, "_spark_metadata", str(batch)).exists()

    def committed(self, batch: int) -> bool:
        return Path(self.checkpoint, "commits", str(batch)).exists()


class ToSql(TorturedCopy):
    """A copy by `foreachBatch` into a table, with or without a mark in the same SQL transaction."""

    job = "to_sql"

    def __init__(
        self, ground: Ground, sources: tuple[int, ...] = FEW, trigger: int | None = 100, *, marks: bool = True
    ) -> None:
        super().__init__(ground, sources, trigger)
        self._marks = marks
        self._url = ground.databases.url(self.directory.name)

    def _own(self) -> dict[str, Any]:
        return {"url": self._url, "marks": self._marks, "key": self.ground.log.cluster_key.hex()}

    def wrong(self, driver: Driver) -> list[str]:
        rows: dict[int, list[str]] = {}
        # Other databases do not say in which order rows were written.
        found = table("found", *map(column, ("partition", "id", "data")))
        order = text("rowid") if self.ground.databases.kind == "sqlite" else found.c.id
        engine = create_engine(self._url, poolclass=NullPool)
        with engine.connect() as db:
            for partition, data in db.execute(select(found.c.partition, found.c.data).order_by(order)):
                rows.setdefault(partition, []).append(data)
        return judge(self.ground.expected(self.sources), rows, ordered=not self.shuffled)
