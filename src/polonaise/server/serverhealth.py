"""The health and the measurements of a server, read from its parts whenever somebody asks, or told in warnings."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from polonaise.coordination.values import ClusterDescription
from polonaise.errors import PolonaiseError, ProtocolError
from polonaise.histogram import Histogram
from polonaise.host import Host, network_trouble, unreachable
from polonaise.server.expectedservers import ExpectedServersWatch
from polonaise.server.fragmentwatches import ArchiveLag, FragmentWatches
from polonaise.server.ownedpartitions import OwnedPartitions
from polonaise.server.protocol.owner import PartitionOwner
from polonaise.server.protocol.ownerhealth import health_of
from polonaise.server.protocol.readiness import FAULTS_LAST_S, ReadinessChanges
from polonaise.server.settings import ServerSettings
from polonaise.server.sharedparts import SharedParts
from polonaise.server.storagelinks import StorageLink, expect
from polonaise.server.unservable import UnservablePartitions
from polonaise.terms import PartitionId, ServerId, StorageId, counted, partition_words
from polonaise.wire.messages import Health, HealthIs


class OwnHealth(NamedTuple):
    """The health of a server without its partitions: the fields of a JSON document, in order.

    No trouble is an empty text. What a server does not know yet, or one of an older version does not tell, has its
    default.
    """

    server: ServerId = 0
    """0 before it has one."""
    name: str = ""
    missing_servers: Mapping[str, str] = {}
    """The addresses, by name, of servers that are to be there and were not registered."""
    namesake: str = ""
    """What is wrong with its name, which another server may have, too."""
    coordinator_servers: Sequence[str] = ()
    """A line for each that does not serve."""
    coordinator: str = ""
    not_owning: str = ""
    """Why it owns nothing, if its registration may have run out."""
    given_up: Sequence[PartitionId] = ()
    given_up_why: Mapping[str, str] | None = None
    """Why each of these was given up, without those that another server serves; None if a server does not say why."""
    tls: str = ""
    unreachable: str = ""
    clock: Mapping[str, Any] = {}
    """`ServerClock.health`."""
    fragments: str = ""
    """Where they are; empty without a store."""
    fragments_trouble: str = ""
    fragments_missing: Mapping[str, str] = {}
    """By partition the first id that nothing holds any more."""
    fragments_failed: Mapping[str, str] = {}
    """By partition why a read of the fragments failed by a mistake of ours."""
    required: str = ""
    """What commits need beside a quorum."""
    topics_required: Mapping[str, str] = {}
    fragments_scrub: Mapping[str, Any] | None = None
    """`FragmentScrubbing.health`; None without a store."""
    copies: Mapping[str, Any] = {}
    """`CopyTurns.health`."""
    replication_factor: int | None = None
    """How many copies each partition is to have; 0 before it is known."""
    storage: Mapping[StorageId, Mapping[str, Any]] = {}

    @classmethod
    def told(cls, document: Mapping[str, Any]) -> OwnHealth:
        """Return the health in a document, which a server of another version may have written."""
        return cls(**{name: document[name] for name in cls._fields if name in document})


class ServerMeasures(NamedTuple):
    """Measurements of a server as a whole at one moment. Totals count from the server's start, and never fall."""

    own: OwnHealth
    latencies: Histogram
    """How long each batch took, from the receipt of its oldest append to the commit."""
    totals: Counter[str]
    """The totals of the partitions that it does not own any more: a copy."""
    cluster: ClusterDescription | None = None
    """The description of the server's cluster; None before the server has read it."""
    refused: Mapping[str, int] = {}
    """Clients' messages that were refused, by error code; not what owners refuse by their effects: appends that are not
    ordered, and requests that wait in vain or find no room."""
    connections: int = 0
    """Those on which a client has said hello."""
    connections_bytes: int = 0
    """Held for them: frames not handled yet, and unsent messages that clients don't share."""
    connections_cut_off: int = 0
    """Those cut off because all of them together held too many bytes."""
    requests: int = 0
    """Unanswered, without those that an owner answers, such as appends, mounts and flushes."""
    coordinator_errors: int = 0
    """Failed attempts to follow the assignment, to read members and to renew the lease."""
    missing_servers: int | None = None
    """Servers that are to be there and were not registered; None before the first look."""
    coordinator_servers: Mapping[str, bool] = {}
    """Whether each served at the last look, by its address; none for a directory."""
    store_trouble: str | None = None
    """Why the fragment store can't be used; empty if it can, None without a store, and before the first look."""
    archive: ArchiveLag | None = None
    """None without a store, and before the first look."""


