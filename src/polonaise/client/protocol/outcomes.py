"""What a failed append leads to: the error that its receipt raises, and the next step of a context's run."""

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
    Overloaded,
    PolonaiseError,
    ProducerDiffers,
    ProducerFenced,
    ProducerSequence,
    RegistersFull,
    UnsupportedVersion,
    fault,
    fresh,
)
from polonaise.terms import FailureReason, PartitionId, TransactionId

RACES_AT_ONCE: Final = 8
"""The lost races for a demanded position after which a context runs again at once, and does not pause first."""


class Again(NamedTuple):
    """Run the context again."""

    after: TransactionId
    """The id that has to be applied before; -1 for none."""
    pause: bool
    """Whether to pause first: nothing says that the next run would succeed at once."""


def next_step(failure: AppendFailure, position: TransactionId | None, races: int = 0) -> Again | None:
    """Decide how the run of a context goes on after this failure: `Again`, or None to give up and raise. `position` is
    the id that the context demanded, if any, and `races` how often this run has lost such an id before."""
    reason, value, _ = failure
    if reason is FailureReason.LOCK_CONFLICT:
        return Again(value, pause=False)
    if reason is FailureReason.EXPECTATION_FAILED:
        # The failure's value is the id that the append would have got. Above the demanded id: the log has moved on, and
        # on newer state the context may demand the next one. Otherwise a register was not as demanded, or the id was
        # too high: running again would not change that, and the caller has to judge it.
        overtaken = position is not None and position < value
        return Again(value - 1, pause=races >= RACES_AT_ONCE) if overtaken else None
    # None of these says anything against the transaction itself, and each says that it is not in the log.
    passing = (
        Unordered.PASSED_OVER,
        Unordered.UNTOLD,
        FailureReason.SESSION_ENDED,
        FailureReason.DEADLINE,
        FailureReason.OVERLOADED,
        FailureReason.INSUFFICIENT_REPLICAS,
    )
    return Again(-1, pause=True) if reason in passing else None


def lacking(receipt: Any) -> str:
    """Return why the append was refused for want of replicas."""
    needs = getattr(receipt, "needs", None)
    if needs is None:
        return "the engaged replicas are fewer, or in fewer zones, than commits need"
    return f"it needs {needs}, and the replicas that are engaged at present are not as many"


def error_of(
    failure: AppendFailure,
    partition: PartitionId,
    sequence: int,
    receipt: Any = None,
    stopped: PolonaiseError | None = None,
) -> PolonaiseError:
    """Return the error that tells an application of this failure. Only `AppendUnknown` leaves the fate open. `stopped`
    is the error that stopped the partition: what was not sent because of it fails with one of its kind."""
    reason, value, cause = failure
    because = f"; what held it up: {cause}" if cause else ""
    which = f"append {sequence} to partition {partition}"
    match reason:
        case FailureReason.LOCK_CONFLICT:
            return LockConflict(
                f"{which} may have been built on stale state: apply transaction {value} first, then build the append "
                "anew",
                value,
            )
        case FailureReason.EXPECTATION_FAILED:
            return ExpectationFailed(
                f"{which}: a register or the position is not as demanded; the append would have got id {value}"
            )
        case FailureReason.INSUFFICIENT_REPLICAS:
            # What an append needs beyond its commit holds up nothing else: what is known to hold the partition up is
            # then no reason.
            reason_known = "" if getattr(receipt, "needs", None) else because
            return InsufficientReplicas(f"{which}: {lacking(receipt)}; nothing was written{reason_known}")
        case FailureReason.PRODUCER_FENCED:
            return ProducerFenced(
                f"{which}: the producer was opened again, in this process or another, and is in epoch {value}: "
                "only the one that was opened last may append"
            )
        case FailureReason.PRODUCER_GAP:
            return ProducerSequence(f"{which}: its number is neither next nor one of the last 16; the last is {value}")
        case FailureReason.PRODUCER_DIFFERS:
            return ProducerDiffers(
                f"{which}: the producer appended another body or header under this number before, "
                f"as transaction {value}: append new data under the next number, "
                "and repeat a number only with the bytes of the first time",
                value,
            )
        case FailureReason.DEADLINE:
            return AppendExpired(f"{which} waited too long at the owner to be ordered, and was dropped{because}")
        case FailureReason.MARK_BEYOND_LOG:
            return fault(
                "mark_beyond_log",
                f"{which} claims a client high-water mark that the log has not reached: it is committed up to {value}. "
                "Take the mark from what your view has applied, and build the append anew",
            )
        case FailureReason.OVERLOADED:
            return Overloaded(
                f"{which} was not taken: too many appends wait at the owner; append it again in a while{because}"
            )
        case FailureReason.REGISTERS_FULL:
            return RegistersFull(f"{which}: the partition's registers are full; delete some")
        case Unordered.NOT_KNOWN_THERE:
            return UnsupportedVersion(f"{which} is not in the log, and is not sent: {cause}")
        case Unordered.STOPPED if stopped is not None:
            same = fresh(stopped)
            same.args = (f"{which} was not sent: {stopped.text}", *stopped.args[1:])
            return same
        case Unordered.STOPPED:
            return Closed(f"{which} was not sent: {cause}")
        case Unordered.WITHDRAWN:
            return AppendExpired(f"{which} was withdrawn before it was sent")
        case Unordered.UNKNOWN:
            unheard = "and its fate is not known, because nothing more is heard"
            return AppendUnknown(f"{which} was sent, {unheard}: look for it in the log ({cause})", receipt)
        case _:
            return AppendFailed(
                f"{which} is not in the log and never will be ({reason.name.lower()}): append it again{because}"
            )
