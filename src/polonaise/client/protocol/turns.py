"""The order in which contexts run that want the same locks, once some of them have met a conflict.

Optimistic contexts that all change one thing mostly run in vain: of those that run at the same time one commits. So
whoever was refused, or would be, takes a turn: within a client one after the other, first come first served, each
behind the fate of the one before; between clients in a round, where who has committed lets those go first whose commits
have refused it before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from polonaise.terms import NO_TRANSACTION, ClientId, LockMode, TransactionId

_QUEUES_MAX: Final = 1_024
"""Locks that nobody waits for are remembered for their rivals, so many of them."""
_FED_MAX: Final = 65_536
"""Transactions of which is remembered who wrote them."""
_ROUND_S: Final = 0.005
"""How long one turn takes, before any was measured."""
_PATIENCE: Final = 4.0
"""A rival is waited for as long as so many turns take."""
_MISSES_MAX: Final = 3
"""One that has not come so often, one after the other, is no rival any more."""
_PATIENCE_S_MAX: Final = 0.5
# Members of an enum are slow to get at, and every context's locks are looked at.
_APPEND: Final = int(LockMode.APPEND)
_WRITE: Final = int(LockMode.WRITE)


class Turn:
    """One context's place in the queues of its locks; granted once it is at the front of all of them."""

    __slots__ = ("_lacking", "_locks", "waiter")

    def __init__(self, locks: dict[bytes, bool]) -> None:
        self._locks = locks
        """By the hash of each lock that is checked, whether it is changed as well."""
        self._lacking = len(locks)
        self.waiter: Any = None
        """The task that waits for this turn; set by the shell."""

    @property
    def granted(self) -> bool:
        return self._lacking == 0


class _Queue:
    """Those who want one lock, in the order in which they came."""

    __slots__ = ("granted", "mine", "rivals", "turns", "writers")

    def __init__(self) -> None:
        self.turns: OrderedDict[Turn, bool] = OrderedDict()
        """Each with whether it changes what is behind the lock; those who only look may go together."""
        self.granted: set[Turn] = set()
        self.writers = 0
        self.rivals: set[ClientId] = set()
        """Clients that have committed before us when we wanted to."""
        self.mine: TransactionId = NO_TRANSACTION
        """Our last commit with this lock."""


def checked(locks: Iterable[bytes]) -> dict[bytes, bool]:
    """The hashes for which an append can be refused, with whether it raises them, too."""
    found: dict[bytes, bool] = {}
    for lock in locks:
        hashed, mode = lock[:-1], lock[-1]
        if mode != _APPEND:
            found[hashed] = found.get(hashed, False) or mode == _WRITE
    return found


