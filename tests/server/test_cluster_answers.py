"""What a server tells of its cluster: one assignment for all who wait, and only the newest."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from polonaise.coordination.values import Assignment, ClusterDescription, Owner, Versioned
from polonaise.errors import CoordinatorUnavailable, PolonaiseError
from polonaise.server import clusteranswers
from polonaise.server.clusteranswers import ClusterAnswers
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.settings import ServerSettings
from polonaise.testing.memory import MemoryHost
from polonaise.wire.codec import Message
from polonaise.wire.messages import AssignmentIs, GetAssignment, GetUniqueId, HighWaterMark
from polonaise.wire.topics import parse_assignment
from rigs.waiting import nothing_happens_for, time_passes

MINUTE_MS = 60_000


def assigned(version: int) -> Versioned[Assignment]:
    return Versioned(version, Assignment({0: Owner(1, f"server:{version}", version)}))


def answers(coordinator: Any = None, **settings: Any) -> ClusterAnswers:
    host = MemoryHost()
    described = Versioned(1, ClusterDescription.new(b"k" * 16, 1, {"a": "a:1"}))
    trouble = CoordinatorTrouble(host.clock)
    return ClusterAnswers(host, coordinator, ServerSettings(**settings), trouble, 0, described, 0.0)


async def one_that_waits() -> tuple[ClusterAnswers, asyncio.Future[AssignmentIs]]:
    """Return a server's answers, and a request that waits there for a newer assignment."""
    told = answers()
    told.learn(assigned(1))
    waiting = asyncio.ensure_future(answered(told, GetAssignment(1, MINUTE_MS)))
    await time_passes(0)
    return told, waiting


def asked(of: ClusterAnswers, request: Message, **how: Any) -> tuple[Any, Any]:
    """Return what will answer a request that has to wait, and the wait."""
    found = of.answering(request, **how)
    assert found is not None
    assert found[1] is not None
    return found


async def answered(by: ClusterAnswers, request: GetAssignment) -> AssignmentIs:
    answering, waiting = asked(by, request)
    try:
        await waiting
    finally:
        answer = await answering
    assert isinstance(answer, AssignmentIs)
    return answer


async def test_a_thousand_clients_that_wait_are_told_one_encoded_assignment() -> None:
    told = answers()
    told.learn(assigned(1))
    waiting = [asyncio.ensure_future(answered(told, GetAssignment(1, MINUTE_MS))) for _ in range(1_000)]
    await time_passes(0)
    told.learn(assigned(2))
    messages = await asyncio.gather(*waiting)
    assert {message.version for message in messages} == {2}
    assert len({id(message.payload[0]) for message in messages}) == 1
    assert not told._changed._waiting


async def test_a_client_that_was_slow_to_take_its_turn_gets_the_newest_only() -> None:
    told = answers()
    told.learn(assigned(1))
    answering, waiting = asked(told, GetAssignment(1, MINUTE_MS))
    told.learn(assigned(2))
    await waiting
    told.learn(assigned(3))
    answer = await answering
    assert isinstance(answer, AssignmentIs)
    assert [each.generation for each in parse_assignment(answer)] == [3]


async def test_a_client_that_knows_the_newest_or_more_waits_and_is_told_that_there_is_none() -> None:
    told = answers(read_wait_s_max=0.05)
    told.learn(assigned(2))
    for known in (2, 3):
        answer = await answered(told, GetAssignment(known, MINUTE_MS))
        assert (answer.version, answer.partitions, answer.payload) == (2, 0, [b""])


async def test_an_older_assignment_that_was_read_late_is_not_told() -> None:
    told = answers()
    told.learn(assigned(2))
    told.learn(assigned(1))
    assert (await answered(told, GetAssignment(-1, 0))).version == 2


async def test_a_server_that_cannot_read_the_assignment_says_why_and_since_when() -> None:
    told = answers()
    told.note_trouble("no answer from there")
    with pytest.raises(CoordinatorUnavailable, match="not read the assignment yet: no answer from there"):
        await answered(told, GetAssignment(-1, 0))
    told.learn(assigned(1))
    assert (await answered(told, GetAssignment(-1, 0))).trouble == ""
    told.note_trouble("no answer from there")
    await time_passes(0.05)
    answer = await answered(told, GetAssignment(1, 0))
    assert answer.trouble == "no answer from there"
    assert answer.age_ms >= 50
    told.learn(assigned(1))
    assert (await answered(told, GetAssignment(1, 0))).age_ms < 50


async def test_who_waits_at_a_server_that_loses_its_coordinator_is_told_so_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusteranswers, "_TROUBLE_S", 0.05)
    told, waiting = await one_that_waits()
    told.note_trouble("no answer from there")
    answer = await asyncio.wait_for(waiting, 20)
    assert (answer.version, answer.trouble) == (1, "no answer from there")
    assert (await asyncio.wait_for(answered(told, GetAssignment(1, MINUTE_MS)), 20)).trouble
    assert not told._changed._waiting


