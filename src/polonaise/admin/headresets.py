"""Reset the head of a partition's log, whose end the replicas that are left can't prove any more.

The decision is the operator's. The partition's owner carries it out when it starts its next session, and writes it into
the log as a transaction of the library's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

from polonaise.admin.asking import answered, ask_health, connected, health_of, server_said
from polonaise.coordination import Coordinator
from polonaise.coordination.values import HeadReset, Owner, PartitionValue, Versioned
from polonaise.errors import (
    CoordinatorOutdated,
    CoordinatorUnavailable,
    DeadlineExceeded,
    HeadNotReset,
    HistoryTrimmed,
    PolonaiseError,
    StoreUnavailable,
)
from polonaise.fragments.protocol.coverage import may_be_only_copy
from polonaise.host import Host
from polonaise.server.protocol.headreset import RESETS_MAX, carried_out, no_batch_ends, still_confirmed
from polonaise.terms import NO_SESSION, NO_TRANSACTION, PartitionId, SessionId, StorageId, TransactionId
from polonaise.wire.messages import (
    BATCHES_VERSION,
    ROLE_OPERATOR,
    ROLE_SERVER,
    ROLE_STORAGE,
    BatchFound,
    FindBatch,
)

_TURNS_MAX: Final = 16
_ANSWER_S: Final = 5.0
"""The longest that one answer is waited for while a reset is, in seconds."""
_LOOK_S: Final = 0.2


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """What one replica told the partition's owner about its copy, and whether it took part in the last session."""

    name: StorageId
    last: TransactionId
    """The last id that it holds and that can be believed; NO_TRANSACTION for none."""
    confirmed: TransactionId
    """The id up to which an owner has told it that its copy is the log, and no reset has given that up since."""
    joined: SessionId
    """The last session that it was made clean for; NO_SESSION for none."""
    took_part: bool
    """Whether it took part in the last session until that ended, as far as the coordinator knows."""

    @property
    def proved(self) -> TransactionId:
        """The id up to which the copy is not in doubt by itself: what lies above may never have been the log."""
        return self.last if self.took_part else min(self.last, self.confirmed)


@dataclass(frozen=True, slots=True)
class HeadState:
    """Everything that is known about the end of a partition that is not open."""

    partition: PartitionId
    waits_for: str
    """Why the partition is not open."""
    copies: Sequence[HeldCopy]
    """What each replica holds that has answered and is still connected."""
    silent: Sequence[StorageId]
    """The members that have not answered, or are gone since."""
    known: TransactionId
    """The highest id of which the owner or any replica knows, or knew before it went."""
    value: PartitionValue
    version: int
    store: str = ""
    """The address of the fragment store that the owner uses, without secrets; empty without one."""
    archived: TransactionId = NO_TRANSACTION
    """The highest id in that store, if it was seen from here; NO_TRANSACTION for none."""

    @property
    def held(self) -> TransactionId:
        """The highest id that any of these replicas holds."""
        return max(copy.last for copy in self.copies)

    @property
    def only_archived(self) -> str:
        """What an operator has to know of ids that the store holds and no such replica; empty if none."""
        if self.archived <= self.held:
            return ""
        return may_be_only_copy(self.store, self.partition, self.held + 1, self.archived)

    def document(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "waits_for": self.waits_for,
            "copies": [{**asdict(copy), "proved": copy.proved} for copy in self.copies],
            "silent": list(self.silent),
            "known": self.known,
            "archived": self.archived,
        }


@dataclass(frozen=True, slots=True)
class HeadOutcome:
    """The outcome of a reset that was asked for."""

    carried_out: bool
    """Else the replicas that came back could prove the end of the log, and their proof counts."""
    committed: TransactionId
    """The committed high-water mark of the partition now, which counts the record of a reset."""


