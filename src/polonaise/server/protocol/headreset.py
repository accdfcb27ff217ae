"""The decisions of a session's start about resets of the log's head: what is cut, believed and recorded after them.

An operator resets the head of a partition when the replicas that could prove its end are lost for good. The decision
stays in the partition's value for ever, so that a lost replica that comes back later is cut and not believed
(`docs/decisions/0038-an-operator-resets-the-head.md`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from polonaise.coordination.values import HeadReset, PartitionValue
from polonaise.server.protocol import recovery
from polonaise.server.protocol.recovery import NOTHING_KNOWN, Contradiction, Decided, Known, ReplicaAnswer, Undecided
from polonaise.terms import NO_SESSION, NO_TRANSACTION, SessionId, StorageId, TransactionId

RESETS_MAX: Final = 100
"""The most resets of one partition."""


@dataclass(frozen=True, slots=True)
class CarryOut:
    """The outcome that the pending reset is to be carried out: the log ends at its id, as its source holds it."""

    reset: HeadReset


@dataclass(frozen=True, slots=True)
class Withheld:
    """The outcome that the pending reset must not be carried out as it was confirmed; an operator has to look again."""

    why: str


def no_batch_ends(reset: HeadReset, first: TransactionId, last: TransactionId) -> str:
    """Return why the head can't be reset to an id within the batch of the ids `first` to `last`, and to what it can."""
    return (
        f"the head can't be reset to {reset.to}: on {reset.source} no batch ends there, and batches are kept whole. "
        f"The ids {first} to {last} are one: choose --to {first - 1} or --to {last} with `polonaise partition "
        "reset-head`"
    )


def pending(value: PartitionValue) -> HeadReset | None:
    """Return the reset that no session has carried out yet; None if there is none."""
    return value.resets[-1] if value.resets and value.resets[-1].is_pending else None


def carried_out(value: PartitionValue) -> tuple[HeadReset, ...]:
    return tuple(reset for reset in value.resets if not reset.is_pending)


def carried_out_since(value: PartitionValue, session: SessionId) -> HeadReset | None:
    """Return the last reset that a later session than this one has carried out, if any."""
    done = carried_out(value)
    return done[-1] if done and NO_SESSION != session < done[-1].session else None


def cut_since(value: PartitionValue, answer: ReplicaAnswer) -> SessionId:
    """Return the session of the last reset for which this copy was not cut yet; NO_SESSION if there is none."""
    missed = [reset.session for reset in carried_out(value) if reset.session > answer.joined]
    return missed[-1] if missed else NO_SESSION


def must_be_cut(value: PartitionValue, answer: ReplicaAnswer, clean: TransactionId) -> bool:
    """Whether a copy must be cut even with nothing above `clean`: its marks speak of a log that a reset gave up."""
    return cut_since(value, answer) != NO_SESSION or (pending(value) is not None and answer.confirmed > clean)


def must_forget(value: PartitionValue, source: ReplicaAnswer, certain: TransactionId) -> bool:
    """Whether the source of a reset has to forget that what it holds above `certain` is surely the log's.

    An earlier reset, for which it was not cut, has given that up. Once it has joined a session nobody could tell any
    more, and the session may never be engaged, or the reset be withdrawn.
    """
    return cut_since(value, source) != NO_SESSION and source.confirmed > certain


def corrected(value: PartitionValue, answer: ReplicaAnswer) -> ReplicaAnswer:
    """Return a copy's answer without what resets have taken back.

    Its confirmed mark is lowered to the `certain` id of each reset for which it was not cut. A copy that was made clean
    for a reset that is begun and not carried out counts as one that took part in nothing.
    """
    answer = replace(answer, confirmed=still_confirmed(value, answer.joined, answer.confirmed))
    asked = pending(value)
    if asked is not None and NO_SESSION != asked.begun <= answer.joined:
        answer = replace(answer, joined=NO_SESSION)
    return answer


def still_confirmed(value: PartitionValue, joined: SessionId, confirmed: TransactionId) -> TransactionId:
    """Return what the resets for which a copy of session `joined` was not cut have left of its confirmed mark."""
    return min([confirmed, *(reset.certain for reset in carried_out(value) if reset.session > joined)])


def corrected_known(value: PartitionValue, known: Known) -> Known:
    """Return what the owner knows to be committed; nothing, if a reset has taken it back since."""
    missed = [reset for reset in carried_out(value) if reset.session > known.session]
    return NOTHING_KNOWN if any(known.committed > reset.certain for reset in missed) else known


