"""The memory of a `JsonLinesTarget`: a file beside its file of lines, which says what of that counts.

Every line is a CRC-32 in 8 hexadecimal digits, a space, and a JSON object. The first line says everything; it is
written whole with its file, and never torn. Each further line is one step: one write that a crash may tear, and that
nothing follows before it is synced. So only the end may be unreadable; what it says does not count then, neither that
lines were written nor that their entries were applied, and both come again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.errors import UnsupportedFormat, ViewUnfit
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.protocol.entries import Fence
from polonaise.terms import PartitionId, TransactionId

_FORMAT: Final = 1
_CRC_DIGITS: Final = 8


class CountedLines(NamedTuple):
    """The beginning of the file of lines that counts."""

    size: int
    """Its bytes. What lies beyond was written by a step that did not come to its end."""
    last_size: int
    """The bytes that the last step has written, at its end."""
    last_crc: int
    """The CRC-32 of those bytes, by which a file that was replaced is noticed."""

    def followed_by(self, data: bytes) -> CountedLines:
        """Return what counts with these bytes behind it."""
        return CountedLines(self.size + len(data), len(data), crc32(data)) if data else self


NOTHING_COUNTED: Final = CountedLines(0, 0, 0)


class LinesMemory(NamedTuple):
    """What a `JsonLinesTarget` keeps durably."""

    source: DeliverySource
    fence: Fence
    counted: CountedLines
    applied: Mapping[PartitionId, TransactionId]

    def whole(self) -> bytes:
        """Return the first line of a memory file, which says everything."""
        return _line(
            {
                "format": _FORMAT,
                "log": self.source.log_key.hex(),
                "player": self.source.player,
                "target": self.source.target,
                "epoch": self.fence.epoch,
                "term": self.fence.term,
                **_step(self.counted, self.applied),
            }
        )

    def step(self, partitions: Mapping[PartitionId, TransactionId]) -> bytes:
        """Return the line of a step that has led to this memory, by applying these partitions up to these ids."""
        return _line(_step(self.counted, partitions))


def read_memory(raw: bytes, path: str) -> LinesMemory:
    """Return what the memory file at `path` says. Raises `ViewUnfit` if it is damaged, and `UnsupportedFormat`."""
    first, *lines = raw.split(b"\n")
    about = _read(first)
    if about is None or not lines:
        raise _damaged(path)
    if about.get("format") != _FORMAT:
        raise UnsupportedFormat(
            f"{path} is of format {about.get('format')!r}; this version of Polonaise reads format {_FORMAT}: run the "
            "version that wrote it, or a newer one"
        )
    steps = [_read(line) for line in lines[:-1]]  # behind the last line's end there is nothing, or a torn line
    while steps and steps[-1] is None:
        steps.pop()
    try:
        source = DeliverySource(bytes.fromhex(about["log"]), about["player"], about["target"])
        memory = LinesMemory(source, Fence(about["epoch"], about["term"]), *_counted(about))
        for step in steps:
            if step is None:
                raise _damaged(path)
            counted, applied = _counted(step)
            memory = memory._replace(counted=counted, applied={**memory.applied, **applied})
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path) from error
    return memory


def _damaged(path: str) -> ViewUnfit:
    return ViewUnfit(
        f"{path} is damaged: the target does not know what it has applied. Put both files back from a backup of the "
        "same moment; or move both away, start this process again, and everything is delivered again"
    )


def _step(counted: CountedLines, partitions: Mapping[PartitionId, TransactionId]) -> dict[str, Any]:
    return {
        "bytes": counted.size,
        "last_bytes": counted.last_size,
        "last_crc": counted.last_crc,
        "applied": {str(partition): id for partition, id in sorted(partitions.items())},
    }


def _counted(step: dict[str, Any]) -> tuple[CountedLines, dict[PartitionId, TransactionId]]:
    counted = CountedLines(int(step["bytes"]), int(step["last_bytes"]), int(step["last_crc"]))
    return counted, {int(partition): int(id) for partition, id in step["applied"].items()}


def _line(about: dict[str, Any]) -> bytes:
    text = json.dumps(about).encode()
    return b"%0*x %s\n" % (_CRC_DIGITS, crc32(text), text)


def _read(line: bytes) -> dict[str, Any] | None:
    """Return what a line says, or None if it is not as it was written."""
    crc, _, text = line.partition(b" ")
    if crc != b"%0*x" % (_CRC_DIGITS, crc32(text)):
        return None
    about = json.loads(text)
    return about if isinstance(about, dict) else None