class Turns:
    """The turns of one client in one partition."""

    def __init__(self, client_id: ClientId) -> None:
        self._client_id = client_id
        self._queues: OrderedDict[bytes, _Queue] = OrderedDict()
        self._seen: dict[ClientId, TransactionId] = {}
        """The last commit of each rival that was fed."""
        self._misses: dict[ClientId, int] = {}
        """How often a rival was waited for since then, and has not come."""
        self._fed: deque[tuple[TransactionId, Sequence[ClientId]]] = deque()
        self._fed_count = 0
        self._taken = 0
        """Turns that are waited for, or held."""
        self.round_s = _ROUND_S
        """About how long a turn takes, from its run to when its commit is applied."""

    @property
    def watching(self) -> bool:
        """Whether it matters who has written what is fed."""
        return bool(self._queues)

    # ------------------------------------------------------------------ within this client

    def wanted(self, locks: Iterable[bytes]) -> bool:
        """Whether anybody wants, or wanted lately, one of these locks: asked of each context's, before all else."""
        queues = self._queues
        if queues:
            for lock in locks:  # no `any`: this is done twice for each context
                if lock[:-1] in queues:
                    return True
        return False

    def contended(self, locks: dict[bytes, bool]) -> bool:
        """Whether somebody else is to go first: an append with these locks would be refused, or push itself in."""
        for hashed, writes in locks.items():
            queue = self._queues.get(hashed)
            if queue is None:
                continue
            if queue.writers or (writes and queue.turns) or (writes and self._owed_in(queue)):
                return True
        return False

    def join(self, locks: dict[bytes, bool]) -> Turn:
        """Take a place behind everybody who waits for one of these locks."""
        turn = Turn(locks)
        self._taken += 1
        for hashed, writes in locks.items():
            queue = self._queues.setdefault(hashed, _Queue())
            queue.turns[turn] = writes
            queue.writers += writes
            self._grant(queue)
        self._forget_some()
        return turn

    def leave(self, turn: Turn) -> list[Turn]:
        """It is over, or given up: those whose turn it is now."""
        ready: list[Turn] = []
        for hashed in turn._locks:
            queue = self._queues.get(hashed)
            if queue is None or turn not in queue.turns:
                continue
            queue.writers -= queue.turns.pop(turn)
            held = turn in queue.granted
            queue.granted.discard(turn)
            if not held or not queue.granted:
                ready += self._grant(queue)
            if not queue.turns and not queue.rivals:
                del self._queues[hashed]
        self._taken -= 1
        if not self._queues:
            self._forget_all()
        return ready

    def _grant(self, queue: _Queue) -> list[Turn]:
        """Those at the front of the queue go: one that writes, or all up to the next one that does."""
        ready: list[Turn] = []
        for turn, writes in queue.turns.items():
            if writes and queue.granted and turn not in queue.granted:
                break
            if turn not in queue.granted:
                queue.granted.add(turn)
                turn._lacking -= 1
                if turn.granted:
                    ready.append(turn)
            if writes:
                break
        return ready

    def _forget_some(self) -> None:
        """Locks that nobody waits for, the longest known first."""
        if len(self._queues) <= _QUEUES_MAX:
            return
        idle = [hashed for hashed, queue in self._queues.items() if not queue.turns]
        for hashed in idle[: len(self._queues) - _QUEUES_MAX // 2]:
            del self._queues[hashed]

    def _forget_all(self) -> None:
        self._queues.clear()
        self._seen.clear()
        self._misses.clear()
        self._fed.clear()
        self._fed_count = 0

    # ------------------------------------------------------------------ between clients

    def fed(self, first: TransactionId, clients: Sequence[ClientId]) -> bool:
        """A batch was fed, with who wrote each of its transactions; whether a rival is among them."""
        self._fed.append((first, clients))
        self._fed_count += len(clients)
        while self._fed_count > _FED_MAX:
            if not self._taken:
                self._forget_all()  # for long nobody has wanted the same as somebody else
                return False
            self._fed_count -= len(self._fed.popleft()[1])
        rivals = self._seen.keys() & set(clients)
        for client in rivals:
            self._seen[client] = first + len(clients) - 1
            self._misses.pop(client, None)
        return bool(rivals)

    def beaten(self, turn: Turn, by: TransactionId) -> None:
        """It was refused for this transaction, which has been fed since."""
        client = self._writer_of(by)
        if client is None or client == self._client_id:
            return
        self._seen[client] = max(by, self._seen.get(client, by))
        for hashed in turn._locks:
            self._queues[hashed].rivals.add(client)

    def _writer_of(self, transaction: TransactionId) -> ClientId | None:
        for first, clients in reversed(self._fed):
            if first <= transaction:
                return clients[transaction - first] if transaction < first + len(clients) else None
        return None

    def committed(self, locks: dict[bytes, bool], transaction: TransactionId) -> None:
        """An append with these locks is in the log."""
        for hashed, writes in locks.items():
            queue = self._queues.get(hashed)
            if queue is not None and writes:
                queue.mine = max(queue.mine, transaction)

    def _owed_in(self, queue: _Queue) -> set[ClientId]:
        if queue.mine == NO_TRANSACTION:
            return set()
        return {client for client in queue.rivals if self._seen.get(client, NO_TRANSACTION) < queue.mine}

    def owed(self, turn: Turn) -> set[ClientId]:
        """Rivals that have not committed since we did: they go first."""
        owed: set[ClientId] = set()
        for hashed, writes in turn._locks.items():
            if writes:
                owed |= self._owed_in(self._queues[hashed])
        return owed

    def newest(self, turn: Turn) -> TransactionId:
        """The last commit of any rival: to be applied before this turn's context runs."""
        rivals = {client for hashed in turn._locks for client in self._queues[hashed].rivals}
        return max((self._seen.get(client, NO_TRANSACTION) for client in rivals), default=NO_TRANSACTION)

    def patience_s(self, turn: Turn, chance: float) -> float:
        """For how long rivals are let go first; `chance` is a random number from 0 to 1."""
        return min(_PATIENCE_S_MAX, _PATIENCE * len(self.owed(turn)) * self.round_s) * (0.75 + chance / 2)

    def given_up(self, turn: Turn) -> None:
        """The rivals that were waited for don't come: this time it goes without them, and some are none any more."""
        owed = self.owed(turn)
        mine = max(self._queues[hashed].mine for hashed in turn._locks)
        for client in owed:
            self._seen[client] = mine  # as if it had had its turn
            self._misses[client] = self._misses.get(client, 0) + 1
        gone = {client for client in owed if self._misses[client] >= _MISSES_MAX}
        for queue in self._queues.values() if gone else ():
            queue.rivals -= gone
        for client in gone:
            del self._seen[client], self._misses[client]

    def took(self, seconds: float) -> None:
        """A turn took so long, from its run to when its commit was applied."""
        self.round_s += 0.2 * (seconds - self.round_s)
