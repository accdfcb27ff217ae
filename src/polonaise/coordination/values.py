"""The coordinator's values: what the cluster must never forget, and the keys that the values are kept by."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast

from polonaise.coordination.topics import TopicPartitions
from polonaise.errors import CoordinatorDamaged, CoordinatorNewer, UnknownStorageNode, UnknownTopic
from polonaise.redaction import redacted
from polonaise.terms import (
    NO_SESSION,
    NO_TRANSACTION,
    UNRESOLVED,
    ClusterTopics,
    Generation,
    PartitionId,
    ServerId,
    SessionId,
    StorageId,
    TransactionId,
    check_topics,
)
from polonaise.wire.copies import needed_text


class Demand(NamedTuple):
    """An operator's word on what commits need beside a quorum, of a whole cluster or of one topic."""

    number: int
    """A demand that was made later has a larger one, whatever it is of."""
    copies: int
    """The least number of replicas that have synced a batch before it is committed; 0 for a quorum."""
    zones: int
    """The least number of zones that these replicas are in."""

    @classmethod
    def of(cls, fields: Any) -> Demand:
        """Return a demand read from JSON; raises `ValueError` and others."""
        number, copies, zones = fields
        return cls(int(number), int(copies), int(zones))

    def with_other(self, other: Demand | None) -> Demand:
        """Return the demand that meets both. Its number is the larger one: it rises with each change of either."""
        return self if other is None else Demand(*map(max, self, other))

    def among(self, zone_of: Mapping[StorageId, str]) -> Requirement:
        return Requirement(self.number, self.copies, self.zones, zone_of)

    @property
    def told(self) -> str:
        """For operators; empty if nothing is required."""
        return needed_text(self.copies, self.zones)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What each commit of a session needs beside a quorum, as the cluster's description demands."""

    version: int
    """The number of the newest demand that it rests on."""
    copies: int = 0
    """The least number of replicas that have synced a batch before it is committed."""
    zones: int = 0
    """The least number of zones that these replicas are in."""
    zone_of: Mapping[StorageId, str] = field(default_factory=dict)
    """The zones of storage nodes; a node without one counts for none."""

    @classmethod
    def of(cls, fields: Any) -> Requirement:
        """Return a requirement read from JSON; raises `ValueError` and others."""
        version, copies, zones, zone_of = fields
        return cls(int(version), int(copies), int(zones), {str(name): str(zone) for name, zone in zone_of.items()})

    @property
    def fields(self) -> list[Any]:
        """What stands for it in a partition's value."""
        return [self.version, self.copies, self.zones, dict(self.zone_of)]

    @property
    def told(self) -> str:
        """For operators; empty if nothing is required."""
        return needed_text(self.copies, self.zones)

    def lack_of(self, names: Collection[StorageId]) -> str:
        """Return what these replicas lack, for operators; empty if they meet it."""
        if len(names) < self.copies:
            verb = "is" if self.copies == 1 else "are"
            return f"{needed_text(self.copies, 0)} {verb} required, and {len(names)} can be had"
        there = {self.zone_of[name] for name in names if name in self.zone_of}
        if len(there) < self.zones:
            return f"{needed_text(0, self.zones)} are required, and {len(there)} can be had"
        return ""


DESCRIPTION: Final = "description"
ASSIGNMENT: Final = "assignment"
UNIQUE_ID: Final = "unique-id"
UNIQUE_ID_MAX: Final = 2**31 - 1
"""A batch has signed 32-bit client ids."""
EXPECTED: Final = "expected-servers"
"""There from the first server on that has a name."""
MEMBERS: Final = "members"
"""The folder in which each living server has registered its id."""
_PARTITION: Final = "partition-"


def partition_key(partition: PartitionId) -> str:
    return f"{_PARTITION}{partition}"


def is_key(name: str) -> bool:
    partition = name.removeprefix(_PARTITION)
    return name in (DESCRIPTION, ASSIGNMENT, UNIQUE_ID, EXPECTED) or (partition != name and partition.isdecimal())


VERSIONS_APART: Final = 1 << 32
"""How far the versions of values that were made again lie above that of the lost description: a process that has read
the lost values sees these as later ones."""