class ServerHealth:
    """Reads the health of a server that runs."""

    def __init__(
        self,
        shared: SharedParts,
        owned: OwnedPartitions,
        unservable: UnservablePartitions,
        expected: ExpectedServersWatch,
        fragments: FragmentWatches | None,
    ) -> None:
        self._shared = shared
        self._owned = owned
        self._unservable = unservable
        self._expected = expected
        self._fragments = fragments
        self._storage = StorageHealth(shared.host, shared.links)

    @property
    def coordinator_trouble(self) -> str:
        """What fails at the coordinator; or else why it can't be reached now."""
        return self._shared.trouble.present(self._shared.coordinator)

    @property
    def waits_for(self) -> str:
        """What a server that does not follow an assignment waits for: nearly always its coordinator."""
        if not_owning := self._shared.membership.not_owning:
            return not_owning
        if trouble := self.coordinator_trouble:
            return f"the server has not read the assignment yet: {trouble}"
        return f"the server has not read the assignment yet from {self._shared.coordinator}, or it is stopping"

    async def ask_storage(self) -> None:
        """Ask the storage nodes for their health, which takes half a second at most."""
        await self._storage.ask()

    def document(self) -> dict[str, Any]:
        """Return the health of this server, its partitions and its storage nodes, as a JSON-ready document."""
        now, owned = self._shared.clock.now(), sorted(self._owned.served.items())
        return {
            **self.own()._asdict(),
            "partitions": {str(partition): health_of(served.owner, now) for partition, served in owned},
        }

    def own(self) -> OwnHealth:
        """Return what `document` says beside the partitions."""
        shared, fragments, given_up = self._shared, self._fragments, self._unservable
        return OwnHealth(
            server=shared.server,
            name=shared.settings.name,
            missing_servers=self._expected.missing,
            namesake=self._expected.trouble,
            coordinator_servers=self._expected.coordinator_troubles(),
            coordinator=self.coordinator_trouble,
            not_owning=shared.membership.not_owning,
            given_up=given_up.not_served_again,
            given_up_why={str(each): why for each, why in given_up.why.items()},
            tls=network_trouble(shared.host.network),
            unreachable=unreachable(shared.host.network),
            clock=shared.clock.health(),
            fragments=str(fragments or ""),
            fragments_trouble=(fragments and fragments.store.trouble) or "",
            fragments_missing={} if fragments is None else fragments.missing,
            fragments_failed={} if fragments is None else fragments.failed,
            required=shared.requirements.told,
            topics_required=shared.requirements.told_of_topics,
            fragments_scrub=None if fragments is None else fragments.scrubbing.health(),
            copies=shared.copies.health(),
            replication_factor=shared.cluster.description.replication_factor,
            storage={name: self._of_storage(name, link) for name, link in shared.links.items()},
        )

    def _of_storage(self, name: StorageId, link: StorageLink) -> dict[str, Any]:
        return {
            # Not what a node said before it went.
            **({} if link.session is None else self._storage.answers.get(name, {})),
            "address": link.address,
            "connected": link.session is not None,
            "connected_at": None if link.session is None else link.session_address,
            "error": str(link.last_error or link.bulk_error or ""),
            "silent_s": link.silent_s,
            **({} if link.resent is None else {"resent_to": link.resent}),
        }


_ANSWER_S: Final = 0.5
"""A storage node has so long to answer: health tells that one is slow, and does not wait for it."""
_FRESH_S: Final = 1.0
"""For so long one round of answers serves all requests."""


