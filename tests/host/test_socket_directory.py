"""Sockets by their bare names, however long the way to their directory is."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from polonaise.errors import AddressInUse, BadOption, ConnectionLost, TooManyOpenFiles
from polonaise.host import socketdirectory
from polonaise.host.real import RealHost
from polonaise.host.socketdirectory import SocketDirectory
from polonaise.node.embedded import EmbeddedSockets
from rigs.descriptors import no_descriptors_left
from rigs.waiting import wait_until


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    path = tmp_path.joinpath(*["x" * 80] * 5)
    path.mkdir(parents=True)
    return path


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def _reached(network: SocketDirectory) -> None:
    ended = asyncio.Event()

    class Peer(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            ended.set()

    listener = await network.listen("unix:here", Peer)
    assert listener.address == "unix:here"
    transport, _ = await network.connect("unix:here", asyncio.Protocol)
    transport.close()
    await ended.wait()
    await listener.close()


async def test_who_listens_under_a_name_is_reached_by_it(deep: Path, host: RealHost) -> None:
    network = SocketDirectory(str(deep), host.network)
    before = descriptors()
    await _reached(network)
    assert not (deep / "here").exists()
    await wait_until(lambda: descriptors() <= before)


async def test_who_has_no_descriptor_left_is_told_so_and_not_that_nobody_hosts(deep: Path, host: RealHost) -> None:
    log = EmbeddedSockets(str(deep), host)
    (deep / "sockets").mkdir()
    listener = await log.listen("unix:here", asyncio.Protocol)
    # One descriptor is for the directory: it can't be opened, or the socket can't.
    for but in (0, 1):
        with no_descriptors_left(but):
            with pytest.raises(TooManyOpenFiles, match="raise its limit of open files"):
                await log.listen("unix:there", asyncio.Protocol)
            with pytest.raises(ConnectionLost, match="raise its limit of open files") as told:
                await log.connect("unix:here", asyncio.Protocol)
            assert "nobody hosts" not in told.value.text
    await listener.close()
    with pytest.raises(ConnectionLost, match="nobody hosts the embedded log"):
        await log.connect("unix:here", asyncio.Protocol)


async def test_a_name_is_for_one_listener_and_nobody_else_answers(deep: Path, host: RealHost) -> None:
    network = SocketDirectory(str(deep), host.network)
    before = descriptors()
    looked = asyncio.Event()

    class Peer(asyncio.Protocol):
        def connection_lost(self, error: Exception | None) -> None:
            looked.set()

    listener = await network.listen("unix:here", Peer)
    with pytest.raises(AddressInUse):
        await network.listen("unix:here", asyncio.Protocol)
    await looked.wait()  # asyncio forgets, and does not close, what it accepts while its server is being closed
    await listener.close()
    with pytest.raises(ConnectionLost):
        await network.connect("unix:here", asyncio.Protocol)
    with pytest.raises(ConnectionLost, match="no sockets in"):
        await SocketDirectory(str(deep / "nowhere"), host.network).connect("unix:here", asyncio.Protocol)
    await wait_until(lambda: descriptors() <= before)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "unix:/tmp/x", "unix:../x", "unix:", "unix:" + "x" * 90])
async def test_what_is_no_bare_name_is_refused(deep: Path, host: RealHost, address: str) -> None:
    network = SocketDirectory(str(deep), host.network)
    with pytest.raises(BadOption):
        await network.listen(address, asyncio.Protocol)
    with pytest.raises(BadOption):
        await network.connect(address, asyncio.Protocol)


async def test_without_proc_a_short_socket_path_works_and_a_long_one_is_refused(
    deep: Path, host: RealHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socketdirectory, "_DESCRIPTORS", str(tmp_path / "no proc"))
    with pytest.raises(BadOption, match="shorter path"):
        await SocketDirectory(str(deep), host.network).listen("unix:here", asyncio.Protocol)
    monkeypatch.chdir(tmp_path)
    await _reached(SocketDirectory(".", host.network))
