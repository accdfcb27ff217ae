"""What a server tells storage nodes of the coordinator's values: nothing of a cluster that it may not believe."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.errors import ConsistencyLost, PolonaiseError
from polonaise.server.protocol.recovery import OlderStateProved
from polonaise.server.valuenotes import ValueNotes

OLDER = OlderStateProved("partition 1: the coordinator was put back")
FORK = ConsistencyLost("partition 1: a fork")


def owned(value: object, stopped: PolonaiseError | None = None, blocked: PolonaiseError | None = None) -> Any:
    session = None if value is None else SimpleNamespace(value=value)
    owner = SimpleNamespace(session=session, stopped=stopped, readiness=SimpleNamespace(blocked=blocked))
    return SimpleNamespace(owner=owner)


class Told:
    """A server's notes, of which only what is known counts."""

    def __init__(self, *partitions: Any) -> None:
        self.now_s = 0.0
        self.description, self.changes = object(), SimpleNamespace(count=0)
        clock, none = SimpleNamespace(monotonic_s=lambda: self.now_s), SimpleNamespace(seen=None)
        cluster = SimpleNamespace(described=self.description)
        host: Any = SimpleNamespace(clock=clock)
        parts: Any = dict(enumerate(partitions))
        fakes: list[Any] = [host, None, None, cluster, None, parts, self.changes, none, None]
        self.notes = ValueNotes(*fakes)

    @property
    def known(self) -> dict[str | int, Any]:
        return self.notes._known()


@pytest.mark.parametrize("partitions", [(), (owned(None),), (owned("0"), owned(None, stopped=OLDER))])
def test_nothing_is_told_of_a_cluster_of_which_no_session_or_an_older_state_is_known(partitions: tuple[Any]) -> None:
    told = Told(*partitions)
    told.now_s = 100
    assert not {"description", "unique_id"} & told.known.keys()
    assert len(told.known) == sum(each.owner.session is not None for each in partitions)


def test_at_the_beginning_every_partition_has_its_chance_to_prove_an_older_state() -> None:
    told = Told(owned("0"), owned(None))
    assert told.known == {0: "0"}
    told.now_s = 11
    assert told.known["description"] is told.description, "one that can't start for another reason hinders nothing"
    assert Told(owned("0"), owned("1")).known.keys() == {"unique_id", "description", 0, 1}


@pytest.mark.parametrize("why", [{"stopped": OLDER}, {"blocked": OLDER}, {"stopped": FORK}])
def test_what_is_found_later_ends_what_is_told_of_the_cluster(why: dict[str, PolonaiseError]) -> None:
    told = Told(owned("0"), owned("1"))
    known = told.known
    assert told.known is known, "nothing was looked at again"
    told.notes._partitions[1].owner.__dict__.update(  # type: ignore[attr-defined]
        stopped=why.get("stopped"), readiness=SimpleNamespace(blocked=why.get("blocked"))
    )
    told.changes.count += 1
    assert ("description" in told.known) == (why.get("stopped") is FORK)