async def head_state(host: Host, coordinator: Coordinator, partition: PartitionId, timeout_s: float) -> HeadState:
    """Return what is known about the end of a partition, as its owner tells it.

    Raises `HeadNotReset` while the partition is open, and while no owner tells what the replicas hold;
    `CoordinatorOutdated` while it waits for the coordinator's latest state; `UnknownPartition`, and
    `CoordinatorUnavailable` without an answer within `timeout_s` seconds.
    """
    # Before the owner is asked: a session that starts after this read changes the version.
    current, owner, key = await answered(coordinator, _kept(coordinator, partition), timeout_s)
    if owner is None:
        raise HeadNotReset(
            f"partition {partition} has no owner: start a server, which finds out what the replicas hold"
        )
    told = await ask_health(host, owner.address, ROLE_SERVER, key, timeout_s)
    health = health_of(told, partition)
    if health is None:
        why = "does not serve it yet" if isinstance(told, dict) else f"does not answer: {told}"
        said = await server_said(coordinator, owner.server, timeout_s)
        raise HeadNotReset(f"the owner of partition {partition}, server {said}, {why}; restart it if need be")
    if health["session"] is not None:
        raise HeadNotReset(
            f"partition {partition} is open in session {health['session']}, and its owner knows where its log ends: "
            "there is nothing to reset"
        )
    held = health.get("held", {})
    if health.get("coordinator_outdated"):
        raise CoordinatorOutdated(f"a reset of the head does not help. {health['waits_for']}")
    if not held:
        raise HeadNotReset(
            f"no replica of partition {partition} has told its owner what it holds: start the storage nodes that are "
            f"left ({health['waits_for']})"
        )
    copies = [_copy(name, current.value, answer) for name, answer in sorted(held.items())]
    # Also what those knew that are gone since: it is given up just so.
    before = max(int(health["committed"]), int(health.get("known", NO_TRANSACTION)))
    known = max(before, *(max(a["last"], a["confirmed"]) for a in held.values()))
    silent = [name for name in current.value.members if name not in held]
    store = told.get("fragments", "") if isinstance(told, dict) else ""
    return HeadState(partition, health["waits_for"], copies, silent, known, current.value, current.version, store)


async def _kept(
    coordinator: Coordinator, partition: PartitionId
) -> tuple[Versioned[PartitionValue], Owner | None, bytes]:
    current = await coordinator.partition(partition)
    owner = (await coordinator.assignment()).value.owner_of(partition)
    return current, owner, (await coordinator.describe()).key


def _copy(name: StorageId, value: PartitionValue, answer: dict[str, Any]) -> HeldCopy:
    engagement, lost = value.engagements.get(name), answer["lost_above"]
    last = answer["last"] if lost is None else min(answer["last"], lost)
    took_part = engagement is not None and engagement.unresolved and answer["joined"] >= engagement.session
    # One that was made clean for a reset that was not carried out yet took part in nothing that was engaged.
    if value.resets and NO_SESSION != value.resets[-1].begun <= answer["joined"]:
        took_part = False
    confirmed = still_confirmed(value, answer["joined"], answer["confirmed"])
    return HeldCopy(name, last, confirmed, answer["joined"], took_part)


def decision(state: HeadState, to: TransactionId, source: StorageId | None, asked_us: int) -> HeadReset:
    """Return the reset to `to`, from the copy of `source` or else from the one that is least in doubt.

    Raises `HeadNotReset` for an id below -1, a `source` that has not answered, an id that it lacks or that, without
    one, is in doubt or missing everywhere, and once `RESETS_MAX` resets were carried out.
    """
    if to < NO_TRANSACTION:
        raise HeadNotReset(f"the head can't be reset to {to}: give the id of a transaction, or -1 for an empty log")
    named = {copy.name: copy for copy in state.copies}
    if source is not None:
        if source not in named:
            raise HeadNotReset(f"{source} has not told what it holds; those that have are {', '.join(named)}")
        if to > named[source].last:
            raise HeadNotReset(f"{source} holds ids up to {named[source].last}, and not {to}{_not_from_store(state)}")
    else:
        proving = [copy for copy in state.copies if copy.proved >= to]
        if not proving:
            doubtful = [f"{copy.name} (up to {copy.last})" for copy in state.copies if copy.last >= to]
            raise HeadNotReset(
                f"{to} is held by {' and '.join(doubtful)}, where it may be of a session that was decided without that "
                "copy: to take it for the log nevertheless, name the copy with --from"
                if doubtful
                else f"no replica that has answered holds {to}; the highest id is {state.held}{_not_from_store(state)}"
            )
        source = max(proving, key=lambda copy: (copy.took_part, copy.confirmed, copy.joined)).name
    if len(carried_out(state.value)) >= RESETS_MAX:
        raise HeadNotReset(
            f"the head of partition {state.partition} was reset {RESETS_MAX} times, the most that the "
            "coordinator can record: restore the log from its fragments (polonaise archive restore)"
        )
    reset = HeadReset(to, source, max(state.known, to), asked_us)
    asked = state.value.resets[-1] if state.value.resets else None
    if asked is None or not asked.is_pending or asked.begun == NO_SESSION:
        return reset
    # Copies were cut for it already, so what its operator was shown is given up as well.
    return replace(reset, known=max(reset.known, asked.known), begun=asked.begun, certain=asked.certain)


