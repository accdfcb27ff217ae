"""Workers on a log in memory: shares, hand-over, order, failures, a position in registers, and what operators see."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from polonaise import Transaction, testing
from polonaise.admin.workergroups import describe_group, list_groups, reset_group
from polonaise.client import workerpartition
from polonaise.client.log import partitions_of
from polonaise.client.protocol.groupleases import member_lease, partition_lease
from polonaise.client.workergroup import WorkerGroup
from polonaise.client.workerpartition import PartitionWork
from polonaise.client.workerprogress import HandlerProgress, parse_kept, register_of, replace_kept
from polonaise.errors import BadOption, Closed, DeadlineExceeded, UnsupportedVersion
from polonaise.testing.driver import MemoryLog
from polonaise.views.sql import SqlView
from polonaise.wire.leases import LEASES_VERSION
from rigs.clients import World
from rigs.waiting import nothing_happens_for, wait_until

GRACEFUL_S_MAX = 0.5


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups look at their partitions, and save positions, more often than in production."""
    monkeypatch.setattr("polonaise.client.workergroup._WATCH_S", 0.1)
    monkeypatch.setattr(workerpartition, "SAVE_S", 0.1)


class Handled:
    """What handlers were given, by partition, and by whom."""

    def __init__(self) -> None:
        self.bodies: dict[int, list[bytes]] = defaultdict(list)
        self.by: dict[int, list[str]] = defaultdict(list)
        self.fails_on: set[bytes] = set()
        self.gate = asyncio.Event()
        self.gate.set()

    def worker(self, name: str) -> Any:
        async def handle(tx: Transaction) -> None:
            await self.gate.wait()
            if tx.data in self.fails_on:
                raise RuntimeError(f"no stomach for {tx.data!r}")
            self.bodies[tx.partition].append(tx.data)
            self.by[tx.partition].append(name)

        return handle


async def appended(log: MemoryLog, partitions: int, count: int, since: int = 0) -> None:
    for number in range(since, since + count):
        for partition in range(partitions):
            await log.append(b"%d" % number, partition)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def shared(*groups: WorkerGroup, sizes: list[int]) -> None:
    await wait_until(lambda: sorted(len(group.partitions) for group in groups) == sizes)


async def test_one_worker_handles_all_partitions_in_order_and_the_next_goes_on() -> None:
    handled = Handled()
    async with testing.log(partitions=3) as log:
        await appended(log, 3, 5)
        async with log.group("g", handler=handled.worker("a")) as group:
            await wait_until(lambda: all(len(handled.bodies[p]) == 5 for p in range(3)))
            assert group.partitions == (0, 1, 2)
        await appended(log, 3, 5, since=5)
        async with log.group("g", handler=handled.worker("b")):
            await wait_until(lambda: all(len(handled.bodies[p]) >= 10 for p in range(3)))
        assert handled.bodies == {partition: numbers(10) for partition in range(3)}, "each once, as all left in order"
        assert [tx.data for tx in log.transactions(0)] == numbers(10), "bookkeeping is no application's transaction"
        assert parse_kept(log.registers(0)[register_of("g")])[0] == 2


@pytest.mark.slow
async def test_members_share_and_hand_over_at_once_when_one_joins_or_leaves() -> None:
    handled = Handled()
    async with testing.log(partitions=5) as log, log.cluster.connect() as other:
        first = log.group("g", handler=handled.worker("a"))
        async with first:
            await shared(first, sizes=[5])
            began_s = asyncio.get_running_loop().time()
            second = other.group("g", handler=handled.worker("b"))
            async with second:
                await shared(first, second, sizes=[2, 3])
                assert set(first.partitions).isdisjoint(second.partitions)
                joined_s = asyncio.get_running_loop().time() - began_s
                assert first.health()["members"] == sorted([first.member, second.member])
                await appended(log, 5, 3)
                await wait_until(lambda: all(handled.bodies[p] == numbers(3) for p in range(5)))
                left_s = asyncio.get_running_loop().time()
            await shared(first, sizes=[5])
            left_s = asyncio.get_running_loop().time() - left_s
            print(f"joined in {joined_s:.2f} s, left in {left_s:.2f} s")  # noqa: T201
            assert left_s < GRACEFUL_S_MAX
            assert joined_s < 2 * GRACEFUL_S_MAX
            await appended(log, 5, 3, since=3)
            await wait_until(lambda: all(handled.bodies[p] == numbers(6) for p in range(5)))