class StorageHealth:
    """Asks all storage nodes for their health at the same time, once for all requests of a moment."""

    def __init__(self, host: Host, links: Mapping[StorageId, StorageLink]) -> None:
        self._host = host
        self._links = links
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")
        self.answers: dict[StorageId, dict[str, Any]] = {}
        """The health documents of the last round, by node, without nodes that did not answer."""

    async def ask(self) -> None:
        """Bring `answers` up to date, within about half a second. Raises nothing."""
        if self._asking is None:
            if self._host.clock.monotonic_s() - self._asked_s < _FRESH_S:
                return
            self._asking = self._host.spawn(self._ask_all(), "health of the storage nodes")
        await asyncio.wait([self._asking])

    async def _ask_all(self) -> None:
        try:
            names = list(self._links)
            answers = await asyncio.gather(*(self._ask_one(self._links[name]) for name in names))
            self.answers = {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}
        finally:
            self._asked_s = self._host.clock.monotonic_s()
            self._asking = None

    async def _ask_one(self, link: StorageLink) -> dict[str, Any] | None:
        connection = link.bulk or link.session
        if connection is None:
            return None
        try:
            answer = expect(await connection.request(Health(), deadline_s=_ANSWER_S), HealthIs)
            return _parsed(answer.document)
        except PolonaiseError:
            return None


def _parsed(document: bytes) -> dict[str, Any]:
    """Parse a node's health document. Raises `ProtocolError` unless it is JSON with an object `scrub`."""
    try:
        health = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a storage node's health is not a JSON document") from error
    if not isinstance(health, dict) or not isinstance(health.get("scrub"), dict):
        raise ProtocolError("a storage node's health document has no object 'scrub'")
    return health


_log = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
_NAMED_MAX: Final = 8


class _Trouble:
    """Decides when to warn of a trouble: once it has lasted for `patience_s` seconds, and again every `again_s`.

    Until the first warning, one that shrinks counts as new: while partitions open one after the other, all is well.
    """

    def __init__(self, patience_s: float, again_s: float, over: str = "") -> None:
        self._patience_s = patience_s
        self._again_s = again_s
        self._over = over
        self._since_s: float | None = None
        self._warn_at_s = 0.0
        self._warned = False
        self._size = 0

    def due(self, now: float, size: int) -> float | None:
        """Return the seconds that the trouble has lasted if a warning is due now; with a `size` of 0 it is over."""
        if not size:
            if self._warned and self._over:
                _log.warning("%s", self._over)
            self._since_s, self._warned = None, False
            return None
        shrank, self._size = size < self._size, size
        if self._since_s is None or (shrank and not self._warned):
            self._since_s, self._warn_at_s = now, now + self._patience_s
        if now < self._warn_at_s:
            return None
        self._warn_at_s, self._warned = now + self._again_s, True
        return now - self._since_s


