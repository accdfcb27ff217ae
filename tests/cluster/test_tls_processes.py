"""A cluster of processes with TLS on everything: what it takes, what it refuses, and certificates that are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polonaise
import polonaise.blocking
from polonaise.admin import coordinatorbackup
from polonaise.admin.asking import ask_health, connected
from polonaise.cli.exitstatus import ExitStatus
from polonaise.coordination.values import ExpectedServer, ExpectedServers
from polonaise.errors import CertificateRefused, CertificateUnusable, PolonaiseError, TlsNotSpoken, TlsRequired
from polonaise.host.real import RealHost
from polonaise.host.tls import CLIENT, PLAYER, SERVER, STORAGE, TARGET, VARIABLES, TlsFiles, TlsIdentity
from polonaise.node.local import ChildNode, LocalCluster, StartFailed
from polonaise.player import JsonLinesTarget, serve
from polonaise.wire.messages import ROLE_SERVER, ROLE_STORAGE, GetUniqueId
from rigs.cluster import running
from rigs.health import until_engaged
from rigs.playerprocesses import PlayerProcess, ShopWithShards
from rigs.programs import run_polonaise
from rigs.tls import Authority, replace
from rigs.waiting import block_until, nothing_happens_for, wait_until

pytestmark = pytest.mark.slow
QUICK_S = 8.0
"""Less than any deadline after which somebody would give up by itself."""
ENDING_S = 0.2
"""For connections to end on both sides before their loop does."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def cluster(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("cluster"), tls=ours.node()) as cluster:
        yield cluster


async def append_refused(cluster: LocalCluster, tls: TlsFiles | None, kind: type[PolonaiseError], naming: str) -> None:
    """Check that an append is refused with this error, at once; by a server's address, connecting is."""
    assert cluster.server is not None
    began_s = time.monotonic()
    with pytest.raises(kind, match=naming):
        async with polonaise.connect(f"polonaise://{cluster.server.address}", tls=tls):
            pass
    assert time.monotonic() - began_s < QUICK_S
    began_s = time.monotonic()
    with pytest.raises(PolonaiseError) as caught:
        async with polonaise.connect(cluster.coordinator, tls=tls) as log:
            await log.append(b"never", partition=0)
    told = f"{caught.value} {caught.value.__cause__}"
    assert f"[{kind.code}]" in told
    assert naming in told
    assert time.monotonic() - began_s < QUICK_S
    began_s = time.monotonic()
    with pytest.raises(kind, match=r"."):
        async with polonaise.connect(cluster.coordinator, tls=tls) as log:
            await log.high_water_mark(0)
    assert time.monotonic() - began_s < QUICK_S


async def test_a_cluster_with_tls_on_everything_appends_and_reads(cluster: LocalCluster, ours: Authority) -> None:
    async with polonaise.connect(cluster.coordinator, tls=ours.client("app")) as log:
        ids = [(await log.append(b"%d" % number, partition=0)).id for number in range(20)]
        big = await log.append(bytes(1_000_000), partition=0)
        assert big.id == ids[-1] + 1
        await until_engaged(log, 3)
        assert [tx.id async for tx in log.read(0, after=-1)] == [*ids, big.id]


def test_the_blocking_face_takes_tls_files(cluster: LocalCluster, ours: Authority) -> None:
    with polonaise.blocking.connect(cluster.coordinator, tls=ours.client("thread")) as log:
        assert log.append(b"from a thread", partition=0).result().id >= 0


def options_of(files: TlsFiles) -> list[str]:
    return ["--tls-ca", files.ca, "--tls-certificate", files.certificate, "--tls-key", files.key]


def test_commands_take_the_files_as_options_or_from_the_environment(cluster: LocalCluster, ours: Authority) -> None:
    files = ours.client("shell")
    done = run_polonaise("log", "append", cluster.coordinator, "by options", *options_of(files))
    assert (done.returncode, done.stderr) == (0, "")
    variables = {
        "POLONAISE_TLS_CA": files.ca, "POLONAISE_TLS_CERTIFICATE": files.certificate, "POLONAISE_TLS_KEY": files.key,
    }  # fmt: skip
    done = run_polonaise("log", "tail", cluster.coordinator, "-n", 1, "--json", environment=variables)
    assert json.loads(done.stdout)["data"] == "by options"
    done = run_polonaise("log", "health", cluster.coordinator)
    assert done.returncode == 1
    assert "[tls_required]" in done.stderr
    assert "--tls-ca" in done.stderr
    # The coordinator, a directory, has no TLS. A change there is refused all the same: the nodes can't be asked.
    done = run_polonaise("topic", "create", "unasked", "--coordinator", cluster.coordinator)
    assert done.returncode == 1
    assert "[tls_required]" in done.stderr
    assert "nobody could be asked whether it holds the latest state: server" in done.stderr


