"""The error of a smoke test that found something wrong."""

from __future__ import annotations

from polonaise.errors import PolonaiseError


class SmokeFailed(PolonaiseError):
    """A smoke test found the cluster stuck, an answer lost, or a process that ended otherwise than it should have."""

    code = "smoke_failed"
