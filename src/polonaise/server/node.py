"""A server: owns partitions, and talks to clients."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from polonaise.coordination import Coordinator, Membership
from polonaise.coordination.values import Assignment, ClusterDescription, Registration
from polonaise.errors import (
    Closed,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    NotOwner,
    Overloaded,
    PartitionNotReady,
    PolonaiseError,
    ProtocolError,
    UnknownPartition,
)
from polonaise.host import Host, Listener
from polonaise.link.budget import Budget
from polonaise.link.connection import Connection, hello
from polonaise.log.registers import KEY_BYTES_MAX
from polonaise.server import questions, trimming
from polonaise.server.assignment import owned_by, take_over
from polonaise.server.history import History
from polonaise.server.mounts import Mount
from polonaise.server.owner import Owner
from polonaise.server.protocol.feed import Subscription
from polonaise.server.protocol.order import check_bodies, check_frame
from polonaise.server.replicas import StorageLink, StorageLinks
from polonaise.server.settings import ServerSettings
from polonaise.server.unready import Unready
from polonaise.terms import BodyForm, FailureReason, MountState, PartitionId, StorageId, TransactionId
from polonaise.wire.appends import Failure, ReceivedAppends, encode_failures
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    ROLE_CLIENT,
    ROLE_SERVER,
    Append,
    AppendsFailed,
    Credit,
    Fetch,
    Flush,
    Flushed,
    GetRegister,
    Health,
    HealthIs,
    HighWaterMark,
    HighWaterMarkIs,
    Mounted,
    Read,
    RegisterIs,
    TrimLog,
    Unmount,
)
from polonaise.wire.messages import (
    Mount as MountRequest,
)

_log = logging.getLogger(__name__)
_QUESTIONS_MAX = 64
"""Questions of one connection that may be answered at the same time."""
_ANSWERS_MAX = 2
"""Of them, those whose answers are on their way: one is read from disk while the other is sent."""
_MAKING_MAX = 4
"""Answers of all connections that may come together in memory at the same time."""
_FLUSHES_MAX = 1_000
"""Answers of one mount that may wait for its feed to get further."""


class Server:
    """One server process. `start`, then it serves until `close`."""

    def __init__(
        self,
        host: Host,
        coordinator: Coordinator,
        settings: ServerSettings | None = None,
        open_history: Callable[[bytes], History] | None = None,
    ) -> None:
        """`open_history` makes the history in a fragment store, for the cluster of this key; or there is none."""
        self._host = host
        self._coordinator = coordinator
        self._settings = settings or ServerSettings()
        self._open_history = open_history
        self._history: History | None = None
        self.id = 0
        """Unique in the cluster, from the coordinator; 0 before `start`."""
        self._description: ClusterDescription | None = None
        self._listener: Listener | None = None
        self._membership: Membership | None = None
        self._links = StorageLinks(self._link)
        self.owners: dict[PartitionId, Owner] = {}
        self._connections: dict[Connection, _Asking] = {}
        self._budget = Budget(self._settings.connections_bytes_max)
        self._making = asyncio.Semaphore(_MAKING_MAX)
        """Held while an answer comes together in memory; once it is sent, the budget knows of it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._handlers: dict[type[Message], Callable[[Connection, Owner, Any, int], None]] = {
            MountRequest: self._on_mount,
            Unmount: self._on_unmount,
            Append: self._on_append,
            Credit: self._on_credit,
            Flush: self._on_flush,
            HighWaterMark: self._on_high_water_mark,
            GetRegister: self._on_get_register,
            Read: self._on_read,
            Fetch: self._on_fetch,
            TrimLog: self._on_trim,
        }

    # ------------------------------------------------------------------ life

    @property
    def address(self) -> str:
        """Where clients reach it."""
        if self._listener is None:
            raise Closed("the server is not started")
        return self._listener.address

    async def start(self) -> None:
        """Listen, register, and own every partition that has no living owner."""
        self._description = await self._coordinator.describe()
        if self._open_history is not None:
            self._history = self._open_history(self._description.key)
        self.id = await self._coordinator.unique_id()
        self._listener = await self._host.network.listen(self._settings.listen, self._accept)
        for name in self._description.storage:
            _ = self._links[name]  # Connects while the first session still asks the coordinator.
        self._membership = await self._coordinator.register(Registration(self.id, self.address))
        unready = Unready(self._host, self._settings, self.owners, self._links)
        self._tasks = [
            self._host.spawn(self._watch_assignment(), "assignment"),
            self._host.spawn(unready.watch(), "warnings"),
        ]
        _log.info("server %d listens on %s", self.id, self.address)

    def _link(self, name: StorageId) -> StorageLink:
        assert self._description is not None
        return StorageLink(self._host, name, self.id, self._description.key, self._settings, self._links)

    async def close(self) -> None:
        """Stop serving. What is in flight is decided by the next owner."""
        for task in self._tasks:
            task.cancel()
        for owner in self.owners.values():
            owner.close(NotOwner("the server is shutting down"))
        if self._listener:
            await self._listener.close()
        for connection in list(self._connections):
            connection.close()
        for link in self._links.values():
            link.close()
        if self._membership:
            await self._membership.leave()

    async def _watch_assignment(self) -> None:
        """Follow the assignment: take what nobody alive owns, own what is ours, let go of the rest."""
        pause_s = self._settings.retry_s_min
        while True:
            try:
                held = await self._coordinator.assignment()
                alive = {member.server for member in await self._coordinator.members()}
                if self.id not in alive:
                    # Taken for dead while it was paused or cut off: without this, servers would rob each other forever.
                    await self._coordinator.register(Registration(self.id, self.address))
                assert self._description is not None
                wanted = take_over(held.value, self.id, self.address, self._description.partitions, alive)
                if wanted != held.value:
                    written = await self._coordinator.set_assignment(wanted, held.version)
                    if written is None:
                        continue
                    held = written
                self._follow(held.value)
                pause_s = self._settings.retry_s_min
                try:
                    async with asyncio.timeout(self._settings.coordinator_s_max / 5):
                        await self._coordinator.assignment_after(held.version)
                except TimeoutError:
                    pass
            except CoordinatorUnavailable as error:
                _log.warning("server %d: %s", self.id, error)
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
                pause_s = min(2 * pause_s, self._settings.retry_s_max)
            except CoordinatorDamaged as error:
                # Sessions that write do so rightly, whatever becomes of the assignment; the next ones wait.
                _log.error("server %d goes on with what it owns, and takes over nothing: %s", self.id, error)
                pause_s = self._settings.retry_s_max
                await asyncio.sleep(pause_s * (0.5 + self._host.random.random()))
                pause_s = min(2 * pause_s, self._settings.retry_s_max)

    def _follow(self, assignment: Assignment) -> None:
        mine = owned_by(assignment, self.id)
        for partition, owner in list(self.owners.items()):
            if partition not in mine or mine[partition].generation != owner.generation:
                owner.close(NotOwner(f"partition {partition} has another owner now"))
                del self.owners[partition]
        for partition, place in mine.items():
            if partition not in self.owners:
                owner = Owner(
                    self._host, self._coordinator, self._links, self._settings, partition, place.generation,
                    self._history,
                )  # fmt: skip
                self.owners[partition] = owner
                owner.start()

    # ------------------------------------------------------------------ connections

    def _accept(self) -> Connection:
        assert self._description is not None
        return Connection(
            self._host,
            hello=hello(ROLE_SERVER, f"server {self.id}", cluster_key=self._description.key, node=self.id),
            peer_roles=(ROLE_CLIENT,),
            on_message=self._on_message,
            on_closed=self._on_closed,
            on_greeted=self._on_greeted,
            settings=self._settings.link,
            accepted=True,
            budget=self._budget,
        )

    def _on_greeted(self, connection: Connection) -> None:
        self._connections[connection] = _Asking()

    def _on_closed(self, connection: Connection, error: PolonaiseError) -> None:
        if self._connections.pop(connection, None) is None or connection.peer is None:
            return
        for owner in self.owners.values():
            if owner.mount_of(connection.peer.node, connection) is not None:
                del owner.mounts[connection.peer.node]

    def _on_message(self, connection: Connection, message: Message, request: int, partition: PartitionId) -> None:
        if isinstance(message, Health):
            connection.send(HealthIs(json.dumps(self.health()).encode()), request=request)
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ProtocolError(f"{type(message).__name__} is nothing that a client says")
        handler(connection, self._owner(partition), message, request)

    def _owner(self, partition: PartitionId) -> Owner:
        assert self._description is not None
        if not 0 <= partition < self._description.partitions:
            raise UnknownPartition(
                f"partition {partition}; this cluster has partitions 0 to {self._description.partitions - 1}"
            )
        owner = self.owners.get(partition)
        if owner is None or owner.stopped is not None:
            if owner is not None and not isinstance(owner.stopped, NotOwner):
                raise owner.stopped.with_traceback(None) if owner.stopped else NotOwner("stopped")
            raise NotOwner(f"server {self.id} does not own partition {partition}: read the assignment again")
        if owner.refusal is not None:
            raise owner.refusal.with_traceback(None)
        return owner

    # ------------------------------------------------------------------ the stream

    def _on_mount(self, connection: Connection, owner: Owner, message: MountRequest, request: int) -> None:
        assert connection.peer is not None
        partition, client_id = owner.partition, connection.peer.node
        before = owner.mounts.get(client_id)
        if before is not None and before.connection_sequence > message.connection_sequence:
            raise ProtocolError("a mount on an older connection than the client's present one")
        if client_id < 1:
            raise ProtocolError("a mount by a client without an id: the coordinator gives them out")
        if message.client_high_water_mark < -1 or message.form > max(BodyForm) or message.credit < 0:
            raise ProtocolError("a mount that cannot be meant")
        if len(owner.mounts) >= self._settings.subscriptions_max and before is None:
            raise Overloaded(f"partition {partition} has {len(owner.mounts)} subscriptions")
        if message.generation_known > owner.generation:
            raise NotOwner(f"generation {message.generation_known} of partition {partition} is not known here yet")
        mark = message.client_high_water_mark
        subscription = Subscription(
            mark, BodyForm(message.form), message.credit, message.filter_mask, message.filter_value
        )
        mount = Mount(partition, client_id, connection, message.connection_sequence, subscription)
        owner.mounts[client_id] = mount
        owner.feeding.wake(mount)

        def answer(state: MountState, committed: TransactionId, reason: str = "") -> None:
            mounted = Mounted(state, owner.generation, committed, reason)
            connection.send(mounted, request=request, partition=partition)

        def proved(committed: TransactionId) -> None:
            if owner.mounts.get(client_id) is not mount:
                return
            if mark > committed:
                del owner.mounts[client_id]
                answer(MountState.CLIENT_AHEAD, committed, f"the log ends at {committed}")
            else:
                mount.after_feed(committed, lambda: answer(MountState.READY, committed))
                owner.feeding.wake(mount)

        def expired(error: PolonaiseError) -> None:
            if owner.mounts.get(client_id) is mount:
                del owner.mounts[client_id]
                answer(MountState.NOT_READY, -1, error.text)

        owner.ask(proved, expired)

    def _on_unmount(self, connection: Connection, owner: Owner, message: Unmount, request: int) -> None:
        assert connection.peer is not None
        if owner.mount_of(connection.peer.node, connection) is not None:
            del owner.mounts[connection.peer.node]

    def _on_append(self, connection: Connection, owner: Owner, message: Append, request: int) -> None:
        assert connection.peer is not None
        mount = owner.mount_of(connection.peer.node, connection)
        if mount is None:
            # Void, like everything on a connection without a mount; the client's next mount settles it.
            owner.counts["void_appends"] += message.count
            return
        check_frame(message.count, len(message.columns) + sum(map(len, message.payload)))
        appends = ReceivedAppends(message)
        check_bodies(appends, self._settings.inline_bytes_max)
        if message.generation != owner.generation:
            rows = [Failure(s, owner.generation, FailureReason.GENERATION) for s in appends.sequences.tolist()]
            connection.send(AppendsFailed(owner.generation, encode_failures(rows)), partition=owner.partition)
            return
        owner.append(mount, appends)

    def _on_credit(self, connection: Connection, owner: Owner, message: Credit, request: int) -> None:
        assert connection.peer is not None
        mount = owner.mount_of(connection.peer.node, connection)
        if mount is not None and message.bytes > 0:
            mount.subscription.credit += message.bytes
            owner.feeding.wake(mount)

    def _on_flush(self, connection: Connection, owner: Owner, message: Flush, request: int) -> None:
        assert connection.peer is not None
        mount = owner.mount_of(connection.peer.node, connection)
        if mount is None:
            raise PartitionNotReady("a flush without a mount on this connection")
        if mount.waiting >= _FLUSHES_MAX:
            raise Overloaded(f"{mount.waiting} answers wait for this client to take its feed")

        def proved(committed: TransactionId) -> None:
            mount.after_feed(
                committed, lambda: connection.send(Flushed(committed), request=request, partition=owner.partition)
            )
            owner.feeding.wake(mount)

        owner.ask(proved, lambda error: connection.refuse(error, request=request, partition=owner.partition))

    # ------------------------------------------------------------------ questions

    def _on_high_water_mark(self, connection: Connection, owner: Owner, message: HighWaterMark, request: int) -> None:
        def proved(committed: TransactionId) -> None:
            answer = HighWaterMarkIs(owner.generation, committed)
            connection.send(answer, request=request, partition=owner.partition)

        owner.ask(proved, lambda error: connection.refuse(error, request=request, partition=owner.partition))

    def _on_get_register(self, connection: Connection, owner: Owner, message: GetRegister, request: int) -> None:
        if len(message.key) > KEY_BYTES_MAX:
            raise ProtocolError(f"a register's key of {len(message.key)} bytes; the limit is {KEY_BYTES_MAX}")

        def proved(committed: TransactionId) -> None:
            value = owner.committed_registers.get(message.key)
            answer = RegisterIs(value is not None, committed, value or b"")
            connection.send(answer, request=request, partition=owner.partition)

        owner.ask(proved, lambda error: connection.refuse(error, request=request, partition=owner.partition))

    def _on_read(self, connection: Connection, owner: Owner, message: Read, request: int) -> None:
        wait = questions.wait(owner, self._settings, message)
        self._answer(connection, owner, request, questions.read(owner, self._settings, message), wait)

    def _on_fetch(self, connection: Connection, owner: Owner, message: Fetch, request: int) -> None:
        self._answer(connection, owner, request, questions.fetch(owner, self._settings, message))

    def _on_trim(self, connection: Connection, owner: Owner, message: TrimLog, request: int) -> None:
        self._answer(connection, owner, request, trimming.trim(owner, message))

    def _answer(
        self,
        connection: Connection,
        owner: Owner,
        request: int,
        question: Coroutine[Any, Any, Message],
        wait: Coroutine[Any, Any, None] | None = None,
    ) -> None:
        """Answer in a task of its own, after `wait`; who asks too much at once is not read for a while.

        An answer is made only when the one before was taken: who does not read must not fill this server's memory.
        """
        asking = self._connections[connection]
        asking.waiting += 1
        if asking.waiting >= _QUESTIONS_MAX:
            connection.pause("questions")

        async def run() -> None:
            try:
                if wait is not None:
                    await wait
                async with asking.turn:
                    await connection.wait_writable()
                    async with self._making:
                        answer = await question
                    connection.send(answer, request=request, partition=owner.partition)
            except PolonaiseError as error:
                connection.refuse(error, request=request, partition=owner.partition)
            finally:
                question.close()
                asking.waiting -= 1
                if asking.waiting < _QUESTIONS_MAX:
                    connection.resume("questions")

        self._host.spawn(run(), f"question of {connection.peer_name}")

    # ------------------------------------------------------------------ health

    def health(self) -> dict[str, Any]:
        """How this server is: for operators and the console."""
        return {
            "server": self.id,
            "fragments": str(self._history or ""),
            "storage": {
                name: {"connected": link.session is not None, "error": str(link.last_error or "")}
                for name, link in self._links.items()
            },
            "partitions": {
                str(partition): {
                    "generation": owner.generation,
                    "committed": owner.committed,
                    "ready": owner.writing is not None,
                    "waits_for": owner.waits_for,
                    "engaged": list(owner.writing.engaged) if owner.writing else [],
                    "session": owner.writing.session if owner.writing else None,
                    "mounts": len(owner.mounts),
                    **owner.counts,
                }
                for partition, owner in sorted(self.owners.items())
            },
        }


class _Asking:
    """What one connection asks for."""

    __slots__ = ("turn", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        """Questions that are not answered yet."""
        self.turn = asyncio.Semaphore(_ANSWERS_MAX)
        """Held from when the one before was taken until the answer is sent."""
