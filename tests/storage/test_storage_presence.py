"""Files that are removed under a running node: the system lets it write on, and nobody would find what it wrote."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from polonaise.errors import DirectoryGone, DiskFailed, PolonaiseError
from polonaise.host import Host
from polonaise.node.reasons import Reason, storage_reasons
from polonaise.storage.clusternote import NOTE_FILE
from polonaise.storage.files import NAME_FILE
from polonaise.terms import UNRESOLVED
from polonaise.wire.messages import NoteValues, Trim
from polonaise_proving.stages.simulated.diskimages import DirectoryImage, FileImage
from rigs.faults import raises_code
from rigs.log import CONTROL, PARTITION, Maker, crcs, remove_entry
from rigs.storage import DIRECTORY, Node, Owner, connected, fenced, filled, opened, simulate, simulated

NOTICED_S = 3.0


WHAT_TO_DO = {
    "directory": f"{DIRECTORY} was removed, moved or replaced .* start the node again; an empty directory is filled",
    "replaced": f"{DIRECTORY} was removed, moved or replaced .* start the node again; an empty directory is filled",
    "control file": f"{CONTROL} was removed, moved or replaced .*: put back the file itself .* otherwise, if the other",
    "both files": f"{CONTROL} and {DIRECTORY}/disk.lock were removed, .*: put back the file itself",
    "lock": f"{DIRECTORY}/disk.lock was removed, moved or replaced .*: nothing is lost: start the node again",
}


def replaced(node: Node) -> None:
    """An empty directory is where that of the node was."""
    directory, name = node.disk.parent(DIRECTORY)
    node.disk.change_names((directory, name, DirectoryImage()))


@pytest.mark.parametrize("what", ["directory", "replaced", "control file", "lock", "both files"])
def test_a_node_without_its_directory_acknowledges_nothing_and_says_why(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = Maker().batches(8)

    async def script(host: Host, node: Node) -> None:
        owner = await filled(host, made[:4])
        match what:
            case "directory":
                remove_entry(node.disk, DIRECTORY)
            case "replaced":
                replaced(node)
            case "control file":
                remove_entry(node.disk, CONTROL)
            case "lock":
                remove_entry(node.disk, f"{DIRECTORY}/disk.lock")
            case "both files":
                remove_entry(node.disk, CONTROL)
                remove_entry(node.disk, f"{DIRECTORY}/disk.lock")
        before = node.disk.paths()
        await asyncio.sleep(NOTICED_S)
        with pytest.raises(DirectoryGone):
            await owner.store(5, made[4])
        with pytest.raises(DirectoryGone, match=WHAT_TO_DO[what]):
            await Owner.connected(host)
        assert node.node.open_files == 0, "neither the control file nor the lock is open any more"
        await node.node.close()
        assert node.disk.paths() == before, "nothing is written where the directory was"

    with caplog.at_level(logging.CRITICAL):
        simulate(script)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


@pytest.mark.parametrize("when", ["running", "restarted"])
@simulated
async def test_the_small_files_of_a_node_are_written_again_where_they_are_missing(
    host: Host, node: Node, *, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    owner = await filled(host, Maker().batches(2))
    await owner.identify("storage-1")
    await owner.link.request(NoteValues(json.dumps({"unique_id": 7}).encode()), deadline_s=10)
    if when == "restarted":
        await node.restart()
        await fenced(host, 2)
    paths = [f"{DIRECTORY}/{name}" for name in (NAME_FILE, NOTE_FILE)]
    before = [node.disk.files()[path] for path in paths]
    for path in paths:
        remove_entry(node.disk, path)
    await asyncio.sleep(NOTICED_S)
    assert [node.disk.files()[path] for path in paths] == before
    assert [record.getMessage() for record in caplog.records if "written again" in record.getMessage()] == [
        f"{path} was removed under the running node, and was written again" for path in paths
    ]
    await node.restart(power_loss=True)
    await fenced(host, 3)
    assert node.node.name == "storage-1"


@simulated
async def test_a_node_whose_directory_was_removed_comes_back_as_a_new_one(host: Host, node: Node) -> None:
    made = Maker().batches(4)
    await filled(host, made)
    remove_entry(node.disk, DIRECTORY)
    await asyncio.sleep(NOTICED_S)
    await node.restart()
    owner, info = await fenced(host, 2)
    assert (info.max_synced, info.fence) == (-1, 2)
    await owner.bring_up(made)


@pytest.mark.parametrize("what", ["segment", "partition"])
@simulated
async def test_a_removed_file_that_is_written_is_a_loss_and_is_copied_anew(
    host: Host, node: Node, *, what: str
) -> None:
    made = Maker().batches(8)
    owner = await filled(host, made[:4])
    assert storage_reasons(node.node.measures().health) == []
    remove_entry(node.disk, node.segment() if what == "segment" else f"{DIRECTORY}/{PARTITION}")
    await asyncio.sleep(NOTICED_S)
    ((reason, told),) = storage_reasons(node.node.measures().health)
    assert reason is Reason.REPLICA_UNUSABLE
    assert f"partition {PARTITION} " in told
    with pytest.raises(PolonaiseError) as refused:
        await owner.store(5, made[4])
    assert refused.value.code in ("partition_unavailable", "not_found")
    assert PARTITION in node.node._partitions
    owner, info = await fenced(host, 2)
    assert info.lost_above == -1 == info.max_synced
    await owner.truncate(-1)
    await owner.copy(made)
    await owner.join(made[-1].last, made[-1].crc)
    await asyncio.sleep(NOTICED_S)
    assert storage_reasons(node.node.measures().health) == []
    assert crcs(await owner.read_all()) == crcs(made)
    assert (await owner.fence(2)).lost_above == UNRESOLVED


@pytest.mark.parametrize("what", ["removed", "rotten", "read"])
@simulated(segment_bytes_max=900, scrub_first_s=1.0, scrub_every_s=2.0)
async def test_the_owner_of_an_idle_partition_is_told_of_a_loss_by_itself_and_once(
    host: Host, node: Node, *, what: str
) -> None:
    made = Maker().batches(12, size=300)
    owner, other = await filled(host, made), await Owner.connected(host)
    await owner.join(made[-1].last, made[-1].crc)  # once more, which is no second part in the session
    if what == "removed":
        remove_entry(node.disk, f"{DIRECTORY}/{PARTITION}")
    else:
        sealed = node.segments()[1]
        node.disk.flip_bit(sealed, 400)
        if what == "read":
            other.session = owner.session
            with pytest.raises(PolonaiseError):
                await other.read_all()
    await asyncio.sleep(10.0)
    (told,) = owner.told
    assert told.code == "segment_damaged"
    assert other.told == [], "it has no part in the session"
    assert not node.node._partitions[PARTITION].whole, "the loss was on the disk before anybody heard of it"
    owner, info = await fenced(host, 2)
    await owner.truncate(info.max_synced)
    await owner.bring_up(made, info.max_synced + 1)
    await asyncio.sleep(NOTICED_S)
    assert owner.told == []


@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
@simulated(segment_bytes_max=900, scrub_first_s=1.0, scrub_every_s=2.0)
async def test_a_removed_sealed_segment_is_damage(host: Host, node: Node, *, is_open: bool) -> None:
    made = Maker().batches(12, size=300)
    await filled(host, made)
    await node.restart(segment_bytes_max=900, scrub_first_s=1.0, scrub_every_s=2.0)
    owner = await opened(host, session=2)
    if is_open:
        assert crcs(await owner.read_all()) == crcs(made)
    first = int(node.segments()[1].rpartition("/")[2][:-4])
    remove_entry(node.disk, node.segment(first))
    if is_open:
        await asyncio.sleep(10.0)
    else:
        with pytest.raises(PolonaiseError, match="was removed"):
            await owner.read(first, made[-1].last)
    with raises_code("partition_unavailable"):
        await owner.store(100)
    info = await owner.fence(3)
    assert info.lost_above == first - 1
    await owner.truncate(info.max_synced)
    await owner.bring_up(made, info.max_synced + 1)


@pytest.mark.parametrize("what", ["removed", "other file", "cut short"])
@pytest.mark.parametrize("when", ["running", "restarted"])
@simulated(segment_bytes_max=900, scrub_bytes_per_s=0)
async def test_a_closed_segment_that_is_removed_or_replaced_is_missed_within_seconds(
    host: Host, node: Node, *, what: str, when: str
) -> None:
    made = Maker().batches(12, size=300)
    owner = await filled(host, made)
    if when == "restarted":
        await node.restart(segment_bytes_max=900, scrub_bytes_per_s=0)
        owner = await opened(host, session=2)
    await asyncio.sleep(NOTICED_S)
    assert owner.told == []
    first = int(node.segments()[1].rpartition("/")[2][:-4])
    path = node.segment(first)
    directory, name = node.disk.parent(path)
    kept = node.disk.find(path)
    assert isinstance(kept, FileImage)
    other = kept.copy()
    if what == "cut short":
        other.truncate(len(kept.cache) - 1)
    node.disk.change_names((directory, name, {"removed": None, "other file": FileImage()}.get(what, other)))
    await asyncio.sleep(NOTICED_S)
    assert [told.text for told in owner.told] == [f"{path} was removed or replaced under the running node"]
    owner, info = await fenced(host, 3)
    assert info.lost_above == first - 1 == info.max_synced
    await owner.truncate(info.max_synced)
    await owner.bring_up(made, info.max_synced + 1)
    await asyncio.sleep(NOTICED_S)
    assert owner.told == []


@pytest.mark.parametrize("what", ["index", "copied"])
@simulated(segment_bytes_max=900)
async def test_a_closed_segment_that_can_be_read_as_before_is_no_loss(host: Host, node: Node, *, what: str) -> None:
    made = Maker().batches(12, size=300)
    owner = await filled(host, made)
    path = node.segments()[1]
    directory, name = node.disk.parent(path)
    kept = node.disk.find(path)
    assert isinstance(kept, FileImage)
    if what == "index":
        remove_entry(node.disk, path.replace(".seq", ".idx"))
    else:
        node.disk.change_names((directory, name, kept.copy()))
    await asyncio.sleep(NOTICED_S)
    assert owner.told == []
    assert crcs(await owner.read_all()) == crcs(made)
    assert storage_reasons(node.node.measures().health) == []


@simulated(segment_bytes_max=900)
async def test_segments_that_a_trim_or_a_cut_removes_are_not_missed(host: Host, node: Node) -> None:
    made = Maker().batches(12, size=300)
    owner = await filled(host, made[:9])
    await owner.confirm(made[8].last)
    replica = node.node._partitions[PARTITION]
    for before in range(0, made[8].first, 2):
        trimming = owner.link.request(Trim(owner.session, before), partition=PARTITION, deadline_s=10)
        await asyncio.gather(trimming, *(replica.check_in_place(every_file=True) for _ in range(5)))
    assert len(node.segments()) < 4
    await owner.store(10, *made[9:])
    await replica.check_in_place(every_file=True)
    # Cut below the tail, and filled again: the same names lead to other files.
    owner, _ = await fenced(host, 2)
    await owner.truncate(made[8].last)
    await owner.copy(made[9:])
    await owner.join(made[-1].last, made[-1].crc)
    await replica.check_in_place(every_file=True)
    await asyncio.sleep(NOTICED_S)
    assert replica.whole
    assert owner.told == []


@pytest.mark.parametrize("what", ["segment", "partition"])
@pytest.mark.parametrize("is_written", [False, True], ids=["idle", "written"])
@simulated
async def test_a_copy_in_the_place_of_files_is_not_believed_to_be_them(
    host: Host, node: Node, *, what: str, is_written: bool
) -> None:
    made = Maker().batches(8)
    owner = await filled(host, made[:3])
    await asyncio.sleep(NOTICED_S)
    path = node.segment() if what == "segment" else f"{DIRECTORY}/{PARTITION}"
    directory, name = node.disk.parent(path)
    kept = node.disk.find(path)
    assert kept is not None
    node.disk.change_names((directory, name, kept.copy()))
    if is_written:
        await owner.store(4, made[3])
    await asyncio.sleep(NOTICED_S)
    with pytest.raises(PolonaiseError, match=r"can't be used until|not joined|may have lost"):
        await owner.store(5, made[4])
    owner, info = await fenced(host, 2)
    assert info.max_synced == -1 == info.lost_above, "what was put there is not believed"
    await owner.truncate(-1)
    await owner.bring_up(made)


@pytest.mark.parametrize("is_written", [False, True], ids=["idle", "written"])
@simulated
async def test_files_are_looked_for_although_those_of_another_partition_cant_be(
    host: Host, node: Node, *, caplog: pytest.LogCaptureFixture, is_written: bool
) -> None:
    made = Maker().batches(4)
    other = await connected(host)
    other.partition = PARTITION + 1
    await other.open(1)
    owner = await filled(host, made[:3])
    await owner.identify("storage-1")

    async def failing(*, every_file: bool) -> None:
        raise DiskFailed("no answer")

    unseen = node.node._partitions[other.partition]
    unseen.check_in_place = failing  # type: ignore[method-assign]
    unseen.written = is_written
    node.node._presence.space = None
    remove_entry(node.disk, f"{DIRECTORY}/{NAME_FILE}")
    remove_entry(node.disk, node.segment())
    await asyncio.sleep(2 * NOTICED_S)
    assert len(owner.told) == 1
    assert node.node._presence.space is not None
    assert f"{DIRECTORY}/{NAME_FILE}" in node.disk.files()
    assert any("can't be checked" in record.getMessage() for record in caplog.records)


@simulated
async def test_the_files_of_many_partitions_are_looked_for_in_turn(host: Host, node: Node) -> None:
    made = Maker().batches(3)
    for number in range(1, 6):
        at_rest = await connected(host)
        at_rest.partition = PARTITION + number
        await at_rest.open(1)
    owner = await filled(host, made[:1])
    looked: list[bool] = []
    replica = node.node._partitions[PARTITION]
    look = replica.check_in_place

    async def looking(*, every_file: bool) -> None:
        looked.append(replica.written)
        await look(every_file=every_file)

    replica.check_in_place = looking  # type: ignore[method-assign]
    await asyncio.sleep(NOTICED_S)
    assert looked.count(True) == 1, "once for what was written"
    looked.clear()
    await asyncio.sleep(2 * NOTICED_S)
    assert looked == [False], "one partition a look, though there is room for more"
    await owner.store(2, made[1])
    await asyncio.sleep(NOTICED_S)
    assert looked.count(True) == 1
