"""Answer requests about the cluster (partitions, topics, ids, assignment), so that clients need no coordinator."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final, TypeAlias

from polonaise.coordination import Coordinator
from polonaise.coordination.values import Assignment, ClusterDescription, Versioned
from polonaise.errors import CoordinatorUnavailable, Overloaded, PolonaiseError, UnknownTopic, error_of
from polonaise.host import Host
from polonaise.server.coordinatortrouble import CoordinatorTrouble, answered_within, with_trouble
from polonaise.server.settings import ServerSettings
from polonaise.server.waiters import Waiters
from polonaise.terms import ServerId, counted
from polonaise.wire.codec import Message
from polonaise.wire.messages import AssignmentIs, ClusterIs, DescribeCluster, GetAssignment, GetUniqueId, UniqueIdIs
from polonaise.wire.topics import (
    AssignedPartition,
    DescribeTopic,
    ListTopics,
    encode_assignment,
    encode_topic,
    encode_topics,
)

_AGE_MS_MAX: Final = 2**32 - 1
UNIQUE_IDS: Final = "no unique ids can be given out, which new clients and servers need"
_TROUBLE_S: Final = 1.0
"""How long a request for a newer assignment still waits once the coordinator can't be read: a hiccup must not send all
clients to other servers, nor from one to the next without a pause."""
_KNOWN_TROUBLE_S: Final = 2.0
"""How long the coordinator is waited for while it is known to be out of reach: the client is told before its own
patience ends, and asks another server."""

_IDS_BURST_S: Final = 2.0
"""Ids that the pace allowed in this many idle seconds may be given out at once."""
_OWN_WORDS: Final = "its log and health say why"

Answering: TypeAlias = tuple[Coroutine[Any, Any, Message], Coroutine[Any, Any, None] | None]
"""The coroutine that makes an answer, and one to await before it, which takes nothing from other requests."""


class ClusterAnswers:
    """Answers clients' requests about the cluster, whatever partitions the server owns.

    Anybody who reaches a server's port may ask, even a stranger: a client that has not named the cluster key. Strangers
    are told only the error code of trouble with the coordinator, because the text names addresses and paths.

    The assignment is told as this server knows it, with its version and age, even while the coordinator can't be
    reached: the client decides whether that is good enough. It is encoded once for all clients.
    """

    def __init__(
        self,
        host: Host,
        coordinator: Coordinator,
        settings: ServerSettings,
        trouble: CoordinatorTrouble,
        server: ServerId,
        described: Versioned[ClusterDescription],
        described_s: float,
    ) -> None:
        """`described` is the description that was read at `described_s`, in monotonic seconds."""
        self._host = host
        self._coordinator = coordinator
        self._settings = settings
        self._failing = trouble
        self.server = server
        self.described = described
        """The newest description that was read."""
        self.total = described.value.total
        """The number of all partitions in it: asked for with each message of a client, and it may have many topics."""
        self.described_s = described_s
        """When the description was last read, in monotonic seconds."""
        self._describing = asyncio.Lock()
        self._descriptions = 0
        self._described_by = 0
        self._assignment: Versioned[Assignment] | None = None
        self._encoded: AssignmentIs | None = None
        self._read_s = 0.0
        self._trouble = ""
        """Why the last attempt to read the assignment failed."""
        self._trouble_s = 0.0
        """When they began to fail, in the event loop's seconds."""
        self._ids = _Pace(settings.unique_ids_per_s, settings.coordinator_s_max)
        self._changed = Waiters()
        """Woken when the assignment changes, or trouble begins or ends."""

    def learn(self, read: Versioned[Assignment]) -> None:
        """Note an assignment that was just read or written; if it is newer, answer the waiting requests."""
        changed, self._trouble = bool(self._trouble), ""
        self._read_s = self._host.clock.monotonic_s()
        if self._assignment is None or read.version > self._assignment.version:
            self._assignment, self._encoded = read, None
            changed = True
        if changed:
            self._changed.wake()

    @property
    def description(self) -> ClusterDescription:
        return self.described.value

    @property
    def _coordinator_s(self) -> float:
        most_s = self._settings.coordinator_s_max
        return min(most_s, _KNOWN_TROUBLE_S) if self._trouble or self._coordinator.trouble else most_s

    async def read_description(self) -> ClusterDescription:
        """Read and return the newest description; calls at the same time share their results.

        Raises `CoordinatorUnavailable` after `_coordinator_s`, and what the coordinator raises.
        """
        begun_before, limit_s = self._descriptions, self._coordinator_s
        silence = (
            f"the coordinator did not tell server {self.server} the cluster's description within {limit_s:g} s: "
            "another server may reach it"
        )
        async with answered_within(limit_s, self._coordinator, silence), self._describing:
            if self._described_by <= begun_before:
                self._descriptions += 1
                number, read = self._descriptions, await self._coordinator.description()
                self.learn_description(read)
                self._described_by = number
        return self.description

    def learn_description(self, read: Versioned[ClusterDescription]) -> None:
        """Note a description that was just read, unless a newer one is known."""
        self.described_s = self._host.clock.monotonic_s()
        if read.version > self.described.version:
            self.described, self.total = read, read.value.total

    def note_trouble(self, trouble: str) -> None:
        """Note why the assignment could not be read; waiting requests are told if that lasts `_TROUBLE_S`."""
        begins, self._trouble = not self._trouble, trouble
        if begins:
            self._trouble_s = asyncio.get_running_loop().time()
            self._changed.wake()

    def answering(self, message: Message, *, stranger: bool = False) -> Answering | None:
        """Return the coroutines that answer a request about the cluster; None for any other message."""
        match message:
            case DescribeCluster():
                return self._describe(), None
            case GetUniqueId():
                ids: list[int] = []
                return self._tell_id(ids), self._take_id(ids, stranger)
            case GetAssignment():
                return self._tell_assignment(message, stranger), self._wait_for_newer(message)
            case DescribeTopic():
                return self._tell_topic(message), self._read_for(message, stranger)
            case ListTopics():
                return self._tell_topics(), self._read_for(None, stranger)
            case _:
                return None

    # ------------------------------------------------------------------ description and unique ids

    async def _describe(self) -> ClusterIs:
        return ClusterIs(self.description.partitions)

    async def _read_for(self, request: DescribeTopic | None, stranger: bool) -> None:
        """Read the description for one topic, for which a known one may do, or for all (None)."""
        try:
            await self.read_description()
        except PolonaiseError as error:
            if request is not None and self._suffices(request):
                return
            if not stranger:
                raise
            text = f"server {self.server} can't read the cluster's description: {_OWN_WORDS}"
            raise error_of(error.code, text) from None

    def _suffices(self, request: DescribeTopic) -> bool:
        """Whether the known description has the topic, and is not older than the one that the client knows: it asks
        again when the assignment names a partition that it has not heard of.
        """
        known = self.described
        return (
            known.version >= request.version_known
            and known.value.total >= request.total_known
            and request.topic in known.value.topics
        )

    async def _tell_topic(self, request: DescribeTopic) -> Message:
        version, description = self.described.version, self.described.value
        if version < request.version_known or description.total < request.total_known:
            heard = counted(request.total_known, "partition")
            raise CoordinatorUnavailable(
                f"server {self.server} knows description {version} of {counted(description.total, 'partition')}, and "
                f"this client has heard of description {request.version_known} and {heard}"
            )
        if not request.topic:
            raise UnknownTopic("a topic's name is missing: the log's own partitions are in no topic")
        topic = description.partitions_of(request.topic, version)
        return encode_topic(topic.version, topic.total, topic.ids)

    async def _tell_topics(self) -> Message:
        return encode_topics(self.description.shape)

    async def _take_id(self, ids: list[int], stranger: bool) -> None:
        """Get a unique id from the coordinator in turn, at this server's pace, and append it to `ids`.

        Raises `Overloaded` if too many wait already, `CoordinatorUnavailable` after `_coordinator_s`, and what the
        coordinator raises (to a stranger, without its text). An id that is lost on its way stays unused.
        """
        limit_s = self._coordinator_s
        try:
            async with asyncio.timeout(limit_s):
                await self._ids.turn()
                ids.append(await self._coordinator.unique_id())
            self._failing.succeeded(UNIQUE_IDS)
        except TimeoutError:
            text = (
                f"server {self.server} got no unique id from the coordinator within {limit_s:g} s, its turn for it "
                "included: ask another server, or ask later"
            )
            if not stranger:
                text = with_trouble(text, self._coordinator)
            elif self._trouble or self._coordinator.trouble:  # which tells of the network
                text = f"{text}. The server does not reach its coordinator at present: {_OWN_WORDS}"
            raise CoordinatorUnavailable(text) from None
        except Overloaded:
            raise
        except PolonaiseError as error:
            self._failing.failed(UNIQUE_IDS, error, server=self.server)
            if not stranger:
                raise
            text = f"server {self.server} was given no unique id by the coordinator: {_OWN_WORDS}"
            raise error_of(error.code, text) from None

    async def _tell_id(self, ids: list[int]) -> UniqueIdIs:
        return UniqueIdIs(ids[0])

    # ------------------------------------------------------------------ the assignment

    async def _wait_for_newer(self, request: GetAssignment) -> None:
        """Wait until the assignment is newer than the client's; only `_TROUBLE_S` longer once it can't be read."""
        if not request.wait_ms:
            return
        begun_s = asyncio.get_running_loop().time()
        ends_s = begun_s + min(request.wait_ms / 1000, self._settings.read_wait_s_max)
        while self._version <= request.version_known:
            told_s = max(begun_s, self._trouble_s) + _TROUBLE_S if self._trouble else ends_s
            try:
                async with asyncio.timeout_at(min(told_s, ends_s)):
                    await self._changed.woken()
            except TimeoutError:
                return

    @property
    def _version(self) -> int:
        return -1 if self._assignment is None else self._assignment.version

    async def _tell_assignment(self, request: GetAssignment, stranger: bool) -> AssignmentIs:
        """Return the newest assignment known, without its rows if the client knows it already."""
        trouble = _told_to_strangers(self._trouble) if stranger else self._trouble
        if self._assignment is None:
            because = f": {trouble}" if trouble else ""
            raise CoordinatorUnavailable(f"server {self.server} has not read the assignment yet{because}")
        age_ms = min(int((self._host.clock.monotonic_s() - self._read_s) * 1000), _AGE_MS_MAX)
        if self._assignment.version <= request.version_known:
            return replace(encode_assignment(self._version, ()), age_ms=age_ms, trouble=trouble)
        if self._encoded is None:
            self._encoded = encode_assignment(
                self._version,
                (
                    AssignedPartition(partition, owner.server, owner.address, owner.generation)
                    for partition, owner in self._assignment.value.owners.items()
                ),
            )
        return replace(self._encoded, age_ms=age_ms, trouble=trouble)


