"""Talking with the owner of a partition: a transcript has its events, and what it wants done about each.

::

    > session 1 at -1          a session on A, B and C that begins at -1; C is not engaged with `of A B`. A and B are in
                               one zone, C is in another
    > session 1 at -1 first    the same, and it is certain that the partition had none before
    > session 3 at 0 by 2      the same, where session 2 has carried out a reset of the head to 0
    > x mounts at -1           x and y are clients; credit may follow: `credit 100`
    > x appends 1 2:k 3@0:k    sequences, with a WRITE lock on k, with a client high-water mark (else -1); `big` bodies
    > x appends 1 needs 3 2    the frame's last append needs so many copies, in so many zones
    > x proves 0 on 3 2        asks for the proof that id 0 is on so many copies, in so many zones
    > A B store 1              replicas have synced the session's message 1
    > x flushes · x asks for the mark · x asks for r · x lists · x lists r
    > x gives 100 · x leaves · x has room · x is given 0 · C fails · turn · time 5 · ends · stops
    > members A B            an operator has asked for these; without any, the change was taken back

Below an event stands what is to be done, in order: `send 1: 0..2` (ids) or `send 1: barrier` to replicas, `tell x: 2
LOCK_CONFLICT 0`, `feed x: 0..2`, `answer x: …`, `refuse x: code`, `turn`, `room x`, `read x: 0`, `mark 2`, `end: …`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

from polonaise.coordination.values import HeadReset, PartitionValue
from polonaise.errors import ConnectionLost, NotOwner, PolonaiseError
from polonaise.log import registers
from polonaise.server.protocol.commitclock import Moment
from polonaise.server.protocol.effects import (
    Answer,
    AwaitRoom,
    AwaitTurn,
    ConfirmClean,
    CutOff,
    Effect,
    EndSession,
    FeedBatch,
    MarkMoved,
    ReadHistory,
    RefuseRequest,
    Replicate,
    TellFailures,
)
from polonaise.server.protocol.mounts import ClientMount, Committed
from polonaise.server.protocol.order import SealedBatch
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.readiness import ReadinessChanges
from polonaise.server.protocol.session import StartedSession
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import NO_TRANSACTION, BodyForm, ExpectationKind
from polonaise.wire.copies import CopiesProved, ProveCopies
from polonaise.wire.leases import LeasesAre, LeasesReleased, parse_answered
from polonaise.wire.messages import (
    Flushed,
    GetRegister,
    HighWaterMarkIs,
    ListRegisters,
    Mounted,
    RegisterIs,
    RegistersListed,
)
from polonaise.wire.messages import Mount as MountRequest
from rigs.order import WRITE, Tx, frame, lock

READY = """
    > session 1 at -1
    confirm -1
    mark -1
    > x mounts at -1
    send 1: barrier
    > A B store 1
    answer x: ready at -1
"""
"""The transcript's beginning: a session in which the client x may append."""
SENT = f"""{READY}
    > x appends 1
    send 2: 0..0
"""
"""The same with one append that was sent to the replicas."""
COMMITTED = f"""{SENT}
    > A B store 2
    feed x: 0..0
    mark 0
"""
"""The same when A and B have synced it, and C has not."""
CLIENTS = {"x": 1, "y": 2, "z": 3}
MEMBERS = ("A", "B", "C")
ZONES = {"A": "north", "B": "north", "C": "south"}


