"""The example of docs/replication.md, played by the functions that decide in production: its pictures are what is then.

The coordinator's value changes by `server.protocol.recovery`, the replicas by `storage.protocol.replica` on disks that
never fail, and the client's append by `client.protocol`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from polonaise.checksum import crc32
from polonaise.client.protocol.outstanding import AppendWindow, Outstanding, Pending, SentFrame, still_pending
from polonaise.coordination.values import Engagement, PartitionValue
from polonaise.errors import Fenced
from polonaise.log.batch import Batch, Columns, seal
from polonaise.log.control import Promises
from polonaise.server.protocol import recovery
from polonaise.server.protocol.commit import Acknowledgements
from polonaise.server.protocol.recovery import Decided, ReplicaAnswer, Undecided
from polonaise.storage.protocol.replica import Action, Cut, Refuse, Replica, Save, StoreBatches, StoreRequest
from polonaise.terms import UNRESOLVED
from polonaise.wire.appends import AppendColumns

DOCUMENT = Path(__file__).parents[2] / "docs" / "replication.md"
X, Y = b"x", b"y"


def pictures() -> list[list[str]]:
    """Those of the example, each as its lines."""
    example = DOCUMENT.read_text().split("## An example", 1)[1].split("\n## ", 1)[0]
    return [block.rstrip().splitlines() for block in re.findall(r"^```\n(.*?)^```", example, re.MULTILINE | re.DOTALL)]


def batch(before: Batch | None, session: int, generation: int, data: bytes = b"") -> Batch:
    columns = Columns()
    columns.add(1, generation, 1, 0, data)
    first, crc = (before.last + 1, before.crc) if before else (0, 0)
    made = seal(
        columns, partition=0, first=first, session=session, generation=generation, commit_time_us=first,
        previous_crc=crc,
    )  # fmt: skip
    return Batch.parse(made)


class StorageNode:
    """One replica, and a disk that does as it is told."""

    def __init__(self, name: str, log: Sequence[Batch], promises: Promises) -> None:
        self.name = name
        self.log = list(log)
        self.replica = Replica(promises, self.log[-1].last, self.log[-1].crc)
        self.away = False

    def does(self, actions: Sequence[Action]) -> Sequence[Action]:
        for action in actions:
            match action:
                case Save(promises):
                    self.replica.promises = promises
                case Cut(last):
                    self.log = [each for each in self.log if each.last <= last]
                case StoreBatches(batches):
                    self.log += batches
            self.replica.last, self.replica.last_crc = self.log[-1].last, self.log[-1].crc
        return actions

    def asked(self, session: int) -> ReplicaAnswer:
        """What it answers to last-session-info."""
        self.does(self.replica.fence(session))
        kept = self.replica.promises
        lost = None if kept.lost_above == UNRESOLVED else kept.lost_above
        return ReplicaAnswer(kept.joined, kept.prepared, kept.confirmed, self.replica.last, self.replica.last_crc, lost)

    def takes(self, session: int, number: int, sent: Batch) -> bool:
        """Whether it acknowledges a batch."""
        done = self.does(self.replica.store([StoreRequest(session, session, number, [sent])]))
        return not any(isinstance(action, Refuse) for action in done)

    def line(self, value: PartitionValue) -> str:
        ids = " ".join(f"{each.first}{bytes(each.data).decode()}" for each in self.log[8:])
        kept = self.replica.promises
        told = "away" if self.away else f"fence {kept.fence}  joined {kept.joined}  confirmed {kept.confirmed}"
        engagement = value.engagements[self.name]
        end = "UNRESOLVED" if engagement.unresolved else f"closing mark {engagement.closing}"
        return f"{self.name}   {'... ' + ids:17}{told:34}|  {self.name}  engaged in {engagement.session}, {end}"


def test_the_example_is_what_the_decisions_make_of_it() -> None:
    log = [batch(None, 6, 4)]
    for id in range(1, 11):
        log.append(batch(log[-1], 7 if id > 8 else 6, 4))
    value = PartitionValue(4, 7, ("A", "B", "C"), None, {name: Engagement(7) for name in "ABC"})
    a, b, c = nodes = [StorageNode(name, log[:9], Promises(fence=6, joined=6)) for name in "ABC"]
    for node in nodes:
        node.asked(7)
        node.does(node.replica.join(7, 7, 8, log[8].crc))
        node.does(node.replica.confirm(7, 8))
        assert node.takes(7, 1, log[9])
        assert node.takes(7, 2, log[10])
    seen = iter(pictures())

    def shows(owner: str) -> None:
        assert [owner, *(node.line(value) for node in nodes)] == next(seen)

    shows("S1  owner, generation 4, session 7, committed 10")

    # 2: the crash. One acknowledgement of three commits nothing.
    x = batch(log[-1], 7, 4, X)
    counted = Acknowledgements(value.members, "ABC")
    assert a.takes(7, 3, x)
    assert not counted.acknowledge("A", 3)
    a.away = True
    shows("S1  dead")

    # 3: claim and fence. From the old session nothing is taken any more.
    claimed = recovery.claim(value, 5)
    assert claimed is not None
    value = claimed
    answers = {node.name: node.asked(value.session) for node in (b, c)}
    (refused,) = b.replica.store([StoreRequest(7, 7, 3, [x])])
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, Fenced)
    shows("S2  owner, generation 5, session 8, has not decided")

    # 4 and 5: decide and join, then engage and confirm.
    decided = recovery.decide(value, answers)
    assert decided == Decided(10, log[-1].crc, ("B", "C"))
    for node in (b, c):
        assert recovery.clean_to(value, node.name, answers[node.name], 10) == 10
        node.does(node.replica.join(8, 8, decided.closing, decided.last_crc))
    shows("S2  owner, generation 5, session 8, closing mark 10")
    assert recovery.may_engage(value, "BC")
    value = recovery.engage(value, "BC", 10)
    for node in (b, c):
        node.does(node.replica.confirm(8, 10))
    shows("S2  owner, generation 5, session 8, committed 10")

    # 6: the mount is answered at 10, and x was not fed; the client sends it again, and it gets into the batch y.
    outstanding, sent, window = Outstanding(), Pending(), AppendWindow()
    outstanding.add(sent)
    outstanding.all_sent()
    columns = AppendColumns()
    columns.add(sent.sequence, 10, 0, X, crc32(X))
    window.sent(SentFrame(columns, len(X)))
    (again,) = window.open(1 << 20)
    assert still_pending(again.columns, outstanding.is_pending) is columns
    assert (columns.message(4).generation, columns.message(5).generation) == (4, 5)
    y = batch(log[-1], 8, 5, Y)
    counted = Acknowledgements(value.members, "BC")
    assert b.takes(8, 1, y)
    assert not counted.acknowledge("B", 1)
    assert c.takes(8, 1, y)
    assert counted.acknowledge("C", 1)
    shows("S2  owner, generation 5, session 8, committed 11")

    # 7: A comes back, is cut to its closing mark, and is given what is committed.
    a.away = False
    back = a.asked(8)
    assert (back.joined, back.max_synced) == (7, 11)
    assert recovery.clean_to(value, "A", back, 10) == 10
    a.does(a.replica.truncate(8, 10))
    a.does(a.replica.copy(8, [y]))
    a.does(a.replica.confirm(8, 11))
    shows("S2  owner, generation 5, session 8, committed 11")

    # 8: the next session takes all three.
    claimed = recovery.claim(value, 5)
    assert claimed is not None
    value = claimed
    answers = {node.name: node.asked(9) for node in nodes}
    assert recovery.decide(value, answers) == Decided(11, y.crc, ("B", "C"))
    for node in nodes:
        assert recovery.clean_to(value, node.name, answers[node.name], 11) == 11
        node.does(node.replica.join(9, 9, 11, y.crc))
    value = recovery.engage(value, "ABC", 11)
    for node in nodes:
        node.does(node.replica.confirm(9, 11))
    shows("S2  owner, generation 5, session 9, committed 11")
    assert list(seen) == []
    assert [bytes(each.view) for each in a.log] == [bytes(each.view) for each in b.log]


def test_with_another_replica_away_the_end_is_another_or_is_waited_for() -> None:
    value = PartitionValue(5, 8, ("A", "B", "C"), None, {name: Engagement(7) for name in "ABC"})
    holds = {"A": ReplicaAnswer(7, 8, 8, 11, 1, None), "B": ReplicaAnswer(7, 8, 8, 10, 2, None)}
    assert recovery.decide(value, holds) == Decided(11, 1, ("A",)), "C away: x is kept"
    assert recovery.decide(value, {"B": holds["B"]}) == Undecided(("A", "C"), 1), "A and C away: S2 waits"
