"""The memory of a `JsonLinesTarget`: a file beside its file of lines, which says what of that counts.

Every line is a CRC-32 in 8 hexadecimal digits, a space, and a JSON object. The first line says everything; it is
written whole with its file, and never torn. Each further line is one step: one write that a crash may tear, and that
nothing follows before it is synced. So only the end may be unreadable, and does not count then.

A step is noted before its lines are written. When they are synced, a line of what counts follows, not synced; the next
step is noted in its place. Of the last step alone it may be unknown whether its lines are there: then it counts if they
are whole, and a part of them is cut, and comes again. Whatever else lies behind what counts was written by somebody
else. Earlier versions noted a step behind its lines, and have no `noted_first`: all that lies behind what counts is
taken for a step of theirs.
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
_BEGINNING_BYTES: Final = 32
"""The first bytes of a step's lines that are noted: as a rule they tell its partition and its id."""


class CountedLines(NamedTuple):
    """The beginning of the file of lines that counts."""

    size: int
    last_size: int
    """The bytes that the last step has written, at its end."""
    last_crc: int
    """The CRC of those bytes, by which a file that was replaced is noticed."""

    def followed_by(self, data: bytes) -> CountedLines:
        return CountedLines(self.size + len(data), len(data), crc32(data)) if data else self


NOTHING_COUNTED: Final = CountedLines(0, 0, 0)


class NotedStep(NamedTuple):
    """A step that is noted: its lines may be there, in part or whole, or not yet."""

    counted: CountedLines
    """What counts once they are there."""
    applied: Mapping[PartitionId, TransactionId]
    """The partitions that they bring, up to which ids."""
    beginning: bytes
    """The first bytes of its lines, filled up with zeros."""

    def may_have_left(self, beginning: bytes) -> bool:
        """Return whether torn lines of this step may begin like this: what never came is zeros."""
        return all(found in (0, noted) for found, noted in zip(beginning, self.beginning, strict=False))


class LinesMemory(NamedTuple):
    """What a `JsonLinesTarget` keeps durably."""

    source: DeliverySource
    fence: Fence
    counted: CountedLines
    """Without the step that is noted."""
    applied: Mapping[PartitionId, TransactionId]
    noted: NotedStep | None = None
    """The last step, while nothing says that its lines are there."""
    noted_first: bool = True
    """Whether steps are noted before their lines are written, as earlier versions did not."""

    def with_step(self, lines: bytes, applied: Mapping[PartitionId, TransactionId]) -> LinesMemory:
        """Return this memory with a further step noted. The one before it has come to its end."""
        beginning = lines[:_BEGINNING_BYTES].ljust(_BEGINNING_BYTES, b"\0")
        return self._replace(noted=NotedStep(self.counted.followed_by(lines), applied, beginning))

    def with_step_ended(self) -> LinesMemory:
        """Return this memory once the lines of the noted step are there."""
        if self.noted is None:
            return self
        return self._replace(counted=self.noted.counted, applied={**self.applied, **self.noted.applied}, noted=None)

    def whole(self) -> bytes:
        """Return the first line of a memory file, which says everything but a step that is noted."""
        return _line(
            {
                "format": _FORMAT,
                "noted_first": True,
                "log": self.source.log_key.hex(),
                "player": self.source.player,
                "target": self.source.target,
                "epoch": self.fence.epoch,
                "term": self.fence.term,
                **_step(self.counted, self.applied),
            }
        )

    def step_ended(self) -> bytes:
        """Return the line that says what counts. The line of any step is longer, and can take its place."""
        return _line(_step(self.counted, {}))

    def step(self) -> bytes:
        assert self.noted is not None
        counted, applied, beginning = self.noted
        return _line({**_step(counted, applied), "begins": beginning.hex()})


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
        noted_first = about.get("noted_first", False)
        memory = LinesMemory(source, Fence(about["epoch"], about["term"]), *_counted(about), noted_first=noted_first)
        for step in steps:
            if step is None:
                raise _damaged(path)
            beginning = step.get("begins")
            noted = NotedStep(*_counted(step), bytes.fromhex(beginning or ""))
            memory = memory.with_step_ended()._replace(noted=noted)
            if beginning is None:
                memory = memory.with_step_ended()
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
