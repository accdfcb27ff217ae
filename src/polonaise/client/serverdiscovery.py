"""A client finds its cluster by asking servers, and needs no coordinator: `polonaise://HOST:PORT,HOST:PORT`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from polonaise.client.discovery import ClusterShape
from polonaise.client.settings import ClientSettings
from polonaise.coordination.values import Assignment, Owner, Versioned
from polonaise.errors import (
    Closed,
    ConnectionLost,
    CoordinatorUnavailable,
    PolonaiseError,
    ProtocolError,
    ServersUnavailable,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
)
from polonaise.host import Host
from polonaise.link import connection as link
from polonaise.link.connection import ANY_CLUSTER, Connection
from polonaise.wire.assignments import AssignedPartition, parse_assignment
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    DISCOVERY_VERSION,
    ROLE_CLIENT,
    ROLE_SERVER,
    AssignmentIs,
    ClusterIs,
    DescribeCluster,
    GetAssignment,
    GetUniqueId,
    UniqueIdIs,
)

M = TypeVar("M", bound=Message)
R = TypeVar("R")

_log = logging.getLogger("polonaise.client")

_MISTAKES: Final = (WrongRole, WrongClusterKey, UnsupportedVersion)
"""Errors that say that an address should not be in the list."""
_STALE_SHARE: Final = 1 / 3
"""The age above which an assignment counts as stale, and the wait for a newer one, as shares of `coordinator_s_max`."""
_STALE_S_MIN: Final = 2.0
"""The lower bound of that age, in seconds: twice as long as servers take from one look at the assignment to the next.
Else every answer would seem stale, and clients would go from server to server for ever."""
_STALE_S_MAX: Final = 60.0
"""The upper bound of both, in seconds."""
_FIRST_S: Final = 1.0
"""Seconds for which a server that has just started is waited for, until it has read the assignment."""


class _ToldAssignment(NamedTuple):
    """An assignment that a server has told, its rows checked."""

    version: int
    age_s: float
    """The seconds since the server has read it."""
    trouble: str
    """Why the server can't read it now; empty if it can."""
    rows: list[AssignedPartition]