def _not_from_store(state: HeadState) -> str:
    return f". A reset takes nothing from the store. {state.only_archived}" if state.only_archived else ""


async def check_end(host: Host, coordinator: Coordinator, state: HeadState, reset: HeadReset, timeout_s: float) -> None:
    """Ask the storage node of the reset's source whether a batch ends at its id. Raises `HeadNotReset` if none does.

    A node that does not answer within `timeout_s` seconds keeps nobody from deciding: the owner looks, too. Raises
    `CoordinatorUnavailable`.
    """
    if reset.to == NO_TRANSACTION:
        return
    cluster = await answered(coordinator, coordinator.describe(), timeout_s)
    address = cluster.address_of(reset.source)
    try:
        async with connected(host, address, ROLE_STORAGE, ROLE_OPERATOR, cluster.key, timeout_s) as connection:
            if connection.peer.version_max < BATCHES_VERSION:
                return
            asked = FindBatch(reset.to)
            found = await connection.request(asked, partition=state.partition, deadline_s=timeout_s)
    except HistoryTrimmed as error:
        raise HeadNotReset(
            f"the head can't be reset to {reset.to} by the copy on {reset.source}, as {error.text}; nothing was changed"
        ) from error
    except PolonaiseError:
        return
    if isinstance(found, BatchFound) and found.first <= reset.to < found.last:
        raise HeadNotReset(f"{no_batch_ends(reset, found.first, found.last)}. Nothing was changed")


async def with_archived(
    coordinator: Coordinator, states: Sequence[HeadState], timeout_s: float
) -> tuple[list[HeadState], list[str]]:
    """Return these states with how far the fragments of their partitions reach, and why that is not known of some.

    A store that can't be read within `timeout_s` seconds keeps nobody from deciding. Raises `CoordinatorUnavailable`.
    """
    if not any(state.store for state in states):
        return list(states), []
    key = (await answered(coordinator, coordinator.describe(), timeout_s)).key

    async def looked(state: HeadState) -> HeadState:
        if not state.store:
            return state
        try:
            async with asyncio.timeout(timeout_s):
                return replace(state, archived=await _reach(state.store, key, state.partition))
        except TimeoutError as error:
            raise StoreUnavailable(f"{state.store} did not answer within {timeout_s:g} s") from error

    found = await _each(states, looked)
    seen = [each if isinstance(each, HeadState) else state for state, each in zip(states, found, strict=True)]
    return seen, sorted({each.text for each in found if isinstance(each, PolonaiseError)})


def check_archived(decided: Sequence[tuple[HeadState, HeadReset]]) -> None:
    """Raise `HeadNotReset` if fragments of these partitions reach above the ids to which they are to be reset."""
    above = [
        f"the fragments of partition {state.partition} in {state.store} reach up to {state.archived}, and its head is "
        f"to be reset to {reset.to}. {may_be_only_copy(state.store, state.partition, reset.to + 1, state.archived)}. "
        "To give them up, so that other transactions get these ids, first cut them off in the store: polonaise "
        f"archive cut {state.store} {state.partition}={reset.to}"
        for state, reset in decided
        if state.archived > reset.to
    ]
    if above:
        raise HeadNotReset(f"{'; '.join(above)}. Nothing was changed")


