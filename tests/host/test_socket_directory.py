"""Unix sockets by their bare names, and ones that somebody removes while a process listens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polonaise.errors import AddressInUse, BadOption, ConnectionLost, TooManyOpenFiles
from polonaise.host import Network, sockets, unreachable
from polonaise.host.real import RealHost
from polonaise.host.sockets import SocketDirectory
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
    monkeypatch.setattr(sockets, "_DESCRIPTORS", str(tmp_path / "no proc"))
    with pytest.raises(BadOption, match="shorter path"):
        await SocketDirectory(str(deep), host.network).listen("unix:here", asyncio.Protocol)
    monkeypatch.chdir(tmp_path)
    await _reached(SocketDirectory(".", host.network))


NOTICED_S = 10.0


@pytest.fixture
async def place(tmp_path: Path, host: RealHost, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    """A socket at which a listener accepts connections, and looks ten times as often whether it is still there."""
    monkeypatch.setattr(sockets, "_LOOK_S", 0.1)
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "socket"
    listener = await host.network.listen(f"unix:{path}", asyncio.Protocol)
    path.chmod(0o660)
    await wait_until(lambda: True)
    yield path
    await listener.close()
    assert not unreachable(host.network), "a listener that is closed has no trouble"


async def _is_reached(network: Network, address: str) -> bool:
    with contextlib.suppress(ConnectionLost):
        transport, _ = await network.connect(address, asyncio.Protocol)
        transport.close()
        return True
    return False


@pytest.mark.slow
async def test_a_socket_that_was_removed_is_made_again_as_it_was(
    place: Path, host: RealHost, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        place.unlink()
        await wait_until(lambda: _is_reached(host.network, f"unix:{place}"), within_s=NOTICED_S)
        assert not unreachable(host.network)
    assert len([line for line in caplog.messages if "was made again" in line]) == 2


@pytest.mark.slow
async def test_a_socket_that_is_made_again_has_the_rights_that_it_was_given(place: Path, host: RealHost) -> None:
    listener = next(iter(host.network._listeners))  # type: ignore[attr-defined]
    await wait_until(lambda: listener._mode == 0o660, within_s=NOTICED_S)
    place.unlink()
    await wait_until(lambda: _is_reached(host.network, f"unix:{place}"), within_s=NOTICED_S)
    assert stat.S_IMODE(place.stat().st_mode) == 0o660


@pytest.mark.slow
async def test_a_socket_whose_directory_is_gone_is_told_until_it_is_back(place: Path, host: RealHost) -> None:
    shutil.rmtree(place.parent)
    await wait_until(lambda: "this socket was removed" in unreachable(host.network), within_s=NOTICED_S)
    place.parent.mkdir()
    await wait_until(lambda: _is_reached(host.network, f"unix:{place}"), within_s=NOTICED_S)
    assert not unreachable(host.network)


@pytest.mark.slow
async def test_a_directory_that_was_moved_and_put_back_keeps_its_socket(place: Path, host: RealHost) -> None:
    elsewhere = place.parent.with_name("elsewhere")
    place.parent.rename(elsewhere)
    await wait_until(lambda: bool(unreachable(host.network)), within_s=NOTICED_S)
    elsewhere.rename(place.parent)
    await wait_until(lambda: not unreachable(host.network), within_s=NOTICED_S)
    assert await _is_reached(host.network, f"unix:{place}")


@pytest.mark.slow
async def test_a_socket_that_another_one_has_replaced_is_told_and_left_alone(place: Path, host: RealHost) -> None:
    place.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(place))
        other.listen()
        await wait_until(lambda: "end what listens there" in unreachable(host.network), within_s=NOTICED_S)
        assert place.is_socket()
    await wait_until(lambda: not unreachable(host.network), within_s=NOTICED_S)


async def test_a_directory_of_sockets_that_was_moved_is_told(tmp_path: Path, host: RealHost) -> None:
    directory = tmp_path / "sockets"
    directory.mkdir()
    network = SocketDirectory(str(directory), host.network)
    listener = await network.listen("unix:here", asyncio.Protocol)
    assert not unreachable(network)
    directory.rename(tmp_path / "elsewhere")
    assert "was removed, moved or replaced" in unreachable(network)
    await listener.close()
