"""A server stops owning before its registration can have run out, counted by itself, and owns again when renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.coordination.file import FileBackend
from polonaise.coordination.lease import LEASE_S, Tenure, renew_every_s
from polonaise.coordination.values import Registration
from polonaise.errors import (
    BadOption,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    DirectoryInUse,
    PolonaiseError,
    WrongClusterKey,
)
from polonaise.host import Host
from polonaise.host.real import RealClock
from polonaise.node.condition import server_troubles
from polonaise.node.embedded import coordinator_of
from polonaise.node.monitoring.face import ObservedServer
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.servermembership import ServerMembership
from polonaise_proving.stages.simulated.world import World
from rigs.scenarios import runs_tests_in
from rigs.waiting import wait_until
from server.test_shared_partitions import PARTITIONS, Pair


def test_a_tenure_counts_from_the_beginning_of_a_renewal_and_ends_before_the_lease() -> None:
    tenure = Tenure()
    assert not tenure.holds(0.0), "before the first renewal"
    tenure.renewed(100.0, 5.0)
    assert tenure.holds(104.7)
    assert not tenure.holds(104.8)
    assert not tenure.holds(105.0)


def test_the_answer_to_an_older_renewal_does_not_shorten_a_tenure() -> None:
    tenure = Tenure()
    tenure.renewed(100.0, 5.0)
    tenure.renewed(98.0, 5.0)
    assert tenure.holds(104.7)


def test_a_name_that_nobody_judges_holds_for_ever() -> None:
    tenure = Tenure()
    tenure.renewed(0.0, inf)
    assert tenure.holds(1e12)


def test_a_short_session_is_renewed_more_often_than_a_lease() -> None:
    assert renew_every_s(LEASE_S) == LEASE_S / 4
    assert renew_every_s(2.0) == 0.5
    assert renew_every_s(inf) == LEASE_S / 4


def test_only_where_nobody_can_take_over_a_directory_needs_no_renewals() -> None:
    host: Any = SimpleNamespace(disk=None, clock=None, random=None)
    assert FileBackend(host, "d").holds_s == LEASE_S
    assert FileBackend(host, "d", alone=True).holds_s == inf
    assert coordinator_of(host, "d")._backend.holds_s == inf


class FakeCoordinator:
    """Registers one server, and answers its renewals as `renewing` says."""

    trouble = ""

    def __init__(self) -> None:
        self.holds_s = 2.0
        self.renewing: Callable[[], bool] = lambda: True
        self.hangs_s = 0.0
        self.renewals = 0
        self.registrations = 0

    async def register(self, registration: Registration) -> Any:
        self.registrations += 1
        return SimpleNamespace(renew=self.renew, left=False, holds_s=self.holds_s, renewed_us=None)

    async def renew(self) -> bool:
        self.renewals += 1
        await asyncio.sleep(self.hangs_s)
        return self.renewing()


class Scene:
    """A registered server in virtual time, whose coordinator is made up."""

    def __init__(self) -> None:
        self.world = World(1)
        self.coordinator = FakeCoordinator()
        self.ended_s: list[float] = []
        self.membership: ServerMembership
        self.trouble = CoordinatorTrouble(RealClock())

    async def start(self) -> None:
        begun = asyncio.Event()

        async def main(host: Host) -> None:
            coordinator: Any = self.coordinator
            self.membership = ServerMembership(host, coordinator, self.trouble, Registration(7, ""), self.ended)
            await self.membership.register("a:1")
            host.spawn(self.membership.keep(), "keep")
            host.spawn(self.membership.watch(), "watch")
            begun.set()
            await asyncio.Event().wait()

        self.process = self.world.machine("m").start(main)
        await begun.wait()

    def ended(self, reason: str) -> None:
        self.ended_s.append(self.world.now)


in_a_scene = runs_tests_in(Scene)


@in_a_scene
async def test_a_server_whose_renewals_succeed_owns_for_ever(scene: Scene) -> None:
    await scene.start()
    await asyncio.sleep(60)
    assert scene.ended_s == []
    assert scene.membership.stretch == 0
    assert scene.coordinator.renewals >= 110


def test_errors_of_one_kind_are_told_once_with_all_that_they_hinder() -> None:
    trouble = CoordinatorTrouble(RealClock())
    trouble.failed("the lease can't be renewed", CoordinatorDamaged("it is gone: bring it back"))
    trouble.failed("the assignment can't be read", CoordinatorDamaged("it is missing: bring it back"))
    trouble.failed("ids can't be given out", CoordinatorUnavailable("no answer"))
    assert str(trouble) == (
        "the lease can't be renewed, the assignment can't be read: [coordinator_damaged] it is missing: bring it back; "
        "ids can't be given out: [coordinator_unavailable] no answer"
    )
    trouble.succeeded("the lease can't be renewed")
    assert "it is missing" in str(trouble)


ANSWERS = [
    CoordinatorUnavailable("no answer"),
    CoordinatorDamaged("its directory is gone"),
    WrongClusterKey("it is another cluster's"),
    BadOption("it is not a directory"),
    DirectoryInUse("another process has the name"),
]


@pytest.mark.parametrize("error", ANSWERS, ids=lambda error: error.code)
def test_whatever_the_coordinator_answers_a_server_stops_owning_in_time_and_goes_on(error: PolonaiseError) -> None:
    scene = Scene()

    def fail() -> bool:
        raise error

    async def scenario() -> None:
        await scene.start()
        await asyncio.sleep(10)
        scene.coordinator.renewing = fail
        since_s = scene.world.now
        await wait_until(lambda: bool(scene.ended_s))
        # The last renewal that succeeded began up to half a second earlier.
        assert 1.3 < scene.ended_s[0] - since_s < 2.0
        assert str(error) in scene.membership.not_owning
        assert "2 s" in scene.membership.not_owning
        await asyncio.sleep(30)
        assert len(scene.ended_s) == 1
        scene.coordinator.renewing = lambda: True
        assert await scene.membership.held(1.0) == 1
        assert "has not been able to read the assignment" in scene.membership.not_owning
        scene.membership.owns_again()
        assert not scene.membership.not_owning
        await asyncio.sleep(30)
        assert len(scene.ended_s) == 1

    scene.world.run(scenario())


@in_a_scene
async def test_a_coordinator_that_hangs_ends_the_ownership_in_time(scene: Scene) -> None:
    await scene.start()
    await asyncio.sleep(10)
    scene.coordinator.hangs_s, since_s = 1e6, scene.world.now
    await wait_until(lambda: bool(scene.ended_s))
    assert scene.ended_s[0] - since_s < 2.0


@in_a_scene
async def test_an_answer_that_takes_longer_than_the_session_is_no_renewal(scene: Scene) -> None:
    await scene.start()
    scene.coordinator.hangs_s = 2.5
    await asyncio.sleep(20)
    assert len(scene.ended_s) == 1
    assert scene.membership.not_owning


@in_a_scene
async def test_slow_answers_are_renewals_as_long_as_the_next_one_comes_in_time(scene: Scene) -> None:
    await scene.start()
    scene.coordinator.hangs_s = 0.9
    await asyncio.sleep(20)
    assert scene.ended_s == []


@in_a_scene
async def test_a_name_that_is_gone_is_registered_again_and_renewed(scene: Scene) -> None:
    await scene.start()
    answers = [True, False, False]

    def renewing() -> bool:
        return answers.pop() if answers else True

    scene.coordinator.renewing = renewing
    await asyncio.sleep(10)
    assert scene.coordinator.registrations == 3
    assert scene.ended_s == []


@in_a_scene
async def test_a_registration_that_is_never_renewed_does_not_hold(scene: Scene) -> None:
    scene.coordinator.renewing = lambda: False
    await scene.start()
    await asyncio.sleep(10)
    assert len(scene.ended_s) == 1
    with pytest.raises(CoordinatorUnavailable, match="could not be renewed within 1 s"):
        await scene.membership.held(1.0)


@in_a_scene
async def test_a_process_that_was_stopped_notices_before_it_does_an_owners_work(scene: Scene) -> None:
    await scene.start()
    await asyncio.sleep(5)
    scene.process.pause()
    await asyncio.sleep(5)
    assert scene.ended_s == [], "it stands still"
    scene.membership.check()
    assert len(scene.ended_s) == 1


# ------------------------------------------------------------------ whole servers


class Leased(Pair):
    """Two servers that judge each other's leases as in production, with four partitions."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed, leases=True, lease_s=LEASE_S)


