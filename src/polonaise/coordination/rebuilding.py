"""Make a cluster's values again from what storage nodes have noted and promised, or say why that would be unsafe.

Invariants, each of which a session's start rests on:

- A session number that was given out is not given out again: the new ones lie above every fence that answers.
- A copy that may hold what the last session committed counts as engaged in it: either a value names the copies that
  were engaged, and no copy has joined a later session, or every storage node answers, and the copies themselves tell.
- A unique id that was given out is not given out again.
- Nothing is taken from the values of another cluster, whose partitions and sessions have the same numbers.
- Of two descriptions that can't be of one history, an operator chooses: the later one may be of an older copy of the
  coordinator that was in its place for a while, and has a topic's ids under another name. So it is with a description
  that lacks a storage node with a copy, or partitions that are in use.
- Nobody works with the lost values any more: servers that do would lose their partitions to those of the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from polonaise.coordination.values import (
    NOBODY,
    UNIQUE_ID_MAX,
    VERSIONS_APART,
    Assignment,
    Beginning,
    ClusterDescription,
    Engagement,
    ExpectedServers,
    Owner,
    PartitionValue,
    made_again,
    short,
)
from polonaise.errors import RecoveryUnsafe, fault
from polonaise.redaction import redacted
from polonaise.terms import NO_SESSION, PartitionId, ServerId, SessionId, StorageId, partition_words

SESSIONS_APART: Final = 1_000_000
"""Above the highest session that is seen: a node that is away may know of later ones."""
GENERATIONS_APART: Final = 1_000_000
UNIQUE_IDS_APART: Final = 1 << 20
"""More than can be given out between two looks of a server at how many there were."""
BACKUP: Final = "backup"
"""The backup's name where an operator chooses whom to believe."""


@dataclass(frozen=True, slots=True)
class Promised:
    """What one copy has promised, by its control file."""

    fence: SessionId
    joined: SessionId
    may_have_lost: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    """The values that one backup or storage node knows of."""

    description: ClusterDescription | None = None
    version: int = -1
    unique_id: int = 0
    partitions: Mapping[PartitionId, PartitionValue] = field(default_factory=dict)
    expected_version: int = -1
    expected: ExpectedServers | None = None
    """The servers that the cluster is to have, if any are known."""
    contradicting: Sequence[tuple[int, ClusterDescription]] = ()
    """Descriptions, with their versions, that can't be of one history with the latest one."""

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> Noted:
        """Return the values in a note; raises `CoordinatorDamaged`."""
        version, text = note.get("description") or (-1, "")
        expected_version, expected = note.get("expected") or (-1, "")
        return cls(
            ClusterDescription.decode(text.encode()) if text else None,
            int(version),
            int(note.get("unique_id", 0)),
            {int(p): PartitionValue.decode(value.encode()) for p, value in note.get("partitions", {}).items()},
            int(expected_version),
            ExpectedServers.decode(expected.encode()) if expected else None,
            tuple((int(v), ClusterDescription.decode(each.encode())) for v, each in note.get("contradicting", ())),
        )

    def document(self) -> dict[str, Any]:
        described = None if self.description is None else [self.version, self.description.encode().decode()]
        partitions = {str(p): value.encode().decode() for p, value in self.partitions.items()}
        document = {"description": described, "unique_id": self.unique_id, "partitions": partitions}
        if self.expected is not None:
            document["expected"] = [self.expected_version, self.expected.encode().decode()]
        if self.contradicting:
            document["contradicting"] = [[version, each.encode().decode()] for version, each in self.contradicting]
        return document


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What one storage node has answered."""

    cluster_key: bytes
    noted: Noted
    promised: Mapping[PartitionId, Promised | None]
    """By partition of which it has files; None where the promises can't be read."""
    servers: Mapping[ServerId, str] = field(default_factory=dict)
    """The servers that are connected to it, with the address from which."""


