"""A minute of faults, a mutation, and the comparison tried on sequences that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from polonaise_proving.judges.rows import mistakes, routed
from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.scenarios.delivery import DeliveryTorture

LOG = {0: list(enumerate([b"ab:0", b"a:1", b":2", b"b:3", b"a:4"])), 1: [(0, b"b:0")]}


@pytest.mark.slow
async def test_a_minute_of_faults_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    with DeliveryTorture(tmp_path, 1, ("link", "grpc")) as campaign:
        campaign.run(60.0)
        await campaign.compare()
    report = campaign.report
    assert report.wrong == []
    assert min(report.delivered.values()) > 100
    for kind in ("target", "player"):
        for way in ("kill", "stop", "end"):
            assert report.faults[f"{way} a {kind}"], report.faults
    assert any("server" in each or "storage" in each for each in report.faults)


@pytest.mark.exhaustive(of="databases that others configure, under kills")
@pytest.mark.slow
@pytest.mark.parametrize("database", ["mariadb", "pooled"])
async def test_databases_that_others_configure_and_that_are_killed_lose_and_double_nothing(
    tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(database)  # is skipped where it is not installed
    with DeliveryTorture(tmp_path, 3, ("link", "grpc"), database=database) as campaign:
        campaign.run(30.0)
        await campaign.compare()
    report = campaign.report
    assert report.wrong == []
    assert min(report.delivered.values()) > 50
    assert report.faults["kill a database"], report.faults


@pytest.mark.slow
async def test_a_mutation_in_the_processes_is_found(tmp_path: Path) -> None:
    with (
        put_into_children("id-of-a-target-kept-too-low"),
        DeliveryTorture(tmp_path, 2, ("link",)) as campaign,
    ):
        campaign.run(3.0)
        await campaign.compare()
    wrong = campaign.report.wrong
    assert any("was applied twice" in each or "after the last one that is due" in each for each in wrong), wrong


def test_what_is_routed_to_a_target_is_what_names_it_by_partition() -> None:
    assert routed(LOG, "a") == {0: [(0, b"0"), (1, b"1"), (4, b"4")]}
    assert routed(LOG, "b") == {0: [(0, b"0"), (3, b"3")], 1: [(0, b"0")]}


@pytest.mark.parametrize(
    ("applied", "what"),
    [
        ([(0, b"0"), (1, b"1")], "4 and what follows it, 1 in all, were not applied"),
        ([(0, b"0"), (4, b"4")], "4 was applied in place of 1"),
        ([(0, b"0"), (0, b"0"), (1, b"1"), (4, b"4")], "0 was applied twice, the second time in place of 1"),
        ([(0, b"0"), (1, b"1"), (4, b"4"), (4, b"4")], "4 was applied after the last one that is due"),
        ([(0, b"0"), (4, b"4"), (1, b"1")], "4 was applied in place of 1"),
        ([(0, b"0"), (1, b"x"), (4, b"4")], "1 has another payload"),
        ([], "0 and what follows it, 3 in all, were not applied"),
    ],
)
def test_a_sequence_that_is_not_the_route_of_the_log_is_found(applied: Sequence[tuple[int, bytes]], what: str) -> None:
    assert mistakes("target a", routed(LOG, "a"), {0: applied}) == [f"target a, partition 0: {what}"]


def test_the_route_of_the_log_has_nothing_wrong_and_an_entry_of_nobody_is_found() -> None:
    due = routed(LOG, "b")
    assert mistakes("target b", due, due) == []
    assert mistakes("target b", due, {**due, 2: [(7, b"")]}) == [
        "target b, partition 2: 7 was applied after the last one that is due"
    ]
