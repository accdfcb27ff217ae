"""The real machine's own corners: addresses, errors of the system, what arrives, clean stops and loud ones."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from polonaise.errors import BadOption, ConnectionLost, DiskFailed, DiskFull, Retry, TooManyOpenFiles
from polonaise.host.address import HostPort, UnixPath, is_every_interface, parse_address
from polonaise.host.files import check_room
from polonaise.host.real import FAILED_EXIT_CODE, RealHost, stop_at_mistakes
from rigs.descriptors import no_descriptors_left
from rigs.programs import output_of, run_python
from rigs.scenarios import runs_tests_on_loops
from rigs.waiting import block_for, nothing_happens_for, time_passes, wait_until
from rigs.watchedhost import Watched


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a:1", HostPort("a", 1)),
        ("127.0.0.1:0", HostPort("127.0.0.1", 0)),
        ("[::1]:65535", HostPort("::1", 65535)),
        ("unix:/run/s", UnixPath("/run/s")),
    ],
)
def test_an_address_reads_as_it_is_written(text: str, address: HostPort | UnixPath) -> None:
    assert parse_address(text) == address
    assert str(address) == text


NO_ADDRESSES = ["", "a", "a:", ":1", "a:x", "a:65536", "a:-1", "a:¹", "a:b:1", "unix:", "unix:a\0b"]
NO_HOSTS = ["a..b:1", ".a:1", f"{'a' * 64}:1", f"{'ü' * 60}:1", "a\0b:1", "\ud800:1"]


@pytest.mark.parametrize("text", [*NO_ADDRESSES, *NO_HOSTS, f"a:{'1' * 4_301}"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(BadOption):
        parse_address(text)


async def test_short_writes_are_continued(host: RealHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reluctant(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:3], offset)

    file = await host.disk.open(str(tmp_path / "a"), create=True)
    monkeypatch.setattr(os, "pwritev", reluctant)
    await file.write(2, [b"a", b"", b"bcdefg", b"hi"])
    assert await file.read(0, 100) == b"\0\0abcdefghi"
    await file.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux only")
async def test_a_full_disk_is_told_apart_from_a_broken_one(host: RealHost) -> None:
    file = await host.disk.open("/dev/full")
    with pytest.raises(DiskFull):
        await file.write(0, [b"x"])
    await file.close()


async def test_a_file_that_may_not_grow_so_far_is_told_as_a_full_disk(host: RealHost, tmp_path: Path) -> None:
    file = await host.disk.open(str(tmp_path / "a"), create=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, limits[1]))
    try:
        with pytest.raises(DiskFull, match="can't grow so far"):
            await file.write(2**28, [b"x"], sync=True)
        await file.write(0, [b"x"], sync=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await file.size() == 1
    await file.close()


async def test_an_error_of_the_system_comes_translated(
    host: RealHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await host.disk.open(str(tmp_path / "a"), create=True)

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("polonaise.host.files._sync_data", broken)
    with pytest.raises(DiskFailed, match="Input/output error"):
        await file.write(0, [b"x"], sync=True)
    await file.close()


async def test_too_many_open_files_are_no_failed_disk_and_no_bad_address_and_pass(
    host: RealHost, tmp_path: Path
) -> None:
    path = str(tmp_path / "a")
    listener = await host.network.listen("127.0.0.1:0", asyncio.Protocol)
    file = await host.disk.open(path, create=True)
    check_room(16, "much")
    with no_descriptors_left(but=15), pytest.raises(TooManyOpenFiles, match=r"much: .* raise its limit of open files"):
        check_room(16, "much")
    with no_descriptors_left():
        for refused in (
            host.disk.open(path),
            host.disk.load(path),
            host.disk.sync_directory(str(tmp_path)),
            host.network.listen("127.0.0.1:0", asyncio.Protocol),
        ):
            with pytest.raises(TooManyOpenFiles, match="raise its limit of open files") as told:
                await refused
            assert told.value.code == "too_many_open_files"
            assert told.value.retry is Retry.AGAIN
        with pytest.raises(ConnectionLost, match="raise its limit of open files"):
            await host.network.connect(listener.address, asyncio.Protocol)
        await file.write(0, [b"x"], sync=True)
    assert await host.disk.load(path) == b"x"
    await file.close()
    await listener.close()


on_both_loops = runs_tests_on_loops(lambda _: Watched())
"""Decorator of tests that get a host in a loop of each kind."""


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"x")  # type: ignore[attr-defined]  # uvloop's is no asyncio.Transport
        transport.close()


class Leaving(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]  # uvloop's is no asyncio.Transport


class Mistaken(asyncio.Protocol):
    def __init__(self) -> None:
        raise RuntimeError("a mistake of ours")


async def dialled(client: socket.socket, address: str) -> None:
    client.setblocking(False)
    if address.startswith("unix:"):
        await asyncio.get_running_loop().sock_connect(client, address.removeprefix("unix:"))
    else:
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", int(address.rpartition(":")[2])))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["port", "path"])
@on_both_loops
async def test_without_descriptors_connections_are_turned_away_and_accepted_again_once_there_are_some(
    host: Watched, *, kind: str, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken() -> None:
        raise OSError(errno.EMFILE, "in a callback of our own")

    loop = asyncio.get_running_loop()
    stop_at_mistakes(loop, host)
    listener = await host.network.listen(
        "127.0.0.1:0" if kind == "port" else f"unix:{tmp_path_factory.mktemp('s')}/s", Greeting
    )
    family = socket.AF_INET if kind == "port" else socket.AF_UNIX
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(socket.socket(family)) for _ in range(4)]
        with no_descriptors_left():
            for client in clients[:3]:
                await dialled(client, listener.address)
                assert await asyncio.wait_for(loop.sock_recv(client, 1), 20) == b""
        await dialled(clients[3], listener.address)
        assert await asyncio.wait_for(loop.sock_recv(clients[3], 1), 20) == b"x"
    await listener.close()
    assert not host.failures
    loop.call_soon(mistaken)
    await wait_until(lambda: bool(host.failures))
    host.close()
    assert caplog.text.count("can accept no connection") == 1
    assert "raise its limit of open files" in caplog.text


@on_both_loops
async def test_a_protocol_may_leave_at_once_and_one_that_can_not_be_made_is_a_mistake(host: Watched) -> None:
    loop = asyncio.get_running_loop()
    stop_at_mistakes(loop, host)
    for protocol in (Leaving, Mistaken):
        assert not host.failures
        listener = await host.network.listen("127.0.0.1:0", protocol)
        with socket.socket() as client:
            await dialled(client, listener.address)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(client, 1), 20) == b""
        await listener.close()
    await wait_until(lambda: bool(host.failures))
    host.close()
    assert [str(failure) for failure in host.failures] == ["a mistake of ours"]


@pytest.mark.slow
@on_both_loops
async def test_where_no_descriptor_is_left_to_turn_connections_away_the_loop_does_not_spin(host: Watched) -> None:
    loop = asyncio.get_running_loop()
    listener = await host.network.listen("127.0.0.1:0", Greeting)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(socket.socket()) for _ in range(100)]
        greedy: list[int] = []

        def taking() -> None:
            """Take every descriptor at once that anybody gives up, as a thread that opens files may."""
            while not ended.wait(1e-5):
                with contextlib.suppress(OSError):
                    greedy.append(os.open(os.devnull, os.O_RDONLY))

        ended = threading.Event()
        thread = threading.Thread(target=taking)
        with no_descriptors_left():
            thread.start()
            for client in clients:
                await dialled(client, listener.address)
                await time_passes(0.001)  # so that they don't all arrive at once
            ended.set()
            thread.join()
            # From here on there is no spare descriptor left, whether the thread got the listener's or not.
            with contextlib.suppress(OSError):
                while True:
                    greedy.append(os.open(os.devnull, os.O_RDONLY))
            used_s, began_s = time.process_time(), time.monotonic()
            await time_passes(1)  # a measurement takes its time
            assert (time.process_time() - used_s) / (time.monotonic() - began_s) < 0.2
        for descriptor in greedy:
            os.close(descriptor)
        with socket.socket() as late:
            await dialled(late, listener.address)
            assert await asyncio.wait_for(loop.sock_recv(late, 1), 20) == b"x"
    await listener.close()
    host.close()


@on_both_loops
async def test_a_name_that_the_system_can_not_take_is_a_bad_option(
    host: Watched, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polonaise.host.address._may_be_host", lambda host: True)

    for address in ("a..b:1", "unix:\ud800"):
        with pytest.raises(BadOption, match="cannot connect to"):
            await host.network.connect(address, asyncio.Protocol)
        with pytest.raises(BadOption, match="cannot listen on"):
            await host.network.listen(address, asyncio.Protocol)
    host.close()


@on_both_loops
async def test_messages_are_sent_at_once(host: Watched) -> None:
    class Accepting(asyncio.Protocol):
        def __init__(self, made: asyncio.Future[asyncio.BaseTransport]) -> None:
            self.made = made

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.made.set_result(transport)

    made: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()
    listener = await host.network.listen("127.0.0.1:0", lambda: Accepting(made))
    transport, _ = await host.network.connect(listener.address, asyncio.Protocol)
    async with asyncio.timeout(20):
        accepted = await made
    for end in (transport, accepted):
        raw = end.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        end.close()
    await listener.close()
    host.close()


async def test_a_unix_socket_of_a_dead_process_is_taken_over(host: RealHost, tmp_path: Path) -> None:
    path = tmp_path / "s"
    left_behind = socket.socket(socket.AF_UNIX)
    left_behind.bind(str(path))
    left_behind.close()
    listener = await host.network.listen(f"unix:{path}", asyncio.Protocol)
    await listener.close()
    assert not path.exists()


def node(body: str) -> subprocess.Popen[str]:
    """A process that runs `main(host)` with this body."""
    lines = ["import asyncio", "from polonaise.host.real import run", "async def main(host):"]
    program = "\n".join([*lines, textwrap.indent(textwrap.dedent(body), "    "), "run(main)", "print('stopped')"])
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_node_cleanly(number: signal.Signals) -> None:
    process = node(
        """
        try:
            print(type(asyncio.get_running_loop()).__module__, flush=True)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            print("put away", flush=True)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "uvloop\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert out == "put away\nstopped\n"
    assert process.returncode == 0


