"""What a replica does with a request: the storage side's rules, as `docs/replication.md` has them.

Each function is one atomic request, durable when it returns; None is a refusal. Only `fence` raises the fence, and
everything else demands that it be the sender's session.
"""

from __future__ import annotations

from polonaise.terms import NO_TRANSACTION

from .states import Replica, Told


def fence(replica: Replica, session: int) -> tuple[Replica, Told] | None:
    """Last-session-info. Appends that came before it are synced before it answers."""
    if session < replica.fence:
        return None
    replica = replica._replace(fence=session, unsynced=0)
    return replica, told(replica)


def told(replica: Replica) -> Told:
    return Told(replica.joined, replica.confirmed, replica.log, replica.lost)


def truncate(replica: Replica, session: int, last: int) -> Replica | None:
    if replica.fence != session:
        return None
    return replica._replace(log=replica.log[: last + 1])


def copy(replica: Replica, session: int, log: str) -> Replica | None:
    """Take the next batch of `log`; refused when it does not follow what is held here."""
    held = len(replica.log)
    if replica.fence != session or held >= len(log) or log[:held] != replica.log:
        return None
    return replica._replace(log=log[: held + 1])


def join(replica: Replica, session: int, log: str) -> Replica | None:
    """Become clean: the log is exactly this one. What may have been lost is certainly back."""
    if replica.fence != session or replica.log != log:
        return None
    return replica._replace(joined=session, lost=None)


def confirm(replica: Replica, session: int, low_water_mark: int) -> Replica | None:
    if replica.fence != session:
        return None
    return replica._replace(confirmed=max(replica.confirmed, low_water_mark))


def store(replica: Replica, session: int, log: str, batch: str) -> Replica | None:
    """Write a batch of a session that this replica has joined, after `log`."""
    if replica.fence != session or replica.joined != session or replica.log != log:
        return None
    return replica._replace(log=log + batch, unsynced=replica.unsynced + 1)


def sync(replica: Replica) -> Replica:
    return replica._replace(unsynced=0)


def crash(replica: Replica) -> Replica:
    """The torn tail above all evidence of sync is cut: "has not"."""
    return replica._replace(log=replica.log[: len(replica.log) - replica.unsynced], unsynced=0)


def rot(replica: Replica, last: int) -> Replica:
    """Bytes that were synced are bad above `last`: recorded, and not believed."""
    lost = last if replica.lost is None else min(last, replica.lost)
    return crash(replica)._replace(log=replica.log[: last + 1], lost=lost)


def wiped() -> Replica:
    return Replica()


def last_synced(replica: Replica) -> int:
    return len(replica.log) - replica.unsynced + NO_TRANSACTION
