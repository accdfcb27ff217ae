"""Nodes that answer with what is not understood, or under another name, are told with that, and nothing else fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.admin.asking import ask_health
from polonaise.admin.cluster import ClusterObserver
from polonaise.admin.coordinatorbackup import _running, recover
from polonaise.coordination.rebuilding import Noted
from polonaise.coordination.values import ClusterDescription, ExpectedServer, ExpectedServers
from polonaise.errors import RecoveryUnsafe
from polonaise.wire.messages import NOTES_VERSION, ROLE_SERVER, ROLE_STORAGE, NotedAre
from rigs.coordinator import Scene, in_a_scene
from rigs.observing import observed, well
from rigs.scenarios import idle
from rigs.town import Town, in_a_town

KEY = bytes(range(16))


def told(name: Any, **more: Any) -> bytes:
    """What a storage node tells that has noted nothing."""
    return json.dumps({"name": name, "cluster": KEY.hex(), "note": {}, "promises": {}, **more}).encode()


async def refusal(scene: Scene, monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, bytes]) -> str:
    """Return why nothing is recovered from storage nodes at these addresses, which tell this."""

    @asynccontextmanager
    async def connected(_: object, address: str, *__: object) -> AsyncIterator[Any]:
        async def request(*_: object, **__: object) -> NotedAre:
            return NotedAre(answers[address])

        yield SimpleNamespace(peer=SimpleNamespace(version_max=NOTES_VERSION), request=request)

    monkeypatch.setattr("polonaise.admin.asking.connected", connected)
    host, coordinator = scene.machine.start(idle).host, await scene.open()
    with pytest.raises(RecoveryUnsafe) as refused:
        await recover(host, coordinator, None, {address.partition(":")[0]: address for address in answers}, 1.0)
    return refused.value.text


ODD = {
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"7",
    "nothing but its name": b'{"name": "b"}',
    "too deep": b"[" * 100_000,
    "a list for its name": told(["b"]),
    "too little of a promise": told("b", promises={"0": [1]}),
    "no partition": told("b", promises={"x": None}),
    "no value": told("b", note={"partitions": {"0": 3}}),
    "no key": told("b", cluster=3),
}


@pytest.mark.parametrize("what", ODD)
@in_a_scene
async def test_a_storage_node_that_tells_what_is_not_understood_is_named_with_that(
    scene: Scene, *, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    why = await refusal(scene, monkeypatch, {"a:1": told("a"), "b:1": ODD[what]})
    assert "no storage node that answers has noted the cluster's description" in why
    assert "b: [protocol_error] what it has noted has another form" in why


@in_a_scene
async def test_a_storage_node_at_whose_address_another_one_answers_is_named_with_that(
    scene: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = ClusterDescription.new(KEY, 1, {"a": "first:1", "b": "b:1"})
    note = Noted(description, 0).document()
    why = await refusal(scene, monkeypatch, {"first:1": told("a", note=note), "b:1": told("c")})
    assert why.endswith(". b: storage node c answers at b:1: give its own address with --storage")
    assert "first:" not in why, "it answered, whatever name it was given"


@pytest.mark.parametrize("health", [{}, {"server": None}, {"server": "x"}])
@in_a_scene
async def test_a_server_that_answers_and_does_not_tell_its_number_runs(
    scene: Scene, *, monkeypatch: pytest.MonkeyPatch, health: dict[str, object]
) -> None:
    async def answer(*_: object) -> dict[str, object]:
        return health

    monkeypatch.setattr("polonaise.admin.coordinatorbackup.ask_health", answer)
    expected = ExpectedServers({"s1": ExpectedServer(1, "s1:1")})
    assert await _running(scene.machine.start(idle).host, expected, KEY, 1.0) == {1: "s1:1"}


def changed(value: Any) -> Iterator[Any]:
    """Return a document in each form that has something else at one place, or nothing."""
    yield from (other for other in (3, "x", None, [], {}, [3], {"a": 3}) if other != value)
    for name in value if isinstance(value, dict) else ():
        rest = {other: each for other, each in value.items() if other != name}
        yield rest
        yield from ({**rest, name: each} for each in changed(value[name]))
    for each in changed(value[0]) if isinstance(value, list) and value else ():
        yield [each, *value[1:]]


@pytest.mark.parametrize("role", [ROLE_SERVER, ROLE_STORAGE])
@in_a_town
async def test_whatever_a_node_tells_of_its_health_a_status_is_shown(
    town: Town, *, monkeypatch: pytest.MonkeyPatch, role: int
) -> None:
    await well(town)
    documents: dict[tuple[int, str], Any] = {}

    async def kept(host: Any, address: str, its: int, *about: Any) -> Any:
        if (its, address) not in documents:
            documents[its, address] = await ask_health(host, address, its, *about)
        return documents[its, address]

    async def look(observer: ClusterObserver) -> int:
        await observer.look()
        node = next(each for each in documents if each[0] == role)
        troubled = 0
        for document in changed(documents[node]):
            if isinstance(document, dict):  # `ask_health` lets nothing else through
                documents[node] = document
                status = await observer.look()
                assert status.document()
                troubled += any("another form" in line for line in status.troubles)
        return troubled

    monkeypatch.setattr("polonaise.admin.cluster.ask_health", kept)
    assert await observed(town, look)
