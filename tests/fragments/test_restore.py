"""A log that was restored is the log that was archived; and what is not whole, on either side, is refused by name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.admin.restore import HowToRestore, Key, Restored, restore
from polonaise.errors import (
    AlreadyInitialized,
    BadOption,
    DirectoryInUse,
    FragmentDamaged,
    FragmentsAhead,
    LockConflict,
    LogForked,
    PolonaiseError,
    WrongClusterKey,
)
from polonaise.fragments.objects import fragments_of
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.host.files import try_lock
from polonaise.log.batch import Batch
from polonaise.node.embedded import RESTORING
from polonaise.node.local import LocalCluster
from rigs.faults import raises_code
from rigs.fragments import flip
from rigs.programs import POLONAISE, output_of, run_polonaise
from rigs.restoring import BODY, Contents, Sum, archived, contents, fill, filled_and_archived, verdicts
from rigs.waiting import time_passes, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored"


@pytest.fixture
async def small(log: polonaise.Log, store: ObstoreStore) -> polonaise.Log:
    """The log with twenty transactions, all of which are archived."""
    await filled_and_archived(log, store, 20)
    return log


async def restored(store: ObstoreStore, target: Path, **how: Any) -> Restored:
    return await restore(store, str(target), HowToRestore(**how))


async def contents_of(target: Path) -> Contents:
    async with polonaise.connect(f"embedded:{target}") as copy:
        return await contents(copy)


async def check_no_log(target: Path, words: str | None = None) -> None:
    with raises_code("not_embedded_log", match=words):
        async with polonaise.connect(f"embedded:{target}"):
            pass


# ------------------------------------------------------------------ what is restored


async def test_a_restored_log_is_the_archived_one_and_goes_on(
    log: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await fill(log, 100)
    await fill(log, 50, 1)
    await archived(log, store, fragment_bytes=3_000)
    done = await restored(store, target, storage=3)
    assert [(each.partition, each.last) for each in done.partitions] == [(0, 99), (1, 49)]
    async with polonaise.connect(f"embedded:{target}") as copy:
        assert copy.cluster_key == log.cluster_key == done.cluster_key
        for partition in (0, 1):
            assert await contents(copy, partition) == await contents(log, partition)
        assert (await copy.append(b"next", 0)).id == 100
        last = [batch async for batch in copy.read_batches(0)][-1]
        assert last.session > max(Batch.parse(raw).session for raw in (await contents(log)).batches)
        assert last.previous_crc == done.partitions[0].last_crc
    for storage in range(3):
        reports = await verdicts(target / f"storage-{storage}")
        assert [(report.last, report.damages) for report in reports] == [(100, ()), (49, ())]


async def test_a_producer_and_a_view_and_locks_go_on(log: polonaise.Log, store: ObstoreStore, target: Path) -> None:
    producer = await log.producer("till", partition=0)
    ids = [await producer.append(sequence, b"%d" % sequence) for sequence in range(5)]
    await archived(log, store)
    await restored(store, target)
    view = Sum()
    view.ids = list(range(4))
    async with polonaise.connect(f"embedded:{target}", view=view) as copy:
        again = await copy.producer("till", partition=0)
        assert (again.last_sequence, again.epoch) == (4, producer.epoch + 1)
        assert await again.append(4, b"4") == ids[-1]
        following = await again.append(5, b"5")
        await copy.wait_applied(following, 0, timeout=30)
        opened = following - 1  # the producer's second opening, which is no application's
        assert view.ids == [id for id in range(following + 1) if id != opened]
        lock = [polonaise.Lock("account", 1)]
        await copy.append(b"a", 0, locks=lock)
        with pytest.raises(LockConflict):
            await copy.append(b"b", 0, locks=lock, high_water_mark=following)


async def test_nothing_is_restored_of_a_batch_that_goes_beyond_the_id(
    log: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await filled_and_archived(log, store, 100, fragment_bytes=3_000)
    whole = (await contents(log)).batches
    ends = [Batch.parse(raw).last for raw in whole]
    place = next(place for place, raw in enumerate(whole) if place > 5 and Batch.parse(raw).count > 1)
    done = await restored(store, target, until={0: ends[place] - 1}, key=Key.NEW)
    assert done.partitions[0].last == ends[place - 1]
    async with polonaise.connect(f"embedded:{target}") as copy:
        assert (await contents(copy)).batches == whole[:place]
        assert (await copy.append(b"x", 0)).id == ends[place - 1] + 1


async def test_a_log_is_restored_to_a_time(log: polonaise.Log, store: ObstoreStore, target: Path) -> None:
    await fill(log, 60)
    await fill(log, 20, 1)
    await archived(log, store)
    batches = [Batch.parse(raw) for raw in (await contents(log)).batches]
    wanted = batches[len(batches) // 2].commit_time_us
    done = await restored(store, target, until_time_us=wanted, key=Key.NEW)
    assert [each.last for each in done.partitions] == [
        max(batch.last for batch in batches if batch.commit_time_us <= wanted),
        -1,
    ]
    async with polonaise.connect(f"embedded:{target}") as copy:
        assert copy.partition_count == 2
        assert (await copy.append(b"first", 1)).id == 0


async def test_partitions_without_fragments_begin_empty(log: polonaise.Log, store: ObstoreStore, target: Path) -> None:
    await fill(log, 20, 1)
    await archived(log, store)
    with pytest.raises(
        BadOption,
        match="invalid number of partitions 1: it must be from 2, because the store has fragments of partition 1",
    ):
        await restored(store, target, partitions=1)
    await restored(store, target, partitions=4)
    async with polonaise.connect(f"embedded:{target}") as copy:
        assert copy.partition_count == 4
        assert [await copy.high_water_mark(number) for number in range(4)] == [-1, 19, -1, -1]
        assert [(await copy.append(b"x", number)).id for number in range(4)] == [0, 20, 0, 0]


async def test_numbers_that_the_archived_log_gave_out_are_not_given_out_again(
    small: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await restored(store, target)
    await fill(small, 10)  # the archived log goes on, and the store does not know of it
    async with polonaise.connect(f"embedded:{target}") as copy:
        await copy.append(b"x", 0)
        new = Batch.parse((await contents(copy)).batches[-1])
    old = [Batch.parse(raw) for raw in (await contents(small)).batches]
    assert min(new.client_ids) > max(max(batch.client_ids) for batch in old)
    assert new.generation > max(batch.generation for batch in old)
    assert new.session > max(batch.session for batch in old) + 2**31


async def test_overlapping_fragments_are_each_taken_once(
    log: polonaise.Log, store: ObstoreStore, target: Path, tmp_path: Path
) -> None:
    await fill(log, 100)
    other = open_store(str(tmp_path / "other"))
    await archived(log, store, fragment_bytes=3_000)
    await archived(log, other, fragment_bytes=5_000)
    for name in await fragments_of(other, 0):
        await store.put_if_absent(name.path, await other.get(name.path))
    await restored(store, target)
    assert await contents_of(target) == await contents(log)


# ------------------------------------------------------------------ which cluster it is


async def test_what_leaves_something_out_says_which_log_it_is_to_be(
    small: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    for limit in ({"until": {0: 9}}, {"until_time_us": 1}):
        with pytest.raises(BadOption, match="--new-key"):
            await restored(store, target, **limit)
    assert not target.exists()
    same = await restored(store, target / "same", until={0: 9}, key=Key.SAME)
    new = await restored(store, target / "new", until={0: 9}, key=Key.NEW)
    all_of_it = await restored(store, target / "all", until={0: 19})
    assert same.cluster_key == all_of_it.cluster_key == small.cluster_key != new.cluster_key


async def test_a_log_with_a_new_key_is_refused_by_the_archived_ones_store(
    small: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await restored(store, target, key=Key.NEW)
    view = Sum()
    async with polonaise.connect(f"embedded:{target}", view=view) as copy:
        with pytest.raises(WrongClusterKey):
            await archived(copy, store)
        await copy.append(b"x", 0)
        assert view.cluster_key == copy.cluster_key != small.cluster_key


@pytest.mark.parametrize(("more", "fault"), [(30, LogForked), (20, LogForked), (10, FragmentsAhead)])
async def test_a_copy_with_the_same_key_and_its_original_do_not_share_a_store(
    log: polonaise.Log, store: ObstoreStore, target: Path, more: int, fault: type[PolonaiseError]
) -> None:
    """Whoever archives second is told, whether it has more transactions than the other, as many, or fewer."""
    await filled_and_archived(log, store, 50)
    await restored(store, target)
    await fill(log, more)
    async with polonaise.connect(f"embedded:{target}") as copy:
        await filled_and_archived(copy, store, 20)
    before = [name.path for name in await fragments_of(store, 0)]
    with pytest.raises(fault, match="a log and a copy of it that was restored with its key have gone on differently"):
        await archived(log, store)
    assert [name.path for name in await fragments_of(store, 0)] == before


# ------------------------------------------------------------------ what is refused


async def test_a_store_with_a_hole_is_refused_and_the_ids_are_named(
    log: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await filled_and_archived(log, store, 200, fragment_bytes=3_000)
    lost = list(await fragments_of(store, 0))[1]
    await store.delete(lost.path)
    with raises_code("history_incomplete", match=f"partition 0: {lost.first} to {lost.last}"):
        await restored(store, target)
    assert not target.exists()
    below = await restored(store, target, until={0: lost.first - 1}, key=Key.NEW)
    assert below.partitions[0].last == lost.first - 1


async def test_ids_that_the_store_does_not_hold_cannot_be_restored(
    small: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    with raises_code("history_incomplete", match="up to 19: it can't be restored up to 20"):
        await restored(store, target, until={0: 20})
    with pytest.raises(BadOption, match="give an id for each"):
        await restored(store, target, until={1: 5})


async def test_an_empty_store_is_no_log(store: ObstoreStore, target: Path) -> None:
    with raises_code("history_incomplete", match="nor any fragment: mount"):
        await restored(store, target)


async def test_fragments_of_two_logs_are_refused(
    small: polonaise.Log, store: ObstoreStore, target: Path, tmp_path: Path
) -> None:
    other = open_store(str(tmp_path / "other"))
    async with polonaise.connect(f"embedded:{tmp_path / 'another'}?partitions=2") as another:
        await fill(another, 20, 1)
        await archived(another, other)
    for name in await fragments_of(other, 1):
        await store.put_if_absent(name.path, await other.get(name.path))
    with raises_code("history_incomplete", match="another cluster"):
        await restored(store, target)


async def test_two_histories_of_one_key_are_refused(
    log: polonaise.Log, store: ObstoreStore, target: Path, tmp_path: Path
) -> None:
    """Both went on from id 20: fragments that meet tell by the CRC of the batch before."""
    await filled_and_archived(log, store, 20)
    await restored(store, target)
    await filled_and_archived(log, store, 20)
    other = open_store(str(tmp_path / "other"))
    async with polonaise.connect(f"embedded:{target}") as copy:
        for more in (20, 10):
            await fill(copy, more)
            await archived(copy, other)
    *_, latest = await fragments_of(other, 0)
    await store.put_if_absent(latest.path, await other.get(latest.path))
    with raises_code(
        "history_incomplete", match=r"not of one log: .* does not follow the batch that ends at 39.* move those"
    ):
        await restored(store, target / "third")


async def test_a_damaged_fragment_is_named_and_what_was_begun_is_no_log(
    log: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await filled_and_archived(log, store, 200, fragment_bytes=3_000)
    name = list(await fragments_of(store, 0))[2]
    good = await store.get(name.path)
    await flip(store, name, 200)
    with pytest.raises(FragmentDamaged, match=name.digest):
        await restored(store, target)
    await check_no_log(target, "was not finished: run it again")
    await store.delete(name.path)
    await store.put_if_absent(name.path, good)
    await restored(store, target)
    assert await contents_of(target) == await contents(log)
    assert not (target / RESTORING).exists()


async def test_directories_that_are_not_empty_are_refused_and_left_alone(
    small: polonaise.Log, store: ObstoreStore, tmp_path: Path
) -> None:
    with pytest.raises(AlreadyInitialized):
        await restored(store, tmp_path / "log")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(BadOption, match="holds letter"):
        await restored(store, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter"]
    (tmp_path / "lost" / "storage-0").mkdir(parents=True)  # somebody's, without a word that a restore made it
    with pytest.raises(BadOption, match="holds storage-0"):
        await restored(store, tmp_path / "lost")
    await restored(store, tmp_path / "done")
    with pytest.raises(AlreadyInitialized):
        await restored(store, tmp_path / "done")


async def test_two_restores_into_one_directory_do_not_meet(
    small: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    target.mkdir()
    lock = try_lock(str(target / "host.lock"))
    with pytest.raises(DirectoryInUse):
        await restored(store, target)
    lock.release()
    await restored(store, target)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"storage": 0}, "from 1 to 7"),
        ({"nodes": {"a": "127.0.0.1:0"}}, "port 0"),
        ({"nodes": {"a": "127.0.0.1:1", "b": "127.0.0.1:1"}}, "twice"),
        ({"partitions": 5_000}, "invalid number of partitions"),
    ],
)
async def test_invalid_arguments(
    small: polonaise.Log, store: ObstoreStore, target: Path, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadOption, match=said):
        await restored(store, target, **how)
    assert not target.exists()


async def test_a_cluster_that_lacks_only_the_end_of_its_restore_is_not_made_again(
    small: polonaise.Log, store: ObstoreStore, target: Path, tmp_path: Path
) -> None:
    """Killed between the coordinator's last file and the end: its nodes may have been started, and written, since."""
    nodes = {"a": f"unix:{tmp_path}/node"}
    await restored(store, target, nodes=nodes)
    (target / RESTORING).write_bytes(b"cluster: such a log")
    held = sorted(path.name for path in target.iterdir())
    with pytest.raises(AlreadyInitialized, match=f"removal of {RESTORING}, which was done now"):
        await restored(store, target, nodes=nodes)
    assert sorted([*(path.name for path in target.iterdir()), RESTORING]) == held
    (target / RESTORING).write_bytes(b"embedded: such a log")
    await restored(store, target, nodes=nodes)


