"""What operators are told of a group while it works, and what they may not do to it."""

from __future__ import annotations

import pytest

from polonaise import Transaction, testing
from polonaise.admin.workergroups import describe_group, list_groups, reset_group
from polonaise.client.protocol.groupleases import member_lease, partition_lease
from polonaise.errors import BadOption
from polonaise.views.sql import SqlView
from rigs.waiting import wait_until


async def handle(tx: Transaction) -> None:
    if tx.data == b"bad":
        raise RuntimeError("no stomach for it")


async def test_members_partitions_lag_and_trouble_are_told_while_they_work() -> None:
    async with testing.log(partitions=2) as log, log.cluster.connect() as other:
        await log.append(b"good", 0)
        await log.append(b"bad", 1)
        async with log.group("g", handler=handle) as first, other.group("g", handler=handle) as second:
            await wait_until(lambda: first.partitions and second.partitions)

            async def told() -> bool:
                partitions = (await describe_group(log, "g", 5)).partitions
                return {each.member for each in partitions} == {first.member, second.member} and all(
                    (each.state == "works", bool(each.trouble)) == (True, each.partition == 1) for each in partitions
                )

            await wait_until(told)
            found = await describe_group(log, "g", 5)
            assert (found.by, found.members) == ("handler", sorted([first.member, second.member]))
            assert "no stomach" in found.partitions[1].trouble
            assert found.partitions[1].lag is not None
            assert found.partitions[1].lag > 0
            (listed,) = await list_groups(log, 5)
            assert (listed.name, listed.members, listed.partitions) == ("g", 2, 2)


async def test_the_lag_of_a_group_is_not_known_while_nobody_works_on_a_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leases are those that a member has, and an application may not."""
    monkeypatch.setattr("polonaise.client.lease.GROUP_LEASES", "another prefix")
    async with testing.log(partitions=2) as log:
        await log.append(b"for nobody", 1)
        async with log.lease(member_lease("g", 1)), log.lease(partition_lease("g", 0), note=b'{"lag": 0}'):
            (listed,) = await list_groups(log, 5)
            assert (listed.partitions, listed.lag) == (1, None), "0 would say that nothing waits"
            async with log.lease(partition_lease("g", 1), note=b'{"lag": 1}'):
                (listed,) = await list_groups(log, 5)
                assert (listed.partitions, listed.lag) == (2, 1)


async def test_the_position_of_a_view_is_not_changed_from_outside(tmp_path: object) -> None:
    class Nothing(SqlView):
        def apply(self, tx: Transaction, db: object) -> None:
            pass

    async with testing.log() as log, log.group("g", view=Nothing(f"sqlite:///{tmp_path}/v.db")) as group:
        await wait_until(lambda: group.health()["well"])
        with pytest.raises(BadOption, match="in the view's database"):
            await reset_group(log, "g", [0], -1, 5)
