"""What a storage node notes of its cluster's values, in case the coordinator loses them.

A file of one line, `polonaise-cluster 1 <CRC, 8 hexadecimal digits> <JSON>`, replaced whole: `description`, with its
version; `expected`, if there are any, the servers that the cluster is to have, likewise; `unique_id`, up to which ids
were given out; and by partition, as texts, the values of those that the node has
copies of. It proves nothing, and no session rests on it: what the copies have promised is in the control file.
"""

from __future__ import annotations

import json
import posixpath
from typing import Any, Final

from polonaise.checksum import crc32
from polonaise.errors import NotFound
from polonaise.host import Disk
from polonaise.host.wholefiles import write_whole

NOTE_FILE: Final = "polonaise-cluster"
FORMAT: Final = 1

Note = dict[str, Any]


def merged(present: Note, told: Note) -> Note:
    """Return a note with what was told added: the newer description, the larger id, and partitions one by one."""

    def newest(key: str) -> Any:
        return max((each[key] for each in (present, told) if each.get(key)), default=None)

    expected = newest("expected")
    return {
        "description": newest("description"),
        **({} if expected is None else {"expected": expected}),
        "unique_id": max(present.get("unique_id", 0), told.get("unique_id", 0)),
        "partitions": {**present.get("partitions", {}), **told.get("partitions", {})},
    }


def encode_note(note: Note) -> bytes:
    """Return the contents of the file."""
    document = json.dumps(note, sort_keys=True).encode()
    return f"{NOTE_FILE} {FORMAT} {crc32(document):08x} ".encode() + document + b"\n"


def decode_note(raw: bytes) -> Note:
    """Return the note in the file's contents; an empty one if it is damaged, or of another format."""
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