def made_again(seen: int, found: int) -> bool:
    """Whether a value of version `found` was made again since version `seen`: it needs not follow that."""
    return found >= seen + VERSIONS_APART // 2


class CoordinatorValue:
    """A value that is kept as JSON, in one form only: one that was read loosely would be written back changed. Where
    the JSON is an object, each of its keys is the name of a field of the class: so every version can tell what is
    damaged from what a newer version has added (decision 39)."""

    __slots__ = ()

    def encode(self) -> bytes:
        raise NotImplementedError

    def may_follow(self, earlier: CoordinatorValue) -> bool:
        """Whether a cluster can have this value after that one, as far as is known."""
        return True

    @classmethod
    def _of(cls, fields: Any) -> Self:
        """Return the value read from JSON; raises an error that `decode` translates."""
        raise NotImplementedError

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the value in `raw`, without parts that may be passed over. Raises `CoordinatorDamaged` for anything
        else that `encode` does not write; `CoordinatorNewer` for unknown keys."""
        try:
            document = json.loads(raw)
            cls._check_keys(document)
            value = cls._of(document)
            if value.encode() != raw and not cls._has_more(document):
                raise ValueError("not in the form in which it is written")
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CoordinatorDamaged(f"it is no valid {cls.__name__}: {error}") from error
        return value

    @classmethod
    def _has_more(cls, document: Any) -> bool:
        """Whether there are parts, added by a newer version, that may be passed over."""
        return False

    @classmethod
    def _check_keys(cls, document: Any) -> None:
        """Raise `CoordinatorNewer` for unknown keys: checksums have ruled out damage before."""
        known = {each.name for each in fields(cast(Any, cls))}
        if isinstance(document, dict) and (unknown := sorted(document.keys() - known)):
            raise CoordinatorNewer(
                f"it has {', '.join(map(repr, unknown))}, which this version of Polonaise does not know: a newer one "
                "wrote it"
            )


@dataclass(frozen=True, slots=True)
class Engagement:
    """The last session that a replica was engaged in, and where that session ended for the replica."""

    session: SessionId
    closing: TransactionId = UNRESOLVED
    """The closing mark: what the replica holds above it may not be the log. UNRESOLVED until the end is decided."""

    @property
    def unresolved(self) -> bool:
        return self.closing == UNRESOLVED


@dataclass(frozen=True, slots=True)
class HeadReset:
    """An operator's decision where the log of a partition ends, after the replicas that could prove it were lost."""

    to: TransactionId
    """The id with which the log is to end."""
    source: StorageId
    """The storage node whose copy is taken for the log up to there."""
    known: TransactionId
    """The highest id that the operator was shown as known: what lies between `to` and this one is given up."""
    asked_us: int
    """When the operator decided, in microseconds UTC."""
    session: SessionId = NO_SESSION
    """The session that carried the decision out, if one has."""
    certain: TransactionId = NO_TRANSACTION
    """The id up to which other copies hold the same log as the source: what they hold above is cut. NO_TRANSACTION
    before a session cut copies for it, or for one that it replaces; until it is carried out, it may fall."""
    begun: SessionId = NO_SESSION
    """The first session that cut copies for it, or for one that it replaces, while it is pending."""

    @property
    def is_pending(self) -> bool:
        return self.session == NO_SESSION


