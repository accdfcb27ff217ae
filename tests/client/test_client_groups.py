"""Groups in columns: many transactions in one frame, committed as one, or refused as one."""

from __future__ import annotations

from array import array

import pytest

from polonaise import testing
from polonaise.client.log import Log
from polonaise.client.protocol.draft import Change, Expectation, Limits
from polonaise.client.protocol.group import Group
from polonaise.client.protocol.locks import Lock
from polonaise.errors import (
    AppendFailed,
    BadOption,
    BodyTooLarge,
    Closed,
    ExpectationFailed,
    LockConflict,
    Overloaded,
    TooManyLocks,
)
from polonaise.terms import LockMode
from rigs.clients import World
from rigs.waiting import wait_until


async def test_a_group_commits_as_one_and_its_receipt_names_all_ids(client: Log) -> None:
    receipt = await client.append_group(Group.of([b"a", b"", b"ccc"], [1, -2, 3]))
    assert (list(receipt.ids), receipt.count) == ([0, 1, 2], 3)
    assert [(tx.header, tx.data) async for tx in client.read()] == [(1, b"a"), (-2, b""), (3, b"ccc")]


async def test_groups_and_single_appends_keep_the_order_in_which_they_were_asked_for(world: World, client: Log) -> None:
    receipts = [
        client.append(b"1"),
        client.append_group(Group.of([b"2", b"3"])),
        client.append_group(Group.of([b"4"])),
        client.append(b"5"),
    ]
    assert [(await receipt).id for receipt in receipts] == [0, 1, 3, 4]
    assert world.log.bodies() == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_group_whose_expectation_fails_is_not_in_the_log_at_all(world: World, client: Log) -> None:
    await client.append_group(
        Group.of([b"a", b"b"]), expectations=[Expectation.absent(b"k")], changes=[Change.set(b"k", b"1")]
    )
    with pytest.raises(ExpectationFailed):
        await client.append_group(Group.of([b"c", b"d"]), expectations=[Expectation.absent(b"k")])
    assert await client.register(b"k") == b"1"
    assert world.log.bodies() == [b"a", b"b"]


async def test_a_group_in_flight_behind_one_that_fails_fails_by_its_expectation(world: World, client: Log) -> None:
    """So a chain may be sent without waiting for each of its groups: nothing of it comes after a hole."""
    chain = [
        client.append_group(
            Group.of([b"n"]),
            expectations=[Expectation.equals(b"k", b"%d" % step)],
            changes=[Change.set(b"k", b"%d" % (step + 1))],
        )
        for step in range(3)
    ]
    for receipt in chain:
        with pytest.raises(ExpectationFailed):
            await receipt
    assert world.log.bodies() == []


async def test_each_transaction_of_a_group_carries_its_own_locks(client: Log) -> None:
    locks = [[Lock("account", 7, LockMode.APPEND)], [], [Lock("account", 8), Lock("account", 9)]]
    await client.append_group(Group.of([b"a", b"b", b"c"], locks=locks))
    for number, conflict in ((7, 0), (9, 2)):
        with pytest.raises(LockConflict) as raised:
            await client.append(b"x", high_water_mark=-1, locks=[Lock("account", number)])
        assert raised.value.conflict == conflict


async def test_a_group_that_the_owner_passes_over_has_failed(world: World, client: Log) -> None:
    await client.append(b"first")
    world.server.lose = True
    receipt = client.append_group(Group.of([b"a", b"b"]))
    with pytest.raises(AppendFailed):
        await receipt
    assert world.log.bodies() == [b"first"]


async def test_a_group_that_waits_unsent_when_the_client_closes_was_never_sent(client: Log) -> None:
    await client.append(b"first")
    receipt = client.append_group(Group.of([b"a", b"b"]))
    await client.close()
    with pytest.raises(Closed):
        await receipt


async def test_too_much_outstanding_refuses_a_group(world: World) -> None:
    client = await world.ready_client(settings={"outstanding_count_max": 3})
    first = client.append_group(Group.of([b"a", b"b", b"c"]))
    with pytest.raises(Overloaded):
        client.append_group(Group.of([b"d"]))
    await first
    await wait_until(lambda: world.log.bodies() == [b"a", b"b", b"c"])


async def test_a_group_past_the_limits_is_refused_before_anything_is_sent(world: World) -> None:
    limits = Limits(body_bytes_max=4, locks_max=1, group_count_max=2, group_bytes_max=6)
    client: Log = await world.client(settings={"limits": limits})
    for group, error in (
        (Group.of([]), BadOption),
        (Group.of([b"a"] * 3), BodyTooLarge),
        (Group.of([b"aaaa", b"bbb"]), BodyTooLarge),
        (Group.of([b"aaaaa"]), BodyTooLarge),
        (Group.of([b"a"], locks=[[Lock("l", 1), Lock("l", 2)]]), TooManyLocks),
        (Group.of([b"a", b"b"], locks=[[Lock("l", 1)], []]), BodyTooLarge),
    ):
        with pytest.raises(error):
            client.append_group(group)
    with pytest.raises(BadOption, match="Group"):
        client.append_group([b"a"])  # type: ignore[arg-type]
    assert world.log.bodies() == []


@pytest.mark.slow
async def test_more_locks_than_a_server_takes_at_once_are_refused_before_anything_is_sent() -> None:
    """The server refuses such a frame whole, and nobody can append it again."""
    thousand = [Lock("l", number) for number in range(1_000)]
    async with testing.log() as log:
        with pytest.raises(BodyTooLarge, match="split it"):
            log.append_group(Group.of([b""] * 1_001, locks=[thousand] * 1_001))
        assert (await log.append_group(Group.of([b""] * 900, locks=[thousand] * 900))).last_id == 899


def test_columns_that_do_not_fit_together_are_no_group() -> None:
    one = array("I", [1]).tobytes()
    for columns in (
        (one, one, one, b""),
        (one, b"", one, b"a"),
        (one[:3], one, one, b"a"),
        (one * 2, one * 2, array("I", [2, 1]).tobytes(), b"a"),
        (one, one, one, b"a", one, b"", b""),
    ):
        with pytest.raises(BadOption):
            Group(*columns)


@pytest.mark.parametrize("locks", [{"lock_hashes": bytes(8), "lock_modes": b"\2"}, {"lock_modes": b"\2"}])
def test_locks_without_their_ends_are_no_group(locks: dict[str, bytes]) -> None:
    one = array("I", [1]).tobytes()
    with pytest.raises(BadOption, match="no lock_ends"):
        Group(one, one, one, b"a", **locks)


def test_bodies_headers_and_locks_are_as_many_as_each_other() -> None:
    with pytest.raises(BadOption, match="headers"):
        Group.of([b"a"], [1, 2])
    with pytest.raises(BadOption, match="locks"):
        Group.of([b"a"], locks=[[], []])
    with pytest.raises(BadOption, match="bodies"):
        Group.of(b"abc")  # type: ignore[arg-type]
