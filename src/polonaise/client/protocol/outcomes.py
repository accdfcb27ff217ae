"""What a failed append means: the error that its receipt raises, and what a context's run does next."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from polonaise.client.protocol.outstanding import AppendFailure, Unordered
from polonaise.errors import (
    AppendExpired,
    AppendFailed,
    AppendUnknown,
    Closed,
    ExpectationFailed,
    InsufficientReplicas,
    LockConflict,
    MarkBeyondLog,
    Overloaded,
    PolonaiseError,
    ProducerDiffers,
    ProducerFenced,
    ProducerSequence,
    RegistersFull,
)
from polonaise.terms import FailureReason, PartitionId, TransactionId

RACES_AT_ONCE: Final = 8
"""So often a context may lose the race for its position before it pauses: a busy log is not asked without end."""


class Again(NamedTuple):
    """Run the context again."""

    after: TransactionId
    """Once this id is applied; -1 for no such condition."""
    pause: bool
    """And after a pause, because nothing says that it would go better at once."""


def next_step(failure: AppendFailure, position: TransactionId | None, races: int = 0) -> Again | None:
    """What the run of a context does after this failure; None to give up and raise.

    `position` is what the context demanded with `expect_position`: when that is what failed, the log has moved on and
    the context may succeed on newer state; `races` is how often that has happened to this run before. A register that
    is not as demanded is the caller's to judge.
    """
    reason, value, _ = failure
    if reason is FailureReason.LOCK_CONFLICT:
        return Again(value, pause=False)
    if reason is FailureReason.EXPECTATION_FAILED:
        overtaken = position is not None and position < value
        return Again(value - 1, pause=races >= RACES_AT_ONCE) if overtaken else None
    passing = (
        Unordered.PASSED_OVER,
        Unordered.UNTOLD,
        FailureReason.SESSION_ENDED,
        FailureReason.DEADLINE,
        FailureReason.OVERLOADED,
        FailureReason.GENERATION,
        FailureReason.INSUFFICIENT_REPLICAS,
    )
    return Again(-1, pause=True) if reason in passing else None


def error_of(failure: AppendFailure, partition: PartitionId, sequence: int, receipt: Any = None) -> PolonaiseError:
    """The error that tells an application of this failure. None of them leaves the fate open but `AppendUnknown`."""
    reason, value, cause = failure
    because = f"; what kept it: {cause}" if cause else ""
    which = f"append {sequence} to partition {partition}"
    match reason:
        case FailureReason.LOCK_CONFLICT:
            return LockConflict(f"{which} was built on stale state: apply {value} first, then build it anew", value)
        case FailureReason.EXPECTATION_FAILED:
            return ExpectationFailed(
                f"{which}: a register or the position is not as demanded; it would have got {value}"
            )
        case FailureReason.INSUFFICIENT_REPLICAS:
            return InsufficientReplicas(f"{which}: too few replicas are engaged; nothing was written{because}")
        case FailureReason.PRODUCER_FENCED:
            return ProducerFenced(f"{which}: the producer was opened by somebody else, in epoch {value}")
        case FailureReason.PRODUCER_GAP:
            return ProducerSequence(f"{which}: the producer's last number is {value}")
        case FailureReason.PRODUCER_DIFFERS:
            return ProducerDiffers(
                f"{which}: the producer appended another body or header under this number before, as {value}: "
                "append what is new under the next number, and repeat a number with the bytes of the first time",
                value,
            )
        case FailureReason.DEADLINE:
            return AppendExpired(f"{which} waited too long for its turn and was dropped{because}")
        case FailureReason.MARK_BEYOND_LOG:
            return MarkBeyondLog(
                f"{which} claims a client high-water mark that the log has not reached: it is committed up to {value}. "
                "Take the mark from what your view has applied, and build the append anew"
            )
        case FailureReason.OVERLOADED:
            return Overloaded(
                f"{which} was not taken: too many appends wait there; append it again in a while{because}"
            )
        case FailureReason.REGISTERS_FULL:
            return RegistersFull(f"{which}: the partition's registers are full; delete some")
        case Unordered.STOPPED:
            return Closed(f"{which} was not sent: the client was closed or the partition stopped")
        case Unordered.WITHDRAWN:
            return AppendExpired(f"{which} was withdrawn before it was sent")
        case Unordered.UNKNOWN:
            return AppendUnknown(f"{which} was sent and its fate is not known: look for it in the log", receipt)
        case _:
            return AppendFailed(
                f"{which} is not in the log and never will be ({reason.name.lower()}): append it again{because}"
            )
