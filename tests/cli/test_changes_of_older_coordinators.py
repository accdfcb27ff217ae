"""Every command that changes a coordinator's values changes nothing while nodes know that it is of an older state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main

from polonaise.admin.belief import later_noted, not_asked
from polonaise.admin.headresets import HeadState, ask_reset
from polonaise.admin.opening import opened_coordinator
from polonaise.admin.servers import move_owner
from polonaise.cli.application import application
from polonaise.coordination import Coordinator
from polonaise.coordination.rebuilding import NodeAnswer, Noted, Promised
from polonaise.coordination.values import (
    ClusterDescription,
    Engagement,
    ExpectedServer,
    ExpectedServers,
    HeadReset,
    Registration,
)
from polonaise.errors import (
    CertificateRefused,
    ConnectionLost,
    CoordinatorOutdated,
    PolonaiseError,
    TlsNotSpoken,
    TlsRequired,
    UnsupportedVersion,
)
from polonaise.host import Host
from rigs.cluster import unserved
from rigs.shell import Shell

KEY = bytes(range(16))
NODES = {name: f"127.0.0.1:{port}" for port, name in enumerate("abcde", 1)}
SHARED = replace(ClusterDescription.new(KEY, 3, NODES), copies=3, topics={"t": (3,)})

CHANGING = {
    "cluster delete": ("--confirm", KEY.hex()),
    "cluster require": ("--copies", 0),
    "topic create": ("u",),
    "topic add-partitions": ("t", "--partitions", 1),
    "topic require": ("t", "--copies", 0),
    "storage zone": ("a", "north"),
    "storage move": ("a", "127.0.0.1:9"),
    "storage add": ("f", "127.0.0.1:9"),
    "storage drain": ("a",),
    "storage remove": ("e",),
    "storage clean": ("d",),
    "storage balance": (),
    "partition add-copy": (0, "d"),
    "partition remove-copy": (0, "a", "--force"),
    "partition replace": (0, "--from", "a", "--to", "d", "--yes"),
    "partition cancel-change": (1,),
    "server remove": ("there",),
}
"""By command, arguments with which it would change something."""
WITH_NODES = {"partition move", "partition reset-head"}
"""Those that ask nodes before they change anything: what they change by is tried itself below."""
READING = {
    "cluster status", "cluster safe-to-stop", "server list", "storage list", "partition list", "partition describe",
    "topic list", "topic describe",
}  # fmt: skip
OTHERS = {
    "cluster create": "makes values only where there are none",
    "cluster recover": "makes values only where there are none",
    "cluster backup": "has its own refusal, which --force lifts",
    "server run": "a server knows by itself what it has seen, and sessions are fenced",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Return the names of all commands that take the address of a coordinator."""
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))
    if any("--coordinator" in parameter.opts for parameter in command.params):
        yield " ".join(path)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A coordinator of a cluster whose servers say that it is of an older state."""
    address = unserved(tmp_path / "coordinator", SHARED)
    cancelled = "cancel-change" in request.node.name

    async def fill() -> None:
        async with opened_coordinator(address) as (_, coordinator):
            for partition in range(SHARED.total):
                current = await coordinator.partition(partition)
                pending = ("a", "b", "d") if partition == 1 and cancelled else None
                engaged = {name: Engagement(1) for name in "abc"}
                changed = replace(current.value, members=("a", "b", "c"), next=pending, session=1, engagements=engaged)
                await coordinator.set_partition(partition, changed, current.version)
            await coordinator.expect_server("there", ExpectedServer(1, "127.0.0.1:8"))

    asyncio.run(fill())
    monkeypatch.setattr("polonaise.admin.cluster.disbelief", lambda *_: "it is not believed by server 3")
    return address


def kept(tmp_path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in (tmp_path / "coordinator").iterdir() if each.is_file()}


def test_every_command_with_a_coordinator_is_known_here_as_one_that_changes_or_reads() -> None:
    known = {*CHANGING, *WITH_NODES, *READING, *OTHERS}
    assert {*commands(typer.main.get_command(application))} == known


async def marked(address: str) -> None:
    """Mark the value of partition 0 as servers do which find that it is of an older state."""
    async with opened_coordinator(address) as (_, coordinator):
        current = await coordinator.partition(0)
        assert await coordinator.set_partition(0, replace(current.value, outdated=1), current.version) is not None


MARKED = "the coordinator was put back to an older state, and its values are older than the storage nodes know, of "


@pytest.mark.exhaustive  # of commands
@pytest.mark.parametrize("command", CHANGING)
def test_nothing_is_changed_where_a_value_is_marked_as_older_though_no_node_answers(
    shell: Shell, tmp_path: Path, place: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    asyncio.run(marked(place))
    before = kept(tmp_path)
    asked = (*command.split(" "), *CHANGING[command], "--coordinator", place)
    shell.refuses(*asked, code="coordinator_outdated", naming=f"{MARKED}partitions 0: put the latest state back")
    assert kept(tmp_path) == before


LISTS = ["topic list", "topic describe t", "storage list", "server list", "partition list", "partition describe 0"]


@pytest.mark.parametrize("command", LISTS)
def test_what_is_listed_of_a_coordinator_that_is_marked_as_older_has_a_warning_beside_it(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    place = unserved(tmp_path / "coordinator", SHARED)
    asked = (*command.split(" "), "--json", "--coordinator", place)
    assert "WARNING" not in shell.run(*asked).errors
    asyncio.run(marked(place))
    said = shell.run(*asked)
    assert said.status == 0
    assert said.errors.startswith("WARNING: ")
    assert MARKED in said.errors


@pytest.mark.parametrize("command", [*LISTS, "cluster status"])
def test_what_is_listed_of_a_coordinator_that_servers_do_not_believe_has_a_warning_beside_it(
    shell: Shell, place: str, command: str
) -> None:
    said = shell.run(*command.split(" "), "--coordinator", place)
    assert "it is not believed by server 3" in (said.output if command == "cluster status" else said.errors)
    assert command == "cluster status" or said.errors.startswith(f"WARNING: {place}: ")


@pytest.mark.parametrize("command", ["topic describe new", "partition describe 9"])
def test_what_an_older_coordinator_does_not_know_is_told_with_a_warning(shell: Shell, place: str, command: str) -> None:
    said = shell.run(*command.split(" "), "--coordinator", place)
    assert said.status != 0
    assert said.errors.startswith(f"WARNING: {place}: it is not believed by server 3\n")


@pytest.mark.parametrize(
    "command",
    [
        "storage drain nosuch", "storage drain a", "partition replace 0 --from a --to b", "partition remove-copy 0 a",
        "partition reset-head 0 --to 1",
    ],
)  # fmt: skip
def test_an_older_state_is_told_before_all_that_a_change_would_be_refused_or_asked_for(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    place = unserved(tmp_path / "coordinator", SHARED)
    asyncio.run(marked(place))
    shell.refuses(*command.split(" "), "--coordinator", place, code="coordinator_outdated", naming=MARKED)


@pytest.mark.exhaustive  # of commands
@pytest.mark.parametrize("command", CHANGING)
def test_nothing_is_changed_in_a_coordinator_of_an_older_state(
    shell: Shell, tmp_path: Path, place: str, command: str
) -> None:
    before = kept(tmp_path)
    asked = (*command.split(" "), *CHANGING[command], "--coordinator", place)
    shell.refuses(*asked, code="coordinator_outdated", naming="it is not believed by server 3. The change")
    assert kept(tmp_path) == before


def test_an_owner_is_moved_and_a_head_reset_only_in_a_coordinator_that_is_believed(tmp_path: Path, place: str) -> None:
    async def move(host: Host, coordinator: Coordinator) -> None:
        await move_owner(host, coordinator, 0, "7", 10)

    async def reset(_: Host, coordinator: Coordinator) -> None:
        current = await coordinator.partition(0)
        state = HeadState(0, "", [], [], -1, current.value, current.version)
        await ask_reset(coordinator, state, HeadReset(-1, "a", -1, 1), 10)

    async def scenario() -> None:
        async with opened_coordinator(place) as (_, server):
            await server.register(Registration(7, "127.0.0.1:8"))
            before = kept(tmp_path)
            for change in (move, reset):
                async with opened_coordinator(place) as opened:
                    with pytest.raises(CoordinatorOutdated, match="it is not believed by server 3"):
                        await change(*opened)
            assert kept(tmp_path) == before

    asyncio.run(scenario())


def storage_tells(monkeypatch: pytest.MonkeyPatch, health: Callable[[str], dict[str, int]]) -> None:
    """Have storage nodes answer with this health, by their addresses."""

    async def told(_: object, address: str, *__: object) -> dict[str, int]:
        return health(address)

    monkeypatch.setattr("polonaise.admin.cluster.ask_health", told)
    monkeypatch.setattr("polonaise.admin.cluster.storage_troubles", lambda _: ())
    monkeypatch.setattr("polonaise.admin.cluster.why_not_writing", lambda _: ())


def test_a_storage_node_that_noted_a_later_description_tells_while_no_server_answers(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = unserved(tmp_path / "coordinator", SHARED)
    noted = 7
    storage_tells(monkeypatch, lambda address: {"noted": noted} if address == NODES["b"] else {})
    create = ("topic", "create", "u", "--coordinator", place)
    shell.refuses(*create, code="coordinator_outdated", naming="description is of version 0, and b noted version 7")
    noted = 0
    assert shell.run(*create).status == 0


@pytest.mark.parametrize("command", ["storage remove", "storage balance", "cluster backup", "topic list"])
def test_a_copy_that_promised_a_later_session_tells_while_no_server_answers(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    place = unserved(tmp_path / "coordinator", SHARED)
    arguments = {"storage remove": ("e",), "cluster backup": (tmp_path / "backup",)}.get(command, ())
    asked = (*command.split(" "), *arguments, "--coordinator", place)
    promised = {0: Promised(5, 5), 1: Promised(7, 5), 2: None, 3: Promised(-1, -1)}
    answers = [("e", NodeAnswer(KEY, Noted(), promised))]

    async def told(_: object, address: str, __: float) -> tuple[str, NodeAnswer]:
        if address != NODES["e"]:
            raise ConnectionLost("nobody there")
        return answers[-1]

    async def given_out() -> None:
        async with opened_coordinator(place) as (_, coordinator):
            for partition in range(SHARED.total):
                current = await coordinator.partition(partition)
                await coordinator.set_partition(partition, replace(current.value, session=5), current.version)

    asyncio.run(given_out())
    storage_tells(monkeypatch, lambda _: {})
    monkeypatch.setattr("polonaise.admin.belief.ask_noted", told)
    words = "of partitions 1 the copies on e know later sessions"
    if command == "topic list":
        said = shell.run(*asked)
        assert said.errors.startswith("WARNING: ")
        assert words in said.errors
    else:
        shell.refuses(*asked, code="coordinator_outdated", naming=words)
    for name, key, fence in (("e", bytes(16), 7), ("d", KEY, 7), ("e", KEY, 5)):
        answers.append((name, NodeAnswer(key, Noted(), {1: Promised(fence, 5)})))
        said = shell.run("topic", "list", "--coordinator", place)
        assert (said.status, said.errors) == (0, ""), "another cluster's, another node, or no later session"


def test_notes_that_are_not_later_and_nodes_that_tell_nothing_raise_no_doubt() -> None:
    assert later_noted({"a": {"noted": 4}, "b": {}, "c": CoordinatorOutdated("no answer")}, 4) == ""
    assert "b, c noted version 6" in later_noted({"a": {"noted": 4}, "b": {"noted": 5}, "c": {"noted": 6}}, 4)


REFUSED = CertificateRefused("the certificate of 'n' is for server, and not for a client: use one with both")


@pytest.mark.exhaustive  # of commands
@pytest.mark.parametrize("command", CHANGING)
def test_nothing_is_changed_where_all_nodes_refuse_the_certificate_with_which_they_are_asked(
    shell: Shell, tmp_path: Path, place: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()

    async def refuse(*_: object) -> PolonaiseError:
        return REFUSED

    monkeypatch.setattr("polonaise.admin.cluster.ask_health", refuse)
    before = kept(tmp_path)
    asked = (*command.split(" "), *CHANGING[command], "--coordinator", place)
    shell.refuses(
        *asked, code="certificate_refused", naming="nobody could be asked whether it holds the latest state: server 1"
    )
    assert kept(tmp_path) == before


SILENT = ConnectionLost("it is stopped")


@pytest.mark.parametrize("fault", [TlsRequired, TlsNotSpoken, UnsupportedVersion, CertificateRefused])
def test_who_is_there_and_could_not_be_asked_counts_unless_another_one_was(fault: type[PolonaiseError]) -> None:
    there, expected = fault("why"), ExpectedServers({"s1": ExpectedServer(1, "127.0.0.1:8")})

    def of(servers: dict[int, Any], storage: dict[str, Any]) -> str:
        why = not_asked(servers, storage, expected)
        assert why is None or isinstance(why, fault)
        return "" if why is None else why.text

    assert of({1: there}, {"a": {}}) == "server 1 (s1): why", "servers know more than storage nodes have noted"
    assert of({1: SILENT}, {"a": SILENT, "b": there}) == "storage node b: why"
    assert of({1: there, 2: {}}, {"a": there}) == ""
    assert of({1: SILENT}, {"a": {}, "b": there}) == ""
    assert of({1: SILENT}, {"a": SILENT}) == ""
    assert of({}, {}) == ""
