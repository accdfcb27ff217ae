"""Finding a storage node's files and reading its control file, without the node: nothing is locked or written.

The name of a node is a file, too, so that it stays with the disk, wherever the node is run: one line, replaced whole,
`polonaise-storage-name 1 <CRC of the name in UTF-8, 8 hexadecimal digits> <name>`.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, replace
from typing import Final

from polonaise.checksum import crc32
from polonaise.errors import (
    BadOption,
    ControlFileDamaged,
    NotFound,
    ProtocolError,
    StorageNameDamaged,
    UnsupportedFormat,
    fault,
)
from polonaise.host import Disk, write_whole
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
from polonaise.terms import PartitionId, StorageId, TransactionId

NAME_FILE: Final = "polonaise-storage-name"
FORMAT: Final = 1
NAME_BYTES_MAX: Final = 512
"""The longest name, in bytes: a name may be an address, such as the path of a Unix socket."""


def check_name(name: StorageId) -> None:
    """Raise `ProtocolError` for a name that the file can't hold: an empty or long one, or one that can't be printed.

    What an operator names a node is checked more strictly (`node.addresses.check_storage_name`).
    """
    if not name or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise ProtocolError(
            f"invalid name of a storage node: {redacted(name, NAME_BYTES_MAX)!r}: a name has 1 to "
            f"{NAME_BYTES_MAX} bytes, and no control characters"
        )


async def read_name(disk: Disk, directory: str) -> StorageId | None:
    """Return the name in a storage directory; None if it has none. Raises `StorageNameDamaged`, `UnsupportedFormat`."""
    path = posixpath.join(directory, NAME_FILE)
    try:
        raw = await disk.load(path)
    except NotFound:
        return None
    return decode_name(raw, path)


async def write_name(disk: Disk, directory: str, name: StorageId) -> None:
    """Write a storage directory's name, durably and whole."""
    await write_whole(disk, directory, NAME_FILE, [encode_name(name)])


def encode_name(name: StorageId) -> bytes:
    encoded = name.encode()
    return f"{NAME_FILE} {FORMAT} {crc32(encoded):08x} ".encode() + encoded + b"\n"


def decode_name(raw: bytes, path: str) -> StorageId:
    """Return the name in the file's contents. Raises `StorageNameDamaged` or `UnsupportedFormat`, which name `path`."""
    words = raw.split(b" ", 3)
    if words[0] == NAME_FILE.encode() and len(words) > 1 and words[1].isdigit() and words[1] != str(FORMAT).encode():
        raise UnsupportedFormat(
            f"{path} is of format {redacted(words[1], 20)}; this version of Polonaise reads format {FORMAT}: run the "
            "version that wrote it, or a newer one"
        )
    try:
        name = words[3].removesuffix(b"\n").decode()
        if encode_name(name) != raw:
            raise ValueError
    except (ValueError, IndexError):
        raise StorageNameDamaged(
            f"{path} is damaged, and so the node does not know its name. If you know that this directory belongs to "
            "the storage node at this address, remove the file, and the node takes the name by which a server reaches "
            "it; otherwise move the directory away, and the node is filled from the other replicas"
        ) from None
    return name


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
