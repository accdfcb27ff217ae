"""A SQL view that workers of a group share: each transaction once, and nothing more from a worker that was replaced."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from sqlalchemy import Connection, select, text

from polonaise import Transaction, testing
from polonaise.admin.workergroups import describe_group
from polonaise.client import workergroup
from polonaise.client.workergroup import WorkerGroup
from polonaise.client.workerpartition import PartitionWork
from polonaise.client.workerprogress import ViewProgress
from polonaise.errors import PolonaiseError, ViewUnavailable, ViewUnfit, WorkerFenced
from polonaise.terms import PartitionId, TransactionId
from polonaise.wire.leases import NOTE_BYTES_MAX
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, body, check_fold, counted, journal, put_back, transactions
from rigs.databases import execute
from rigs.raised import IN_A_THREAD
from rigs.waiting import time_passes, wait_until


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[Bank, Bank]]:
    """The views of two workers, in one database of each kind."""
    made = Bank(url), Bank(url)
    yield made
    for view in made:
        await view.close()


async def test_a_worker_applies_under_its_epoch_and_the_next_one_begins_where_it_was(
    url: str, pair: tuple[Bank, Bank]
) -> None:
    first, second = pair
    assert await first.take_over(0) == (-1, 1)
    assert await first.apply_run_under(1, transactions(5)) == 4
    assert await second.take_over(0) == (4, 2)
    assert await second.apply_run_under(2, transactions(5, first=5)) == 9
    assert await second.take_over(3) == (-1, 1), "each partition has an epoch of its own"
    check_fold(url, {0: 10, 3: 0})


async def test_a_worker_that_was_replaced_is_fenced_in_the_transaction_that_applies(
    url: str, pair: tuple[Bank, Bank]
) -> None:
    first, second = pair
    await first.take_over(0)
    await first.apply_run_under(1, transactions(5))
    await second.take_over(0)
    with pytest.raises(WorkerFenced, match="which had epoch 1"):
        await first.apply_run_under(1, transactions(5, first=5))
    check_fold(url, {0: 5})
    await second.apply_run_under(2, transactions(5, first=5))
    with pytest.raises(WorkerFenced):
        await first.apply_run_under(1, transactions(1, first=10))
    check_fold(url, {0: 10})


async def test_who_takes_over_waits_for_what_is_being_applied_and_begins_behind_it(
    url: str, pair: tuple[Bank, Bank]
) -> None:
    first, second = pair
    await first.take_over(0)
    for number in range(20):
        run = transactions(3, first=3 * number)
        applied, taken = await asyncio.gather(
            first.apply_run_under(first_epoch(number), run), second.take_over(0), return_exceptions=True
        )
        assert not isinstance(taken, BaseException), taken
        mark, epoch = taken
        if isinstance(applied, BaseException):
            assert isinstance(applied, WorkerFenced)
            assert mark == 3 * number - 1
            await second.apply_run_under(epoch, run)
        else:
            assert mark == applied == 3 * number + 2, "the mark with what was committed"
        assert await first.take_over(0) == (3 * number + 2, epoch + 1)
    check_fold(url, {0: 60})


def first_epoch(number: int) -> int:
    """The epoch of the first worker: both have taken over in turn since."""
    return 1 + 2 * number


async def test_a_view_without_its_table_of_epochs_says_so(url: str) -> None:
    made = Bank(url)
    await made.high_water_mark(0)
    await made.close()
    view = Bank(url, create=False)
    with pytest.raises(ViewUnfit, match="polonaise_marks_fence is missing"):
        await view.take_over(0)
    await view.close()


async def test_a_view_that_a_client_uses_says_so_likewise_when_it_never_had_a_table_of_epochs(sqlite_url: str) -> None:
    made = Bank(sqlite_url)
    await made.high_water_mark(0)
    await made.close()
    view = Bank(sqlite_url, create=False)
    assert await view.high_water_mark(0) == -1
    with pytest.raises(ViewUnfit, match="polonaise_marks_fence is missing"):
        await view.claim(0, "g", nobody)
    await view.close()


async def nobody() -> Collection[str]:
    return ()


async def test_rows_of_another_log_are_refused(url: str, pair: tuple[Bank, Bank]) -> None:
    first, second = pair
    first.belongs_to(b"1" * 16)
    await first.take_over(0)
    second.belongs_to(b"2" * 16)
    with pytest.raises(ViewUnfit, match="another log"):
        await second.take_over(0)


@pytest.mark.slow
async def test_workers_share_a_view_and_what_can_not_be_applied_holds_up_its_partition_alone(url: str) -> None:
    views = [Bank(url), Bank(url)]
    for view in views:
        view.poison = {(1, 2)}
    async with testing.log(partitions=4) as log, log.cluster.connect() as other:
        for number in range(6):
            for partition in range(4):
                await log.append(body(number), partition)
        async with log.group("g", view=views[0]) as first, other.group("g", view=views[1]) as second:
            groups: list[Any] = [first, second]
            await wait_until(lambda: sorted(len(group.partitions) for group in groups) == [2, 2])
            parts = lambda: {**first.health()["partitions"], **second.health()["partitions"]}  # noqa: E731
            await wait_until(lambda: sorted(parts()[p]["position"] for p in "0123") == [1, 5, 5, 5])
            await wait_until(lambda: "no stomach for 2" in parts()["1"]["trouble"])
            assert sorted(group.health()["well"] for group in groups) == [False, True]
            for view in views:
                view.poison.clear()
            await wait_until(lambda: all(parts()[p]["position"] == 5 for p in "0123"))
        check_fold(url, dict.fromkeys(range(4), 6))


async def test_deleted_rows_are_made_anew(url: str, pair: tuple[Bank, Bank]) -> None:
    first, _ = pair
    await first.take_over(0)
    execute(url, "DELETE FROM polonaise_marks_fence")
    with pytest.raises(WorkerFenced):
        await first.apply_run_under(1, transactions(1))
    assert await first.take_over(0) == (-1, 1)


class Picky(Bank):
    """Raises what it is told to, at the third transaction."""

    raised: BaseException | None = None

    def apply(self, tx: Transaction, db: Connection) -> None:
        super().apply(tx, db)
        if self.raised is not None and tx.id == 2:
            raise self.raised


@pytest.mark.parametrize("raised", IN_A_THREAD)
@pytest.mark.parametrize("by", ["a group", "a client"])
async def test_whatever_apply_raises_is_told_and_tried_again(sqlite_url: str, raised: BaseException, by: str) -> None:
    view = Picky(sqlite_url)
    view.raised = raised
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(testing.log(view=view if by == "a client" else None))
        if by == "a group":
            await stack.enter_async_context(log.group("g", view=view))
        for number in range(4):
            await log.append(body(number), 0)
        await wait_until(lambda: len(view.failures) >= 2)
        assert {(partition, id) for partition, id, _ in view.failures} == {(0, 2)}
        assert "no stomach" in view.failures[0][2]
        view.raised = None
        await wait_until(lambda: counted(sqlite_url, journal) == 4)
    check_fold(sqlite_url, {0: 4})


@pytest.mark.slow
async def test_a_worker_that_waits_for_the_locks_of_one_that_hangs_says_so_and_goes_on_when_they_are_free(
    url: str,
) -> None:
    view, hung = Bank(url), Bank(url)
    await hung.take_over(0)
    await hung.close()
    async with testing.log() as log:
        with engine_at(url) as engine, engine.connect() as db:
            # As a process does that was stopped amid its transaction.
            db.execute(text("UPDATE polonaise_marks_fence SET epoch = epoch"))
            async with log.group("g", view=view, progress_s_max=0.2) as group:
                await wait_until(lambda: group.health()["partitions"].get("0", {}).get("trouble"))
                trouble = group.health()["partitions"]["0"]["trouble"]
                assert "taking over has taken" in trouble
                assert "the database may not answer, or another process holds locks in it" in trouble
                db.rollback()
                await wait_until(lambda: group.health()["well"])
                assert group.health()["partitions"]["0"]["epoch"] == 2


async def test_a_database_that_was_put_back_under_a_worker_is_brought_up_to_date_with_the_next_transaction(
    url: str,
) -> None:
    view = Bank(url)
    async with testing.log() as log, log.group("g", view=view) as group:
        for number in range(20):
            await log.append(body(number), 0)
        await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 19)
        view.poison = {(0, 13)}  # so that it stays behind
        put_back(url, 9)
        await log.append(body(20), 0)
        await wait_until(lambda: "no stomach for 13" in group.health()["partitions"]["0"]["trouble"])
        with pytest.raises(ViewUnavailable, match=r"stepped back: partition 0 was applied up to 19, and .* says 12"):
            await view.read(lambda db: db.execute(select(journal)).all())
        view.poison.clear()
        await wait_until(lambda: group.health()["well"] and group.health()["partitions"]["0"]["position"] == 20)
        check_fold(url, {0: 21})
        assert len(await view.read(lambda db: db.execute(select(journal)).all())) == 21


@pytest.mark.slow
@pytest.mark.parametrize("by", ["who applied it", "who took it over"])
async def test_a_database_that_was_put_back_or_emptied_under_an_idle_worker_is_brought_up_to_date(
    url: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.client.view._LOOK_S", 0.1)
    async with testing.log() as log, AsyncExitStack() as stack:
        for number in range(20):
            await log.append(body(number), 0)
        group = await stack.enter_async_context(log.group("g", view=Bank(url)))
        await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 19)
        if by == "who took it over":
            await group.leave()
            group = await stack.enter_async_context(log.group("g", view=Bank(url)))
            await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 19)
        for how in ("put back", "emptied"):
            if how == "put back":
                put_back(url, 9)
            else:
                own = ("polonaise_marks", "polonaise_marks_given", "polonaise_marks_fence")
                execute(url, *(f"DELETE FROM {name}" for name in ("journal", "accounts", *own)))
            await wait_until(lambda: counted(url, journal) == 20)
            await wait_until(lambda: group.health()["well"] and group.health()["lag"] == 0)
            check_fold(url, {0: 20})


@pytest.mark.slow
async def test_a_database_that_is_away_from_an_idle_worker_is_told(url: str) -> None:
    async with testing.log() as log, log.group("g", view=Bank(url)) as group:
        await log.append(body(0), 0)
        await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 0)
        execute(url, "ALTER TABLE polonaise_marks RENAME TO gone")
        await wait_until(lambda: "polonaise_marks was there and is gone" in str(group.health()["partitions"]))
        execute(url, "ALTER TABLE gone RENAME TO polonaise_marks")
        await wait_until(lambda: group.health()["well"])
    check_fold(url, {0: 1})


@pytest.mark.slow
async def test_a_table_of_epochs_that_was_put_aside_is_missed_and_not_made_and_no_transaction_is_blamed(
    url: str,
) -> None:
    view = Bank(url)
    async with testing.log() as log, log.group("g", view=view) as group:
        await log.append(body(0), 0)
        await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 0)
        execute(url, "ALTER TABLE polonaise_marks_fence RENAME TO fence_aside")
        await log.append(body(1), 0)
        told = "ViewUnavailable.*polonaise_marks_fence was there and is gone, and is not made again .*: put it back"
        await wait_until(lambda: re.search(told, group.health()["partitions"]["0"]["trouble"]))
        await time_passes(0.2)  # so that it has tried again, and made nothing
        execute(url, "ALTER TABLE fence_aside RENAME TO polonaise_marks_fence")
        await wait_until(lambda: group.health()["well"] and group.health()["partitions"]["0"]["position"] == 1)
    assert not view.failures
    check_fold(url, {0: 2})


async def test_trouble_and_what_is_described_of_it_end_with_what_to_do(sqlite_url: str) -> None:
    first = Bank(sqlite_url)
    await first.take_over(0)
    await first.apply_run_under(1, transactions(2))
    await first.close()
    execute(sqlite_url, "DROP TABLE polonaise_marks")
    advice = "or empty them and polonaise_marks_given, and the log brings everything again"
    async with testing.log() as log, log.group("g", view=Bank(sqlite_url)) as group:
        await wait_until(lambda: advice in group.health()["partitions"].get("0", {}).get("trouble", ""))

        async def described() -> bool:
            return advice in (await describe_group(log, "g", 5)).partitions[0].trouble

        await wait_until(described)


@pytest.mark.parametrize("text", ["x" * 3_000, "\N{SNOWMAN}" * 900, '"' * 900, "x" * 850])
def test_the_note_of_a_partition_has_as_much_of_its_trouble_as_it_has_room_for(text: str) -> None:
    told = {"state": "takes over", "epoch": 2**60, "position": 2**60, "lag": 2**60, "trouble": text}

    class Work:
        def health(self) -> dict[str, Any]:
            return dict(told)

    note = workergroup._note(cast(PartitionWork, Work()))
    found = json.loads(note)
    assert found.keys() == told.keys()
    assert len(note) <= NOTE_BYTES_MAX
    assert text.startswith(found["trouble"].removesuffix("…"))
    assert found["trouble"] == text or len(note) > NOTE_BYTES_MAX - 30 or text[0] != "x"


@pytest.mark.slow
async def test_a_second_group_on_one_view_is_refused_and_goes_on_once_the_first_has_ended(url: str) -> None:
    async with testing.log() as log:
        await log.append(body(0), 0)
        async with log.group("first", view=Bank(url)) as first:
            await wait_until(lambda: first.health()["partitions"].get("0", {}).get("position") == 0)
            async with log.group("second", view=Bank(url)) as second:
                told = "ViewUnfit.*worker group first .* works with these tables.*End its workers"
                await wait_until(lambda: re.search(told, str(second.health()["partitions"])))
                await log.append(body(1), 0)
                await wait_until(lambda: first.health()["partitions"]["0"]["position"] == 1)
                health = first.health()
                assert health["well"]
                assert health["partitions"]["0"]["epoch"] == 1, "nobody has taken it over"
                await first.leave()
                await wait_until(lambda: second.health()["well"] and second.health()["lag"] == 0)
        check_fold(url, {0: 2})


async def test_of_two_groups_that_begin_at_once_on_one_view_one_is_refused(url: str, pair: tuple[Bank, Bank]) -> None:
    async def present() -> list[str]:
        return ["a", "b"]

    claims = [view.claim(0, name, present) for view, name in zip(pair, "ab", strict=True)]
    refused = [error for error in await asyncio.gather(*claims, return_exceptions=True) if error is not None]
    assert [type(error) for error in refused] == [ViewUnfit]
    assert "take each partition from each other" in str(refused[0])


async def test_marks_of_an_earlier_version_are_remembered_when_a_worker_takes_over(
    url: str, pair: tuple[Bank, Bank]
) -> None:
    first, second = pair
    await first.take_over(0)
    await first.apply_run_under(1, transactions(4))
    await first.close()
    execute(url, "DELETE FROM polonaise_marks_given")
    assert await first.take_over(0) == (3, 2)
    execute(url, "DELETE FROM polonaise_marks")
    with pytest.raises(ViewUnfit, match="would apply it a second time"):
        await second.take_over(0)


@pytest.mark.parametrize(
    ("found", "told"), [(1, "takes nothing of the transactions from 2 on"), (0, "applied up to 1, and the view says 0")]
)
async def test_a_view_that_moves_its_mark_nowhere_is_told_and_not_given_the_same_at_once(found: int, told: str) -> None:
    view = Still(found)

    async def present() -> list[str]:
        return ["g"]

    progress = ViewProgress(view, 0, "g", present)
    await progress.take_over()
    with pytest.raises(PolonaiseError, match=told):
        await progress.handle(transactions(3, first=2), lambda: view.runs < 9)
    assert progress.position == found
    assert view.runs == 1


class Still:
    """A worker's view whose mark is 1 when it is taken over, and is another one whatever it is given then."""

    def __init__(self, mark: TransactionId) -> None:
        self.mark, self.runs = mark, 0

    async def claim(self, partition: PartitionId, group: str, present: Any) -> None: ...

    async def take_over(self, partition: PartitionId) -> tuple[TransactionId, int]:
        return 1, 1

    async def stepped_back(self, positions: Mapping[PartitionId, TransactionId]) -> Collection[PartitionId]:
        return ()

    async def apply_run_under(self, epoch: int, run: Sequence[Transaction]) -> TransactionId:
        self.runs += 1
        return self.mark

    def failed(self, partition: PartitionId, id: TransactionId, error: Exception) -> None: ...


