"""A view's table as Parquet files: a directory for each version, and a link to the current one.

    DIRECTORY/current              a symbolic link to the directory of the current version
    DIRECTORY/versions/00000007/   part-*.parquet, and _polonaise.json: which log, which view, which
                                   definition, up to which ids; _undecodable/part-*.parquet: its dead letters, if any

A version is written aside and synced, and then the link is replaced by one rename. So a reader of `DIRECTORY/current`
sees the old version or the new one, whole. A version that only adds rows shares the older files by hard links.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.errors import AnalysisException

from polonaise.errors import ViewUnfit
from polonaise.host.files import sync_path, try_lock
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.definitions import Definition, is_same, kept_in
from polonaise.pipelines.source import Marks
from polonaise.pipelines.targets import LOCK, DirectoryTarget, NewRows, TableState, disk_faults
from polonaise.spark.paths import read_from, written_to
from polonaise.terms import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

CURRENT: Final = "current"
METADATA: Final = "_polonaise.json"
"""The file with a version's marks and definition, which readers of Parquet ignore."""
LETTERS: Final = "_undecodable"
"""The directory of a version's dead letters, which readers of Parquet ignore, too."""
_MAKING: Final = ".making"
KEEP_S: Final = 600.0
"""Seconds that a version is kept after it was replaced, at least, for whoever is reading it."""


class ParquetTarget(DirectoryTarget[Path]):
    """A table in a directory that Spark's driver and tasks both reach. One run writes at a time. Raises
    `DirectoryInUse` while another run writes to it, `ViewUnfit` for the table of another view or log, and `DiskFailed`
    if the directory can't be written to."""

    kind: ClassVar = "parquet"

    def __init__(
        self, spark: SparkSession, directory: str, view: TableView, cluster: str, *, keep_s: float = KEEP_S
    ) -> None:
        super().__init__(spark, directory, view, cluster)
        self._versions = self._directory / "versions"
        self._keep_s = keep_s

    def prepare(self, schema: StructType) -> None:
        super().prepare(schema)
        with disk_faults(self._directory):
            if not self._versions.is_dir():
                self._check_unused()
            self._versions.mkdir(parents=True, exist_ok=True)

    def merge(self, new: NewRows, before: Marks, after: Marks) -> bool:
        return self._commit(new, before, after, replaces=False)

    def replace(self, new: NewRows, before: Marks, after: Marks) -> bool:
        return self._commit(new, before, after, replaces=True)

    def letters(self) -> str | None:
        files = self._directory / CURRENT / LETTERS
        return str(files) if files.is_dir() else None

    @contextmanager
    def state(self, *, with_marks: bool = True) -> Iterator[TableState]:
        version = self._current()
        if version is None and with_marks:
            raise ViewUnfit(
                f"no view's table in {self._directory}: it has no link {CURRENT}; correct the path of the table"
            )
        files = version or self._directory
        if not files.is_dir():
            raise ViewUnfit(f"no table in {self._directory}: there is no such directory; correct the path")
        marks = self._marks_of(files) if with_marks else None
        try:
            rows = self._spark.read.parquet(read_from(files))
        except AnalysisException as error:
            raise ViewUnfit(
                f"no table in {self._directory}: Spark finds no Parquet files there; correct the path of the table"
            ) from error
        yield TableState(marks, rows)

    # ------------------------------------------------------------------ writing

    def _commit(self, new: NewRows, before: Marks, after: Marks, *, replaces: bool) -> bool:
        rows, letters, _ = new
        with disk_faults(self._directory):
            lock = try_lock(str(self._directory / LOCK))
            try:
                # Looked up under the lock, so that nobody can commit between this and our own commit.
                current = self._current()
                marks = {} if current is None else self._marks_of(current)
                if marks != dict(before) or not (
                    replaces or current is None or is_same(self._kept_in(current), self._definition)
                ):
                    return False
                # Before anything is written: a dead writer may have left a directory of the same number.
                self._sweep(current)
                number = 0 if current is None else int(current.name) + 1
                making = self._versions / f"{number:08d}{_MAKING}"
                older = None if replaces else current
                if older is not None and self._view.key:
                    rows = self._view.merged([self._spark.read.parquet(read_from(older)), rows])
                rows.write.parquet(written_to(making))
                if older is not None and not self._view.key:
                    _link_parts(older, making)
                if letters is not None:
                    letters.write.parquet(written_to(making / LETTERS))
                if older is not None and (older / LETTERS).is_dir():
                    (making / LETTERS).mkdir(exist_ok=True)
                    _link_parts(older / LETTERS, making / LETTERS)
                self._finish(making, dict(after) if replaces else {**marks, **after})
                return True
            finally:
                lock.release()

    def _finish(self, making: Path, marks: Marks) -> None:
        about = {
            "view": self._view.name,
            "cluster": self._cluster,
            "high_water_marks": {str(partition): id for partition, id in sorted(marks.items())},
            **self._definition.fields(),
            "written": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        (making / METADATA).write_text(json.dumps(about, indent=2) + "\n")
        for directory in (making / LETTERS, making):
            for file in directory.iterdir() if directory.is_dir() else ():
                if file.is_dir() or file.stat().st_nlink == 1:  # others are an older version's, synced with it
                    sync_path(file)
        # Everything durable before it gets its name, and the name before the link: after a crash the link never points
        # to a version that is not whole.
        sync_path(making)
        version = making.with_name(making.name.removesuffix(_MAKING))
        making.rename(version)
        sync_path(self._versions)
        link = self._directory / f".{CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(self._versions.name) / version.name)
        link.replace(self._directory / CURRENT)
        sync_path(self._directory)

    def _sweep(self, current: Path | None) -> None:
        """Remove what a dead writer has left, and versions that were replaced more than `keep_s` seconds ago."""
        versions = sorted(self._versions.iterdir())
        complete = [version for version in versions if version.name.isdecimal()]
        unneeded = [version for version in versions if version not in complete]
        unneeded += [version for version in complete if current is None or version.name > current.name]
        for older, newer in pairwise(version for version in complete if version not in unneeded):
            if time.time() - (newer / METADATA).stat().st_mtime > self._keep_s:
                unneeded.append(older)
        for version in unneeded:
            shutil.rmtree(version)

    # ------------------------------------------------------------------ reading

    def _current(self) -> Path | None:
        link = self._directory / CURRENT
        return link.resolve() if link.is_symlink() else None

    def _marks_of(self, version: Path) -> dict[PartitionId, TransactionId]:
        about = _metadata(version)
        for field, expected in (("view", self._view.name), ("cluster", self._cluster)):
            if about.get(field) != expected:
                raise ViewUnfit(
                    f"{self._directory} holds a table of {field} {about.get(field)}, not of {field} {expected}: choose "
                    "another directory, or remove it"
                )
        return {int(partition): int(id) for partition, id in about["high_water_marks"].items()}

    def _kept_in(self, version: Path) -> Definition | None:
        return kept_in(_metadata(version))


def _metadata(version: Path) -> Mapping[str, Any]:
    try:
        about = json.loads((version / METADATA).read_text())
        marks = about["high_water_marks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ViewUnfit(
            f"{version / METADATA} can't be read: {error}: restore it, or rebuild the view elsewhere"
        ) from error
    if not isinstance(marks, dict):
        raise ViewUnfit(f"{version / METADATA} holds no marks: restore it, or rebuild the view elsewhere")
    return about  # type: ignore[no-any-return]


def _link_parts(version: Path, making: Path) -> None:
    for file in version.iterdir():
        if not file.name.startswith(("_", "._")):
            os.link(file, making / file.name)
