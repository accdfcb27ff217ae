"""`polonaise cluster backup` and `delete`, `storage` and `topic`: what they say, write and refuse."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from polonaise.admin.coordinatorbackup import read_backup
from polonaise.admin.opening import opened_coordinator
from polonaise.admin.storagenodes import check_enough_without
from polonaise.checksum import crc32
from polonaise.cli.storage import _moved
from polonaise.coordination.memberchanges import Move
from polonaise.coordination.values import ClusterDescription, PartitionValue, Registration
from polonaise.errors import CertificateRefused, CopyNeeded, PolonaiseError
from rigs.cluster import unhurried, unserved
from rigs.shell import Shell

KEY = bytes(range(16))
NODES = {"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"}


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    """The option for a coordinator of a cluster of which no node runs."""
    return "--coordinator", unserved(tmp_path / "coordinator", ClusterDescription.new(KEY, 2, NODES))


def change(coordinator: str, **fields: int) -> None:
    """Change the value of partition 1."""

    async def write() -> None:
        async with opened_coordinator(coordinator) as (_, opened):
            current = await opened.partition(1)
            assert await opened.set_partition(1, replace(current.value, **fields), current.version)  # type: ignore[arg-type]

    asyncio.run(write())


def test_a_backup_is_written_through_a_link_and_into_a_pipe(shell: Shell, at: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"what was there")
    (tmp_path / "link").symlink_to("real")
    assert shell.run("cluster", "backup", str(tmp_path / "link"), *at).status == 0
    assert (tmp_path / "link").is_symlink()
    noted = read_backup(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    shell.refuses("cluster", "backup", str(tmp_path / "pipe"), *at, code="bad_option", naming="nobody reads")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert shell.run("cluster", "backup", str(tmp_path / "pipe"), *at).status == 0
        (tmp_path / "copy").write_bytes(os.read(reader, 1 << 16))
    finally:
        os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert read_backup(tmp_path / "copy") == noted
    shell.refuses("cluster", "backup", str(tmp_path), *at, code="bad_option", naming="is a directory")


def test_a_backup_to_standard_output_is_all_that_is_there(shell: Shell, at: tuple[str, str], tmp_path: Path) -> None:
    said = shell.run("cluster", "backup", "-", *at)
    assert said.status == 0
    (tmp_path / "copy").write_text(said.output)
    assert read_backup(tmp_path / "copy").description is not None
    assert said.errors == f"cluster {KEY.hex()}: the values of 2 partitions are in -\n"


@pytest.mark.parametrize("later", ["session", "generation"])
def test_a_later_backup_is_replaced_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, later: str
) -> None:
    file = tmp_path / "backup"
    command = ("cluster", "backup", str(file), *at)
    change(at[1], **{later: 8})
    assert shell.run(*command).status == 0
    assert shell.run(*command).status == 0, "the same values are no earlier ones"
    kept = file.read_bytes()
    change(at[1], **{later: 7})  # as of a coordinator that was put back
    naming = (
        "later backup of this cluster: it has later values than the coordinator, of partitions 1. So the coordinator"
    )
    shell.refuses(*command, code="coordinator_outdated", naming=naming)
    assert file.read_bytes() == kept
    assert shell.run(*command, "--force").status == 0
    assert getattr(read_backup(file).partitions[1], later) == 7


def test_the_values_of_an_outdated_coordinator_are_written_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    assert shell.run("cluster", "backup", str(file), *at).status == 0
    change(at[1], session=1_000, outdated=7)  # its number was raised by each try of a server since
    shell.refuses("cluster", "backup", str(file), *at, code="coordinator_outdated", naming="later backup")
    other = ("cluster", "backup", str(tmp_path / "other"), *at)
    shell.refuses(*other, code="coordinator_outdated", naming="of partitions 1: put the latest state back")
    assert not (tmp_path / "other").exists()
    said = shell.run(*other, "--force", "--json")
    assert (said.status, said.objects[0]["outdated"]) == (0, [1])
    assert said.errors.startswith("WARNING: ")
    assert "was put back to an older state" in said.errors
    assert isinstance(read_backup(tmp_path / "other").partitions[1], PartitionValue)


def test_values_that_servers_do_not_believe_are_written_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("cluster", "backup", str(tmp_path / "backup"), *at)
    monkeypatch.setattr("polonaise.admin.cluster.disbelief", lambda *_: "it is not believed by server 3")
    shell.refuses(*command, code="coordinator_outdated", naming="it is not believed by server 3. Nothing was written")
    assert not (tmp_path / "backup").exists()
    said = shell.run(*command, "--force")
    assert (said.status, (tmp_path / "backup").exists()) == (0, True)
    assert "it is not believed by server 3" in said.errors


def test_a_backup_of_another_cluster_is_not_replaced_and_what_is_none_is(
    shell: Shell, at: tuple[str, str], tmp_path: Path
) -> None:
    file, other = tmp_path / "backup", unserved(tmp_path / "other", ClusterDescription.new(bytes(16), 1, NODES))
    file.write_text("no backup")
    assert shell.run("cluster", "backup", str(file), "--coordinator", other).status == 0
    shell.refuses("cluster", "backup", str(file), *at, code="bad_option", naming="a backup of another cluster")


def test_values_of_which_nobody_could_be_asked_are_written_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> PolonaiseError:
        return CertificateRefused("it is of another CA")

    monkeypatch.setattr("polonaise.admin.cluster.ask_health", refuse)
    command = ("cluster", "backup", str(tmp_path / "backup"), *at)
    shell.refuses(*command, code="certificate_refused", naming="storage node a: it is of another CA. Nothing was wr")
    assert not (tmp_path / "backup").exists()
    said = shell.run(*command, "--force")
    assert (said.status, (tmp_path / "backup").exists()) == (0, True)
    assert said.errors.startswith("WARNING: ")
    assert "storage node a: it is of another CA. Keep your earlier backups: this one may be of an older" in said.errors


@pytest.mark.parametrize("newer", ["format", "value"])
def test_a_backup_of_a_newer_version_is_replaced_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, newer: str
) -> None:
    file = tmp_path / "backup"
    command = ("cluster", "backup", str(file), *at)
    if newer == "format":
        file.write_text("polonaise-coordinator-backup 2 00000000\n{}\n")
        code, naming = "unsupported_format", "is of format 2; this version of Polonaise reads 1. Nothing was written: "
    else:
        assert shell.run(*command).status == 0
        note = json.loads(file.read_bytes().split(b"\n")[1])
        note["description"][1] = note["description"][1].replace('"key"', '"later":1,"key"', 1)
        raw = json.dumps(note).encode()
        file.write_bytes(b"polonaise-coordinator-backup 1 %08x\n%s\n" % (crc32(raw), raw))
        code, naming = "coordinator_newer", "backup: it has 'later', which this version of Polonaise does not know"
    kept = file.read_bytes()
    shell.refuses(*command, code=code, naming=naming)
    shell.refuses(*command, code=code, naming="Nothing was written: name another file, or replace it with --force")
    assert file.read_bytes() == kept
    assert shell.run(*command, "--force").status == 0
    assert read_backup(file).description is not None


def test_a_file_that_can_not_be_read_is_replaced_only_with_consent(
    shell: Shell, at: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "backup"
    file.write_text("perhaps a backup")

    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == file:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    shell.refuses("cluster", "backup", str(file), *at, code="access_denied", naming="replace it with --force")
    assert file.read_text() == "perhaps a backup"


@pytest.fixture
def there(tmp_path: Path) -> tuple[str, str]:
    return "--coordinator", unserved(tmp_path / "coordinator", ClusterDescription(bytes(16), 1, ("127.0.0.1:1",)))


def test_topics_are_created_listed_and_described(shell: Shell, there: tuple[str, str]) -> None:
    said = shell.run("topic", "create", "payments", "--partitions", "2", *there)
    assert said.output.splitlines() == [
        "topic payments created: 2 partitions, ids 1-2",
        "2 of them have no owner yet: a server that runs takes them within a minute",
    ]
    shell.run("topic", "create", "orders", *there)
    grown = shell.run("topic", "add-partitions", "payments", "--partitions", "1", "--json", *there)
    assert grown.objects == [
        {"topic": "payments", "partitions": 3, "ids": [1, 2, 4], "owners": ["", "", ""], "required": "", "added": 1}
    ]
    assert shell.run("topic", "list", *there).rows == [
        ["orders", "1", "3", "0", "-"],
        ["payments", "3", "1-2,", "4", "0", "-"],
    ]
    assert [each["topic"] for each in shell.run("topic", "list", "--json", *there).objects] == [
        "orders",
        "payments",
    ]
    assert shell.run("topic", "describe", "payments", *there).rows == [
        ["0", "1", "-"],
        ["1", "2", "-"],
        ["2", "4", "-"],
    ]
    assert shell.run("topic", "describe", "orders", "--json", *there).objects[0]["ids"] == [3]


def test_topics_that_can_not_be(shell: Shell, there: tuple[str, str]) -> None:
    shell.run("topic", "create", "payments", *there)
    shell.refuses("topic", "create", "payments", *there, code="topic_exists", naming="topic payments exists")
    shell.refuses("topic", "create", "a/b", *there, code="bad_option", naming="addresses can't hold")
    shell.refuses("topic", "describe", "nope", *there, code="unknown_topic", naming="it has payments")
    more = ("topic", "add-partitions", "nope", "--partitions", "1")
    shell.refuses(*more, *there, code="unknown_topic", naming="polonaise topic create nope")
    shell.refuses(*more, code="bad_option", naming="no cluster is named")
    assert shell.run("topic", "list", *there).rows == [["payments", "1", "1", "0", "-"]]


def test_copies_are_required_of_a_topic(shell: Shell, there: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    unhurried(monkeypatch)
    shell.run("topic", "create", "payments", *there)

    async def demand() -> None:
        """As the command does once the nodes answer: here none runs."""
        async with opened_coordinator(there[1]) as (_, coordinator):
            current = await coordinator.description()
            await coordinator.set_description(current.value.requiring(2, 0, "payments"), current.version)

    asyncio.run(demand())
    assert shell.run("topic", "list", *there).rows == [["payments", "1", "1", "0", "2", "copies"]]
    said = shell.run("topic", "describe", "payments", *there)
    assert said.output.splitlines()[-1] == "commits need 2 copies, by `polonaise topic require`"
    assert shell.run("topic", "describe", "payments", "--json", *there).objects[0]["required"] == "2 copies"
    # To take it back needs no node. But without a server no session starts that acts by it.
    command = ("topic", "require", "payments", "--copies", 0, "--timeout", 0.1, *there)
    said = shell.run(*command)
    assert said.status == 1
    assert said.output.splitlines() == [
        "commits to topic payments need what the whole cluster requires, and nothing else",
        "partition 1 does not act by it yet: it has had no session yet",
    ]
    assert shell.run(*command, "--json").objects[0]["topic"] == "payments"


def test_what_a_topic_cant_have_is_not_required(shell: Shell, there: tuple[str, str]) -> None:
    shell.run("topic", "create", "payments", *there)
    refused = ("topic", "require")
    shell.refuses(*refused, "nope", "--copies", 1, *there, code="unknown_topic", naming="it has payments")
    for name in ("", "a/b"):
        shell.refuses(*refused, name, "--copies", 0, *there, code="bad_option", naming="invalid name of a topic")
    shell.refuses(*refused, "payments", "--copies", 9, *there, code="bad_option", naming="9 copies are required")
    shell.refuses(
        *refused, "payments", "--copies", 1, *there, code="insufficient_replicas", naming="Nothing was changed"
    )
    shell.refuses(*refused, "payments", "--copies", 1, code="bad_option", naming="no cluster is named")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A coordinator of a cluster of which no node runs."""
    unserved(tmp_path / "coordinator", ClusterDescription.new(KEY, 2, NODES))
    return tmp_path / "coordinator"