def newest_description(sources: Sequence[Noted]) -> tuple[int, ClusterDescription]:
    """Return the newest description with its version; raises `RecoveryUnsafe` without any."""
    known = [(each.version, each.description) for each in sources if each.description is not None]
    if not known:
        raise RecoveryUnsafe(
            "no storage node that answers has noted the cluster's description, and no backup is given: name more "
            "storage nodes, or a file that `polonaise cluster backup` has written. Nothing was changed"
        )
    return max(known, key=lambda each: each[0])


def all_noted(backup: Noted | None, answers: Mapping[StorageId, NodeAnswer]) -> list[Noted]:
    """Return what every storage node has noted, then the backup, if there is one."""
    return [*(each.noted for each in answers.values()), *([] if backup is None else [backup])]


def told_descriptions(
    backup: Noted | None, answers: Mapping[StorageId, NodeAnswer]
) -> dict[str, tuple[int, ClusterDescription]]:
    """Return each description with its version, by the name with which an operator chooses it: BACKUP, or that of the
    storage node, behind which stand `@` and the version for one that it has kept beside its latest."""
    sources = {name: each.noted for name, each in sorted(answers.items())}
    if backup is not None:
        sources[BACKUP] = backup
    told = {name: (each.version, each.description) for name, each in sources.items() if each.description is not None}
    for name, each in sources.items():
        told |= {f"{name}@{version}": (version, kept) for version, kept in each.contradicting}
    return told


def believed_description(
    backup: Noted | None, answers: Mapping[StorageId, NodeAnswer], believed: str
) -> ClusterDescription:
    """Return the newest description, or that of `believed`: one of the names of `told_descriptions`. Raises
    `RecoveryUnsafe` if some are not of one history, or the newest lacks what values and promises tell of, and none is
    chosen; and for a choice that has none."""
    told = told_descriptions(backup, answers)
    if believed:
        if believed not in told:
            raise RecoveryUnsafe(
                f"{redacted(believed)!r} was to be believed, and has told no description of the cluster: those that "
                f"have are {', '.join(told) or 'none'}. Nothing was changed"
            )
        return told[believed][1]
    newest_description(all_noted(backup, answers))  # for what it raises: none, or of two clusters

    right, (version, newest) = max(told.items(), key=lambda each: each[1][0])
    older_copy = "An older copy of the coordinator was in its place for a while, and was changed there"
    for name, (before, older) in told.items():
        if not newest.may_be_after(older, before, version):
            raise RecoveryUnsafe(
                f"two descriptions of the cluster can't both be right: that of {_source(name)}, of version {before}, "
                f"and that of {_source(right)}, of version {version}. {older_copy}. "
                f"{_choose(_choices(told, backup, answers))}. Topics that are only in another one are gone then; what "
                "was appended under their ids stays in the log of these ids. Nothing was changed"
            )
    if lack := lacking(newest, backup, answers):
        choices = _choices(told, backup, answers)
        advice = ""
        if choices[0].lack:
            unheard = [name for name in lack.nodes if name not in answers]
            asked = f"have {', '.join(unheard)} answer as well (--storage NAME=HOST:PORT), or " if unheard else ""
            advice = f"No description that was told has all that: {asked}give a {'later ' if backup else ''}backup. "
        raise RecoveryUnsafe(
            f"the description that was told last, that of {_source(right)}, of version {version}, can't be right: "
            f"{lack}. {older_copy}. {advice}{_choose(choices)}. Nothing was changed"
        )
    return newest


@dataclass(frozen=True, slots=True)
class Lack:
    """What values and promises tell of and a description lacks; false if that is nothing."""

    nodes: Mapping[StorageId, PartitionId] = field(default_factory=dict)
    """The storage nodes with a copy that it lacks, each with the first such partition."""
    partitions: Sequence[PartitionId] = ()
    """The partitions that are in use and that it lacks."""

    def __bool__(self) -> bool:
        return bool(self.nodes or self.partitions)

    def __str__(self) -> str:
        """Return what is missing, in words."""
        found = [
            f"storage node {name} has a copy of partition {each} and is not in it" for name, each in self.nodes.items()
        ]
        if beyond := self.partitions:
            found.append(f"{partition_words(beyond, 5)} {'is' if len(beyond) == 1 else 'are'} in use and not in it")
        return "; ".join(found)

    @property
    def size(self) -> tuple[int, int]:
        """How much is missing, to compare: a storage node with a copy weighs more than any number of partitions, as
        what is on it was committed; partitions may be in use only since a topic was created in an older copy."""
        return len(self.nodes), len(self.partitions)

    def within(self, other: Lack) -> bool:
        return {*self.nodes} <= {*other.nodes} and {*self.partitions} <= {*other.partitions}