def test_a_dead_task_stops_the_whole_node_loudly() -> None:
    process = node(
        """
        async def broken():
            raise ValueError("no more")
        host.spawn(broken(), "broken")
        await asyncio.sleep(30)
        """
    )
    out, errors = process.communicate(timeout=20)
    assert process.returncode == FAILED_EXIT_CODE
    assert "no more" in errors
    assert out == ""


def test_a_cancelled_task_is_no_failure() -> None:
    process = node(
        """
        host.spawn(asyncio.sleep(30), "sleeps").cancel()
        await asyncio.sleep(0)
        """
    )
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "stopped\n")


async def test_a_file_that_two_threads_leave_at_once_is_closed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number closed twice may by then be another file's."""
    closed: list[int] = []
    close = os.close

    def slowly(descriptor: int) -> None:
        closed.append(descriptor)
        block_for(0.02)
        close(descriptor)

    host = RealHost(disk_threads=4)
    file = await host.disk.open(str(tmp_path / "file"), create=True)
    monkeypatch.setattr(os, "close", slowly)
    reading = [asyncio.ensure_future(file.read(0, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    await file.close()
    await asyncio.gather(*reading)
    await nothing_happens_for(0.05)
    monkeypatch.undo()
    host.close()
    assert len(closed) == 1


FORKS = """
import contextlib, os, sys, threading
from polonaise.errors import DirectoryInUse
from polonaise.host.files import try_lock

path, ended = sys.argv[1], threading.Event()

def points_to(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == path
    except OSError:
        return False

def lock_and_release():
    while not ended.is_set():
        with contextlib.suppress(DirectoryInUse):  # a child has it open for the moment that its first steps take
            try_lock(path).release()

thread = threading.Thread(target=lock_and_release)
thread.start()
held = 0
for _ in range(100):
    child = os.fork()
    if not child:
        os._exit(any(points_to(descriptor) for descriptor in os.listdir("/proc/self/fd")))
    held += os.waitpid(child, 0)[1] != 0
ended.set()
thread.join()
print(held)
"""


@pytest.mark.slow
def test_a_child_forked_while_another_thread_locks_and_releases_holds_nothing(tmp_path: Path) -> None:
    """In a process of its own: one as large as this takes long to be forked a hundred times."""
    held = output_of(run_python("-c", FORKS, tmp_path / "lock"))
    assert held == "0\n", "so many of a hundred children held the lock"


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "0x0.0", "[::]", "[0:0::0]", "[::ffff:0.0.0.0]", "[::%eth0]"])
def test_every_interface(host: str) -> None:
    assert is_every_interface(parse_address(f"{host}:7000"))


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.0", "[::1]", "[fe80::1%eth0]", "m1", "0a.example.com", "x"])
def test_one_interface(host: str) -> None:
    assert not is_every_interface(parse_address(f"{host}:0"))


def test_a_socket_in_the_file_system_is_one_place() -> None:
    assert not is_every_interface(parse_address("unix:/0.0.0.0"))


class Ends(asyncio.Protocol):
    """One end of a connection: keeps what it receives, and sends it back if it is the accepted one."""

    def __init__(self, echoes: bool = False) -> None:
        self.echoes = echoes
        self.transport: asyncio.Transport
        self.received: list[bytes] = []
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received.append(data)
        if self.echoes:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


@asynccontextmanager
async def connected(host: RealHost, address: str) -> AsyncIterator[tuple[Ends, Ends]]:
    """Yield the dialling and the accepted end of a connection."""
    accepted = Ends(echoes=True)
    listener = await host.network.listen(address, lambda: accepted)
    transport, dialling = await host.network.connect(listener.address, Ends)
    assert isinstance(dialling, Ends), "the protocol that the factory made"
    try:
        yield dialling, accepted
    finally:
        transport.close()
        await wait_until(lambda: dialling.ended and accepted.ended)
        await listener.close()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_few_bytes_take_a_few_bytes_of_memory_on_their_way(kind: str, tmp_path: Path) -> None:
    """asyncio asks for 256 KiB for each read, and gives most of it back: that leaves a heap full of holes."""
    host = RealHost()
    async with connected(host, "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path / 's'}") as (dialling, accepted):
        dialling.transport.write(b"first")
        await wait_until(lambda: dialling.received)
        tracemalloc.start()
        try:
            for number in range(50):
                dialling.transport.write(b"%05d" % number)
                await wait_until(lambda number=number: len(dialling.received) == number + 2)  # type: ignore[misc]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100_000
        assert dialling.received == accepted.received == [b"first", *(b"%05d" % number for number in range(50))]
    host.close()


def test_threads_with_loops_of_their_own_receive_what_was_sent_to_each() -> None:
    """They receive at the same time, because a read lets other threads go on."""
    mixed: list[bytes] = []

    async def exchange(letter: bytes) -> None:
        host = RealHost()
        async with connected(host, "127.0.0.1:0") as (dialling, _):
            for _ in range(200):
                dialling.received.clear()
                dialling.transport.write(letter * 100_000)
                await wait_until(lambda: sum(map(len, dialling.received)) == 100_000, every_s=0)
                mixed.extend(part for part in dialling.received if part != letter * len(part))
        host.close()

    threads = [threading.Thread(target=asyncio.run, args=(exchange(letter),)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed
