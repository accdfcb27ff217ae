"""Decides the order in which contexts run that want the same locks, once one of them has met a conflict.

Of optimistic contexts that change one thing at the same time, one commits. So a context that was refused, or would be,
takes a turn: within a client first come first served, one that raises a lock alone, those in a row that only check it
together.

Clients go in a round: one that has committed lets its *rivals* go first, the clients whose commits conflicted with its
appends.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from polonaise.terms import NO_TRANSACTION, ClientId, LockMode, TransactionId

_QUEUES_MAX: Final = 1_024
"""Remembered locks above which those that no context waits for are forgotten, with their rivals."""
_RIVALS_MAX: Final = 1_024
"""The most rivals that are remembered: a client that comes back has a new id."""
_FED_MAX: Final = 65_536
"""Fed transactions whose writing client is remembered."""
_ROUND_S: Final = 0.005
"""Seconds that one turn is taken to last before any was measured."""
_PATIENCE: Final = 4.0
"""How long one rival is waited for, in mean durations of a turn."""
_MISSES_MAX: Final = 3
"""Waits in vain in a row after which a client is no rival any more."""
_PATIENCE_S_MAX: Final = 0.5
"""The most seconds, before jitter, for which rivals are waited for."""
# As plain integers: members of an enum are slow to get at, and every lock of every context is looked at.
_APPEND: Final = int(LockMode.APPEND)
_WRITE: Final = int(LockMode.WRITE)


class Turn:
    """One context's place in the queues of its locks, granted once it is at the front of all of them."""

    __slots__ = ("_lacking", "_locks", "waiter")

    def __init__(self, locks: dict[bytes, bool]) -> None:
        self._locks = locks
        """By hash of each lock that is checked: whether the context raises it, too."""
        self._lacking = len(locks)
        """The number of queues in which this turn is not at the front."""
        self.waiter: Any = None
        """The future that waits for this turn; None for none. `TurnTaking` writes it."""

    @property
    def granted(self) -> bool:
        return self._lacking == 0

    def at_front(self) -> bool:
        """Note that it is at the front of one more of its queues; return whether it is granted by that."""
        self._lacking -= 1
        return self.granted


class _Queue:
    """The turns of one lock, and the clients that change it, too. `Turns` writes all fields."""

    __slots__ = ("granted", "own_commit", "rivals", "turns", "writers")

    def __init__(self) -> None:
        self.turns: OrderedDict[Turn, bool] = OrderedDict()
        """In the order in which they came: whether the turn's context raises the lock."""
        self.granted: set[Turn] = set()
        """The turns at the front of this queue: one that raises the lock, or any number that only read it."""
        self.writers = 0
        """Turns in this queue, waiting or granted, whose contexts raise the lock."""
        self.rivals: set[ClientId] = set()
        """The clients whose commits conflicted with this client's appends that carry this lock."""
        self.own_commit: TransactionId = NO_TRANSACTION
        """The last commit by a context of this client that raised the lock; -1 for none since the lock is known."""


def checked(locks: Iterable[bytes]) -> dict[bytes, bool]:
    """Return the hashes of the locks for which an append can be refused, with whether it raises them, too."""
    raised: dict[bytes, bool] = {}
    appended: list[bytes] = []
    for lock in locks:
        hashed, mode = lock[:-1], lock[-1]
        if mode == _APPEND:
            appended.append(hashed)
        else:
            raised[hashed] = raised.get(hashed, False) or mode == _WRITE
    for hashed in appended:
        if hashed in raised:  # checked by one lock, and raised by the other
            raised[hashed] = True
    return raised