in_a_leased_pair = runs_tests_in(Leased)


@in_a_leased_pair
async def test_a_server_that_alone_is_cut_off_owns_nothing_within_a_lease_and_says_so(leased: Leased) -> None:
    await leased.start()
    server = leased.cluster.owners[leased.first.name]
    assert server.partitions
    leased.cluster.cut_off.add(leased.first.name)
    since_s = leased.world.now
    await wait_until(lambda: not server.partitions)
    assert leased.world.now - since_s < LEASE_S
    face: Any = ObservedServer(lambda: server, SimpleNamespace(monotonic_s=lambda: leased.world.now))  # type: ignore[arg-type]
    assert "owns nothing: it could not renew its registration" in face.not_ready()
    health = server.health()
    assert health["partitions"] == {}
    assert server_troubles(health) == [health["not_owning"]]
    leased.cluster.cut_off.clear()
    await wait_until(lambda: leased.owned(leased.first) == PARTITIONS)
    assert face.not_ready() == ""
    assert server.health()["not_owning"] == ""
    assert leased.first.restarts == 0


@in_a_leased_pair
async def test_a_server_without_partitions_is_not_ready_while_it_is_cut_off(leased: Leased) -> None:
    await leased.start()
    leased.second.let_up()
    await wait_until(lambda: leased.second.name in leased.cluster.owners and leased.second.running)
    idle = leased.cluster.owners[leased.second.name]
    face: Any = ObservedServer(lambda: idle, SimpleNamespace(monotonic_s=lambda: leased.world.now))  # type: ignore[arg-type]
    await wait_until(lambda: face.not_ready() == "")
    assert not idle.partitions
    leased.cluster.cut_off.add(leased.second.name)
    await wait_until(lambda: "owns nothing" in face.not_ready(), within_s=LEASE_S)
    leased.cluster.cut_off.clear()
    await wait_until(lambda: face.not_ready() == "")