def test_what_is_changed_at_the_coordinator_takes_a_clients_certificate(cluster: LocalCluster, ours: Authority) -> None:
    """`partition move` asks the new owner as a client does, and no server takes a node's certificate for that."""
    assert cluster.server is not None
    options = (*options_of(ours.client("operator")), "--coordinator", cluster.coordinator)
    done = run_polonaise("partition", "move", 0, "--to", cluster.server.address, "--timeout", 10, *options)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_polonaise("server", "remove", "nobody", *options)
    assert "[bad_option] the cluster misses no server 'nobody'" in done.stderr


def test_a_recovery_notices_servers_that_run_by_the_certificate_that_it_needs(
    cluster: LocalCluster, ours: Authority, tmp_path: Path
) -> None:
    """A server that refuses the certificate is alive as well, and may work with the real coordinator."""
    assert cluster.server is not None
    key = key_of(cluster, ours.client("before-recovery"))

    async def look(address: str, files: TlsFiles) -> dict[int, str]:
        with contextlib.closing(RealHost(tls=TlsIdentity(files, SERVER))) as host:
            expected = ExpectedServers({"a": ExpectedServer(7, address)})
            running = await coordinatorbackup._running(host, expected, key, 5.0)
            await nothing_happens_for(ENDING_S)
            return running

    assert [*asyncio.run(look(cluster.server.address, ours.node("recovers"))).values()] == [cluster.server.address]
    theirs = Authority(tmp_path).node("stranger")
    assert asyncio.run(look(cluster.server.address, theirs)) == {7: cluster.server.address}
    assert asyncio.run(look("127.0.0.1:1", theirs)) == {}


def key_of(cluster: LocalCluster, client: TlsFiles) -> bytes:
    done = run_polonaise("cluster", "status", "--json", "--coordinator", cluster.coordinator, *options_of(client))
    return bytes.fromhex(json.loads(done.stdout)["cluster"])


async def test_a_servers_certificate_asks_all_nodes_for_their_health_and_servers_for_nothing_else(
    cluster: LocalCluster, ours: Authority
) -> None:
    """`storage clean` takes such a certificate, and asks them before whether they believe the coordinator."""
    assert cluster.server is not None
    key = await asyncio.to_thread(key_of, cluster, ours.client("before-asking"))
    with contextlib.closing(RealHost(tls=TlsIdentity(ours.node("asks"), SERVER))) as host:
        told = await ask_health(host, cluster.server.address, ROLE_SERVER, key, 5.0)
        assert isinstance(told, dict), told
        assert {*told["storage"]} == {*cluster.named}
        for each in cluster.storage:
            told = await ask_health(host, each.address, ROLE_STORAGE, key, 5.0)
            assert isinstance(told, dict), told
        async with connected(host, cluster.server.address, ROLE_SERVER, ROLE_SERVER, key, 5.0) as connection:
            with pytest.raises(PolonaiseError, match="may ask a server for its health only, and sent GetUniqueId"):
                await connection.request(GetUniqueId(), deadline_s=5.0)
        await nothing_happens_for(ENDING_S)


def test_storage_clean_finds_with_the_certificate_of_a_node_that_the_coordinator_is_of_an_older_state(
    tmp_path: Path,
) -> None:
    """No server runs; the storage nodes have noted what the coordinator holds no more."""
    ours = Authority(tmp_path / "ours")
    nodes, client = ours.node(), ours.client()
    with running(tmp_path / "cluster", tls=nodes) as cluster:
        assert cluster.server is not None
        at = ("--coordinator", cluster.coordinator)
        directory = Path(cluster.coordinator.removeprefix("file:"))
        shutil.copytree(directory, tmp_path / "older")
        done = run_polonaise("topic", "create", "t", *at, *options_of(client))
        assert (done.returncode, done.stderr) == (0, "")
        key = key_of(cluster, client)
        name, a = next(iter(cluster.named.items()))
        block_until(lambda: noted_by(a.address, key, client) > 0)
        cluster.server.kill()
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "older", directory)
        done = run_polonaise("storage", "clean", name, *at, *options_of(nodes))
        assert "[coordinator_outdated]" in done.stderr
        assert done.returncode == 1
        done = run_polonaise("storage", "clean", name, *at, *options_of(Authority(tmp_path / "other").node("other")))
        assert "[certificate_refused]" in done.stderr
        assert "nobody could be asked whether it holds the latest state: storage node" in done.stderr