class HealthWarnings:
    """Warns of a server that owns nothing, partitions that are not ready, late replicas, and sessions that faults have
    ended.
    """

    def __init__(
        self,
        host: Host,
        settings: ServerSettings,
        owners: Callable[[], Sequence[PartitionOwner]],
        links: Mapping[StorageId, StorageLink],
        changes: ReadinessChanges,
        not_owning: Callable[[], str] = str,
    ) -> None:
        """`changes` counts what happens to the partitions of `owners`; `not_owning` is as in `ServerMembership`."""
        self._host = host
        self._not_owning = not_owning
        self._idle = _Trouble(settings.warn_s, settings.warn_again_s)
        self._owners = owners
        self._links = links
        self._changes = changes
        self._looked_at = -1
        self._without_session: list[PartitionOwner] = []
        self._with_late: dict[StorageId, list[PartitionOwner]] = {}
        self._waiting = _Trouble(settings.warn_s, settings.warn_again_s)
        self._late = _Trouble(settings.warn_s, settings.warn_again_s, "all storage nodes take part again")
        self._faults = _Trouble(0.0, settings.warn_again_s)
        self._faults_seen: dict[PartitionOwner, int] = {}
        self._last_faulty: PartitionOwner | None = None
        """The owner of the latest fault; None while there is none, or when it owns its partition no more."""
        self._last_fault_s = float("-inf")

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            now = self._host.clock.monotonic_s()
            if self._looked_at != self._changes.count:
                self._look(now)
            reason = self._not_owning()
            if (for_s := self._idle.due(now, bool(reason))) is not None:
                _log.warning("for %.0f s: %s", for_s, reason)
            waiting, late = self._without_session, self._with_late
            if (for_s := self._waiting.due(now, len(waiting))) is not None:
                _log.warning("%s", self._not_ready(waiting, for_s))
            # Not before all partitions are ready: which replicas take part in one that is not ready is not known.
            if not waiting and (for_s := self._late.due(now, bool(late))) is not None:
                _log.warning("%s", self._not_engaged(late, for_s))
            last = self._last_faulty
            lasting = last is not None and now - self._last_fault_s < FAULTS_LAST_S
            if self._faults.due(now, lasting) is not None and last is not None:
                fields = {"partition": last.partition, "generation": last.generation}
                _log.warning(
                    "a session of %s was ended by %s", _named([last]), last.readiness.faults.last, extra=fields
                )

    def _look(self, now: float) -> None:
        self._looked_at = self._changes.count
        owners = [owner for owner in self._owners() if owner.stopped is None]
        self._without_session = [owner for owner in owners if owner.session is None]
        self._with_late = self._late_replicas(owners)
        self._look_for_faults(owners, now)

    def _look_for_faults(self, owners: Sequence[PartitionOwner], now: float) -> None:
        for owner in owners:
            if owner.readiness.faults.total > self._faults_seen.get(owner, 0):
                self._last_faulty, self._last_fault_s = owner, now
        self._faults_seen = {owner: owner.readiness.faults.total for owner in owners}
        if self._last_faulty not in self._faults_seen:
            self._last_faulty = None

    def _late_replicas(self, owners: Sequence[PartitionOwner]) -> dict[StorageId, list[PartitionOwner]]:
        late: dict[StorageId, list[PartitionOwner]] = {}
        for owner in owners:
            if owner.readiness.late and owner.session is not None:
                for name in owner.readiness.late:
                    late.setdefault(name, []).append(owner)
        return late

    def _not_engaged(self, late: Mapping[StorageId, Sequence[PartitionOwner]], for_s: float) -> str:
        troubles = [
            f"{name} in {_named(owners)} ({self._trouble_of(name, owners[0].readiness.late.get(name, ''))})"
            for name, owners in late.items()
        ]
        return (
            f"storage nodes have not taken part for {for_s:.0f} s: {'; '.join(troubles)}. "
            "Commits go on with the others, with fewer copies to spare"
        )

    def _trouble_of(self, name: StorageId, reason: str = "") -> str:
        link = self._links[name]
        if link.session is not None:
            if silent_s := link.silent_s:
                return f"connected, but silent for {silent_s:g} s"
            return f"connected, being brought up to date{': ' if reason else ''}{reason}"
        return str(link.last_error or "not tried yet")

    def _not_ready(self, waiting: Sequence[PartitionOwner], for_s: float) -> str:
        waits_for = waiting[0].readiness.waits_for or "waiting for its next session"
        text = f"not ready for {for_s:.0f} s: {_named(waiting)}. Reason: {waits_for}"
        missing = [f"{name} ({self._trouble_of(name)})" for name, link in self._links.items() if not link.session]
        if missing:
            connected = len(self._links) - len(missing)
            text += (
                f". {connected} of {counted(len(self._links), 'storage node')} connected; "
                f"start these, or see why they can't be reached: {'; '.join(missing)}"
            )
        return text


def _named(owners: Sequence[PartitionOwner]) -> str:
    return partition_words([owner.partition for owner in owners], _NAMED_MAX)
