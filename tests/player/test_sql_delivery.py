"""A target in a SQL database: each entry once, in order, whatever dies, and nothing of a stream that was replaced."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, OperationalError

from polonaise.errors import BadOption, Closed, ViewUnavailable, ViewUnfit
from polonaise.player.deliverytarget import Acceptance, AppliedBatch, DeliverySource
from polonaise.player.protocol.entries import NO_FENCE, DeliveryBatch, Fence, RoutedEntry
from polonaise.player.protocol.reception import Verdict
from polonaise.player.sqldelivery import SqlDeliveryTarget
from polonaise.views.marks import Marks
from polonaise_proving.stages.databaseservers import engine_at
from rigs.databases import change, execute
from rigs.deliverycalls import SOURCE, StreamCalls, batch_of, stream
from rigs.raised import IN_A_THREAD
from rigs.waiting import wait_until

SCHEMA = MetaData()
LINES = Table(
    "lines",
    SCHEMA,
    Column("number", Integer, primary_key=True),
    Column("partition_id", Integer, nullable=False),
    Column("line", String(100), nullable=False),
)


class Lines(SqlDeliveryTarget):
    """Keeps each entry as a row; refuses those that say `bad` as often as `bad_times` says."""

    metadata = SCHEMA

    def __init__(self, url: str, bad_times: int = 99, **options: Any) -> None:
        super().__init__(url, **options)
        self.bad_times = bad_times
        self.runs: list[list[int]] = []

    def apply_entries(self, partition: int, entries: Sequence[RoutedEntry], db: Connection) -> None:
        self.runs.append([entry.id for entry in entries])
        super().apply_entries(partition, entries, db)

    def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
        assert entry.payload is not None
        line = entry.payload.decode()
        db.execute(LINES.insert(), {"partition_id": partition, "line": line})
        if line == "bad" and self.bad_times:
            self.bad_times -= 1
            raise ValueError("no such account")


def batch(previous: int, *lines: str | None, partition: int = 0) -> DeliveryBatch:
    """A batch of consecutive ids; None for a dummy."""
    return batch_of(previous, lines, partition)


def kept(url: str) -> list[tuple[int, str]]:
    engine = create_engine(url)
    try:
        with engine.connect() as db:
            return [(row.partition_id, row.line) for row in db.execute(select(LINES).order_by(LINES.c.number))]
    finally:
        engine.dispose()


@asynccontextmanager
async def opened(url: str, *targets: SqlDeliveryTarget, **options: Any) -> AsyncIterator[Any]:
    """A target, or these, closed in the end."""
    made = targets or (Lines(url, **options),)
    try:
        yield made if targets else made[0]
    finally:
        for target in made:
            await target.close()


async def stream_that_brought_two(target: SqlDeliveryTarget) -> StreamCalls:
    """Return a stream that has brought an entry each of partitions 0 and 1."""
    session = await stream(target)
    for partition in (0, 1):
        await session.take(batch(-1, "a", partition=partition))
    return session


async def test_entries_are_applied_with_their_ids_and_told_to_the_next_stream(url: str) -> None:
    async with opened(url) as target:
        session = StreamCalls(target, Fence(1, 1))
        assert await session.greet(SOURCE) == Acceptance(True, Fence(1, 1), {})
        assert await session.take(batch(-1, "a", "b")) == AppliedBatch(Verdict.APPLY, 1, Fence(1, 1))
        assert await session.take(batch(-1, "x", partition=3)) == AppliedBatch(Verdict.APPLY, 0, Fence(1, 1))
    async with opened(url) as again:
        acceptance = await StreamCalls(again, Fence(1, 2)).greet(SOURCE)
        assert acceptance == Acceptance(True, Fence(1, 2), {0: 1, 3: 0})
    assert kept(url) == [(0, "a"), (0, "b"), (3, "x")]


async def test_a_target_whose_file_is_gone_takes_nothing_until_it_is_back(sqlite_url: str) -> None:
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    async with opened(sqlite_url) as target:
        session = await stream(target, 1, 1)
        await session.take(batch(-1, "a", "b"))
        file.rename(file.with_name("aside.db"))
        for step in (lambda: session.take(batch(1, "c")), lambda: target.accept(Fence(1, 2), SOURCE)):
            with pytest.raises(ViewUnavailable, match=f"file {file} was removed"):
                await step()
        assert not file.exists()
        file.with_name("aside.db").rename(file)
        again = StreamCalls(target, Fence(1, 3))
        assert await again.greet(SOURCE) == Acceptance(True, Fence(1, 3), {0: 1})
        await again.take(batch(1, "c"))
    assert kept(sqlite_url) == [(0, "a"), (0, "b"), (0, "c")]


async def test_a_stream_is_accepted_only_above_the_one_before(url: str) -> None:
    async with opened(url) as target:
        await stream(target, 2, 5)
        for lower in (Fence(2, 5), Fence(2, 4), Fence(1, 9)):
            assert await target.accept(lower, SOURCE) == Acceptance(False, Fence(2, 5), {})
        assert (await target.accept(Fence(3, 1), SOURCE)).accepted


async def test_what_an_older_stream_still_brings_is_not_applied(url: str) -> None:
    async with opened(url) as target:
        older = await stream(target, 1, 1)
        await older.take(batch(-1, "a"))
        newer = await stream(target, 1, 2)
        told = await older.take(batch(0, "b"))
        assert (told.verdict, told.kept) == (Verdict.FENCED, Fence(1, 2))
        await newer.take(batch(0, "b"))
    assert kept(url) == [(0, "a"), (0, "b")]


async def test_a_dummy_raises_the_id_and_applies_nothing(url: str) -> None:
    async with opened(url) as target:
        session = await stream(target)
        assert await session.take(batch(-1, "a", None)) == AppliedBatch(Verdict.APPLY, 1, Fence(1, 1))
        assert await session.take(batch(1, None)) == AppliedBatch(Verdict.APPLY, 2, Fence(1, 1))
        assert target.runs == [[0]]
    assert kept(url) == [(0, "a")]


async def test_a_batch_that_does_not_follow_is_not_applied(url: str) -> None:
    async with opened(url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        for previous in (-1, 1):
            told = await session.take(batch(previous, "b"))
            assert told == AppliedBatch(Verdict.OUT_OF_PLACE, 0, Fence(1, 1))
    assert kept(url) == [(0, "a")]


async def test_an_entry_that_can_not_be_applied_is_refused_and_those_before_it_are_kept(url: str) -> None:
    async with opened(url, bad_times=4) as target:
        session = await stream(target)
        told = await session.take(batch(-1, "a", "bad", "c"))
        assert told == AppliedBatch(Verdict.APPLY, 0, NO_FENCE, "ValueError: no such account")
        told = await session.take(batch(2, "d"))
        assert told.verdict is Verdict.PASS_OVER, "it was sent before the player knew"
        assert (await session.take(batch(-1, "x", partition=1))).verdict is Verdict.APPLY
        assert (await session.take(batch(0, "bad", "c"))).refusal, "once more"
        assert await session.take(batch(0, "bad", "c", "d")) == AppliedBatch(Verdict.APPLY, 3, Fence(1, 1))
    assert kept(url) == [(0, "a"), (1, "x"), (0, "bad"), (0, "c"), (0, "d")]


@pytest.mark.parametrize("raised", IN_A_THREAD)
async def test_whatever_apply_entry_raises_is_a_refusal(sqlite_url: str, raised: BaseException) -> None:
    class Broken(Lines):
        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            if entry.payload == b"bad":
                raise raised
            super().apply_entry(partition, entry, db)

    async with opened(sqlite_url, Broken(sqlite_url)) as (target,):
        session = await stream(target)
        told = await session.take(batch(-1, "a", "bad"))
        assert (told.last, told.verdict) == (0, Verdict.APPLY)
        assert told.refusal.startswith("RuntimeError: apply_entries raised")
        assert (await session.take(batch(-1, "x", partition=1))).last == 0
    assert kept(sqlite_url) == [(0, "a"), (1, "x")]


async def test_where_an_entry_could_not_be_applied_is_logged_once_without_secrets(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Lines):
        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            raise ValueError("no answer from postgresql://me:secret@host/db")

    async with opened(sqlite_url, Broken(sqlite_url)) as (target,):
        session = await stream(target)
        for _ in range(3):
            assert (await session.take(batch(-1, "a", "b"))).refusal
    (told,) = [each for each in caplog.messages if "can't be applied" in each]
    assert told.startswith("entry 0 of partition 0")
    assert "in apply_entry" in told
    assert "secret" not in told


async def test_what_an_application_says_of_itself_reaches_the_player_without_passwords(sqlite_url: str) -> None:
    class Talks(Lines):
        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            raise RuntimeError(f"postgresql://me:secret@host/db {'x' * 2_000}")

    async with opened(sqlite_url, Talks(sqlite_url)) as (target,):
        told = await (await stream(target)).take(batch(-1, "a"))
    assert "secret" not in told.refusal
    assert len(told.refusal) == 500


async def test_an_application_may_not_end_the_transaction(sqlite_url: str) -> None:
    class Commits(Lines):
        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            super().apply_entry(partition, entry, db)
            if entry.payload == b"commits":
                db.commit()

    async with opened(sqlite_url, Commits(sqlite_url)) as (target,):
        told = await (await stream(target)).take(batch(-1, "a", "b", "commits"))
    assert "may not end its SQL transaction" in told.refusal
    assert told.last == 1, "those before it are applied"
    assert kept(sqlite_url) == [(0, "a"), (0, "b")]


async def test_what_the_database_refuses_when_it_commits_is_a_refusal_and_leaves_nothing_behind(
    sqlite_url: str,
) -> None:
    schema = MetaData()
    accounts = Table("accounts", schema, Column("account", Integer, primary_key=True))
    there = ForeignKey(accounts.c.account, deferrable=True, initially="DEFERRED")
    entries = Table("entries", schema, Column("number", Integer, primary_key=True), Column("account", Integer, there))

    class Late(SqlDeliveryTarget):
        metadata = schema

        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            assert entry.payload is not None
            db.execute(entries.insert(), {"account": int(entry.payload)})

    engine = create_engine(sqlite_url)
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    async with opened(sqlite_url, Late(engine)) as (target,):
        session = await stream(target)
        with engine.begin() as db:
            db.execute(accounts.insert(), {"account": 1})
        told = await session.take(batch(-1, "1", "7", "1"))
        assert (told.last, "FOREIGN KEY" in told.refusal) == (0, True)
        assert (await session.take(batch(-1, "1", partition=1))) == AppliedBatch(Verdict.APPLY, 0, Fence(1, 1))
        with engine.begin() as db:
            db.execute(accounts.insert(), {"account": 7})
        assert (await session.take(batch(0, "7", "1"))) == AppliedBatch(Verdict.APPLY, 2, Fence(1, 1))
    with engine.connect() as db:
        assert list(db.execute(select(entries.c.account)).scalars()) == [1, 1, 7, 1]
    engine.dispose()


async def test_two_targets_on_one_database_apply_what_one_stream_brings(url: str) -> None:
    """Two processes of one target: the player has given up the stream to the first, which has not noticed."""
    async with opened(url, Lines(url), Lines(url)) as (first, second):
        older, newer = await stream(first, 1, 1), await stream(second, 1, 2)
        entries = [str(number) for number in range(40)]
        told = await asyncio.gather(
            *(session.take(batch(number - 1, entries[number])) for number in range(40) for session in (older, newer)),
            return_exceptions=True,
        )
        verdicts = {each.verdict for each in told[::2] if isinstance(each, AppliedBatch)}
        assert verdicts == {Verdict.FENCED}
    assert kept(url) == [(0, entry) for entry in entries]


LOCKS_SEEN_ANEW_S = 0.2
"""InnoDB answers about its transactions from a copy, made anew only when nobody has read it for 0.1 s."""


def waits_for_a_lock(url: str) -> bool:
    """Whether a connection to this database waits for what another one has locked.

    Ask at intervals of `LOCKS_SEEN_ANEW_S`: who asks more often is told for ever what was so at the first time.
    """
    question = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    if url.startswith("postgresql"):
        question = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
    engine = create_engine(url)
    try:
        with engine.connect() as db:
            return bool(db.execute(text(question)).scalar_one())
    finally:
        engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("isolation", [None, "REPEATABLE READ"])
async def test_a_stream_is_accepted_only_when_what_the_older_one_applies_has_ended(
    server_url: str, isolation: str | None
) -> None:
    """Else it would be told an id that is raised afterwards."""
    applying, go_on = threading.Event(), threading.Event()

    class Slow(Lines):
        def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
            super().apply_entry(partition, entry, db)
            applying.set()
            assert go_on.wait(60)

    class Other(Lines):
        isolation_level = isolation

    async with opened(server_url, Slow(server_url), Other(server_url)) as (slow, other):
        session = await stream(slow, 1, 1)
        taking = asyncio.ensure_future(session.take(batch(-1, "a")))
        await wait_until(applying.is_set, "the older stream applies")
        accepting = asyncio.ensure_future(other.accept(Fence(1, 2), SOURCE))
        try:
            await wait_until(
                lambda: accepting.done() or waits_for_a_lock(server_url),
                "the newer stream waits for it",
                every_s=LOCKS_SEEN_ANEW_S,
            )
            assert not accepting.done()
        finally:
            go_on.set()
        assert (await taking).last == 0
        assert await accepting == Acceptance(True, Fence(1, 2), {0: 0})


async def test_first_streams_at_the_same_time_are_accepted_one_after_the_other(url: str) -> None:
    targets = [Lines(url) for _ in range(4)]
    async with opened(url, *targets):
        answers = await asyncio.gather(*(target.accept(Fence(1, 1), SOURCE) for target in targets))
        assert sorted(answer.accepted for answer in answers) == [False, False, False, True]


@pytest.mark.parametrize(
    "other", [SOURCE._replace(log_key=bytes(16)), SOURCE._replace(player="q"), SOURCE._replace(target="b")]
)
async def test_the_database_of_another_log_player_or_target_is_refused(url: str, other: DeliverySource) -> None:
    """The ids that it keeps would be taken for those of other entries."""
    async with opened(url) as target:
        await stream(target)
        with pytest.raises(ViewUnfit, match=r"is of target 'a' of player 'p'.*Give each target a database of its own"):
            await target.accept(Fence(9, 9), other)
    async with opened(url, name="another") as beside:
        assert (await beside.accept(Fence(1, 1), other)).accepted


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        (
            f"UPDATE {{}} SET cluster = '{'ab' * 16}'",
            f"fence is of target 'a' of player 'p', for log {'ab' * 16}; to be",
        ),
        ("UPDATE {} SET target = 'b'", "fence is of target 'b' of player 'p'.*see whether this is the right database"),
        ("UPDATE {} SET cluster = 'zz'", "fence says what no target writes.*'zz'.*Restore the target's tables from a"),
    ],
    ids=["log", "target", "junk"],
)
async def test_a_database_of_another_source_is_refused_under_way(url: str, statement: str, told: str) -> None:
    """As when a backup of another one is put in its place."""
    async with opened(url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        change(url, statement, "polonaise_delivery_fence")
        for _ in range(2):
            with pytest.raises(ViewUnfit, match=told):
                await session.take(batch(0, "b"))
            with pytest.raises(ViewUnfit, match=told):
                await target.accept(Fence(1, 2), SOURCE)
        own = f"cluster = '{SOURCE.log_key.hex()}', target = '{SOURCE.target}'"
        change(url, f"UPDATE {{}} SET {own}", "polonaise_delivery_fence")
        assert (await session.take(batch(0, "b"))).last == 1
    assert kept(url) == [(0, "a"), (0, "b")]


@pytest.mark.parametrize("column", ["epoch", "term", "cluster"])
async def test_a_fence_that_no_target_wrote_is_refused_by_its_table(sqlite_url: str, column: str) -> None:
    """SQLite keeps a text in a column of numbers."""
    async with opened(sqlite_url) as target:
        await stream(target)
    change(sqlite_url, f"UPDATE {{}} SET {column} = 'zz'", "polonaise_delivery_fence")
    async with opened(sqlite_url) as again:
        with pytest.raises(ViewUnfit, match=r"table polonaise_delivery_fence says what no target writes.*'zz'"):
            await again.accept(Fence(1, 2), SOURCE)


OWN = ("polonaise_delivery_ids", "polonaise_delivery_fence")


@pytest.mark.parametrize("gone", [OWN, OWN[:1], OWN[1:], ("lines",), ("lines", *OWN)])
async def test_tables_that_are_renamed_under_way_are_waited_for_and_not_made(url: str, gone: Sequence[str]) -> None:
    """Made anew together, they would be those of a new target, which gets everything once more.

    No entry is refused for it, and what to do is told from the first one on.
    """
    async with opened(url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        for name in gone:
            change(url, "ALTER TABLE {} RENAME TO {}", name, f"x_{name}")
        told = f"tables are not as they were: {' and '.join(gone)} (was|were) there .* gone.*the target's tables from"
        with pytest.raises(ViewUnavailable, match=told):
            await session.take(batch(0, "b", "c"))
        for term in (2, 3):
            with pytest.raises(ViewUnavailable, match=told):
                await target.accept(Fence(1, term), SOURCE)
        for name in gone:
            change(url, "ALTER TABLE {} RENAME TO {}", f"x_{name}", name)
        again = StreamCalls(target, Fence(1, 4))
        assert (await again.greet(SOURCE)).applied == {0: 0}
        await again.take(batch(0, "b"))
    assert kept(url) == [(0, "a"), (0, "b")]


async def test_tables_that_are_dropped_under_way_refuse_no_entry_and_are_made_by_the_next_process(url: str) -> None:
    async with opened(url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        for name in ("lines", *OWN):
            change(url, "DROP TABLE {}", name)
        told = r"lines and .*_ids and .*_fence were there.*drop or empty all of them, and start this process"
        with pytest.raises(ViewUnavailable, match=told):
            await session.take(batch(0, "b"))
        with pytest.raises(ViewUnavailable, match=told):
            await target.accept(Fence(1, 2), SOURCE)
    async with opened(url) as again:
        session = await stream(again, 1, 2)
        assert (await session.take(batch(-1, "a", "b"))).last == 1
    assert kept(url) == [(0, "a"), (0, "b")]


class Wording(Lines):
    """Says in words of its own that it can't apply an entry."""

    def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:
        try:
            super().apply_entry(partition, entry, db)
        except DBAPIError as error:
            raise LookupError("no such account") from error


