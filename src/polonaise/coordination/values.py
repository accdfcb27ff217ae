"""The coordinator's values: what the cluster must never forget, and the keys that the values are kept by."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, cast

from polonaise.coordination.requirement import Demand, Requirement
from polonaise.coordination.topics import TopicPartitions
from polonaise.errors import CoordinatorDamaged, CoordinatorNewer, UnknownStorageNode, UnknownTopic
from polonaise.redaction import redacted
from polonaise.terms import (
    NO_SESSION,
    NO_TRANSACTION,
    UNRESOLVED,
    Generation,
    PartitionId,
    ServerId,
    SessionId,
    StorageId,
    TransactionId,
)
from polonaise.topics import ClusterTopics, check_topics

DESCRIPTION: Final = "description"
ASSIGNMENT: Final = "assignment"
UNIQUE_ID: Final = "unique-id"
EXPECTED: Final = "expected-servers"
"""Which servers the cluster is to have. It is there from the first server on that has a name."""
MEMBERS: Final = "members"
"""The folder in which each living server has registered a name: its id."""
_PARTITION: Final = "partition-"


def partition_key(partition: PartitionId) -> str:
    """Return the key of a partition's value."""
    return f"{_PARTITION}{partition}"


def is_key(name: str) -> bool:
    """Tell whether this is the key of one of the values that a cluster may have."""
    partition = name.removeprefix(_PARTITION)
    return name in (DESCRIPTION, ASSIGNMENT, UNIQUE_ID, EXPECTED) or (partition != name and partition.isdecimal())


VERSIONS_APART: Final = 1 << 32
"""How far the versions of values that were made again lie above that of the lost description, so that a process that
has read the lost values sees these as later ones."""


def made_again(seen: int, found: int) -> bool:
    """Whether a value of version `found` was made again since one of version `seen` was: it needs not follow that."""
    return found >= seen + VERSIONS_APART // 2


class CoordinatorValue:
    """A value that is kept as JSON, in one form only: a value that was read loosely would be written back changed.

    Where the JSON is an object, each of its keys is the name of a field of the class, so that every version can tell
    what is damaged from what a newer version has added: decision 39 says how a value may change.
    """

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the value as JSON."""
        raise NotImplementedError

    def may_follow(self, earlier: CoordinatorValue) -> bool:
        """Whether a cluster can have this value after that one. True where nothing is known to say no."""
        return True

    @classmethod
    def _of(cls, fields: Any) -> Self:
        """Return the value with these fields, read from JSON. Raises one of the errors that `decode` translates."""
        raise NotImplementedError

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Return the value in `raw`, without parts that may be passed over (`_has_more`).

        Raises `CoordinatorDamaged` for anything else that `encode` does not write; for keys that this version does not
        know, that is a `CoordinatorNewer`.
        """
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
        """Tell whether the value has parts, added by a newer version, that may be passed over.

        Only a `Registration` can have such parts.
        """
        return False

    @classmethod
    def _check_keys(cls, document: Any) -> None:
        """Raise `CoordinatorNewer` for an object with keys that are no fields of this version.

        It is not taken for damage, which a directory finds before by its checksum, and ZooKeeper by its own: what reads
        as JSON is what somebody has written.
        """
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
        """Whether the session's end is undecided."""
        return self.closing == UNRESOLVED


@dataclass(frozen=True, slots=True)
class HeadReset:
    """An operator's decision where the log of a partition ends, after the replicas that could prove it were lost."""

    to: TransactionId
    """The id with which the log is to end; NO_TRANSACTION for an empty log."""
    source: StorageId
    """The storage node whose copy is taken for the log up to `to`."""
    known: TransactionId
    """The highest id that the operator was shown as known to anybody: what lies between `to` and this one is given up.
    """
    asked_us: int
    """When the operator decided, in microseconds UTC."""
    session: SessionId = NO_SESSION
    """The session that carried the decision out; NO_SESSION until one has."""
    certain: TransactionId = NO_TRANSACTION
    """The id up to which other copies hold the same log as the source: what they hold above is cut.

    NO_TRANSACTION before a session cut copies for it, or for one that it replaces, or carried it out; until it is
    carried out, it may fall.
    """
    begun: SessionId = NO_SESSION
    """The first session that cut copies for it, or for one that it replaces, while it is pending; else not written."""

    @property
    def is_pending(self) -> bool:
        """Whether no session has carried the decision out yet."""
        return self.session == NO_SESSION