class Talk:
    """One owner, and all the actions that it has asked for. Connections are named: `x1` is the client x's first."""

    def __init__(self, **settings: Any) -> None:
        self.changes = ReadinessChanges()
        self.owner = PartitionOwner(2, 1, OwnerSettings(lock_entries=64, **settings), changes=self.changes)
        self.sealed: dict[int, SealedBatch] = {}
        """The sealed batches, by the last id of each."""
        self.now = Moment(100.0, 1_000)
        self._sessions = 0
        self._mounts = 0
        self._connections: dict[str, str] = {}
        self._present: dict[str, ClientMount] = {}

    @classmethod
    def ready(cls, **settings: Any) -> Talk:
        """Return the talk of an owner to which just the events of `READY` have happened."""
        return cls(**settings).hear("session 1 at -1", "x mounts at -1", "A B store 1")

    # ------------------------------------------------------------------ events

    def __call__(self, event: str) -> list[str]:
        """The lines that say what is to be done about this event."""
        try:
            effects = self.effects_of(event)
        except PolonaiseError as error:
            return [f"refused: {error.code}"]
        return [line for effect in effects for line in self.lines(effect)]

    def hear(self, *events: str) -> Talk:
        """Take these events one after the other, whatever is to be done about them. Return this talk."""
        for event in events:
            self(event)
        return self

    def effects_of(self, event: str) -> list[Effect]:
        self.now = self.now._replace(wall_us=self.now.wall_us + 1)
        first, *rest = event.split()
        if first == "session":
            return self._start(rest)
        if first == "turn":
            return self.owner.turn(self.now)
        if first == "time":
            self.now = Moment(self.now.monotonic_s + float(rest[0]), self.now.wall_us)
            return self.owner.tick(self.now)
        if first == "ends":
            return self.owner.end_session("asked to", self.now)
        if first == "members":
            return self.owner.change_pending(rest or None, self.now)
        if first == "stops":
            return self.owner.stop(NotOwner("moved"), self.now)
        if first in CLIENTS:
            return self._of_client(first, rest[0], rest[1:])
        return self._of_replicas([first, *rest])

    def _start(self, words: list[str]) -> list[Effect]:
        number, closing = int(words[0]), int(_after(words, "at", "-1"))
        engaged = [word for word in words if word in MEMBERS] or MEMBERS
        self._sessions = number
        last = self.sealed.get(closing)
        carried_out = int(_after(words, "by", "-1"))
        resets = (HeadReset(closing, "A", closing, 0, carried_out, closing),) if carried_out >= 0 else ()
        started = StartedSession(
            PartitionValue(1, number, MEMBERS, resets=resets), closing, last.crc if last else 0, 0,
            dict(self.owner.registers.values), {name: _connection(name, number) for name in engaged}, ZONES,
            pace_s=float(_after(words, "pace", "0")), first="first" in words,
        )  # fmt: skip
        return self.owner.session_started(started, self.now)

    def _of_replicas(self, words: list[str]) -> list[Effect]:
        effects: list[Effect] = []
        names = [word for word in words if word in MEMBERS]
        for name in names:
            connection = _connection(name, self._sessions)
            if "fails" in words:
                effects += self.owner.replica_failed(name, connection, ConnectionLost("gone"), self.now)
            else:
                effects += self.owner.stored(name, connection, self._sessions, int(words[-1]), self.now)
        return effects

    def _of_client(self, name: str, verb: str, words: list[str]) -> list[Effect]:
        owner, client = self.owner, CLIENTS[name]
        connection = self._connections.get(name, "none")
        match verb:
            case "mounts":
                return self._mount(name, words)
            case "appends":
                generation = 9 if "stale" in words else 1
                needs = words[words.index("needs") + 1 :] if "needs" in words else []
                words = words[: len(words) - len(needs)]
                appends = [_append(word) for word in words if re.match(r"\d+(?:$|[:@!])", word)]
                if needs:
                    value = bytes(map(int, needs))
                    appends[-1] = replace(appends[-1], operations=[(ExpectationKind.COPIES, b"", value)])
                return owner.append(client, connection, generation, frame(*appends), self.now)
            case "flushes":
                return owner.flush(client, connection, 7, self.now)
            case "proves":
                return owner.prove_copies(connection, 11, ProveCopies(*map(int, (words[0], *words[2:]))), self.now)
            case "asks" if words[-1] == "mark":
                return owner.ask_mark(connection, 8, self.now)
            case "lists":
                prefix = "".join(words).encode()
                return owner.ask_registers(connection, 10, ListRegisters(prefix, prefix), self.now)
            case "asks":
                return owner.ask_registers(connection, 9, GetRegister(words[-1].encode()), self.now)
            case "gives":
                return owner.credit(client, connection, int(words[0]))
            case "leaves":
                return owner.unmount(client, connection)
            case "has":
                return owner.room(self._present[name])
            case "is":
                batches = [self.sealed[int(word)] for word in words[1:]]
                return owner.history_read(
                    self._present[name], [Committed(batch.first, batch.last, batch.raw) for batch in batches]
                )
        raise AssertionError(verb)

    def _mount(self, name: str, words: list[str]) -> list[Effect]:
        self._mounts += 1
        self._connections[name] = _connection(name, self._mounts)
        request = MountRequest(
            connection_sequence=self._mounts,
            generation_known=0,
            client_high_water_mark=int(_after(words, "at", "-1")),
            form=BodyForm.INLINE,
            filter_mask=0,
            filter_value=0,
            credit=int(_after(words, "credit", "1000000")),
        )
        effects = self.owner.mount(CLIENTS[name], self._connections[name], 6, request, self.now)
        present = self.owner.feeds.mounts.get(CLIENTS[name])
        if present is not None:
            self._present[name] = present
        return effects

    # ------------------------------------------------------------------ effects

    def lines(self, effect: Effect) -> list[str]:
        match effect:
            case ConfirmClean(_, closing):
                return [f"confirm {closing}"]
            case Replicate(_, number, _, batch):
                if batch is None:
                    return [f"send {number}: barrier"]
                self.sealed[batch.last] = batch
                return [f"send {number}: {batch.first}..{batch.last}"]
            case TellFailures(mount, failures):
                return [f"tell {_name(mount)}: {f.sequence} {f.reason.name} {f.value}" for f in failures]
            case FeedBatch(mount, _, payload, _):
                held = next(batch for batch in self.sealed.values() if batch.raw == payload)
                return [f"feed {_name(mount)}: {held.first}..{held.last}"]
            case Answer(connection, 0, Mounted(reason=reason)):
                return [f"news for {str(connection)[0]}: {f'hindered by {reason}' if reason else 'commits again'}"]
            case Answer(connection, _, message):
                return [f"answer {str(connection)[0]}: {_said(message)}"]
            case RefuseRequest(connection, request, error):
                return [f"refuse {str(connection)[0]}{'' if request else ' its mount'}: {error.code}"]
            case CutOff(connection, error):
                return [f"cut off {str(connection)[0]}: {error.code}"]
            case ReadHistory(mount, first):
                return [f"read {_name(mount)}: {first}"]
            case AwaitRoom(mount):
                return [f"room {_name(mount)}"]
            case AwaitTurn():
                return ["turn"]
            case MarkMoved(committed):
                return [f"mark {committed}"]
            case EndSession(_, reason, late):
                return [f"end: {reason}{' late ' + ' '.join(late) if late else ''}"]


