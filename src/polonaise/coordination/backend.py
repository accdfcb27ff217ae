"""The port to what keeps the coordinator's bytes: values that change by compare-and-set, and names of processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from polonaise.errors import CoordinatorDamaged


class Entry(NamedTuple):
    """A value as a backend keeps it."""

    cluster_key: bytes
    """Of the cluster that it was written for."""
    version: int
    """One more with each change; of a name, with each renewal."""
    contents: bytes


class Backend(Protocol):
    """Keeps entries by their keys, for several processes; each process has an object of its own.

    It decides nothing: what may be written, and what may be believed, is up to `coordination.coordinator`. Every call
    may raise `CoordinatorUnavailable`; after a change that means that it may have been made. What is there and does not
    read as it was written is `CoordinatorDamaged`. A call that is cancelled leaves nothing behind but a change that had
    begun; this process's next read of that entry sees it, or nobody ever will.

    `str()` of a backend names it, in messages.
    """

    def place(self, key: str) -> str:
        """Where this entry is, in words that an operator finds it by."""

    async def create(self, entries: Mapping[str, Entry]) -> bool:
        """Make a cluster of these entries, all of them; False when there is one.

        Cut short at any point it makes none, and can be done again. The description is among them.
        """

    async def read(self, key: str) -> Entry | None:
        """The present entry, or None without one. Nothing takes it back, no loss of power either: it is acted upon."""

    async def compare_and_set(self, key: str, contents: bytes, present: Entry | None) -> Entry | None:
        """Replace the entry and return the new one, or None when it is no longer `present`: then nothing is changed.

        Without `present`, whatever is there. Only `create` makes a first entry: `CoordinatorDamaged` without one.
        """

    async def changed(self, key: str, version: int) -> None:
        """Return once the entry has another version than this, or soon after. May return before: read again."""

    async def register(self, name: str, entry: Entry) -> bool:
        """Take a name, `folder/number`, for as long as this process lives; False when another living process has it.

        Taking one's own name again changes nothing.
        """

    async def renew(self, name: str) -> None:
        """Raise the version of one's own name; nothing happens when it is not one's own any more."""

    async def leave(self, name: str) -> None:
        """Give up one's own name; nothing happens when it is not one's own any more."""

    async def registered(self, folder: str) -> Mapping[str, Entry]:
        """The names in this folder whose processes live, by what follows the slash."""

    async def close(self) -> None:
        """Give up all of this process's names, and bring what is under way to its end. May be called again."""


def damaged(place: str, what: str) -> CoordinatorDamaged:
    """The refusal that names the place, and says what to do."""
    return CoordinatorDamaged(
        f"{place}: {what}. Nothing was changed. Stop the cluster's processes and restore the whole coordinator as it "
        "was last; an older copy, or a new one, would let two owners write in one session"
    )


def missing(place: str) -> CoordinatorDamaged:
    """The refusal for an entry that every cluster has."""
    return damaged(place, "it is missing, in a cluster that has it")
