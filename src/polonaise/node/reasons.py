"""The reasons for which nodes are not well: each is declared once, with who has it, what says it, and its alerts.

The judgement of health documents, the sets of reasons that nodes tell as metrics, and the table in `docs/monitoring.md`
are made from these declarations.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from polonaise.server.expectedservers import missing_server
from polonaise.server.serverhealth import OwnHealth
from polonaise.storage.measures import StorageNodeHealth
from polonaise.terms import (
    Generation,
    PartitionId,
    SessionId,
    StorageId,
    TransactionId,
    clock_words,
    partition_words,
)

_NAMED_MAX: Final = 8
_CLOCK_OFF_S: Final = 10.0
"""A client's clock is told to be off if it differs from its server's by more than this."""
_LOSSY: Final = 0.05
"""With this share of packets sent again a network loses packets: a good one is far below."""
_FULL_BYTES: Final = 1024 * 1024
"""A disk with fewer free bytes counts as full: hardly one more batch fits."""
_DISK_HANGS_S: Final = 5.0
"""A disk counts as one that hangs once something takes so long: less than a server waits for the answer of a storage
node, and more than a sync takes while others write much."""

Said: TypeAlias = str | Iterable[str]
"""What says a reason: lines, of which empty ones do not count. Without any, the node does not have the reason."""


class ServerTold(NamedTuple):
    """What a server tells of itself, and what who asked it sees."""

    own: OwnHealth
    owns_some: bool = False
    """Whether it owns partitions."""
    client_ahead_s: float | None = None
    """How far the clock of who asked is ahead of the server's; None if not known, or nobody but the server asked."""
    nodes: Mapping[StorageId, StorageNodeHealth] = {}
    """What the storage nodes of a health document have told the server."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ServerTold:
        """Return what a health document tells."""
        ahead_s = document.get("client", {}).get("clock_ahead_s")
        own = OwnHealth.told(document)
        nodes = {name: StorageNodeHealth.told(node) for name, node in own.storage.items()}
        return cls(own, bool(document.get("partitions")), ahead_s, nodes)


class PlayerTold(NamedTuple):
    """What the process of a player tells of itself. No trouble is an empty text."""

    turn_failed: str
    """Why its last turn has ended."""
    lease_trouble: str
    """Why the log does not answer about the lease."""
    settings_refused: str
    """What was said when the settings were read last, if they are wrong."""
    tls: str
    clock_ahead_s: float | None
    """How far the clock of its machine is ahead of the log's server's; None if not known."""


class Condition(NamedTuple):
    """The condition of a partition, according to the server that owns it. Texts are empty if nothing is wrong."""

    partition: PartitionId
    """Its id in the cluster; where the log of a topic is asked (`admin.logs`), its number in the topic."""
    server: int
    ready: bool
    committed_high_water_mark: TransactionId | None
    """None while the partition is not ready and its owner has not yet proved it."""
    engaged: list[str]
    """The engaged storage nodes. A commit needs a majority of all members."""
    left_out: dict[str, str]
    """Why storage nodes are left out, by name: those that are not connected and, while the partition is ready, those
    that are not engaged. Of the members only, while there is a session."""
    waits_for: str
    """Why the partition is not ready."""
    scrub: dict[str, dict[str, Any]]
    """Reports of the scrubs of the members or, without a session, of all storage nodes, by the node's name. Their
    `damages` are those found in this partition; what they count is of the whole node."""
    fragments_scrub: dict[str, Any] | None
    """The report of the scrub of the server's fragment store, with the damages in this partition, also those that reads
    found; None if the server has no store."""
    coordinator: str
    """What the server can't do at the coordinator at present, and why."""
    generation: Generation
    session: SessionId | None
    """The session in which the server writes to replicas; None between sessions."""
    unreachable: list[str]
    """The storage nodes of `left_out` that the server does not reach (`why_not_reached`); the others are behind."""
    tls: str = ""
    """What is wrong with the server's TLS files or soon will be."""
    change: str = ""
    """The change of members that is pending, in words; none is known between sessions."""
    lacking: str = ""
    """What is wrong with the number of its members, engaged or not; unknown between sessions."""
    no_spare: str = ""
    """What must not be lost, because no commit would have what is required without it."""
    stops_without: Sequence[str] = ()
    """The storage nodes each of which must not be lost: without it the partition would take no appends."""
    clock: str = ""
    """What is wrong with the clocks of the server, of its storage nodes and of who asked it."""
    times: str = ""
    """What is wrong with its commit times."""
    members: Sequence[str] = ()
    """The storage nodes with a copy; unknown between sessions, and from a server of an older version."""
    store: str = ""
    """Why the server can't use its fragment store."""
    missing: str = ""
    """The first id that was trimmed and is in no fragment, in words."""
    failed: str = ""
    """What failed when the fragments were read, by a mistake of Polonaise."""
    server_troubles: Sequence[str] = ()
    """What is wrong with the server as a whole, line by line."""

    @property
    def behind(self) -> dict[str, str]:
        """The storage nodes of `left_out` that the server reaches, with the reasons."""
        return {name: why for name, why in self.left_out.items() if name not in self.unreachable}

    @property
    def out(self) -> dict[str, str]:
        """The storage nodes of `left_out` that the server does not reach, with the reasons."""
        return {name: self.left_out[name] for name in self.unreachable}

    @property
    def troubles(self) -> list[str]:
        """What is wrong with the partition, and not with its server as a whole, line by line."""
        return lines_of(self.reasons)

    @property
    def reasons(self) -> list[tuple[Reason, str]]:
        """What `troubles` has, each with its kind."""
        return _found(_PARTITION, self)