@pytest.mark.slow
@in_a_leased_pair
async def test_the_other_server_takes_over_from_one_that_is_cut_off_and_no_append_fails(leased: Leased) -> None:
    await leased.start()
    leased.second.let_up()
    await wait_until(lambda: leased.owned(leased.second) == PARTITIONS // 2, within_s=60)
    first = leased.cluster.owners[leased.first.name]
    both: list[float] = []
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    work = loop.create_task(leased.work_until(stopped))
    await asyncio.sleep(2)
    leased.cluster.cut_off.add(leased.first.name)

    async def look() -> None:
        while True:
            await asyncio.sleep(0.01)
            if leased.owned(leased.first) and leased.owned(leased.second) == PARTITIONS:
                both.append(leased.world.now)

    looking = loop.create_task(look())
    await wait_until(lambda: leased.owned(leased.second) == PARTITIONS, within_s=2 * LEASE_S)
    assert not first.partitions
    leased.cluster.cut_off.clear()
    await asyncio.sleep(5)
    stopped.set()
    assert await work > 0
    looking.cancel()
    assert both == [], "it owned nothing any more when the other began"


@in_a_scene
async def test_a_renewal_that_began_in_time_and_is_heard_of_too_late_does_not_hide_that_the_ownership_has_ended(
    scene: Scene,
) -> None:
    """The process is stopped while the answer comes: by the time it goes on, others may own since a while."""
    await scene.start()
    await asyncio.sleep(0.4)
    scene.coordinator.hangs_s = 1.35  # the next renewal begins at 0.5, and the registration holds until 1.9
    await asyncio.sleep(1.4)
    scene.process.pause()
    await asyncio.sleep(0.3)
    assert scene.ended_s == []
    scene.process.resume()
    await asyncio.sleep(0.05)
    assert len(scene.ended_s) == 1
    assert scene.membership.stretch == 1
