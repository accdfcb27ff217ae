"""The judge of what a cluster's status tells of faults, on documents that are right and on ones that are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from polonaise_proving.judges.told import UNTOLD, is_to_be_told, untold
from polonaise_proving.record.faultkinds import COUNTS, KINDS, Fault, FaultKind, NodeGroup, Telling, nodes_of

Status = dict[str, Any]

ADDRESSES = {
    name: f"198.18.0.{10 * place + number}:7000"
    for place, group in enumerate((NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER), 1)
    for number, name in enumerate(nodes_of(group))
}
LOST = "packets to {} are lost on the way: up to 20 % had to be sent again lately: check the network, and …"


def well() -> Status:
    """The status of a cluster of which nothing is wrong."""
    return {
        "wellness": "well",
        "coordinator": {"trouble": "", "servers": {ADDRESSES[name]: "" for name in nodes_of(NodeGroup.ZOOKEEPER)}},
        "servers": [
            {"server": number, "name": ADDRESSES[name], "address": ADDRESSES[name], "reachable": True, "troubles": []}
            for number, name in enumerate(nodes_of(NodeGroup.SERVER), 1)
        ],
        "storage": [
            {"name": name, "address": ADDRESSES[name], "reachable": True, "troubles": []}
            for name in nodes_of(NodeGroup.STORAGE)
        ],
        "partitions": [{"partition": 0, "troubles": []}],
    }


def told(number: int, group: str, line: str, *, reachable: bool = True, wellness: str = "degraded") -> Status:
    """A status with one line, about the node with this number in its group."""
    status = well()
    status["wellness"] = wellness
    status[group][number - 1]["troubles"].append(line)
    status[group][number - 1]["reachable"] = reachable
    return status


def without_zookeeper(number: int) -> Status:
    status = well()
    status["wellness"] = "degraded"
    status["coordinator"]["servers"][ADDRESSES[f"zookeeper-{number}"]] = "did not answer within 1 s"
    return status


def status_of(fault: Fault) -> Status:
    """A status that tells of this fault."""
    group, _, digits = fault.node.rpartition("-")
    number = int(digits)
    if group == NodeGroup.ZOOKEEPER:
        return without_zookeeper(number)
    line = "did not answer"
    match KINDS[fault.kind].telling:
        case Telling.CLOCK if group == NodeGroup.SERVER:
            return told(number, "servers", "the clock of this server")
        case Telling.CLOCK:
            return told(1, "servers", f"the clock differ: this server is a day ahead of {fault.node}")
        case Telling.LOSSES if group == NodeGroup.STORAGE:
            return told(1, "servers", LOST.format(f"storage node {fault.node}"))
        case Telling.LOSSES:
            line = LOST.format("storage nodes storage-1, storage-2")
        case Telling.NO_STORAGE:
            line = "the server reaches none of the storage nodes (storage-1, storage-2, storage-3)"
        case Telling.PAIR:
            return told(int(fault.other[-1]), "storage", f"server {number} does not reach it: silent")
        case Telling.AWAY:
            return told(number, "servers" if group == NodeGroup.SERVER else "storage", line, reachable=False)
    return told(number, "servers", line)


FAULTS = [
    Fault(kind, f"{group}-2", "storage-3" if kind is FaultKind.CUT_PAIR else "")
    for kind, facts in KINDS.items()
    for group in facts.targets
]
TO_BE_TOLD = [fault for fault in FAULTS if is_to_be_told(fault)]


@pytest.mark.parametrize("fault", TO_BE_TOLD, ids=str)
def test_a_status_that_names_the_culprit_is_right(fault: Fault) -> None:
    assert untold([fault], status_of(fault), ADDRESSES) == ""


@pytest.mark.parametrize("fault", TO_BE_TOLD, ids=str)
def test_a_status_that_says_that_all_is_well_is_wrong(fault: Fault) -> None:
    found = untold([fault], well(), ADDRESSES)
    assert f"{fault} is not told" in found
    assert "the cluster is well (exit status 0, not" in found


@pytest.mark.parametrize("fault", TO_BE_TOLD, ids=str)
def test_a_status_that_names_another_node_is_wrong(fault: Fault) -> None:
    other = fault._replace(node=f"{fault.node[:-1]}1", other=fault.other and "storage-2")
    assert f"{fault} is not told" in untold([fault], status_of(other), ADDRESSES)


PAIR = Fault(FaultKind.CUT_PAIR, "server-2", "storage-3")


@pytest.mark.parametrize(("server", "storage"), [(1, 3), (2, 2)])
def test_a_status_that_names_only_one_of_a_pair_is_wrong(server: int, storage: int) -> None:
    lie = told(storage, "storage", f"server {server} ({ADDRESSES[f'server-{server}']}) does not reach it: silent")
    found = untold([PAIR], lie, ADDRESSES)
    assert f"{PAIR} is not told" in found
    assert "is blamed, and only another pair is cut" in found
    right = f"server 2 ({ADDRESSES['server-2']}) does not reach it: silent"
    lie["storage"][2]["troubles"].append(right)
    assert "is blamed, and only another pair is cut" in untold([PAIR], lie, ADDRESSES), "one pair too many"


@pytest.mark.parametrize("fault", TO_BE_TOLD, ids=str)
def test_a_status_that_says_something_else_of_the_culprit_is_wrong(fault: Fault) -> None:
    """As when its disk is nearly full: what is wrong with it is told, and this fault is not."""
    if fault.node.startswith("zookeeper"):
        return  # all that is said of such a server is that it does not answer, or why not
    status = well()
    status["wellness"] = "degraded"
    for node in [*status["servers"], *status["storage"]]:
        if node["address"] in (ADDRESSES[fault.node], ADDRESSES.get(fault.other)):
            node["troubles"].append("its disk is full")
    assert untold([fault], status, ADDRESSES) == f"{fault} is not told"


def test_lost_packets_are_not_told_by_a_line_on_a_clock() -> None:
    loss, clock = Fault(FaultKind.LOSE, "storage-3"), Fault(FaultKind.CLOCK, "server-3")
    status = told(3, "servers", "the clock of this server has jumped")
    status["storage"][2]["troubles"].append("its clock is 24.0 hours behind that of server 3")
    assert untold([loss, clock], status, ADDRESSES) == (
        "lose storage-3 is not told; "
        "storage-3 is blamed for its clock, and nothing befell that: its clock is 24.0 hours behind that of server 3"
    )
    status["storage"][2]["troubles"] = [LOST.format("servers 1, 2")]
    assert untold([loss, clock], status, ADDRESSES) == ""


@pytest.mark.parametrize(
    ("group", "line"),
    [
        ("storage", "its clock is 60.0 s behind that of server 1: set the clocks (NTP)"),
        ("storage", "server 1 does not reach it: it has been silent for 2.7 s"),
        ("storage", LOST.format("servers 1, 3")),
        ("servers", LOST.format("storage nodes storage-2, storage-3")),
        ("servers", "clocks differ by more than 10 s: this server is 24.0 hours behind storage-2"),
        ("servers", "the clock of this server has jumped"),
    ],
)
def test_a_line_that_blames_nodes_to_which_nothing_happened_is_wrong(group: str, line: str) -> None:
    for fault in (Fault(FaultKind.STOP, "storage-1"), Fault(FaultKind.CUT_LEADER, "zookeeper-2")):
        status = status_of(fault)
        status[group][1]["troubles"].append(line)
        assert "is blamed" in untold([fault], status, ADDRESSES)


def test_zookeeper_servers_that_elect_a_leader_are_no_culprits() -> None:
    fault, electing = Fault(FaultKind.STOP_LEADER, "zookeeper-2"), "does not serve: it has not joined a majority"
    status = status_of(fault)
    servers = status["coordinator"]["servers"]
    servers[ADDRESSES["zookeeper-1"]] = electing
    assert untold([fault], status, ADDRESSES) == ""
    servers[ADDRESSES["zookeeper-2"]] = electing
    assert untold([fault], status, ADDRESSES) == "stop-leader zookeeper-2 is not told"
    servers |= {ADDRESSES["zookeeper-1"]: "did not answer", ADDRESSES["zookeeper-2"]: "did not answer"}
    assert "zookeeper-1 is blamed" in untold([fault], status, ADDRESSES).replace(
        ADDRESSES["zookeeper-1"], "zookeeper-1"
    )


def test_others_may_blame_the_culprit() -> None:
    fault = Fault(FaultKind.CUT, "server-2")
    status = status_of(fault)
    for node in status["storage"]:
        node["troubles"] += [LOST.format("servers 1, 2"), "server 2 (198.18.0.32:7000) does not reach it: silent"]
    assert untold([fault], status, ADDRESSES) == ""


@pytest.mark.parametrize("kind", [FaultKind.CUT_PAIR, FaultKind.CUT_STORAGE, FaultKind.CLOCK])
def test_a_node_that_whoever_asks_does_reach_is_not_away(kind: FaultKind) -> None:
    fault = next(each for each in FAULTS if each.kind is kind and each.node == "server-2")
    status = status_of(fault)
    status["servers"][1]["reachable"] = False
    assert "is said not to be reached, and whoever asks does reach it" in untold([fault], status, ADDRESSES)


@pytest.mark.parametrize(
    ("fault", "wellness"),
    [("stop storage-2", "failed"), ("cut-leader zookeeper-2", "failed"), ("kill server-2", "well")],
)
def test_a_status_with_the_wrong_exit_status_is_wrong(fault: str, wellness: str) -> None:
    found = next(each for each in FAULTS if str(each) == fault)
    assert "the cluster is " + wellness in untold([found], {**status_of(found), "wellness": wellness}, ADDRESSES)


def test_partitions_may_pause_while_they_pass_from_one_server_to_another() -> None:
    fault = Fault(FaultKind.KILL, "server-2")
    assert untold([fault], {**status_of(fault), "wellness": "failed"}, ADDRESSES) == ""


def test_both_faults_of_a_step_have_to_be_told_by_one_status() -> None:
    faults = [Fault(FaultKind.STOP, "storage-2"), Fault(FaultKind.CUT_LEADER, "zookeeper-1")]
    one, other = map(status_of, faults)
    assert untold(faults, one, ADDRESSES) == "cut-leader zookeeper-1 is not told"
    both = {**one, "coordinator": other["coordinator"]}
    assert untold(faults, both, ADDRESSES) == ""


BLAMES: list[Callable[[Status], Status]] = [
    lambda status: status["servers"][0],
    lambda status: status["storage"][0],
]


@pytest.mark.parametrize("blamed", BLAMES)
def test_a_status_that_blames_a_node_to_which_nothing_happened_is_wrong(blamed: Callable[[Status], Status]) -> None:
    fault = Fault(FaultKind.CUT_LEADER, "zookeeper-2")
    status = copy.deepcopy(status_of(fault))
    blamed(status)["reachable"] = False
    assert "is said not to be reached, and nothing befell it" in untold([fault], status, ADDRESSES)


def test_a_name_within_a_longer_one_is_no_name() -> None:
    fault = Fault(FaultKind.LOSE, "storage-2")
    assert untold([fault], told(1, "servers", LOST.format("storage node storage-22")), ADDRESSES)


def test_a_kind_of_which_the_status_rightly_tells_nothing_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(FaultKind.STOP, "server-2")
    assert untold([fault], well(), ADDRESSES)
    monkeypatch.setitem(KINDS, FaultKind.STOP, KINDS[FaultKind.STOP]._replace(telling=Telling.NOTHING))
    assert untold([fault], well(), ADDRESSES) == ""


def test_only_clients_and_archivers_are_exempt() -> None:
    assert {group for group in NodeGroup if not is_to_be_told(Fault(FaultKind.KILL, f"{group}-1"))} == set(UNTOLD)
    assert set(COUNTS) - set(UNTOLD) == {NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER}
    for fault in FAULTS:
        if not is_to_be_told(fault):
            assert untold([fault], well(), ADDRESSES) == ""
