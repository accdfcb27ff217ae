"""What a replica does with a request: production's decisions, carried out on a disk that is a value.

Each request is one atomic step, durable when it is answered; None is a refusal. `StoreBatches` and `Cut` behave as
`log.partition.PartitionLog` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from polonaise.log.control import Promises
from polonaise.terms import NO_TRANSACTION, UNRESOLVED
from polonaise_proving.model.asked import crc
from polonaise_proving.model.states import ModelReplica, ModelTold
from polonaise_proving.model.walk import Broken


class _Batch(NamedTuple):
    """What production looks at when it is given a batch to keep."""

    first: int
    last: int
    crc: int
    previous_crc: int
    letter: str


class Storage:
    """The requests of a server to a replica, each decided by `storage.protocol.replica`."""

    def __init__(self, replica: ModuleType) -> None:
        self._module = replica
        self.fence = cache(self._fence)
        self.truncate = cache(self._truncate)
        self.copy = cache(self._copy)
        self.join = cache(self._join)
        self.confirm = cache(self._confirm)
        self.store = cache(self._store)
        self.may_read = cache(self._may_read)

    def _fence(self, held: ModelReplica, session: int) -> tuple[ModelReplica, ModelTold] | None:
        """Last-session-info. Appends that came before it are synced before it answers."""
        held = held._replace(unsynced=0)
        after = _carry_out(held, self._of(held).fence(session))
        return None if after is None else (after, told(after))

    def _truncate(self, held: ModelReplica, session: int, last: int) -> ModelReplica | None:
        return _carry_out(held, self._of(held).truncate(session, last))

    def _copy(self, held: ModelReplica, session: int, log: str) -> ModelReplica | None:
        """Take the batch of `log` that is asked for next: the one after the end of what is held."""
        if len(held.log) >= len(log):
            return None
        return _carry_out(held, self._of(held).copy(session, [_batch(log, len(held.log))]))

    def _join(self, held: ModelReplica, session: int, log: str) -> ModelReplica | None:
        return _carry_out(held, self._of(held).join(session, session, len(log) - 1, crc(log)))

    def _confirm(self, held: ModelReplica, session: int, low_water_mark: int) -> ModelReplica | None:
        return _carry_out(held, self._of(held).confirm(session, low_water_mark))

    def _store(self, held: ModelReplica, session: int, log: str) -> ModelReplica | None:
        """Write the last batch of `log` for a session that it has joined on the connection this comes on.

        What it joined on is its only memory that is not on disk: to restore it, it is told to join once more.
        """
        replica = self._of(held._replace(fence=session, untrusted=None))
        if held.joined == session:
            replica.join(session, session, len(held.log) - 1, crc(held.log))
        replica.promises = _promises(held)
        batch = _batch(log, len(log) - 1)
        request = self._module.StoreRequest(session, session, 1, [batch])
        after = _carry_out(held, replica.store([request]))
        return None if after is None else after._replace(unsynced=held.unsynced + len(after.log) - len(held.log))

    def _may_read(self, held: ModelReplica, session: int) -> bool:
        return self._of(held).refusal(session) is None

    def _of(self, held: ModelReplica) -> Any:
        """The replica as one that was asked for its last session in this life: the freest to act."""
        replica = self._module.Replica(_promises(held), len(held.log) - 1, crc(held.log))
        replica.fence(held.fence)
        return replica


def _promises(held: ModelReplica) -> Promises:
    return Promises(
        fence=held.fence,
        joined=held.joined,
        prepared=held.prepared,
        confirmed=held.confirmed,
        lost_above=UNRESOLVED if held.lost is None else held.lost,
        untrusted_above=UNRESOLVED if held.untrusted is None else held.untrusted,
    )


def _carry_out(held: ModelReplica, actions: Iterable[object]) -> ModelReplica | None:
    acknowledged = False
    for action in actions:
        match type(action).__name__:
            case "Refuse":
                return None
            case "Save":
                held = _saved(held, action.promises)  # type: ignore[attr-defined]
            case "Cut":
                held = held._replace(log=held.log[: action.last + 1], untrusted=None)  # type: ignore[attr-defined]
            case "StoreBatches":
                if acknowledged:
                    raise Broken("a batch is acknowledged before it is written")
                for batch in action.batches:  # type: ignore[attr-defined]
                    if (
                        held.untrusted is not None
                        or batch.first != len(held.log)
                        or batch.previous_crc != crc(held.log)
                    ):
                        return None
                    held = held._replace(log=held.log + batch.letter)
            case "Acknowledge":
                acknowledged = True
    return held


def _saved(held: ModelReplica, promises: Promises) -> ModelReplica:
    return held._replace(
        fence=promises.fence,
        joined=promises.joined,
        prepared=promises.prepared,
        confirmed=promises.confirmed,
        lost=promises.lost_above if promises.may_have_lost else None,
        untrusted=promises.untrusted_above if promises.untrusted else None,
    )


def _batch(log: str, place: int) -> _Batch:
    return _Batch(place, place, crc(log[: place + 1]), crc(log[:place]), log[place])


def told(held: ModelReplica) -> ModelTold:
    return ModelTold(held.joined, held.prepared, held.confirmed, held.log, held.lost)


def sync(held: ModelReplica) -> ModelReplica:
    return held._replace(unsynced=0)


def crash(held: ModelReplica) -> ModelReplica:
    """The torn tail above all evidence of sync is cut: "has not"."""
    return held._replace(log=held.log[: len(held.log) - held.unsynced], unsynced=0)


def rot(held: ModelReplica, last: int) -> ModelReplica:
    """Bytes that were synced are bad above `last`: recorded, and not believed until they have been cut."""
    return _saved(held._replace(log=held.log[: last + 1], unsynced=0), _promises(held).lost(last))


def failed_sync(held: ModelReplica) -> ModelReplica:
    """Some of the bytes may be on the disk, and all of them in the cache: none is believed. None was acknowledged."""
    return _saved(crash(held), _promises(held).distrusted(last_synced(held)))


def wiped() -> ModelReplica:
    return ModelReplica()


def last_synced(held: ModelReplica) -> int:
    return len(held.log) - held.unsynced + NO_TRANSACTION
