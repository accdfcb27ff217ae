"""What is found of an archive: replicas that trimmed too much, fragments that lack ids or hold something else."""

from __future__ import annotations

import hashlib

import pytest

from polonaise.fragments.format import FragmentWriter
from polonaise.fragments.protocol.names import FragmentName
from polonaise.log.batch import Batch, Columns, seal
from polonaise.log.promises import NO_EVIDENCE, Promises, PromiseSector, TrimMark
from polonaise_proving.judges.archivecheck import ArchiveCheck
from polonaise_proving.record.diskaudit import DiskReplica, FinalLog
from polonaise_proving.record.fragmentaudit import archived_up_to, batches_below
from polonaise_proving.record.observations import Violation

KEY = bytes(16)


def batch(first: int, last: int, after: Batch | None = None, body: bytes = b"body") -> Batch:
    columns = Columns()
    for id in range(first, last + 1):
        columns.add(1, 1, id, 0, body)
    raw = seal(
        columns, partition=0, first=first, session=1, generation=1, commit_time_us=1,
        previous_crc=after.crc if after else 0,
    )  # fmt: skip
    return Batch.parse(raw)


def archive(*spans: tuple[Batch, ...]) -> dict[FragmentName, bytes]:
    """Fragments, each with these batches."""
    fragments = {}
    for batches in spans:
        writer = FragmentWriter(KEY)
        for each in batches:
            writer.add(each)
        raw = writer.finish()[1]
        name = FragmentName(0, batches[0].first, batches[-1].last, hashlib.sha256(raw).hexdigest())
        fragments[name] = raw
    return fragments


class Copies:
    """A storage node that has trimmed everything below an id."""

    name = "storage-0"

    def __init__(self, trimmed: int = 0, confirmed: int = -1, batches: tuple[Batch, ...] = ()) -> None:
        self._trimmed, self._confirmed, self._batches = trimmed, confirmed, batches

    def promised(self, partition: int) -> PromiseSector:
        return PromiseSector(0, 1, 0, Promises(confirmed=self._confirmed), NO_EVIDENCE, TrimMark(self._trimmed, 0))

    def replica(self, partition: int) -> DiskReplica:
        return DiskReplica(self.name, [*self._batches], self._trimmed)


A = batch(0, 1)
B = batch(2, 4, A)
C = batch(5, 5, B)


def test_the_archive_reaches_as_far_as_no_id_is_missing() -> None:
    assert archived_up_to({}, 0) == -1
    assert archived_up_to(archive((B,)), 0) == -1
    assert archived_up_to(archive((A,), (C,)), 0) == 1
    assert archived_up_to(archive((A, B), (B,), (B, C)), 0) == 5
    assert archived_up_to(archive((A, B)), 1) == -1, "those of another partition do not count"


def test_what_was_trimmed_is_read_from_fragments_once_though_these_overlap() -> None:
    read = batches_below(archive((A,), (A, B), (B, C)), 0, 5)
    assert [(each.first, each.last) for each in read] == [(0, 1), (2, 4)]


def test_a_trimmed_id_that_no_fragment_has_is_found() -> None:
    with pytest.raises(Violation, match="no fragment has 2"):
        batches_below(archive((A,), (C,)), 0, 5)


@pytest.mark.parametrize(
    ("copies", "found"),
    [
        (Copies(2, 4), []),
        (Copies(0), []),
        (Copies(5, 5), ["nothing to be trimmed above 1, where the archive ends"]),
        (Copies(2, 1), ["nothing to be trimmed from 1 on, the confirmed mark"]),
    ],
    ids=["archived and confirmed", "nothing trimmed", "not archived", "not confirmed"],
)
def test_what_must_not_be_trimmed_is_found(copies: Copies, found: list[str]) -> None:
    check = ArchiveCheck(lambda: archive((A,)), [copies], 1)
    assert [each.expected for each in check.check_trims()] == found


def test_a_mark_within_a_batch_is_found_and_told_once() -> None:
    check = ArchiveCheck(dict, [Copies(confirmed=3, batches=(A, B))], 1)
    assert [each.promise for each in check.check_marks()] == ["P11 availability"]
    assert list(check.check_marks()) == []
    assert list(ArchiveCheck(dict, [Copies(confirmed=4, batches=(A, B))], 1).check_marks()) == []


def test_a_fragment_that_holds_something_else_than_the_log_is_found() -> None:
    fragments = archive((A, batch(2, 4, A, b"other")))
    found = list(ArchiveCheck(lambda: fragments, [], 1).check(FinalLog(0, [A, B, C])))
    assert [each.seen for each in found] == ["others from 2 on"]
    assert list(ArchiveCheck(lambda: archive((A, B)), [], 1).check(FinalLog(0, [A, B, C]))) == []
