"""Leases as applications have them, what they tell of groups of workers, and how members share partitions by them."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polonaise
from polonaise import testing
from polonaise.client.protocol.groupleases import (
    NextMove,
    ToldWorker,
    member_lease,
    next_move,
    partition_lease,
    told_groups,
)
from polonaise.errors import (
    BadOption,
    Closed,
    DeadlineExceeded,
    UnknownPartition,
    UnsupportedVersion,
)
from polonaise.wire.leases import LEASES_VERSION, ListedLease
from rigs.clients import World
from rigs.waiting import nothing_happens_for

RELEASED_S_MAX = 0.5


def tasks_of_leases() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "lease" in task.get_name()]


@pytest.mark.slow
async def test_a_lease_is_held_by_one_until_it_is_released_and_then_by_another_at_once() -> None:
    async with testing.log() as log, log.cluster.connect() as other:
        first, second = log.lease("n"), other.lease("n")
        assert (first.held, second.held) == (False, False)
        await first.acquire()
        await first.acquire()  # it has it already
        waiting = asyncio.ensure_future(second.acquire())
        await nothing_happens_for(0.3)
        assert (first.held, second.held, waiting.done()) == (True, False, False)
        began_s = asyncio.get_running_loop().time()
        await first.release()
        assert not first.held
        await waiting
        assert second.held
        assert asyncio.get_running_loop().time() - began_s < RELEASED_S_MAX
        assert log.transactions() == [], "nothing is appended"
        await second.release()
        await second.release()
    assert tasks_of_leases() == []


async def test_the_leases_that_are_held_are_listed_with_what_their_holders_note() -> None:
    async with testing.log() as log, log.cluster.connect() as other:
        async with log.lease("mail/a", note=b"one"), other.lease("mail/b", note=b"two"), log.lease("other"):
            listed = await other.list_leases("mail/")
            assert [(each.name, each.note) for each in listed] == [("mail/a", b"one"), ("mail/b", b"two")]
            assert 0 < listed[0].remaining_ms <= 5_000
            assert len(await log.list_leases()) == 3
        assert await log.list_leases("mail/") == []
        with pytest.raises(BadOption):
            await log.list_leases(b"mail")  # type: ignore[arg-type]


async def test_names_and_partitions_are_apart() -> None:
    async with (
        testing.log(partitions=2) as log,
        log.lease("n") as one,
        log.lease("m") as two,
        log.lease("n", partition=1, note=b"of the second") as three,
    ):
        assert len({one.holder, two.holder, three.holder}) == 3
        assert all(lease.held for lease in (one, two, three))
    assert not any(lease.held for lease in (one, two, three))


@pytest.mark.slow
async def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    async with testing.log() as log, log.lease("n"):
        second = log.lease("n")
        waiting = asyncio.ensure_future(second.acquire())
        await nothing_happens_for(0.05)
        with pytest.raises(BadOption, match="being acquired already"):
            await second.acquire()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(DeadlineExceeded, match=r"could not be had within 0\.3 s: holder \d+ has it for"):
            await second.acquire(timeout=0.3)
        assert len(tasks_of_leases()) == 1
        assert await second.lost() == "it was never held"


@pytest.mark.slow
async def test_a_new_embedded_log_grants_a_lease_at_once_and_one_that_is_opened_again_waits_for_holders(
    tmp_path: Path,
) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.lease("n", duration_s=60).acquire(timeout=30)
    async with polonaise.connect(f"embedded:{tmp_path}") as log:
        await log.ready(0)
        with pytest.raises(DeadlineExceeded, match="owner"):
            await log.lease("n", duration_s=60).acquire(timeout=0.5)


async def test_another_duration_is_refused_while_the_name_is_held() -> None:
    async with testing.log() as log, log.lease("n"):
        with pytest.raises(BadOption, match="another duration than 2 s"):
            await log.lease("n", duration_s=2).acquire()


@pytest.mark.slow
async def test_a_lease_that_can_not_be_renewed_is_lost_within_its_duration_and_can_be_had_again() -> None:
    async with testing.log() as log:
        lease = log.lease("n", duration_s=1.0)
        await lease.acquire()
        began_s = asyncio.get_running_loop().time()
        log.cluster.server.lose_connections(reachable=False)
        why = await lease.lost()
        assert asyncio.get_running_loop().time() - began_s < 1.0
        assert why.startswith("it could not be renewed for 1 s (the last trouble: [")
        # The last request had what was left of the lease, which is next to nothing.
        assert (found := re.search(r"was asked for leases and did not answer within (\S+) s", why))
        assert 0.5 < float(found[1]) < 1.0
        assert not lease.held
        log.cluster.server.reach()
        await lease.acquire(timeout=5)
        assert lease.held


async def test_a_lease_that_another_one_has_is_lost_at_once() -> None:
    async with testing.log() as log:
        lease = log.lease("n", duration_s=1.0)
        await lease.acquire()
        owner = log.cluster.partition(0).owner
        owner.leases._granted["n"] = owner.leases._granted["n"]._replace(holder=4711)
        assert (await lease.lost()).startswith("holder 4711 has it")


async def test_a_client_that_is_closed_holds_nothing() -> None:
    async with testing.log() as log:
        async with log.cluster.connect() as other:
            lease = other.lease("n")
            await lease.acquire()
            waiting = asyncio.ensure_future(other.lease("n").acquire())
            losing = asyncio.ensure_future(lease.lost())
            await nothing_happens_for(0.01)
        assert not lease.held
        assert await losing == "this client was closed"
        with pytest.raises(Closed):
            await waiting
        for use in (lambda: other.lease("n"), lambda: lease.acquire()):
            with pytest.raises(Closed):
                await use()  # type: ignore[misc]
    assert tasks_of_leases() == []


async def test_an_older_server_is_not_asked_and_the_error_says_what_to_do(world: World) -> None:
    world.server.version_max = LEASES_VERSION - 1
    log = await world.client()
    with pytest.raises(UnsupportedVersion, match="a request for leases takes 4: upgrade the servers"):
        await log.lease("n").acquire()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": ""}, "0 bytes"),
        ({"name": "n" * 256}, "256 bytes"),
        ({"name": 3}, "is text"),
        ({"name": "group/g/partition/x"}, "of worker groups"),
        ({"name": "n", "duration_s": 0.5}, "lasts 1 to 60 seconds"),
        ({"name": "n", "duration_s": 61}, "lasts 1 to 60 seconds"),
        ({"name": "n", "duration_s": "5"}, "duration_s"),
        ({"name": "n", "note": "text"}, "note is bytes"),
        ({"name": "n", "note": b"x" * 1_025}, "at most 1024"),
    ],
)
async def test_arguments_that_no_lease_can_have_are_refused(given: dict[str, Any], told: str) -> None:
    async with testing.log() as log:
        with pytest.raises(BadOption, match=told):
            log.lease(**given)
        with pytest.raises(UnknownPartition):
            log.lease("n", partition=1)


def test_a_lease_for_threads() -> None:
    with testing.blocking_log() as log:
        lease = log.lease("n", note=b"of a thread")
        with lease:
            assert (lease.held, lease.name, lease.partition, lease.duration_s) == (True, "n", 0, 5.0)
            with pytest.raises(DeadlineExceeded):
                log.lease("n").acquire(timeout=0.1)
            assert lease.holder > 0
        assert not lease.held
        assert lease.lost() == "it was released"


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


def test_one_member_wants_all_and_two_share() -> None:
    assert next_move(4, [1], {}, 1) == NextMove((0, 1, 2, 3), ())
    assert next_move(4, [1, 2], {}, 1) == NextMove((0, 1), ())
    assert next_move(4, [1, 2], {}, 2) == NextMove((2, 3), ())
    assert next_move(4, [], {}, 7) == NextMove((0, 1, 2, 3), ()), "who is not listed yet counts itself"


def test_who_has_too_many_gives_up_the_surplus_and_who_lacks_some_waits_for_them() -> None:
    held = dict.fromkeys(range(5), 1)
    assert next_move(5, [1, 2], held, 1) == NextMove((), (3, 4))
    assert next_move(5, [1, 2], held, 2) == NextMove((), ())
    assert next_move(5, [1, 2], {0: 1, 1: 1, 2: 1}, 2) == NextMove((3, 4), ())


def test_a_partition_of_a_member_that_is_gone_is_not_free_before_its_lease_has_run_out() -> None:
    assert next_move(2, [1], {0: 1, 1: 99}, 1) == NextMove((), ())
    assert next_move(2, [1], {0: 1}, 1) == NextMove((1,), ())


def test_more_members_than_partitions() -> None:
    assert [next_move(2, [1, 2, 3], {}, me).wanted for me in (1, 2, 3)] == [(0,), (1,), ()]
    assert next_move(2, [1, 2, 3], {0: 3, 1: 2}, 1) == NextMove((), ())


@pytest.mark.slow
@given(st.integers(1, 30), st.integers(1, 9), st.randoms(use_true_random=False))
def test_shares_come_to_rest_from_any_state(partitions: int, members: int, source: random.Random) -> None:
    """Members look one after the other, each at an older state or the present one, and leases keep them apart."""
    here = list(range(members))
    held = {p: source.choice(here) for p in range(partitions) if source.random() < 0.7}
    moved = 0
    for _ in range(8):
        for me in source.sample(here, members):
            before = dict(held)
            move = next_move(partitions, here, before, me)
            assert not set(move.wanted) & before.keys()
            assert all(before[partition] == me for partition in move.surplus)
            for partition in move.surplus:
                del held[partition]
                moved += 1
            for partition in move.wanted:
                held.setdefault(partition, me)
    counts = Counter(dict.fromkeys(here, 0)) + Counter(held.values())
    shares = [counts[member] for member in here]
    assert sum(shares) == partitions
    assert max(shares) - min(shares) <= 1
    assert moved <= partitions, "no partition is given up twice"


@pytest.mark.parametrize("members", [2, 3, 5])
def test_a_member_that_joins_moves_no_more_than_its_share(members: int) -> None:
    partitions = 12
    held = {p: p % (members - 1) for p in range(partitions)}
    surplus = [p for me in range(members - 1) for p in next_move(partitions, range(members), held, me).surplus]
    assert len(surplus) in (partitions // members, -(-partitions // members))
