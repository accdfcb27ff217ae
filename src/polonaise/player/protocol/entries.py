"""What travels to a target: entries in batches, each under the fence of the stream that it was sent on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from polonaise.errors import BadOption
from polonaise.redaction import redacted
from polonaise.terms import PartitionId, TransactionId

TargetName: TypeAlias = str
"""The name by which the player's settings and the route function know a target."""

NAME_CHARACTERS_MAX: Final = 200
"""The longest name of a player or target."""
REASON_CHARACTERS_MAX: Final = 500
"""The most characters that are told of an application's error, or of what a target refuses."""

Epoch: TypeAlias = int
"""The count of the active players of one name, raised by each election: from 1."""

Term: TypeAlias = int
"""The count of the streams that one active player has opened, or tried to open, to one target: from 1. One that was
removed and is added again goes on above the terms that it had."""


TERM_MAX: Final[Term] = 2**62
"""The highest term that a player believes a target to keep; terms above still have room on the wire."""


def checked_name(name: object) -> str:
    """Return the name of a player or target. Raises `BadOption` for one that none can have."""
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX:
        with contextlib.suppress(UnicodeEncodeError):
            name.encode()
            return name
    raise BadOption(
        f"the name {redacted(repr(name), 60)}: a text of 1 to {NAME_CHARACTERS_MAX} characters that UTF-8 can encode"
    )


class Fence(NamedTuple):
    """The number of one stream to a target, compared by epoch, then by term: the higher one shuts out the lower."""

    epoch: Epoch
    term: Term

    def __str__(self) -> str:
        return f"epoch {self.epoch}, term {self.term}"


NO_FENCE = Fence(0, 0)
"""What a target keeps before its first stream: lower than the fence of any stream."""


def shut_out_by(kept: Fence, own: Fence) -> str:
    """Return in words why a target that keeps the fence `kept` refuses the stream with the fence `own`."""
    if kept == NO_FENCE:
        return f"the target holds no fence, and not that of this stream ({own}): its memory was emptied or put back"
    if kept < own:
        return (
            f"the target holds the fence of an earlier stream ({kept}), not that of this one ({own}): it was put back"
        )
    return f"the target holds the fence of another stream ({kept}), which shuts out this one ({own})"


class RoutedEntry(NamedTuple):
    """What the route function made of one transaction for one target."""

    id: TransactionId
    """That of the transaction in its partition."""
    payload: bytes | None
    """The application's bytes; None for a *dummy*, which only raises the id that the target keeps."""

    @property
    def size(self) -> int:
        """What the entry counts for in bounds: its payload, and some for itself."""
        return ENTRY_BYTES + len(self.payload or b"")


ENTRY_BYTES = 32
"""What an entry without payload counts for: about what an id and a length take, in memory and sent."""


class DeliveryBatch(NamedTuple):
    """Consecutive entries of one partition for one target, sent, and applied by the target, as a whole or in part."""

    partition: PartitionId
    previous: TransactionId
    """The entry that was sent to the target before the first one, or -1: the target has to have applied it last."""
    entries: Sequence[RoutedEntry]
    """At least one, by rising id."""

    @property
    def last(self) -> TransactionId:
        """The id of the last entry."""
        return self.entries[-1].id

    @property
    def size(self) -> int:
        """What the entries count for in bounds."""
        return sum([ENTRY_BYTES + len(payload or b"") for _, payload in self.entries])
