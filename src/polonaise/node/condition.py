"""Judge the condition of partitions, servers and storage nodes by their health documents.

All reports of health rest on this: `polonaise log health`, `polonaise cluster status`, and the nodes' `/health`. Only
`/ready` looks at the node itself, because a server's document takes long to make.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from polonaise.node.reasons import KEEP_FROM_SERVING, KEEP_FROM_WRITING, Reason, Trouble, lines_of
from polonaise.server.expectedservers import missing_server
from polonaise.terms import NO_TRANSACTION, Generation, PartitionId, SessionId, TransactionId, clock_words, counted

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


class HealthStatus(enum.StrEnum):
    """The health of a node or a log, in one word."""

    OK = "ok"
    """Nothing is wrong."""
    DEGRADED = "degraded"
    """All that should be ready is ready, but something is wrong: one more loss may be too many."""
    NOT_READY = "not_ready"
    """Something that should be ready is not."""


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
    `damages` are those found in this partition."""
    fragments_scrub: dict[str, Any] | None
    """The report of the scrub of the server's fragment store, with the damages in this partition, also those that reads
    found; None if the server has no store."""
    coordinator: str
    """What the server can't do at the coordinator at present, and why."""
    generation: Generation
    session: SessionId | None
    """The session in which the server writes to replicas; None between sessions."""
    unreachable: list[str]
    """The storage nodes of `left_out` that the server has no connection to; the others are behind."""
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
    def reasons(self) -> list[Trouble]:
        """What `troubles` has, each with its kind."""
        found = [(Reason.PARTITION_NOT_READY, self.waits_for)]
        found += [(Reason.REPLICA_LEFT_OUT, f"{name} is not engaged: {why}") for name, why in self.left_out.items()]
        found += [(Reason.COPIES, self.lacking), (Reason.NO_SPARE, self.no_spare)]
        found += [(Reason.DAMAGE, line) for name, scrub in self.scrub.items() for line in _unrepaired(name, scrub)]
        if self.fragments_scrub is not None:
            for damage in self.fragments_scrub["damages"]:
                if not damage["repaired_us"]:
                    why = f"fragment damaged: {damage['what']}; not repaired: {damage['why'] or 'under way'}"
                    found.append((Reason.FRAGMENT_DAMAGE, why))
        found += [(Reason.FRAGMENTS_UNREADABLE, self.failed), (Reason.FRAGMENTS_MISSING, self.missing)]
        found.append((Reason.TIMES_STAND_STILL, self.times))
        return [(reason, line) for reason, line in found if line]


def health_status_of(conditions: Collection[Condition]) -> HealthStatus:
    """Return the health of several partitions and their servers, taken together."""
    if not all(condition.ready for condition in conditions):
        return HealthStatus.NOT_READY
    wrong = any(condition.troubles or condition.server_troubles for condition in conditions)
    return HealthStatus.DEGRADED if wrong else HealthStatus.OK


def conditions_in(answer: Mapping[str, Any]) -> dict[PartitionId, Condition]:
    """Return the conditions in a server's health document, by partition."""
    of_server = server_troubles(answer)
    return {
        int(number): condition_of(int(number), answer, health, of_server)
        for number, health in answer["partitions"].items()
    }


