"""What a peer says in words, made fit for messages and logs."""

from __future__ import annotations

from polonaise.errors import HistoryTrimmed, PolonaiseError, error_of
from polonaise.redaction import redacted
from polonaise.wire.messages import Refused


def printable(text: str, length_max: int = 2_000) -> str:
    """Return a peer's text redacted, cut, and without control characters: it goes into messages and logs."""
    text = redacted(text, length_max)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def fault_in(refused: Refused) -> PolonaiseError:
    """Return the fault that a peer has named, with its text made fit for a log."""
    error = error_of(printable(refused.code, 100), printable(refused.text))
    if isinstance(error, HistoryTrimmed):
        error.first = max(0, refused.detail)
    return error