def play(transcript: str, **settings: Any) -> str:
    """The transcript as the owner makes it: the same events, with what it wants done."""
    talk = Talk(**settings)
    lines: list[str] = []
    for line in transcript.strip().splitlines():
        event = line.strip()
        if event.startswith(">"):
            lines.append(event)
            lines += talk(event[1:].strip())
    return "\n".join(lines)


def check(transcript: str, **settings: Any) -> None:
    """Fail unless the owner does what the transcript says."""
    assert play(transcript, **settings) == expected(transcript)


def expected(transcript: str) -> str:
    return "\n".join(line.strip() for line in transcript.splitlines() if line.strip())


def _connection(name: str, number: int) -> str:
    """Return the connection of this name: an interned string, because connections are compared by identity."""
    return sys.intern(f"{name}{number}")


def _append(word: str) -> Tx:
    match = re.fullmatch(r"(\d+)(?:@(-?\d+))?(?::(\w+))?(?:!(\d+))?", word)
    assert match, word
    sequence, mark, name, size = match.groups()
    return Tx(
        data=bytes(int(size or 1)),
        mark=NO_TRANSACTION if mark is None else int(mark),
        locks=[(lock(name), WRITE)] if name else [],
        sequence=int(sequence),
    )


def _after(words: list[str], word: str, otherwise: str) -> str:
    return words[words.index(word) + 1] if word in words else otherwise


def _name(mount: ClientMount) -> str:
    return str(mount.connection)[0]


def _said(message: object) -> str:
    match message:
        case Mounted(state=0, high_water_mark=mark):
            return f"ready at {mark}"
        case Mounted(state=1, reason=reason):
            return f"not ready: {reason}"
        case Mounted(high_water_mark=mark):
            return f"ahead of {mark}"
        case Flushed(high_water_mark=mark):
            return f"flushed {mark}"
        case CopiesProved(id=proved):
            return f"proved {proved}"
        case LeasesAre(answered=answered):
            return " ".join(each.answer.name.lower() for each in parse_answered(answered))
        case LeasesReleased(count=released):
            return f"released {released}"
        case HighWaterMarkIs(high_water_mark=mark):
            return f"the mark is {mark}"
        case RegisterIs(present=present, value=value):
            return f"{value.decode()}" if present else "absent"
        case RegistersListed(more=more, snapshot=snapshot):
            held = " ".join(f"{key.decode()}={value.decode()}" for key, value in registers.sets_of(snapshot))
            return f"registers {held or 'none'}{' and more' if more else ''}"
    raise AssertionError(message)