class ServerDiscovery:
    """Asks one server at a time, over a connection of its own, and another one as soon as that does not answer.

    Servers are tried in random order, so that clients spread over them: those that did not fail the last time first,
    and those in the list before those that only the assignment names. The list may be out of date, and all its servers
    gone; it is tried again all the same. Each call tries every server at most once, and raises `ServersUnavailable`
    when none has answered; if every one of them is for the same reason no server of this cluster, that reason.

    The cluster key of the first server that answers is kept: servers of another cluster are refused from then on.
    """

    def __init__(self, host: Host, addresses: Sequence[str], settings: ClientSettings) -> None:
        self._host = host
        self._listed = tuple(addresses)
        self._learnt: tuple[str, ...] = ()
        """The addresses of the owners in the newest assignment."""
        self._version = -1
        """The version of that assignment."""
        self._failed: set[str] = set()
        """The addresses that did not answer, or not well, when they were asked last."""
        self._warned: set[str] = set()
        """The addresses that were logged as mistakes in the list."""
        self._key = ANY_CLUSTER
        self._settings = settings
        self._wait_s = min(settings.coordinator_s_max * _STALE_SHARE, _STALE_S_MAX)
        self._stale_s = max(_STALE_S_MIN, self._wait_s)
        self._current: tuple[str, Connection] | None = None
        self._connecting = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._readings = 0
        """How many times the assignment was asked for by `assignment`."""
        self._latest: tuple[int, Versioned[Assignment]] | None = None
        """Of those times the last that succeeded, and what it brought."""
        self._closed = False

    # ------------------------------------------------------------------ the port

    async def describe(self) -> ClusterShape:
        """Return the cluster's key and the number of its partitions."""
        _, partitions = await self._ask(DescribeCluster(), ClusterIs, _partitions_in, {})
        return ClusterShape(self._key, partitions)

    async def unique_id(self) -> int:
        """Return a unique id. One whose answer is lost is used by nobody: each try is given an id of its own."""
        _, unique_id = await self._ask(GetUniqueId(), UniqueIdIs, _id_in, {})
        return unique_id

    async def assignment(self) -> Versioned[Assignment]:
        """Return the assignment as a server knows it; if that is stale, the newest one that any server knows.

        When many ask at the same time, as when all partitions of a server have moved, two of them do so for all.
        """
        begun_before = self._readings
        async with self._reading:
            # What was asked for after this call had begun, and was waited for, is as good as an answer of its own.
            if self._latest is not None and self._latest[0] > begun_before:
                return self._latest[1]
            self._readings += 1
            number, read = self._readings, await self._assignment_now()
            self._latest = number, read
            return read

    async def _assignment_now(self) -> Versioned[Assignment]:
        """Ask for the assignment, as `assignment` says."""
        troubles: dict[str, PolonaiseError] = {}
        best: _ToldAssignment | None = None
        while True:
            try:
                request = GetAssignment(-1, int(_FIRST_S * 1000))
                address, told = await self._ask(request, AssignmentIs, _assignment_in, troubles, _FIRST_S)
            except ServersUnavailable:
                if best is None:
                    raise
                break
            if best is None or told.version > best.version:
                best = told
            stale = self._staleness(address, told)
            if stale is None:
                break
            troubles[address] = stale
        return self._learn(best)

    async def assignment_after(self, version: int) -> Versioned[Assignment]:
        """Return the assignment once a server knows a newer one.

        Raises `CoordinatorUnavailable` if the server that was asked has lost its coordinator; the next call asks
        another one first.
        """
        wait_s = self._wait_s
        while True:
            request = GetAssignment(version, int(wait_s * 1000))
            address, told = await self._ask(request, AssignmentIs, _assignment_in, {}, wait_s)
            if told.version > version:
                return self._learn(told)
            stale = self._staleness(address, told)
            if stale is not None:
                self._leave(address, stale)
                raise stale

    async def close(self) -> None:
        """Close the connection, and make no more."""
        self._closed = True
        if self._current is not None:
            self._current[1].close()

    # ------------------------------------------------------------------ what an assignment is worth

    def _staleness(self, address: str, told: _ToldAssignment) -> CoordinatorUnavailable | None:
        """Return why an assignment may be out of date: its server can't read it now, or has not for too long.

        None if it is not.
        """
        if told.age_s <= self._stale_s and not told.trouble:
            return None
        because = f": {told.trouble}" if told.trouble else ""
        return CoordinatorUnavailable(f"the server {address} last read the assignment {told.age_s:.1f} s ago{because}")

    def _learn(self, told: _ToldAssignment) -> Versioned[Assignment]:
        """Return the assignment that was told, and learn its servers, if it is the newest."""
        if told.version > self._version:
            self._version = told.version
            self._learnt = tuple(sorted({each.address for each in told.rows} - {*self._listed}))
            self._failed &= {*self._listed, *self._learnt}
        owners = {each.partition: Owner(each.server, each.address, each.generation) for each in told.rows}
        return Versioned(told.version, Assignment(owners))

    # ------------------------------------------------------------------ asking

    async def _ask(
        self,
        request: Message,
        answer: type[M],
        read: Callable[[M], R],
        troubles: dict[str, PolonaiseError],
        wait_s: float = 0.0,
    ) -> tuple[str, R]:
        """Ask one server after the other until one answers well, but none in `troubles`.

        Return its address, and what `read` makes of the answer; `read` raises `ProtocolError` for one that is damaged.
        Servers that fail are added to `troubles`. `wait_s` is how long the request lets a server wait.
        """
        while True:
            address, connection = await self._connected(troubles)
            try:
                received = await connection.request(request, deadline_s=self._settings.request_s_max + wait_s)
                if isinstance(received, answer):
                    found = read(received)
                    self._failed.discard(address)
                    return address, found
                raise ProtocolError(
                    f"{address} sent {type(received).__name__}, which is no answer to {type(request).__name__}"
                )
            except PolonaiseError as error:
                if self._closed:
                    raise
                troubles[address] = error
                self._leave(address, error, connection)

    async def _connected(self, troubles: dict[str, PolonaiseError]) -> tuple[str, Connection]:
        """Return the connection in use, or else one to a server that is not in `troubles`, where failures are added.

        Raises `ServersUnavailable` or one of `_MISTAKES` if there is none.
        """
        async with self._connecting:
            if self._current is not None and not self._current[1].closed and self._current[0] not in troubles:
                return self._current
            for address in self._in_order():
                if self._closed:
                    raise Closed("this client was closed: connect a new one")
                if address in troubles:
                    continue
                try:
                    connection = await self._connect(address)
                except PolonaiseError as error:
                    troubles[address] = error
                    self._failed.add(address)
                    continue
                if self._closed:  # meanwhile, and `close` knew nothing of this connection
                    connection.close()
                    break
                self._warn_of_mistakes(troubles)
                if self._current is not None:
                    self._current[1].close()
                self._current = address, connection
                return self._current
        raise self._none_answers(troubles)

    def _warn_of_mistakes(self, troubles: dict[str, PolonaiseError]) -> None:
        """Log, once for each, the addresses that should not be in the list."""
        for address, error in troubles.items():
            if isinstance(error, _MISTAKES) and address not in self._warned:
                self._warned.add(address)
                _log.warning("the list of servers is wrong, and others in it are asked: %s", _reason(address, error))

    def _in_order(self) -> list[str]:
        """Return the addresses of all servers that are known, in the order in which they are to be tried."""
        listed, learnt = list(self._listed), list(self._learnt)
        self._host.random.shuffle(listed)
        self._host.random.shuffle(learnt)
        return sorted([*listed, *learnt], key=self._failed.__contains__)  # stable: only the failed ones move

    async def _connect(self, address: str) -> Connection:
        """Connect to a server. Raises as `link.connect`."""
        hello = link.hello(
            # An older server would refuse by the cluster key, which it takes only from those who know it already.
            ROLE_CLIENT, self._settings.name, cluster_key=self._key, version_min=DISCOVERY_VERSION
        )  # fmt: skip

        def make() -> Connection:
            return Connection(
                self._host,
                hello=hello,
                peer_roles=(ROLE_SERVER,),
                on_message=_refuse_unasked,
                settings=self._settings.link,
            )

        connection = await link.connect(self._host, address, make, deadline_s=self._settings.connect_s_max)
        assert connection.peer is not None
        if self._key == ANY_CLUSTER:
            self._key = connection.peer.cluster_key
        return connection

    def _leave(self, address: str, error: PolonaiseError, connection: Connection | None = None) -> None:
        """Use a server no more, unless all others fail: close the connection to it, if that is still the one in use."""
        self._failed.add(address)
        if self._current is None or self._current[0] != address or connection not in (None, self._current[1]):
            return
        self._current[1].close(ConnectionLost(f"{address} was left for another server: {error}"))
        self._current = None

    def _none_answers(self, troubles: dict[str, PolonaiseError]) -> PolonaiseError:
        """Return the error that names every server with its reason."""
        if self._closed:
            return Closed("this client was closed: connect a new one")
        told = "; ".join(_reason(address, error) for address, error in sorted(troubles.items()))
        kinds = {type(error) for error in troubles.values()}
        if len(kinds) == 1 and issubclass(kind := kinds.pop(), _MISTAKES):
            return kind(f"no server of this cluster is in the list: {told}")
        return ServersUnavailable(f"none of the servers that are known answers, and they are asked again: {told}")


