"""`cluster require`, `storage zone`, `partition reset-head` and `storage recover`: what they print, do and refuse."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.admin.headresets import HeadState, HeldCopy, ask_reset
from polonaise.admin.opening import opened_coordinator
from polonaise.admin.requiring import require
from polonaise.cli.inputs import partitions_of
from polonaise.cli.partition import _show_head
from polonaise.coordination.values import ClusterDescription, HeadReset, PartitionValue
from polonaise.errors import CoordinatorUnavailable
from polonaise.log.control import ControlSlot
from rigs.cluster import unhurried, unserved
from rigs.shell import Shell
from rigs.storagefiles import make_storage, promise

NODES = {"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"}


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A coordinator of a cluster of which no node runs."""
    return unserved(tmp_path / "coordinator", ClusterDescription.new(bytes(16), 1, NODES))


def test_a_zone_is_told_and_taken_back(shell: Shell, place: str) -> None:
    said = shell.run("storage", "zone", "a", "north", "--coordinator", place)
    assert (said.status, said.output) == (0, "storage node a: zone north\n")
    said = shell.run("storage", "zone", "a", "", "--coordinator", place, "--json")
    assert said.objects == [{"name": "a", "zone": "", "required": None}]


def test_a_zone_of_an_unknown_node_and_an_invalid_one_are_refused(shell: Shell, place: str) -> None:
    where = ("--coordinator", place)
    shell.refuses("storage", "zone", "d", "north", *where, code="unknown_storage_node", naming="are a, b, c")
    shell.refuses("storage", "zone", "a", "no/rth", *where, code="bad_option", naming="invalid zone 'no/rth'")


def test_what_the_cluster_cant_have_is_not_required(shell: Shell, place: str) -> None:
    def refused(*options: object, code: str, naming: str) -> None:
        shell.refuses("cluster", "require", *options, "--coordinator", place, code=code, naming=naming)

    refused("--copies", 4, code="bad_option", naming="4 copies are required, and 3 can be had")
    refused("--copies", 2, "--zones", 2, code="bad_option", naming="copies in 2 zones are required, and 0 can be had")
    refused("--copies", 3, code="insufficient_replicas", naming="no answer from a, b, c. Nothing was changed")


def test_no_copies_in_zones_are_as_many_copies_as_zones_and_help_says_so(shell: Shell, place: str) -> None:
    options = ("--copies", 0, "--zones", 4, "--coordinator", place)
    shell.refuses("cluster", "require", *options, code="bad_option", naming="4 copies are required, and 3 can be had")
    for command in ("cluster", "topic"):
        said = " ".join(shell.run(command, "require", "--help").output.split())
        assert "`--copies 0` alone takes it back" in said


