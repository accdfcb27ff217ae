"""`polonaise log health` and `/health` of a server judge the same document alike, whatever is wrong."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import polonaise
from polonaise.errors import ProtocolError
from polonaise.host.real import RealClock
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.reasons import OF_PLAYERS, OF_SERVERS, OF_STORAGE, Reason
from rigs.shell import Shell

LOG = "memory:log"
READY: dict[str, Any] = {
    "ready": True, "engaged": ["a", "b"], "members": ["a", "b"], "committed": 3, "generation": 1, "session": 1,
    "waits_for": "",
}  # fmt: skip
SCRUB: dict[str, Any] = {
    "bytes_per_s": 0, "rounds": 0, "found": 0, "repaired": 0, "damages": [], "started_us": 0, "finished_us": 0,
}  # fmt: skip
FRAGMENTS_SCRUB = {**SCRUB, "trouble": ""}
DAMAGE = {"partition": 0, "what": "batch 7 is rotten", "repaired_us": 0, "why": ""}
LINK: dict[str, Any] = {"connected": True, "error": ""}
NODES: dict[str, Any] = {"a": LINK, "b": LINK}
WELL: dict[str, Any] = {"server": 1, "storage": NODES, "partitions": {"0": READY}, "replication_factor": 2}

DOCUMENTS: dict[Reason, dict[str, Any]] = {
    Reason.PARTITION_NOT_READY: {"partitions": {"0": {**READY, "ready": False, "waits_for": "a quorum"}}},
    Reason.REPLICA_LEFT_OUT: {"partitions": {"0": {**READY, "engaged": ["a"]}}},
    Reason.COPIES: {"replication_factor": 3},
    Reason.NO_SPARE: {"partitions": {"0": {**READY, "required": "2 copies", "stops_without": ["a"]}}},
    Reason.DAMAGE: {"storage": {**NODES, "a": {**LINK, "scrub": {**SCRUB, "found": 1, "damages": [DAMAGE]}}}},
    Reason.FRAGMENTS_UNREADABLE: {"fragments_trouble": "not mounted"},
    Reason.FRAGMENTS_MISSING: {"fragments_missing": {"0": "ids from 5 on are gone"}},
    Reason.FRAGMENT_DAMAGE: {"fragments_scrub": {**FRAGMENTS_SCRUB, "damages": [DAMAGE]}},
    Reason.UNREACHABLE: {"unreachable": "its socket was removed"},
    Reason.TLS: {"tls": "the certificate has expired"},
    Reason.CLOCK: {"clock": {"trouble": "it is 3 hours ahead"}},
    Reason.TIMES_STAND_STILL: {"partitions": {"0": {**READY, "times_stand_still_until_us": 1}}},
    Reason.COORDINATOR: {"coordinator": "it does not answer"},
    Reason.COORDINATOR_SERVER: {"coordinator_servers": ["ZooKeeper server z1 does not serve"]},
    Reason.GIVEN_UP: {"given_up": [1], "given_up_why": {"1": "it reaches no quorum"}},
    Reason.NAMESAKE: {"namesake": "another server has its name"},
    Reason.MISSING_SERVER: {"missing_servers": {"S1": "s1:7000"}},
    Reason.CUT_OFF: {"storage": {name: {**LINK, "silent_s": 5.0} for name in NODES}},
    Reason.PACKETS_LOST: {"storage": {**NODES, "a": {**LINK, "resent_to": 0.5}}},
}
"""For each reason that a server's health can have: what its document says then."""


class Observed:
    """As much of a server as its `/health` looks at."""

    followed = True

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        waits = "" if (health := document["partitions"]["0"])["ready"] else health["waits_for"]
        owner = SimpleNamespace(readiness=SimpleNamespace(trouble=lambda now_s: waits), session=object())
        self.partitions = {0: SimpleNamespace(owner=owner)}

    async def checked_health(self) -> dict[str, Any]:
        return self._document


def face_of(document: dict[str, Any]) -> dict[str, Any]:
    server: Any = Observed(document)
    return asyncio.run(ObservedServer(lambda: server, RealClock()).health())


def told(shell: Shell, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any]) -> Any:
    async def health(log: polonaise.Log, partition: int, *, timeout: float) -> Any:
        return document

    shell.cluster(LOG)
    monkeypatch.setattr(polonaise.Log, "health", health)
    return shell.run("log", "health", LOG)


