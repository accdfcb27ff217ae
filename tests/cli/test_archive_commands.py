"""`polonaise archive …` where it answers without a log: what it says of what it did."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import polonaise
import polonaise.blocking
from polonaise.fragments.store import open_store
from rigs.programs import run_polonaise
from rigs.restoring import archived
from rigs.shell import Shell

pytestmark = pytest.mark.slow

GROUP = 10


async def _archive_a_group(shell: Shell, store: Path) -> None:
    """A log of one batch, in a store."""
    async with shell.cluster().connect() as log:
        await log.append_group(polonaise.Group.of([b"%d" % number for number in range(GROUP)]), 0)
        await archived(log, open_store(str(store)))


def test_restore_says_what_to_ask_for_to_have_a_batch_that_it_left_out(shell: Shell, tmp_path: Path) -> None:
    asyncio.run(_archive_a_group(shell, tmp_path / "store"))
    restore = ("archive", "restore", tmp_path / "store")
    cut = shell.run(*restore, tmp_path / "cut", "--until", "0=4", "--new-key")
    assert cut.status == 0
    assert "partition 0: the batch from 0 to 9 is left out, because it goes beyond the requested id" in cut.output
    assert "--until 0=9 restores it" in cut.output
    whole = shell.run(*restore, tmp_path / "whole", "--until", "0=9", "--new-key")
    assert "is left out" not in whole.output


def test_archive_says_what_to_ask_for_to_have_a_batch_that_it_left_out(shell: Shell, tmp_path: Path) -> None:
    asyncio.run(_archive_a_group(shell, tmp_path / "another store"))
    archive = ("archive", "run", "memory:log", tmp_path / "store", "-p", "0", "--until")
    cut = shell.run(*archive, "0=4")
    assert cut.status == 0
    assert "partition 0: the batch from 0 to 9 is left out, because it goes beyond the requested id" in cut.output
    assert "--until 0=9 archives it" in cut.output
    assert "all" not in cut.output
    assert shell.run(*archive, "0=4", "--json").objects == [{"partition": 0, "batch_left_out": {"first": 0, "last": 9}}]
    assert "is left out" not in shell.run(*archive, "0=9").output
    for archived_now in ("0=4", "0=9"):
        again = shell.run(*archive, archived_now)
        assert "nothing to write: all up to the requested id is archived" in again.output
        assert "is left out" not in again.output
        assert not shell.run(*archive, archived_now, "--json").objects


def test_archive_makes_neither_a_log_nor_its_store_where_there_is_no_log(shell: Shell, tmp_path: Path) -> None:
    nothing = shell.run("archive", "run", f"embedded:{tmp_path / 'log'}", tmp_path / "store", "--rest")
    assert nothing.status != 0
    assert "no embedded log" in nothing.errors
    assert not list(tmp_path.iterdir())


def test_archive_leaves_no_directory_where_it_may_begin_no_store(shell: Shell, tmp_path: Path) -> None:
    address, other = f"embedded:{tmp_path / 'log'}?fragments={tmp_path / 'store'}", tmp_path / "other"
    assert shell.run("log", "append", address, "a").status == 0
    said = shell.run("archive", "run", address, other, "--rest")
    assert (said.status, "its servers have a store already" in said.errors) == (1, True)
    assert str(tmp_path / "store") in said.errors
    assert not other.exists()
    second = shell.run("archive", "init", address, other)
    assert (second.status, f"have another store, {tmp_path / 'store'}, and don't read this one" in second.errors) == (
        0,
        True,
    )
    assert not shell.run("archive", "init", address, tmp_path / "store").errors
    assert shell.run("archive", "run", address, other, "--rest").status == 0


@pytest.mark.parametrize("command", ["init", "run"])
def test_archive_makes_the_last_directory_of_a_store_only(shell: Shell, tmp_path: Path, command: str) -> None:
    """Those above it may be on what is not mounted."""
    shell.cluster()
    shell.refuses(
        "archive", command, "memory:log", tmp_path / "no" / "such", code="not_found", naming=str(tmp_path / "no")
    )
    assert not (tmp_path / "no").exists()


def test_an_empty_directory_is_a_new_store_when_somebody_says_so(shell: Shell, tmp_path: Path) -> None:
    """It may be one that is not mounted."""
    shell.cluster()
    store = tmp_path / "store"
    store.mkdir()
    unsaid = ("archive", "run", "memory:log", store, "--rest")
    shell.refuses(*unsaid, code="not_found", naming="mount what belongs there")
    assert not list(store.iterdir())
    assert shell.run("archive", "init", "memory:log", store).output == f"{store} is the store of the log's fragments\n"
    assert shell.run("archive", "init", "memory:log", store).status == 0
    assert shell.run(*unsaid).status == 0


def test_a_store_without_its_mark_is_not_well_and_nobody_else_can_claim_it(shell: Shell, tmp_path: Path) -> None:
    store, mark = tmp_path / "store", tmp_path / "store" / "_cluster.json"
    asyncio.run(_archive_a_group(shell, store))
    right = mark.read_bytes()
    mark.write_bytes(b"")
    damaged = shell.run("archive", "verify", store)
    assert (damaged.status, "can't be read: remove it" in damaged.output) == (1, True)
    mark.unlink()
    lost = shell.run("archive", "verify", store, "--json")
    assert (lost.status, "archive init" in lost.objects[-1]["mark"]) == (1, True)
    with polonaise.blocking.connect(f"embedded:{tmp_path / 'other'}"):
        pass
    refused = run_polonaise("archive", "init", f"embedded:{tmp_path / 'other'}", store)
    assert (refused.returncode, "fragments of another cluster" in refused.stderr) == (1, True)
    assert shell.run("archive", "init", "memory:log", store).status == 0
    assert mark.read_bytes() == right
    assert shell.run("archive", "verify", store).status == 0


def test_what_is_not_well_with_a_store_is_told_line_by_line(shell: Shell, tmp_path: Path) -> None:
    store = tmp_path / "store"
    asyncio.run(_archive_a_group(shell, store))
    (fragment,) = (store / "0").iterdir()
    fragment.write_bytes(b"PAR1")
    said = shell.run("archive", "verify", store)
    assert said.status == 1
    assert said.rows[0][-2:] == ["not", "well"]
    assert said.output.splitlines()[-1].startswith(f"partition 0: 0/{fragment.name}")
    assert "\\n" not in said.output


async def _archive_of_three(shell: Shell, store: Path) -> None:
    """The partition in the middle has had no transaction."""
    async with shell.cluster(partitions=3).connect() as log:
        for partition in (0, 2):
            await log.append(b"paid", partition)
        await archived(log, open_store(str(store)))


def test_restore_says_which_partition_has_no_fragments(shell: Shell, tmp_path: Path) -> None:
    asyncio.run(_archive_of_three(shell, tmp_path / "store"))
    said = shell.run("archive", "restore", tmp_path / "store", tmp_path / "log")
    assert said.status == 0
    assert said.output.count("has no fragments") == 1
    assert "partition 1 has no fragments in the store: it begins empty" in said.output
    told = shell.run("archive", "restore", tmp_path / "store", tmp_path / "another", "--json").objects
    assert [(each["partition"], each["last"], each["in_store_up_to"]) for each in told] == [
        (0, 0, 0),
        (1, -1, -1),
        (2, 0, 0),
    ]


def test_restore_says_it_to_programs_too(shell: Shell, tmp_path: Path) -> None:
    asyncio.run(_archive_a_group(shell, tmp_path / "store"))
    restore = ("archive", "restore", tmp_path / "store")
    [told] = shell.run(*restore, tmp_path / "cut", "--until", "0=4", "--new-key", "--json").objects
    assert (told["last"], told["batch_left_out"]) == (-1, {"first": 0, "last": 9})
    [told] = shell.run(*restore, tmp_path / "whole", "--json").objects
    assert (told["last"], told["batch_left_out"]) == (9, None)


def test_restore_warns_of_a_key_that_two_logs_would_have(shell: Shell, tmp_path: Path) -> None:
    asyncio.run(_archive_a_group(shell, tmp_path / "store"))
    restore = ("archive", "restore", tmp_path / "store")
    assert "restore with --new-key instead" in shell.run(*restore, tmp_path / "unsaid").errors
    for said in ("--new-key", "--same-key"):
        assert "--new-key instead" not in shell.run(*restore, tmp_path / said, said).errors


def test_restore_takes_the_nodes_of_a_cluster_with_blanks_and_none_twice(shell: Shell, tmp_path: Path) -> None:
    asyncio.run(_archive_a_group(shell, tmp_path / "store"))
    restore = ("archive", "restore", tmp_path / "store", tmp_path / "log", "--same-key", "--nodes")
    shell.refuses(*restore, "h:1, h:1", code="bad_option", naming="--nodes has h:1 twice")
    said = shell.run(*restore, "h:1, h:2 ,h:3,")
    assert said.status == 0, said.errors
    kept = b"".join(file.read_bytes() for file in (tmp_path / "log" / "coordinator").rglob("*") if file.is_file())
    assert all(node in kept for node in (b"h:1", b"h:2", b"h:3"))
    assert b" h:2" not in kept
    assert b"h:2 " not in kept


def test_a_trim_that_can_drop_nothing_says_so_and_why(shell: Shell, tmp_path: Path) -> None:
    address, store = f"embedded:{tmp_path / 'log'}?fragments={tmp_path / 'store'}", tmp_path / "store"
    for body in ("a", "b", "c"):
        assert shell.run("log", "append", address, body).status == 0
    assert shell.run("archive", "run", address, store, "--rest").status == 0
    said = shell.run("archive", "trim", address, store)
    assert said.output == (
        "partition 0: the storage nodes hold 0 and all after it; nothing was dropped: no whole segment lies below 2\n"
    )
    assert shell.run("archive", "trim", address, store, "--json").objects == [
        {"partition": 0, "first": 0, "held_from": 0}
    ]


def test_what_fails_for_one_partition_is_told_and_the_others_are_archived(shell: Shell, tmp_path: Path) -> None:
    store = tmp_path / "store"
    address = f"embedded:{tmp_path / 'log'}?partitions=3&fragments={store}"
    assert shell.run("log", "append", address, "-p", "0", "a").status == 0
    assert shell.run("archive", "run", address, store, "--rest").status == 0
    for partition in (0, 2):
        assert shell.run("log", "append", address, "-p", partition, "b").status == 0
    (fragment,) = (store / "0").iterdir()
    fragment.write_bytes(b"PAR1")
    said = shell.run("archive", "run", address, store, "--rest")
    assert said.status == 1
    assert "[fragment_damaged] partition 0: 0/" in said.errors
    assert said.errors.splitlines()[-1] == "polonaise: this failed for partition 0, and went on with the others"
    assert list((store / "2").iterdir())
    trimmed = shell.run("archive", "trim", address, store)
    assert trimmed.status == 1
    assert "this failed for partition 0, and went on with the others" in trimmed.errors
    for partition in (1, 2):
        assert (
            f"partition {partition}: the storage nodes hold 0 and all after it; nothing was dropped" in trimmed.output
        )


def test_what_every_partition_would_meet_ends_the_command_at_once(shell: Shell, tmp_path: Path) -> None:
    address, store = f"embedded:{tmp_path / 'log'}?partitions=3", tmp_path / "elsewhere"
    for partition in range(3):
        assert shell.run("log", "append", address, "-p", partition, "a").status == 0
    store.mkdir()
    for args in (("run", address, store), ("trim", address, store), ("verify", store), ("restore", store, "x")):
        said = shell.run("archive", *args)
        assert said.status == 1
        assert said.errors.count("mount what belongs there") == 1, said.errors
        assert "went on" not in said.errors


async def _archive_four(shell: Shell, store: Path) -> None:
    async with shell.cluster().connect() as log:
        for number in range(4):
            await log.append(b"%d" % number, 0)
        await archived(log, open_store(str(store)))


def test_cut_says_what_it_wrote_and_where_it_keeps_what_reaches_above(shell: Shell, tmp_path: Path) -> None:
    store = tmp_path / "store"
    asyncio.run(_archive_four(shell, store))
    (whole,) = (store / "0").iterdir()
    refused = shell.run("archive", "cut", store, "0=1")
    assert (refused.status, list((store / "0").iterdir())) == (1, [whole])
    assert "[bad_option] nothing was changed in the store; with --yes nobody is asked" in refused.errors
    cut = shell.run("archive", "cut", store, "0=1", stdin=b"y\n")
    assert cut.status == 0, cut.errors
    assert "The ids 2 to 3 of partition 0 are committed" in cut.errors
    assert "may have their only copy" in cut.errors
    assert f"polonaise archive restore {store} " in cut.errors
    assert "gives these ids to other transactions" in cut.errors
    assert "nothing of partition 0" not in cut.errors
    assert "Nothing was deleted: while its head is not reset, the cut is undone by moving" in cut.output
    (left,) = (store / "0").iterdir()
    assert left.name.startswith(f"{0:020d}-{1:020d}-")
    assert f"0/{left.name}" in cut.output
    assert f"0/{whole.name} was moved to _given-up/0/{whole.name}" in cut.output
    assert (store / "_given-up" / "0" / whole.name).exists()
    again = shell.run("archive", "cut", store, "0=1")
    assert "partition 0 has no fragment that reaches above 1: nothing was changed" in again.output
    (told,) = shell.run("archive", "cut", store, "0=0", "--json", "--yes").objects
    assert [each["to"] for each in told["moved"]] == [f"_given-up/0/{left.name}"]
    assert shell.run("archive", "verify", store).status == 0


def test_a_cut_that_leaves_nothing_of_a_partition_says_so_before_it_asks(shell: Shell, tmp_path: Path) -> None:
    store = tmp_path / "store"
    asyncio.run(_archive_four(shell, store))
    asked = shell.run("archive", "cut", store, "0=-1", stdin=b"n\n")
    assert asked.status == 1
    assert "The store would have nothing of partition 0 any more." in asked.errors
    assert list((store / "0").iterdir())
