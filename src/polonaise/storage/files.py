"""A storage node's files, found and looked at without taking them: nothing is locked, repaired or written."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

from polonaise.errors import BadOption, ControlFileDamaged, ControlFileMissing, NotFound
from polonaise.host.files import LookedAt
from polonaise.log.control import CONTROL_FILE, PARTITION_BYTES, decode_header, newest_promises, offset_of
from polonaise.log.promises import NO_EVIDENCE, NOTHING_TRIMMED, SECTOR_BYTES, Promises, SyncEvidence, TrimMark
from polonaise.redaction import redacted
from polonaise.terms import PartitionId, TransactionId

_SUFFIX: Final = ".seq"
_NAMED_MAX: Final = 7
_LOOKS_MAX: Final = 3
"""A running node may be writing the very sectors that are read: damage has to be seen this often to be believed."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """What the control file says of one partition."""

    cluster_key: bytes
    promises: Promises
    evidence: SyncEvidence
    trimmed: TrimMark


@dataclass(frozen=True, slots=True)
class Files:
    """One partition's segments, or some of them."""

    partition: PartitionId | None
    """None for files that only say it themselves."""
    paths: tuple[str, ...]
    """Of the segment files, in order."""
    whole: bool
    """These are all segments of the partition, and not single files that somebody picked."""
    kept: ControlRecord | None = None
    """None without a control file beside them."""
    directory: str = ""
    """Of the storage node, if there is a control file."""


def first_of(path: str) -> TransactionId:
    """The first id of a segment, by the name of its file. Raises `BadOption` for any other file."""
    stem, suffix = os.path.splitext(os.path.basename(path))
    if suffix != _SUFFIX or not stem.isdecimal():
        raise BadOption(f"{redacted(path)} is no segment: those are called <first id>{_SUFFIX}")
    return int(stem)


def find(path: str) -> list[Files]:
    """The partitions below a path: a storage directory, one partition's directory in it, or one segment file.

    Raises `NotFound`, `BadOption` for a path that is none of these, `ControlFileMissing` and `ControlFileDamaged`.
    """
    if os.path.isfile(path):
        first_of(path)
        return [Files(None, (path,), whole=False)]
    if not os.path.isdir(path):
        raise NotFound(f"no file or directory {redacted(path)!r}")
    names = sorted(os.listdir(path))
    partitions = sorted(int(name) for name in names if name.isdecimal() and os.path.isdir(os.path.join(path, name)))
    if CONTROL_FILE in names:
        return [_files_of(path, partition) for partition in partitions]
    if partitions:
        raise ControlFileMissing(
            f"{path} holds partitions and no {CONTROL_FILE}: what they promised is unknown. "
            "Name one partition's directory to look at its segments alone"
        )
    parent, own = os.path.split(os.path.abspath(path))
    if own.isdecimal() and os.path.exists(os.path.join(parent, CONTROL_FILE)):
        return [_files_of(parent, int(own))]
    if any(name.endswith(_SUFFIX) for name in names):
        return [Files(int(own) if own.isdecimal() else None, _segments(path), whole=True)]
    below = [os.path.join(path, name) for name in names if os.path.exists(os.path.join(path, name, CONTROL_FILE))]
    if below:
        raise BadOption(
            f"{redacted(path)} is no storage directory, and holds {len(below)}: name "
            f"{'it' if len(below) == 1 else 'one of them'}: {', '.join(map(redacted, below[:_NAMED_MAX]))}"
        )
    raise BadOption(f"{redacted(path)} is no storage directory, no partition of one and no segment file")


def find_partition(path: str, partition: PartitionId) -> Files | None:
    """The files of one partition below a path, as `find` has them, without a look at the others."""
    below = os.path.join(path, str(partition))
    found = find(below if os.path.isdir(below) else path)
    return next((files for files in found if files.partition in (None, partition)), None)


def _segments(directory: str) -> tuple[str, ...]:
    names = [name for name in os.listdir(directory) if name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdecimal()]
    return tuple(os.path.join(directory, name) for name in sorted(names, key=lambda name: int(name[: -len(_SUFFIX)])))


def _files_of(directory: str, partition: PartitionId) -> Files:
    """Its promises first: a running node may have more segments by the time they are listed.

    Fewer only by a trim, of which the control file says so before: what is trimmed is looked at last, and what is left
    of it is no part of the log.
    """
    control = os.path.join(directory, CONTROL_FILE)
    kept = _kept(control, partition)
    segments = _segments(os.path.join(directory, str(partition)))
    kept = replace(kept, trimmed=_kept(control, partition).trimmed)
    paths = tuple(path for path in segments if first_of(path) >= kept.trimmed.first)
    return Files(partition, paths, whole=True, kept=kept, directory=directory)


def found_again(files: Files) -> Files:
    """The same partition's files as they are now."""
    return _files_of(files.directory, files.partition) if files.directory and files.partition is not None else files


def _kept(path: str, partition: PartitionId) -> ControlRecord:
    with LookedAt(path) as file:
        key = decode_header(file.look(0, SECTOR_BYTES), path)
        for look in range(1, _LOOKS_MAX + 1):
            try:
                found = newest_promises(file.look(offset_of(partition), PARTITION_BYTES), partition, path)
            except ControlFileDamaged:
                if look == _LOOKS_MAX:
                    raise
                continue
            if found is not None:
                return ControlRecord(key, found[0].promises, found[2], found[0].trimmed)
    raise ControlFileDamaged(f"{path}: both copies of the promises of partition {partition} are unreadable")


def trimmed_in(files: Files) -> TrimMark:
    """What was dropped from the beginning of these files; nothing, as far as is known, without a control file."""
    return files.kept.trimmed if files.kept is not None else NOTHING_TRIMMED


def evidence_in(files: Files) -> SyncEvidence:
    """Up to where these files are known to have been synced; of nothing without a control file."""
    return files.kept.evidence if files.kept is not None else NO_EVIDENCE
