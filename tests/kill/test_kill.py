"""A short campaign of real kills, and the comparison tried on logs that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.node.local import LocalCluster
from polonaise_proving.campaigns import journal
from polonaise_proving.campaigns.journal import CampaignJournal, JournalLine, JournalReader
from polonaise_proving.kill.campaign import ClusterCampaign, EmbeddedCampaign
from polonaise_proving.kill.ledger import deposit, fold, transfer
from polonaise_proving.kill.verdict import SharedView, judge

LOG = [deposit("a/1", 0, 10), deposit("b/1", 1, 4), transfer("a/2", 0, 1, 5)]
LINES = [
    JournalLine(1.0, journal.ASK, "a/1", -1),
    JournalLine(1.1, journal.ASK, "b/1", -1),
    JournalLine(1.2, journal.ACK, "a/1", 0),
    JournalLine(1.3, journal.ASK, "a/2", -1),
    JournalLine(1.4, journal.ACK, "a/2", 2),
    JournalLine(1.5, journal.ASK, "a/3", -1),
    JournalLine(1.6, journal.FAIL, "a/3", -1),
]


@pytest.mark.slow
async def test_twenty_kills_lose_nothing_and_double_nothing_and_another_host_is_there_in_time(tmp_path: Path) -> None:
    with EmbeddedCampaign(tmp_path, seed=20) as campaign:
        campaign.run(20)
        await campaign.compare()
    report = campaign.report
    assert report.wrong == []
    assert report.kills == report.unacknowledged == 20
    assert report.take_overs_s
    assert report.comparison.acknowledged > 100


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
    assert report.comparison.acknowledged > 100


def test_a_log_that_is_as_was_told_has_nothing_wrong() -> None:
    comparison = judge(LOG, LINES, SharedView(2, fold(LOG)))
    assert comparison.wrong == []
    assert (comparison.asked, comparison.acknowledged, comparison.failed, comparison.unknown) == (4, 2, 1, 1)


@pytest.mark.parametrize(
    ("log", "naming"),
    [
        (LOG[:2], "a/2 was acknowledged as 2"),
        ([LOG[0], LOG[2], LOG[1]], "a/2 was acknowledged as 2"),
        ([*LOG, deposit("a/3", 0, 1)], "a/3 was reported failed"),
        ([*LOG, deposit("b/1", 1, 4)], "b/1 is in the log 2 times"),
        ([*LOG, deposit("c/9", 1, 4)], "nobody asked for it"),
        ([*LOG[:2], transfer("a/2", 0, 1, 11)], "more than there was"),
    ],
)
def test_a_log_that_is_not_as_was_told_is_found(log: list[bytes], naming: str) -> None:
    wrong = judge(log, LINES, SharedView(len(log) - 1, fold(log))).wrong
    assert any(naming in each for each in wrong), wrong


@pytest.mark.parametrize(
    "view", [SharedView(1, fold(LOG)), SharedView(2, fold([*LOG, LOG[1]])), SharedView(3, fold(LOG))]
)
def test_a_view_that_is_not_the_fold_of_the_log_is_found(view: SharedView) -> None:
    assert any("the view" in each for each in judge(LOG, LINES, view).wrong)


def test_a_journal_is_followed_line_by_line_and_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    reader = JournalReader(path)
    reader.follow()
    book = CampaignJournal(path)
    book.write(journal.OPEN)
    book.write(journal.TASKS, id=12)
    book.write(journal.ASK, "a/1")
    with path.open("ab") as file:
        file.write(b'[1.0, "ack", "a/')
        file.flush()
        reader.follow()
        assert [line.kind for line in reader.lines] == [journal.OPEN, journal.ASK]
        assert (reader.opened, reader.tasks, reader.pending) == (True, 12, {"a/1"})
        file.write(b'1", 0]\n')
    reader.follow()
    assert reader.lines[2:] == [JournalLine(1.0, journal.ACK, "a/1", 0)]
    assert reader.pending == set()
