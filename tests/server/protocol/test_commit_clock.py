"""The time of commits: a wall clock that jumps or is off is not believed before other clocks, or time, confirm it."""

from __future__ import annotations

import pytest

from polonaise.server.protocol.commitclock import CommitClock, Moment
from polonaise.terms import PeerClock, clock_words

START_US = 1_750_000_000_000_000
DAY_S = 86_400.0
BOUND_S, SETTLE_S = 10.0, 300.0


class Machine:
    """A machine with its clock, and the storage nodes whose clocks it measures."""

    def __init__(self) -> None:
        self.clock = CommitClock(BOUND_S, SETTLE_S)
        self.now_s = 100.0
        self.ahead_s = 0.0
        """By how much the machine's wall clock is ahead of the true time."""

    @property
    def true_us(self) -> int:
        return START_US + int(self.now_s * 1e6)

    @property
    def moment(self) -> Moment:
        return Moment(self.now_s, self.true_us + int(self.ahead_s * 1e6))

    def off_s(self, after_s: float = 1.0) -> float:
        """Let time pass, and return by how much the time of a commit is off then."""
        self.now_s += after_s
        return (self.clock.look(self.moment) - self.true_us) / 1e6

    def measures(self, **ahead_s: float) -> None:
        """Measure the clocks of storage nodes, each so much ahead of the true time."""
        self.now_s += 0.1
        for name, ahead in ahead_s.items():
            self.clock.measured(name, PeerClock(START_US + int(ahead * 1e6), 1_000, self.now_s))

    @property
    def trouble(self) -> str:
        return self.clock.trouble(self.now_s)


def test_a_clock_that_goes_right_is_the_time_for_commits() -> None:
    machine = Machine()
    assert machine.off_s() == 0.0
    assert machine.clock.follows(machine.moment)
    assert machine.trouble == ""


def test_small_steps_and_drift_are_followed() -> None:
    machine = Machine()
    machine.off_s()
    for _ in range(5):
        machine.ahead_s += 3.0
        assert machine.off_s() == pytest.approx(machine.ahead_s, abs=1e-3)


@pytest.mark.parametrize("ahead_s", [58.0, -58.0, DAY_S])
def test_a_clock_that_was_wrong_only_at_its_first_look_is_right_as_soon_as_storage_nodes_have_said_so(
    ahead_s: float,
) -> None:
    machine = Machine()
    machine.ahead_s = ahead_s
    machine.off_s(0.0)
    machine.measures(a=0.0, b=0.3)
    machine.ahead_s = 0.0
    assert machine.off_s(0.1) == pytest.approx(0.0, abs=1e-3), "they were asked before it was set right"


@pytest.mark.parametrize("now_ahead_s", [-DAY_S, 2 * DAY_S, 60.0])
def test_no_session_starts_while_the_clock_has_jumped_and_storage_nodes_deny_the_time_that_is_believed(
    now_ahead_s: float,
) -> None:
    """The clock was wrong at its first look, right when they were asked, and is wrong again before they are heard."""
    machine = Machine()
    machine.ahead_s = DAY_S
    machine.off_s(0.0)
    machine.ahead_s = 0.0
    machine.off_s(0.1)
    machine.measures(a=0.0, b=0.3, c=-3_600.0)
    machine.ahead_s = now_ahead_s
    machine.off_s(0.1)
    assert machine.clock.unfit
    assert "starts no session" in machine.trouble
    machine.ahead_s = 0.0
    assert machine.off_s(0.1) == pytest.approx(0.0, abs=1e-3)
    assert not machine.clock.unfit


@pytest.mark.parametrize("others", [{"a": 0.0, "b": 0.0}, {"a": 0.0, "b": DAY_S}, {}])
def test_a_clock_that_has_jumped_is_no_reason_not_to_start_while_the_time_that_is_believed_is_not_denied(
    others: dict[str, float],
) -> None:
    machine = Machine()
    machine.off_s()
    machine.measures(**others)
    machine.ahead_s = -DAY_S
    assert machine.off_s(0.1) == pytest.approx(0.0, abs=1e-3)
    assert not machine.clock.unfit


def test_what_was_measured_before_a_jump_does_not_speak_against_it() -> None:
    """On one machine all clocks jump together, and are measured anew later."""
    machine = Machine()
    machine.off_s()
    machine.measures(a=0.0, b=0.0)
    machine.ahead_s = DAY_S
    machine.off_s()
    assert not machine.clock.unfit


@pytest.mark.parametrize("jump_s", [DAY_S, -DAY_S, 3_650 * DAY_S, 11.0])
def test_a_jump_that_nobody_confirms_is_not_believed_and_is_told(jump_s: float) -> None:
    machine = Machine()
    machine.off_s()
    machine.ahead_s = jump_s
    assert not machine.clock.follows(machine.moment), "not even before the next look"
    assert machine.off_s() == pytest.approx(0.0, abs=1e-3)
    assert machine.off_s(25.0) == pytest.approx(0.0, abs=1e-3)
    assert "has jumped" in machine.trouble
    assert machine.clock.jumped_s == pytest.approx(jump_s, abs=1e-3)
    machine.ahead_s = 0.0
    assert machine.off_s() == pytest.approx(0.0, abs=1e-3)
    assert machine.trouble == ""
    assert (machine.clock.jumps, machine.clock.last_jump_s) == (1, pytest.approx(jump_s, abs=1e-3))