async def _reach(address: str, key: bytes, partition: PartitionId) -> TransactionId:
    """Return the highest id of a partition in a store, or -1. Raises `StoreUnavailable` for one that is not there."""
    try:
        from polonaise.fragments.mark import is_marked
        from polonaise.fragments.objects import fragments_of
        from polonaise.fragments.store import open_store
    except ImportError as error:
        raise StoreUnavailable(f"what reads {address} is not installed here ({error})") from error
    store = open_store(address, make=False)
    if not await is_marked(store, key):
        raise StoreUnavailable(f"{address} has no mark of this cluster, seen from here")
    return max((name.last for name in await fragments_of(store, partition)), default=NO_TRANSACTION)


async def ask_reset(coordinator: Coordinator, state: HeadState, reset: HeadReset, timeout_s: float) -> None:
    """Write the decision for the partition's owner, in the place of one not carried out yet; the same changes nothing.

    Raises `HeadNotReset` if the partition's value was changed since `state` was read, and `CoordinatorUnavailable`
    without an answer within `timeout_s` seconds: the decision may have been written then.
    """
    value = state.value
    asked = value.resets[-1] if value.resets else None
    if asked is not None and asked.is_pending and asked == replace(reset, asked_us=asked.asked_us):
        return
    changed = replace(value, resets=(*carried_out(value), reset))
    await coordinator.ask_first()
    writing = coordinator.set_partition(state.partition, changed, state.version)
    unsure = "; the decision may have been written, and is then carried out: repeat the command, and look again"
    if await answered(coordinator, writing, timeout_s, unsure) is None:
        raise HeadNotReset(
            f"partition {state.partition} has changed since its copies were shown: repeat the command, and look again"
        )


async def await_reset(
    host: Host, coordinator: Coordinator, state: HeadState, reset: HeadReset, timeout_s: float
) -> HeadOutcome:
    """Wait until the decision was carried out and is recorded in the log, or was withdrawn.

    Raises `DeadlineExceeded` after `timeout_s` seconds: the decision stays. Raises `HeadNotReset` when another one was
    carried out in its place.
    """
    why = ""
    until_s = host.clock.monotonic_s() + timeout_s
    done = len(carried_out(state.value))
    while (left_s := until_s - host.clock.monotonic_s()) > 0:
        # Who was given less than that may well answer: then what was told before is what keeps the reset.
        asked_s = min(left_s, _ANSWER_S)
        try:
            current, owner, key = await answered(coordinator, _kept(coordinator, state.partition), asked_s)
        except CoordinatorUnavailable:
            if asked_s == _ANSWER_S:
                why = "the coordinator does not answer"
            await asyncio.sleep(_LOOK_S)
            continue
        told = await ask_health(host, owner.address, ROLE_SERVER, key, asked_s) if owner is not None else None
        if owner is not None and isinstance(told, PolonaiseError) and until_s - host.clock.monotonic_s() < _LOOK_S:
            why = why or f"its owner, server {owner.server}, does not answer"
            break
        health = health_of(told, state.partition)
        resets = current.value.resets
        if owner is None:
            why = "the partition has no owner: start a server"
        elif health is None:
            trouble = "does not serve it yet" if isinstance(told, dict) else f"does not answer: {told}"
            why = f"its owner, server {owner.server}, {trouble}"
        else:
            why = health["waits_for"]
            if health["session"] is not None and len(resets) == done:
                return HeadOutcome(False, health["committed"])
            if health["session"] is not None and len(resets) > done and not resets[done].is_pending:
                _check_same(state, reset, resets[done])
                if health["committed"] > reset.to:
                    return HeadOutcome(True, health["committed"])
        await asyncio.sleep(_LOOK_S)
    raise DeadlineExceeded(
        f"the reset of partition {state.partition} to {reset.to} was written down, and not carried out within "
        f"{timeout_s:g} s. The partition's owner goes on trying until it is, or until another reset-head replaces it. "
        f"What keeps it: {why or 'its owner has not looked yet'}"
    )