def test_each_reason_is_one_of_a_document() -> None:
    assert DOCUMENTS.keys() == OF_SERVERS | {Reason.DAMAGE}
    assert set(Reason) == OF_SERVERS | OF_STORAGE | OF_PLAYERS, "others are told by storage nodes and players alone"


def test_a_server_that_is_well_is_told_as_well(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert face_of(WELL)["status"] == "ok"
    said = told(shell, monkeypatch, WELL)
    assert said.status == 0
    assert "server 1" not in said.output


@pytest.mark.parametrize("reason", DOCUMENTS)
def test_log_health_ends_as_health_judges(shell: Shell, monkeypatch: pytest.MonkeyPatch, reason: Reason) -> None:
    document = {**WELL, **DOCUMENTS[reason]}
    face = face_of(document)
    assert face["reasons"] == [reason]
    assert face["status"] == ("not_ready" if reason is Reason.PARTITION_NOT_READY else "degraded")
    said = told(shell, monkeypatch, document)
    assert said.status == {"not_ready": 1, "degraded": 3}[face["status"]], "the exit status goes by the same"
    (line,) = [line for lines in face["problems"].values() for line in lines]
    shown = " ".join(said.output.split())
    assert all(word in shown for word in line.split()), (line, said.output)


@pytest.mark.parametrize(
    "reason",
    [
        Reason.FRAGMENTS_UNREADABLE, Reason.UNREACHABLE, Reason.TLS, Reason.CLOCK, Reason.COORDINATOR,
        Reason.COORDINATOR_SERVER, Reason.GIVEN_UP, Reason.NAMESAKE, Reason.MISSING_SERVER, Reason.CUT_OFF,
        Reason.PACKETS_LOST,
    ],
)  # fmt: skip
def test_what_ails_the_whole_server_is_told_of_the_server(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    document = {**WELL, **DOCUMENTS[reason]}
    problems = face_of(document)["problems"]
    assert list(problems) == ["server"]
    assert f"server 1: {problems['server'][0]}" in told(shell, monkeypatch, document).output


def test_a_scrub_of_the_fragments_that_fails_is_told_of_the_server_that_owns_some() -> None:
    scrub = {"fragments_scrub": {**FRAGMENTS_SCRUB, "trouble": "no answer"}}
    assert face_of({**WELL, **scrub})["problems"] == {"server": ["the fragments are not scrubbed: no answer"]}


def test_a_clock_of_the_one_who_asks_is_told_once() -> None:
    document = {**WELL, "client": {"clock_ahead_s": 60.0}}
    (line,) = face_of(document)["problems"]["server"]
    assert "the clock of this machine is" in line


@pytest.mark.parametrize("scrub", [{}, {"damages": []}, {"damages": [{"partition": 0}]}, {**SCRUB, "damages": {}}])
def test_what_a_storage_node_of_another_version_tells_harms_nothing(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, scrub: dict[str, Any]
) -> None:
    document = {**WELL, "storage": {**NODES, "a": {**LINK, "scrub": scrub}}}
    assert face_of(document)["status"] == "ok"
    assert told(shell, monkeypatch, document).status == 0


def test_how_far_a_scrub_of_another_version_is_is_not_understood(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {**WELL, "storage": {**NODES, "a": {**LINK, "scrub": {"damages": []}}}, "fragments_scrub": {"a": 1}}
    output = told(shell, monkeypatch, document).output
    assert "scrub of a: not understood" in output
    assert "scrub of fragments by server 1: not understood" in output


@pytest.mark.parametrize(
    "other",
    [
        {"partitions": {"0": {}}},
        {"partitions": ["0"]},
        {"storage": {"a": {}}},
        {"storage": ["a"]},
        {"fragments_scrub": {**FRAGMENTS_SCRUB, "damages": [{"partition": 0}]}},
        {"clock": 7},
    ],
)
def test_a_servers_document_of_another_version_is_told_as_that(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    said = told(shell, monkeypatch, {**WELL, **other})
    assert said.status == 1
    why = "the owner of partition 0 answered, but its health has another form: it may be of another version"
    assert f"[{ProtocolError.code}] {why}" in said.errors