# ---------------------------------------------------------------------- what says a reason


def _full_disk(node: StorageNodeHealth) -> str:
    free_bytes = (node.disk or {}).get("free_bytes")
    if free_bytes is not None and free_bytes < _FULL_BYTES:
        return f"the disk of {node.directory} is full: archive and trim the log, or give it a larger disk"
    if refused := node.no_room:
        return (
            f"the disk of {node.directory} had no room for something that was to be stored within the last minute: "
            "archive and trim the log, or allow more (a larger disk or quota, a higher ulimit -f). The last refusal: "
            f"{refused}"
        )
    return ""


def hanging_disk(node: StorageNodeHealth) -> str:
    """Return that the disk of a storage node hangs, if it does."""
    waits_s = round(node.disk_waits_s, 1)  # as its document has it: all judge alike
    if waits_s < _DISK_HANGS_S:
        return ""
    return (
        f"the disk of {node.directory} hangs: it was asked for something {waits_s:.0f} s ago, and has not "
        "done it yet: look at the device, at its way there, and whether the file system is frozen"
    )


def _losses(whom: str, resent: Mapping[str, float]) -> str:
    lossy = {name: share for name, share in resent.items() if share >= _LOSSY}
    if not lossy:
        return ""
    to = f"{whom}{'s' * (len(lossy) > 1)} {', '.join(lossy)}"
    share = f"{100 * max(lossy.values()):.0f} %"
    return (
        f"packets to {to} are lost on the way: up to {share} had to be sent again lately: check the network, and "
        "whether a process there, or its machine, was stopped at times: that looks the same"
    )


def _unrepaired(name: str, scrub: Mapping[str, Any], counted: int = 0) -> str:
    """Return what a scrub found that is not repaired: what it lists, or more of that if more is `counted`."""
    listed = [damage["what"] for damage in scrub.get("damages", ()) if not damage["repaired_us"]]
    count = max(len(listed), counted)
    if not count:
        return ""
    what = listed[-1] if listed else "a damage that it lists no more"
    more = f", and {count - 1} more" if count > 1 else ""
    return f"the scrub of {name} found {what}{more}: not repaired yet"


def _unrepaired_of_node(node: StorageNodeHealth) -> str:
    # It lists the latest damages only, and counts those of all its partitions: no partition's condition goes by that.
    return _unrepaired(node.directory, node.scrub, node.scrub.get("found", 0) - node.scrub.get("repaired", 0))


def _unrepaired_fragments(condition: Condition) -> Iterator[str]:
    for damage in (condition.fragments_scrub or {"damages": ()})["damages"]:
        if not damage["repaired_us"]:
            yield f"fragment damaged: {damage['what']}; not repaired: {damage['why'] or 'under way'}"


def _without_coordinator(told: ServerTold) -> str:
    why = told.own.coordinator
    return told.own.not_owning or (why and f"the server goes on without its coordinator: {why}")


