"""What servers and nodes tell of how they are: partitions, copies, network, TLS files, and the scrub."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from polonaise.admin.logs import conditions
from polonaise.client.log import Log
from polonaise.coordination import Coordinator
from polonaise.errors import NotOwner, PolonaiseError, ProtocolError, UnknownPartition
from polonaise.host import Host, network_trouble
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity
from polonaise.link.connection import Connection, connect
from polonaise.link.protocol.greeting import hello
from polonaise.log.segment import SegmentHeader
from polonaise.node.condition import (
    HealthStatus,
    condition_of,
    conditions_in,
    health_status_of,
    server_troubles,
    storage_troubles,
)
from polonaise.node.reasons import why_not_reached
from polonaise.server.serverhealth import _parsed
from polonaise.wire.codec import NO_PARTITION
from polonaise.wire.messages import ROLE_CLIENT, ROLE_SERVER, Health, HealthIs
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY
from rigs.health import condition_when
from rigs.tls import Authority
from rigs.town import Town, in_an_application


async def health(host: Host, address: str, partition: int) -> dict[str, Any]:
    def make() -> Connection:
        greeting = hello(ROLE_CLIENT, "operator", cluster_key=CLUSTER_KEY)
        return Connection(host, hello=greeting, peer_roles=(ROLE_SERVER,), on_message=lambda *_: None)

    connection = await connect(host, address, make, deadline_s=5)
    try:
        answer = await connection.request(Health(), partition=partition, deadline_s=5)
    finally:
        connection.close()
    assert isinstance(answer, HealthIs)
    told: dict[str, Any] = json.loads(answer.document)
    return told


def told(partition: int, *, owns: bool = True) -> dict[str, Any]:
    """What a server answers that owns partition 0, or nothing."""

    async def story(town: Town) -> dict[str, Any]:
        async def ask(host: Host, _: Coordinator) -> dict[str, Any]:
            if not owns:
                town.server.partitions.clear()
            return await health(host, town.server.address, partition)

        await town.append(b"first")
        return await town.operator(ask)

    return Town(1).run(story)


def test_a_server_that_is_asked_about_no_partition_tells_of_all_that_it_owns() -> None:
    answer = told(NO_PARTITION)
    assert list(answer["partitions"]) == ["0"]
    assert len(answer["storage"]) == 3


def test_a_standby_server_says_that_it_owns_no_partition() -> None:
    assert told(NO_PARTITION, owns=False)["partitions"] == {}


@pytest.mark.parametrize(("partition", "owns", "refused"), [(7, True, UnknownPartition), (0, False, NotOwner)])
def test_health_of_a_partition_that_others_own_is_refused(
    partition: int, owns: bool, refused: type[PolonaiseError]
) -> None:
    with pytest.raises(refused):
        told(partition, owns=owns)


def troubles_of_copies(members: list[str], *, due: int | None = 3, nodes: str = "abc", next: str = "") -> list[str]:
    """What is wrong with a partition all of whose members are engaged."""
    node = {"error": "", "connected": True}
    answer: dict[str, Any] = {"server": 1, "storage": dict.fromkeys(nodes, node)}
    if due is not None:
        answer["replication_factor"] = due
    health = {"ready": True, "engaged": members, "committed": 3, "generation": 1, "waits_for": ""}
    condition = condition_of(0, answer, {**health, "members": members, "next": list(next) or None})
    assert health_status_of([condition]) == (HealthStatus.DEGRADED if condition.troubles else HealthStatus.OK)
    return condition.troubles


def test_one_copy_of_three_is_too_few_and_one_of_one_is_enough() -> None:
    (trouble,) = troubles_of_copies(["a"])
    assert trouble.startswith("the partition has 1 of the 3 copies that it is to have: ")
    assert "`polonaise storage balance`" in trouble
    assert troubles_of_copies(["a"], due=1, nodes="a") == [], "as in an embedded log without other disks"


def test_enough_copies_or_one_too_many_during_a_move_are_no_trouble() -> None:
    assert troubles_of_copies(["a", "b", "c"]) == []
    assert troubles_of_copies(["a", "b", "c", "d"], nodes="abcd", next="bcd") == []
    assert troubles_of_copies(["a", "b", "c"], nodes="abcd", next="abcd") == []


def test_a_copy_too_many_that_nobody_removes_is_told() -> None:
    (trouble,) = troubles_of_copies(["a", "b", "c", "d"], nodes="abcd")
    assert "has 4 copies, and is to have 3" in trouble
    assert "polonaise storage balance" in trouble


def test_a_copy_that_is_being_added_is_told_in_place_of_what_to_do() -> None:
    assert troubles_of_copies(["a"], next="ab") == [
        "the partition has 1 of the 3 copies that it is to have: one more is being added"
    ]


def test_without_as_many_storage_nodes_as_copies_a_node_is_to_be_added_first() -> None:
    (trouble,) = troubles_of_copies(["a", "b"], nodes="ab")
    assert "the cluster has 2 storage nodes: add one" in trouble


def test_a_server_of_an_older_version_tells_nothing_to_judge_by() -> None:
    assert troubles_of_copies(["a"], due=None) == []


def test_a_copy_that_is_being_added_and_has_nothing_yet_says_so() -> None:
    answer = {"server": 1, "storage": {name: {"error": "", "connected": True} for name in "ab"}}
    health = {"ready": True, "engaged": ["a"], "committed": 3, "generation": 1, "waits_for": "", "members": ["a"]}
    for last, reached in ((None, "nothing copied yet"), (-1, "nothing copied yet"), (0, "copied up to 0")):
        condition = condition_of(0, answer, {**health, "next": ["a", "b"], "added": {"b": (last, "")}})
        assert condition.change == f"adding b: {reached}"


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


def test_a_damage_in_one_partition_is_told_of_that_one_alone() -> None:
    damages = [{"partition": 1, "what": what, "found_us": 1, "repaired_us": 0} for what in ("old rot", "new rot")]
    scrub = {"found": 5, "repaired": 2, "damages": [*damages, {**damages[0], "partition": 2, "repaired_us": 7}]}
    answer = {
        "server": 1,
        "storage": {"a": {**REACHED, "scrub": scrub}},
        "partitions": {str(number): PARTITION for number in range(3)},
    }
    told = {number: condition.troubles for number, condition in conditions_in(answer).items()}
    assert told == {0: [], 1: ["the scrub of a found new rot, and 1 more: not repaired yet"], 2: []}


@pytest.mark.parametrize(("node", "why"), [(SILENT, "it has been silent for 2.7 s"), (GONE, "connection refused")])
def test_a_member_that_the_server_does_not_reach_is_out_and_not_behind(node: dict[str, Any], why: str) -> None:
    health = {**PARTITION, "members": ["a", "b"], "late": {"b": "ids up to 7 are copied"}}
    condition = condition_of(
        0, {"server": 1, "storage": {"a": REACHED, "b": node}, "partitions": {"0": health}}, health
    )
    assert (condition.out, condition.behind) == ({"b": condition.left_out["b"]}, {})
    assert condition.left_out["b"] == why


def test_a_member_that_is_reached_and_not_engaged_is_behind() -> None:
    health = {**PARTITION, "members": ["a", "b"]}
    answer = {"server": 1, "storage": {"a": REACHED, "b": REACHED}, "partitions": {"0": health}}
    assert condition_of(0, answer, health).behind == {"b": "being brought up to date"}


OTHERWISE: dict[str, Any] = {
    "name": 5, "gone": None, "partitions": "many", "disk": [1], "disk_waits_s": "long", "resent": {"1": "some"},
    "unavailable": ["0"], "counts": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    "scrub",
    [
        {}, [], {"damages": 3}, {"damages": ["rot"]}, {"damages": [{"partition": 0}]}, {"found": "two", "damages": []},
        {"damages": [{"partition": 0, "what": "rot", "repaired_us": None}]},
    ],
)  # fmt: skip
def test_what_a_storage_node_of_another_version_tells_in_another_form_counts_as_not_told(scrub: Any) -> None:
    told = {**OTHERWISE, "scrub": scrub}
    answer = {"server": 1, "storage": {"a": {**told, **REACHED}}, "partitions": {"0": {**PARTITION, "engaged": []}}}
    assert conditions_in(answer)[0].troubles == ["a is not engaged: being brought up to date"]
    assert storage_troubles({**told, "tls": SAID}) == [SAID], "what is understood is told"


until_found = functools.partial(condition_when, within_s=300.0, every_s=0.5)
"""In virtual time."""


async def filled(town: Town, log: Log) -> str:
    """Appends two segments of one storage node, one of them sealed: its path."""
    for _ in range(4):
        await log.append(bytes(500_000), 0)
    disk = town.cluster.storage[0].machine.disk
    sealed, *_ = sorted(path for path in disk.paths() if path.endswith(".seq"))
    return sealed


@in_an_application(seed=3)
async def test_how_far_the_scrub_is_and_what_it_found_is_in_health_until_it_is_repaired(town: Town, log: Log) -> None:
    node = town.cluster.storage[0]
    name = town.cluster.storage_id(node)
    path = await filled(town, log)
    told = await until_found(log, lambda told: len(told.scrub) == 3 and told.scrub[name]["rounds"] > 0)
    assert told.troubles == []
    scrub = told.scrub[name]
    assert scrub["bytes"] > 0
    assert scrub["finished_us"] >= scrub["started_us"] > 0
    disk = node.machine.disk
    disk.fail_appends(None)  # it can't be copied anew before anybody has looked
    disk.flip_bit(path, SegmentHeader.decode(disk.contents(path)).data_start + 400)
    told = await until_found(log, lambda told: told.scrub[name]["found"])
    assert any(f"the scrub of {name} found" in line for line in told.troubles)
    assert any("not repaired yet" in line for line in told.troubles)
    assert told.ready
    (damage,) = told.scrub[name]["damages"]
    assert not damage["repaired_us"]
    disk.mend()
    told = await until_found(log, lambda told: told.scrub[name]["repaired"] and len(told.engaged) == 3)
    assert told.troubles == []
    (damage,) = told.scrub[name]["damages"]
    assert damage["repaired_us"] >= damage["found_us"] > 0


@in_an_application(seed=3)
async def test_what_is_damaged_again_after_its_repair_is_found_and_repaired_again(town: Town, log: Log) -> None:
    node = town.cluster.storage[0]
    name = town.cluster.storage_id(node)
    path = await filled(town, log)
    disk = node.machine.disk
    for time in (1, 2):
        disk.flip_bit(path, SegmentHeader.decode(disk.contents(path)).data_start + 400)
        await until_found(log, lambda told, time=time: told.scrub.get(name, {"found": 0})["found"] == time)
        await until_found(log, lambda told, time=time: told.scrub[name]["repaired"] == time)
        await until_found(log, lambda told: len(told.engaged) == 3)


@in_an_application(seed=3)
async def test_a_storage_node_that_does_not_answer_holds_up_nobody_who_asks_for_health(town: Town, log: Log) -> None:
    await until_found(log, lambda told: len(told.scrub) == 3)
    node = town.cluster.storage[2]
    assert node.process is not None
    await asyncio.sleep(2)
    node.process.pause()
    began_s = asyncio.get_running_loop().time()
    told, *_ = await asyncio.gather(*(conditions(log, [0], 10.0) for _ in range(20)))
    assert asyncio.get_running_loop().time() - began_s < 2.5
    assert town.cluster.storage_id(node) not in told[0].scrub
    assert len(told[0].scrub) == 2
    node.process.resume()


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"{}", b'{"scrub": 3}', b"\xff"])
def test_a_document_that_is_none_is_refused(document: bytes) -> None:
    with pytest.raises(ProtocolError):
        _parsed(document)
