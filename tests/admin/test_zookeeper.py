"""`polonaise zookeeper run`: servers that come up, end with the process that started them, and share no directory."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from polonaise.admin.zookeeper import RestartPause, ZooKeeperEnded, ZooKeeperEnsemble, ZooKeeperServer
from polonaise.errors import CertificateUnusable, DirectoryInUse
from polonaise.host.address import HostPort
from polonaise.host.tls import TlsFiles, TlsIdentity
from rigs.localcluster import processes_in
from rigs.programs import start_polonaise
from rigs.tls import Authority, replace
from rigs.waiting import block_until

pytestmark = pytest.mark.slow


def running_in(directory: Path) -> list[int]:
    """The servers whose command line names this directory."""
    server = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [pid for pid, line in processes_in(directory).items() if server in line.split()]


def started(directory: Path, *options: str) -> subprocess.Popen[str]:
    where = ("--directory", directory, "--listen", "127.0.0.1:0")
    return start_polonaise("zookeeper", "run", *where, *options, stderr=None)


@pytest.mark.exhaustive  # of ways to end
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, None])
def test_servers_end_with_the_command_that_started_them(tmp_path: Path, end: signal.Signals | None) -> None:
    with started(tmp_path, *(["--until-stdin-ends"] if end is None else [])) as command:
        assert command.stdout is not None
        assert command.stdin is not None
        assert command.stdout.readline().startswith("listening 127.0.0.1:")
        assert running_in(tmp_path)
        if end is None:
            command.stdin.close()
        else:
            command.send_signal(end)
        assert command.wait(30) == (-signal.SIGKILL if end is signal.SIGKILL else 0)
    block_until(lambda: not running_in(tmp_path), "the servers have ended")


def test_a_key_that_java_does_not_read_is_refused_by_name(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ours").node()
    old = tmp_path / "old-key.pem"
    subprocess.run(["openssl", "ec", "-in", files.key, "-out", str(old)], check=True, capture_output=True)
    assert "BEGIN EC PRIVATE KEY" in old.read_text()
    with pytest.raises(CertificateUnusable, match=r"is not in PKCS#8, .*`openssl pkcs8 -topk8 -nocrypt`"):
        ZooKeeperEnsemble(tmp_path / "zookeeper", tls=TlsFiles(files.ca, files.certificate, str(old)))


def test_a_server_that_ends_by_itself_ends_the_command_which_tells_why(tmp_path: Path) -> None:
    with started(tmp_path) as command:
        assert command.stdout is not None
        command.stdout.readline()
        for pid in running_in(tmp_path):
            os.kill(pid, signal.SIGKILL)
        assert command.wait(30) == 1


def test_a_server_of_an_ensemble_that_ends_by_itself_is_started_again_and_that_is_told(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, servers=3, tick_ms=500) as ensemble:
        ensemble.start(60.0)
        victim = ensemble.servers[1]
        for pid in running_in(tmp_path / "zookeeper-2"):
            os.kill(pid, signal.SIGKILL)
        told: list[str] = []

        def is_back() -> bool:
            told.extend(ensemble.tend())
            return len(told) > 1 and victim.is_serving()

        block_until(is_back, "the server serves again")
        assert "ZooKeeper server 2 ended, killed by signal 9; " in told[0]
        assert told[0].endswith("it is started again in 0.5 s")
        assert told[1:] == ["ZooKeeper server 2 was started again"]
        assert all(server.is_serving() for server in ensemble.servers)


def test_why_a_server_ended_is_its_signal_and_what_it_printed_lately_and_not_long_before(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\necho a warning of the start\n"
        "while [ ! -e die ]; do sleep 0.02; done\necho its last words\nkill -9 $$\n"
    )
    java.chmod(0o755)
    server = ZooKeeperServer(1, tmp_path, HostPort("127.0.0.1", 1), str(java))
    for long_ago in (False, True):
        (tmp_path / "die").unlink(missing_ok=True)
        server.start()
        begun = server.log.count("its last words")
        block_until(lambda begun=begun: server.log.count("a warning") > begun, "it has printed")  # type: ignore[misc]
        if long_ago:
            server.look(time.monotonic() + 11)
            server.look(time.monotonic() + 22)
        (tmp_path / "die").touch()
        block_until(lambda: not server.running, "it has ended")
        lately = "its last words" if long_ago else "a warning of the start\nits last words"
        told = server.ended("ended").text.removesuffix("\nKilled")  # which some shells add
        assert told == (
            "ZooKeeper server 1 ended, killed by signal 9; it printed last, which need not be about that: " + lately
        )
        server.kill()


def test_the_pause_before_a_server_is_started_again_doubles_while_it_ends_soon() -> None:
    pause, now_s, pauses = RestartPause(0.5, 30.0, 60.0), 1000.0, []
    for _ in range(8):
        pauses.append(pause.ended(now_s))
        assert pause.until_s == now_s + pauses[-1]
        now_s += 40
        pause.started(now_s)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert pause.ended(now_s + 60) == 0.5


def test_replaced_tls_files_are_taken_without_a_restart_once_key_and_certificate_fit(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    files, other = ours.node("zookeeper"), ours.node("other")
    with ZooKeeperEnsemble(tmp_path / "zookeeper", tick_ms=500, tls=files) as ensemble:
        ensemble.start(60.0)
        server = ensemble.servers[0]
        before = shown_by(server.address, files)
        assert ensemble.tend() == []
        replace(files.certificate, other.certificate)
        [told] = ensemble.tend()
        assert "can't be used, those before are still in use" in told
        assert ensemble.tend() == []
        replace(files.key, other.key)
        assert ensemble.tend() == ["the TLS files were replaced: the servers of ZooKeeper use them for new connections"]
        block_until(lambda: shown_by(server.address, files) != before, "the server shows its new certificate")
        assert server.is_serving()


def shown_by(address: HostPort, files: TlsFiles) -> bytes | None:
    """Return the certificate that a server shows."""
    context = TlsIdentity(files).dialling()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((address.host, address.port), 10.0) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as made,
    ):
        return made.getpeercert(binary_form=True)


def test_a_server_that_does_not_come_up_tells_what_it_printed(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path) as ensemble:
        (tmp_path / "zookeeper-1" / "data" / "version-2").mkdir(parents=True)
        (tmp_path / "zookeeper-1" / "data" / "version-2" / "log.1").write_bytes(b"no log of ZooKeeper's")
        with pytest.raises(ZooKeeperEnded, match=r"(?s)server 1 did not start: .*(Exception|ERROR)"):
            ensemble.start(60.0)
    block_until(lambda: not running_in(tmp_path), "what watches the server's standard input has ended, too")


def test_a_directory_is_one_ensembles(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path) as first, ZooKeeperEnsemble(tmp_path) as second:
        first.start(60.0)
        with pytest.raises(DirectoryInUse):
            second.start(60.0)
        assert first.servers[0].is_serving()
        first.stop()
        second.start(60.0)


@pytest.mark.exhaustive  # of names
@pytest.mark.parametrize("name", ["jürgen", "back\\slash", "日本 trailing ", "a=b:c#d"])
def test_data_are_in_the_directory_that_was_named_whatever_letters_it_has(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    with ZooKeeperEnsemble(directory) as ensemble:
        ensemble.start()
    assert [path.relative_to(directory) for path in tmp_path.rglob("version-2")] == [Path("zookeeper-1/data/version-2")]
    assert [path.name for path in tmp_path.iterdir()] == [name]
