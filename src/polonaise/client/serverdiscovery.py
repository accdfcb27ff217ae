"""Find a cluster by asking its servers, without a coordinator: addresses such as `polonaise://HOST:PORT,HOST:PORT`."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from polonaise.client.discovery import ClusterShape
from polonaise.client.links import connect_to_server, refuse_unasked
from polonaise.client.settings import ClientSettings
from polonaise.coordination.topics import TopicPartitions
from polonaise.coordination.values import Assignment, Owner, Versioned
from polonaise.errors import (
    CertificateRefused,
    Closed,
    ConnectionLost,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DeadlineExceeded,
    PolonaiseError,
    ProtocolError,
    TlsNotSpoken,
    TlsRequired,
    UnknownTopic,
    UnsupportedVersion,
    WrongClusterKey,
    WrongRole,
    error_of,
    fault,
)
from polonaise.host import Host
from polonaise.link import connection as link
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import ANY_CLUSTER
from polonaise.link.protocol.peertext import printable
from polonaise.terms import ClusterTopics
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    DISCOVERY_VERSION,
    AssignmentIs,
    ClusterIs,
    DescribeCluster,
    GetAssignment,
    GetUniqueId,
    UniqueIdIs,
)
from polonaise.wire.topics import (
    AssignedPartition,
    DescribeTopic,
    ListTopics,
    TopicIs,
    TopicsAre,
    parse_assignment,
    parse_topic,
    parse_topics,
)

M = TypeVar("M", bound=Message)
R = TypeVar("R")

_log = logging.getLogger("polonaise.client")

_MISTAKES: Final = (WrongRole, WrongClusterKey, UnsupportedVersion)
"""Errors which say that an address should not be in the list of servers."""
_TLS_MISTAKES: Final = (CertificateRefused, TlsRequired, TlsNotSpoken)
"""Errors which say that this side or a server was set up wrongly for TLS."""
_SILENCE: Final = (ConnectionLost, DeadlineExceeded)
"""Errors which say no more of a server than that no answer came from it."""
_STALE_SHARE: Final = 1 / 3
"""The share of `coordinator_s_max` for which a server may let a request for a newer assignment wait, and above which an
assignment's age counts as stale."""
_STALE_S_MIN: Final = 2.0
"""The least stale age, in seconds: twice the time from one of a server's reads of the assignment to the next. With less
every answer would seem stale."""
_STALE_S_MAX: Final = 60.0
"""The most, in seconds, of the stale age and of that wait."""
_FIRST_S: Final = 1.0
"""Seconds that a server which has just started gets to read the assignment."""


class _ToldAssignment(NamedTuple):
    version: int
    age_s: float
    """Seconds since the server read it from the coordinator."""
    trouble: str
    """Why the server can't read it at present; empty if it can."""
    rows: list[AssignedPartition]


