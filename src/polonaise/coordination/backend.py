"""The port to what keeps the coordinator's bytes: values that change by compare-and-set, and names of processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from polonaise.errors import CoordinatorDamaged, CoordinatorLost, CoordinatorNewer, CoordinatorOutdated
from polonaise.recoverycommand import recovery_of
from polonaise.terms import SessionId


class Entry(NamedTuple):
    """A value as a backend keeps it."""

    cluster_key: bytes
    """The key of the cluster that the value was written for."""
    version: int
    """Rises by one with each change; that of a name with each renewal, anew when the name is taken anew."""
    contents: bytes


class NotAsked(str):
    """Why this process could not ask a server of a store, such as for its own certificate."""


class Backend(Protocol):
    """A store of entries by their keys, for several processes; each process has an object of its own.

    A backend decides nothing: what may be written, and what may be believed, is up to `coordination.coordinator`. Every
    call may raise `CoordinatorUnavailable`; after a change that means that the change may have been made. An entry that
    does not read as it was written is `CoordinatorDamaged`. A call that is cancelled leaves nothing behind but a change
    that had begun; this process's next read of that entry sees the change, or nobody ever will.

    `str()` of a backend names it, in messages.
    """

    renewed_us: int | None
    """When a name of this process was renewed last, by the clock of the store, in microseconds UTC; None if it has
    none."""
    has_servers: bool
    """Whether the store consists of servers that can fail one by one (`servers`)."""
    found_again_s: float
    """Seconds within which all processes have found a store again that was away."""

    def place(self, key: str) -> str:
        """Return where this entry is kept, in words for operators."""

    async def servers(self, timeout_s: float) -> Mapping[str, str]:
        """Return why each server of the store does not serve, by its address; empty for one that does. Each has
        `timeout_s` seconds to answer. What keeps this process itself from asking is a `NotAsked`."""

    async def create(self, entries: Mapping[str, Entry]) -> bool:
        """Make a cluster of all these entries, the description among them; return False when one exists. A call that is
        cut short makes the whole cluster or none, and can be repeated. What such a call or deletion has left is not in
        the new cluster."""

    async def delete(self, description: Entry) -> bool:
        """Delete the cluster of this description; return False when it has another by now. A call that is cut short
        leaves the whole cluster, or none."""

    async def add(self, entries: Mapping[str, Entry]) -> None:
        """Keep those of these entries whose keys have none yet, in a cluster that exists. A call that is cut short may
        have kept some of them, and can be repeated."""

    async def read(self, key: str) -> Entry | None:
        """Return the present entry, or None. It is durable, because callers act upon it: no loss of power takes it
        back."""

    async def compare_and_set(self, key: str, contents: bytes, present: Entry | None, least: int = -1) -> Entry | None:
        """Replace the entry and return the new one, or None, with nothing changed, when it is no longer `present`. With
        `present` None, replace whatever entry there is. One of a version below `least` is left in any case. Only
        `create` and `add` make a first entry: `CoordinatorDamaged` without one."""

    async def changed(self, key: str, version: int) -> None:
        """Return once the entry has another version than this, or soon after. May return before: read again."""

    async def register(self, name: str, entry: Entry) -> bool:
        """Take a name, `folder/number`, for as long as this process lives; its own name again changes nothing. Returns
        False when another living process has it."""

    @property
    def trouble(self) -> str:
        """Why the store can't be reached at present, in words for operators; empty if it can, or nothing is known."""

    @property
    def holds_s(self) -> float:
        """The least seconds for which a name holds after its last renewal began; `inf` where nobody judges that. Nobody
        else counts the process as gone earlier: neither by its lease, nor because the store has ended its session."""

    async def renew(self, name: str) -> bool:
        """Show that this process lives, by raising the version of a name that it has registered. Returns False, and
        does nothing, if the name is not this process's any more. May take it again if nobody has it."""

    async def tell(self, name: str, contents: bytes) -> None:
        """Replace the contents of a name that this process has registered; does nothing for any other. Others see them
        soon."""

    async def leave(self, name: str) -> None:
        """Give up one's own name; does nothing when another process has it."""

    async def registered(self, folder: str) -> Mapping[str, Entry]:
        """Return the names in this folder whose processes live, by the part after the slash. The entry of a living name
        that does not read has no contents: the caller decides whether that matters."""

    async def close(self) -> None:
        """Give up all of this process's names. May be called again. A change that is under way is finished, or ends as
        if the process had died there."""


def damaged(place: str, what: str) -> CoordinatorDamaged:
    """Return the error for a damaged entry, with what is wrong and what to do."""
    return CoordinatorDamaged(
        f"{place}: {what}. Nothing was changed. Stop the cluster's processes and restore the whole coordinator as it "
        "was last; an older copy, or a new coordinator, would let two owners write in one session. Without one that is "
        "whole, move what is left of it away (with ZooKeeper: take another path), start the storage nodes, and have "
        f"its values made again from them: {recovery_of(place)}"
    )


def deleted(place: str) -> CoordinatorLost:
    """Return the error for a cluster that this process knew, and that has no description any more."""
    return CoordinatorLost(
        f"{place}: it is missing, and this process has read it before: the coordinator has lost its data, or somebody "
        "has deleted the cluster (polonaise cluster delete). Nothing was changed. If it was deleted, stop this "
        "process. If nobody deleted it, the log is still on the storage nodes: leave their directories as they are, "
        f"and restore the whole coordinator as it was last, or make its values again ({recovery_of(place)}). This "
        "process goes on by itself once they are there"
    )


PUT_BACK: Final = "was put back to an older state"


def outdated(place: str, seen: int, found: int) -> CoordinatorOutdated:
    return _not_believed(place, f"it went back from version {seen} to {found}: the coordinator {PUT_BACK}")


def not_following(place: str, seen: int, found: int) -> CoordinatorOutdated:
    """Return the error for an entry that has a later version than this process has seen, and does not follow it."""
    return _not_believed(
        place,
        f"its version {found} does not follow version {seen}, which this process has seen: the coordinator {PUT_BACK}, "
        "and was changed there or since",
    )


def lacking(place: str, session: SessionId) -> CoordinatorOutdated:
    """Return the error for the value of a partition that lacks a session that its replicas know."""
    return _not_believed(place, f"replicas know of session {session}, and it does not: the coordinator {PUT_BACK}")


def _not_believed(place: str, what: str) -> CoordinatorOutdated:
    return CoordinatorOutdated(
        f"{place}: {what}. Nothing was changed, and this process changes nothing there. Restore its latest state: this "
        "process goes on by itself once what it has seen is back, unless others have changed that first. If the latest "
        "state is there already, start this process again. Without it, stop the cluster's servers, move the older "
        f"state away and make its values again from the storage nodes and a backup ({recovery_of(place)})"
    )


def unsupported(place: str, found: str, known: int) -> CoordinatorNewer:
    return newer(place, f"it is of coordinator format {found}; this version of Polonaise reads format {known}")


def newer(place: str, what: str) -> CoordinatorNewer:
    """Return the error for an entry with something that only a newer version knows."""
    return CoordinatorNewer(
        f"{place}: {what}. Nothing is damaged, and nothing was changed: run the version that wrote it, or a newer one "
        "(docs/upgrading.md)"
    )


def missing(place: str) -> CoordinatorDamaged:
    return damaged(place, "it is missing, although its cluster exists")