def server_troubles(health: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a server apart from its partitions, according to its health document."""
    return lines_of(server_reasons(health))


def server_reasons(health: Mapping[str, Any]) -> list[Trouble]:
    """Return what `server_troubles` returns, each with its kind."""
    without = (why := health.get("coordinator", "")) and f"the server goes on without its coordinator: {why}"
    found = [(Reason.COORDINATOR, health.get("not_owning", "") or without)]
    found += _given_up(health.get("given_up_why", dict.fromkeys(health.get("given_up", ()), "")))
    found += [(Reason.COORDINATOR_SERVER, line) for line in health.get("coordinator_servers", ())]
    found.append((Reason.NAMESAKE, health.get("namesake", "")))
    missing = health.get("missing_servers", {})
    found += [(Reason.MISSING_SERVER, missing_server(name, address)) for name, address in missing.items()]
    found.append((Reason.UNREACHABLE, health.get("unreachable", "")))
    found.append((Reason.FRAGMENTS_UNREADABLE, _store_away(health) or _not_scrubbed(health)))
    found += [(Reason.TLS, health.get("tls", "")), (Reason.CLOCK, _clocks_in(health))]
    found += _network_troubles(health.get("storage", {}))
    return [(reason, line) for reason, line in found if line]


def why_not_serving(health: Mapping[str, Any]) -> list[str]:
    """Return why a server could not serve partitions of others, by its health, apart from `why_not_reached`."""
    unfit = {Reason.CLOCK} if health.get("clock", {}).get("unfit") else set()
    return lines_of(each for each in server_reasons(health) if each[0] in KEEP_FROM_SERVING | unfit)


def why_not_writing(health: Mapping[str, Any]) -> list[str]:
    """Return why a storage node can't write to any partition, by its health document."""
    return lines_of(each for each in storage_reasons(health) if each[0] in KEEP_FROM_WRITING)


def why_not_reached(node: Mapping[str, Any]) -> str:
    """Return why a server does not reach a storage node, by its health document's part about it."""
    if not node["connected"]:
        return node["error"] or "not tried yet"
    silent_s = node.get("silent_s", 0)
    return f"it has been silent for {silent_s:g} s" if silent_s else ""


def _store_away(health: Mapping[str, Any]) -> str:
    why = health.get("fragments_trouble", "")
    return why and f"the fragment store is away, so partitions can't move here, nor trimmed history be read: {why}"


def _not_scrubbed(health: Mapping[str, Any]) -> str:
    why = (health.get("fragments_scrub") or {}).get("trouble", "") if health.get("partitions") else ""
    return why and f"the fragments are not scrubbed: {why}"


def _network_troubles(nodes: Mapping[str, Mapping[str, Any]]) -> list[Trouble]:
    """Return what is wrong with a server's network: one node that is not reached is that node's trouble."""
    unreached = [name for name, node in nodes.items() if why_not_reached(node)]
    if len(unreached) == len(nodes) > 1:
        why = f"the server reaches none of the storage nodes ({', '.join(unreached)}): check its network"
        return [(Reason.CUT_OFF, why)]
    return _losses("storage node", {name: node.get("resent_to", 0) for name, node in nodes.items()})


def _losses(whom: str, resent: Mapping[str, float]) -> list[Trouble]:
    lossy = {name: share for name, share in resent.items() if share >= _LOSSY}
    if not lossy:
        return []
    to = f"{whom}{'s' * (len(lossy) > 1)} {', '.join(lossy)}"
    share = f"{100 * max(lossy.values()):.0f} %"
    why = (
        f"packets to {to} are lost on the way: up to {share} had to be sent again lately: check the network, and "
        "whether a process there, or its machine, was stopped at times: that looks the same"
    )
    return [(Reason.PACKETS_LOST, why)]


def _given_up(whys: Mapping[PartitionId | str, str]) -> list[Trouble]:
    """Return a line on the partitions that a server has given up, with why the first can't be served."""
    if not whys:
        return []
    # A server of an older version does not say why.
    why = next((each for each in whys.values() if each), "see why it does not reach storage nodes, or its coordinator")
    return [(Reason.GIVEN_UP, f"it can't serve {given_up_words(list(whys))}, for others to take over: {why}")]


def given_up_words(partitions: Sequence[PartitionId | str]) -> str:
    named = ", ".join(map(str, partitions[:_NAMED_MAX])) + (" …" if len(partitions) > _NAMED_MAX else "")
    return f"partition{'s' if len(partitions) > 1 else ''} {named}, which it has given up"


def storage_troubles(health: Mapping[str, Any]) -> list[str]:
    """Return all that is wrong with a storage node according to its health document."""
    return lines_of(storage_reasons(health))


def storage_reasons(health: Mapping[str, Any]) -> list[Trouble]:
    """Return what `storage_troubles` returns, each with its kind."""
    found = [
        (Reason.DIRECTORY_GONE, health.get("gone", "")),
        (Reason.DISK_FULL, _full_disk(health)),
        (Reason.DISK_HANGS, _hanging_disk(health)),
        (Reason.UNREACHABLE, health.get("unreachable", "")),
        (Reason.TLS, health.get("tls", "")),
        (Reason.STRANGER, health.get("refused", "")),
    ]
    found += [
        (Reason.REPLICA_UNUSABLE, f"partition {partition} can't be used: {why}")
        for partition, why in health.get("unavailable", {}).items()
    ]
    found += _losses("server", health.get("resent", {}))
    found += [(Reason.DAMAGE, line) for line in _unrepaired(health.get("directory", ""), health.get("scrub", {}))]
    return [(reason, line) for reason, line in found if line]


def _full_disk(health: Mapping[str, Any]) -> str:
    directory = health.get("directory", "")
    free_bytes = (health.get("disk") or {}).get("free_bytes")
    if free_bytes is not None and free_bytes < _FULL_BYTES:
        return f"the disk of {directory} is full: archive and trim the log, or give it a larger disk"
    if refused := health.get("no_room", ""):
        return (
            f"the disk of {directory} had no room for something that was to be stored within the last minute: archive "
            f"and trim the log, or allow more (a larger disk or quota, a higher ulimit -f). The last refusal: {refused}"
        )
    return ""


def _hanging_disk(health: Mapping[str, Any]) -> str:
    waits_s = health.get("disk_waits_s", 0)
    if waits_s < _DISK_HANGS_S:
        return ""
    return (
        f"the disk of {health.get('directory', '')} hangs: it was asked for something {waits_s:.0f} s ago, and has not "
        "done it yet: look at the device, at its way there, and whether the file system is frozen"
    )


def _unrepaired(name: str, scrub: Mapping[str, Any]) -> list[str]:
    listed = [damage["what"] for damage in scrub.get("damages", ()) if not damage["repaired_us"]]
    # A node lists the latest damages only, and counts all.
    count = max(len(listed), scrub.get("found", 0) - scrub.get("repaired", 0))
    if not count:
        return []
    what = listed[-1] if listed else "a damage that it lists no more"
    more = f", and {count - 1} more" if count > 1 else ""
    return [f"the scrub of {name} found {what}{more}: not repaired yet"]


def condition_of(
    partition: PartitionId, answer: Mapping[str, Any], health: Mapping[str, Any], of_server: Sequence[str] = ()
) -> Condition:
    """Return a partition's condition from its owner's health document `answer`, in which `health` is about it."""
    engaged = health.get("engaged", [])
    late = health.get("late", {})
    # Without a session no members are told, and never by a server of an older version, where every storage node holds
    # a copy of each partition.
    members = health.get("members")
    left_out = {
        name: _hanging_disk(node)
        or node["error"]
        or node.get("unavailable", {}).get(str(partition))
        or late.get(name)
        or ("being brought up to date" if node["connected"] else "not tried yet")
        for name, node in answer["storage"].items()
        if (members is None or name in members) and ((health["ready"] and name not in engaged) or not node["connected"])
    }
    waits_for = "" if health["ready"] else health["waits_for"]
    # A node that gave its copy up may keep the files, which nobody reads: damage to them is no trouble of the
    # partition.
    scrub = {
        name: _of(partition, node["scrub"])
        for name, node in answer["storage"].items()
        if "scrub" in node and (members is None or name in members)
    }
    fragments = answer.get("fragments_scrub")
    committed = None if not health["ready"] and health["committed"] == NO_TRANSACTION else health["committed"]
    return Condition(
        partition, answer["server"], health["ready"], committed, list(engaged), left_out, waits_for, scrub,
        None if fragments is None else _of(partition, fragments), answer.get("coordinator", ""),
        health["generation"], health.get("session"),
        [name for name in left_out if not answer["storage"][name]["connected"]], answer.get("tls", ""),
        _change_in(health), lacking_copies(answer, health), without_spare(health),
        tuple(health.get("stops_without", ())), _clocks_in(answer),
        stand_still(health.get("times_stand_still_until_us")), tuple(members or ()),
        _store_away(answer),
        answer.get("fragments_missing", {}).get(str(partition), ""),
        answer.get("fragments_failed", {}).get(str(partition), ""),
        of_server,
    )  # fmt: skip


def lacking_copies(answer: Mapping[str, Any], health: Mapping[str, Any]) -> str:
    """Return what is wrong with the number of a partition's members: all may be engaged, and yet too few to lose."""
    # Servers of older versions don't tell how many copies there are to be.
    members, due = health.get("members"), answer.get("replication_factor")
    if members is None or due is None or len(members) == due:
        return ""
    what = f"the partition has {len(members)} of the {due} copies that it is to have"
    pending = len(health.get("next") or members)
    if pending < len(members) and len(members) > due:
        return ""  # the second step of a move
    if len(members) > due:
        return (
            f"the partition has {len(members)} copies, and is to have {due}: remove those that are too many with "
            "`polonaise storage balance`"
        )
    if pending > len(members):
        return f"{what}: one more is being added"
    if len(nodes := answer["storage"]) < due:
        there = counted(len(nodes), "storage node")
        return f"{what}, and the cluster has {there}: add one (polonaise storage add NAME HOST:PORT)"
    return f"{what}: add the others with `polonaise storage balance`, or one with `polonaise partition add-copy`"


def without_spare(health: Mapping[str, Any]) -> str:
    """Return what must not be lost, of a partition of which more is required than a quorum."""
    required, nodes, zones = (health.get(name) for name in ("required", "stops_without", "stops_without_zones"))
    if not health["ready"] or not required or not nodes:
        return ""
    if zones:
        return (
            f"it has no zone to spare: without {_any_of('zone', zones)} it takes no appends. Commits need {required}: "
            "add copies in another zone, or require less"
        )
    return (
        f"it has no loss to spare: without {_any_of('storage node', nodes)} it takes no appends. Commits need "
        f"{required}: add copies, or require less"
    )


def _any_of(noun: str, names: Sequence[str]) -> str:
    """Return names in words, sorted: the text is the same for partitions with copies on the same nodes."""
    names = sorted(names)
    return f"{noun} {names[0]}" if len(names) == 1 else f"any one of the {noun}s {', '.join(names)}"


def _clocks_in(answer: Mapping[str, Any]) -> str:
    own = client_clock_trouble(answer.get("client", {}).get("clock_ahead_s"))
    return "; ".join(each for each in (answer.get("clock", {}).get("trouble"), own) if each)


def client_clock_trouble(ahead_s: float | None) -> str:
    """Return what is wrong with the clock of a client's machine, which is so far ahead of its server's."""
    if ahead_s is None or abs(ahead_s) <= _CLOCK_OFF_S:
        return ""
    return f"the clock of this machine is {clock_words(ahead_s)} that of its server: set it right (NTP), or that one"


def stand_still(until_us: int | None) -> str:
    """Return in words that the commit times of a partition stand still until this time, in microseconds UTC, if so."""
    if until_us is None:
        return ""
    until = datetime.fromtimestamp(until_us / 1e6, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        f"commit times stand still at {until}, because a batch was committed by a clock that was ahead: later "
        "transactions have the same time until then, so choose them by ids, not by time"
    )


def _change_in(health: Mapping[str, Any]) -> str:
    members, pending = health.get("members"), health.get("next")
    if members is None or pending is None:
        return ""
    words = [f"removing {name}" for name in members if name not in pending]
    for name, (last, why) in health.get("added", {}).items():
        reached = "nothing copied yet" if last is None or last == NO_TRANSACTION else f"copied up to {last}"
        words.append(f"adding {name}: {reached}{f', {why}' if why else ''}")
    return "; ".join(words)


def _of(partition: PartitionId, scrub: dict[str, Any]) -> dict[str, Any]:
    return {**scrub, "damages": [damage for damage in scrub["damages"] if damage["partition"] == partition]}
