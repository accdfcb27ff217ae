"""What health tells of a network: a server that is cut off, a storage node that is, and packets that are lost."""

from __future__ import annotations

from typing import Any

import pytest

from polonaise.node.condition import server_troubles, storage_troubles, why_not_reached

REACHED: dict[str, Any] = {"connected": True, "error": "", "silent_s": 0, "resent_to": 0.0}
SILENT = {**REACHED, "silent_s": 2.7}
GONE = {**REACHED, "connected": False, "error": "connection refused"}


def troubles(**storage: dict[str, Any]) -> list[str]:
    return server_troubles({"server": 1, "storage": storage, "partitions": {}})


@pytest.mark.parametrize(("node", "why"), [(REACHED, ""), (SILENT, "silent for 2.7 s"), (GONE, "connection refused")])
def test_why_a_storage_node_is_not_reached(node: dict[str, Any], why: str) -> None:
    assert why in why_not_reached(node)
    assert bool(why) == bool(why_not_reached(node))


def test_a_node_of_an_older_version_is_reached_as_long_as_it_is_connected() -> None:
    assert why_not_reached({"connected": True, "error": ""}) == ""
    assert why_not_reached({"connected": False, "error": ""}) == "not tried yet"


def test_a_server_that_reaches_no_storage_node_is_told_of_itself() -> None:
    (line,) = troubles(a=SILENT, b=GONE, c=SILENT)
    assert line == "the server reaches none of the storage nodes (a, b, c): check its network"


def test_one_storage_node_that_is_not_reached_is_not_the_servers_trouble() -> None:
    assert troubles(a=SILENT, b=REACHED, c=REACHED) == []
    assert troubles(a=GONE) == []


def test_packets_that_are_lost_are_told_with_the_nodes_that_they_were_sent_to() -> None:
    (line,) = troubles(a={**REACHED, "resent_to": 0.2}, b=REACHED, c={**REACHED, "resent_to": 0.06})
    assert line.startswith("packets to storage nodes a, c are lost on the way: up to 20 % had to be sent again")
    assert troubles(a={**REACHED, "resent_to": 0.04}) == []


def test_a_storage_node_tells_of_packets_to_servers() -> None:
    (line,) = storage_troubles({"directory": "/d", "resent": {"3": 0.5}})
    assert line.startswith("packets to server 3 are lost on the way: up to 50 %")
    assert "check the network, and whether a process there, or its machine, was stopped" in line
    assert storage_troubles({"directory": "/d", "resent": {"3": 0.01}}) == []
