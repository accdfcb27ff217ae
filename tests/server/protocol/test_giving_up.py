"""Which partitions a server gives up: those that it can't serve for long, and later each time."""

from __future__ import annotations

from polonaise.server.protocol.givingup import FARES_WELL as WELL
from polonaise.server.protocol.givingup import GivingUp, Struggle
from polonaise.terms import PartitionId

FAILS = Struggle(True, 0)


class Server:
    """A server that owns partitions 0 and 1, and looks once a second."""

    def __init__(self) -> None:
        self.giving_up = GivingUp(6.0)
        self.now_s = 100.0
        self.server = WELL
        self.connected = True

    def fares(self, looks: int, *struggles: Struggle, every_s: float = 1.0) -> set[PartitionId]:
        """Let time pass while the partitions fare so; return what is given up in the end."""
        found: frozenset[PartitionId] = frozenset()
        for _ in range(looks):
            self.now_s += every_s
            failing = {number: each for number, each in enumerate(struggles) if each != WELL}
            served = range(len(struggles))
            found = self.giving_up.look(self.now_s, served, failing, self.server, {0, 1}, connected=self.connected)
        return {*found}


def test_what_can_not_be_served_for_a_grace_is_given_up_alone() -> None:
    server = Server()
    assert server.fares(6, FAILS, WELL) == set()
    assert server.fares(2, FAILS, WELL) == {0}


def test_short_faults_give_nothing_up() -> None:
    server = Server()
    for number in range(20):
        assert server.fares(1, Struggle(True, number + 1), WELL) == set()
        assert server.fares(10, Struggle(False, number + 1), WELL) == set()


def test_a_partition_that_flaps_is_given_up_though_each_fault_is_short() -> None:
    """A host that loses packets: a session starts, and ends by a fault some seconds later, again and again."""
    server = Server()
    given_up = set()
    for number in range(12):
        given_up |= server.fares(1, Struggle(True, number + 1), WELL)
        given_up |= server.fares(4, Struggle(False, number + 1), WELL)
    assert given_up == {0}


def test_what_was_given_up_stays_so_for_a_time_that_grows() -> None:
    server, held_s = Server(), []
    for _ in range(3):
        while not server.fares(1, FAILS, WELL):
            pass
        gone_s = server.now_s
        server.giving_up.look(server.now_s, {1}, {}, WELL, {1}, connected=True)
        while server.giving_up.look(server.now_s, {1}, {}, WELL, {1}, connected=True):
            server.now_s += 1.0
        held_s.append(server.now_s - gone_s)
    assert held_s[0] >= 29
    assert held_s[1] >= 2 * held_s[0] - 2
    assert held_s[2] >= 2 * held_s[1] - 2


def test_while_too_few_storage_nodes_are_connected_nothing_is_taken_back() -> None:
    server = Server()
    server.fares(8, FAILS, WELL)
    server.connected = False
    for _ in range(300):
        server.now_s += 1.0
        left = server.giving_up.look(server.now_s, {1}, {}, WELL, {1}, connected=False)
    assert left == {0}


def test_a_partition_that_is_served_again_is_taken_back_soon() -> None:
    """Where nobody else could take it over, its owner goes on with it."""
    server = Server()
    assert server.fares(8, FAILS, WELL) == {0}
    assert server.fares(14, WELL, WELL) == set()


def test_a_server_that_keeps_losing_its_registration_gives_up_all_that_it_owns() -> None:
    server, given_up = Server(), set()
    for number in range(8):
        server.server = Struggle(True, number + 1)
        server.fares(2)
        server.server = Struggle(False, number + 1)
        given_up |= server.fares(4, WELL, WELL)
    assert given_up == {0, 1}


def test_a_server_that_was_stopped_itself_has_failed_nobody_meanwhile() -> None:
    server = Server()
    server.fares(1, FAILS, WELL)
    server.now_s += 60.0
    assert server.fares(1, FAILS, WELL) == set()


def test_the_faults_that_a_server_finds_when_it_goes_on_after_it_was_stopped_are_its_own() -> None:
    server = Server()
    server.fares(1, WELL, WELL)
    server.now_s += 7.5
    assert server.fares(1, Struggle(True, 5), WELL) == set()
    assert server.fares(1, Struggle(False, 5), WELL) == set()


def test_the_time_in_which_a_server_was_stopped_itself_is_not_added_to_what_it_failed_before() -> None:
    server = Server()
    assert server.fares(4, FAILS, WELL) == set()
    server.now_s += 8.0
    assert server.fares(1 + 2, FAILS, WELL) == set()
    assert server.fares(1, FAILS, WELL) == {0}, "what it fails by itself counts on"


def test_a_server_whose_looks_are_always_late_gives_up_what_it_can_not_serve() -> None:
    """It is slow, and was not stopped: else it would keep for ever what others could serve."""
    server = Server()
    assert server.fares(4, FAILS, WELL, every_s=3.0) == set(), "two seconds each, but for one that may follow a stop"
    assert server.fares(1, FAILS, WELL, every_s=3.0) == {0}


def test_the_faults_of_a_server_whose_looks_are_always_late_count() -> None:
    server = Server()
    assert server.fares(2, WELL, WELL, every_s=4.0) == set()
    assert server.fares(1, Struggle(False, 2), WELL, every_s=4.0) == set()
    given_up = set[PartitionId]()
    for number in range(4, 14, 2):
        given_up |= server.fares(1, Struggle(False, number), WELL, every_s=4.0)
    assert given_up == {0}


def test_a_server_that_was_stopped_twice_was_stopped_both_times() -> None:
    """A look in time in between shows that it is not merely slow."""
    server = Server()
    assert server.fares(2, FAILS, WELL) == set()
    for _ in range(3):
        assert server.fares(1, FAILS, WELL, every_s=30.0) == set()
        assert server.fares(1, FAILS, WELL) == set()
    assert server.fares(2, FAILS, WELL) == {0}


def test_a_server_that_can_serve_nothing_gives_up_also_what_it_is_given_meanwhile() -> None:
    """Where no server is able, each goes on being given what a dead one owned."""
    giving_up, now_s = GivingUp(6.0), 100.0

    def look(seconds: int, owned: set[PartitionId], server: Struggle) -> set[PartitionId]:
        nonlocal now_s
        found: frozenset[PartitionId] = frozenset()
        for _ in range(seconds):
            now_s += 1.0
            found = giving_up.look(now_s, owned, {}, server, owned, connected=True)
        return {*found}

    assert look(6, {0}, FAILS) == set(), "a grace first"
    assert look(2, {0}, FAILS) == {0}
    assert look(1, {0, 1}, FAILS) == {0, 1}
    assert look(1, {1}, FAILS) == {0, 1}, "what others took over does not come back"
    assert look(20, {1}, WELL) == set(), "it is able again"