@dataclass(frozen=True, slots=True)
class _Choice:
    name: str
    said: str
    version: int
    description: ClusterDescription
    lack: Lack

    def replaces(self, other: _Choice) -> bool:
        """Whether nobody needs the other one beside this: it may be of this one's past, and lacks at least as much."""
        return (
            self.version > other.version
            and self.description.may_be_after(other.description, other.version, self.version)
            and self.lack.within(other.lack)
        )


def _choices(
    told: Mapping[str, tuple[int, ClusterDescription]], backup: Noted | None, answers: Mapping[StorageId, NodeAnswer]
) -> list[_Choice]:
    """Return the descriptions that may be believed, each once; the one that lacks least, of these the latest, first."""
    found: list[_Choice] = []
    for name, (version, description) in told.items():
        if any((version, description) == (each.version, each.description) for each in found):
            continue
        same = name != BACKUP and told.get(BACKUP) == (version, description)
        said = f"{_source(name)} and of {_source(BACKUP)}" if same else _source(name)
        found.append(_Choice(name, said, version, description, lacking(description, backup, answers)))
    kept = [each for each in found if not any(other.replaces(each) for other in found)]
    return sorted(kept, key=lambda each: (each.lack.size, -each.version))


def _choose(choices: Sequence[_Choice]) -> str:

    def said(choice: _Choice) -> str:
        # Whoever chose it may have seen the others and rejected them; or not, if the nodes that tell them were silent.
        # That nobody knows, so it is asked once more.
        chosen = any(made_again(other.version, choice.version) for other in choices)
        return (
            f"--believe {choice.name}: that of {choice.said}, of version {choice.version}"
            f"{', which an earlier `cluster recover` has made,' if chosen else ','} has {_topics(choice.description)}"
            f"{f', and lacks something ({choice.lack})' if choice.lack else ''}"
        )

    each = map(said, choices)
    return (
        "See which one the applications know, and repeat the command with one of these, of which the first lacks "
        f"least: {'; or '.join(each)}"
    )


def lacking(description: ClusterDescription, backup: Noted | None, answers: Mapping[StorageId, NodeAnswer]) -> Lack:
    sources = all_noted(backup, answers)
    used = {partition for each in sources for partition in each.partitions}
    used |= {partition for each in answers.values() for partition in each.promised}
    strange: dict[StorageId, PartitionId] = {}
    for partition in sorted(used):
        base = _latest_value(partition, sources)
        for name in () if base is None else (*base.members, *(base.next or ())):
            if name not in description.storage:
                strange.setdefault(name, partition)
    return Lack(strange, sorted(partition for partition in used if partition >= description.total))


def _latest_value(partition: PartitionId, sources: Sequence[Noted]) -> PartitionValue | None:
    known = [each.partitions[partition] for each in sources if partition in each.partitions]
    return max(known, key=lambda value: (_engaged(value), value.session), default=None)


def _source(name: str) -> str:
    return "the backup" if name == BACKUP else f"storage node {name}"


def _topics(description: ClusterDescription) -> str:
    told = [f"{name} (ids {', '.join(map(str, ids))})" for name, ids in sorted(description.topics.items())]
    return f"topics {', '.join(told)}" if told else f"no topics, on storage nodes {', '.join(description.storage)}"


def newest_expected(sources: Sequence[Noted]) -> ExpectedServers | None:
    """Return the servers that the cluster is to have, as they were noted last."""
    return max(sources, key=lambda each: each.expected_version).expected