async def test_a_table_that_is_gone_is_told_whatever_the_application_makes_of_the_error(url: str) -> None:
    async with opened(url, Wording(url)) as (target,):
        session = await stream(target)
        await session.take(batch(-1, "a"))
        change(url, "DROP TABLE {}", "lines")
        with pytest.raises(ViewUnavailable, match="lines was there and is gone"):
            await session.take(batch(0, "b"))


class Unnamed(Lines):
    """Does not say which tables it changes."""

    metadata = None


async def test_a_memory_that_is_emptied_under_way_is_refused_while_rows_are_there(url: str) -> None:
    async with opened(url, Lines(url), Unnamed(url, name="beside")) as (target, unnamed):
        await (await stream(target)).take(batch(-1, "a"))
        await stream(unnamed)
        for name in (*OWN, "beside_ids", "beside_fence"):
            execute(url, f"DELETE FROM {name}")
        for each, tables in ((target, "lines"), (unnamed, "the application's tables")):
            with pytest.raises(
                ViewUnavailable, match=f"rows of .*_ids and .*_fence are lost.* empty {tables}, .* together"
            ):
                await each.accept(Fence(1, 2), SOURCE)
        change(url, "DELETE FROM {}", "lines")
        again = StreamCalls(target, Fence(1, 3))
        assert (await again.greet(SOURCE)).applied == {}, "emptied together, it begins anew"