def decide(
    value: PartitionValue, answers: Mapping[StorageId, ReplicaAnswer], known: Known
) -> Decided | Undecided | Contradiction | CarryOut | Withheld:
    """Decide where the log ends, with the resets that were carried out, and with the one that is pending.

    A pending reset never overrides what the replicas can prove, and is withdrawn if that ends the log elsewhere. And it
    gives up no more than its operator was shown.
    """
    known = corrected_known(value, known)
    # A copy of a later session than any that was given out shows that the coordinator itself was put back: fences and
    # resets can't be believed then.
    if any(answer.joined > value.session for answer in answers.values()):
        return recovery.decide(value, answers, known)
    answers = {name: corrected(value, answer) for name, answer in answers.items()}
    normal = recovery.decide(value, answers, known)
    reset = pending(value)
    if reset is None:
        return normal
    if isinstance(normal, Decided):  # proved by the replicas: nobody's word is needed
        return normal
    held = answers.get(reset.source)
    if held is None:
        return Undecided((reset.source,), 1, of_reset=True)
    most, holder = known.committed, "this server"
    for name, answer in answers.items():
        if max(answer.max_synced, answer.confirmed) > most:
            most, holder = max(answer.max_synced, answer.confirmed), name
    # It would be given up without the operator having seen it.
    if most > reset.known:
        return Withheld(
            f"the reset of the head to {reset.to} was confirmed when ids up to {reset.known} were known, and {holder} "
            f"knows of {most} now: repeat `polonaise partition reset-head` to see what would be lost"
        )
    end = held.max_synced if held.lost_above is None else min(held.max_synced, held.lost_above)
    if reset.to > end:
        return Withheld(
            f"the head can't be reset to {reset.to}: {reset.source} holds ids up to {end}; choose one of these with "
            "`polonaise partition reset-head`"
        )
    return CarryOut(reset)


def begun(value: PartitionValue, certain: TransactionId) -> PartitionValue:
    """Return the value with its pending reset begun, to be written before a copy is cut for it.

    From then on copies lack what they may have held, and prove nothing any more, even if another decision replaces this
    one. `certain` is what the source of the reset can share with other copies.
    """
    reset = value.resets[-1]
    if reset.begun == NO_SESSION:
        reset = replace(reset, begun=value.session, certain=certain)
    return replace(value, resets=(*value.resets[:-1], replace(reset, certain=min(reset.certain, certain))))


def certain_of(value: PartitionValue, reset: HeadReset, source: ReplicaAnswer) -> TransactionId:
    """Return the last id that copies can share with a reset's source: confirmed to it, and not given up."""
    shared = min(corrected(value, source).confirmed, reset.to)
    return shared if reset.begun == NO_SESSION else min(shared, reset.certain)


def is_confirmed_at(reset: HeadReset | None, decided: Decided) -> bool:
    """Whether a session that starts with this decision carries out the pending reset: also if replicas prove the same
    end.
    """
    return reset is not None and decided.closing == reset.to


def clean_to(
    value: PartitionValue,
    name: StorageId,
    answer: ReplicaAnswer,
    closing: TransactionId,
    carrying: HeadReset | None = None,
    certain: TransactionId = NO_TRANSACTION,
) -> TransactionId:
    """Return the id up to which this copy is certainly the log (`recovery.clean_to`), with every reset considered.

    `carrying` is the reset that this session carries out, and `certain` what its source can share with others.
    """
    clean = recovery.clean_to(value, name, corrected(value, answer), closing)
    if carrying is None:
        return clean
    return min(carrying.to, answer.max_synced) if name == carrying.source else min(clean, certain)


def engaged(
    value: PartitionValue, clean: Collection[StorageId], carried: HeadReset | None, certain: TransactionId
) -> PartitionValue:
    """Return an engaged value with its pending reset carried out in its session, or withdrawn if `carried` is None."""
    if pending(value) is None:
        return value
    done, asked = carried_out(value), value.resets[-1]
    if asked.begun != NO_SESSION:
        certain = min(certain, asked.certain)
    elif carried is None:
        return replace(value, resets=done)
    # Copies that were not cut may hold what the reset gives up: they are cut there when they come back.
    engagements = {
        name: engagement if name in clean else replace(engagement, closing=min(engagement.closing, certain))
        for name, engagement in value.engagements.items()
    }
    if carried is None:
        return replace(value, engagements=engagements, resets=done)
    reset = replace(carried, session=value.session, certain=certain, begun=NO_SESSION)
    return replace(value, engagements=engagements, resets=(*done, reset))


def unrecorded(value: PartitionValue, closing: TransactionId) -> HeadReset | None:
    """Return the reset whose record is to be the next transaction: the log ends exactly where that one ended it."""
    done = carried_out(value)
    return done[-1] if done and done[-1].to == closing else None


def record(value: PartitionValue, reset: HeadReset) -> bytes:
    """Return the body of the transaction that tells of a reset, and of earlier ones whose records it has given up."""
    earlier = [each for each in carried_out(value) if each.session < reset.session and each.to >= reset.to]
    return json.dumps({**_document(reset), "earlier": [_document(each) for each in earlier]}).encode()


def _document(reset: HeadReset) -> dict[str, object]:
    return {
        "to": reset.to,
        "given_up": [reset.to + 1, reset.known] if reset.known > reset.to else [],
        "source": reset.source,
        "session": reset.session,
        "asked_us": reset.asked_us,
    }
