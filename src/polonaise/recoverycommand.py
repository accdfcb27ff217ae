"""The command that makes a coordinator's values again, as messages tell it."""

from __future__ import annotations

from typing import Final

RECOVER: Final = "polonaise cluster recover; for an embedded log with --coordinator embedded:PATH"
"""For messages of those who don't know which coordinator it is."""


def recovery_of(coordinator: object) -> str:
    """Return the command that makes the values of this coordinator again, by its address.

    Those of an embedded log are in a directory, and never in ZooKeeper.
    """
    return "polonaise cluster recover" if str(coordinator).startswith("zookeeper://") else RECOVER
