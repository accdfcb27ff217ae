"""Queries over a store that holds fragments of two lives of a partition: refused, never rows of the one given up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from polonaise.errors import FragmentDamaged
from polonaise.fragments.objects import looked_at
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.store import ObstoreStore, open_store
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.snapshots import Snapshot
from polonaise.pipelines.source import open_source
from polonaise.pipelines.viewsource import UndecodablePolicy, ViewSource
from polonaise.spark import onelog, query, streamreader
from rigs.faults import raises_code
from rigs.fragments import PARTITION, flip
from rigs.lives import EACH, FIRST, SECOND, life, put
from rigs.spark import batch_reader, columns, filled, forget, ids, stream_reader, table

ALL = ReadAllAvailable()
DATA = columns(transaction_id=pa.int64(), data=pa.binary())
OWN = ((0, 2), (2, 5), (5, 14))
"""The batches of each fragment of the life that goes on."""
REFUSED = r"are not of one log: .*%s.* move those that are not of the log out of the store"


class Lives:
    """A store, and the address of queries over it alone."""

    def __init__(self, directory: Path) -> None:
        self.store = open_store(str(directory))
        self.directory = directory
        self.address = f"fragments:{directory}"
        self.own = [self.put(SECOND, *each) for each in OWN]

    def put(self, life: Any, start: int, stop: int) -> FragmentName:
        return asyncio.run(put(self.store, life[start:stop]))

    def remove(self, name: FragmentName) -> None:
        asyncio.run(self.store.delete(name.path))


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lives]:
    monkeypatch.setattr(streamreader, "_WAIT_S", 0.1)
    yield Lives(tmp_path / "store")
    forget()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[FragmentName]:
    """The fragments that were looked at to be compared."""
    seen: list[FragmentName] = []

    async def noted(store: ObstoreStore, name: FragmentName, *arguments: Any) -> Any:
        seen.append(name)
        return await looked_at(store, name, *arguments)

    monkeypatch.setattr(onelog, "looked_at", noted)
    return seen


@pytest.mark.parametrize("others", [(2, 5), (2, 8), (0, 14), (0, 4), (3, 4), (6, 9), (9, 14)])
def test_a_store_with_a_life_that_was_given_up_is_refused(lives: Lives, others: tuple[int, int]) -> None:
    stray = lives.put(FIRST, *others)
    no_session: Any = None
    for reader in (batch_reader(lives.address, DATA), batch_reader(lives.address, DATA, failOnDataLoss=False)):
        with raises_code("history_incomplete", match=REFUSED % stray.digest):
            reader.partitions()
    # Neither by Spark's own reader, nor a part in which nothing overlaps: of which life that is, nobody knows.
    for where in (None, f"transaction_id < {EACH}", "timestamp >= '1970-01-01T00:00:01Z'"):
        with raises_code("history_incomplete", match=REFUSED % stray.digest):
            query.read(no_session, lives.address, where=where)
    stream = stream_reader(lives.address, DATA)
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        stream.latestOffset({str(PARTITION): 0}, ALL)
    lives.remove(stray)
    assert [id for _, id in ids(lives.address)] == list(range(14 * EACH))


def test_fragments_of_one_life_are_read_wherever_they_are_cut(lives: Lives) -> None:
    for others in ((0, 4), (3, 4), (2, 9), (9, 14)):
        lives.put(SECOND, *others)
    assert [id for _, id in ids(lives.address)] == list(range(14 * EACH))


def test_a_fragment_of_the_other_life_in_place_of_a_missing_one_is_refused(lives: Lives) -> None:
    lives.remove(lives.own[1])
    stray = lives.put(FIRST, *OWN[1])
    no_session: Any = None
    stream = stream_reader(lives.address, DATA)
    start = {str(PARTITION): 0}
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        batch_reader(lives.address, DATA).partitions()
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        query.read(no_session, lives.address, where=f"transaction_id < {5 * EACH}")
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        stream.latestOffset(start, ReadMaxRows(3 * EACH))
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        stream.partitions(start, {str(PARTITION): 3 * EACH})


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stream_that_has_begun_ends_when_the_other_life_comes_back(lives: Lives, at_once: bool) -> None:
    stream = stream_reader(lives.address, DATA)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow() if at_once else None
    end = stream.latestOffset(start, ReadMaxRows(3 * EACH))
    planned = stream.partitions(start, end)
    assert set(table(stream, list(planned)).column("data").to_pylist()) == {b"both", b"second"}
    stray = lives.put(FIRST, 3, 14)
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        stream.latestOffset(end, ALL)
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        stream.partitions(end, {str(PARTITION): 14 * EACH})
    lives.remove(stray)
    assert stream.latestOffset(end, ALL)[str(PARTITION)] == 14 * EACH


def test_jobs_of_pipelines_refuse_it(lives: Lives) -> None:
    stray = lives.put(FIRST, 2, 8)
    no_session: Any = None
    with raises_code("history_incomplete", match=REFUSED % stray.digest):
        Snapshot(no_session, lives.address)
    declared: Any = TableView("ids", "SELECT transaction_id FROM {log}", key=["transaction_id"])
    with open_source(lives.address) as source:
        view = ViewSource(no_session, source, declared, UndecodablePolicy.FAIL)
        with raises_code("history_incomplete", match=REFUSED % stray.digest):
            view.marks()


@pytest.mark.slow
def test_beside_a_log_it_is_refused_as_well(tmp_path: Path) -> None:
    """The log knows which life goes on, but a task reads the fragment, whatever the log has."""
    with filled(tmp_path, 100) as log:
        log.archive()
        log.append(50)
        store = open_store(log.store)
        stray = asyncio.run(put(store, life(b"other", [], 5, partition=0), log.log.cluster_key))
        with raises_code("history_incomplete", match=REFUSED % stray.digest):
            batch_reader(log.address, fragments=log.store).partitions()
        stream = stream_reader(log.address, fragments=log.store)
        with raises_code("history_incomplete", match=REFUSED % stray.digest):
            stream.partitions({"0": 0}, stream.latestOffset({"0": 0}, ALL))
        with raises_code("history_incomplete", match=REFUSED % stray.digest):
            batch_reader(f"storage:{tmp_path / 'log'}/storage-0", fragments=log.store).partitions()
        assert len(ids(log.address)) == 150
        asyncio.run(store.delete(stray.path))
        forget()
        assert len(ids(log.address, fragments=log.store)) == 150


def test_each_pair_is_compared_once_however_many_micro_batches_there_are(
    lives: Lives, looked: list[FragmentName]
) -> None:
    lives.put(SECOND, 3, 9)
    stream = stream_reader(lives.address, DATA)
    start = stream.initialOffset()
    assert len(looked) == len(set(looked)) == 3, "those that overlap, and no other"
    ends = [start]
    for _ in range(14):
        ends.append(stream.latestOffset(ends[-1], ReadMaxRows(EACH)))
        stream.partitions(*ends[-2:])
    assert ends[-1][str(PARTITION)] == 14 * EACH
    before = len(looked)
    stream.partitions(start, ends[-1])
    for end in ends[:-1]:
        stream.latestOffset(end, ALL)
    assert len(looked) == before
    new = lives.put(SECOND, 8, 10)
    stream.latestOffset(ends[-2], ALL)
    assert new in looked[before:]
    assert lives.own[0] not in looked[before:], "what is not beside the new one is not looked at again"


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_damaged_fragment_leaves_open_which_life_one_that_overlaps_it_is_of(lives: Lives, overlaps: bool) -> None:
    damaged = lives.put(FIRST, 3, 4) if overlaps else lives.own[2]
    asyncio.run(flip(lives.store, damaged, -20))
    reader = batch_reader(lives.address, DATA, endingTransactions=json.dumps({PARTITION: 5 * EACH}))
    if overlaps:
        with pytest.raises(FragmentDamaged, match=rf"{damaged.digest}.*CRC.* overlaps .*{lives.own[1].digest}"):
            reader.partitions()
    else:  # one that begins right behind another one tells nothing of that, and is refused where it is read
        read = table(reader, list(reader.partitions()))
        assert set(read.column("data").to_pylist()) == {b"both", b"second"}
