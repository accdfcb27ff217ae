"""The form of a mutation, for the lists of them."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One changed place in one module."""

    module: str
    old: str
    """The text of the module that is replaced."""
    new: str
    breaks: str
    """The promises of `docs/architecture.md` that the mutation breaks (P1, P2, …), and how."""