async def test_a_database_that_was_put_back_is_given_runs_although_one_failed_before() -> None:
    view = PutBack()

    async def present() -> list[str]:
        return ["g"]

    progress = ViewProgress(view, 0, "g", present)
    await progress.take_over()
    with pytest.raises(RuntimeError, match="planted"):
        await progress.handle(transactions(6), lambda: True)
    assert view.lengths == [6, 1, 1, 1]
    view.mark = -1
    await progress.take_over()
    view.poison = -1
    await progress.handle(transactions(6), lambda: True)
    assert view.lengths[4:] == [6]


class PutBack(Still):
    """A worker's view that can't apply one transaction, and keeps how long its runs were."""

    def __init__(self) -> None:
        self.mark, self.poison = -1, 2
        self.lengths: list[int] = []

    async def take_over(self, partition: PartitionId) -> tuple[TransactionId, int]:
        return self.mark, 1

    async def apply_run_under(self, epoch: int, run: Sequence[Transaction]) -> TransactionId:
        self.lengths.append(len(run))
        if self.poison in [tx.id for tx in run]:
            raise RuntimeError("planted")
        self.mark = run[-1].id
        return self.mark


MARK = "UPDATE polonaise_marks SET high_water_mark = {}"


@pytest.mark.slow
async def test_a_database_ahead_of_the_log_is_refused_when_a_worker_begins_and_goes_on_once_it_is_right(
    sqlite_url: str,
) -> None:
    async with testing.log() as log:
        for number in range(5):
            await log.append(body(number), 0)
        async with log.group("g", view=Bank(sqlite_url)) as group:
            await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 4)
        execute(sqlite_url, MARK.format(7))
        async with log.group("g", view=Bank(sqlite_url)) as group:
            await refused(group, "ids up to 7 are applied, or were fed, and the log ended at 4")
            for number in range(5, 12):
                await log.append(body(number), 0)
            epoch = group.health()["partitions"]["0"]["epoch"]
            await wait_until(lambda: group.health()["partitions"]["0"]["epoch"] > epoch + 1)
            await refused(group, "the log ended at 4")

            async def described_trouble() -> str:
                return (await describe_group(log, "g", 5)).partitions[0].trouble

            await wait_until(described_trouble)
            assert "ClientAhead" in await described_trouble()
            assert counted(sqlite_url, journal) == 5
            execute(sqlite_url, MARK.format(4))
            await wait_until(lambda: group.health()["well"] and group.health()["lag"] == 0)
        check_fold(sqlite_url, {0: 12})


