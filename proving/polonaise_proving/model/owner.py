"""The owner of a partition, explored exhaustively: the production's machine, and clients that believe what it says.

`OwnerWorld` is one state: the machine, what its replicas hold, and what each client was told, kept by the client
library's own `Outstanding`. `OwnerExploration` walks every order of events within `Bounds`: two clients append, one of
them stale, their frames too many for their window; a session ends and the next one finds any part of what was in
flight; a mount takes the place of another; one client flushes, the other asks for the mark.

Not in the model: time, credit, history that has to be read, bodies. Replicas sync in order; that fewer than a quorum
have synced something is the same to clients as that none has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from polonaise.client.protocol.outstanding import AppendFailure, Outstanding, Pending, Unordered
from polonaise.coordination.values import PartitionValue
from polonaise.errors import ConnectionLost, ConsistencyLost
from polonaise.log.batch import Batch
from polonaise.server.protocol.commitclock import Moment
from polonaise.server.protocol.order import SealedBatch
from polonaise.server.protocol.session import StartedSession
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import BodyForm, FailureReason, LockMode, MountState
from polonaise.wire.appends import AppendColumns, ReceivedAppends
from polonaise.wire.messages import Flushed, HighWaterMarkIs, Mounted
from polonaise.wire.messages import Mount as MountRequest
from polonaise_proving.model.walk import Broken, ModelWalk

NOW = Moment(100.0, 1_000)
"""Nothing is ever late here."""
_MEMBERS = ("A", "B", "C")


@dataclass(frozen=True)
class OwnerBounds:
    """How far to go: what each client appends, and how often each of the rest may happen."""

    name: str
    frames: tuple[tuple[str, ...], ...] = (("k", "k", "-"), ("k",))
    """By client: its frames; each letter one append, with a WRITE lock on it, or without one for `-`."""
    sessions: int = 2
    mounts: int = 2
    """Of the first client."""
    flushes: int = 1
    asks: int = 1
    window_bytes: int = 1 << 20
    window: int = 2


class Wire:
    """A connection: known by what it is."""

    def __init__(self, client: int) -> None:
        self.client = client


class WaitingFlush(NamedTuple):
    """What was known when something was asked."""

    mark: int
    sent: int


class ModelClient:
    """A client as the library would have it: it believes what it is told."""

    def __init__(self) -> None:
        self.outstanding = Outstanding()
        self.entries: list[Pending] = []
        self.fed = -1
        self.wire: Wire | None = None
        self.ready = False
        self.knows_why = False
        """It was told, on this mount, what ended a session."""
        self.sent: list[tuple[Pending, ReceivedAppends]] = []
        self.sends_again = False
        """It is ready since this step, and has still to send again what is not in the log."""
        self.next_frame = 0
        self.flushes: list[WaitingFlush] = []
        self.asks: list[int] = []


class OwnerWorld:
    """Everything that there is; each method named `on_…` or yielded by `events` is one step."""

    def __init__(self, owner_class: Any, bounds: OwnerBounds) -> None:
        self.bounds = bounds
        self.settings = OwnerSettings(
            lock_entries=16, window=bounds.window, append_window_bytes=bounds.window_bytes, inbox_bytes_max=1 << 30
        )
        self.owner = owner_class(2, 1, self.settings)
        self.clients = [ModelClient() for _ in bounds.frames]
        self.wires = {name: Wire(-1) for name in _MEMBERS}
        self.log: list[SealedBatch] = []
        """What is committed, or was decided to be the log."""
        self.in_flight: list[SealedBatch | None] = []
        """What was sent in this session and is not synced by a quorum; None for a barrier."""
        self.stored = 0
        self.session = 0
        self.mounted = 0
        self.turn_due = False

    @property
    def mark(self) -> int:
        return self.log[-1].last if self.log else -1

    # ------------------------------------------------------------------ steps

    def events(self) -> list[tuple[str, int]]:
        """The steps that are possible now, each with a number."""
        bounds, found = self.bounds, list[tuple[str, int]]()
        for number, client in enumerate(self.clients):
            if client.ready and client.next_frame < len(bounds.frames[number]):
                found.append(("appends", number))
            if client.wire is None or (number == 0 and self.mounted < bounds.mounts + len(self.clients) - 1):
                found.append(("mounts", number))
        if self.clients[0].ready and len(self.clients[0].flushes) < bounds.flushes:
            found.append(("flushes", 0))
        if self.clients[-1].ready and len(self.clients[-1].asks) < bounds.asks:
            found.append(("asks", len(self.clients) - 1))
        if self.turn_due:
            found.append(("turn", 0))
        if self.owner.session is not None:
            if self.in_flight:
                found.append(("quorum stores", 0))
            if self.session < bounds.sessions:
                found.append(("session ends", 0))
        else:
            found += [("session starts and keeps", kept) for kept in range(len(self.in_flight) + 1)]
        return found

    def step(self, event: str, number: int, frames: list[list[ReceivedAppends]]) -> None:
        """Take one step, and do what comes of it."""
        owner, client = self.owner, self.clients[number] if number < len(self.clients) else self.clients[0]
        match event:
            case "appends":
                appends = frames[number][client.next_frame]
                client.next_frame += 1
                entry = Pending()
                client.outstanding.add(entry)
                client.outstanding.sent_through(entry.sequence)
                client.entries.append(entry)
                client.sent.append((entry, appends))
                self._do(owner.append(number + 1, client.wire, 1, appends, NOW))
            case "mounts":
                self._mount(number, client)
            case "flushes":
                client.flushes.append(WaitingFlush(self.mark, client.outstanding.sent))
                self._do(owner.flush(number + 1, client.wire, 7, NOW))
            case "asks":
                client.asks.append(self.mark)
                self._do(owner.ask_mark(client.wire, 8, NOW))
            case "turn":
                self.turn_due = False
                self._do(owner.turn(NOW))
            case "quorum stores":
                self._store()
            case "session ends":
                self._do(owner.replica_failed("A", self.wires["A"], ConnectionLost("gone"), NOW))
            case "session starts and keeps":
                self._start(number)
        self._send_again()
        self._check_fates()

    def _send_again(self) -> None:
        """Have the clients that are ready since this step send what they sent on earlier mounts and is not in the log.

        Once the step is done: what comes of a step is carried out in its order.
        """
        for number, client in enumerate(self.clients):
            if not client.sends_again:
                continue
            client.sends_again = False
            for entry, appends in client.sent:
                if not entry.settled:
                    self._do(self.owner.append(number + 1, client.wire, 1, appends, NOW))

    def _mount(self, number: int, client: ModelClient) -> None:
        self.mounted += 1
        if client.wire is not None:
            self._do(self.owner.unmount(number + 1, client.wire))
        client.wire, client.ready, client.knows_why = Wire(number), False, False
        client.outstanding.mount_over()
        request = MountRequest(self.mounted, 1, client.fed, BodyForm.INLINE, 0, 0, 1 << 30)
        self._do(self.owner.mount(number + 1, client.wire, 6, request, NOW))

    def _store(self) -> None:
        batch = self.in_flight.pop(0)
        self.stored += 1
        if batch is not None:
            self.log.append(batch)
        session = self.owner.session.id
        for name in ("A", "B"):
            self._do(self.owner.stored(name, self.wires[name], session, self.stored, NOW))

    def _start(self, kept: int) -> None:
        """The next session begins with the first `kept` of what was in flight; the rest is cut from the log."""
        self.lost = any(batch is not None for batch in self.in_flight[kept:])
        self.log += [batch for batch in self.in_flight[:kept] if batch is not None]
        self.in_flight, self.stored = [], 0
        self.session += 1
        started = StartedSession(
            PartitionValue(1, self.session, _MEMBERS), self.mark, self.log[-1].crc if self.log else 0, 0, {},
            {name: self.wires[name] for name in _MEMBERS},
        )  # fmt: skip
        self._do(self.owner.session_started(started, NOW))

    # ------------------------------------------------------------------ what comes of it

    def _do(self, effects: list[Any]) -> None:
        for effect in effects:
            match type(effect).__name__:
                case "Replicate":
                    self.in_flight.append(effect.batch)
                case "TellFailures":
                    self._refused(effect.mount, effect.failures)
                case "FeedBatch":
                    self._fed(effect.mount, effect.payload)
                case "Answer" if not effect.request:
                    self._news(effect.connection, effect.message)
                case "Answer":
                    self._answered(effect.connection, effect.message)
                case "AwaitTurn":
                    self.turn_due = True
                case "RefuseRequest" | "CutOff":
                    raise Broken(f"a request that nothing is wrong with is refused: {effect.error}")

    def _present(self, wire: Wire) -> ModelClient | None:
        client = self.clients[wire.client]
        return client if client.wire is wire else None

    def _refused(self, mount: Any, failures: Any) -> None:
        client = self._present(mount.connection)
        if client is None:
            return
        for sequence, value, reason in failures:
            if reason is FailureReason.LOCK_CONFLICT and value > self.mark:
                raise Broken(f"a conflict with {value} is told, and the log ends at {self.mark}")
            if reason is FailureReason.SESSION_ENDED and not self.lost:
                raise Broken(f"append {sequence} ended with its session, of which everything sent is in the log")
            if reason is FailureReason.SESSION_ENDED and client.ready and not client.knows_why:
                raise Broken(f"append {sequence} ended with its session, and nobody has said what ended that")
            client.outstanding.refused(sequence, AppendFailure(reason, value))

    def _news(self, wire: Wire, message: Any) -> None:
        client = self._present(wire)
        if client is None:
            return
        hindered = message.state is MountState.NOT_READY
        if hindered is client.knows_why or hindered is not bool(message.reason):
            raise Broken(f"news that says nothing: {message}")
        client.knows_why = hindered

    def _fed(self, mount: Any, payload: bytes) -> None:
        client = self._present(mount.connection)
        batch = Batch(memoryview(payload))
        if batch.last > self.mark:
            raise Broken(f"{batch.first} to {batch.last} are fed, and {self.mark} is committed")
        if client is None:
            return
        if batch.first != client.fed + 1:
            raise Broken(f"{batch.first} is fed to one who has {client.fed}")
        client.fed = batch.last
        number = mount.connection.client + 1
        places = [place for place, owner in enumerate(batch.client_ids.tolist()) if owner == number]
        if places:
            sequences = batch.sequences.tolist()
            try:
                client.outstanding.committed([sequences[p] for p in places], [batch.first + p for p in places])
            except ConsistencyLost as error:
                raise Broken(str(error)) from error

    def _answered(self, wire: Wire, message: object) -> None:
        client = self._present(wire)
        if client is None:
            return
        match message:
            case Mounted(state=MountState.READY, high_water_mark=mark):
                if client.fed < mark:
                    raise Broken(f"ready at {mark}, and fed up to {client.fed}")
                client.ready = client.sends_again = True
                client.outstanding.mount_ready()
            case Flushed(high_water_mark=mark):
                asked = client.flushes[0]
                if not asked.mark <= mark <= client.fed:
                    raise Broken(f"flushed at {mark}: asked at {asked.mark}, and fed up to {client.fed}")
                client.outstanding.passed(asked.sent)
            case HighWaterMarkIs(high_water_mark=mark):
                if not client.asks[0] <= mark <= self.mark:
                    raise Broken(f"the mark is told as {mark}; it was {client.asks[0]} and is {self.mark}")
            case _:
                raise Broken(f"nobody asked for {message}")

    def _check_fates(self) -> None:
        """What a client was told of an append is true, and says why."""
        there: dict[tuple[int, int], int] = {}
        for sealed in self.log:
            batch = Batch(memoryview(sealed.raw))
            for place, key in enumerate(zip(batch.client_ids.tolist(), batch.sequences.tolist(), strict=True)):
                there[key] = batch.first + place
        for number, client in enumerate(self.clients):
            for entry in client.entries:
                found = there.get((number + 1, entry.sequence))
                if entry.failure is not None and found is not None:
                    raise Broken(f"append {entry.sequence} was told {entry.failure.reason}, and is there as {found}")
                if entry.failure is not None and entry.failure.reason is Unordered.UNTOLD:
                    raise Broken(f"append {entry.sequence} failed, and nobody said why")
                if entry.id >= 0 and found != entry.id:
                    raise Broken(f"append {entry.sequence} was told committed as {entry.id}, and is at {found}")


def frames_of(bounds: OwnerBounds) -> list[list[ReceivedAppends]]:
    """What each client sends: append frames, made once."""
    return [
        [
            _frame(place + 1, [(ord(letter), LockMode.WRITE)] if letter != "-" else [])
            for place, letter in enumerate(letters)
        ]
        for letters in bounds.frames
    ]


def _frame(sequence: int, locks: list[tuple[int, int]]) -> ReceivedAppends:
    """Return a frame with one append, as the owner gets it."""
    columns = AppendColumns()
    columns.add(sequence, -1, 0, b"", crc32(b""), locks, ends_group=True)
    return ReceivedAppends(columns.message(generation=1))


QUICK = (
    OwnerBounds("owner: conflicts", frames=(("k", "k", "-"),), mounts=1, asks=0),
    OwnerBounds("owner: two mounts", frames=(("k",),), mounts=2, asks=0),
)
"""What `make check` explores."""
SHORT = (
    OwnerBounds("owner: full inbox, nothing asked", frames=(("k", "k", "-"),), window_bytes=1_300, asks=0),
    OwnerBounds("owner: mounts that replace each other, one append", frames=(("k",),), mounts=3),
)
"""And `make test`."""
BOUNDS = (
    OwnerBounds("owner: two clients", frames=(("k", "k", "-"), ("k",)), mounts=1),
    OwnerBounds("owner: mounts that replace each other", frames=(("k", "k"),), mounts=3),
    OwnerBounds("owner: full inbox", frames=(("k", "k", "-"),), window_bytes=1_300),
)
"""What `make model` explores."""


class OwnerExploration(ModelWalk[OwnerWorld]):
    """One walk through the states that `owner_class` can come to within these bounds."""

    def __init__(self, owner_class: Any, bounds: OwnerBounds) -> None:
        self._frames = frames_of(bounds)
        first = OwnerWorld(owner_class, bounds)
        appends = [each for frames in self._frames for each in frames]
        super().__init__(bounds.name, first, [bounds, first.settings, *appends])

    def events(self, world: OwnerWorld) -> list[tuple[Any, ...]]:
        return list(world.events())

    def step(self, world: OwnerWorld, event: tuple[Any, ...]) -> None:
        name, number = event
        world.step(name, number, self._frames)
