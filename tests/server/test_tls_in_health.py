"""What is wrong with a node's TLS files is in its health."""

from __future__ import annotations

from pathlib import Path

from polonaise.host import network_trouble
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity
from polonaise.node.condition import conditions_in, server_troubles, storage_troubles
from rigs.tls import Authority

SAID = "the certificate 'node.pem' expires on 2027-01-01: replace the file"
PARTITION = {"ready": True, "engaged": ["a"], "committed": 3, "generation": 1, "waits_for": ""}


def test_a_storage_node_tells_of_its_files() -> None:
    health = {"gone": "", "tls": SAID, "unavailable": {}, "directory": "d", "scrub": {"damages": []}}
    assert storage_troubles(health) == [SAID]
    assert storage_troubles({**health, "tls": ""}) == []


def test_a_server_tells_of_its_files() -> None:
    answer = {"server": 1, "storage": {}, "partitions": {"0": PARTITION}, "tls": SAID}
    assert conditions_in(answer)[0].server_troubles == [SAID]
    assert conditions_in(answer)[0].troubles == [], "it is no matter of one partition"
    assert conditions_in({**answer, "tls": ""})[0].server_troubles == []


def test_a_server_without_partitions_tells_of_its_files_too() -> None:
    answer = {"server": 1, "storage": {}, "partitions": {}, "tls": SAID, "coordinator": "it does not answer"}
    assert server_troubles(answer) == ["the server goes on without its coordinator: it does not answer", SAID]
    assert server_troubles({**answer, "coordinator": "", "not_owning": "it owns nothing"}) == ["it owns nothing", SAID]
    assert server_troubles({**answer, "coordinator": "", "tls": ""}) == []


def test_a_host_without_tls_has_nothing_to_tell() -> None:
    host = RealHost()
    assert network_trouble(host.network) == ""
    host.close()


def test_a_host_tells_what_is_wrong_with_its_files(tmp_path: Path) -> None:
    files = Authority(tmp_path / "ours").node(days=3)
    host = RealHost(tls=TlsIdentity(files))
    assert f"the certificate {files.certificate!r} expires on " in network_trouble(host.network)
    host.close()