def rebuilt(
    backup: Noted | None,
    answers: Mapping[StorageId, NodeAnswer],
    confirmed: str = "",
    running: Mapping[ServerId, str] = MappingProxyType({}),
    believed: str = "",
) -> tuple[ClusterDescription, Beginning]:
    """Return the cluster's values, made again. Raises `RecoveryUnsafe`, which names every reason. `believed` is as in
    `believed_description`; values of partitions are taken from all. `running` has the servers of this cluster that
    answer, each with its address: raises `cluster_in_use` for any, and while servers are connected to the storage
    nodes, unless `confirmed` is the cluster's key."""
    # First: with the values of another cluster all else would be said of the wrong one.
    if reasons := _of_different_clusters(backup, answers):
        raise _unsafe(reasons)
    sources = all_noted(backup, answers)
    version, _ = newest_description(sources)
    description = believed_description(backup, answers, believed)
    if confirmed and confirmed.strip().lower() != description.key.hex():
        raise RecoveryUnsafe(
            f"{confirmed!r} was given to confirm the cluster's key, which is {description.key.hex()}: nothing was "
            "changed"
        )
    values: dict[PartitionId, PartitionValue] = {}
    for partition in range(description.total):
        found = _rebuild(partition, description, _latest_value(partition, sources), answers)
        if isinstance(found, str):
            reasons.append(f"partition {partition}: {found}")
        else:
            values[partition] = found
    if reasons:
        raise _unsafe(reasons)
    expected = newest_expected(sources)
    if not confirmed:
        _check_unused(description, expected or ExpectedServers(), answers, running)
    owners = {
        partition: Owner(NOBODY, "unix:recovered", value.generation)
        for partition, value in values.items()
        if value.generation
    }
    unique_id = max((each.unique_id for each in sources), default=0)
    unique_id = min(unique_id + UNIQUE_IDS_APART, (unique_id + UNIQUE_ID_MAX) // 2)
    return description, Beginning(values, Assignment(owners), unique_id, version + VERSIONS_APART, expected)


def _unsafe(reasons: Sequence[str]) -> RecoveryUnsafe:
    shown = "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
    return RecoveryUnsafe(f"the coordinator's values can't be made again safely: {shown}. Nothing was changed")


def _of_different_clusters(backup: Noted | None, answers: Mapping[StorageId, NodeAnswer]) -> list[str]:
    keys: dict[bytes, list[StorageId]] = {}
    for name, answer in sorted(answers.items()):
        keys.setdefault(answer.cluster_key, []).append(name)
    belong = ", ".join(f"{', '.join(names)} to {short(key)}" for key, names in keys.items())
    reasons = [f"the storage nodes belong to different clusters: {belong}"] if len(keys) > 1 else []
    reasons += [
        f"storage node {name} belongs to cluster {short(each.cluster_key)}, and what it has noted is of another one, "
        f"{short(each.noted.description.key)}"
        for name, each in sorted(answers.items())
        if each.noted.description is not None and each.noted.description.key != each.cluster_key
    ]
    if backup is None:
        return reasons
    if backup.description is None:
        return [*reasons, "the backup does not tell of which cluster it is"]
    if keys.keys() - {backup.description.key}:
        reasons.append(
            f"the backup is of cluster {short(backup.description.key)}, the storage nodes belong to "
            f"{' and '.join(map(short, keys))}: give the backup of that cluster, or correct the addresses"
        )
    return reasons


def _check_unused(
    description: ClusterDescription,
    expected: ExpectedServers,
    answers: Mapping[StorageId, NodeAnswer],
    running: Mapping[ServerId, str],
) -> None:
    connected: dict[ServerId, tuple[str, list[StorageId]]] = {}
    for name, answer in sorted(answers.items()):
        for server, address in answer.servers.items():
            connected.setdefault(server, (address, []))[1].append(name)
    shown = [
        f"server {expected.said(server)}{f' from {address}' if address else ''} (connected to {', '.join(names)})"
        for server, (address, names) in sorted(connected.items())
    ]
    shown += [
        f"server {expected.said(server)} at {address} (cut off from the storage nodes that answer)"
        for server, address in sorted(running.items())
        if server not in connected
    ]
    if not shown:
        return
    more = f", and {len(shown) - 5} more" if len(shown) > 5 else ""
    raise fault(
        "cluster_in_use",
        f"the cluster is in use, and nothing was changed: there is {', '.join(shown[:5])}"
        f"{more}. If they work with their coordinator, the address given here is the wrong one, and a second "
        "coordinator would take their partitions away: correct it. If their coordinator has lost its data, stop them "
        f"first; only if they can't be stopped, repeat the command with --confirm {description.key.hex()}",
    )


def _rebuild(
    partition: PartitionId,
    description: ClusterDescription,
    base: PartitionValue | None,
    answers: Mapping[StorageId, NodeAnswer],
) -> PartitionValue | str:
    promised = {name: each.promised[partition] for name, each in answers.items() if partition in each.promised}
    if unreadable := sorted(name for name, promises in promised.items() if promises is None):
        return f"the promises of the copy on {', '.join(unreadable)} are damaged"
    copies = {name: promises for name, promises in promised.items() if promises is not None}
    silent = [name for name in description.storage if name not in answers]
    joined = max((each.joined for each in copies.values()), default=NO_SESSION)
    highest = max((each.fence for each in copies.values()), default=NO_SESSION)
    if base is None:
        if joined != NO_SESSION or silent:
            return f"nobody has noted who holds its copies ({_missing(silent) or 'take a backup that is newer'})"
        members = tuple(description.storage[(partition + n) % len(description.storage)] for n in range(
            description.replication_factor
        ))  # fmt: skip
        return replace(PartitionValue.initial(members), session=max(highest, NO_SESSION))
    members = base.members
    away = [name for name in {*members, *(base.next or ())} if name not in answers]
    session = max(highest, joined, base.session) + SESSIONS_APART
    raised = replace(base, session=session, generation=base.generation + GENERATIONS_APART, outdated=NO_SESSION)
    for group in (members, base.next or members):
        if len([name for name in group if name in away]) >= _quorum(group):
            return f"not enough storage nodes answered: {_missing(sorted(away))}"
    if joined <= _engaged(base):
        return raised  # nobody has joined a session after the one whose copies the value names
    return _told_by_copies(raised, base, copies, silent)


def _told_by_copies(
    raised: PartitionValue, base: PartitionValue, copies: Mapping[StorageId, Promised], silent: Sequence[StorageId]
) -> PartitionValue | str:
    """Return the value for a partition of which a later session than the known value's has begun, or may have: which
    copies were engaged in it those of a quorum tell that have joined the latest one."""
    members = base.members
    if silent:
        return f"a later session than is noted has begun, so every storage node has to answer: {_missing(silent)}"
    if base.next is not None:
        return "its members were being changed when its value was noted: take a newer backup"
    joined = {name: each.joined for name, each in copies.items() if each.joined != NO_SESSION}
    if others := sorted(n for n, each in joined.items() if each > _engaged(base) and n not in members):
        return f"its members have changed since its value was noted: {', '.join(others)} has a copy by now"
    for name in members:
        held = copies.get(name)
        before = base.engagements.get(name)
        if held is None or held.joined == NO_SESSION or (before is not None and held.joined < before.session):
            return f"the copy on {name} is empty, or older than it was: give it the directory that it had"
        if held.may_have_lost:
            return f"the copy on {name} may have lost something: see `polonaise segment verify` on its directory"
    latest = sorted((joined[name] for name in members), reverse=True)[_quorum(members) - 1]
    engaged = {name: Engagement(joined[name]) for name in members if joined[name] >= latest}
    return replace(raised, engagements=engaged)


def _engaged(value: PartitionValue) -> SessionId:
    return max((each.session for each in value.engagements.values()), default=NO_SESSION)


def _quorum(members: Sequence[StorageId]) -> int:
    return len(members) // 2 + 1


def _missing(names: Sequence[StorageId]) -> str:
    return f"no answer from {', '.join(names)}" if names else ""
