"""The pace of a quorum, and how long further replicas are waited for beside it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_PACES: Final = 2.0
"""For how many times as long as a quorum has taken further replicas are waited for."""


def pace_s(took_s: Collection[float], quorum: int) -> float:
    """Return within how many seconds a quorum of replicas has answered, each asked at its own time; 0 without one."""
    return sorted(took_s)[quorum - 1] if len(took_s) >= quorum else 0.0


def gather_s(least_s: float, pace: float) -> float:
    """Return for how long further replicas are waited for once a quorum has answered that took `pace` seconds.

    One that is left out costs another session, which takes as long again: where all disks are slow, each would leave
    one out.
    """
    return max(least_s, _PACES * pace)