class ServerDiscovery:
    """The discovery that asks one server at a time over a separate connection, and the next when one does not answer.

    Servers are tried in random order, so that clients spread over them: first those that did not fail when last tried,
    and among these the listed ones. Owners that the assignment names stand in when the list is out of date.

    Each call, or each wait of `assignment_after`, tries every server at most once, and raises `servers_unavailable` if
    none answered; `CoordinatorUnavailable` if one answered that its coordinator did not; an error of TLS if TLS was all
    that failed; and the error which shows that an address should not be in the list, if all failed with it.

    The cluster key of the first server that answers is kept: servers of another cluster are refused from then on.
    """

    def __init__(self, host: Host, addresses: Sequence[str], settings: ClientSettings) -> None:
        self._host = host
        self._listed = tuple(addresses)
        self._learnt: tuple[str, ...] = ()
        """The owners in the newest assignment that are not listed."""
        self._version = -1
        """The version of the newest assignment; -1 before the first."""
        self._failed: set[str] = set()
        """The addresses that failed when last tried: no valid answer, or, in `assignment_after`, a stale one."""
        self._warned: set[str] = set()
        """The addresses that were already logged as mistakes."""
        self._key = ANY_CLUSTER
        self._settings = settings
        self._wait_s = min(settings.coordinator_s_max * _STALE_SHARE, _STALE_S_MAX)
        self._stale_s = max(_STALE_S_MIN, self._wait_s)
        self._current: tuple[str, Connection] | None = None
        self._asking: Counter[Connection] = Counter()
        """How many requests wait for answers, by connection: one that was left is closed after the last of them."""
        self._connecting = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._readings = 0
        """How often `assignment` has begun to ask servers."""
        self._latest: tuple[int, Versioned[Assignment]] | None = None
        """The number, by `_readings`, of the last reading that succeeded, and its result."""
        self._troubles: dict[str, PolonaiseError] = {}
        """The errors of the servers that the latest call has asked in vain, by address."""
        self._closed = False

    # ------------------------------------------------------------------ the port

    @property
    def trouble(self) -> str:
        return _told_by(self._troubles)

    async def describe(self) -> ClusterShape:
        _, partitions = await self._ask(DescribeCluster(), ClusterIs, _partitions_in, {})
        return ClusterShape(self._key, partitions)

    async def topic(self, name: str, known: TopicPartitions | None = None, total: int = 0) -> TopicPartitions:
        request = DescribeTopic(-1 if known is None else known.version, total, name)
        wait_s = self._settings.coordinator_s_max
        _, topic = await self._ask(request, TopicIs, lambda answer: _topic_in(answer, name, known, total), {}, wait_s)
        return topic

    async def topics(self) -> ClusterTopics:
        _, topics = await self._ask(ListTopics(), TopicsAre, parse_topics, {}, self._settings.coordinator_s_max)
        return topics

    async def server_addresses(self) -> set[str]:
        """Return the addresses in the list, and those of the owners: of other servers this client hears nothing."""
        return {*self._listed, *self._learnt}

    async def unique_id(self) -> int:
        _, unique_id = await self._ask(GetUniqueId(), UniqueIdIs, _id_in, {})
        return unique_id

    async def assignment(self) -> Versioned[Assignment]:
        """Return the assignment as a server knows it; if that is stale, others are asked, and the newest is returned.
        Concurrent calls share their results: however many there are, as when all partitions of a server have moved, at
        most two of them ask servers, unless those fail."""
        begun_before = self._readings
        async with self._reading:
            # A reading that began after this call had begun is as good as one of its own.
            if self._latest is not None and self._latest[0] > begun_before:
                return self._latest[1]
            self._readings += 1
            number, read = self._readings, await self._assignment_now()
            self._latest = number, read
            return read

    async def _assignment_now(self) -> Versioned[Assignment]:
        """Ask servers until one has a fresh assignment, or all were asked; return the newest. Raises as
        `_none_answers`."""
        troubles: dict[str, PolonaiseError] = {}
        best: _ToldAssignment | None = None
        while True:
            try:
                request = GetAssignment(-1, int(_FIRST_S * 1000))
                address, told = await self._ask(request, AssignmentIs, _assignment_in, troubles, _FIRST_S)
            except PolonaiseError:  # of all servers: the stale answers are the best that there is
                if best is None or self._closed:
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
        """Wait until a server knows a newer assignment, and return it: a stale one only if it is news. Raises
        `CoordinatorUnavailable` if the server has lost its coordinator; the next call asks another first."""
        wait_s = self._wait_s
        while True:
            request = GetAssignment(version, int(wait_s * 1000))
            address, told = await self._ask(request, AssignmentIs, _assignment_in, {}, wait_s)
            stale = self._staleness(address, told)
            if told.version > version and (stale is None or told.version > self._version):
                return self._learn(told)
            if stale is not None:
                self._leave(address)
                raise stale

    async def close(self) -> None:
        self._closed = True
        closing = list(self._asking)
        if self._current is not None:
            closing.append(self._current[1])
        for connection in closing:
            connection.close()
        await link.gone(closing)

    # ------------------------------------------------------------------ how fresh an assignment is

    def _staleness(self, address: str, told: _ToldAssignment) -> PolonaiseError | None:
        """Return why a told assignment may be out of date; None if it is fresh. The error is `CoordinatorUnavailable`,
        or of the kind that the server names if it can't use what it reads."""
        if told.age_s <= self._stale_s and not told.trouble:
            return None
        because = f": {told.trouble}" if told.trouble else ""
        code = re.match(r"\[(\w+)\]", told.trouble)
        error = error_of(code[1] if code else "", "")
        kind = type(error) if isinstance(error, CoordinatorDamaged) else CoordinatorUnavailable
        return kind(f"the server {address} last read the assignment {told.age_s:.1f} s ago{because}")

    def _learn(self, told: _ToldAssignment) -> Versioned[Assignment]:
        """Return the told assignment as the coordinator's values; remember its servers if it is the newest."""
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
        """Ask one server after another, but none in `troubles`, until one gives a valid answer. Return that server's
        address, and what `read` makes of its answer; `read` raises `ProtocolError` for an invalid one. Servers that
        fail are added to `troubles`. The request itself lets the server wait for `wait_s` seconds."""
        self._troubles = troubles
        while True:
            address, connection = await self._connected(troubles)
            self._asking[connection] += 1
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
                # No fault of the server, which has asked the coordinator: the others would say the same.
                if self._closed or isinstance(error, UnknownTopic):
                    raise
                troubles[address] = error
                self._leave(address, connection)
            finally:
                self._asking[connection] -= 1
                if not self._asking[connection]:
                    del self._asking[connection]
                    self._close_unless_used(connection)

    async def _connected(self, troubles: dict[str, PolonaiseError]) -> tuple[str, Connection]:
        """Return the connection in use, or else a new one to a server that is not in `troubles`. Servers that can't be
        connected to are added to `troubles`. Raises as `_none_answers` says, and `Closed`."""
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
                if self._closed:  # by a call of `close` meanwhile, which could not close this connection
                    connection.close()
                    break
                self._warn_of_mistakes(troubles)
                before, self._current = self._current, (address, connection)
                if before is not None:
                    self._close_unless_used(before[1])
                return self._current
        raise self._none_answers(troubles)

    def _warn_of_mistakes(self, troubles: dict[str, PolonaiseError]) -> None:
        for address, error in troubles.items():
            if isinstance(error, _MISTAKES + _TLS_MISTAKES) and address not in self._warned:
                self._warned.add(address)
                what = "correct the list of servers" if isinstance(error, _MISTAKES) else "mend TLS with this server"
                _log.warning("%s (the others in the list are asked): %s", what, _reason(address, error))

    def _in_order(self) -> list[str]:
        listed, learnt = list(self._listed), list(self._learnt)
        self._host.random.shuffle(listed)
        self._host.random.shuffle(learnt)
        return sorted([*listed, *learnt], key=self._failed.__contains__)  # stable: only the failed ones move

    async def _connect(self, address: str) -> Connection:
        connection = await connect_to_server(
            self._host, address, self._settings, refuse_unasked, cluster_key=self._key,
            # The oldest version that answers discovery requests. Otherwise an older server would refuse because of the
            # missing cluster key, and the error would not say that the server is too old.
            version_min=DISCOVERY_VERSION,
        )  # fmt: skip
        if self._key == ANY_CLUSTER:
            self._key = connection.peer.cluster_key
        return connection

    def _leave(self, address: str, connection: Connection | None = None) -> None:
        self._failed.add(address)
        if self._current is None or self._current[0] != address or connection not in (None, self._current[1]):
            return
        left, self._current = self._current[1], None
        self._close_unless_used(left)

    def _close_unless_used(self, connection: Connection) -> None:
        """Close a connection that was left, unless a request still waits for its answer."""
        if connection not in self._asking and (self._current is None or self._current[1] is not connection):
            connection.close()

    def _none_answers(self, troubles: dict[str, PolonaiseError]) -> PolonaiseError:
        """Return the error for a call that no server has answered: it names every server with the reason.
        `CoordinatorUnavailable`, or `CoordinatorDamaged` or one of its kinds, if a server says that of its coordinator:
        the list is right then. A server whose TLS this side can't talk to tells more than those that do not answer."""
        if self._closed:
            return Closed("this client was closed: connect a new one")
        told = _told_by(troubles)
        errors = troubles.values()
        for error in errors:
            if isinstance(error, CoordinatorDamaged):  # it answers, and what it holds is lost, older or damaged
                return type(error)(f"the servers can't use what their coordinator holds: {told}")
        if any(isinstance(error, CoordinatorUnavailable) for error in errors):
            return CoordinatorUnavailable(
                "the servers that answer can't reach the coordinator: start it again, or mend the way from them to it "
                f"(`polonaise cluster status` asks it from here): {told}"
            )
        kinds = {type(error) for error in errors}
        if len(kinds) == 1 and issubclass(kind := next(iter(kinds)), _MISTAKES):
            return kind(f"no server of this cluster is in the list: {told}")
        tls = Counter(type(error) for error in errors if isinstance(error, _TLS_MISTAKES))
        if tls and all(isinstance(error, _TLS_MISTAKES + _MISTAKES + _SILENCE) for error in errors):
            ((kind, _),) = tls.most_common(1)
            return kind(f"TLS with the known servers fails: {told}")
        return fault(
            "servers_unavailable", f"none of the known servers answered: start one, or correct the list of them: {told}"
        )