@dataclass(frozen=True, slots=True)
class PartitionValue(CoordinatorValue):
    """The one value per partition: who may write, in which session, to which replicas."""

    generation: Generation
    session: SessionId
    members: tuple[StorageId, ...]
    next: tuple[StorageId, ...] | None = None
    """A pending membership, differing from `members` by one, which it becomes at the first engagement that can make the
    change."""
    engagements: Mapping[StorageId, Engagement] = field(default_factory=dict)
    """The last one of each member that was ever engaged."""
    resets: tuple[HeadReset, ...] = ()
    """The resets of the log's head that were carried out, in order, and behind them at most one that is pending. Not
    written while there is none, for versions that know of no resets."""
    required: Requirement | None = None
    """The requirement that the last engaged session acts by; not written where there never was one."""
    outdated: SessionId = NO_SESSION
    """A session that a replica knew of although this value had not given it out: the coordinator was put back to an
    older state, and no session starts on this value. Not written while nobody has found that."""

    @classmethod
    def initial(cls, members: tuple[StorageId, ...]) -> PartitionValue:
        """Return the value of a partition that nobody has owned yet."""
        return cls(generation=0, session=NO_SESSION, members=members)

    def encode(self) -> bytes:
        resets = [
            [r.to, r.source, r.known, r.asked_us, r.session, r.certain, *([r.begun] if r.begun != NO_SESSION else [])]
            for r in self.resets
        ]
        return _encode(
            {
                "resets": resets,
                "required": None if self.required is None else self.required.fields,
                "outdated": None if self.outdated == NO_SESSION else self.outdated,
            },
            generation=self.generation,
            session=self.session,
            members=self.members,
            next=self.next,
            engagements={name: [e.session, e.closing] for name, e in sorted(self.engagements.items())},
        )

    @classmethod
    def _of(cls, fields: Any) -> Self:
        return cls(
            generation=int(fields["generation"]),
            session=int(fields["session"]),
            members=_names(fields, "members"),
            next=None if fields["next"] is None else _names(fields, "next"),
            engagements={name: Engagement(int(s), int(c)) for name, (s, c) in fields["engagements"].items()},
            resets=tuple(
                HeadReset(int(to), str(source), int(known), int(asked_us), int(session), int(certain), *map(int, begun))
                for to, source, known, asked_us, session, certain, *begun in fields.get("resets", ())
            ),
            required=Requirement.of(fields["required"]) if "required" in fields else None,
            outdated=int(fields.get("outdated", NO_SESSION)),
        )


NOBODY: Final[ServerId] = 0
"""The server of an owner that is none: it keeps the generation of a partition until the first server has started."""


@dataclass(frozen=True, slots=True)
class Owner:
    server: ServerId
    address: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class Assignment(CoordinatorValue):
    """Which server owns which partition."""

    owners: Mapping[PartitionId, Owner] = field(default_factory=dict)
    """The owners as they are written, `NOBODY` among them: for whoever gives out the next generation."""

    def owner_of(self, partition: PartitionId) -> Owner | None:
        """Return the server that owns a partition, if one does."""
        owner = self.owners.get(partition)
        return None if owner is None or owner.server == NOBODY else owner

    @property
    def owned(self) -> dict[PartitionId, Owner]:
        """The owner of each partition that a server owns: without `NOBODY`."""
        return {partition: owner for partition, owner in self.owners.items() if owner.server != NOBODY}

    def encode(self) -> bytes:
        return _encode(owners={str(p): [o.server, o.address, o.generation] for p, o in sorted(self.owners.items())})

    @classmethod
    def _of(cls, fields: Any) -> Self:
        return cls({int(p): Owner(int(s), str(a), int(g)) for p, (s, a, g) in fields["owners"].items()})