def _reason(address: str, error: PolonaiseError) -> str:
    """Return why a server did not answer, as a phrase that begins with its address."""
    match error:
        case WrongRole():
            return f"{address} is no server: name servers (`polonaise server run --listen …`), not storage nodes"
        case WrongClusterKey():
            return f"{address} is a server of another cluster"
        case UnsupportedVersion():
            return (
                f"{address} is of another version: {error.text}; or connect by the coordinator's address, which every "
                "version takes"
            )
    return error.text if address in error.text else f"{address}: {error.text}"


def _partitions_in(answer: ClusterIs) -> int:
    """Return the number of partitions. Raises `ProtocolError` for a number that no cluster has."""
    if answer.partitions < 1:
        raise ProtocolError(f"a server told of a cluster of {answer.partitions} partitions: clusters have at least one")
    return answer.partitions


def _id_in(answer: UniqueIdIs) -> int:
    """Return the id that was given out. Raises `ProtocolError` for a number that is none."""
    if answer.id < 1:
        raise ProtocolError(f"a server gave out the unique id {answer.id}: ids begin at 1")
    return answer.id


def _assignment_in(answer: AssignmentIs) -> _ToldAssignment:
    """Return the assignment in an answer, with its text made fit for a log. Raises `ProtocolError` for damage."""
    return _ToldAssignment(
        answer.version, answer.age_ms / 1000, link.printable(answer.trouble), parse_assignment(answer)
    )


def _refuse_unasked(_: Connection, message: Message, request: int, partition: int) -> None:
    """Drop an answer that came after its request's deadline. Raises `ProtocolError` for a message that is no answer."""
    if not request:
        raise ProtocolError(f"a server sent {type(message).__name__} without being asked")