class Turns:
    """Decides which of a client's contexts runs next when several want the same locks of a partition, and how long it
    lets rival clients go first."""

    def __init__(self, client_id: ClientId) -> None:
        self._client_id = client_id
        self._queues: OrderedDict[bytes, _Queue] = OrderedDict()
        """By hash of a lock, the longest known first."""
        self._seen: dict[ClientId, TransactionId] = {}
        """By rival: an id not below its last commit that was fed to this client. After a wait in vain this client's own
        last commit, as if the rival had taken its turn."""
        self._misses: dict[ClientId, int] = {}
        """By rival: the waits for it since its last commit, all in vain."""
        self._writers = array("i")
        """The writing client of each transaction that was fed lately, in the order of ids."""
        self._writers_first: TransactionId = 0
        self._taken = 0
        """Turns that wait or are held."""
        self._round_s = _ROUND_S
        """Seconds that a turn takes, from its run to when its commit is applied: a moving average."""

    def identify(self, client_id: ClientId) -> None:
        """Go on as the client with this id, which it has been given anew."""
        self._client_id = client_id

    @property
    def watching(self) -> bool:
        """Whether it matters who wrote fed transactions: only while locks are contended."""
        return bool(self._queues)

    # ------------------------------------------------------------------ within this client

    def wanted(self, locks: Iterable[bytes]) -> bool:
        """Return whether one of these locks has a queue. Called for each context."""
        queues = self._queues
        if queues:
            for lock in locks:  # not `any`, whose generator costs more than the look-ups
                if lock[:-1] in queues:
                    return True
        return False

    def contended(self, locks: dict[bytes, bool]) -> bool:
        """Return whether another context or client goes first: an append sent now would be refused, or have theirs
        refused."""
        for hashed, writes in locks.items():
            queue = self._queues.get(hashed)
            if queue is None:
                continue
            if queue.writers or (writes and queue.turns) or (writes and self._owed_in(queue)):
                return True
        return False

    def join(self, locks: dict[bytes, bool]) -> Turn:
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
        """Take out a turn that is over or given up; return the turns that are granted by that."""
        ready: list[Turn] = []
        for hashed in turn._locks:
            queue = self._queues.get(hashed)
            if queue is None or turn not in queue.turns:
                continue
            queue.writers -= queue.turns.pop(turn)
            was_granted = turn in queue.granted
            queue.granted.discard(turn)
            if not was_granted or not queue.granted:
                ready += self._grant(queue)
            if not queue.turns and not queue.rivals:
                del self._queues[hashed]
        self._taken -= 1
        if not self._queues:
            self._forget_all()
        return ready

    def _grant(self, queue: _Queue) -> list[Turn]:
        """Put to the front one turn that writes, or all before the next one that does; return the turns granted now."""
        ready: list[Turn] = []
        for turn, writes in queue.turns.items():
            if writes and queue.granted and turn not in queue.granted:
                break
            if turn not in queue.granted:
                queue.granted.add(turn)
                if turn.at_front():
                    ready.append(turn)
            if writes:
                break
        return ready

    def _forget_some(self) -> None:
        if len(self._queues) <= _QUEUES_MAX:
            return
        idle = [hashed for hashed, queue in self._queues.items() if not queue.turns]
        for hashed in idle[: len(self._queues) - _QUEUES_MAX // 2]:
            del self._queues[hashed]

    def _forget_all(self) -> None:
        self._queues.clear()
        self._seen.clear()
        self._misses.clear()
        del self._writers[:]

    # ------------------------------------------------------------------ between clients

    def fed(self, first: TransactionId, clients: Sequence[ClientId]) -> bool:
        """Note who wrote each transaction of a fed batch; return whether a rival is among them."""
        if first != self._writers_first + len(self._writers):  # those between were fed while nobody was watching
            del self._writers[:]
            self._writers_first = first
        self._writers.extend(clients)
        # While a turn waits or is held its rivals are wanted, so only the oldest go. Without one, forget all: there was
        # no conflict for so many transactions, so the rivals are of the past, and nobody waits for one.
        if len(self._writers) > _FED_MAX:
            if not self._taken:
                self._forget_all()
                return False
            # Many at a time, because those that stay are moved.
            gone = len(self._writers) - _FED_MAX // 2
            del self._writers[:gone]
            self._writers_first += gone
        rivals = self._seen.keys() & set(clients)
        for client in rivals:
            # The batch's last id, without a search for the client's own in it. Too low would be wrong: a context would
            # run before the rival's commit is applied (`newest`), only to be refused.
            self._seen[client] = first + len(clients) - 1
            self._misses.pop(client, None)  # it has come: only waits in vain one after the other count
        return bool(rivals)

    def beaten(self, turn: Turn, by: TransactionId) -> None:
        """Note a conflict: the client that wrote `by`, for which this turn was refused, is a rival, if it is another
        one."""
        client = self._writer_of(by)
        if client is None or client == self._client_id:
            return
        self._seen[client] = max(by, self._seen.get(client, by))
        for hashed in turn._locks:
            self._queues[hashed].rivals.add(client)
        if len(self._seen) > _RIVALS_MAX:
            self._forget_rivals(set(sorted(self._seen, key=self._seen.__getitem__)[: -_RIVALS_MAX // 2]))

    def _forget_rivals(self, gone: set[ClientId]) -> None:
        for queue in self._queues.values():
            queue.rivals -= gone
        for client in gone:
            del self._seen[client]
            self._misses.pop(client, None)

    def _writer_of(self, transaction: TransactionId) -> ClientId | None:
        place = transaction - self._writers_first
        return self._writers[place] if 0 <= place < len(self._writers) else None

    def committed(self, locks: dict[bytes, bool], transaction: TransactionId) -> None:
        for hashed, writes in locks.items():
            queue = self._queues.get(hashed)
            if queue is not None and writes:
                queue.own_commit = max(queue.own_commit, transaction)

    def _owed_in(self, queue: _Queue) -> set[ClientId]:
        if queue.own_commit == NO_TRANSACTION:
            return set()
        return {client for client in queue.rivals if self._seen.get(client, NO_TRANSACTION) < queue.own_commit}

    def owed(self, turn: Turn) -> set[ClientId]:
        """Return the rivals that go first: of each lock that this turn raises, those with no commit since this
        client's."""
        owed: set[ClientId] = set()
        for hashed, writes in turn._locks.items():
            if writes:
                owed |= self._owed_in(self._queues[hashed])
        return owed

    def newest(self, turn: Turn) -> TransactionId:
        """Return the id to apply before this turn's context runs, not below any rival's last commit; -1 for none."""
        rivals = {client for hashed in turn._locks for client in self._queues[hashed].rivals}
        return max((self._seen.get(client, NO_TRANSACTION) for client in rivals), default=NO_TRANSACTION)

    def patience_s(self, turn: Turn, chance: float) -> float:
        """Return the seconds to wait for rivals; `chance`, from 0 to 1, is for the jitter."""
        return min(_PATIENCE_S_MAX, _PATIENCE * len(self.owed(turn)) * self._round_s) * (0.75 + chance / 2)

    def given_up(self, turn: Turn) -> None:
        """Stop waiting for the owed rivals, of which those are rivals no more that had `_MISSES_MAX` waits in vain."""
        owed = self.owed(turn)
        newest = max(self._queues[hashed].own_commit for hashed in turn._locks)
        for client in owed:
            # As if it had taken its turn: it is not waited for again before this client's next commit.
            self._seen[client] = newest
            self._misses[client] = self._misses.get(client, 0) + 1
        gone = {client for client in owed if self._misses[client] >= _MISSES_MAX}
        if gone:
            self._forget_rivals(gone)

    def took(self, seconds: float) -> None:
        self._round_s += 0.2 * (seconds - self._round_s)
