"""What a storage node notes of its cluster's values, in case the coordinator loses them.

A file of one line, `polonaise-cluster 1 <CRC, 8 hexadecimal digits> <JSON>`, replaced whole: `description` and
`expected` (the servers that the cluster is to have), each with its version; `contradicting`, descriptions that can't be
of one history with that; `unique_id`, up to which ids were given out; and by partition, as texts, the values of those
that the node has copies of. It proves nothing, and no session rests on it.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from typing import Any, Final

from polonaise.checksum import crc32
from polonaise.coordination.values import ClusterDescription, PartitionValue
from polonaise.errors import NotFound, PolonaiseError
from polonaise.host import Disk, write_whole
from polonaise.terms import PartitionId, StorageId

NOTE_FILE: Final = "polonaise-cluster"
FORMAT: Final = 1
NOTE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The most bytes of a note. Of thousands of partitions it has a few."""
CONTRADICTING_MAX: Final = 4
"""The most descriptions kept beside the latest one: one for each older copy that stood in for a while."""
_VERSION_STOP: Final = 2**63
_UNIQUE_ID_STOP: Final = 2**31

Note = dict[str, Any]
_Pair = list[Any]
"""A version, and the text of the value of this version."""


def checked(told: Any, partitions_max: int) -> Note:
    """Return what was told, if it has a note's form; the values may be of a later version. Raises `ValueError`."""
    if not isinstance(told, dict):
        raise ValueError("no object")
    for key in ("description", "expected"):
        pair = told.get(key)
        if pair is not None and not (
            isinstance(pair, list)
            and len(pair) == 2
            and _is_number(pair[0], _VERSION_STOP)
            and isinstance(pair[1], str)
        ):
            raise ValueError(f"{key} is no version with a text")
    if not _is_number(told.get("unique_id", 0), _UNIQUE_ID_STOP):
        raise ValueError("unique_id is no unique id")
    partitions = told.get("partitions", {})
    if not isinstance(partitions, dict):
        raise ValueError("partitions is no object")
    for partition, value in partitions.items():
        number = int(partition) if partition.isdecimal() and len(partition) <= len(str(partitions_max)) else -1
        if not 0 <= number < partitions_max or str(number) != partition:
            raise ValueError(f"a partition is none of 0 to {partitions_max - 1}")
        if not isinstance(value, str):
            raise ValueError(f"the value of partition {number} is no text")
    return told


def _is_number(value: Any, stop: int) -> bool:
    """Whether this is a whole number from 0 to `stop - 1`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop


def merged(present: Note, told: Note) -> Note:
    """Return a note with what was told added: the newer description, the larger id, and partitions one by one.

    A description that the newer one contradicts is kept beside it: either may be of an older copy of the coordinator
    that was in its place for a while, and an operator has to choose.
    """

    def newest(key: str) -> Any:
        return max((each[key] for each in (present, told) if each.get(key)), default=None)

    expected, description = newest("expected"), newest("description")
    contradicting = present.get("contradicting", [])
    if told.get("description") not in (None, present.get("description")):
        contradicting = _contradicting(description, [present.get("description"), told["description"], *contradicting])
    return {
        "description": description,
        **({} if expected is None else {"expected": expected}),
        **({"contradicting": contradicting} if contradicting else {}),
        "unique_id": max(present.get("unique_id", 0), told.get("unique_id", 0)),
        "partitions": {**present.get("partitions", {}), **told.get("partitions", {})},
    }


def _contradicting(newest: _Pair, others: Sequence[_Pair | None]) -> list[_Pair]:
    """Return those others that read, and that neither the newest nor a later one among them can be after."""
    read: list[tuple[_Pair, ClusterDescription]] = []
    try:
        for pair in [newest, *sorted((each for each in others if each is not None), reverse=True)]:
            description = ClusterDescription.decode(pair[1].encode())
            if not any(later.may_be_after(description, pair[0], known[0]) for known, later in read):
                read.append((pair, description))
    except PolonaiseError:
        return [pair for pair, _ in read[1:]]
    return [pair for pair, _ in read[1:][:CONTRADICTING_MAX]]


def noted_version(note: Note) -> int:
    """Return the version of the description in a note; -1 without one."""
    pair = note.get("description")
    return -1 if pair is None else int(pair[0])


def held_elsewhere(note: Note, name: StorageId | None) -> set[PartitionId]:
    """Return the partitions of which the storage node of this name is to have no copy, by the values in a note.

    Values that this version does not read count for nothing; without a name there are none.
    """
    found: set[PartitionId] = set()
    if name is None:
        return found
    for partition, text in note.get("partitions", {}).items():
        try:
            value = PartitionValue.decode(text.encode())
        except PolonaiseError:
            continue
        if name not in value.members and name not in (value.next or ()):
            found.add(int(partition))
    return found


def encode_note(note: Note) -> bytes:
    """Return the contents of the file. Raises `ValueError` if they are more than `NOTE_BYTES_MAX`."""
    document = json.dumps(note, sort_keys=True).encode()
    if len(document) > NOTE_BYTES_MAX:
        raise ValueError(f"a note of {len(document)} bytes, more than {NOTE_BYTES_MAX}")
    return f"{NOTE_FILE} {FORMAT} {crc32(document):08x} ".encode() + document + b"\n"


def decode_note(raw: bytes) -> Note:
    """Return the note in the file's contents; an empty one if these are damaged, or of another format."""
    try:
        document = raw.split(b" ", 3)[3].removesuffix(b"\n")
        note: Note = json.loads(document)
        return note if encode_note(note) == raw else {}
    except (ValueError, IndexError, RecursionError):
        return {}


async def read_note(disk: Disk, directory: str) -> Note:
    """Return the note in a storage directory; an empty one without it."""
    try:
        return decode_note(await disk.load(posixpath.join(directory, NOTE_FILE)))
    except NotFound:
        return {}


async def write_note(disk: Disk, directory: str, note: Note) -> None:
    """Write a storage directory's note, durably and whole."""
    await write_whole(disk, directory, NOTE_FILE, [encode_note(note)])