async def test_a_handler_that_raises_stops_its_partition_alone_and_is_tried_again() -> None:
    handled = Handled()
    handled.fails_on = {b"1"}
    async with testing.log(partitions=2) as log:
        await log.append(b"0", 0)
        await log.append(b"1", 0)
        await log.append(b"2", 0)
        await appended(log, 1, 0)
        async with log.group("g", handler=handled.worker("a")) as group:
            await log.append(b"x", 1)
            await wait_until(lambda: group.health()["partitions"].get("0", {}).get("trouble"))
            health = group.health()
            assert "no stomach for b'1'" in health["partitions"]["0"]["trouble"]
            assert "transaction 1" in health["partitions"]["0"]["trouble"]
            assert not health["well"]
            await wait_until(lambda: handled.bodies[1] == [b"x"])
            assert handled.bodies[0] == [b"0"]
            handled.fails_on = set()
            await wait_until(lambda: handled.bodies[0] == [b"0", b"1", b"2"])
            await wait_until(lambda: group.health()["well"])


@pytest.mark.slow
async def test_a_handler_that_hangs_is_told_and_no_more_once_it_goes_on() -> None:
    handled = Handled()
    handled.gate.clear()
    async with testing.log() as log, log.group("g", handler=handled.worker("a"), progress_s_max=0.2) as group:
        await wait_until(lambda: group.health()["well"])
        await nothing_happens_for(0.3)
        assert group.health()["well"], "waiting for transactions is no trouble"
        await appended(log, 1, 2)
        await wait_until(lambda: not group.health()["well"])
        assert "transaction 1 has taken 0 s so far" in group.health()["partitions"]["0"]["trouble"]
        handled.gate.set()
        await wait_until(lambda: group.health()["well"] and handled.bodies == {0: numbers(2)})


async def test_trouble_ends_when_what_failed_succeeds_although_nothing_is_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go_on = asyncio.Event()

    def failing_until_then(method: Any, what: str) -> Any:
        async def call(*given: Any) -> Any:
            if not may_go_on.is_set():
                raise OSError(what)
            return await method(*given)

        return call

    handled = Handled()
    async with testing.log() as log:
        with monkeypatch.context() as patch:
            failing = failing_until_then(HandlerProgress.take_over, "no register")
            patch.setattr(HandlerProgress, "take_over", failing)
            group = log.group("g", handler=handled.worker("a"))
            await group.__aenter__()
            await wait_until(lambda: "no register" in str(group.health()["partitions"]))
            assert not group.health()["well"], "an empty partition has no lag, and is not taken over for all that"
            may_go_on.set()
            await wait_until(lambda: group.health()["well"] and group.health()["partitions"]["0"]["state"] == "works")
        may_go_on.clear()
        monkeypatch.setattr(PartitionWork, "_next", failing_until_then(PartitionWork._next, "no connection"))
        await appended(log, 1, 1)  # ends a wait that has begun before; the next one fails
        await wait_until(lambda: "no connection" in str(group.health()["partitions"]))
        may_go_on.set()
        await wait_until(lambda: group.health()["well"] and handled.bodies == {0: numbers(1)})
        await group.leave()


async def test_lag_is_told_while_a_handler_is_slow() -> None:
    handled = Handled()
    handled.gate.clear()
    async with testing.log() as log:
        await appended(log, 1, 7)
        async with log.group("g", handler=handled.worker("a")) as group:
            await wait_until(lambda: (group.health()["lag"] or 0) >= 7)
            handled.gate.set()
            await wait_until(lambda: group.health()["lag"] == 0)


@pytest.mark.slow
async def test_a_position_is_saved_once_in_a_while_and_not_because_of_itself() -> None:
    handled = Handled()
    async with testing.log() as log:
        async with log.group("g", handler=handled.worker("a")):
            await appended(log, 1, 49)
            # Not simply 49: on a slow machine a position was saved meanwhile, which took an id itself.
            last = (await log.append(b"49", 0)).id
            await wait_until(lambda: parse_kept(log.registers().get(register_of("g")))[1] >= last)
            mark = await log.high_water_mark()
            await nothing_happens_for(0.5)
            assert await log.high_water_mark() == mark, "no bookkeeping of bookkeeping"
        assert handled.bodies[0] == numbers(50)
        assert mark < 50 + 10, "one saving for many transactions"


