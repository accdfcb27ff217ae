"""The commands of topics, on a cluster's coordinator without servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from polonaise.admin.opening import opened_coordinator
from polonaise.coordination.values import ClusterDescription
from rigs.cluster import unserved
from rigs.shell import Shell


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    return "--coordinator", unserved(tmp_path / "coordinator", ClusterDescription(bytes(16), 1, ("a:1",)))


def test_topics_are_created_listed_and_described(shell: Shell, at: tuple[str, str]) -> None:
    said = shell.run("topic", "create", "payments", "--partitions", "2", *at)
    assert said.output.splitlines() == [
        "topic payments created: 2 partitions, ids 1-2",
        "2 of them have no owner yet: a server that runs takes them within a minute",
    ]
    shell.run("topic", "create", "orders", *at)
    grown = shell.run("topic", "add-partitions", "payments", "--partitions", "1", "--json", *at)
    assert grown.objects == [
        {"topic": "payments", "partitions": 3, "ids": [1, 2, 4], "owners": ["", "", ""], "required": "", "added": 1}
    ]
    assert shell.run("topic", "list", *at).rows == [
        ["orders", "1", "3", "0", "-"],
        ["payments", "3", "1-2,", "4", "0", "-"],
    ]
    assert [each["topic"] for each in shell.run("topic", "list", "--json", *at).objects] == ["orders", "payments"]
    assert shell.run("topic", "describe", "payments", *at).rows == [["0", "1", "-"], ["1", "2", "-"], ["2", "4", "-"]]
    assert shell.run("topic", "describe", "orders", "--json", *at).objects[0]["ids"] == [3]


def test_topics_that_can_not_be(shell: Shell, at: tuple[str, str]) -> None:
    shell.run("topic", "create", "payments", *at)
    shell.refuses("topic", "create", "payments", *at, code="topic_exists", naming="topic payments exists")
    shell.refuses("topic", "create", "a/b", *at, code="bad_option", naming="addresses can't hold")
    shell.refuses("topic", "describe", "nope", *at, code="unknown_topic", naming="it has payments")
    more = ("topic", "add-partitions", "nope", "--partitions", "1")
    shell.refuses(*more, *at, code="unknown_topic", naming="polonaise topic create nope")
    shell.refuses(*more, code="bad_option", naming="no cluster is named")
    assert shell.run("topic", "list", *at).rows == [["payments", "1", "1", "0", "-"]]


def test_copies_are_required_of_a_topic(shell: Shell, at: tuple[str, str]) -> None:
    shell.run("topic", "create", "payments", *at)

    async def demand() -> None:
        """As the command does once the nodes answer: here none runs."""
        async with opened_coordinator(at[1]) as (_, coordinator):
            current = await coordinator.description()
            await coordinator.set_description(current.value.requiring(2, 0, "payments"), current.version)

    asyncio.run(demand())
    assert shell.run("topic", "list", *at).rows == [["payments", "1", "1", "0", "2", "copies"]]
    said = shell.run("topic", "describe", "payments", *at)
    assert said.output.splitlines()[-1] == "commits need 2 copies, by `polonaise topic require`"
    assert shell.run("topic", "describe", "payments", "--json", *at).objects[0]["required"] == "2 copies"
    # To take it back needs no node. But without a server no session starts that acts by it.
    command = ("topic", "require", "payments", "--copies", 0, "--timeout", 1, *at)
    said = shell.run(*command)
    assert said.status == 1
    assert said.output.splitlines() == [
        "commits to topic payments need what the whole cluster requires, and nothing else",
        "partition 1 does not act by it yet: it has had no session yet",
    ]
    assert shell.run(*command, "--json").objects[0]["topic"] == "payments"


def test_what_a_topic_cant_have_is_not_required(shell: Shell, at: tuple[str, str]) -> None:
    shell.run("topic", "create", "payments", *at)
    refused = ("topic", "require")
    shell.refuses(*refused, "nope", "--copies", 1, *at, code="unknown_topic", naming="it has payments")
    for name in ("", "a/b"):
        shell.refuses(*refused, name, "--copies", 0, *at, code="bad_option", naming="invalid name of a topic")
    shell.refuses(*refused, "payments", "--copies", 9, *at, code="bad_option", naming="9 copies are required")
    shell.refuses(*refused, "payments", "--copies", 1, *at, code="insufficient_replicas", naming="Nothing was changed")
    shell.refuses(*refused, "payments", "--copies", 1, code="bad_option", naming="no cluster is named")
