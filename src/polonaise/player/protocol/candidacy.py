"""What a process of a player does when: it stands by, delivers, hands over, pauses, or ends."""

from __future__ import annotations

import enum
from math import inf
from typing import Final

from polonaise.errors import BadOption, CertificateUnusable, ExtraMissing, PolonaiseError, ProducerFenced, Retry
from polonaise.player.protocol.entries import Epoch

_PAUSE_S_MIN: Final = 0.5
"""The first pause after a turn that has failed; each failure doubles it."""
_PAUSE_S_MAX: Final = 30.0
_STEADY_S: Final = 60.0
"""A process that has delivered for so long begins with the first pause again."""
_MISTAKES: Final = (BadOption, CertificateUnusable, ExtraMissing)
"""The settings themselves are wrong: no other process and no later turn can do better."""


class CandidateState(enum.StrEnum):
    """The states of a process of a player."""

    CONNECTING = "connecting"
    """It opens the log."""
    STANDBY = "standby"
    """It is connected, and waits for the lease."""
    STARTING = "starting"
    """It has the lease, and its player begins."""
    ACTIVE = "active"
    """Its player delivers."""
    HANDING_OVER = "handing over"
    """Its player sends nothing more, and waits for what is in flight to be acknowledged."""
    PAUSING = "pausing"
    """Its turn is over, and the next one begins after a pause."""


class TurnEnd(enum.Enum):
    """Why a turn is over."""

    LEASE_LOST = enum.auto()
    """Another process may have the lease."""
    REPLACED = enum.auto()
    """Another player of this name is active, whoever has the lease."""
    FAILED = enum.auto()
    """Something did not work that may work later, or elsewhere."""
    MISTAKEN = enum.auto()
    """The settings are wrong."""


def turn_end_of(error: PolonaiseError, *, connected: bool) -> TurnEnd:
    """Return what it means that a turn has ended with this error; `connected` tells whether the log was open."""
    if isinstance(error, ProducerFenced):
        return TurnEnd.REPLACED
    if isinstance(error, _MISTAKES):
        return TurnEnd.MISTAKEN
    # A log that can't be opened for good, such as that of a topic that does not exist. What ends a player later is
    # another thing: what this process can't route, one with newer code may.
    if not connected and error.retry is Retry.NEVER:
        return TurnEnd.MISTAKEN
    return TurnEnd.FAILED


class Candidacy:
    """Follows one process through its turns, and decides on the pauses between them. It alone writes its fields."""

    def __init__(self, lease_s: float) -> None:
        self.state = CandidateState.CONNECTING
        self.reason = ""
        """Why the last turn has ended; empty once the process delivers, or others do."""
        self.epoch: Epoch | None = None
        """The player's; None while the process is not active."""
        self.turns = 0
        self._lease_s = lease_s
        self._pause_s = _PAUSE_S_MIN
        self._active_since_s = inf
        self.other = ""
        """Which process has the lease, as a standby was told last; empty if not known."""
        self.log_trouble = ""
        """Why the log does not tell a standby who has the lease; empty if it does."""
        self._other_since_s = 0.0
        self.has_lease = False

    @property
    def ready(self) -> bool:
        """Whether the process delivers, or would as soon as it gets the lease."""
        if self.state is CandidateState.STANDBY:
            return not self.log_trouble
        return self.state in (CandidateState.STARTING, CandidateState.ACTIVE)

    def connected(self) -> None:
        self.state = CandidateState.STANDBY

    def others_deliver(self, active: str, now_s: float) -> None:
        """The log tells a standby that the process `active` has the lease; an empty name says that none has. Once the
        same one has had it for a while, what ended the last turn here is of no concern any more."""
        if self.state is not CandidateState.STANDBY:
            return
        self.log_trouble = ""
        if active != self.other:
            self.other, self._other_since_s = active, now_s
        if active and now_s - self._other_since_s >= _STEADY_S:
            self.reason = ""

    def log_is_silent(self, why: str) -> None:
        if self.state is CandidateState.STANDBY:
            self.other, self.log_trouble = "", why

    def _leave_standby(self) -> None:
        """Forget what only a standby is told: nobody would take it back."""
        self.other = self.log_trouble = ""

    def acquired(self) -> None:
        self._leave_standby()
        self.has_lease = True
        self.state = CandidateState.STARTING

    def started(self, epoch: Epoch, now_s: float) -> None:
        self.state = CandidateState.ACTIVE
        self.reason = ""
        self.epoch = epoch
        self.turns += 1
        self._active_since_s = now_s

    def handing_over(self) -> None:
        self.state = CandidateState.HANDING_OVER

    def lets_go(self) -> None:
        """The process delivers nothing more, and gives the lease up."""
        self.has_lease = False

    def over(self, end: TurnEnd, reason: str, now_s: float) -> float | None:
        """The turn is over; return after how many seconds the next one begins, None if there is none."""
        self._leave_standby()
        self.state = CandidateState.PAUSING
        self.reason = reason
        self.epoch = None
        if now_s - self._active_since_s >= _STEADY_S:
            self._pause_s = _PAUSE_S_MIN
        self._active_since_s = inf
        match end:
            case TurnEnd.MISTAKEN:
                return None
            case TurnEnd.LEASE_LOST:
                # The wait for the lease is the pause.
                return 0.0
            case TurnEnd.REPLACED:
                # Whoever has replaced this one is not to be replaced at once.
                return max(self._lease_s, self._next_pause_s())
            case TurnEnd.FAILED:
                return self._next_pause_s()

    def next_turn(self) -> None:
        self.state = CandidateState.CONNECTING

    def _next_pause_s(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return pause_s
