"""The coordinator in a ZooKeeper that takes TLS only, and what is said when the two sides don't agree on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from polonaise.admin.zookeeper import ZooKeeperEnsemble
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.coordination.zookeeperensemble import ensemble_troubles
from polonaise.errors import BadOption, CoordinatorUnavailable
from polonaise.host.certificates import CLIENT
from polonaise.host.real import RealClock, RealHost
from polonaise.host.tls import TlsFiles, TlsIdentity
from polonaise.node.addresses import coordinator_at
from rigs.tls import Authority, replace
from rigs.zookeeper import SESSION_S, ensemble, new_root

DESCRIPTION = ClusterDescription(bytes(range(16)), 3, ("a:1", "b:1", "c:1"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def encrypted(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), tick_ms=500, tls=ours.node("zookeeper")) as made:
        made.start(60.0)
        yield made


async def round_trip(hosts: str, tls: TlsFiles | None) -> None:
    """Make a cluster in a new place, and read it."""
    coordinator = Coordinator(ZooKeeperBackend(hosts, new_root(), session_s=SESSION_S, tls=tls), RealClock())
    try:
        await coordinator.initialize(DESCRIPTION)
        assert await coordinator.describe() == DESCRIPTION
    finally:
        await coordinator.close()


async def refused(hosts: str, tls: TlsFiles | None, naming: str) -> None:
    with pytest.raises(CoordinatorUnavailable) as caught:
        await round_trip(hosts, tls)
    assert naming in str(caught.value)


@pytest.mark.slow
async def test_a_coordinator_in_a_zookeeper_with_tls(encrypted: ZooKeeperEnsemble, ours: Authority) -> None:
    await round_trip(encrypted.hosts, ours.node())


@pytest.mark.slow
async def test_an_ensemble_has_tls_among_its_servers_too(ours: Authority, tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, servers=3, tick_ms=500, tls=ours.node("three")) as three:
        three.start(60.0)
        assert sum(server.is_leader() for server in three.servers) == 1
        await round_trip(three.hosts, ours.node("user"))


@pytest.mark.slow
async def test_a_zookeeper_with_tls_is_not_reached_without(encrypted: ZooKeeperEnsemble) -> None:
    await refused(encrypted.hosts, None, "one with TLS answers only to TLS")


@pytest.mark.slow
async def test_each_server_with_tls_is_told_to_have_it_if_it_is_asked_without(encrypted: ZooKeeperEnsemble) -> None:
    for told in (await ensemble_troubles(encrypted.hosts, None, 3.0)).values():
        assert "has TLS only" in told


@pytest.mark.slow
async def test_a_zookeeper_without_tls_is_not_reached_with_it(ours: Authority) -> None:
    await refused(ensemble().hosts, ours.node("hopeful"), "?tls=no is for one without TLS")


@pytest.mark.slow
async def test_a_zookeeper_of_another_ca_is_not_believed(encrypted: ZooKeeperEnsemble, tmp_path: Path) -> None:
    await refused(encrypted.hosts, Authority(tmp_path).node(), "is not of a CA that this process trusts")


@pytest.mark.slow
async def test_a_zookeeper_on_another_host_is_not_believed(ours: Authority, tmp_path: Path) -> None:
    elsewhere = ours.node("elsewhere", hosts=("localhost",))
    with ZooKeeperEnsemble(tmp_path, listen="localhost:0", tick_ms=500, tls=elsewhere) as named:
        named.start(60.0)
        port = named.servers[0].address.port
        await refused(f"127.0.0.1:{port}", ours.node("visitor"), "is not for this host")


@pytest.mark.slow
async def test_the_ca_is_replaced_as_documented_and_zookeeper_answers_at_each_step(tmp_path: Path) -> None:
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    nodes, users = [ca.node("zookeeper") for ca in (before, after)], [ca.node("user") for ca in (before, after)]
    old_ca, new_ca = Path(nodes[0].ca).read_bytes(), Path(nodes[1].ca).read_bytes()
    both = tmp_path / "both.pem"
    both.write_bytes(old_ca + new_ca)
    node, user = own_copy(nodes[0], tmp_path / "its"), own_copy(users[0], tmp_path / "ours-own")
    with ZooKeeperEnsemble(tmp_path / "zookeeper", tick_ms=500, tls=node) as made:
        made.start(60.0)
        await round_trip(made.hosts, user)
        for files in (node, user):
            replace(files.ca, str(both))
        await round_trip(made.hosts, user)
        for files, new in ((node, nodes[1]), (user, users[1])):
            replace(files.certificate, new.certificate)
            replace(files.key, new.key)
        assert made.tend() == ["the TLS files were replaced: the servers of ZooKeeper use them for new connections"]
        await round_trip(made.hosts, user)
        for files in (node, user):
            replace(files.ca, nodes[1].ca)
        await round_trip(made.hosts, user)
        await refused(made.hosts, users[0], "is not of a CA that this process trusts")


def own_copy(files: TlsFiles, directory: Path) -> TlsFiles:
    """Return copies of these files, which a test replaces."""
    directory.mkdir()
    return TlsFiles(
        *(shutil.copy(path, directory / Path(path).name) for path in (files.ca, files.certificate, files.key))
    )


async def test_the_address_says_when_zookeeper_has_no_tls(ours: Authority) -> None:
    host, identity = RealHost(), TlsIdentity(ours.issue("app", CLIENT, hosts=()))
    try:
        for address, expected in (("zookeeper://a:1/b", identity.files), ("zookeeper://a:1/b?tls=no", None)):
            backend = coordinator_at(host, address, identity)._backend
            assert isinstance(backend, ZooKeeperBackend)
            assert backend._tls == expected
            assert str(backend) == "zookeeper://a:1/b"
        with pytest.raises(BadOption, match="its only option is"):
            coordinator_at(host, "zookeeper://a:1/b?tls=maybe", identity)
    finally:
        host.close()