def noted_by(address: str, key: bytes, client: TlsFiles) -> int:
    async def ask() -> int:
        with contextlib.closing(RealHost(tls=TlsIdentity(client))) as host:
            told = await ask_health(host, address, ROLE_STORAGE, key, 5.0)
            await nothing_happens_for(ENDING_S)
            return int(told["noted"] or -1) if isinstance(told, dict) else -1

    return asyncio.run(ask())


async def test_a_plain_client_is_told_at_once(cluster: LocalCluster) -> None:
    await append_refused(cluster, None, TlsRequired, "takes TLS only")


async def test_a_client_of_another_ca_is_told_at_once(cluster: LocalCluster, ours: Authority, tmp_path: Path) -> None:
    theirs = Authority(tmp_path).client("stranger")
    await append_refused(cluster, theirs, CertificateRefused, "is not of a CA that this process trusts")


async def test_a_client_with_a_nodes_certificate_is_refused(cluster: LocalCluster, ours: Authority) -> None:
    with pytest.raises(CertificateUnusable, match="needs one for client"):
        async with polonaise.connect(cluster.coordinator, tls=ours.node("as-client")):
            pass


async def test_a_client_with_tls_is_told_by_a_plain_cluster_at_once(ours: Authority, tmp_path: Path) -> None:
    with running(tmp_path, storage=1) as plain:
        await append_refused(plain, ours.client("hopeful"), TlsNotSpoken, "speaks no TLS")
        assert plain.server is not None
        assert "a peer speaks TLS, and this node does not" in plain.server.log


def test_a_node_with_files_that_can_not_be_used_does_not_start(ours: Authority, tmp_path: Path) -> None:
    def refusal(files: TlsFiles) -> str:
        command = ["storage", "run", "--directory", str(tmp_path / "disk"), *options_of(files)]
        node = ChildNode("storage", command, tmp_path / "log")
        with pytest.raises(StartFailed) as caught:
            node.start()
        return str(caught.value)

    node = ours.node("starts-not")
    assert "this process needs one for storage" in refusal(ours.client("not-a-node"))
    assert "does not belong to the certificate" in refusal(TlsFiles(node.ca, node.certificate, ours.node("two").key))
    assert "no file" in refusal(TlsFiles(node.ca, node.certificate, f"{node.key}.gone"))
    done = run_polonaise("storage", "run", "--directory", tmp_path / "disk", "--tls-ca", node.ca)
    assert "[bad_option] TLS needs all of --tls-ca, --tls-certificate and --tls-key" in done.stderr
    assert not (tmp_path / "disk").exists()


class Separate(LocalCluster):
    """A cluster whose nodes have certificates of their own, in one role each."""

    def __init__(self, directory: Path, ours: Authority, **options: Any) -> None:
        self.files = ours.issue("server", SERVER)
        super().__init__(directory, tls=ours.issue("disk", STORAGE), **options)
        self._server_options = [*options_of(self.files)]
        self._making_tls = self.files


async def appending(log: polonaise.Log) -> None:
    """Append one thing after the other, until cancelled."""
    while True:
        await log.append(b"load", partition=0)


async def test_certificates_are_replaced_under_load_and_an_old_ca_is_taken_out(ours: Authority, tmp_path: Path) -> None:
    new = Authority(tmp_path / "new")
    files = Authority(tmp_path / "old")
    trusted = tmp_path / "trusted.pem"
    client = files.client()
    trusted.write_bytes(Path(client.ca).read_bytes())

    def trusting(given: TlsFiles) -> TlsFiles:
        return TlsFiles(str(trusted), given.certificate, given.key)

    with Separate(tmp_path / "cluster", files, storage=3) as cluster:
        # The nodes believe what is in the CA's file of the old authority: that one is replaced below.
        assert cluster.tls is not None
        assert cluster.server is not None
        async with polonaise.connect(cluster.coordinator, tls=trusting(client)) as log:
            await log.append(b"before", partition=0)
            loading = asyncio.create_task(appending(log))
            theirs = new.client()
            both = Path(client.ca).read_text() + Path(theirs.ca).read_text()
            for ca in (str(trusted), client.ca):
                (tmp_path / "both").write_text(both)
                replace(ca, str(tmp_path / "both"))
            await log.append(b"both CAs", partition=0)
            for old, renewed in (
                (cluster.files, new.issue("server", SERVER)),
                (cluster.tls, new.issue("disk", STORAGE)),
            ):
                replace(old.certificate, renewed.certificate)
                replace(old.key, renewed.key)
            await log.append(b"new certificates", partition=0)
            # A node that starts, and who connects to it, use what is there now.
            await asyncio.to_thread(cluster.storage[0].kill)
            await asyncio.to_thread(cluster.storage[0].start)
            await until_engaged(log, 3)
            replace(client.ca, theirs.ca)
            await log.append(b"the old CA is gone, and this connection is open", partition=0)
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading  # an append that had failed would be raised here
        async with polonaise.connect(cluster.coordinator, tls=theirs) as log:
            await log.append(b"new client", partition=0)
        await append_refused(cluster, trusting(client), CertificateRefused, "its CA is not among those")
        await wait_until(lambda: cluster.server is not None and "is not of a CA" in cluster.server.log)


