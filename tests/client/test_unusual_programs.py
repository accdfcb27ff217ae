"""Programs that fork, or cancel all tasks: what they are told, and that nothing hangs or is taken."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import textwrap
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise import PolonaiseError
from polonaise.client.log import partitions_of
from polonaise.errors import AppendUnknown, Closed
from polonaise.node import hostelection
from polonaise.node.embedded import parse_embedded
from polonaise.player import JsonLinesTarget, Player
from rigs.faults import raises_code
from rigs.programs import run_python
from rigs.waiting import time_passes


async def _cancel_all_others() -> None:
    """Cancel all tasks but this one and those that asked to be spared, as the recipes for the end of a service do."""
    others = {task for task in asyncio.all_tasks() if not task.get_name().startswith(("spared", "test"))}
    others -= {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=5)
    await time_passes(0.01)


async def _next(log: polonaise.Log) -> object:
    async for tx in log.read(0, after=0, follow=True):
        return tx
    return None


async def test_a_client_whose_tasks_somebody_else_cancels_has_failed_and_every_wait_ends(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}/log", wait=20) as log:
        await log.append(b"first", partition=0)
        lease = log.lease("of a name")
        await lease.acquire()
        group = log.group("workers", handler=_handle)
        await group.__aenter__()
        waits: dict[str, Awaitable[Any]] = {
            "wait_applied": log.wait_applied(99, 0),
            "read": _next(log),
            "wait_committed": log.wait_committed({0: 99}, timeout=30),
            "group": group.ended(),
            "lease": lease.lost(),
        }
        tasks = {what: asyncio.ensure_future(wait) for what, wait in waits.items()}
        for what, task in tasks.items():
            task.set_name(f"spared: {what}")
        await time_passes(0.1)
        await _cancel_all_others()
        assert isinstance(log.failure, Closed)
        assert "the application has cancelled" in str(log.failure)
        _, pending = await asyncio.wait(tasks.values(), timeout=5)
        assert not pending, "waits that do not end"
        for what in ("wait_applied", "read", "wait_committed", "group"):
            assert isinstance(tasks[what].exception() or tasks[what].result(), PolonaiseError), what
        assert (
            str(tasks["group"].exception()) == tasks["lease"].result() == str(log.failure) == group.health()["trouble"]
        )
        assert not lease.held
        for use in (lambda: log.append(b"x", partition=0), lambda: log.read(0)):
            with pytest.raises(Closed, match="the application has cancelled"):
                use()
        for ask in (log.ready(0), log.flush(0), log.high_water_mark(0), log.register(b"key", 0)):
            with pytest.raises(PolonaiseError):
                await asyncio.wait_for(ask, 5)


async def test_an_append_of_the_moment_in_which_the_tasks_are_cancelled_is_settled(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}/log", wait=20) as log:
        await log.append(b"first", partition=0)
        told: list[object] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                try:
                    told.append(await asyncio.wait_for(log.append(b"last words", partition=0).wait(None), 5))
                except PolonaiseError as error:
                    told.append(error)

        task = asyncio.create_task(work(), name="work")
        await time_passes(0.05)
        await _cancel_all_others()
        assert task.done()
        assert told == [None] or isinstance(told[0], AppendUnknown | Closed)


async def test_one_reason_is_told_of_a_player_its_log_and_what_was_not_sent(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}/log", wait=20) as log:
        receipt = await log.append(b"first", partition=0)
        target = JsonLinesTarget(f"{tmp_path}/lines")
        async with Player(log, "p", lambda tx: {"a": tx.data}, {"a": target}) as player:
            await player.delivered("a", 0, receipt.id)
            ended = asyncio.create_task(player.ended(), name="spared")
            waits = asyncio.create_task(player.delivered("a", 0, receipt.id + 9), name="spared")
            partitions_of(log).used[0].mounting._appends.shut()  # nothing is sent until there is another mount
            unsent = log.append(b"second", partition=0)
            submitted = log.submit(_never, partition=0)
            await time_passes(0.05)
            await _cancel_all_others()
            await asyncio.wait((ended, waits), timeout=5)
            assert str((await submitted.outcome()).error) == str(log.failure)
            assert isinstance(log.failure, Closed)
            assert str(ended.exception()) == str(waits.exception()) == str(log.failure)
            health = player.health()
            assert (health["well"], health["ended"]) == (False, str(log.failure))
            assert (health["targets"]["a"]["state"], health["targets"]["a"]["reason"]) == ("down", str(log.failure))
            assert isinstance(unsent.error, Closed)
            assert log.failure.text in str(unsent.error)
        await target.close()


async def test_an_append_that_was_sent_is_unknown_for_the_reason_of_the_log(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}/log", wait=20) as log:
        await log.append(b"first", partition=0)
        appends = partitions_of(log).used[0].appends
        sent = log.append(b"second", partition=0)
        appends._send()
        await _cancel_all_others()
        assert isinstance(sent.error, AppendUnknown)
        assert str(log.failure) in str(sent.error)


async def test_a_player_whose_tasks_alone_are_cancelled_ends_with_its_log_for_one_reason(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}/log", wait=20) as log:
        await log.append(b"first", partition=0)
        target = JsonLinesTarget(f"{tmp_path}/lines")
        async with Player(log, "p", lambda tx: {"a": tx.data}, {"a": target}) as player:
            for task in asyncio.all_tasks():
                if task.get_name().startswith("player p: ticks"):
                    task.cancel()
            with pytest.raises(Closed, match="the application has cancelled 'player p: ticks'") as ended:
                await asyncio.wait_for(player.ended(), 5)
            assert str(ended.value) == str(log.failure) == player.health()["ended"]
        await target.close()


async def _handle(tx: object) -> None: ...


async def _never(tx: object) -> None:
    await asyncio.Event().wait()


async def test_what_the_client_ends_by_itself_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "polonaise.client"):
        async with polonaise.connect(f"embedded:{tmp_path}/log", wait=20) as log:
            async with log.lease("of a name"), log.group("workers", handler=_handle):
                await log.append(b"first", partition=0)
                await time_passes(0.1)
            await log.append(b"x", partition=0, copies=1)
            assert log.failure is None
    assert log.failure is None
    assert not caplog.records


_APPENDS_FOR_EVER = """
import asyncio, sys
import polonaise

