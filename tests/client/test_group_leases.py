"""What the leases of groups of workers tell, whoever has written their names and notes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from polonaise.client.protocol.groupleases import ToldWorker, member_lease, partition_lease, told_groups
from polonaise.wire.leases import ListedLease


def lease(name: str, holder: int, told: object = None) -> ListedLease:
    return ListedLease(name, holder, 1_000, b"" if told is None else json.dumps(told).encode())


def test_members_partitions_and_lag_are_told_by_group() -> None:
    groups = told_groups(
        [
            lease(partition_lease("mails", 10), 7, {"lag": 5, "trouble": "why"}),
            lease(member_lease("mails", 7), 7, {"by": "handler"}),
            lease(partition_lease("mails", 2), 9, {"lag": 2}),
            lease(partition_lease("bills", 0), 9, {"lag": None}),
            lease("group/no group's", 1),
            lease("group/mails/partition/x", 1),
            lease("player/mails", 1),
        ]
    )
    assert list(groups) == ["bills", "mails"]
    mails = groups["mails"]
    assert list(mails.members) == [7]
    assert mails.members[7].told == {"by": "handler"}
    assert {partition: worker.holder for partition, worker in mails.workers.items()} == {10: 7, 2: 9}
    assert mails.workers[10].told["trouble"] == "why"
    assert mails.lag == 7
    assert groups["bills"].lag is None


@given(st.lists(st.tuples(st.text(), st.binary())))
def test_whatever_is_in_names_and_notes_is_read_or_passed_over(rows: list[tuple[str, bytes]]) -> None:
    names = [name for name, _ in rows] + [f"group/a/partition/{place}" for place in range(len(rows))]
    notes = [note for _, note in rows] * 2
    for group in told_groups(ListedLease(name, 1, 1, note) for name, note in zip(names, notes, strict=True)).values():
        assert group.lag is None or isinstance(group.lag, int)
        assert all(isinstance(worker.told, dict) for worker in group.workers.values())


def test_a_note_without_a_whole_number_tells_none() -> None:
    for told in (b'{"lag": true}', b'{"lag": "5"}', b'{"lag": 1.5}', b"[5]", b"5", b"\xff", b"[" * 100_000):
        assert ToldWorker(1, told).number("lag") is None