async def test_another_server_takes_over_from_one_whose_certificate_has_expired(tmp_path: Path) -> None:
    files = Authority(tmp_path / "tls")
    client = files.client()
    with Separate(tmp_path / "cluster", files, storage=1) as cluster:
        first = cluster.server
        assert first is not None
        other = options_of(files.issue("other", SERVER))
        second = cluster._node("server 2", [*first._arguments, *other], "")
        second.start()
        try:
            async with polonaise.connect(cluster.coordinator, tls=client) as log:
                await log.append(b"before", partition=0)
                files.issue("server", SERVER, days=8 / 86_400, renew=True)

                async def taken_over() -> bool:
                    async with polonaise.connect(f"polonaise://{second.address}", tls=client) as new:
                        with contextlib.suppress(PolonaiseError):
                            await new.append(b"after", partition=0)
                            return "has expired on " in first.log
                    return False

                what = "new clients append, without the server that they can't connect to"
                await wait_until(taken_over, what, every_s=0.2)
                await log.append(b"the client of before goes on, too", partition=0)
            assert "gives up 1 partition that it can't serve: 0" in first.log
            assert first.log.count("expires on ") == 1, "the warning before that"
            files.issue("server", SERVER, renew=True)
        finally:
            second.stop()


async def test_a_client_that_runs_waits_for_a_certificate_to_be_mended(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    good, bad = options_of(ours.node()), options_of(theirs.node())
    with running(tmp_path / "cluster", storage=1, tls=ours.node("all")) as cluster:
        server = cluster.server
        assert server is not None
        common = server._arguments
        async with polonaise.connect(cluster.coordinator, tls=ours.client()) as log:
            await log.append(b"before", partition=0)
            await asyncio.to_thread(server.kill)
            server._arguments = [*common, *bad]  # of an option that is given twice the last one holds
            receipt = log.append(b"while it is wrong", partition=0)
            await asyncio.to_thread(server.start)
            await wait_until(lambda: "refused a connection" in server.log)
            await asyncio.to_thread(server.kill)
            server._arguments = [*common, *good]
            await asyncio.to_thread(server.start)
            assert (await receipt).id == 1


def in_environment(files: TlsFiles) -> dict[str, str]:
    return {variable: getattr(files, name) for name, variable in VARIABLES.items()}


async def test_a_player_delivers_over_tls_with_a_certificate_for_both_roles(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    client = ours.client()
    target = JsonLinesTarget(tmp_path / "a.jsonl", decode=bytes.decode)
    with running(tmp_path / "cluster", tls=ours.node()) as cluster:
        assert cluster.server is not None
        address = f"polonaise://{cluster.server.address}"
        async with serve(target, "link://localhost:0", tls=ours.issue("target", TARGET)) as server:
            shop = ShopWithShards(tmp_path, address)
            shop.write_settings(addresses={"a": server.address})
            both = in_environment(ours.issue("player", CLIENT, PLAYER, hosts=()))
            with contextlib.closing(PlayerProcess(tmp_path, environment=both)) as process:
                await asyncio.to_thread(process.until, "active")
                async with polonaise.connect(address, tls=client) as log:
                    await log.append(b"a:1", partition=0)
                path = tmp_path / "a.jsonl"
                await wait_until(lambda: path.exists() and path.read_text())
                assert [json.loads(line)["payload"] for line in path.read_text().splitlines()] == ["1"]
                assert await asyncio.to_thread(process.end) == 0
            alone = in_environment(client)
            with contextlib.closing(PlayerProcess(tmp_path, environment=alone)) as process:
                assert await asyncio.to_thread(process.process.wait, 60) == ExitStatus.SETTINGS
                assert "player" in process.errors
    await target.close()