async def main():
    async with polonaise.connect(sys.argv[1]) as log:
        number = 0
        while True:
            await log.append(b"%d" % number, partition=0)
            print(number, flush=True)
            number += 1

asyncio.run(main())
"""


@pytest.mark.slow
async def test_ctrl_c_under_asyncio_run_closes_the_log_and_loses_nothing_that_was_told(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}/log"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _APPENDS_FOR_EVER, address,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        first = await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 30)
    finally:
        if process.returncode is None:
            process.kill()
    told = [int(line) for line in (first + out).split()]
    last = err.decode().strip().splitlines()[-1]
    assert last == "KeyboardInterrupt", err
    assert b"never retrieved" not in err
    assert b"was destroyed" not in err
    async with polonaise.connect(address, wait=20) as log:
        there = [int(tx.data) async for tx in log.read(0, timeout=20)]
    assert there[: len(told)] == told
    assert len(there) <= len(told) + 1, "the one that was broken off"


ENDS = {"os._exit": "os._exit(0)", "sys.exit": "sys.exit(0)", "the end": "pass"}

BLOCKING = """
    import os, sys, time
    from polonaise.blocking import connect
    from polonaise.errors import Forked

    log = connect(sys.argv[1], wait=20)
    log.append(b"first", partition=0).result()
    reading = log.read(0, after=0, follow=True)  # which goes on in the background
    child = os.fork()
    if child == 0:
        try:
            log.append(b"x", partition=0)
        except Forked:
            print("refused", flush=True)
        END
    else:
        os.waitpid(child, 0)
        began = time.monotonic()
        log.append(b"next", partition=0).result()
        assert time.monotonic() - began < 2, "the parent was deaf"
        assert next(reading).data == b"next"
        print("parent", flush=True)
        log.close()
"""

ASYNCHRONOUS = """
    import asyncio, os, sys, time
    import polonaise
    from polonaise.errors import Forked

    async def main():
        async with polonaise.connect(sys.argv[1], wait=20) as log:
            await log.append(b"first", partition=0)
            child = os.fork()
            if child == 0:
                try:
                    await log.append(b"x", partition=0)
                except Forked:
                    print("refused", flush=True)
                END
            else:
                await asyncio.to_thread(os.waitpid, child, 0)
                began = time.monotonic()
                await log.append(b"next", partition=0)
                assert time.monotonic() - began < 2, "the parent was deaf"
                print("parent", flush=True)

    asyncio.run(main())
"""

PROCESS = """
    import multiprocessing, sys
    from polonaise.blocking import connect
    from polonaise.errors import Forked

    log = connect(sys.argv[1], wait=20)

    def work():
        try:
            log.append(b"x", partition=0)
        except Forked:
            print("refused", flush=True)

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    log.append(b"next", partition=0).result(timeout=2)
    print("parent", flush=True)
    log.close()
"""


@pytest.mark.exhaustive  # of ways to end
@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("program", [BLOCKING, ASYNCHRONOUS], ids=["blocking", "asynchronous"])
def test_a_child_that_ends_leaves_its_parent_alone(program: str, end: str, tmp_path: Path) -> None:
    ended = run_python("-c", textwrap.dedent(program).replace("END", ENDS[end]), f"embedded:{tmp_path}/log")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("refused\nparent\n", "", 0)


@pytest.mark.slow
def test_a_process_of_multiprocessing_leaves_its_parent_alone(tmp_path: Path) -> None:
    ended = run_python("-c", textwrap.dedent(PROCESS), f"embedded:{tmp_path}/log")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("refused\nparent\n", "", 0)


@pytest.mark.slow
def test_whatever_keeps_the_nodes_from_running_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop(*_: object) -> None:
        raise RuntimeError("cannot run while another loop is running")

    monkeypatch.setattr(hostelection.HostElection, "_host", no_loop)
    election = hostelection.take(parse_embedded(f"embedded:{tmp_path}"))
    try:
        with raises_code("host_failed", match="cannot run while another loop is running"):
            election.settled.result(timeout=10)
    finally:
        hostelection.leave(election)