def test_a_cluster_is_shown_and_deleted_once_its_key_is_given(shell: Shell, directory: Path) -> None:
    where = ("--coordinator", f"file:{directory}")
    said = shell.run("cluster", "delete", "--confirm", KEY.hex(), *where)
    assert (said.status, said.output) == (
        0,
        f"cluster {KEY.hex()}: 2 partitions, on storage nodes a, b, c\n"
        "the cluster was deleted. The directories of its storage nodes hold the log, perhaps its only copy; a new "
        "cluster of these nodes needs new directories\n",
    )
    shell.refuses("cluster", "delete", "--confirm", KEY.hex(), *where, code="not_initialized", naming="no cluster in")


def test_as_json(shell: Shell, directory: Path) -> None:
    said = shell.run("cluster", "delete", "--confirm", KEY.hex(), "--json", "--coordinator", f"file:{directory}")
    assert (said.status, said.objects) == (0, [{"cluster": KEY.hex(), "deleted": True}])


def test_another_key_deletes_nothing(shell: Shell, directory: Path) -> None:
    where = ("--coordinator", f"file:{directory}")
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    for wrong in ("", KEY.hex()[:8], (b"k" * 16).hex()):
        shell.refuses(
            "cluster", "delete", "--confirm", wrong, *where, code="wrong_cluster_key", naming="nothing was deleted"
        )
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before