@dataclass(frozen=True, slots=True)
class ClusterDescription(CoordinatorValue):
    """The description of a cluster: its key, its size, its storage nodes and where these are reached, its topics. What
    is not there is not written, for versions that know of nothing else."""

    key: bytes
    """The cluster key: 16 bytes that every node of this cluster, and every file it writes, carries."""
    partitions: int
    """The number of the log's own partitions, in no topic: their ids are 0 to `partitions - 1`."""
    storage: tuple[StorageId, ...]
    """The names of the storage nodes."""
    addresses: Mapping[StorageId, str] = field(default_factory=dict)
    """The addresses of storage nodes whose address is not their name."""
    zones: Mapping[StorageId, str] = field(default_factory=dict)
    """The zones of the storage nodes that have one: nodes of one zone may be lost together."""
    copies: int | None = None
    """How many copies each partition is to have; None until storage nodes were added or removed: each is to have a copy
    of every partition."""
    draining: tuple[StorageId, ...] = ()
    """The storage nodes that get no more copies."""
    topics: Mapping[str, tuple[PartitionId, ...]] = field(default_factory=dict)
    """The ids of each topic's partitions, by their numbers in the topic, above the log's own ones."""
    required: Demand | None = None
    """What every commit of the cluster needs, once somebody has set it."""
    topics_required: Mapping[str, Demand] = field(default_factory=dict)
    """What every commit to a topic needs. A demand that is taken back stays, as one of no copies and no zones. Each
    change of a demand gives it a number above all others, and each change of `zones` gives every demand a new one."""

    @classmethod
    def new(cls, key: bytes, partitions: int, nodes: Mapping[StorageId, str]) -> ClusterDescription:
        """Return the description of a new cluster with these storage nodes: addresses by name, in order."""
        return cls(key, partitions, tuple(nodes), _other_than_names(nodes))

    def address_of(self, name: StorageId) -> str:
        return self.addresses.get(name, name)

    @property
    def nodes(self) -> dict[StorageId, str]:
        """The addresses of all storage nodes, by name, in the order of `storage`."""
        return {name: self.address_of(name) for name in self.storage}

    def may_follow(self, earlier: CoordinatorValue) -> bool:
        """Whether a cluster can have this description after that one: topics only grow, and none goes."""
        if not isinstance(earlier, ClusterDescription):
            return False
        return self.key == earlier.key and self.shape.may_follow(earlier.shape)

    def may_be_after(self, other: ClusterDescription, others_version: int, version: int) -> bool:
        """Whether a cluster can have had both, this one of `version` no earlier than the other."""
        return self == other if others_version == version else self.may_follow(other)

    @property
    def replication_factor(self) -> int:
        """How many copies each partition is to have."""
        return len(self.storage) if self.copies is None else self.copies

    def with_node(self, name: StorageId, address: str, zone: str = "") -> ClusterDescription:
        """Return the description with this storage node, new or known; it is not drained then."""
        zones = {**self.zones, name: zone} if zone else self.zones
        storage = self.storage if name in self.storage else (*self.storage, name)
        addresses = _other_than_names({**self.nodes, name: address})
        draining = tuple(each for each in self.draining if each != name)
        copies = self.copies if storage == self.storage else self.replication_factor
        changed = replace(self, storage=storage, addresses=addresses, copies=copies, draining=draining)
        return changed._with_zones(zones)

    def drained(self, name: StorageId) -> ClusterDescription:
        """Return the description with this storage node among those that get no more copies. Raises
        `UnknownStorageNode`."""
        self.check_known(name)
        return self if name in self.draining else replace(self, draining=(*self.draining, name))

    def check_known(self, name: StorageId) -> None:
        if name not in self.storage:
            raise UnknownStorageNode(
                f"the cluster has no storage node {redacted(name)!r}; its storage nodes are {', '.join(self.storage)}"
            )

    def without_node(self, name: StorageId) -> ClusterDescription:
        """Return the description without this storage node, with as many copies as before."""
        changed = replace(
            self,
            storage=tuple(each for each in self.storage if each != name),
            addresses={each: address for each, address in self.addresses.items() if each != name},
            copies=self.replication_factor,
            draining=tuple(each for each in self.draining if each != name),
        )
        return changed.zoned(name, "")

    def moved(self, name: StorageId, address: str) -> ClusterDescription:
        return replace(self, addresses=_other_than_names({**self.nodes, name: address}))

    @property
    def total(self) -> int:
        """The number of all partitions: their ids are 0 to `total - 1`."""
        return self.shape.total

    @property
    def shape(self) -> ClusterTopics:
        """The partitions of the cluster, its own ones and its topics'."""
        return ClusterTopics(self.partitions, self.topics)

    def grown(self, topic: str, count: int) -> ClusterDescription:
        """Return the description with `count` more partitions in this topic, which may be new."""
        ids = (*self.topics.get(topic, ()), *range(self.total, self.total + count))
        return replace(self, topics={**self.topics, topic: ids})

    def partitions_of(self, topic: str, version: int) -> TopicPartitions:
        """Return the partitions of this topic, or the log's own for an empty name; `version` is this description's.
        Raises `UnknownTopic`."""
        if topic and topic not in self.topics:
            known = ", ".join(sorted(self.topics)) or "none"
            raise UnknownTopic(
                f"this cluster has no topic {topic!r}; it has {known}: correct the name, or make it "
                f"(polonaise topic create {topic} --partitions N)"
            )
        ids = self.topics[topic] if topic else tuple(range(self.partitions))
        return TopicPartitions(version, self.total, ids, topic)

    @property
    def demands(self) -> dict[str, Demand]:
        """By topic, and under an empty name of the whole cluster."""
        own = {} if self.required is None else {"": self.required}
        return {**own, **self.topics_required}

    @property
    def newest_demand(self) -> int:
        """The number of the demand that was changed last; 0 if there never was one."""
        return max((each.number for each in self.demands.values()), default=0)

    def requirements(self) -> dict[PartitionId, Requirement]:
        """Return the requirement of each partition that has one: the stronger of the cluster's and its topic's."""
        own = dict.fromkeys(range(self.total), self.required)
        for topic, demand in self.topics_required.items():
            own.update(dict.fromkeys(self.topics[topic], demand.with_other(self.required)))
        zone_of = dict(self.zones)
        return {partition: each.among(zone_of) for partition, each in own.items() if each is not None}

    def requiring(self, copies: int, zones: int, topic: str = "") -> ClusterDescription:
        """Return the description with another demand on commits, to this topic or of the whole cluster. Raises
        `UnknownTopic`."""
        demand = Demand(self.newest_demand + 1, copies, zones)
        if not topic:
            return replace(self, required=demand)
        self.partitions_of(topic, 0)
        return replace(self, topics_required={**self.topics_required, topic: demand})

    def zoned(self, name: StorageId, zone: str) -> ClusterDescription:
        zones = {each: there for each, there in self.zones.items() if each != name} | ({name: zone} if zone else {})
        return self._with_zones(zones)

    def _with_zones(self, zones: Mapping[StorageId, str]) -> ClusterDescription:
        """Return the description with other zones: demands have another number then."""
        if zones == self.zones:
            return self
        changed = replace(self, zones=zones)
        for topic, demand in self.demands.items():
            changed = changed.requiring(demand.copies, demand.zones, topic)
        return changed

    @property
    def label(self) -> str:
        return short(self.key)

    def encode(self) -> bytes:
        names = ("addresses", "zones", "topics", "copies", "draining", "required", "topics_required")
        more = {name: getattr(self, name) for name in names}
        return _encode(more, key=str(uuid.UUID(bytes=self.key)), partitions=self.partitions, storage=self.storage)

    @classmethod
    def _of(cls, fields: Any) -> Self:
        storage = _names(fields, "storage")
        addresses, zones = _texts_of(fields, "addresses", storage), _texts_of(fields, "zones", storage)
        if any(name == address for name, address in addresses.items()):
            raise ValueError("an address is given that is the node's name")
        copies = None if fields.get("copies") is None else int(fields["copies"])
        draining = _names(fields, "draining") if "draining" in fields else ()
        if not {*draining} <= {*storage}:
            raise ValueError("a node is drained that is no storage node")
        required = Demand.of(fields["required"]) if "required" in fields else None
        partitions = int(fields["partitions"])
        topics = check_topics(partitions, fields.get("topics", {}))
        topics_required = {topic: Demand.of(each) for topic, each in fields.get("topics_required", {}).items()}
        if not topics_required.keys() <= topics.keys():
            raise ValueError("something is required of a topic that there is not")
        return cls(
            uuid.UUID(fields["key"]).bytes, partitions, storage, addresses, zones, copies, draining, topics, required,
            topics_required,
        )  # fmt: skip


