"""A storage node keeps its name on its disk, and answers to no other."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from polonaise.errors import DiskFailed, PolonaiseError, ProtocolError, StorageNameDamaged, UnsupportedFormat
from polonaise.host import Host
from polonaise.storage.files import NAME_BYTES_MAX, NAME_FILE, decode_name, encode_name, write_name
from rigs.faults import raises_code
from rigs.log import KEY, life
from rigs.storage import DIRECTORY, Node, connected, opened, simulate, simulated

PATH = f"{DIRECTORY}/{NAME_FILE}"


@simulated(cluster_key=KEY)
async def test_a_node_without_a_name_takes_the_first_one_and_keeps_it_when_the_power_fails(
    host: Host, node: Node
) -> None:
    assert await (await connected(host)).identify("storage-1") == "storage-1"
    await node.restart(power_loss=True)
    owner = await connected(host)
    with raises_code(
        "wrong_storage_node", match=r"storage-1.*reached as storage-2.*polonaise storage move.*swapped: swap them back"
    ):
        await owner.identify("storage-2")
    assert await owner.identify("storage-1") == "storage-1"
    assert node.node.health()["name"] == "storage-1"


@simulated
async def test_a_new_directory_is_made_before_it_is_named(host: Host, node: Node) -> None:
    assert node.disk.paths() == []
    await (await connected(host)).identify("storage-1")
    assert decode_name(node.disk.files()[PATH], PATH) == "storage-1"
    assert f"{DIRECTORY}/polonaise-storage.ctl" in node.disk.paths()


@simulated(cluster_key=KEY)
async def test_a_directory_of_the_format_before_names_takes_its_old_address(host: Host, node: Node) -> None:
    """Its servers know it by the address that it always had."""
    await opened(host)
    assert PATH not in node.disk.paths()
    await node.restart()
    owner = await connected(host)
    await owner.identify("storage:1")
    assert (await owner.fence(2)).joined == 1, "what it promised is still there"


@simulated(cluster_key=KEY)
async def test_of_two_names_at_the_same_time_one_is_taken_and_the_other_refused(host: Host, node: Node) -> None:
    one, another = await connected(host), await connected(host)
    told = await asyncio.gather(one.identify("a"), another.identify("b"), return_exceptions=True)
    assert [each.code for each in told if isinstance(each, PolonaiseError)] == ["wrong_storage_node"]
    assert node.node.name in told


@simulated(started=False)
async def test_a_name_that_was_left_when_all_else_was_removed_is_the_nodes(host: Host, node: Node) -> None:
    """An operator has removed the control file and the partitions, and not the file with the name."""

    async def leave_the_name(own: Host) -> None:
        await own.disk.make_directory(DIRECTORY)
        await write_name(own.disk, DIRECTORY, "storage-1")

    await life(node.machine, leave_the_name)
    node.start()
    with raises_code("wrong_storage_node", match=r"storage-1.*reached as storage-2"):
        await (await connected(host)).identify("storage-2")
    assert await (await connected(host)).identify("storage-1") == "storage-1"


def test_a_crash_at_any_call_leaves_no_name_or_the_whole_name() -> None:
    """And a name that was told to a server is there after it."""

    async def script(host: Host, node: Node, call: int) -> bool:
        process = node.start(cluster_key=KEY)
        owner = await connected(host)
        process.crash_on_call = process.calls + call
        told = False
        with contextlib.suppress(PolonaiseError):
            told = await owner.identify("storage-1") == "storage-1"
        assert told or process.dead
        await node.restart(power_loss=True, cluster_key=KEY)
        owner = await connected(host)
        if told:
            with raises_code("wrong_storage_node"):
                await owner.identify("storage-2")
        else:
            name = "storage-1" if PATH in node.disk.paths() else "storage-2"
            assert await owner.identify(name) == name
        return told

    call = 1
    while not simulate(lambda host, node, call=call: script(host, node, call), started=False):  # type: ignore[misc]
        call += 1
        assert call < 100
    assert call > 5, "every gap between two calls to the disk was tried"


@simulated(cluster_key=KEY)
async def test_a_name_that_can_not_be_written_is_not_taken(host: Host, node: Node) -> None:
    owner = await connected(host)
    node.fail_at("sync", 1)
    with pytest.raises(DiskFailed):
        await owner.identify("storage-1")
    assert node.node.name is None
    node.mend()
    assert await owner.identify("storage-2") == "storage-2"


@simulated(cluster_key=KEY, name="storage-1")
async def test_a_node_that_was_told_its_name_takes_no_other_for_an_empty_directory(host: Host, node: Node) -> None:
    owner = await connected(host)
    with raises_code("wrong_storage_node", match="this is storage node storage-1"):
        await owner.identify("storage-2")
    assert await owner.identify("storage-1") == "storage-1"


@simulated(started=False)
async def test_a_node_that_is_started_under_another_name_than_its_directorys_does_not_start(
    host: Host, node: Node
) -> None:
    node.start(cluster_key=KEY, name="storage-1")
    await (await connected(host)).identify("storage-1")
    node.process.crash()
    process = node.start(may_fail=(PolonaiseError,), cluster_key=KEY, name="storage-2")
    await process.ended()
    assert process.failure.code == "wrong_storage_node"
    assert "directory of storage node storage-1" in process.failure.text
    assert "started as storage-2" in process.failure.text
    assert "If storage-1 is told the same of storage-2, their directories were swapped" in process.failure.text


@pytest.mark.parametrize("name", ["", "a\nb", "a" * (NAME_BYTES_MAX + 1)], ids=["empty", "two lines", "long"])
@simulated(cluster_key=KEY)
async def test_a_name_that_no_file_can_hold_ends_the_connection(host: Host, node: Node, *, name: str) -> None:
    owner = await connected(host)
    with pytest.raises(PolonaiseError, match="invalid name"):
        await owner.identify(name)
    assert isinstance(owner.link.closed, ProtocolError)
    assert node.node.name is None


def test_the_file_is_read_in_one_form_only() -> None:
    raw = encode_name("storage-1")
    assert decode_name(raw, PATH) == "storage-1"
    for wrong in (b"", raw[:-1], raw + b"\n", raw.replace(b"storage-1", b"storage-2"), b"x" + raw, raw[:20]):
        with pytest.raises(StorageNameDamaged, match=PATH):
            decode_name(wrong, PATH)
    with pytest.raises(UnsupportedFormat, match="format 2"):
        decode_name(raw.replace(b" 1 ", b" 2 ", 1), PATH)


@simulated(started=False)
async def test_a_node_whose_name_can_not_be_read_does_not_start(host: Host, node: Node) -> None:
    node.start(cluster_key=KEY)
    await (await connected(host)).identify("storage-1")
    node.process.crash()
    node.disk.flip_bit(PATH, len(encode_name("storage-1")) - 2)
    process = node.start(may_fail=(StorageNameDamaged,), cluster_key=KEY)
    await process.ended()
    assert isinstance(process.failure, StorageNameDamaged)