async def test_a_hiccup_of_the_coordinator_ends_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusteranswers, "_TROUBLE_S", 0.05)
    told, waiting = await one_that_waits()
    told.note_trouble("no answer from there")
    told.learn(assigned(1))
    await nothing_happens_for(0.2)
    assert not waiting.done()
    told.learn(assigned(2))
    assert (await waiting).version == 2


async def test_a_request_that_is_given_up_is_forgotten() -> None:
    told = answers()
    told.learn(assigned(1))
    waiting = asyncio.ensure_future(answered(told, GetAssignment(1, MINUTE_MS)))
    await time_passes(0)
    assert told._changed._waiting
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not told._changed._waiting
    told.learn(assigned(2))


class Hanging:
    """A coordinator that does not answer."""

    trouble = "a:1 is silent"

    async def unique_id(self) -> int:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


async def test_a_coordinator_that_hangs_holds_up_a_unique_id_for_a_bounded_time() -> None:
    answering, waiting = asked(answers(Hanging(), coordinator_s_max=0.05), GetUniqueId())
    with pytest.raises(CoordinatorUnavailable, match=r"no unique id from the coordinator within 0.05 s"):
        await waiting
    answering.close()


@pytest.mark.parametrize("stranger", [True, False])
@pytest.mark.parametrize("known_by", ["connection", "assignment"])
async def test_a_coordinator_that_is_known_to_be_away_is_waited_for_shorter_than_clients_wait_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, known_by: str, *, stranger: bool
) -> None:
    monkeypatch.setattr(clusteranswers, "_KNOWN_TROUBLE_S", 0.05)
    coordinator = Hanging()
    told = answers(coordinator, coordinator_s_max=30.0)
    if known_by == "assignment":
        coordinator.trouble = ""
        told.note_trouble(str(CoordinatorUnavailable("no answer from 10.0.0.1:2181")))
    answering, waiting = asked(told, GetUniqueId(), stranger=stranger)
    with pytest.raises(CoordinatorUnavailable, match=r"no unique id from the coordinator within 0.05 s") as refused:
        await asyncio.wait_for(waiting, 5)
    text = refused.value.text
    assert ("does not reach its coordinator at present: its log and health say why" in text) == stranger
    assert ("a:1 is silent" in text) == (not stranger and known_by == "connection")
    answering.close()


class Counting:
    """A coordinator that gives out ids at once, and counts them."""

    trouble = ""
    given = 0

    async def unique_id(self) -> int:
        self.given += 1
        return self.given


@pytest.mark.slow
async def test_clients_that_ask_for_ids_without_end_are_given_so_many_a_second_by_a_server() -> None:
    coordinator = Counting()
    told = answers(coordinator, unique_ids_per_s=20.0, coordinator_s_max=0.5)
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def one() -> str:
        answering, waiting = asked(told, GetUniqueId(), stranger=True)
        answering.close()
        try:
            await waiting
        except PolonaiseError as error:
            return error.code
        return "given"

    codes = Counter(await asyncio.gather(*(one() for _ in range(100))))
    assert set(codes) == {"given", "coordinator_unavailable", "overloaded"}
    assert 40 <= codes["given"] <= 42 + 20 * (loop.time() - began_s)
    assert codes["given"] == coordinator.given


class Failing:
    """A coordinator that can't be reached."""

    trouble = ""

    async def unique_id(self) -> int:
        raise CoordinatorUnavailable("no answer from 10.0.0.1:2181, whose key is in /etc/secret")


@pytest.mark.parametrize("stranger", [True, False])
async def test_a_client_that_has_named_no_cluster_is_told_codes_of_the_coordinators_errors_and_no_texts(
    stranger: bool,
) -> None:
    told = answers(Failing())
    told.note_trouble(str(CoordinatorUnavailable("no answer from 10.0.0.1:2181")))
    texts: list[str] = []

    async def ask(request: Message) -> Message:
        found = told.answering(request, stranger=stranger)
        assert found is not None
        answering, waiting = found
        try:
            if waiting is not None:
                await waiting
            return await answering
        finally:
            answering.close()

    for request in (GetUniqueId(), GetAssignment(-1, 0)):
        with pytest.raises(CoordinatorUnavailable) as refused:
            await ask(request)
        texts.append(str(refused.value))
    told.learn(assigned(1))
    told.note_trouble(str(CoordinatorUnavailable("no answer from 10.0.0.1:2181")))
    for known in (-1, 1):
        answer = await ask(GetAssignment(known, 0))
        assert isinstance(answer, AssignmentIs)
        texts.append(answer.trouble)
    assert all("[coordinator_unavailable]" in text for text in texts)
    assert [("10.0.0.1" in text) for text in texts] == [not stranger] * 4
    assert [("its log and health say why" in text) for text in texts] == [stranger] * 4, "never a code alone"


def test_other_messages_are_left_to_partitions() -> None:
    assert answers().answering(HighWaterMark()) is None