def _told_by(troubles: dict[str, PolonaiseError]) -> str:
    return "; ".join(_reason(address, error) for address, error in sorted(troubles.items()))


def _reason(address: str, error: PolonaiseError) -> str:
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
    if answer.partitions < 1:
        raise ProtocolError(f"a server told of a cluster of {answer.partitions} partitions: clusters have at least one")
    return answer.partitions


def _topic_in(answer: TopicIs, name: str, known: TopicPartitions | None, total: int) -> TopicPartitions:
    """Return the topic in an answer. Raises `ProtocolError` for one that does not go on from what is known."""
    topic = TopicPartitions(answer.version, answer.total, parse_topic(answer), name)
    if topic.total < total or (known is not None and not topic.goes_on_from(known)):
        raise ProtocolError(
            f"a server told of description {topic.version} with {len(topic.ids)} partitions of topic {name} and "
            f"{topic.total} of the cluster, which does not go on from what is known"
        )
    return topic


def _id_in(answer: UniqueIdIs) -> int:
    if answer.id < 1:
        raise ProtocolError(f"a server gave out the unique id {answer.id}: ids begin at 1")
    return answer.id


def _assignment_in(answer: AssignmentIs) -> _ToldAssignment:
    return _ToldAssignment(answer.version, answer.age_ms / 1000, printable(answer.trouble), parse_assignment(answer))
