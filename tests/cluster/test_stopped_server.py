"""Servers and hosts that hang or are lost, in real processes: clients go on with another one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import polonaise
from polonaise.client.log import partitions_of
from polonaise.client.serverdiscovery import ServerDiscovery
from polonaise.client.settings import ClientSettings
from polonaise.coordination.lease import LEASE_S, RENEW_S
from polonaise.log.batch import split
from polonaise.node.local import ChildNode, LocalCluster
from polonaise.wire.messages import Feed, Refused
from polonaise_proving.record.faultkinds import Fault, FaultKind
from polonaise_proving.stages.hosts.hosts import NamespaceHosts, namespaces_possible
from polonaise_proving.stages.hosts.leftovers import Notes, names_of
from rigs.cluster import Writer, connected, running
from rigs.hostile import Peer, greet, mount, one_append, target_of
from rigs.lacking import program
from rigs.programs import output_of, run_polonaise, run_program
from rigs.tls import Authority
from rigs.waiting import PATIENCE_S, block_until, wait_until

ZOMBIE = b"sent to the old owner while it was stopped"
TAKE_OVER_S_MAX = LEASE_S + RENEW_S + 8.0
"""Its lease, a look at it, a session; and a client's way to the new owner."""


def fed_in(message: Feed) -> dict[int, bytes]:
    """Return the transactions of a message, by id."""
    batches = split(memoryview(b"".join(message.payload)))
    return {tx.id: bytes(tx.data) for batch in batches for tx in batch.transactions()}


async def fed_until_the_end(peer: Peer) -> dict[int, bytes]:
    """Return the transactions that a mounted peer was fed, by id, until the server has ended its mount."""
    fed: dict[int, bytes] = {}
    while (message := await peer.hear(PATIENCE_S)) is not None and not isinstance(message, Refused):
        if isinstance(message, Feed):
            fed |= fed_in(message)
    return fed


@pytest.mark.slow
async def test_a_stopped_server_is_taken_over_from_and_changes_nothing_when_it_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        assert cluster.server is not None
        addresses = ",".join(node.address for node in cluster.storage)
        standby = ChildNode(
            "standby",
            ["server", "run", "--coordinator", cluster.coordinator, "--storage", addresses],
            tmp_path / "standby.log",
        )
        await asyncio.to_thread(standby.start)
        try:
            old = await target_of(cluster, "server")
            async with connected(cluster) as log, Writer(log) as writer, greet(old) as peer:
                await writer.writes(100)
                peer.say(mount(-1), partition=0, request=1)
                while not isinstance(fed_first := await peer.hear(), Feed):
                    assert fed_first is not None
                stopped = cluster.server.pid
                assert stopped is not None
                stopped_s = time.monotonic()
                os.kill(stopped, signal.SIGSTOP)
                try:
                    # It lies at the old owner, which believes to own the partition still when it goes on.
                    peer.say(one_append(ZOMBIE, sequence=1))
                    await writer.writes(100)
                    pause_s = writer.longest_pause_s(stopped_s)
                    print(f"a stopped server: no commit for {pause_s:.1f} s")  # noqa: T201
                    assert pause_s < TAKE_OVER_S_MAX
                finally:
                    os.kill(stopped, signal.SIGCONT)
                await writer.writes(300)
                # On a busy machine the server may have been stopped before it could feed more than the first batch.
                fed = fed_in(fed_first) | await fed_until_the_end(peer)
            async with connected(cluster) as fresh:
                length = await writer.check(fresh)
                logged = [tx.data async for tx in fresh.read(0, timeout=PATIENCE_S)]
                assert ZOMBIE not in logged, "what reached the old owner late was written nowhere"
                assert len(logged) >= length
                assert fed, "it had fed what was committed before"
                assert all(logged[id] == data for id, data in fed.items()), "it fed nothing but the log"
                health = await fresh.health(0, timeout=10)
                assert health["partitions"]["0"]["generation"] == 2, "the one that went on took nothing back"
        finally:
            await asyncio.to_thread(standby.stop)
        assert "Traceback" not in standby.log


def transports(loop: asyncio.AbstractEventLoop) -> list[object]:
    """Return the loop's transports of sockets that are not closed: those of which it warns once it is garbage."""
    return [each for each in loop._transports.values() if each._sock is not None]  # type: ignore[attr-defined]