@pytest.mark.slow
async def test_a_worker_that_was_replaced_is_fenced_and_begins_where_the_position_says() -> None:
    handled = Handled()
    async with testing.log() as log:
        await appended(log, 1, 4)
        async with log.group("g", handler=handled.worker("a")) as group:
            await wait_until(lambda: handled.bodies[0] == numbers(4))
            epoch = group.health()["partitions"]["0"]["epoch"]
            await replace_kept(
                partitions_of(log), 0, register_of("g"), lambda epoch, position: (epoch + 1, 1)
            )  # as reset does
            await appended(log, 1, 1, since=4)
            await wait_until(lambda: handled.bodies[0][-3:] == [b"2", b"3", b"4"] and len(handled.bodies[0]) >= 7)
            assert group.health()["partitions"]["0"]["epoch"] == epoch + 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_the_position_before_a_transaction_that_is_not_done_is_kept(how: str) -> None:
    handled, never = Handled(), asyncio.Event()

    async def handle(tx: Transaction) -> None:
        if tx.data == b"3" and how == "hangs":
            await never.wait()
        await handled.worker("a")(tx)

    handled.fails_on = {b"3"}
    async with testing.log() as log:
        await appended(log, 1, 6)
        async with log.group("g", handler=handle, lease_s=1.0):
            await wait_until(lambda: parse_kept(log.registers().get(register_of("g")))[1] == 2)
        handled.fails_on = set()
        async with log.group("g", handler=handled.worker("b"), lease_s=1.0):
            await wait_until(lambda: len(handled.bodies[0]) == 6)
    assert handled.bodies[0] == numbers(6), "none comes twice"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fails", "hangs", "has nothing to read"])
async def test_a_position_that_an_operator_sets_is_taken_up(how: str) -> None:
    handled: list[bytes] = []
    never = asyncio.Event()

    async def handle(tx: Transaction) -> None:
        handled.append(tx.data)
        if tx.data == b"3" and how == "fails":
            raise RuntimeError("no stomach for it")
        if tx.data == b"3" and how == "hangs":
            await never.wait()

    async with testing.log() as log:
        await appended(log, 1, 6)
        async with log.group("g", handler=handle):
            await wait_until(lambda: (b"3" if how != "has nothing to read" else b"5") in handled)
            if how == "has nothing to read":  # and its bookkeeping is done, too
                await wait_until(lambda: parse_kept(log.registers().get(register_of("g")))[1] >= 5)
                await nothing_happens_for(0.5)
            handled.clear()
            await reset_group(log, "g", [0], 3, 5)
            await wait_until(lambda: handled[-2:] == [b"4", b"5"])
            described = (await describe_group(log, "g", 5)).partitions[0]
            assert described.position is not None
            assert described.position >= 3


@pytest.mark.slow
async def test_a_partition_that_does_not_answer_is_told_and_its_lag_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workerpartition, "_SILENT_S_MAX", 0.3)
    handled = Handled()
    async with testing.log(partitions=2) as log, log.group("g", handler=handled.worker("a")) as group:
        await wait_until(lambda: len(group.partitions) == 2 and group.health()["lag"] == 0)
        ask = partitions_of(log).parts.requests.high_water_mark

        async def silent_for_one(partition: int, timeout: float | None, *rest: Any) -> int:
            if partition == 1:
                await nothing_happens_for(timeout or 0.0)
                raise DeadlineExceeded("the owner has no session")
            return await ask(partition, timeout, *rest)

        monkeypatch.setattr(partitions_of(log).parts.requests, "high_water_mark", silent_for_one)
        await wait_until(lambda: not group.health()["well"])
        health = group.health()
        assert "the owner has no session" in health["partitions"]["1"]["trouble"]
        assert health["partitions"]["1"]["lag"] is None
        assert health["lag"] is None, "not known is not none"
        handled.gate.clear()
        await appended(log, 1, 7)
        await wait_until(lambda: (group.health()["partitions"]["0"]["lag"] or 0) >= 7)
        handled.gate.set()
        await wait_until(lambda: group.health()["partitions"]["0"]["lag"] == 0)
        monkeypatch.setattr(partitions_of(log).parts.requests, "high_water_mark", ask)
        await wait_until(lambda: group.health()["well"] and group.health()["lag"] == 0)


@pytest.mark.slow
async def test_a_log_that_ends_below_the_position_of_a_worker_that_runs_is_told_and_nothing_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled = Handled()
    async with testing.log() as log:
        await appended(log, 1, 6)
        async with log.group("g", handler=handled.worker("a")) as group:
            await wait_until(lambda: parse_kept(log.registers().get(register_of("g")))[1] >= 5)
            with monkeypatch.context() as patch:

                async def ends_at_2(*_: Any) -> int:
                    return 2

                patch.setattr(partitions_of(log).parts.requests, "high_water_mark", ends_at_2)
                await wait_until(lambda: not group.health()["well"])
                assert "the log ended at 2" in group.health()["partitions"]["0"]["trouble"]
                assert group.health()["lag"] is None
            await appended(log, 1, 3, since=6)
            await nothing_happens_for(0.5)
            assert handled.bodies[0] == numbers(6), "a log that has grown since is another one all the same"
            assert not group.health()["well"]
            await reset_group(log, "g", [0], 1, 5)
            await wait_until(lambda: group.health()["well"])
            await wait_until(lambda: len(handled.bodies[0]) >= 13)
        assert handled.bodies[0] == numbers(6) + numbers(9)[2:]