def test_partitions_that_do_not_follow_a_requirement_in_time_are_named(
    shell: Shell, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhurried(monkeypatch)
    # To require nothing needs no node. But without a server no session starts that acts by it.
    said = shell.run("cluster", "require", "--copies", 0, "--timeout", 0.1, "--coordinator", place)
    assert said.status == 1
    assert said.output.splitlines() == [
        "commits need a quorum, and nothing else",
        "partition 0 does not act by it yet: it has had no session yet",
    ]


@pytest.mark.slow
def test_a_coordinator_that_falls_silent_delays_a_requirement_once_and_not_for_each_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def silent(*_: object) -> Any:
            await asyncio.Event().wait()

        async def written(*arguments: Any) -> Any:
            coordinator.partition = silent  # type: ignore[method-assign]
            return await write(*arguments)

        async with opened_coordinator(f"file:{tmp_path / 'coordinator'}") as (host, coordinator):
            await coordinator.initialize(ClusterDescription.new(bytes(16), 100, NODES))
            write, coordinator.set_description = coordinator.set_description, written  # type: ignore[method-assign]
            async with asyncio.timeout(60):
                change = await require(host, coordinator, 0, 0, 2.0)
                assert change.waiting == dict.fromkeys(range(100), "the coordinator does not answer")
                coordinator.members = silent  # type: ignore[method-assign]
                del coordinator.partition
                with pytest.raises(CoordinatorUnavailable, match=r"did not answer within 2 s"):
                    await require(host, coordinator, 2, 0, 2.0)

    asyncio.run(scenario())


def test_a_node_is_added_only_under_a_name_and_in_a_zone_that_it_can_have(shell: Shell, place: str) -> None:
    where = ("--coordinator", place)
    shell.refuses("storage", "add", "a b", "127.0.0.1:4", *where, code="bad_option", naming="invalid name of a storage")
    in_no_zone = ("storage", "add", "d", "127.0.0.1:4", "--zone", "no/rth")
    shell.refuses(*in_no_zone, *where, code="bad_option", naming="invalid zone 'no/rth'")
    assert shell.run("storage", "add", "d", "127.0.0.1:4", "--zone", "north", *where).status == 0
    again = shell.run("storage", "add", "d", "127.0.0.1:4", "--zone", "north", *where)
    assert again.output.startswith("storage node d: already one of the cluster: nothing changed")


def test_adding_a_node_again_takes_it_out_of_no_zone_that_commits_need(shell: Shell, place: str) -> None:
    where = ("--coordinator", place)
    for name, zone in (("a", "north"), ("b", "south"), ("c", "south")):
        shell.run("storage", "zone", name, zone, *where)
    shell.refuses("storage", "zone", "d", "south", *where, code="unknown_storage_node", naming="are a, b, c")
    add = ("storage", "add", "a", NODES["a"], "--zone", "south", *where)
    shell.refuses(*add, code="bad_option", naming="in zone north: to tell the cluster of another zone")
    assert shell.run("storage", "add", "a", NODES["a"], *where).status == 0


def test_a_head_is_not_reset_without_an_owner_that_tells_what_the_replicas_hold(shell: Shell, place: str) -> None:
    for options in ((), ("--to", 3), ("--to", 3, "--confirm", 3)):
        where = ("--coordinator", place)
        shell.refuses("partition", "reset-head", 0, *options, *where, code="head_not_reset", naming="has no owner")


async def test_a_decision_that_the_coordinator_does_not_answer_may_have_been_written() -> None:
    async def silent(*_: object) -> Any:
        await asyncio.Event().wait()

    async def believed() -> None:
        pass

    coordinator: Any = SimpleNamespace(ask_first=believed, set_partition=silent, trouble="")
    state = HeadState(0, "a quorum", [], [], 3, PartitionValue.initial(("a", "b", "c")), 1)
    async with asyncio.timeout(30):
        with pytest.raises(CoordinatorUnavailable, match="the decision may have been written"):
            await ask_reset(coordinator, state, HeadReset(3, "a", 3, 1), 0.1)


def test_a_directory_is_recovered_from_another_nodes(shell: Shell, tmp_path: Path) -> None:
    source = make_storage(tmp_path / "a")

    async def confirmed(slot: ControlSlot) -> None:
        await slot.save(replace(slot.promises, fence=4, joined=4, prepared=11, confirmed=11))

    promise(source, confirmed)
    target = tmp_path / "b"
    command = ("storage", "recover", target, "--from", source, "--name", "b")
    said = shell.run(*command)
    assert (said.status, said.output) == (
        0, f"partition 0: up to 11\n{target} is whole: start storage node b with it\n",
    )  # fmt: skip
    shell.refuses(*command, code="bad_option", naming="is not empty")


def test_several_heads_are_not_reset_to_one_id_nor_without_an_owner(shell: Shell, place: str) -> None:
    where = ("--coordinator", place)
    refused = ("partition", "reset-head")
    shell.refuses(*refused, "0-1", "--to", 3, *where, code="bad_option", naming="--to is for one partition")
    shell.refuses(*refused, *where, code="bad_option", naming="or give --all")
    shell.refuses(*refused, 0, "--all", *where, code="bad_option", naming="or give --all")
    shell.refuses(*refused, "--all", "--from", "a", *where, code="head_not_reset", naming="there is no partition")
    shell.refuses(*refused, "0,0", *where, code="head_not_reset", naming="has no owner")


def test_options_of_a_reset_are_not_passed_over_where_none_is_asked_for(shell: Shell, place: str) -> None:
    command = ("partition", "reset-head", "--coordinator", place)
    for options in ((1, "--from", "a", "--confirm", 3), (1, "--confirm", 3), (1, "--from", "a")):
        shell.refuses(
            *command, *options, code="bad_option", naming="say with --to with which id the log of partition 1"
        )
    shell.refuses(*command, "0-1", "--confirm", 2, code="bad_option", naming="name with --from the copy")


def test_a_head_is_shown_with_what_only_the_store_has(capsys: pytest.CaptureFixture[str]) -> None:
    value = PartitionValue.initial(("a", "b"))
    copies = [HeldCopy("a", 2000, 2000, 1, True), HeldCopy("b", -1, -1, 0, False)]
    _show_head(HeadState(0, "a quorum", copies, [], 2000, value, 1, "./archive", 4400), decided=False)
    said = capsys.readouterr().out
    assert "The fragments in ./archive reach up to 4400. The ids 2001 to 4400 of partition 0 are committed" in said
    assert "polonaise archive restore ./archive NEW-DIRECTORY" in said


@pytest.mark.parametrize(("text", "numbers"), [("3", (3,)), ("0-3,7", (0, 1, 2, 3, 7)), ("2,1-2", (1, 2))])
def test_partitions_are_named_by_numbers_and_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert partitions_of(text) == numbers


@pytest.mark.parametrize("text", ["", "3-1", "1,,2", "-1", "0-", "0-999999999", "a"])
def test_other_texts_name_no_partitions(text: str) -> None:
    with pytest.raises(ValueError, match="invalid partition"):
        partitions_of(text)