class _Pace:
    """A rate limit: `per_s` turns a second on average, in the order in which they were asked for."""

    def __init__(self, per_s: float, wait_s_max: float) -> None:
        """Callers that would have to wait longer than `wait_s_max` seconds are refused."""
        self._per_s = per_s
        self._waiting_max = per_s * wait_s_max
        self._waiting = 0
        self._next_s = float("-inf")
        """When the next turn would be due if turns came evenly."""
        self._turn = asyncio.Lock()

    async def turn(self) -> None:
        if self._waiting > self._waiting_max:
            raise Overloaded(
                f"this server gives out at most {self._per_s:g} unique ids per second: ask another server, or ask later"
            )
        self._waiting += 1
        try:
            async with self._turn:
                now_s = asyncio.get_running_loop().time()
                self._next_s = max(self._next_s, now_s - _IDS_BURST_S)
                if self._next_s > now_s:
                    await asyncio.sleep(self._next_s - now_s)
                self._next_s += 1 / self._per_s
        finally:
            self._waiting -= 1


def _told_to_strangers(trouble: str) -> str:
    """Return the error code with which the text of a trouble begins, in its brackets, and who tells more; or "".

    A text without a code counts as `CoordinatorUnavailable`: without any trouble a client would believe the assignment.
    """
    code = re.match(r"\[\w+\]", trouble)
    return trouble and f"{code[0] if code else '[coordinator_unavailable]'} it can't be read: {_OWN_WORDS}"