def test_a_jump_that_nobody_could_confirm_is_believed_once_it_has_lasted() -> None:
    machine = Machine()
    machine.off_s()
    machine.ahead_s = DAY_S
    machine.off_s()
    assert machine.off_s(SETTLE_S - 1) == pytest.approx(0.0, abs=1e-3)
    assert machine.off_s(2.0) == pytest.approx(DAY_S, abs=1e-3)
    assert machine.trouble == ""


def test_a_clock_that_jumps_again_and_again_is_not_believed() -> None:
    machine = Machine()
    machine.off_s()
    for number in range(20):
        machine.ahead_s = DAY_S * (number + 1)
        assert machine.off_s(SETTLE_S / 10) == pytest.approx(0.0, abs=1e-3)


def test_a_jump_that_other_clocks_confirm_is_believed_at_once() -> None:
    machine = Machine()
    machine.ahead_s = -DAY_S
    machine.off_s()
    machine.measures(a=0.0, b=0.2, c=-0.1)
    machine.off_s()
    assert machine.clock.unfit
    machine.ahead_s = 0.0
    machine.off_s()
    machine.measures(a=0.0, b=0.2, c=-0.1)
    assert machine.off_s() == pytest.approx(0.0, abs=1e-3)
    assert not machine.clock.unfit


def test_a_jump_that_other_clocks_deny_is_never_believed() -> None:
    machine = Machine()
    machine.measures(a=0.0, b=0.0, c=0.0)
    machine.off_s()
    machine.ahead_s = DAY_S
    for _ in range(100):
        machine.measures(a=0.0, b=0.0, c=0.0)
        assert machine.off_s(10.0) == pytest.approx(0.0, abs=1e-3)
    assert machine.clock.unfit
    assert "24.0 hours ahead of a" in machine.trouble
    assert "starts no session" in machine.trouble


def test_nodes_on_the_same_machine_do_not_confirm_its_jump() -> None:
    machine = Machine()
    machine.measures(a=0.0, b=0.0, c=0.0)
    machine.off_s()
    machine.ahead_s = DAY_S
    machine.off_s()
    for _ in range(10):
        machine.measures(a=DAY_S, b=DAY_S, c=DAY_S)
        assert machine.off_s(2.0) == pytest.approx(0.0, abs=1e-3)
    assert not machine.clock.unfit, "nobody says that the clock is off"


@pytest.mark.parametrize(
    ("others", "unfit"),
    [
        ({"a": 0.0}, True),
        ({"a": DAY_S}, False),
        ({"a": 0.0, "b": DAY_S}, False),
        ({"a": 0.0, "b": 0.0, "c": DAY_S}, True),
        ({"a": 0.0, "b": DAY_S, "c": DAY_S}, False),
        ({"a": 0.0, "b": -DAY_S, "c": -2 * DAY_S}, True),
        ({}, False),
    ],
)
def test_a_clock_is_unfit_if_it_is_off_from_a_majority(others: dict[str, float], unfit: bool) -> None:
    machine = Machine()
    machine.ahead_s = DAY_S
    machine.off_s()
    machine.measures(**others)
    machine.off_s()
    assert machine.clock.unfit == unfit
    assert bool(machine.trouble) == any(each != DAY_S for each in others.values())


def test_an_unfit_clock_is_fit_again_only_well_within_the_bound() -> None:
    machine = Machine()
    for ahead_s, unfit in ((9.0, False), (11.0, True), (9.0, True), (6.0, True), (4.0, False), (9.0, False)):
        machine.ahead_s = ahead_s
        machine.off_s()
        machine.measures(a=0.0, b=0.0, c=0.0)
        machine.off_s()
        assert machine.clock.unfit == unfit, ahead_s


def test_an_old_measure_says_nothing() -> None:
    machine = Machine()
    machine.measures(a=0.0, b=0.0, c=0.0)
    machine.off_s()
    assert set(machine.clock.skews_s(machine.now_s)) == {"a", "b", "c"}
    machine.off_s(60.0)
    assert machine.clock.skews_s(machine.now_s) == {}


def test_a_slow_answer_accuses_nobody() -> None:
    machine = Machine()
    machine.off_s()
    machine.clock.measured("a", PeerClock(START_US + 20_000_000, 15_000_000, machine.now_s))
    machine.off_s()
    assert not machine.clock.unfit


def test_time_in_which_the_machine_slept_is_no_jump() -> None:
    machine = Machine()
    machine.off_s()
    machine.clock.slept(3_600.0)
    machine.ahead_s = 3_600.0  # the monotonic clock stood still, so that the wall clock seems to jump
    assert machine.off_s() == pytest.approx(3_600.0, abs=1e-3)
    assert machine.trouble == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (5, "5.0 s ahead of"),
        (-90, "90.0 s behind"),
        (600, "10.0 minutes ahead of"),
        (-86_400, "24.0 hours behind"),
        (1e8, "1157.4 days ahead of"),
    ],
)
def test_how_far_a_clock_is_off_is_said_in_words(seconds: float, said: str) -> None:
    assert clock_words(seconds) == said
