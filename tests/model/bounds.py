"""How far the model explores: each configuration is exhaustive within its bounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Budgets of one exploration. What is not bounded here (who is slow, paused, dead, when, in which order) is free."""

    name: str
    sessions: int
    """Attempts that claim a session, by any owners: all may be paused, resumed late, or never resumed."""
    batches: int
    """Ids from 0 to one less than this."""
    replicas: int = 3
    begun: bool = False
    """Start from session 0 engaged on the members and empty, instead of from a partition that nobody has touched."""
    rots: int = 0
    """Replicas that find synced bytes damaged: recorded as "may have lost above", at any place, at any time."""
    wipes: int = 0
    """Replicas whose disk is replaced by an empty one."""
    snapshots: int = 0
    """Replicas restored to an earlier durable image, taken and put back at any time."""
    crashes: int = 0
    """Replicas that crash with unsynced appends. Above 0, writing and syncing are two steps."""
    catch_up: bool = True
    """Owners copy committed batches to late replicas in the background."""
    edits: int = 0
    """Changes of the membership, each by one replica; the last of `replicas` is none of the first members."""

    @property
    def members(self) -> int:
        return self.replicas - 1 if self.edits else self.replicas

    def __str__(self) -> str:
        budgets = [f"{self.sessions} sessions", f"{self.batches} batches", f"{self.replicas} replicas"]
        for budget in ("rots", "wipes", "snapshots", "crashes", "edits"):
            if count := getattr(self, budget):
                budgets.append(f"{count} {budget if count > 1 else budget[:-1]}")
        if self.begun:
            budgets.append("from session 0 on")
        if not self.catch_up:
            budgets.append("no catch-up")
        return f"{self.name} ({', '.join(budgets)})"