async def test_an_embedded_log_that_lacks_only_the_end_of_its_restore_is_not_made_again(
    small: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await restored(store, target)
    (target / RESTORING).write_bytes(b"embedded: such a log")
    with pytest.raises(AlreadyInitialized, match="lacked only its last step"):
        await restored(store, target)
    assert not (target / RESTORING).exists()
    with pytest.raises(AlreadyInitialized, match="holds a log already"):
        await restored(store, target)
    assert await contents_of(target) == await contents(small)


# ------------------------------------------------------------------ processes


async def many(log: polonaise.Log, count: int) -> None:
    """So many transactions of a hundred bytes, many outstanding, some with a lock or a register."""
    await log.flush(0)
    for start in range(0, count, 10_000):
        mark = await log.high_water_mark(0)
        receipts = []
        for number in range(start, min(start + 10_000, count)):
            locks = [polonaise.Lock("account", number)] if number % 10 == 0 else ()
            changes = [polonaise.Change.set(b"r/%d" % (number % 7919), b"%d" % number)] if number % 1000 == 0 else ()
            body = number.to_bytes(4, "little") + BODY[4:]
            receipts.append(log.append(body, 0, header=number % 7, locks=locks, changes=changes, high_water_mark=mark))
        for receipt in receipts:  # one after the other: a task for each would take longer than the appends
            await receipt


async def sessions_of_a_cluster(cluster: LocalCluster, counts: list[int]) -> None:
    """Fill the log; between the parts the server ends and comes back, each time in a session of its own."""
    for place, count in enumerate(counts):
        if place:
            assert cluster.server is not None
            cluster.server.stop()
            cluster.server.start()
        async with polonaise.connect(cluster.coordinator) as log:
            producer = await log.producer(f"till {place % 2}", partition=0, timeout=60)
            await many(log, count)
            for sequence in range(producer.last_sequence + 1, producer.last_sequence + 6):
                await producer.append(sequence, b"%d" % sequence)


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.campaign)])
async def test_very_many_transactions_come_back_as_they_were(
    tmp_path: Path, store: ObstoreStore, target: Path, count: int
) -> None:
    with LocalCluster(tmp_path / "cluster", storage=1, evidence=True) as cluster:
        await sessions_of_a_cluster(cluster, [3 * count // 10, 3 * count // 10, 4 * count // 10])
        async with polonaise.connect(cluster.coordinator) as log:
            await archived(log, store, fragment_bytes=32 * count)
            before = await contents(log)
            key = log.cluster_key
    (report,) = await verdicts(tmp_path / "cluster" / "storage-0")
    done = await restored(store, target, storage=2)
    batches = [Batch.parse(raw) for raw in before.batches]
    assert done.partitions[0].last == batches[-1].last >= count
    assert len({batch.session for batch in batches}) >= 3
    assert sum(batch.evidence() is not None for batch in batches) == len(batches)
    for storage in range(2):
        (copy_report,) = await verdicts(target / f"storage-{storage}")
        assert (copy_report.last, copy_report.damages) == (report.last, ())
        assert sum(each.batches for each in copy_report.segments) == len(batches)
    async with polonaise.connect(f"embedded:{target}") as copy:
        assert copy.cluster_key == key
        assert await contents(copy) == before
        again = await copy.producer("till 1", partition=0)
        assert again.last_sequence == 4


def restoring(store: ObstoreStore, target: Path) -> subprocess.Popen[bytes]:
    command = [*POLONAISE, "archive", "restore", str(store), str(target), "--storage", "3"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def test_killed_at_any_time_it_leaves_no_log_or_the_whole_one(
    log: polonaise.Log, store: ObstoreStore, target: Path
) -> None:
    await filled_and_archived(log, store, 2_000, fragment_bytes=3_000)
    killed = 0
    for pause_s in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2):
        with restoring(store, target) as process:
            await wait_until(lambda: (target / RESTORING).exists() or process.poll() is not None)
            await time_passes(pause_s)
            process.send_signal(signal.SIGKILL)
        if (target / "polonaise-embedded").exists():
            break
        killed += 1
        await check_no_log(target)
    assert killed
    if not (target / "polonaise-embedded").exists():
        ended = run_polonaise("archive", "restore", store, target, "--storage", 3)
        assert output_of(ended) == "partition 0 restored up to 1999\n"
    assert await contents_of(target) == await contents(log)


async def test_the_command(small: polonaise.Log, store: ObstoreStore, target: Path) -> None:
    refused = run_polonaise("archive", "restore", store, target, "--new-key", "--same-key")
    assert (refused.returncode, "choose one of them" in refused.stderr) == (1, True)
    ended = run_polonaise("archive", "restore", store, target, "--until", "0=19", "--json")
    assert json.loads(output_of(ended))["last"] == 19
    ended = run_polonaise("archive", "restore", store, f"{target}2", "--until-time", "1d", "--new-key")
    assert output_of(ended) == "partition 0 restored up to -1; the store holds up to 19\n"
    assert os.path.exists(target / "storage-0")