def short(key: bytes) -> str:
    """Return the beginning of a cluster key: enough to tell clusters apart."""
    return key.hex()[:8]


def _other_than_names(nodes: Mapping[StorageId, str]) -> dict[StorageId, str]:
    return {name: address for name, address in nodes.items() if address != name}


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first values of a cluster, perhaps one that takes over a log from elsewhere."""

    partitions: Mapping[PartitionId, PartitionValue] = field(default_factory=dict)
    assignment: Assignment = field(default_factory=Assignment)
    unique_id: int = 0
    """The number up to which unique ids count as given out."""
    version: int = 0
    """The first version of all other values."""
    expected: ExpectedServers | None = None


@dataclass(frozen=True, slots=True)
class UniqueIds(CoordinatorValue):
    """The counter of unique ids: how many were given out is the version of its entry. The value only tells apart two
    counters that were raised to one version, one of them in an older state."""

    raised_us: int = 0
    """When the last id was given out, by the clock of who asked for it, in microseconds UTC; not written for a counter
    as it was made. Versions before 0.2 pass over it."""

    def encode(self) -> bytes:
        return _encode({"raised_us": self.raised_us or None})

    @classmethod
    def _of(cls, fields: Any) -> Self:
        return cls(int(fields.get("raised_us", 0)))


@dataclass(frozen=True, slots=True)
class Registration(CoordinatorValue):
    """The entry of a living server: its id, and the address at which it is reached. What only some versions read is
    written only if there is any, and what a newer version adds behind is passed over: nobody writes another's
    registration back."""

    server: ServerId
    address: str
    preferred: frozenset[PartitionId] = frozenset()
    """Partitions that the server should own, if the balance allows."""
    unable: frozenset[PartitionId] = frozenset()
    """Partitions that it can't serve at present, while others perhaps can."""

    def encode(self) -> bytes:
        more = [sorted(self.preferred)] if self.preferred or self.unable else []
        more += [sorted(self.unable)] if self.unable else []
        return json.dumps([self.server, self.address, *more]).encode()

    @classmethod
    def _of(cls, fields: Any) -> Self:
        server, address, *more = fields
        preferred, unable = (frozenset(map(int, more[place] if place < len(more) else ())) for place in (0, 1))
        return cls(int(server), str(address), preferred, unable)

    @classmethod
    def _has_more(cls, document: Any) -> bool:
        return len(document) > 4


