"""The judge of what a cluster's status tells of faults, on documents that are right and on ones that are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from polonaise.smoke.protocol.faults import COUNTS, TARGETS, Fault, FaultKind, NodeGroup, nodes_of
from polonaise.smoke.protocol.told import UNTOLD, is_to_be_told, untold

Status = dict[str, Any]

ADDRESSES = {
    name: f"198.18.0.{10 * place + number}:7000"
    for place, group in enumerate((NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER), 1)
    for number, name in enumerate(nodes_of(group))
}
LOST = "packets to {} are lost on the way: up to 20 % had to be sent again lately: check the network"


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
    if fault.kind is FaultKind.CLOCK:
        culprit = (
            "of this server" if group == NodeGroup.SERVER else f"differ: this server is a day ahead of {fault.node}"
        )
        return told(number if group == NodeGroup.SERVER else 1, "servers", f"the clock {culprit}")
    if fault.kind is FaultKind.LOSE and group == NodeGroup.STORAGE:
        return told(1, "servers", LOST.format(f"storage node {fault.node}"))
    line = {
        FaultKind.LOSE: LOST.format("storage nodes storage-1, storage-2"),
        FaultKind.CUT_STORAGE: "the server reaches none of the storage nodes (storage-1, storage-2, storage-3)",
    }.get(fault.kind, "did not answer")
    if fault.kind is FaultKind.CUT_PAIR:
        return told(int(fault.other[-1]), "storage", f"server {number} does not reach it: silent")
    away = fault.kind not in (FaultKind.LOSE, FaultKind.CUT_STORAGE)
    return told(number, "servers" if group == NodeGroup.SERVER else "storage", line, reachable=not away)


FAULTS = [
    Fault(kind, f"{group}-2", "storage-3" if kind is FaultKind.CUT_PAIR else "")
    for kind, groups in TARGETS.items()
    for group in groups
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


def test_only_clients_and_archivers_are_exempt() -> None:
    assert {group for group in NodeGroup if not is_to_be_told(Fault(FaultKind.KILL, f"{group}-1"))} == set(UNTOLD)
    assert set(COUNTS) - set(UNTOLD) == {NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER}
    for fault in FAULTS:
        if not is_to_be_told(fault):
            assert untold([fault], well(), ADDRESSES) == ""
