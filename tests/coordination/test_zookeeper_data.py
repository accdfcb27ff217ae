"""Whether ZooKeeper has lost data that this process has seen is decided by what its servers say of themselves."""

from __future__ import annotations

import pytest

from polonaise.coordination.zookeeperdata import DataTrial, ServerState, state_in, why_ended

SEEN = 0x30
NOT_SERVING = "This ZooKeeper instance is not currently serving requests\n"
MAY_NOT_TELL = "srvr is not executed because it is not in the whitelist.\n"


def said(mode: str, last: int) -> str:
    return (
        "Zookeeper version: 3.9.4, built on 2025\nLatency min/avg/max: 0/0.0/0\nReceived: 5\nSent: 4\nConnections: 1\n"
        f"Outstanding: 0\nZxid: 0x{last:x}\nMode: {mode}\nNode count: 5\n"
    )


def test_a_server_tells_its_last_transaction_and_whether_it_leads() -> None:
    assert state_in(said("standalone", 0x2F)) == ServerState("standalone", 0x2F)
    assert state_in(said("leader", 0).replace("\n", "\r\n")) == ServerState("leader", 0)
    for answer in ("", NOT_SERVING, MAY_NOT_TELL, "Mode: leader\n", "Zxid: 0x\nMode: leader\n"):
        assert state_in(answer) is None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            said("standalone", 0),
            "z (standalone) has lost data, or has an older copy of them: its last transaction is 0x0",
        ),
        (said("leader", 0x2F), "has lost data, or has an older copy"),
        (said("follower", 0x2F), "z (follower) is behind"),
        (said("standalone", SEEN), "z serves (standalone), and has ended"),
        (NOT_SERVING, "has not joined a majority"),
        (MAY_NOT_TELL, "z answers, and has ended"),
        ("", ""),
    ],
)
def test_why_a_server_ended_the_connection_is_told_by_what_it_says_and_never_guessed(answer: str, told: str) -> None:
    why = why_ended("z", answer, SEEN)
    assert (told in why) if told else not why


class Refusals:
    """Servers that end this process's connection, each with what it says then."""

    def __init__(self, servers: int) -> None:
        self.trial = DataTrial(anew_s=12.0)
        self.servers = servers

    def first_verdict_s(self, for_s: float, **says: str) -> float | None:
        """Ask all servers in turns; return after how many seconds the session is to be begun anew, None for never."""
        for tenth in range(int(for_s * 10)):
            for server, answer in says.items():
                if self.trial.refused(server, answer, SEEN, self.servers, tenth / 10):
                    return tenth / 10
        return None


@pytest.mark.parametrize("last", [0, SEEN - 1], ids=["empty", "older"])
@pytest.mark.parametrize(("mode", "servers"), [("standalone", 1), ("leader", 3)])
def test_the_only_server_or_a_leader_that_is_behind_proves_lost_data_within_a_second(
    mode: str, servers: int, last: int
) -> None:
    assert Refusals(servers).first_verdict_s(2, a=said(mode, last)) == pytest.approx(0.4)
    assert not Refusals(servers).trial.refused("a", said(mode, last), SEEN, servers, 0.0), "not by one look"


def test_one_server_of_an_ensemble_that_is_behind_only_lags() -> None:
    assert Refusals(3).first_verdict_s(11, a=said("follower", 5), b=said("follower", SEEN), c="") is None
    assert Refusals(3).first_verdict_s(11, a=said("follower", 5)) is None
    assert Refusals(3).first_verdict_s(11, a=said("standalone", 0)) is None, "one that was started alone by mistake"
    assert Refusals(1).first_verdict_s(11, a=said("follower", 5)) is None, "the address names one server of several"


def test_a_majority_that_stays_behind_proves_lost_data() -> None:
    assert Refusals(3).first_verdict_s(11, a=said("follower", 5), b=said("follower", 5)) == pytest.approx(5.0)
    assert Refusals(5).first_verdict_s(11, a=said("follower", 5), b=said("follower", 5)) is None


def test_servers_that_elect_a_leader_prove_nothing_however_long_that_takes() -> None:
    assert Refusals(3).first_verdict_s(60, a=NOT_SERVING, b=NOT_SERVING, c="") is None


def test_a_server_that_has_caught_up_is_not_behind_any_more() -> None:
    refusals = Refusals(3)
    assert refusals.first_verdict_s(4, a=said("follower", 5), b=said("follower", 5)) is None
    refusals.trial.connected()
    assert refusals.first_verdict_s(4, a=said("follower", 5), b=said("follower", 5)) is None


@pytest.mark.parametrize("answer", [MAY_NOT_TELL, said("standalone", SEEN), said("follower", 5)])
def test_whatever_the_reason_a_session_that_is_refused_for_longer_than_it_lives_is_begun_anew(answer: str) -> None:
    assert Refusals(1).first_verdict_s(20, a=answer) == pytest.approx(12.0)