@pytest.mark.slow
async def test_a_worker_whose_lease_is_lost_handles_nothing_more() -> None:
    handled = Handled()
    async with testing.log() as log, log.group("g", handler=handled.worker("a"), lease_s=1.0) as group:
        await shared(group, sizes=[1])
        log.cluster.server.lose_connections(reachable=False)
        await wait_until(lambda: group.partitions == ())
        assert not group.health()["well"]
        log.cluster.server.reach()
        await shared(group, sizes=[1])
        await wait_until(lambda: group.health()["well"])
        await appended(log, 1, 1)
        await wait_until(lambda: handled.bodies[0] == [b"0"])


async def test_nothing_is_left_of_a_group_that_was_left_or_whose_client_was_closed() -> None:
    handled = Handled()
    async with testing.log(partitions=2) as log:
        await appended(log, 2, 2)
        async with log.group("g", handler=handled.worker("a")) as group:
            await wait_until(lambda: all(handled.bodies[p] == numbers(2) for p in range(2)))
        with pytest.raises(Closed, match="has left the group g"):
            await group.ended()
        with pytest.raises(BadOption, match="joined before"):
            await group.__aenter__()
        async with log.cluster.connect() as other:
            second = other.group("g", handler=handled.worker("b"))
            await second.__aenter__()
            await shared(second, sizes=[2])
        with pytest.raises(Closed):
            await second.ended()
        await second.leave()
    await wait_until(lambda: not [task for task in asyncio.all_tasks() if "client: " in task.get_name()])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "either a view or a handler"),
        ({"handler": lambda tx: None}, "coroutine function"),
        ({"view": object()}, "SqlView"),
        ({"name": "a/b", "handler": 1}, "a group's name"),
        ({"lease_s": 0.5}, "either a view or a handler"),
        ({"handler": Handled().worker("a"), "lease_s": 0.5}, "1 to 60 seconds"),
        ({"handler": Handled().worker("a"), "progress_s_max": 0}, "a number of seconds above 0"),
        ({"handler": Handled().worker("a"), "progress_s_max": "1"}, "progress_s_max"),
    ],
)
async def test_arguments_that_no_group_can_have_are_refused(given: dict[str, Any], told: str) -> None:
    async with testing.log() as log:
        with pytest.raises(BadOption, match=told):
            log.group(**{"name": "g", **given})


async def test_a_member_with_other_terms_than_those_who_were_there_first_ends_and_says_why() -> None:
    handled = Handled()
    async with (
        testing.log() as log,
        log.cluster.connect() as other,
        log.group("g", handler=handled.worker("a")) as group,
    ):
        await shared(group, sizes=[1])
        async with other.group("g", handler=handled.worker("b"), lease_s=2.0) as second:
            with pytest.raises(BadOption, match=r"works with .*5\.0.* and this one with .*2\.0"):
                await second.ended()
            assert second.partitions == ()
        assert group.health()["well"]


async def test_a_lease_that_was_granted_by_an_answer_that_was_lost_is_not_left_unused() -> None:
    handled = Handled()
    async with testing.log(partitions=2) as log, log.group("g", handler=handled.worker("a")) as group:
        await shared(group, sizes=[2])
        group._work.pop(1).give_up()
        group._tenures.pop("group/g/partition/1")
        began_s = asyncio.get_running_loop().time()
        await shared(group, sizes=[2])
        assert asyncio.get_running_loop().time() - began_s < 2.0, "and not when the lease has run out"


async def test_a_group_on_older_servers_ends_and_says_what_to_do(world: World) -> None:
    world.server.version_max = LEASES_VERSION - 1
    log = await world.client()
    async with log.group("g", handler=Handled().worker("a")) as group:
        with pytest.raises(UnsupportedVersion, match="upgrade the servers"):
            await group.ended()
        assert not group.health()["well"]


@pytest.mark.slow
async def test_a_worker_that_hangs_in_its_handler_is_left_behind_after_the_time_of_a_lease() -> None:
    handled = Handled()
    handled.gate.clear()
    async with testing.log() as log:
        await appended(log, 1, 1)
        began_s = asyncio.get_running_loop().time()
        async with log.group("g", handler=handled.worker("a"), lease_s=1.0) as group:
            await shared(group, sizes=[1])
            await wait_until(lambda: group.health()["partitions"]["0"]["state"] == "works")
        assert asyncio.get_running_loop().time() - began_s < 4.0
        assert handled.bodies == {}


async def handle(tx: Transaction) -> None:
    if tx.data == b"bad":
        raise RuntimeError("no stomach for it")


@pytest.mark.slow
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
