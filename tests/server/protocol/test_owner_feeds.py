"""How an owner feeds its mounts, how much of each it takes, and each subscription's place in the tail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.log.batch import Batch, Columns, seal
from polonaise.server.protocol.feeds import TailCache
from polonaise.server.protocol.mounts import ClientMount, Committed
from polonaise.terms import BodyForm
from polonaise.wire.messages import Mount
from rigs.owner import COMMITTED, READY, SENT, Talk, check

# ------------------------------------------------------------------ feeds, and what they wait for


def test_a_laggard_is_read_for_and_then_fed_from_memory_again() -> None:
    check(
        f"""{COMMITTED}
    > x appends 2
    send 3: 1..1
    > A B store 3
    feed x: 1..1
    mark 1
    > y mounts at -1
    send 4: barrier
    read y: 0
    > A B store 4
    > y is given
    read y: 0
    > y is given 0
    feed y: 0..0
    feed y: 1..1
    answer y: ready at 1
    """,
        cache_bytes_max=1,
    )


def test_a_mount_is_fed_a_turns_worth_and_then_its_connection_is_asked() -> None:
    check(f"""{READY}
    > x appends 1!300000
    send 2: 0..0
    > A B store 2
    feed x: 0..0
    mark 0
    room x
    > x appends 2
    send 3: 1..1
    > A B store 3
    mark 1
    > x has room
    feed x: 1..1
    """)


# ------------------------------------------------------------------ mounts that replace each other


def test_appends_of_an_older_mount_are_void() -> None:
    talk = Talk()
    for event in ("x mounts at -1", "x appends 1", "x mounts at -1", "x appends 2", "session 1 at -1"):
        done = talk(event)
    assert done == ["confirm -1", "send 1: 0..0", "mark -1"], "one append, and the later mount's"
    assert talk.owner.counts["void_appends"] == 1
    assert talk("A B store 1") == ["feed x: 0..0", "answer x: ready at 0", "mark 0"], "answered once"


def test_a_mount_is_ready_only_after_the_appends_of_the_older_one_are_decided() -> None:
    check(f"""{SENT}
    > x mounts at -1
    turn
    > turn
    send 3: barrier
    > A B store 2
    feed x: 0..0
    mark 0
    > A B store 3
    answer x: ready at 0
    """)


def test_a_refusal_reaches_the_clients_present_mount() -> None:
    check(f"""{READY}
    > x appends 1:k 2:k
    send 2: 0..0
    > x mounts at -1
    turn
    > A B store 2
    send 3: barrier
    tell x: 2 LOCK_CONFLICT 0
    feed x: 0..0
    mark 0
    """)


@pytest.mark.parametrize("events", [("x leaves",), ("x leaves", "x mounts at -1", "x leaves")])
def test_a_client_that_has_left_is_told_nothing(events: tuple[str, ...]) -> None:
    talk = Talk.ready().hear("x appends 1:k 2:k", "x flushes", *events)
    for event in ("turn", "A B store 2", "A B store 3", "A B store 4"):
        assert not [line for line in talk(event) if " x" in line]


# ------------------------------------------------------------------ bounds


def test_what_is_beyond_a_mounts_window_is_refused_and_the_others_are_not() -> None:
    check(
        """
    > x mounts at -1
    > y mounts at -1
    > x appends 1!3000
    > x appends 2!3000
    tell x: 2 OVERLOADED -1
    > y appends 1
    > x flushes
    > session 1 at -1
    confirm -1
    send 1: 0..1
    mark -1
    > A B store 1
    feed x: 0..1
    feed y: 0..1
    answer x: ready at 1
    answer y: ready at 1
    answer x: flushed 1
    mark 1
    """,
        append_window_bytes=5_000,
    )


def test_one_frame_always_fits_however_small_the_window_is() -> None:
    check(
        """
    > x mounts at -1
    > x appends 1!3000
    > x appends 2
    tell x: 2 OVERLOADED -1
    """,
        append_window_bytes=1,
    )


def test_all_mounts_together_have_a_bound() -> None:
    check(
        """
    > x mounts at -1
    > y mounts at -1
    > x appends 1!3000
    > x appends 2!3000
    > y appends 1!3000
    > y appends 2!3000
    tell y: 2 OVERLOADED -1
    """,
        inbox_bytes_max=12_000,
    )


def test_appends_that_are_put_back_count_again_until_they_are_judged() -> None:
    talk = Talk.ready().hear("x appends 1!3000", "x appends 2!3000", "ends")
    (mount,) = talk.owner.feeds.mounts.values()
    (count, size), of_mount = talk.owner.waiting, mount.inbox_bytes
    assert count == 1, "the first is on its way to the replicas"
    assert size == of_mount > 3000
    talk.hear("session 2 at -1")
    assert (talk.owner.waiting, mount.inbox_bytes) == ((0, 0), 0)


def test_appends_of_one_client_that_expire_leave_room_for_more() -> None:
    talk = Talk.ready(append_window_bytes=5_000).hear("C fails")
    assert talk("x appends 1!4000") == []
    assert talk("x appends 2!4000") == ["tell x: 2 OVERLOADED -1"]
    assert talk("time 11")[0] == "tell x: 1 DEADLINE -1"
    assert talk("x appends 3!4000") == []


def committed(first: int, headers: list[int], *, body: bytes = b"body") -> Committed:
    columns = Columns()
    for position, header in enumerate(headers):
        columns.add(1, 1, first + position, header, body)
    raw = seal(columns, partition=0, first=first, session=1, generation=1, commit_time_us=0, previous_crc=0)
    return Committed(first, first + len(headers) - 1, raw)


def subscription(
    mark: int = -1, form: BodyForm = BodyForm.INLINE, credit: int = 10**6, mask: int = 0, value: int = 0
) -> ClientMount:
    return ClientMount(1, None, Mount(1, 0, mark, form, mask, value, credit))


# ------------------------------------------------------------------ the cache


@given(sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), max_size=60), bytes_max=st.integers(0, 900))
def test_the_cache_holds_the_newest_without_gaps_and_within_its_bound(
    sizes: list[tuple[int, int]], bytes_max: int
) -> None:
    cache, following = TailCache(bytes_max), 5
    told: list[Committed] = []
    for count, size in sizes:
        batch = Committed(following, following + count - 1, bytes(size))
        cache.add(batch)
        told.append(batch)
        following += count
        held = [cache.holding(transaction) for transaction in range(5, following)]
        kept = [batch for batch in told if batch in held]
        assert kept == told[len(told) - len(kept) :], "a suffix"
        assert kept[-1] is batch, "the newest always"
        assert len(kept) == 1 or sum(len(b.raw) for b in kept) <= bytes_max
        for transaction, found in enumerate(held, 5):
            assert found is None or found.first <= transaction <= found.last
    assert cache.holding(following) is None
    assert cache.holding(4) is None


def test_what_is_pushed_out_is_let_go_of() -> None:
    cache = TailCache(1_000)
    for number in range(10_000):
        cache.add(Committed(number, number, bytes(100)))
    assert len(cache._batches) <= 2_100
    assert len(cache._firsts) == len(cache._batches)
    assert sum(len(batch.raw) for batch in cache._batches) <= 1_000
    assert [cache.holding(number) is not None for number in (9_989, 9_990, 9_999)] == [False, True, True]


def test_an_empty_cache_holds_nothing_and_neither_does_a_cleared_one() -> None:
    cache = TailCache(1_000)
    assert cache.holding(0) is None
    cache.add(Committed(0, 3, b"raw"))
    cache.clear()
    assert cache.holding(0) is None
    cache.add(Committed(9, 9, b"raw"))
    assert (cache.holding(3), cache.holding(9)) == (None, Committed(9, 9, b"raw"))


# ------------------------------------------------------------------ subscriptions


def test_a_subscription_moves_on_behind_what_it_took_and_pays_for_it() -> None:
    feed, batch = subscription(mark=4, credit=100), committed(5, [0, 0])
    assert feed.next_id == 5
    assert feed.take(batch) == batch.raw
    assert feed.next_id == 7
    assert feed.credit == 100 - len(batch.raw)
    assert not feed.has_credit
    feed.credit += len(batch.raw)
    assert feed.has_credit


def test_a_mark_inside_a_batch_is_fed_the_whole_batch() -> None:
    feed, batch = subscription(mark=5), committed(5, [0, 0, 0])
    assert feed.next_id == 6
    assert feed.take(batch) == batch.raw
    assert feed.next_id == 8


def test_lazy_bodies_stay_behind() -> None:
    feed, batch = subscription(form=BodyForm.LAZY, credit=1_000), committed(0, [1, 2])
    reduced = Batch.parse(feed.take(batch))
    assert not reduced.has_data
    assert reduced.headers.tolist() == [1, 2]
    assert feed.credit == 1_000 - reduced.length
    assert reduced.length < len(batch.raw)


@pytest.mark.parametrize(
    ("headers", "mask", "value", "whole"),
    [
        ([1, 2, 3], 0xFF, 2, True),
        ([1, 2, 3], 0xFF, 4, False),
        ([0x102], 0xFF, 2, True),
        ([-1], 0xFFFFFFFF, 0xFFFFFFFF, True),
        ([-1], 0x80000000, 0x80000000, True),
        ([1], 0x80000000, 0x80000000, False),
        ([5], 0, 0, True),
        ([4], 1, 2, True),  # bits outside of the mask do not count
    ],
)
def test_a_filter_withholds_bodies_never_ids(headers: list[int], mask: int, value: int, whole: bool) -> None:
    feed, batch = subscription(form=BodyForm.FILTERED, mask=mask, value=value), committed(0, headers)
    taken = Batch.parse(feed.take(batch))
    assert taken.has_data == whole
    assert taken.headers.tolist() == headers
    assert feed.next_id == len(headers)


@pytest.mark.parametrize("mark", [2**63 - 1, -1])
def test_marks_and_credit_at_the_limits_of_their_fields_are_just_numbers(mark: int) -> None:
    feed = subscription(mark=mark, credit=2**63 - 1)
    assert feed.next_id == mark + 1
    feed.credit += 2**63 - 1
    assert feed.has_credit
