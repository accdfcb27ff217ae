"""Finding a storage node's files and reading its control file, without the node: nothing is locked or written."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

from polonaise.errors import BadOption, ControlFileDamaged, NotFound, fault
from polonaise.host.files import ReadOnlyFile, names_in
from polonaise.log.control import (
    CONTROL_FILE,
    NO_EVIDENCE,
    NOTHING_TRIMMED,
    PARTITION_BYTES,
    SECTOR_BYTES,
    WIPE,
    Promises,
    SyncEvidence,
    TrimMark,
    decode_header,
    newest_promises,
    offset_of,
)
from polonaise.redaction import redacted
from polonaise.storage.namefile import NAME_FILE, decode_name
from polonaise.terms import PartitionId, StorageId, TransactionId

_SUFFIX: Final = ".seq"
_NAMED_MAX: Final = 7
_LOOKS_MAX: Final = 3
"""The number of looks that must find damage before it is believed: a running node may be writing those very sectors."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """The control file's facts about one partition."""

    cluster_key: bytes
    promises: Promises
    evidence: SyncEvidence
    trimmed: TrimMark


@dataclass(frozen=True, slots=True)
class Files:
    """The segment files of one partition, all or some of them."""

    partition: PartitionId | None
    """None if only the files' own headers tell."""
    paths: tuple[str, ...]
    """The segment files, in the order of their first ids."""
    whole: bool
    """Whether these are all segments of the partition, and not single files that somebody picked."""
    control: ControlRecord | None = None
    """The control file's facts; None for a single file, and if there is no control file beside the files."""
    directory: str = ""
    """The storage node's directory; empty if `control` is None."""


def name_in(files: Files) -> StorageId:
    """Return the name of the storage node that these files are of; empty if it has none, or none is known.

    Raises `StorageNameDamaged` and `UnsupportedFormat`.
    """
    path = os.path.join(files.directory, NAME_FILE)
    if not files.directory or not os.path.exists(path):
        return ""
    with ReadOnlyFile(path) as file:
        return decode_name(file.read_now(0, file.size()), path)


def first_of(path: str) -> TransactionId:
    """Return the first id of a segment, by the name of its file. Raises `BadOption` for any other file."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix != _SUFFIX or not stem.isdecimal():
        raise BadOption(f"{redacted(path)} is not a segment: segments are named <first id>{_SUFFIX}")
    return int(stem)


def find(path: str) -> list[Files]:
    """Find the partitions below a path: a storage directory, one partition's directory in it, or one segment file.

    Raises `NotFound`, `BadOption` for a path that is none of these, `control_file_missing`, `ControlFileDamaged`,
    `UnsupportedFormat`, and `AccessDenied`.
    """
    if os.path.isfile(path):
        first_of(path)
        return [Files(None, (path,), whole=False)]
    if not os.path.isdir(path):
        raise NotFound(f"no file or directory {redacted(path)!r}")
    names = names_in(path)
    partitions = sorted(int(name) for name in names if name.isdecimal() and os.path.isdir(os.path.join(path, name)))
    if CONTROL_FILE in names:
        return [_files_of(path, partition) for partition in partitions]
    if partitions:
        raise fault(
            "control_file_missing",
            f"{path} holds partitions and no {CONTROL_FILE}: what they promised is unknown. "
            "Name one partition's directory to look at its segments alone",
        )
    parent, own = os.path.split(os.path.abspath(path))
    if own.isdecimal() and os.path.exists(os.path.join(parent, CONTROL_FILE)):
        return [_files_of(parent, int(own))]
    if any(name.endswith(_SUFFIX) for name in names):
        return [Files(int(own) if own.isdecimal() else None, _segments(path), whole=True)]
    below = [os.path.join(path, name) for name in names if os.path.exists(os.path.join(path, name, CONTROL_FILE))]
    if below:
        raise BadOption(
            f"{redacted(path)} is not a storage directory, and holds {len(below)}: name "
            f"{'it' if len(below) == 1 else 'one of them'}: {', '.join(map(redacted, below[:_NAMED_MAX]))}"
        )
    raise BadOption(f"{redacted(path)} is not a storage directory, a partition of one, or a segment file")


def find_partition(path: str, partition: PartitionId) -> Files | None:
    """Find the files of one partition below a path, as `find` does; None if there are none.

    A file that does not tell its partition is taken for one of it.
    """
    below = os.path.join(path, str(partition))
    candidates = find(below if os.path.isdir(below) else path)
    return next((files for files in candidates if files.partition in (None, partition)), None)


def _segments(directory: str) -> tuple[str, ...]:
    names = [name for name in names_in(directory) if name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdecimal()]
    return tuple(os.path.join(directory, name) for name in sorted(names, key=lambda name: int(name[: -len(_SUFFIX)])))


def _files_of(directory: str, partition: PartitionId) -> Files:
    """Collect one partition's files and the control file's facts, while the node may be running."""
    path = os.path.join(directory, CONTROL_FILE)
    # The promises before the segments: unless it cuts or trims, a running node only has more segments by the time they
    # are listed. The trim mark after them: trimmed segments vanish only after the control file has said so, so whatever
    # a trim has taken from the list is below the mark by then. A trimmed segment that is still listed is no part of the
    # log.
    record = _control_record(path, partition)
    segments = _segments(os.path.join(directory, str(partition)))
    record = replace(record, trimmed=_control_record(path, partition).trimmed)
    paths = tuple(segment for segment in segments if first_of(segment) >= record.trimmed.first)
    return Files(partition, paths, whole=True, control=record, directory=directory)


def found_again(files: Files) -> Files:
    """Find the same partition's files again, as they are now; the same `files` if `control` is None."""
    return _files_of(files.directory, files.partition) if files.directory and files.partition is not None else files


def _control_record(path: str, partition: PartitionId) -> ControlRecord:
    """Read the control file's facts about a partition. Raises `ControlFileDamaged` and `UnsupportedFormat`."""
    with ReadOnlyFile(path) as file:
        key = decode_header(file.read_now(0, SECTOR_BYTES), path)
        # A running node may be writing these sectors: what can't be read now may be whole at the next look.
        for look in range(1, _LOOKS_MAX + 1):
            try:
                newest = newest_promises(file.read_now(offset_of(partition), PARTITION_BYTES), partition, path)
            except ControlFileDamaged:
                if look == _LOOKS_MAX:
                    raise
                continue
            if newest is not None:
                copy, _, evidence = newest
                return ControlRecord(key, copy.promises, evidence, copy.trimmed)
    raise ControlFileDamaged(f"{path}: both copies of the promises of partition {partition} are unreadable: {WIPE}")


def record_in(files: Files) -> ControlRecord:
    """Return the control file's facts about these files. Raises `control_file_missing` if there is none beside them."""
    if files.control is None:
        raise fault(
            "control_file_missing",
            f"there is no {CONTROL_FILE} beside {', '.join(map(redacted, files.paths[:_NAMED_MAX])) or 'these files'}: "
            "name a storage directory, or a partition's directory in one",
        )
    return files.control


def trimmed_in(files: Files) -> TrimMark:
    """Return the trim mark of these files; without a control file nothing is known to be trimmed."""
    return files.control.trimmed if files.control is not None else NOTHING_TRIMMED


def evidence_in(files: Files) -> SyncEvidence:
    """Return the evidence up to where these files were synced; `NO_EVIDENCE` without a control file."""
    return files.control.evidence if files.control is not None else NO_EVIDENCE
