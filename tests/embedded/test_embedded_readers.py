"""A log that is hosted while its disk is full: no id can be given out, and readers get in all the same."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import polonaise
from polonaise.errors import CoordinatorUnavailable, DeadlineExceeded
from polonaise.host import files
from rigs.waiting import wait_until

FULL = "no space left for"


@contextlib.contextmanager
def no_room_for_ids() -> Iterator[None]:
    """Let no id be given out during the block."""
    write = files._write

    def full(descriptor: int, offset: int, buffers: object) -> None:
        if "unique-id" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "planted")
        write(descriptor, offset, buffers)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(files, "_write", full)
        yield


async def test_a_reader_needs_no_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"embedded:{tmp_path}"
    async with polonaise.connect(address) as host:
        await host.append(b"there", partition=0)
        with no_room_for_ids(), caplog.at_level(logging.WARNING, "polonaise.client"):
            async with polonaise.connect(f"{address}?host=no") as reader:
                assert reader.client_id == 0
                assert [tx.data async for tx in reader.read(0)] == [b"there"]
                assert await reader.high_water_mark(0) == 0
                assert reader.clock_ahead_s is not None, "it was told with the first answer"
                assert reader.failure is None
    assert "this client can read only, because it was given no id: [coordinator_unavailable] " in caplog.text
    assert FULL in caplog.text


async def test_what_needs_an_id_says_why_there_is_none_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    async with contextlib.AsyncExitStack() as opened:
        host = await opened.enter_async_context(polonaise.connect(address))
        with no_room_for_ids():
            log = await opened.enter_async_context(polonaise.connect(f"{address}?host=no"))
            receipt = log.append(b"waits", partition=0)
            for ask in (lambda: log.ready(0, timeout=0.2), lambda: receipt.applied(timeout=0.2)):
                with pytest.raises(DeadlineExceeded, match=FULL):
                    await ask()
            assert isinstance(log.trouble(0), CoordinatorUnavailable)
            for make in (lambda: log.lease("name"), lambda: log.group("group", handler=_handle)):
                with pytest.raises(CoordinatorUnavailable, match=FULL):
                    make()
        await asyncio.wait_for(receipt, 30)
        assert log.client_id not in (0, host.client_id)
        assert log.trouble(0) is None
        async with log.lease("name") as lease:
            assert lease.holder >> 32 == log.client_id
        assert [tx.client_id async for tx in host.read(0)] == [log.client_id]
        await log.run(lambda tx: tx.append(b"of a context"), partition=0)


async def test_a_client_without_an_id_closes_as_others_do(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}"
    async with polonaise.connect(address), contextlib.AsyncExitStack() as opened:
        with no_room_for_ids():
            log = await opened.enter_async_context(polonaise.connect(f"{address}?host=no"))
            receipt = log.append(b"never sent", partition=0)
            await opened.aclose()
        await wait_until(lambda: receipt.done)
        assert not receipt.committed
        assert "closed" in str(receipt.error)


async def _handle(tx: object) -> None: ...
