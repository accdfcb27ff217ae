"""The file in which a storage node keeps its name, so that the name stays with the disk, wherever the node is run.

One line, replaced whole: `polonaise-storage-name 1 <CRC of the name in UTF-8, 8 hexadecimal digits> <name>`.
"""

from __future__ import annotations

import posixpath
from typing import Final

from polonaise.checksum import crc32
from polonaise.errors import NotFound, ProtocolError, StorageNameDamaged, UnsupportedFormat
from polonaise.host import Disk, write_whole
from polonaise.redaction import redacted
from polonaise.terms import StorageId

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