async def test_ids_that_are_emptied_under_way_are_missed_by_the_first_entry_of_another_partition(url: str) -> None:
    """With a row of that partition there, the next stream would take all others for new."""
    async with opened(url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        execute(url, f"DELETE FROM {OWN[0]}")
        with pytest.raises(ViewUnavailable, match=f"rows of {OWN[0]} are lost"):
            await session.take(batch(-1, "x", partition=1))
        with pytest.raises(ViewUnavailable, match=f"rows of {OWN[0]} are lost"):
            await target.accept(Fence(1, 2), SOURCE)
    assert kept(url) == [(0, "a")]


async def test_the_id_of_one_partition_that_is_lost_under_way_is_missed(url: str) -> None:
    """Beside those of others, too: without it the partition would begin as new, and get everything a second time."""
    async with opened(url) as target:
        session = await stream_that_brought_two(target)
        change(url, "DELETE FROM {} WHERE {} = 0", OWN[0], "partition")
        for partition in (0, 2):
            with pytest.raises(ViewUnavailable, match=f"rows of {OWN[0]} are lost"):
                await session.take(batch(-1, "a", partition=partition))
        with pytest.raises(ViewUnavailable, match=f"rows of {OWN[0]} are lost"):
            await target.accept(Fence(1, 2), SOURCE)
    assert kept(url) == [(0, "a"), (1, "a")]


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_target_that_has_lost_the_id_of_one_partition_is_refused(url: str, lost: int) -> None:
    async with opened(url) as target:
        await stream_that_brought_two(target)
    change(url, f"DELETE FROM {{}} WHERE {{}} = {lost}", OWN[0], "partition")
    async with opened(url) as again:
        for term in (2, 3):
            with pytest.raises(ViewUnfit, match=f"rows of {OWN[0]} are lost.*Restore.*empty lines, "):
                await again.accept(Fence(1, term), SOURCE)
    assert kept(url) == [(0, "a"), (1, "a")]


@pytest.mark.parametrize("earlier", ["DELETE FROM {}", "UPDATE {} SET high_water_mark = -1"])
async def test_ids_that_an_earlier_version_wrote_are_missed_from_the_first_stream_on(url: str, earlier: str) -> None:
    """It wrote no row that counts them, or one that stays as it is."""
    async with opened(url) as target:
        await stream_that_brought_two(target)
    change(url, f"{earlier} WHERE {{}} = -1", OWN[0], "partition")
    async with opened(url) as target:
        session = StreamCalls(target, Fence(1, 2))
        assert (await session.greet(SOURCE)).applied == {0: 0, 1: 0}
        await session.take(batch(-1, "a", partition=2))
    change(url, "DELETE FROM {} WHERE {} = 1", OWN[0], "partition")
    async with opened(url) as again:
        with pytest.raises(ViewUnfit, match=f"rows of {OWN[0]} are lost"):
            await again.accept(Fence(1, 3), SOURCE)


@pytest.mark.parametrize("level", [None, "REPEATABLE READ", "SERIALIZABLE"])
async def test_first_ids_that_are_written_at_once_are_all_counted(server_url: str, level: str | None) -> None:
    url = server_url

    class Leveled(Lines):
        isolation_level = level

    async with opened(url, Leveled(url)) as (target,):
        session = await stream(target)
        await asyncio.gather(*(session.take(batch(-1, "a", partition=partition)) for partition in range(8)))
    change(url, "DELETE FROM {} WHERE {} = 5", OWN[0], "partition")
    async with opened(url) as again:
        with pytest.raises(ViewUnfit, match=f"rows of {OWN[0]} are lost"):
            await again.accept(Fence(1, 2), SOURCE)


async def test_a_refused_first_entry_leaves_no_id_that_could_be_missed(url: str) -> None:
    async with opened(url) as target:
        assert (await (await stream(target)).take(batch(-1, "bad"))).refusal
    async with opened(url) as again:
        session = StreamCalls(again, Fence(1, 2))
        assert (await session.greet(SOURCE)).applied == {}
        assert (await session.take(batch(-1, "a"))).last == 0


async def test_a_target_that_begins_beside_rows_says_so_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """They may be seeds, or what was delivered to a target that has lost its memory."""
    async with opened(url) as target:
        await stream(target)
    assert not [each for each in caplog.messages if "holds rows" in each]
    change(url, "INSERT INTO {} (number, partition_id, line) VALUES (1, 0, 'seed')", "lines")
    for name in OWN:
        execute(url, f"DROP TABLE {name}")
    async with opened(url) as target:
        for term in (1, 2):
            assert (await target.accept(Fence(1, term), SOURCE)).accepted
    (told,) = [each for each in caplog.messages if "holds rows" in each]
    assert told.startswith("polonaise_delivery_ids and polonaise_delivery_fence are new, and table lines holds rows")


@pytest.mark.parametrize("lost", ["ids", "fence"])
@pytest.mark.parametrize("how", ["DELETE FROM", "DROP TABLE"])
async def test_a_target_whose_memory_was_lost_in_part_is_refused(url: str, lost: str, how: str) -> None:
    """Without its ids it would begin as new, and get everything a second time."""
    async with opened(url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
    execute(url, f"{how} polonaise_delivery_{lost}")
    async with opened(url) as again:
        for term in (2, 3):
            with pytest.raises(ViewUnfit, match=f"rows of polonaise_delivery_{lost} are lost.*Restore.*empty lines, "):
                await again.accept(Fence(1, term), SOURCE)
    assert kept(url) == [(0, "a")]


async def test_a_target_that_has_applied_nothing_yet_is_accepted_again(url: str) -> None:
    for term in (1, 2):
        async with opened(url) as target:
            assert await target.accept(Fence(1, term), SOURCE) == Acceptance(True, Fence(1, term), {})


async def test_ids_without_any_of_the_targets_tables_are_refused(url: str) -> None:
    async with opened(url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
    with engine_at(url) as engine:
        LINES.drop(engine)
    async with opened(url) as again:
        with pytest.raises(ViewUnfit, match="none of the tables lines is there, and polonaise_delivery_ids says"):
            await again.accept(Fence(1, 2), SOURCE)


class Grown(Lines):
    """A later version of `Lines`, with a table more."""

    metadata = MetaData()


LINES.to_metadata(Grown.metadata)
Table("extra", Grown.metadata, Column("number", Integer, primary_key=True))


async def test_one_of_the_targets_tables_that_is_gone_alone_is_not_made_anew(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would lack what was delivered before; one of a later version lacks it, too, and is told."""
    async with opened(url) as target:
        await (await stream(target)).take(batch(-1, "a"))
    for term in (2, 3):
        async with opened(url, Grown(url)) as (grown,):
            assert (await grown.accept(Fence(1, term), SOURCE)).applied == {0: 0}
    (told,) = [each for each in caplog.messages if "is new" in each]
    assert told.startswith("table extra is new, and lacks what was applied before: it gets rows of partition 0 from id")
    change(url, "DROP TABLE {}", "lines")
    for create in (True, False):
        async with opened(url, Grown(url, create=create)) as (again,):
            with pytest.raises(
                ViewUnfit, match=r"table lines was there and is gone, .*the target's tables.*DELETE"
            ) as e:
                await again.accept(Fence(1, 4), SOURCE)
    execute(url, str(e.value)[str(e.value).index("DELETE FROM") :])
    async with opened(url, Grown(url)) as (again,):
        assert (await again.accept(Fence(1, 4), SOURCE)).applied == {0: 0}


async def test_a_database_that_goes_away_is_no_refusal(postgresql_url: str) -> None:
    async with opened(postgresql_url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        engine = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
        with engine.connect() as db:
            db.execute(text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()"))
        engine.dispose()
        assert (await session.take(batch(0, "b"))).last == 1, "on another connection, at once"
    assert kept(postgresql_url) == [(0, "a"), (0, "b")]


async def test_a_target_that_was_closed_applies_nothing_more(sqlite_url: str) -> None:
    target = Lines(sqlite_url)
    session = await stream(target)
    await target.close()
    with pytest.raises(Closed, match="the target was closed"):
        await session.take(batch(-1, "a"))
    assert kept(sqlite_url) == []


async def test_tables_that_are_missing_are_named(sqlite_url: str) -> None:
    async with opened(sqlite_url, create=False) as target:
        with pytest.raises(ViewUnfit, match="table polonaise_delivery_ids is missing"):
            await target.accept(Fence(1, 1), SOURCE)


def test_a_method_that_is_a_coroutine_is_refused(sqlite_url: str) -> None:
    class Waits(Lines):
        async def apply_entry(self, partition: int, entry: RoutedEntry, db: Connection) -> None:  # type: ignore[override]
            """It would never run."""

    with pytest.raises(BadOption, match="is a coroutine function"):
        Waits(sqlite_url)


async def test_a_fence_is_synced_before_it_is_told(sqlite_url: str) -> None:
    """SQLite need not sync every commit: what is lost is delivered again. A fence that is lost would let others in."""
    seen = []
    async with opened(sqlite_url) as target:
        fence = target._fence
        keep = fence.keep

        def watched(db: Connection, *about: Any, **more: Any) -> None:
            seen.append(db.exec_driver_sql("PRAGMA synchronous").scalar())
            keep(db, *about, **more)

        fence.keep = watched
        session = await stream(target)
        fence.keep = keep
        await session.take(batch(-1, "a"))
        seen.append(
            await target._workers.do(0, lambda writer: writer.db.exec_driver_sql("PRAGMA synchronous").scalar())
        )
    assert seen == [2, 1], "FULL, then NORMAL"


async def test_tables_are_looked_at_again_after_a_connection_was_lost(sqlite_url: str) -> None:
    async with opened(sqlite_url) as target:
        session = await stream(target)
        await session.take(batch(-1, "a"))
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        with pytest.MonkeyPatch.context() as patched:

            def move(*_: object) -> bool:
                raise OperationalError("UPDATE polonaise_delivery_ids", None, error)

            patched.setattr(Marks, "move", move)
            with pytest.raises(ViewUnavailable):
                await session.take(batch(0, "b"))
        engine = create_engine(sqlite_url)
        with engine.begin() as db:
            LINES.drop(db)
            db.execute(text(f"CREATE TABLE {LINES.name} (number INTEGER PRIMARY KEY)"))
        engine.dispose()
        with pytest.raises(ViewUnavailable, match=r"not as they were: .* of another shape"):
            await session.take(batch(0, "b"))