def _given_up(told: ServerTold) -> str:
    """Return a line on the partitions that a server has given up, with why the first can't be served."""
    whys = told.own.given_up_why
    if whys is None:  # a server of an older version does not say why
        whys = dict.fromkeys(map(str, told.own.given_up), "")
    if not whys:
        return ""
    why = next((each for each in whys.values() if each), "see why it does not reach storage nodes, or its coordinator")
    return f"it can't serve {given_up_words(list(whys))}, for others to take over: {why}"


def given_up_words(partitions: Sequence[PartitionId | str]) -> str:
    named = ", ".join(map(str, partitions[:_NAMED_MAX])) + (" …" if len(partitions) > _NAMED_MAX else "")
    return f"partition{'s' if len(partitions) > 1 else ''} {named}, which it has given up"


def store_away(own: OwnHealth) -> str:
    """Return why a server can't use its fragment store; empty if it can, or has none."""
    why = own.fragments_trouble
    return why and f"the fragment store is away, so partitions can't move here, nor trimmed history be read: {why}"


def _unreadable_fragments(told: ServerTold) -> str:
    if away := store_away(told.own):
        return away
    why = (told.own.fragments_scrub or {}).get("trouble", "") if told.owns_some else ""
    return why and f"the fragments are not scrubbed: {why}"


def clock_trouble(told: ServerTold) -> str:
    """Return what is wrong with the clocks of a server, of its storage nodes and of who asked it."""
    return "; ".join(filter(None, (told.own.clock.get("trouble"), client_clock_trouble(told.client_ahead_s))))


def client_clock_trouble(ahead_s: float | None) -> str:
    """Return what is wrong with the clock of a client's machine, which is so far ahead of its server's."""
    if ahead_s is None or abs(ahead_s) <= _CLOCK_OFF_S:
        return ""
    return f"the clock of this machine is {clock_words(ahead_s)} that of its server: set it right (NTP), or that one"


def why_not_reached(node: Mapping[str, Any]) -> str:
    """Return why a server does not reach a storage node, by its health document's part about it."""
    if not node["connected"]:
        return node["error"] or "not tried yet"
    silent_s = node.get("silent_s", 0)
    return f"it has been silent for {silent_s:g} s" if silent_s else ""


def _cut_off(told: ServerTold) -> str:
    """Return that a server reaches no storage node: one that it does not reach is that node's trouble."""
    nodes = told.own.storage
    unreached = [name for name, node in nodes.items() if why_not_reached(node)]
    if len(unreached) == len(nodes) > 1:
        return f"the server reaches none of the storage nodes ({', '.join(unreached)}): check its network"
    return ""


def _lost_on_the_way(told: ServerTold) -> str:
    nodes = told.own.storage
    resent = {} if _cut_off(told) else {name: node.get("resent_to", 0) for name, node in nodes.items()}
    return _losses("storage node", resent)


def _by_why(partitions: Mapping[str, str]) -> Said:
    """Return what is wrong with partitions of a target. Many may have one cause, which is told once."""
    by_why: dict[str, list[str]] = {}
    for partition, why in partitions.items():
        by_why.setdefault(why, []).append(partition)
    return (f"{partition_words(numbers)}: {why}" for why, numbers in by_why.items())


# ---------------------------------------------------------------------- the reasons


@dataclass(frozen=True, slots=True)
class DeclaredReason:
    """All that is to be said of one reason."""

    word: str
    """In metrics, alerts and health documents."""
    meaning: str
    """What is wrong, for operators."""
    server: Callable[[ServerTold], Said] | None = None
    """What says it of a server as a whole; None if nothing does, as with those below."""
    partition: Callable[[Condition], Said] | None = None
    """What says it of a partition of a server."""
    storage: Callable[[StorageNodeHealth], Said] | None = None
    """What says it of a storage node."""
    player: Callable[[PlayerTold], Said] | None = None
    """What says it of the process of a player."""
    played: Callable[[Mapping[str, Any]], Said] | None = None
    """What says it of a partition that a player delivers, by the player's health."""
    target: Callable[[Mapping[str, Any]], Said] | None = None
    """What says it of a player's target, by the player's health."""
    disables: bool = False
    """Whether for it a server could not serve partitions that it got from others, and a storage node can't write, or
    soon can't: it may still have room for a few batches."""
    metrics: str = "`polonaise_node_degraded`"
    """The metrics that say it, and which of them when, for operators."""
    alerts: tuple[str, ...] = ("PolonaiseNodeDegraded",)
    """The alerts on these metrics."""

    @property
    def of_servers(self) -> bool:
        """Whether servers have it. What storage nodes told them of partitions is the storage nodes'."""
        return bool(self.server or (self.partition and not self.storage))

    @property
    def of_players(self) -> bool:
        return bool(self.player or self.played or self.target)