@dataclass(frozen=True, slots=True)
class PartitionValue(CoordinatorValue):
    """The one value per partition: who may write, in which session, to which replicas."""

    generation: Generation
    session: SessionId
    members: tuple[StorageId, ...]
    next: tuple[StorageId, ...] | None = None
    """A pending membership, differing from `members` by one. It becomes `members` at the first engagement that can make
    the change; None if none is pending."""
    engagements: Mapping[StorageId, Engagement] = field(default_factory=dict)
    """The last engagement of each member; members that were never engaged are missing."""
    resets: tuple[HeadReset, ...] = ()
    """The resets of the log's head that were carried out, in order, and behind them at most one that is pending. One
    that was replaced or withdrawn is not kept. Not written while there is none, so that the value stays readable for
    versions that know of no resets."""
    required: Requirement | None = None
    """The requirement that the last engaged session acts by; None, and not written, where there never was one."""
    outdated: SessionId = NO_SESSION
    """A session that a replica knew of although this value had not given it out: the coordinator was put back to an
    older state, and no session starts on this value. NO_SESSION, and not written, while nobody has found that."""

    @classmethod
    def initial(cls, members: tuple[StorageId, ...]) -> PartitionValue:
        """Return the value of a partition that nobody has owned yet."""
        return cls(generation=0, session=NO_SESSION, members=members)

    def encode(self) -> bytes:
        engagements = {name: [e.session, e.closing] for name, e in sorted(self.engagements.items())}
        more: dict[str, Any] = {}
        if self.required is not None:
            more["required"] = self.required.fields
        if self.outdated != NO_SESSION:
            more["outdated"] = self.outdated
        resets = [
            [r.to, r.source, r.known, r.asked_us, r.session, r.certain, *([r.begun] if r.begun != NO_SESSION else [])]
            for r in self.resets
        ]
        return _encode(
            **({"resets": resets} if resets else {}),
            **more,
            generation=self.generation,
            session=self.session,
            members=list(self.members),
            next=None if self.next is None else list(self.next),
            engagements=engagements,
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
"""The server of an owner that is no server: it keeps the generation of a partition whose values were made anew, until
the first server has started."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The one server that may serve a partition, and under which generation."""

    server: ServerId
    address: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class Assignment(CoordinatorValue):
    """Which server owns which partition. A partition without an owner is missing."""

    owners: Mapping[PartitionId, Owner] = field(default_factory=dict)
    """The owners as they are written, `NOBODY` among them: for whoever gives out the next generation."""

    def owner_of(self, partition: PartitionId) -> Owner | None:
        """Return the server that owns a partition; None if no server does."""
        owner = self.owners.get(partition)
        return None if owner is None or owner.server == NOBODY else owner

    @property
    def owned(self) -> dict[PartitionId, Owner]:
        """The owner of each partition that a server owns."""
        return {partition: owner for partition, owner in self.owners.items() if owner.server != NOBODY}

    def encode(self) -> bytes:
        return _encode(owners={str(p): [o.server, o.address, o.generation] for p, o in sorted(self.owners.items())})

    @classmethod
    def _of(cls, fields: Any) -> Self:
        return cls({int(p): Owner(int(s), str(a), int(g)) for p, (s, a, g) in fields["owners"].items()})


@dataclass(frozen=True, slots=True)
class ClusterDescription(CoordinatorValue):
    """The description of a cluster: its key, its size, its storage nodes and where these are reached, its topics.

    Changed by compare-and-set. What is not there is not written: a cluster whose storage nodes are all named by their
    addresses, and of which only key, partitions and nodes are set, has the description that versions before 0.2 write
    and read.
    """

    key: bytes
    """The cluster key: 16 bytes that every node of this cluster, and every file it writes, carries."""
    partitions: int
    """The number of the log's own partitions, those in no topic: their ids are 0 to `partitions - 1`."""
    storage: tuple[StorageId, ...]
    """The names of the storage nodes. Which of them hold a partition's replicas is in the partition's value."""
    addresses: Mapping[StorageId, str] = field(default_factory=dict)
    """The addresses of the storage nodes whose address is not their name."""
    zones: Mapping[StorageId, str] = field(default_factory=dict)
    """The zones of the storage nodes that have one: nodes of one zone may be lost together."""
    copies: int | None = None
    """How many copies each partition is to have, once storage nodes were added or removed; None before that, when each
    node is to have a copy of every partition."""
    draining: tuple[StorageId, ...] = ()
    """The storage nodes that are being drained: they get no more copies."""
    topics: Mapping[str, tuple[PartitionId, ...]] = field(default_factory=dict)
    """The ids of each topic's partitions, by their numbers in the topic. Ids of topics follow the log's own ones."""
    required: Demand | None = None
    """What every commit of the cluster needs; None, and not written, until somebody sets it."""
    topics_required: Mapping[str, Demand] = field(default_factory=dict)
    """What every commit to a topic needs, for each topic that somebody has set it for. A demand that is taken back
    stays, as one of no copies and no zones. Each change of a demand gives it a number above all others, and each change
    of `zones` gives every demand a new one."""

    @classmethod
    def new(cls, key: bytes, partitions: int, nodes: Mapping[StorageId, str]) -> ClusterDescription:
        """Return the description of a new cluster with these storage nodes: addresses by name, in order."""
        return cls(key, partitions, tuple(nodes), _other_than_names(nodes))

    def address_of(self, name: StorageId) -> str:
        """Return the address at which this storage node is reached."""
        return self.addresses.get(name, name)

    @property
    def nodes(self) -> dict[StorageId, str]:
        """The addresses of all storage nodes, by name, in the order of `storage`."""
        return {name: self.address_of(name) for name in self.storage}

    def may_follow(self, earlier: CoordinatorValue) -> bool:
        """Whether a cluster can have this description after that one: topics only grow, and none goes."""
        if not isinstance(earlier, ClusterDescription):
            return False
        kept = all(self.topics.get(name, ())[: len(ids)] == ids for name, ids in earlier.topics.items())
        return kept and (self.key, self.partitions) == (earlier.key, earlier.partitions)

    def may_be_after(self, other: ClusterDescription, others_version: int, version: int) -> bool:
        """Whether a cluster can have had both descriptions, this one of `version` no earlier than the other one."""
        return self == other if others_version == version else self.may_follow(other)

    @property
    def replication_factor(self) -> int:
        """How many copies each partition is to have."""
        return len(self.storage) if self.copies is None else self.copies

    def with_node(self, name: StorageId, address: str, zone: str = "") -> ClusterDescription:
        """Return the description with this storage node, a new one or one that it has; the node is not drained then."""
        zones = {**self.zones, name: zone} if zone else self.zones
        storage = self.storage if name in self.storage else (*self.storage, name)
        addresses = _other_than_names({**self.nodes, name: address})
        draining = tuple(each for each in self.draining if each != name)
        copies = self.copies if storage == self.storage else self.replication_factor
        changed = replace(self, storage=storage, addresses=addresses, copies=copies, draining=draining)
        return changed._with_zones(zones)

    def drained(self, name: StorageId) -> ClusterDescription:
        """Return the description with this storage node among those that get no more copies.

        Raises `UnknownStorageNode` if it is none of the cluster's: it may have been removed since it was looked up.
        """
        self.check_known(name)
        return self if name in self.draining else replace(self, draining=(*self.draining, name))

    def check_known(self, name: StorageId) -> None:
        """Raise `UnknownStorageNode` if the cluster has no storage node of this name."""
        if name not in self.storage:
            raise UnknownStorageNode(
                f"the cluster has no storage node {redacted(name)!r}; its storage nodes are {', '.join(self.storage)}"
            )

    def without_node(self, name: StorageId) -> ClusterDescription:
        """Return the description without this storage node. How many copies a partition is to have stays as it is."""
        changed = replace(
            self,
            storage=tuple(each for each in self.storage if each != name),
            addresses={each: address for each, address in self.addresses.items() if each != name},
            copies=self.replication_factor,
            draining=tuple(each for each in self.draining if each != name),
        )
        return changed.zoned(name, "")

    def moved(self, name: StorageId, address: str) -> ClusterDescription:
        """Return the description with another address for this storage node."""
        return replace(self, addresses=_other_than_names({**self.nodes, name: address}))

    @property
    def total(self) -> int:
        """The number of all partitions, the log's own and those of topics: their ids are 0 to `total - 1`."""
        return self.partitions + sum(map(len, self.topics.values()))

    @property
    def shape(self) -> ClusterTopics:
        """The partitions of the cluster, its own ones and its topics'."""
        return ClusterTopics(self.partitions, self.topics)

    def grown(self, topic: str, count: int) -> ClusterDescription:
        """Return the description with `count` more partitions in this topic, which is new if there is none yet."""
        ids = (*self.topics.get(topic, ()), *range(self.total, self.total + count))
        return replace(self, topics={**self.topics, topic: ids})

    def partitions_of(self, topic: str, version: int) -> TopicPartitions:
        """Return the partitions of this topic, or of the log's own for an empty name. Raises `UnknownTopic`.

        `version` is that of this description.
        """
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
        """What somebody has required: by topic, and under an empty name of the whole cluster."""
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
        """Return the description with another demand on commits: to this topic or, without one, of the whole cluster.

        Raises `UnknownTopic`.
        """
        demand = Demand(self.newest_demand + 1, copies, zones)
        if not topic:
            return replace(self, required=demand)
        self.partitions_of(topic, 0)
        return replace(self, topics_required={**self.topics_required, topic: demand})

    def zoned(self, name: StorageId, zone: str) -> ClusterDescription:
        """Return the description with this storage node in another zone; an empty one for none."""
        zones = {each: there for each, there in self.zones.items() if each != name} | ({name: zone} if zone else {})
        return self._with_zones(zones)

    def _with_zones(self, zones: Mapping[StorageId, str]) -> ClusterDescription:
        """Return the description with other zones: demands have another number then, since requirements go by them."""
        if zones == self.zones:
            return self
        changed = replace(self, zones=zones)
        for topic, demand in self.demands.items():
            changed = changed.requiring(demand.copies, demand.zones, topic)
        return changed

    @property
    def label(self) -> str:
        """The beginning of the key: enough for people and metrics to tell clusters apart."""
        return self.key.hex()[:8]

    def encode(self) -> bytes:
        given = {"addresses": self.addresses, "zones": self.zones, "topics": self.topics}
        more: dict[str, Any] = {what: dict(values) for what, values in given.items() if values}
        if self.copies is not None:
            more["copies"] = self.copies
        if self.draining:
            more["draining"] = list(self.draining)
        if self.required is not None:
            more["required"] = list(self.required)
        if self.topics_required:
            more["topics_required"] = {topic: list(demand) for topic, demand in self.topics_required.items()}
        return _encode(
            key=str(uuid.UUID(bytes=self.key)), partitions=self.partitions, storage=list(self.storage), **more
        )

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


def _other_than_names(nodes: Mapping[StorageId, str]) -> dict[StorageId, str]:
    return {name: address for name, address in nodes.items() if address != name}


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first values of a cluster that takes over a log from elsewhere. Defaults are those of a new cluster."""

    partitions: Mapping[PartitionId, PartitionValue] = field(default_factory=dict)
    assignment: Assignment = field(default_factory=Assignment)
    unique_id: int = 0
    """The number up to which unique ids count as given out."""
    version: int = 0
    """The first version of all other values."""
    expected: ExpectedServers | None = None
    """The servers that the cluster is to have; None if none is known."""


@dataclass(frozen=True, slots=True)
class UniqueIds(CoordinatorValue):
    """The counter of unique ids. How many were given out is the version of its entry.

    The value only tells apart two counters that were raised to one version, one of them in an older state.
    """

    raised_us: int = 0
    """When the last id was given out, by the clock of who asked for it, in microseconds UTC. 0, and not written, for a
    counter as it was made. Versions before 0.2 pass over it, and count it up without it."""

    def encode(self) -> bytes:
        return _encode(**({"raised_us": self.raised_us} if self.raised_us else {}))

    @classmethod
    def _of(cls, fields: Any) -> Self:
        return cls(int(fields.get("raised_us", 0)))


@dataclass(frozen=True, slots=True)
class Registration(CoordinatorValue):
    """The entry of a living member of the cluster: a server's id, and the address at which it is reached.

    Partitions that a server prefers are written only if there are any: versions before 0.2 read entries without them,
    and no others. What a newer version adds behind is passed over, because nobody writes another's registration back.
    """

    server: ServerId
    address: str
    preferred: frozenset[PartitionId] = frozenset()
    """The partitions that the server should own, as far as the balance allows."""
    unable: frozenset[PartitionId] = frozenset()
    """The partitions that the server can't serve at present, while others perhaps can. Versions before 0.3 pass over
    it."""

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
    """The servers that the cluster is to have, by name: all that were started with one and that nobody has removed.

    Names are not in the registrations, which versions before 0.2 read: they would take one with a name for damaged.
    """

    servers: Mapping[str, ExpectedServer] = field(default_factory=dict)

    def encode(self) -> bytes:
        return _encode(servers={name: list(each) for name, each in sorted(self.servers.items())})

    @classmethod
    def _of(cls, fields: Any) -> Self:
        return cls({str(name): ExpectedServer(int(s), str(a)) for name, (s, a) in fields["servers"].items()})

    def missing(self, registered: Collection[Registration]) -> dict[str, ExpectedServer]:
        """Return those of which no server is registered."""
        there = {each.server for each in registered}
        return {name: each for name, each in self.servers.items() if each.server not in there}

    def name_of(self, server: ServerId) -> str:
        """Return the name of the server with this id; empty if it has none."""
        return next((name for name, each in self.servers.items() if each.server == server), "")

    def said(self, server: ServerId) -> str:
        """Return the server's number, and its name in brackets if it has one, for messages."""
        return f"{server} ({name})" if (name := self.name_of(server)) else str(server)


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[V]):
    """A value with the version that a compare-and-set must name; versions only rise."""

    version: int
    value: V


def _names(fields: Any, key: str) -> tuple[str, ...]:
    """Return the storage nodes' names under this key. Raises `TypeError` for anything but a list of texts."""
    listed = fields[key]
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise TypeError(f"{key} is {listed!r} instead of a list of storage nodes' names")
    return tuple(listed)


def _texts_of(fields: Any, key: str, names: tuple[StorageId, ...]) -> dict[StorageId, str]:
    """Return a text for each of some of these storage nodes; an empty dictionary without the key.

    Raises `TypeError` and `ValueError` for anything else.
    """
    given = fields.get(key, {})
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise TypeError(f"{key} is {given!r} instead of a text for each storage node")
    if not given.keys() <= {*names}:
        raise ValueError(f"{key} names {', '.join(sorted(given.keys() - {*names}))}, which is no storage node")
    return given


def _encode(**fields: Any) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
