"""A Unix socket that somebody removes while a process listens at it: it is made again, or else that is told."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polonaise.errors import ConnectionLost
from polonaise.host import Network, sockets, unreachable
from polonaise.host.real import RealHost
from polonaise.host.socketdirectory import SocketDirectory
from rigs.waiting import wait_until

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


async def test_a_socket_that_was_removed_is_made_again_as_it_was(
    place: Path, host: RealHost, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        place.unlink()
        await wait_until(lambda: _is_reached(host.network, f"unix:{place}"), within_s=NOTICED_S)
        assert not unreachable(host.network)
    assert len([line for line in caplog.messages if "was made again" in line]) == 2


async def test_a_socket_that_is_made_again_has_the_rights_that_it_was_given(place: Path, host: RealHost) -> None:
    listener = next(iter(host.network._listeners))  # type: ignore[attr-defined]
    await wait_until(lambda: listener._mode == 0o660, within_s=NOTICED_S)
    place.unlink()
    await wait_until(lambda: _is_reached(host.network, f"unix:{place}"), within_s=NOTICED_S)
    assert stat.S_IMODE(place.stat().st_mode) == 0o660


async def test_a_socket_whose_directory_is_gone_is_told_until_it_is_back(place: Path, host: RealHost) -> None:
    shutil.rmtree(place.parent)
    await wait_until(lambda: "this socket was removed" in unreachable(host.network), within_s=NOTICED_S)
    place.parent.mkdir()
    await wait_until(lambda: _is_reached(host.network, f"unix:{place}"), within_s=NOTICED_S)
    assert not unreachable(host.network)


async def test_a_directory_that_was_moved_and_put_back_keeps_its_socket(place: Path, host: RealHost) -> None:
    elsewhere = place.parent.with_name("elsewhere")
    place.parent.rename(elsewhere)
    await wait_until(lambda: bool(unreachable(host.network)), within_s=NOTICED_S)
    elsewhere.rename(place.parent)
    await wait_until(lambda: not unreachable(host.network), within_s=NOTICED_S)
    assert await _is_reached(host.network, f"unix:{place}")


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