class Reason(enum.StrEnum):
    """What can be wrong with a node. What is wrong with one thing is told in this order."""

    declared: DeclaredReason

    def __new__(cls, declared: DeclaredReason) -> Reason:
        reason = str.__new__(cls, declared.word)
        reason._value_, reason.declared = declared.word, declared
        return reason

    # fmt: off
    PARTITION_NOT_READY = DeclaredReason(
        "partition_not_ready", "A partition takes no appends.", partition=lambda it: it.waits_for,
        metrics="`polonaise_server_partitions`", alerts=("PolonaisePartitionsNotReady",))
    REPLICA_LEFT_OUT = DeclaredReason(
        "replica_left_out", "A member of a partition is not engaged, or a storage node is not connected.",
        partition=lambda it: (f"{name} is not engaged: {why}" for name, why in it.left_out.items()),
        metrics="`polonaise_server_under_replicated_partitions`, `polonaise_server_storage_connected`",
        alerts=("PolonaiseUnderReplicated", "PolonaiseStorageDisconnected"))
    COPIES = DeclaredReason(
        "copies", "A partition has fewer copies than it is to have, or more.", partition=lambda it: it.lacking,
        metrics="`polonaise_server_under_replicated_partitions` for fewer, `polonaise_node_degraded` for more",
        alerts=("PolonaiseUnderReplicated", "PolonaiseNodeDegraded"))
    NO_SPARE = DeclaredReason(
        "no_spare", "With one more loss a partition would lack the copies or zones that commits need.",
        partition=lambda it: it.no_spare)
    DIRECTORY_GONE = DeclaredReason(
        "directory_gone", "The node has lost its directory.", storage=lambda node: node.gone, disables=True,
        metrics="`polonaise_storage_directory_gone`, `polonaise_node_ready`",
        alerts=("PolonaiseStorageDirectoryGone", "PolonaiseNodeNotReady"))
    DISK_FULL = DeclaredReason("disk_full",
        "The disk has less than 1 MiB left, or within the last minute something that was to be stored found no room, "
        "as with a quota, a limit of file sizes (`ulimit -f`), or a batch larger than what is left. The node is ready: "
        "reads go on.", storage=_full_disk, disables=True,
        metrics="`polonaise_storage_disk_free_bytes`, `polonaise_node_degraded`",
        alerts=("PolonaiseDiskFillsUp", "PolonaiseNodeDegraded"))
    DISK_HANGS = DeclaredReason("disk_hangs",
        "The disk has not done for five seconds what it was asked for, as with a frozen file system or a device that "
        "is away. The node is ready: what it has in memory is served. It goes on by itself once the disk does.",
        storage=hanging_disk, disables=True,
        metrics="`polonaise_storage_disk_waits_seconds`", alerts=("PolonaiseDiskHangs",))
    TURN_FAILED = DeclaredReason(
        "turn_failed", "The last turn of the process has ended by a fault.", player=lambda told: told.turn_failed,
        metrics="`polonaise_player_state`", alerts=("PolonaisePlayerNotActive",))
    PARTITION_STOPPED = DeclaredReason("partition_stopped", "Nothing more of a partition is delivered.",
        played=lambda main: main["stopped"] and f"stopped: {main['stopped']}",
        metrics="`polonaise_player_stopped_partitions`", alerts=("PolonaisePlayerStopped",))
    LOG_TROUBLE = DeclaredReason("log_trouble", "The log does not answer.", played=lambda main: main["trouble"],
        player=lambda told: told.lease_trouble and f"no answer about the lease: {told.lease_trouble}",
        metrics="`polonaise_player_log_trouble_partitions`, for a standby `polonaise_node_ready`",
        alerts=("PolonaisePlayerLogTrouble", "PolonaiseNodeNotReady"))
    SETTINGS_REFUSED = DeclaredReason("settings_refused", "The settings that were read last are wrong.",
        player=lambda told: told.settings_refused and f"the settings were {told.settings_refused}",
        metrics="`polonaise_player_settings_refused`", alerts=("PolonaisePlayerSettingsRefused",))
    TARGET_DOWN = DeclaredReason(
        "target_down", "A target has no stream.", target=lambda it: it["reason"] and f"no stream: {it['reason']}",
        metrics="`polonaise_player_target_up`", alerts=("PolonaiseTargetDown",))
    TARGET_HINDERED = DeclaredReason(
        "target_hindered", "Something keeps a target from getting all.", target=lambda it: _by_why(it["hindered"]),
        metrics="`polonaise_player_target_hindered_partitions`", alerts=("PolonaiseTargetHindered",))
    TARGET_SLOW = DeclaredReason(
        "target_slow", "A target takes long, and goes on.", target=lambda it: _by_why(it["slow"]),
        metrics="`polonaise_player_target_slow_partitions`", alerts=("PolonaiseTargetSlow",))
    COORDINATOR = DeclaredReason("coordinator",
        "The coordinator is not reached, and the server may own nothing meanwhile; or one of its values is missing or "
        "damaged.",
        server=_without_coordinator, disables=True,
        metrics="`polonaise_server_coordinator_trouble`, `polonaise_node_ready`",
        alerts=("PolonaiseCoordinatorTrouble", "PolonaiseCoordinatorAway", "PolonaiseNodeNotReady"))
    GIVEN_UP = DeclaredReason("given_up",
        "The server has given up partitions that it can't serve, and nobody else serves them; the line says what keeps "
        "it from that.",
        server=_given_up, disables=True,
        metrics="`polonaise_server_given_up_partitions`", alerts=("PolonaisePartitionsGivenUp",))
    COORDINATOR_SERVER = DeclaredReason(
        "coordinator_server", "A server of ZooKeeper does not serve.", server=lambda it: it.own.coordinator_servers,
        metrics="`polonaise_server_coordinator_server_up`", alerts=("PolonaiseCoordinatorServerDown",))
    NAMESAKE = DeclaredReason("namesake", "Another server has the same name.", server=lambda it: it.own.namesake)
    MISSING_SERVER = DeclaredReason("missing_server", "Another server that the cluster is to have is not registered.",
        server=lambda it: (missing_server(name, address) for name, address in it.own.missing_servers.items()),
        metrics="`polonaise_server_missing_servers`", alerts=("PolonaiseServerMissing",))
    UNREACHABLE = DeclaredReason(
        "unreachable", "Nobody can connect to the node, because what it listens at was taken away.",
        server=lambda it: it.own.unreachable, storage=lambda node: node.unreachable, disables=True,
        metrics="`polonaise_node_ready`", alerts=("PolonaiseNodeNotReady",))
    FRAGMENTS_UNREADABLE = DeclaredReason("fragments_unreadable",
        "The fragment store can't be read, or a read of its fragments fails by a mistake of Polonaise.",
        server=_unreadable_fragments, partition=lambda it: it.failed, disables=True,
        metrics="`polonaise_server_fragment_store_away`, `polonaise_server_fragment_scrub_trouble`",
        alerts=("PolonaiseFragmentsUnreadable",))
    TLS = DeclaredReason("tls", "A file of TLS can't be used, expires soon, or has expired.",
        server=lambda it: it.own.tls, storage=lambda node: node.tls, player=lambda told: told.tls,
        metrics="`polonaise_node_certificate_expires_timestamp_seconds` for the latter two, `polonaise_node_degraded`",
        alerts=("PolonaiseCertificateExpires", "PolonaiseNodeDegraded"))
    CLOCK = DeclaredReason("clock", "The clock of the server, of a storage node or of a player's machine is off.",
        server=clock_trouble, player=lambda told: client_clock_trouble(told.clock_ahead_s),
        metrics="`polonaise_server_clock_unfit`, `polonaise_server_clock_not_believed_seconds`, "
        "`polonaise_server_clock_offset_seconds`, `polonaise_player_clock_offset_seconds`",
        alerts=("PolonaiseClockOff", "PolonaiseClocksDiffer"))
    CUT_OFF = DeclaredReason("cut_off", "The server reaches none of the storage nodes.", server=_cut_off, disables=True,
        metrics="`polonaise_server_storage_connected`",
        alerts=("PolonaiseStorageDisconnected", "PolonaiseNodeNotReady"))
    STRANGER = DeclaredReason("stranger", "A server of another cluster was refused within the last minute.",
        storage=lambda node: node.refused)
    REPLICA_UNUSABLE = DeclaredReason("replica_unusable", "A replica can't be used.",
        storage=lambda node: (f"partition {number} can't be used: {why}" for number, why in node.unavailable.items()),
        metrics="`polonaise_storage_partitions`", alerts=("PolonaiseReplicasUnusable",))
    PACKETS_LOST = DeclaredReason("packets_lost", "The network loses packets, or a node is stopped at times.",
        server=_lost_on_the_way, storage=lambda node: _losses("server", node.resent),
        metrics="`polonaise_server_storage_resent_ratio`, at storage nodes `polonaise_node_degraded`",
        alerts=("PolonaisePacketsLost", "PolonaiseNodeDegraded"))
    DAMAGE = DeclaredReason("damage",
        "The scrub found a damage that is not repaired. Health of servers names it as well, their metrics don't.",
        partition=lambda it: (_unrepaired(name, scrub) for name, scrub in it.scrub.items()),
        storage=_unrepaired_of_node,
        metrics="`polonaise_storage_damages_unrepaired`", alerts=("PolonaiseDamageFound",))
    FRAGMENT_DAMAGE = DeclaredReason("fragment_damage",
        "A fragment is damaged, and not repaired, or can't be used, as where others contradict it: the scrub found "
        "that, or a read.", partition=_unrepaired_fragments,
        metrics="`polonaise_server_fragments_unrepaired`", alerts=("PolonaiseDamageFound",))
    FRAGMENTS_MISSING = DeclaredReason("fragments_missing",
        "Ids of a partition were trimmed, and no fragment in the store holds them: bring the fragments back, or the "
        "store that has them.",
        partition=lambda it: it.missing)
    TIMES_STAND_STILL = DeclaredReason(
        "times_stand_still", "The commit times of a partition stand still.", partition=lambda it: it.times,
        metrics="`polonaise_server_times_stand_still_partitions`", alerts=("PolonaiseCommitTimesStandStill",))
    # fmt: on


