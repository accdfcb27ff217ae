"""How far the model explores: each configuration is exhaustive within its bounds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelBounds:
    """Budgets of one exploration. What has none is free: who is slow, paused or dead, when, and in which order.

    The budgets for what befalls disks stay within a minority of the replicas: what is promised is promised for that.
    But not those for crashes and failed syncs, which may befall all replicas at once.
    """

    name: str
    sessions: int = field(default=3, metadata={"help": "attempts that claim a session, by any owners"})
    batches: int = field(default=2, metadata={"help": "ids from 0 to one less than this"})
    replicas: int = field(default=3, metadata={"help": "with edits, the last of them is no member at first"})
    crashes: int = field(default=0, metadata={"help": "of replicas with unsynced appends; then syncing is a step"})
    failures: int = field(default=0, metadata={"help": "syncs of appends that fail; then syncing is a step"})
    rots: int = field(default=0, metadata={"help": "replicas that find synced bytes damaged, from any place on"})
    wipes: int = field(default=0, metadata={"help": "replicas whose disk is replaced by an empty one"})
    snapshots: int = field(default=0, metadata={"help": "replicas put back to an earlier durable image"})
    edits: int = field(default=0, metadata={"help": "changes of the membership, each by one replica"})
    fresh: bool = False
    """Start from a partition that nobody has touched, instead of from session 0 engaged on all members and empty."""
    catch_up: bool = True
    """Owners copy committed batches to late replicas in the background."""

    @property
    def members(self) -> int:
        return self.replicas - 1 if self.edits else self.replicas

    def __str__(self) -> str:
        budgets = [f"{self.sessions} sessions", f"{self.batches} batches", f"{self.replicas} replicas"]
        for budget in ("crashes", "failures", "rots", "wipes", "snapshots", "edits"):
            if count := getattr(self, budget):
                budgets.append(f"{budget}: {count}")
        budgets.append("from nothing" if self.fresh else "session 0 engaged")
        if not self.catch_up:
            budgets.append("no catch-up")
        return f"{self.name} ({', '.join(budgets)})"


DEFAULT = (
    ModelBounds("owners", sessions=4),
    ModelBounds("replacement", batches=1, replicas=4, edits=2),
    ModelBounds("addition", replicas=4, edits=1),
    ModelBounds("image", snapshots=1, catch_up=False),
    ModelBounds("image with catch-up", batches=1, snapshots=1),
    ModelBounds("rot", rots=1),
    ModelBounds("wiped disk", wipes=1),
    ModelBounds("crashes", crashes=2),
    ModelBounds("failed syncs", failures=3),
    ModelBounds("failed syncs and rot", batches=1, failures=2, rots=1),
    ModelBounds("failed syncs and crash", sessions=2, failures=3, crashes=1),
    ModelBounds("first sessions", fresh=True),
)
"""What `make model` explores, the longest first."""

SMALL = (
    ModelBounds("owners"),
    ModelBounds("addition", batches=1, replicas=4, edits=1),
    ModelBounds("crash", crashes=1),
    ModelBounds("failed syncs", batches=1, failures=2),
    ModelBounds("first sessions", batches=1, fresh=True),
    ModelBounds("image", sessions=2, snapshots=1),
)

TINY = (
    ModelBounds("first sessions", sessions=2, fresh=True),
    ModelBounds("owners", batches=1),
    ModelBounds("crash", sessions=2, crashes=1),
    ModelBounds("failed syncs", sessions=2, failures=2),
    ModelBounds("rot", sessions=2, rots=1),
    ModelBounds("wiped disk", sessions=2, wipes=1),
    ModelBounds("image", sessions=2, batches=1, snapshots=1),
    ModelBounds("replacement", sessions=2, batches=1, replicas=4, edits=2),
)
