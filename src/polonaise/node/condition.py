"""Judge the condition of partitions, servers and storage nodes by their health documents.

All reports of health rest on this: `polonaise log health`, `polonaise cluster status`, and the nodes' `/health`. Only
`/ready` looks at the node itself, because a server's document takes long to make.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from polonaise.errors import ProtocolError
from polonaise.node.reasons import (
    Condition,
    Reason,
    ServerTold,
    clock_trouble,
    hanging_disk,
    lines_of,
    server_reasons,
    storage_reasons,
    store_away,
    why_not_reached,
)
from polonaise.storage.measures import StorageNodeHealth
from polonaise.terms import NO_TRANSACTION, PartitionId, StorageId, counted

UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What reading a health document of another form raises."""


class HealthStatus(enum.StrEnum):
    """The health of a node or a log, in one word."""

    OK = "ok"
    """Nothing is wrong."""
    DEGRADED = "degraded"
    """All that should be ready is ready, but something is wrong: one more loss may be too many."""
    NOT_READY = "not_ready"
    """Something that should be ready is not."""


def health_status_of(conditions: Collection[Condition]) -> HealthStatus:
    """Return the health of several partitions and their servers, taken together."""
    if not all(condition.ready for condition in conditions):
        return HealthStatus.NOT_READY
    wrong = any(condition.troubles or condition.server_troubles for condition in conditions)
    return HealthStatus.DEGRADED if wrong else HealthStatus.OK


def conditions_in(answer: Mapping[str, Any]) -> dict[PartitionId, Condition]:
    """Return the conditions in a server's health document, by partition."""
    told = ServerTold.of(answer)
    of_server = lines_of(server_reasons(told))
    return {
        int(number): condition_of(int(number), answer, health, told, of_server)
        for number, health in answer["partitions"].items()
    }


def judged(answer: Any, whose: str) -> dict[PartitionId, Condition]:
    """Return the conditions in a health document of a server that may be of another version, by partition.

    Raises `ProtocolError` that says `whose` health has another form than this version reads.
    """
    try:
        conditions = conditions_in(answer)
        understood = all({"error", "connected"} <= set(node) for node in answer["storage"].values())
        for condition in conditions.values():
            _ = condition.troubles
    except UNREADABLE:
        understood = False
    if not understood:
        raise another_form(whose)
    return conditions


def another_form(whose: str) -> ProtocolError:
    """Return the error that says that `whose` health has another form than this version reads."""
    return ProtocolError(f"{whose} health has another form: it may be of another version")


def server_troubles(health: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a server apart from its partitions, according to its health document."""
    return lines_of(server_reasons(ServerTold.of(health)))


def storage_troubles(health: Mapping[str, Any]) -> list[str]:
    """Return all that is wrong with a storage node according to its health document."""
    return lines_of(storage_reasons(StorageNodeHealth.told(health)))


def why_not_serving(told: ServerTold) -> list[str]:
    """Return why a server could not serve partitions of others, apart from `why_not_reached`."""
    unfit = told.own.clock.get("unfit")
    return [
        line for reason, line in server_reasons(told) if reason.declared.disables or (unfit and reason is Reason.CLOCK)
    ]


def why_not_writing(health: Mapping[str, Any]) -> list[str]:
    """Return why a storage node can't write to any partition, by its health document."""
    return [line for reason, line in storage_reasons(StorageNodeHealth.told(health)) if reason.declared.disables]


def condition_of(
    partition: PartitionId,
    answer: Mapping[str, Any],
    health: Mapping[str, Any],
    told: ServerTold | None = None,
    of_server: Sequence[str] = (),
) -> Condition:
    """Return a partition's condition from its owner's health document `answer`, in which `health` is about it.

    `told` is what the document tells of the server, so that it is read once for all partitions.
    """
    told = told or ServerTold.of(answer)
    own, nodes = told.own, told.own.storage
    engaged = health.get("engaged", [])
    late = health.get("late", {})
    # Without a session no members are told, and never by a server of an older version, where every storage node holds
    # a copy of each partition.
    members = health.get("members")
    left_out = {
        name: hanging_disk(told.nodes[name])
        or node["error"]
        or told.nodes[name].unavailable.get(str(partition))
        or (why_not_reached(node) if node["connected"] else "")
        or late.get(name)
        or ("being brought up to date" if node["connected"] else "not tried yet")
        for name, node in nodes.items()
        if (members is None or name in members) and ((health["ready"] and name not in engaged) or not node["connected"])
    }
    waits_for = "" if health["ready"] else health["waits_for"]
    # A node that gave its copy up may keep the files, which nobody needs: damage to them is no trouble of the
    # partition.
    scrub = {
        name: _of(partition, node.scrub)
        for name, node in told.nodes.items()
        if node.scrub and (members is None or name in members)
    }
    committed = None if not health["ready"] and health["committed"] == NO_TRANSACTION else health["committed"]
    return Condition(
        partition, answer["server"], health["ready"], committed, list(engaged), left_out, waits_for, scrub,
        None if own.fragments_scrub is None else _of(partition, own.fragments_scrub), own.coordinator,
        health["generation"], health.get("session"),
        [name for name in left_out if why_not_reached(nodes[name])], own.tls, _change_in(health),
        lacking_copies(members, health.get("next"), own.replication_factor, len(nodes)), without_spare(health),
        tuple(health.get("stops_without", ())), clock_trouble(told),
        stand_still(health.get("times_stand_still_until_us")), tuple(members or ()), store_away(own),
        own.fragments_missing.get(str(partition), ""), own.fragments_failed.get(str(partition), ""), of_server,
    )  # fmt: skip


def lacking_copies(
    members: Collection[StorageId] | None, changed: Collection[StorageId] | None, due: int | None, nodes: int
) -> str:
    """Return what is wrong with the number of a partition's members: all may be engaged, and yet too few to lose.

    `changed` are the members that a change is to lead to, if one is under way. `due` copies there are to be, which
    servers of older versions don't tell; the cluster has so many `nodes`.
    """
    if members is None or due is None or len(members) == due:
        return ""
    what = f"the partition has {len(members)} of the {due} copies that it is to have"
    pending = len(changed or members)
    if pending < len(members) and len(members) > due:
        return ""  # the second step of a move
    if len(members) > due:
        return (
            f"the partition has {len(members)} copies, and is to have {due}: remove those that are too many with "
            "`polonaise storage balance`"
        )
    if pending > len(members):
        return f"{what}: one more is being added"
    if nodes < due:
        there = counted(nodes, "storage node")
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


def _of(partition: PartitionId, scrub: Mapping[str, Any]) -> dict[str, Any]:
    return {**scrub, "damages": [damage for damage in scrub.get("damages", ()) if damage["partition"] == partition]}
