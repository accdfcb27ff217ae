"""`polonaise group …`: list and describe groups of workers, and say where one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from polonaise.terms import Transaction
from rigs.shell import Shell
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow

LOG = "memory:log"


def worked(shell: Shell, while_working: Callable[[], Any] | None = None) -> list[bytes]:
    """Let a group of one member handle all that is in the log. Return what it was given."""
    handled: list[bytes] = []
    cluster = shell.clusters[LOG]

    async def handle(tx: Transaction) -> None:
        handled.append(tx.data)

    async def work() -> None:
        async with cluster.connect() as log:
            marks = await log.high_water_marks(range(log.partition_count))
            async with log.group("mails", handler=handle) as group:

                def all_done() -> bool:
                    told = group.health()["partitions"]
                    return len(told) == len(marks) and all(told[str(p)]["position"] >= m for p, m in marks.items())

                await wait_until(all_done)

    asyncio.run(work())
    return handled


def test_a_group_that_has_worked_is_listed_described_and_reset(shell: Shell) -> None:
    shell.cluster(partitions=2)
    for number in range(3):
        shell.run("log", "append", LOG, str(number), "--partition", 0)
    shell.run("log", "append", LOG, "x", "--partition", 1)
    assert shell.run("group", "list", LOG).rows == []
    assert sorted(worked(shell)) == [b"0", b"1", b"2", b"x"]
    assert shell.run("group", "list", LOG).rows == [["mails", "0", "0", "-"]]
    (said,) = shell.run("group", "describe", "mails", LOG, "--json").objects
    assert (said["by"], said["members"]) == ("handler", [])
    positions = {each["partition"]: each["position"] for each in said["partitions"]}
    assert positions[0] >= 2
    assert "committed" in shell.run("group", "describe", "mails", LOG).output
    assert "a worker group" in shell.run("log", "registers", LOG).output
    said_reset = shell.run("group", "reset", "mails", LOG, "--to", "beginning", "--partition", "0")
    assert said_reset.output == "partition 0: goes on behind -1\n"
    assert sorted(worked(shell)) == [b"0", b"1", b"2"], "of the other partition nothing comes again"
    shell.run("log", "append", LOG, "passed over", "--partition", 1)
    shell.run("group", "reset", "mails", LOG, "--to", "end")
    assert worked(shell) == []


def test_a_group_that_has_not_joined_yet_may_be_told_where_to_begin(shell: Shell) -> None:
    shell.cluster()
    shell.run("log", "append", LOG, "before")
    said = shell.run("group", "reset", "mails", LOG, "--to", "end", "--new")
    assert said.output == "partition 0: goes on behind 0\n"
    shell.run("log", "append", LOG, "after")
    assert worked(shell) == [b"after"]


def test_mistakes_are_refused_with_what_is_there(shell: Shell) -> None:
    shell.cluster()
    shell.refuses("group", "describe", "mails", LOG, code="bad_option", naming="no group 'mails'")
    shell.refuses("group", "reset", "mials", LOG, "--to", "end", code="bad_option", naming="no group 'mials'")
    assert "group/" not in shell.run("log", "registers", LOG).output
    shell.refuses("group", "reset", "mails", LOG, "--new", "--to", "5", code="bad_option", naming="up to -1")
    shell.refuses("group", "reset", "mails", LOG, "--to", "x", code="bad_option", naming="'beginning' or 'end'")
    shell.refuses("group", "list", "memory:other", code="bad_option", naming="memory:other")
