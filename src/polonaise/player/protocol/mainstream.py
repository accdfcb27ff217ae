"""What the active player knows of one partition: how far the log reaches, and where the main stream is."""

from __future__ import annotations

from dataclasses import dataclass

from polonaise.terms import NO_TRANSACTION, TransactionId


@dataclass(slots=True)
class MainStream:
    """One partition of the log and its main stream. `ActivePlayer` alone writes here; pairs and health read."""

    current: TransactionId | None = None
    """The last id that the main stream has brought, or the one behind which it began; None until it has begun."""
    stopped: str = ""
    """Why the main stream brings nothing more; empty while it may."""
    lost: bool = False
    """Whether it stopped because the log is another one than before: for as long as this player lives."""
    mark: TransactionId = NO_TRANSACTION
    """The highest id that is proved to be committed."""
    first_kept: TransactionId = 0
    """The first id that the log still has, as far as is known."""
    requests: int = 0
    """The requests for the mark so far."""
    asked: bool = False
    """Whether an answer is waited for."""
    known: TransactionId = NO_TRANSACTION
    """The value of `mark` when the request under way was asked; an answer below it comes from another log."""
    ask_again: bool = False
    """Whether somebody needs the answer to a later request than the one under way."""
    follows: int = 0
    """How often the main stream has begun: the number of the present one."""
    dummies_at: TransactionId = NO_TRANSACTION
    """The id at which targets were last looked at for dummies."""
