"""The command that makes a coordinator's values again, as messages tell it."""

from __future__ import annotations

from typing import Final

RECOVER: Final = "polonaise cluster recover; for an embedded log with --coordinator embedded:PATH"
"""For those who don't know which coordinator it is."""


def recovery_of(coordinator: object) -> str:
    """Return the command for this coordinator, by its address: an embedded log's values are never in ZooKeeper."""
    return "polonaise cluster recover" if str(coordinator).startswith("zookeeper://") else RECOVER
