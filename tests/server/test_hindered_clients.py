"""A client that waits is told what its server knows: which disks are full, who does not answer."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.client.log import Log
from polonaise.client.protocol.draft import Draft
from polonaise.errors import (
    AppendExpired,
    AppendFailed,
    AppendUnknown,
    DeadlineExceeded,
    PartitionNotReady,
    PolonaiseError,
)
from rigs.town import Town, held_down, in_a_town, in_an_application
from rigs.waiting import wait_until

FULL = "no space left"


def names(town: Town, *places: int) -> list[str]:
    return [town.name(place) for place in places]


async def failure_of(log: Log) -> PolonaiseError:
    """What the first append that fails fails with."""
    while True:
        receipt = log.append(bytes(2_000), 0)
        await receipt.wait(None)
        if receipt.error is not None:
            return receipt.error
        await log.ready(0)


@in_an_application
async def test_full_disks_are_named_by_whatever_a_client_waits_for(town: Town, log: Log) -> None:
    await log.append(b"there is room", 0)
    assert log.trouble(0) is None
    town.fill_disks()
    failed = await failure_of(log)
    assert isinstance(failed, AppendFailed)
    assert FULL in failed.text
    assert any(f"storage node {name}" in failed.text for name in names(town, 0, 1, 2))
    with pytest.raises((AppendExpired, AppendUnknown)) as expired:
        await log.run(lambda tx: tx.append(bytes(2_000)), partition=0, timeout=10)
    assert FULL in expired.value.text
    assert all(f"storage node {name}" in expired.value.text for name in names(town, 0, 1, 2))
    trouble = log.trouble(0)
    assert isinstance(trouble, PartitionNotReady)
    assert FULL in trouble.text
    producer = asyncio.ensure_future(log.producer("p", partition=0, timeout=5))
    with pytest.raises(DeadlineExceeded, match=FULL):
        await producer
    for node in town.cluster.storage:
        node.machine.disk.free()
    receipt = await log.run(lambda tx: tx.append(b"there is room again"), partition=0, timeout=60)
    assert receipt.committed
    await wait_until(lambda: log.trouble(0) is None)


@in_an_application
async def test_a_full_disk_is_named_also_where_the_time_is_over_in_one_more_run(town: Town, log: Log) -> None:
    await log.append(b"there is room", 0)
    town.fill_disks()
    runs = 0

    async def context(tx: Draft) -> None:
        nonlocal runs
        runs += 1
        # The append of the first run is refused after most of the time; the deadline passes early in the second run.
        await asyncio.sleep(6 if runs == 1 else 30)
        tx.append(bytes(2_000))

    with pytest.raises(AppendExpired, match=rf"one more run of the context, .*{FULL}"):
        await log.run(context, partition=0, timeout=10)


@in_a_town
async def test_a_client_that_mounts_while_disks_are_full_is_told_too(town: Town) -> None:
    async def first(log: Log) -> None:
        await log.append(b"there is room", 0)
        town.fill_disks()
        with pytest.raises(AppendExpired):
            await log.run(lambda tx: tx.append(bytes(2_000)), partition=0, timeout=4)

    async def second(log: Log) -> None:
        await log.ready(0, timeout=5)
        trouble = await wait_until(lambda: log.trouble(0))
        assert trouble is not None
        assert FULL in trouble.text

    await town.application("writer", first)
    await town.application("other", second)


@in_an_application
async def test_storage_nodes_that_are_missing_are_named_by_whatever_a_client_waits_for(town: Town, log: Log) -> None:
    await log.append(b"all are there", 0)
    for node in town.cluster.storage[:2]:
        held_down(node)
    with pytest.raises(AppendUnknown) as unknown:
        await log.run(lambda tx: tx.append(b"x"), partition=0, timeout=5)
    assert all(name in unknown.value.text for name in names(town, 0, 1))
    trouble = log.trouble(0)
    assert trouble is not None
    assert all(name in trouble.text for name in names(town, 0, 1))
    with pytest.raises(DeadlineExceeded) as late:
        await log.flush(0, timeout=5)
    assert all(name in late.value.text for name in names(town, 0, 1))
    with pytest.raises(DeadlineExceeded) as unready:
        await log.ready(0, timeout=5)
    assert all(name in unready.value.text for name in names(town, 0, 1))
    with pytest.raises(DeadlineExceeded) as undecided:
        await log.append(b"y", 0).applied(timeout=5)
    assert all(name in undecided.value.text for name in names(town, 0, 1))
    for node in town.cluster.storage[:2]:
        node.let_up()
    await log.run(lambda tx: tx.append(b"they are back"), partition=0, timeout=60)
    await wait_until(lambda: log.trouble(0) is None)


@in_an_application
async def test_a_coordinator_that_gives_no_answer_is_named_by_whatever_a_client_waits_for(town: Town, log: Log) -> None:
    """Nobody refuses the server's requests: they are never answered, and its own deadline ends them."""
    await log.append(b"the session stands", 0)
    cluster = town.cluster
    cluster.service.configuration = replace(cluster.service.configuration, timeout_s=10_000.0)
    cluster.cut_off.add(cluster.servers[0].name)
    cluster.storage[0].crash()
    with pytest.raises(DeadlineExceeded, match="coordinator gave no answer"):
        await log.flush(0, timeout=30)
    trouble = await wait_until(lambda: log.trouble(0))
    assert "coordinator gave no answer" in trouble.text
    cluster.cut_off.clear()
    await log.run(lambda tx: tx.append(b"it answers again"), partition=0, timeout=60)
    await wait_until(lambda: log.trouble(0) is None)


@in_an_application
async def test_a_session_that_is_replaced_at_once_leaves_no_trouble(town: Town, log: Log) -> None:
    await log.append(b"x", 0)
    node = town.cluster.storage[1]
    assert node.process is not None
    node.process.crash()
    await log.run(lambda tx: tx.append(b"y"), partition=0, timeout=30)
    await asyncio.sleep(5)
    assert log.trouble(0) is None


@pytest.mark.slow
async def test_a_full_disk_of_this_machine_is_told_to_who_appends_to_an_embedded_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev

    def full(descriptor: int, buffers: Any, offset: int) -> int:
        if sum(len(buffer) for buffer in buffers) > 1_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, buffers, offset)

    async with polonaise.connect(f"embedded:{tmp_path / 'log'}?storage=3") as log:
        await log.append(b"there is room", 0)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", full)
            with pytest.raises(AppendFailed, match=r"storage node .*no space left") as failed:
                await log.append(bytes(5_000), 0)
            assert "storage-" in failed.value.text
            with pytest.raises((AppendExpired, AppendUnknown), match=r"storage node .*no space left"):
                await log.run(lambda tx: tx.append(bytes(5_000)), partition=0, timeout=3)
            trouble = log.trouble(0)
            assert trouble is not None
            assert "no space left" in trouble.text
        await log.run(lambda tx: tx.append(bytes(5_000)), partition=0, timeout=20)
        await wait_until(lambda: log.trouble(0) is None)