@pytest.mark.exhaustive("polonaise.link")  # of ways to a server
@pytest.mark.slow
@pytest.mark.parametrize("by", ["coordinator", "servers"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_a_client_that_is_closed_while_its_server_hangs_leaves_no_connection_open(
    tmp_path: Path, by: str, tls: bool
) -> None:
    """With TLS a connection also waits for the server's answer to its end."""
    ours = Authority(tmp_path)
    with (
        running(tmp_path / "cluster", tls=ours.node() if tls else None) as cluster,
        asyncio.Runner() as runner,
    ):
        assert cluster.server is not None
        stopped = cluster.server.pid
        assert stopped is not None
        address = cluster.coordinator if by == "coordinator" else f"polonaise://{cluster.server.address}"

        async def use() -> float:
            async with polonaise.connect(address, tls=ours.client("app") if tls else None) as log:
                await log.append(b"served", partition=0)
                assert len([tx async for tx in log.read(0)]) == 1
                os.kill(stopped, signal.SIGSTOP)
                for _ in range(20):
                    log.append(bytes(500_000), partition=0)
                await wait_until(
                    lambda: any(each.unsent_bytes for each in partitions_of(log).parts.links._connections())
                )
                assert len(transports(asyncio.get_running_loop())) > 1
                return time.monotonic()

        try:
            closed_s = runner.run(use())
            assert time.monotonic() - closed_s < PATIENCE_S / 2
            # As asyncio.run does before it closes the loop.
            runner.get_loop().run_until_complete(runner.get_loop().shutdown_asyncgens())
            assert transports(runner.get_loop()) == []
        finally:
            os.kill(stopped, signal.SIGCONT)


@contextlib.contextmanager
def two_servers(directory: Path) -> Iterator[tuple[LocalCluster, list[ChildNode]]]:
    """Run a cluster of two partitions with a second server beside the cluster's own."""
    with running(directory, partitions=2) as cluster:
        assert cluster.server is not None
        storage = ",".join(node.address for node in cluster.storage)
        arguments = ["server", "run", "--coordinator", cluster.coordinator, "--storage", storage, "--partitions", "2"]
        second = ChildNode("second server", arguments, directory / "second.log")
        second.start()
        try:
            yield cluster, [cluster.server, second]
        finally:
            second.stop()
        assert "Traceback" not in second.log, second.log[-3000:]


@contextlib.asynccontextmanager
async def asking(*servers: ChildNode) -> AsyncIterator[polonaise.Log]:
    address = "polonaise://" + ",".join(node.address for node in servers)
    async with polonaise.connect(address, settings=ClientSettings(coordinator_s_max=6)) as log:
        yield log


def asked(log: polonaise.Log) -> str:
    """The address of the server that this client asks now; empty for none."""
    discovery = log._discovery
    assert isinstance(discovery, ServerDiscovery)
    current = discovery._current
    return "" if current is None or current[1].closed else current[0]


@pytest.mark.slow
async def test_a_client_whose_server_is_stopped_goes_on_with_another(tmp_path: Path) -> None:
    with two_servers(tmp_path) as (_, servers):
        async with asking(*servers) as log, Writer(log) as writer:
            await writer.writes(50)
            (gone,) = [node for node in servers if node.address == asked(log)]
            (left,) = [node for node in servers if node is not gone]
            assert gone.pid is not None
            os.kill(gone.pid, signal.SIGSTOP)
            await wait_until(lambda: asked(log) == left.address, within_s=PATIENCE_S)
            await writer.writes(50)
            async with asking(*servers) as newcomer:
                # Whichever it tried first: a stopped process takes connections, too, and then says nothing.
                await wait_until(lambda: asked(newcomer) == left.address, within_s=PATIENCE_S)
                assert newcomer.client_id != log.client_id
                await newcomer.append(b"a new client finds the one that is left", partition=0)
            os.kill(gone.pid, signal.SIGCONT)
            await writer.writes(50)
        async with asking(*servers) as log:
            await writer.check(log)


@pytest.mark.slow
async def test_commands_and_clients_work_by_a_servers_address_alone(tmp_path: Path) -> None:
    with two_servers(tmp_path) as (_, servers):
        address = f"polonaise://{servers[1].address}"
        assert output_of(run_polonaise("log", "append", address, "--partition", "1", "1 100")).split()[0] == "1"
        assert "1 100" in output_of(run_polonaise("log", "read", address, "--partition", "1"))
        assert "ready" in output_of(run_polonaise("log", "health", address))
        archive = tmp_path / "archive"
        output_of(run_polonaise("archive", "run", address, str(archive), "--rest"))
        assert list(archive.rglob("*.parquet"))
        shutil.rmtree(archive)


@pytest.mark.slow
async def test_a_storage_nodes_port_in_the_list_is_said_to_be_no_server(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        done = run_polonaise("log", "read", f"polonaise://{cluster.storage[0].address}", "--partition", "0")
        assert done.returncode == 1
        assert done.stderr.startswith("polonaise: [wrong_role]")
        assert "name servers" in done.stderr
        assert "Traceback" not in done.stderr


PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
HEADING = "### Three machines, command by command\n"
CLIENT = Path(__file__).parents[1] / "rigs" / "steadyclient.py"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
PARTITIONS = 4
READY_S_MAX = 45.0
"""Three times what is promised for an idle machine: other tests may run beside this one. The figure is printed."""


def typed() -> list[tuple[str, list[str]]]:
    """Return the page's commands, each block with the machine that the words before it name last; empty for any."""
    section = PAGE.read_text().split(HEADING)[1].split("\n### ")[0]
    found, before = [], 0
    for block in re.finditer(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        named = re.match(r"On `(m\d)`", section[before : block.start()].strip().rpartition("\n\n")[2])
        found.append((named[1] if named else "", block[1].splitlines()))
        before = block.end()
    return found


class Machines:
    """The machines of the page: hosts, and the processes that were started on them."""

    def __init__(self, notes: Notes, count: int, directory: Path) -> None:
        self.hosts = NamespaceHosts(notes.prefix, [f"m{number + 1}" for number in range(count)])
        self._count = count
        self._directory = directory
        self.started: dict[str, subprocess.Popen[str]] = {}

    def on(self, machine: str) -> str:
        """Return the host that is this machine of the page."""
        return f"m{min(int(machine[1:]), self._count)}"

    def command(self, machine: str, line: str) -> list[str]:
        """Return what is run for a line of the page, with the addresses of the hosts for their names."""
        line = re.sub(r"\bm\d(?=:)", lambda name: self.hosts.address(self.on(name[0])), line)
        return [*self.hosts.prefix(self.on(machine)), *shlex.split(line)]

    def start(self, machine: str, line: str) -> subprocess.Popen[str]:
        directory = self._directory / machine
        directory.mkdir(exist_ok=True)
        with (directory / f"{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                self.command(machine, line), cwd=directory, env={**os.environ, "PATH": PATH}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if str(CLIENT) in line else log, stderr=log,
            )  # fmt: skip
        self.started[f"{machine} {line}"] = process
        return process

    def run(self, machine: str, line: str) -> subprocess.CompletedProcess[str]:
        return run_program(*self.command(machine, line), environment={"PATH": PATH})

    def server_of(self, machine: str) -> subprocess.Popen[str]:
        (server,) = [
            process for name, process in self.started.items() if name.startswith(f"{machine} polonaise server")
        ]
        return server

    def close(self) -> None:
        self.hosts.close()  # kills all that runs there
        for process in self.started.values():
            process.kill()
            process.wait(PATIENCE_S)
            for stream in (process.stdin, process.stdout):
                if stream:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


@pytest.fixture
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machines]:
    program("ip", "iproute2")
    if why := namespaces_possible():
        pytest.skip(why)  # in CI as well: rights can't be installed
    notes = Notes()
    try:
        made = Machines(notes, request.param, tmp_path)
        try:
            yield made
        finally:
            made.close()
    finally:
        notes.tidy()
    assert not names_of("netns", notes.prefix)
    assert not names_of("link", notes.prefix)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", ["killed", "cut"])
@pytest.mark.parametrize("machines", [2, 3], indirect=True, ids=["two_hosts", "three_hosts"])
def test_a_client_goes_on_when_the_machine_of_an_owner_is_lost(machines: Machines, loss: str) -> None:
    *nodes, (anywhere, (status, append)) = typed()
    assert [machine for machine, _ in nodes] == ["m3", "m2", "m1", "m2"]
    assert not anywhere
    began_s = time.monotonic()
    for machine, lines in nodes:
        for line in lines:
            if line.endswith(" &"):
                machines.start(machine, line.removesuffix(" &"))
            else:  # typed at once: what was started before may not answer yet
                block_until(lambda at=machine, what=line: machines.run(at, what).returncode == 0, line)
    block_until(lambda: machines.run("m2", status).returncode == 0, "the cluster is ready")
    ready_s = time.monotonic() - began_s
    sys.stdout.write(f"ready after {ready_s:.1f} s\n")
    assert ready_s < READY_S_MAX
    for machine in ("m1", "m2", "m3"):
        output_of(machines.run(machine, status))
    output_of(machines.run("m1", append))

    coordinator, log = status.split()[-1], append.split()[3]
    owns = re.compile(rf"{re.escape(machines.hosts.address('m1'))}:\d+ +\S+ +[1-9]")
    block_until(
        lambda: owns.search(machines.run("m3", f"polonaise server list --coordinator {coordinator}").stdout),
        "the server of m1 owns partitions",
    )
    client = machines.start("m3", f"{shlex.quote(sys.executable)} {CLIENT} {log} {PARTITIONS}")
    committed: list[int] = []
    assert client.stdout is not None
    output = client.stdout
    reader = threading.Thread(target=lambda: committed.extend(int(line) for line in output), daemon=True)
    reader.start()
    block_until(lambda: len(committed) > 2 * PARTITIONS, "the client appends")

    if loss == "killed":
        machines.server_of("m1").kill()
        machines.server_of("m1").wait(PATIENCE_S)
    else:
        machines.hosts.cut(Fault(FaultKind.CUT, "m1"))
    before = len(committed)
    block_until(lambda: len(committed) > before + 3 * PARTITIONS, "the same client goes on, in every partition")
    assert client.stdin is not None
    client.stdin.close()
    assert client.wait(PATIENCE_S) == 0, "no append has failed"
    reader.join(PATIENCE_S)
    assert committed == list(range(len(committed)))
    read = output_of(machines.run("m3", f"polonaise log read {log} --partition all --json"))
    bodies = re.findall(r'"data": ?"([^"]*)"', read)
    assert sorted(bodies) == sorted(["hello", *map(str, committed)])
