"""What one append needs beside its commit, as the application says it."""

from __future__ import annotations

from polonaise.client.protocol.arguments import wrong
from polonaise.terms import ExpectationKind
from polonaise.wire.copies import NEEDED_MAX, Needs


def checked_needs(copies: int, zones: int) -> Needs | None:
    """Return what an append needs, None for nothing: so many zones take as many copies. Raises `BadOption`."""
    for name, value in (("copies", copies), ("zones", zones)):
        if type(value) is not int or not 0 <= value <= NEEDED_MAX:
            raise wrong(name, value, f"an integer, 0 to {NEEDED_MAX}")
    return Needs(max(copies, zones), zones) if copies or zones else None


def operation_of(needs: Needs) -> tuple[int, bytes, bytes]:
    """Return the expectation by which the owner refuses an append that can't get the copies and zones it needs."""
    return int(ExpectationKind.COPIES), b"", needs.encode()
