"""The condition of partitions as their servers' health documents tell it: one judgement, for every command."""

from __future__ import annotations

from typing import Any, NamedTuple

from polonaise.terms import NO_TRANSACTION, Generation, PartitionId, SessionId, TransactionId


class Condition(NamedTuple):
    """The condition of a partition, according to the server that owns it."""

    partition: PartitionId
    server: int
    ready: bool
    committed_high_water_mark: TransactionId | None
    """The committed high-water mark; None while the partition is not ready and its owner has not yet proved it."""
    engaged: list[str]
    """The engaged storage nodes. A commit needs a majority of all members."""
    left_out: dict[str, str]
    """What is wrong with storage nodes, by name: with those that are not connected, and, while the partition is ready,
    with those that are not engaged."""
    waits_for: str
    """The reason why the partition is not ready; empty if it is."""
    scrub: dict[str, dict[str, Any]]
    """Reports of the storage nodes' scrubs, by the node's name; their `damages` are those found in this partition."""
    fragments_scrub: dict[str, Any] | None
    """The report of the scrub of the server's fragment store, with the damages in this partition; None if the server
    has no store, or does not scrub it."""
    generation: Generation
    """The generation that the server serves the partition under."""
    session: SessionId | None
    """The session in which the server writes to replicas; None while there is none."""
    unreachable: list[str]
    """Those of `left_out` that the server has no connection to; it is connected to the others, which are behind."""

    @property
    def behind(self) -> dict[str, str]:
        """The storage nodes that the server reaches and that are not engaged, each with the reason."""
        return {name: why for name, why in self.left_out.items() if name not in self.unreachable}

    @property
    def out(self) -> dict[str, str]:
        """The storage nodes that the server does not reach, each with the reason."""
        return {name: self.left_out[name] for name in self.unreachable}

    @property
    def troubles(self) -> list[str]:
        """All that is wrong, line by line; empty if nothing is."""
        lines = [self.waits_for] if self.waits_for else []
        lines += [f"{name} is not engaged: {why}" for name, why in self.left_out.items()]
        for name, scrub in self.scrub.items():
            unrepaired = [damage for damage in scrub["damages"] if not damage["repaired_us"]]
            if unrepaired:
                more = f", and {len(unrepaired) - 1} more" if len(unrepaired) > 1 else ""
                lines.append(f"the scrub of {name} found {unrepaired[-1]['what']}{more}: not repaired yet")
        if self.fragments_scrub is not None:
            if self.fragments_scrub["trouble"]:
                lines.append(f"the fragments are not scrubbed: {self.fragments_scrub['trouble']}")
            for damage in self.fragments_scrub["damages"]:
                if not damage["repaired_us"]:
                    lines.append(f"fragment damaged: {damage['what']}; not repaired: {damage['why'] or 'under way'}")
        return lines


def condition_of(partition: PartitionId, answer: dict[str, Any], health: dict[str, Any]) -> Condition:
    """Return the condition in a server's answer; `health` is the answer's part on this partition."""
    engaged = health.get("engaged", [])
    late = health.get("late", {})
    left_out = {
        name: node["error"]
        or node.get("unavailable", {}).get(str(partition))
        or late.get(name)
        or ("being brought up to date" if node["connected"] else "not tried yet")
        for name, node in answer["storage"].items()
        if (health["ready"] and name not in engaged) or not node["connected"]
    }
    waits_for = "" if health["ready"] else health["waits_for"]
    scrub = {name: _of(partition, node["scrub"]) for name, node in answer["storage"].items() if "scrub" in node}
    fragments = answer.get("fragments_scrub")
    committed = None if not health["ready"] and health["committed"] == NO_TRANSACTION else health["committed"]
    return Condition(
        partition, answer["server"], health["ready"], committed, list(engaged), left_out, waits_for, scrub,
        None if fragments is None else _of(partition, fragments), health["generation"], health.get("session"),
        [name for name in left_out if not answer["storage"][name]["connected"]],
    )  # fmt: skip


def _of(partition: PartitionId, scrub: dict[str, Any]) -> dict[str, Any]:
    """Return a scrub's report with only the damages of one partition."""
    return {**scrub, "damages": [damage for damage in scrub["damages"] if damage["partition"] == partition]}