async def test_a_worker_that_begins_ahead_of_a_log_that_grows_handles_nothing(sqlite_url: str) -> None:
    """Looks from outside, every 2 s, come too late: the log has grown past the position by then."""
    async with testing.log() as log:
        for number in range(5):
            await log.append(body(number), 0)
        async with log.group("g", view=Bank(sqlite_url)) as group:
            await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 4)
        execute(sqlite_url, MARK.format(7))
        async with log.group("g", view=Bank(sqlite_url)) as group:

            def work() -> dict[str, Any]:
                return cast(dict[str, Any], group.health()["partitions"].get("0", {}))

            await wait_until(lambda: work().get("trouble") or work().get("state") == "works")
            for number in range(5, 12):
                await log.append(body(number), 0)
            assert "ids up to 7 are applied, or were fed, and the log ended at 4" in work()["trouble"]
            assert counted(sqlite_url, journal) == 5


async def test_a_database_that_comes_to_be_ahead_of_the_log_under_a_worker_is_refused(sqlite_url: str) -> None:
    view = Bank(sqlite_url)
    async with testing.log() as log, log.group("g", view=view) as group:
        for number in range(5):
            await log.append(body(number), 0)
        await wait_until(lambda: group.health()["partitions"].get("0", {}).get("position") == 4)
        execute(sqlite_url, MARK.format(100_000))
        for number in range(5, 8):
            await log.append(body(number), 0)
        await refused(group, "ids up to 100000 are applied, or were fed, and the log ended at")
        assert counted(sqlite_url, journal) == 5
        execute(sqlite_url, MARK.format(4))
        await wait_until(lambda: group.health()["well"] and group.health()["lag"] == 0)
        check_fold(sqlite_url, {0: 8})
        assert len(await view.read(lambda db: db.execute(select(journal)).all())) == 8, "it is not said to be behind"


async def refused(group: WorkerGroup, text: str) -> None:
    """Wait until a group's first partition is refused for a database that is ahead, with this text."""
    await wait_until(lambda: text in group.health()["partitions"].get("0", {}).get("trouble", ""))
    health = group.health()
    assert "ClientAhead" in health["partitions"]["0"]["trouble"]
    assert not health["well"]
    assert health["lag"] is health["partitions"]["0"]["lag"] is None
