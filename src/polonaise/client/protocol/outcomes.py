"""What a failed append means: the error that its receipt raises, and what a context's run does next."""

from __future__ import annotations

from typing import Any, NamedTuple

from polonaise.client.protocol.outstanding import Failure, Unordered
from polonaise.errors import (
    AppendExpired,
    AppendFailed,
    AppendUnknown,
    Closed,
    ExpectationFailed,
    InsufficientReplicas,
    LockConflict,
    PolonaiseError,
    ProducerFenced,
    ProducerSequence,
    RegistersFull,
)
from polonaise.terms import FailureReason, PartitionId, TransactionId


class Again(NamedTuple):
    """Run the context again."""

    after: TransactionId
    """Once this id is applied; -1 for no such condition."""
    pause: bool
    """And after a pause, because nothing says that it would go better at once."""


def next_step(failure: Failure, position: TransactionId | None) -> Again | None:
    """What the run of a context does after this failure; None to give up and raise.

    `position` is what the context demanded with `expect_position`: when that is what failed, the log has moved on and
    the context may succeed on newer state. A register that is not as demanded is the caller's to judge.
    """
    reason, value = failure
    if reason is FailureReason.LOCK_CONFLICT:
        return Again(value, pause=False)
    if reason is FailureReason.EXPECTATION_FAILED:
        return Again(value - 1, pause=False) if position is not None and position < value else None
    passing = (
        Unordered.PASSED_OVER,
        FailureReason.SESSION_ENDED,
        FailureReason.DEADLINE,
        FailureReason.GENERATION,
        FailureReason.INSUFFICIENT_REPLICAS,
    )
    return Again(-1, pause=True) if reason in passing else None


def error_of(failure: Failure, partition: PartitionId, sequence: int, receipt: Any = None) -> PolonaiseError:
    """The error that tells an application of this failure. None of them leaves the fate open but `AppendUnknown`."""
    reason, value = failure
    which = f"append {sequence} to partition {partition}"
    match reason:
        case FailureReason.LOCK_CONFLICT:
            return LockConflict(f"{which} was built on stale state: apply {value} first, then build it anew", value)
        case FailureReason.EXPECTATION_FAILED:
            return ExpectationFailed(
                f"{which}: a register or the position is not as demanded; it would have got {value}"
            )
        case FailureReason.INSUFFICIENT_REPLICAS:
            return InsufficientReplicas(f"{which}: too few replicas are engaged; nothing was written")
        case FailureReason.PRODUCER_FENCED:
            return ProducerFenced(f"{which}: the producer was opened by somebody else, in epoch {value}")
        case FailureReason.PRODUCER_GAP:
            return ProducerSequence(f"{which}: the producer's last number is {value}")
        case FailureReason.DEADLINE:
            return AppendExpired(f"{which} waited too long for its turn and was dropped")
        case FailureReason.REGISTERS_FULL:
            return RegistersFull(f"{which}: the partition's registers are full; delete some")
        case Unordered.STOPPED:
            return Closed(f"{which} was not sent: the client was closed or the partition stopped")
        case Unordered.WITHDRAWN:
            return AppendExpired(f"{which} was withdrawn before it was sent")
        case Unordered.UNKNOWN:
            return AppendUnknown(f"{which} was sent and its fate is not known: look for it in the log", receipt)
        case _:
            return AppendFailed(f"{which} is not in the log and never will be ({reason.name.lower()}): append it again")
