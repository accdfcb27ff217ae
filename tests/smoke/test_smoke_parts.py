"""How a smoke test stops a node, kills an archiver, and begins hosts whose name is taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from polonaise_proving.faults import hostfaults as injection
from polonaise_proving.record.failures import SmokeFailed
from polonaise_proving.record.faultkinds import Fault, FaultKind
from polonaise_proving.stages.hosts import hosts as hosts_module
from polonaise_proving.stages.hosts.hosts import NamespaceHosts, NoNetwork
from polonaise_proving.stages.hosts.parts import NodePart


@pytest.mark.parametrize("status", [0, 1, -9])
def test_a_node_that_does_not_stop_gracefully_fails_the_run(status: int) -> None:
    node: Any = SimpleNamespace(pid=7, exit_status=status, log="last words", stop=lambda: None)
    if status:
        with pytest.raises(SmokeFailed, match=f"exit status {status}: last words"):
            NodePart("server-1", node).stop()
    else:
        NodePart("server-1", node).stop()


class Archiver:
    name = "archiver-1"

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.killed: list[int | None] = []

    def ended(self) -> str:
        return ""

    def start(self) -> None:
        self.pid = 8

    def kill(self) -> None:
        self.killed.append(self.pid)


@pytest.mark.parametrize(("pid", "killed"), [(7, 7), (None, 8)])
def test_an_archiver_is_killed_amid_a_run(monkeypatch: pytest.MonkeyPatch, pid: int | None, killed: int) -> None:
    monkeypatch.setattr(injection, "_ARCHIVING_S", 0.0)
    archiver = Archiver(pid)
    town: Any = SimpleNamespace(archiver=archiver, part=lambda name: archiver)
    assert injection.begin(town, Fault(FaultKind.KILL, "archiver-1"))
    assert archiver.killed == [killed]


def test_hosts_whose_name_is_taken_remove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ip(*arguments: str) -> str:
        raise NoNetwork("File exists")

    removed: list[str] = []
    monkeypatch.setattr(hosts_module, "_run", ip)
    monkeypatch.setattr(hosts_module, "remove_namespaces", removed.append)
    with pytest.raises(NoNetwork, match="File exists"):
        NamespaceHosts("plnx", ["x"], "198.18.0")
    assert removed == []
