"""A short campaign of real kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.node.local import LocalCluster
from polonaise_proving.mutations.children import put_into_children
from polonaise_proving.scenarios.kill import ClusterCampaign, EmbeddedCampaign


@pytest.mark.slow
async def test_twenty_kills_lose_nothing_and_double_nothing_and_another_host_is_there_in_time(tmp_path: Path) -> None:
    with EmbeddedCampaign(tmp_path, seed=20) as campaign:
        campaign.run(20)
        await campaign.compare()
    report = campaign.report
    assert report.wrong == []
    assert report.kills == report.unacknowledged == 20
    assert report.take_overs_s
    assert report.fates.acknowledged > 100


@pytest.mark.slow
async def test_kills_of_a_clusters_nodes_and_clients_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path / "cluster", storage=3, servers=2) as cluster,
        ClusterCampaign(tmp_path, 20, cluster) as campaign,
    ):
        campaign.run(15)
        await campaign.compare()
    report = campaign.report
    assert report.wrong == []
    assert report.served_kills
    assert report.storage_kills
    assert report.unacknowledged
    assert report.fates.acknowledged > 100


@pytest.mark.slow
async def test_a_mutation_in_the_processes_is_found(tmp_path: Path) -> None:
    with (
        put_into_children("mark-that-another-process-moved-moved-on"),
        EmbeddedCampaign(tmp_path, seed=20) as campaign,
    ):
        campaign.run(2)
        await campaign.compare()
    assert any(each.startswith("P7: ") for each in campaign.report.wrong), campaign.report.wrong