def test_while_a_server_is_registered_nothing_is_deleted(shell: Shell, directory: Path) -> None:
    async def scenario() -> None:
        async with opened_coordinator(f"file:{directory}") as (_, server):
            await server.register(Registration(3, "127.0.0.1:9"))
            await asyncio.to_thread(
                shell.refuses,
                *("cluster", "delete", "--confirm", KEY.hex(), "--coordinator", f"file:{directory}"),
                code="cluster_in_use",
                naming="registered: 3. Stop them first",
            )
            assert (await server.describe()).key == KEY

    asyncio.run(scenario())


def test_without_a_cluster_there_is_nothing_to_delete(shell: Shell, tmp_path: Path) -> None:
    where = f"file:{tmp_path / 'nothing'}"
    shell.refuses("cluster", "delete", "--coordinator", where, code="not_initialized", naming="no cluster in")


def test_a_copy_that_is_added_or_given_up_is_moved_from_or_to_no_place() -> None:
    assert _moved(Move(0, "a", "d")) == "from a to d"
    assert _moved(Move(0, None, "c")) == "another copy, on c"
    assert _moved(Move(0, "b", None)) == "one copy less, without the one on b"


def test_who_can_not_be_done_without_is_told_with_those_that_are_being_drained() -> None:
    description = replace(
        ClusterDescription.new(bytes(16), 1, {name: f"{name}:1" for name in "abcd"}), copies=3, draining=("b",)
    )
    with pytest.raises(CopyNeeded, match=r"has 2 storage nodes \(c, d\) for 3 copies .*, as b is being drained"):
        check_enough_without(description, "a")
    with pytest.raises(CopyNeeded) as refused:
        check_enough_without(replace(description, draining=(), copies=4), "a")
    assert "drain" not in refused.value.text