Trouble: TypeAlias = tuple[Reason, str]
"""What kind of thing is wrong, and a line that says it."""

T = TypeVar("T")
OF_SERVERS: Final = frozenset(each for each in Reason if each.declared.of_servers)
OF_STORAGE: Final = frozenset(each for each in Reason if each.declared.storage)
OF_PLAYERS: Final = frozenset(each for each in Reason if each.declared.of_players)
_SERVER: Final = [(each, each.declared.server) for each in Reason if each.declared.server]
_PARTITION: Final = [(each, each.declared.partition) for each in Reason if each.declared.partition]
_STORAGE: Final = [(each, each.declared.storage) for each in Reason if each.declared.storage]
_PLAYER: Final = [(each, each.declared.player) for each in Reason if each.declared.player]
_PLAYED: Final = [(each, each.declared.played) for each in Reason if each.declared.played]
_TARGET: Final = [(each, each.declared.target) for each in Reason if each.declared.target]


def _found(signs: Iterable[tuple[Reason, Callable[[T], Said]]], told: T) -> list[Trouble]:
    found: list[Trouble] = []
    for reason, says in signs:
        said = says(told)
        found += [(reason, line) for line in ((said,) if isinstance(said, str) else said) if line]
    return found


def server_reasons(told: ServerTold) -> list[Trouble]:
    """Return what is wrong with a server apart from its partitions."""
    return _found(_SERVER, told)


def storage_reasons(node: StorageNodeHealth) -> list[Trouble]:
    """Return all that is wrong with a storage node."""
    return _found(_STORAGE, node)


def player_reasons(process: PlayerTold, health: Mapping[str, Any]) -> dict[str, list[Trouble]]:
    """Return what is wrong by target, by partition, and of the process; `health` is that of its player."""
    found = {f"target {name}": _found(_TARGET, target) for name, target in health["targets"].items()}
    found |= {f"partition {number}": _found(_PLAYED, main) for number, main in health["partitions"].items()}
    found["player"] = _found(_PLAYER, process)
    return {whose: each for whose, each in found.items() if each}


def lines_of(troubles: Iterable[Trouble]) -> list[str]:
    return [line for _, line in troubles]