def _check_same(state: HeadState, asked: HeadReset, done: HeadReset) -> None:
    if (asked.to, asked.source, asked.known) != (done.to, done.source, done.known):
        raise HeadNotReset(
            f"the reset of partition {state.partition} to {asked.to} was not carried out: another operator has "
            f"replaced it, and the log goes on from {done.to}, as {done.source} held it"
        )


async def head_states(
    host: Host,
    coordinator: Coordinator,
    partitions: Sequence[PartitionId] | None,
    source: StorageId | None,
    timeout_s: float,
) -> list[HeadState]:
    """Return what is known about the end of each of these partitions.

    With None for `partitions`, of all that are not open and, given `source`, of which it has a copy. Raises
    `HeadNotReset` for those whose head can't be reset, or if there is none at all, and what `head_state` raises.
    """
    named = partitions is not None
    if partitions is None:
        partitions = range((await answered(coordinator, coordinator.describe(), timeout_s)).total)
    found = await _each(partitions, lambda each: head_state(host, coordinator, each, timeout_s))
    states = [each for each in found if isinstance(each, HeadState)]
    errors = [each for each in found if isinstance(each, PolonaiseError)]
    if unexpected := next((each for each in errors if not isinstance(each, HeadNotReset)), None):
        raise unexpected
    if named and errors:
        raise HeadNotReset(f"{'; '.join(each.text for each in errors)}. Nothing was changed")
    if not named and source is not None:
        states = [each for each in states if source in [copy.name for copy in each.copies]]
    if not states:
        whose = f" of which {source} has told what it holds" if source is not None else ""
        raise HeadNotReset(f"there is no partition{whose} whose head is to be reset: all are open, or nobody tells")
    return states


def decisions_from(states: Sequence[HeadState], source: StorageId, asked_us: int) -> list[tuple[HeadState, HeadReset]]:
    """Return for each partition the reset to where the copy of `source` ends.

    Raises what `decision` raises, and `HeadNotReset` if that copy is empty, and the log was not.
    """
    decided = []
    for state in states:
        to = next((copy.last for copy in state.copies if copy.name == source), NO_TRANSACTION)
        reset = decision(state, to, source, asked_us)
        # A node that was wiped, named by mistake, would empty all of them.
        if to == NO_TRANSACTION != state.known:
            raise HeadNotReset(
                f"the copy of partition {state.partition} on {source} is empty, and the log was not: nothing was "
                "changed. Only one partition at a time is emptied, with --to -1"
            )
        decided.append((state, reset))
    return decided


async def reset_heads(
    host: Host, coordinator: Coordinator, decided: Sequence[tuple[HeadState, HeadReset]], timeout_s: float
) -> list[HeadOutcome | PolonaiseError]:
    """Ask for these resets and wait until each was carried out; return for each its outcome, or why it was not."""
    # All are asked for before any is waited for: one that waits for a node must not hold up the others.
    asked = await _each(decided, lambda one: ask_reset(coordinator, one[0], one[1], timeout_s))
    waited = [one for one, error in zip(decided, asked, strict=True) if error is None]
    outcomes = iter(await _each(waited, lambda one: await_reset(host, coordinator, one[0], one[1], timeout_s)))
    return [next(outcomes) if error is None else error for error in asked]


async def _each(items: Sequence[Any], do: Callable[[Any], Awaitable[_Found]]) -> list[_Found | PolonaiseError]:
    """Return for each item what `do` returned, or the error that it raised; a few are under way at the same time."""
    turns = asyncio.Semaphore(_TURNS_MAX)

    async def one(item: Any) -> _Found | PolonaiseError:
        async with turns:
            try:
                return await do(item)
            except PolonaiseError as error:
                return error

    return list(await asyncio.gather(*map(one, items)))