class ExpectedServer(NamedTuple):
    """A server that the cluster is to have: its id and address when it was started last."""

    server: ServerId
    address: str


@dataclass(frozen=True, slots=True)
class ExpectedServers(CoordinatorValue):
    """The servers that the cluster is to have, by name: those that were started with one and that nobody has removed.
    Names are not in the registrations: versions before 0.2 would take one with a name for damaged."""

    servers: Mapping[str, ExpectedServer] = field(default_factory=dict)

    def encode(self) -> bytes:
        return _encode(servers=dict(sorted(self.servers.items())))

    @classmethod
    def _of(cls, fields: Any) -> Self:
        return cls({str(name): ExpectedServer(int(s), str(a)) for name, (s, a) in fields["servers"].items()})

    def missing(self, registered: Collection[Registration]) -> dict[str, ExpectedServer]:
        """Return those that are not registered."""
        there = {each.server for each in registered}
        return {name: each for name, each in self.servers.items() if each.server not in there}

    def name_of(self, server: ServerId) -> str:
        """Return the name of the server with this id, if it has one."""
        return next((name for name, each in self.servers.items() if each.server == server), "")

    def said(self, server: ServerId) -> str:
        return f"{server} ({name})" if (name := self.name_of(server)) else str(server)


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[V]):
    """A value with the version that a compare-and-set must name, and that only rises."""

    version: int
    value: V


def _names(fields: Any, key: str) -> tuple[str, ...]:
    listed = fields[key]
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise TypeError(f"{key} is {listed!r} instead of a list of storage nodes' names")
    return tuple(listed)


def _texts_of(fields: Any, key: str, names: tuple[StorageId, ...]) -> dict[StorageId, str]:
    given = fields.get(key, {})
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise TypeError(f"{key} is {given!r} instead of a text for each storage node")
    if not given.keys() <= {*names}:
        raise ValueError(f"{key} names {', '.join(sorted(given.keys() - {*names}))}, which is no storage node")
    return given


def _encode(more: Mapping[str, Any] | None = None, /, **fields: Any) -> bytes:
    """Return the JSON of these fields, and of those of `more` that are neither None nor empty."""
    given = {name: value for name, value in (more or {}).items() if value not in (None, (), [], {})}
    return json.dumps({**fields, **given}, sort_keys=True, separators=(",", ":"), default=dict).encode()
