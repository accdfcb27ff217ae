"""The coordinator in a directory: crashes and power loss at every step, failing disks, damage, several processes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.directory import CHANGE_LOCK, ValueDirectory, seal, unseal
from polonaise.coordination.file import REPLACED_S, FileBackend, coordinator_in
from polonaise.coordination.values import Assignment, ClusterDescription, Owner, Registration
from polonaise.errors import (
    AlreadyInitialized,
    BadOption,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    NotInitialized,
    PolonaiseError,
    UnsupportedFormat,
    WrongClusterKey,
)
from polonaise.host.real import RealHost
from polonaise_proving.stages.simulated.process import Process
from rigs.coordinator import DESCRIPTION, DIRECTORY, INITIAL, NEXT, Scene, in_a_scene, in_scenes
from rigs.unretrieved import errors_nobody_took
from rigs.waiting import time_passes

pytestmark = pytest.mark.slow


async def change(coordinator: Coordinator) -> None:
    found = await coordinator.partition(0)
    await coordinator.set_partition(0, NEXT, found.version)


# ------------------------------------------------------------------ many values


@in_a_scene
async def test_many_changes_at_once_share_the_lock_and_the_syncs_and_each_is_made(scene: Scene) -> None:
    many = 64
    process, coordinator = await scene.process()
    await coordinator.initialize(replace(DESCRIPTION, partitions=many))
    await asyncio.gather(*map(coordinator.partition, range(many)))
    disk = process.host.disk
    calls: list[str] = []
    sync_directory, lock = disk.sync_directory, disk.lock
    disk.sync_directory = lambda path: (calls.append("sync"), sync_directory(path))[1]  # type: ignore[method-assign]
    disk.lock = lambda path: (calls.append("lock"), lock(path))[1]  # type: ignore[method-assign]
    changed = await asyncio.gather(
        *(coordinator.set_partition(partition, NEXT, 0) for partition in range(many)),
        *(coordinator.set_partition(partition, INITIAL, 0) for partition in range(many)),
    )
    assert [value is not None for value in changed] == [True] * many + [False] * many
    process.crash()
    again = await scene.open()
    for partition in range(many):
        assert (await again.partition(partition)).value == NEXT
    assert calls.count("lock") <= 4
    assert calls.count("sync") <= many // 2


# ------------------------------------------------------------------ crashes


def at_every_call(scenario: Callable[[Scene, int], Coroutine[Any, Any, bool]]) -> int:
    """Run it with a crash at call 1, 2, 3, … until it says that the work was done before; each under several seeds."""
    call, in_time = 0, True
    while in_time:
        call += 1
        for seed in range(8):
            scene = Scene(100 * call + seed)
            in_time = scene.run(scenario(scene, call))
    return call


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_any_step_of_a_change_leaves_the_old_value_or_the_new(power_loss: bool) -> None:
    outcomes = set()

    async def scenario(scene: Scene, call: int) -> bool:
        await scene.made()
        in_time = await scene.crash_at(call, change)
        if power_loss:
            scene.machine.power_loss()
        restarted = await scene.open()
        found = await restarted.partition(0)
        assert (found.version, found.value) in ((0, INITIAL), (1, NEXT))
        outcomes.add((in_time, found.version))
        assert await restarted.set_partition(0, replace(NEXT, session=5), found.version) is not None
        assert not [name for name in scene.names() if name.endswith(".new")]
        return in_time

    assert at_every_call(scenario) > 10
    assert outcomes == {(True, 0), (True, 1), (False, 1)}


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_any_step_of_initializing_leaves_no_cluster_or_a_whole_one(power_loss: bool) -> None:
    outcomes = set()

    async def scenario(scene: Scene, call: int) -> bool:
        in_time = await scene.crash_at(call, lambda coordinator: coordinator.initialize(DESCRIPTION))
        if power_loss:
            scene.machine.power_loss()
        restarted = await scene.open()
        try:
            await restarted.describe()
        except NotInitialized:
            await restarted.initialize(DESCRIPTION)
            outcomes.add("none")
        else:
            with pytest.raises(AlreadyInitialized):
                await restarted.initialize(DESCRIPTION)
            outcomes.add("whole")
        assert [(await restarted.partition(p)).value for p in (0, 1)] == [INITIAL, INITIAL]
        assert (await restarted.assignment()).value == Assignment()
        assert await restarted.unique_id() == 1
        scene.machine.power_loss()
        assert await (await scene.open()).unique_id() == 2
        return in_time

    assert at_every_call(scenario) > 30
    assert outcomes == {"none", "whole"}


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_crash_at_any_step_of_deleting_leaves_the_whole_cluster_or_none(power_loss: bool) -> None:
    outcomes = set()
    larger = replace(DESCRIPTION, partitions=DESCRIPTION.partitions + 3)
    smaller = replace(DESCRIPTION, key=b"k" * 16, partitions=1)

    async def scenario(scene: Scene, call: int) -> bool:
        await (await scene.open()).initialize(larger)
        in_time = await scene.crash_at(call, lambda coordinator: coordinator.delete(larger.key))
        if power_loss:
            scene.machine.power_loss()
        restarted = await scene.open()
        try:
            await restarted.describe()
        except NotInitialized:
            outcomes.add((in_time, "none"))
        else:
            outcomes.add((in_time, "whole"))
            assert [(await restarted.partition(p)).value for p in range(larger.partitions)] == [INITIAL] * 5
            await restarted.delete(larger.key)
        await restarted.initialize(smaller)
        scene.machine.power_loss()
        after = await scene.open()
        assert await after.describe() == smaller
        assert [name for name in scene.names() if name.startswith("partition-")] == ["partition-0"]
        assert "initializing" not in scene.names()
        return in_time

    assert at_every_call(scenario) > 20
    assert outcomes == {(True, "whole"), (True, "none"), (False, "none")}


def test_a_cluster_whose_making_crashed_at_its_end_is_damaged_and_not_new_once_it_loses_its_description() -> None:
    left = []

    async def scenario(scene: Scene, call: int) -> bool:
        in_time = await scene.crash_at(call, lambda coordinator: coordinator.initialize(DESCRIPTION))
        if "description" in scene.names():
            left.append("initializing" in scene.names())
            assert await (await scene.open()).unique_id() == 1
            scene.machine.power_loss()
            process, restarted = await scene.process()
            assert await restarted.unique_id() == 2
            await process.host.disk.remove(f"{DIRECTORY}/description")
            for _ in range(2):
                with pytest.raises(CoordinatorDamaged, match="description"):
                    await scene.made()
        return in_time

    at_every_call(scenario)
    assert True in left


def test_who_looks_while_a_cluster_is_made_and_stands_still_meanwhile_sees_none_or_a_whole_one() -> None:
    seen = set()
    for seed in range(40):
        scene = Scene(seed)

        async def scenario(scene: Scene = scene, paused_after: int = seed) -> None:
            process, looking = await scene.process()
            told: asyncio.Future[object] = asyncio.get_running_loop().create_future()

            async def look() -> None:
                try:
                    told.set_result(await looking.describe())
                except PolonaiseError as error:
                    told.set_result(error)

            process.supervise(look(), "look")
            await asyncio.sleep(paused_after * 0.00002)
            process.pause()
            await scene.made()
            process.resume()
            found = await told
            assert found == DESCRIPTION or isinstance(found, NotInitialized), found
            assert await looking.describe() == DESCRIPTION
            seen.add(type(found))

        scene.run(scenario())
    assert seen == {ClusterDescription, NotInitialized}


@in_scenes(count=30)
async def test_what_was_answered_survives_the_loss_of_power(scene: Scene) -> None:
    writer = await scene.made()
    await writer.set_partition(1, NEXT, 0)
    await writer.set_assignment(Assignment({0: Owner(1, "s:1", 1)}), 0)
    given = await writer.unique_id()
    scene.machine.power_loss()
    restarted = await scene.open()
    assert (await restarted.partition(1)).value == NEXT
    assert (await restarted.assignment()).version == 1
    assert await restarted.unique_id() > given


def test_what_a_reader_was_told_survives_the_loss_of_power_although_the_writer_was_not_done() -> None:
    """The reader sees the new value between the writer's rename and its sync of the directory."""
    seen = set()
    for seed in range(40):
        scene = Scene(seed)

        async def scenario(scene: Scene = scene) -> None:
            writer = await scene.made()
            reader = await scene.open()
            process, writer = await scene.process()
            changing = asyncio.ensure_future(change(writer))
            told = await reader.partition(0)
            while told.version == 0:
                told = await reader.partition(0)
            seen.add(changing.done())
            scene.machine.power_loss()
            assert (await (await scene.open()).partition(0)).version == told.version
            changing.cancel()
            assert not process.alive

        scene.run(scenario())
    assert False in seen


@in_a_scene
async def test_unfinished_changes_are_swept_by_the_next_one(scene: Scene) -> None:
    coordinator = await scene.made()
    process, _ = await scene.process()
    leftover = await process.host.disk.open(f"{DIRECTORY}/assignment.new", create=True)
    await leftover.write(0, [b"torn" * 500])
    process.crash()
    assert "assignment.new" in scene.names()
    coordinator = await scene.open()
    assert (await coordinator.assignment()).version == 0
    await coordinator.unique_id()
    assert "assignment.new" not in scene.names()


# ------------------------------------------------------------------ disks that fail, processes that stop


@pytest.mark.parametrize("fault", ["sync", "write", "read"])
@in_a_scene
async def test_a_failing_disk_is_unavailability_and_never_half_a_change(scene: Scene, *, fault: str) -> None:
    coordinator = await scene.made()
    await coordinator.partition(0)
    disk = scene.machine.disk
    inflict = {"sync": disk.fail_syncs, "write": disk.fail_writes, "read": disk.fail_reads}[fault]
    inflict(None)
    with pytest.raises(CoordinatorUnavailable, match="read again"):
        await coordinator.set_partition(0, NEXT, 0)
    inflict(0)
    found = await coordinator.partition(0)
    assert (found.version, found.value) in ((0, INITIAL), (1, NEXT))
    assert await coordinator.set_partition(0, replace(NEXT, session=9), found.version) is not None


@in_scenes(count=20)
async def test_one_failed_sync_of_the_directory_is_made_good_before_anybody_is_told(scene: Scene) -> None:
    coordinator = await scene.made()
    await coordinator.partition(0)
    changing = asyncio.ensure_future(coordinator.set_partition(0, NEXT, 0))
    await scene.until(lambda: b" partition-0 1 " in scene.contents("partition-0"))
    scene.machine.disk.fail_syncs(1)
    assert await changing is not None
    assert scene.world.faults["failed_sync"] == 1
    scene.machine.power_loss()
    assert (await (await scene.open()).partition(0)).value == NEXT


@in_a_scene
async def test_a_full_disk_is_unavailability_and_the_old_value_stays(scene: Scene) -> None:
    coordinator = await scene.made()
    scene.machine.disk.fill()
    with pytest.raises(CoordinatorUnavailable, match="no "):
        await coordinator.unique_id()
    assert (await coordinator.partition(0)).version == 0
    scene.machine.disk.free()
    assert await coordinator.unique_id() == 1


@in_a_scene
async def test_a_stopped_process_within_a_change_delays_changes_and_not_readers(scene: Scene) -> None:
    await scene.made()
    stopped, its = await scene.process()
    stopped.supervise(change(its), "change")
    await scene.until(lambda: f"{DIRECTORY}/change.lock" in _locked(scene, stopped))
    stopped.pause()
    other = (await scene.process(lock_wait_s=2.0))[1]
    before = scene.world.now
    assert (await other.partition(1)).value == INITIAL
    assert scene.world.now - before < 0.1
    with pytest.raises(CoordinatorUnavailable, match=r"change\.lock.*nothing was changed"):
        await other.unique_id()
    assert 2.0 <= scene.world.now - before < 2.5
    stopped.resume()
    assert await other.unique_id() == 1


def _locked(scene: Scene, process: Process) -> list[str]:
    disk = scene.machine.disk
    held = [file for file, holder in disk.locks.items() if holder is process]
    return [path for path in disk.paths() if any(disk.file(path) is file for file in held)]


# ------------------------------------------------------------------ damage


def test_every_flipped_bit_and_every_cut_of_a_value_is_refused() -> None:
    whole = seal("partition-3", bytes(16), 17, NEXT.encode())
    assert unseal("partition-3", whole, "x").version == 17
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            with pytest.raises(CoordinatorDamaged, match="d/x"):
                unseal("partition-3", bytes(flipped), "d/x")
        with pytest.raises(CoordinatorDamaged):
            unseal("partition-3", whole[:place], "d/x")
    with pytest.raises(CoordinatorDamaged):
        unseal("partition-3", whole + b"\n", "d/x")


def refused(make_it_wrong: Callable[[Scene], None], error: type[PolonaiseError], match: str, *, living: bool) -> None:
    """What a process says when it reads partition 0 after the damage; a `living` one has read the cluster before."""
    scene = Scene()

    async def scenario() -> None:
        coordinator = await scene.made()
        if not living:
            coordinator = await scene.open()
        make_it_wrong(scene)
        with pytest.raises(error, match=match):
            await coordinator.partition(0)
        with pytest.raises(error, match=match):
            await coordinator.set_partition(0, NEXT, 0)

    scene.run(scenario())


def with_format(scene: Scene, name: str) -> None:
    """The value as a later version of Polonaise would write it."""
    line, payload = seal(name, DESCRIPTION.key, 0, b"{}").split(b"\n")
    front = line[:-8].replace(b"polonaise-coordinator 1 ", b"polonaise-coordinator 2 ")
    scene.put(name, front + f"{crc32(payload, crc32(front)):08x}\n".encode() + payload)


@pytest.mark.parametrize("living", [False, True])
def test_what_lies_in_a_value_s_place_and_is_not_that_value_is_refused(living: bool) -> None:
    other_key = bytes(15) + b"\1"
    refused(
        lambda s: s.put("partition-0", s.contents("partition-1")), CoordinatorDamaged, "'partition-1'", living=living
    )
    refused(lambda s: s.put("partition-0", b""), CoordinatorDamaged, "coordinator/partition-0", living=living)
    refused(
        lambda s: s.put("partition-0", seal("partition-0", other_key, 0, INITIAL.encode())),
        WrongClusterKey,
        "partition-0 belongs to cluster",
        living=living,
    )
    refused(
        lambda s: s.put("partition-0", seal("partition-0", DESCRIPTION.key, 0, b"{}")),
        CoordinatorDamaged,
        "partition-0",
        living=living,
    )


def test_a_directory_of_another_format_is_refused() -> None:
    refused(lambda s: with_format(s, "description"), UnsupportedFormat, "format 2", living=False)
    refused(lambda s: with_format(s, "partition-0"), UnsupportedFormat, "format 2", living=True)


@pytest.mark.parametrize("missing", ["description", "partition-0", "unique-id", "assignment"])
@in_a_scene
async def test_a_missing_value_is_damage_and_not_an_empty_cluster(scene: Scene, *, missing: str) -> None:
    await scene.made()
    process, coordinator = await scene.process()
    await process.host.disk.remove(f"{DIRECTORY}/{missing}")
    with pytest.raises(CoordinatorDamaged, match=missing):
        await {
            "description": coordinator.describe,
            "partition-0": lambda: coordinator.partition(0),
            "unique-id": coordinator.unique_id,
            "assignment": coordinator.assignment,
        }[missing]()
    with pytest.raises((CoordinatorDamaged, AlreadyInitialized)):
        await coordinator.initialize(DESCRIPTION)


@in_a_scene
async def test_a_member_whose_directory_was_replaced_is_told_so_and_registers_anew(scene: Scene) -> None:
    coordinator = await scene.open()
    await coordinator.initialize(DESCRIPTION)
    member = await coordinator.register(Registration(1, "a:1"))
    assert await member.renew()
    process, _ = await scene.process()
    disk = process.host.disk
    for name in await disk.list(f"{DIRECTORY}/members"):
        await disk.remove(f"{DIRECTORY}/members/{name}")
    assert not await member.renew(), "nobody sees it any more"
    again = await coordinator.register(Registration(1, "a:1"))
    assert await again.renew()
    assert [each.server for each in await (await scene.open()).members()] == [1]


async def test_a_member_registers_anew_in_a_copy_that_was_made_without_the_folder_of_members(tmp_path: Path) -> None:
    place = tmp_path / "coordinator"
    with contextlib.closing(RealHost()) as host:
        coordinator = coordinator_in(host, str(place))
        await coordinator.initialize(DESCRIPTION)
        member = await coordinator.register(Registration(1, "a:1"))
        place.rename(tmp_path / "latest")
        assert not await member.renew(), "while nothing is there, and nothing is made there"
        assert not place.exists()
        shutil.copytree(tmp_path / "latest", place, ignore=shutil.ignore_patterns("members"))
        assert not await member.renew()
        again = await coordinator.register(Registration(1, "a:1"))
        assert await again.renew()
        assert [each.server for each in await coordinator_in(host, str(place)).members()] == [1]
        await coordinator.close()


def put_a_copy_in_place_of(place: Path) -> None:
    """Put a copy of the directory in its place, as who restores a backup does; the directory itself is `latest`."""
    latest = place.with_name("latest")
    place.rename(latest)
    shutil.copytree(latest, place)


async def test_nobody_is_taken_for_dead_because_a_copy_of_the_directory_was_put_in_its_place(tmp_path: Path) -> None:
    """In the copy no lock is held, so that each process sees the files of the others without an owner."""
    place = tmp_path / "coordinator"
    with contextlib.closing(RealHost()) as one, contextlib.closing(RealHost()) as other:
        first, second = coordinator_in(one, str(place)), coordinator_in(other, str(place))
        await first.initialize(DESCRIPTION)
        stays = await first.register(Registration(1, "a:1"))
        goes = await second.register(Registration(2, "b:1"))
        assert [each.server for each in await first.members()] == [1, 2]
        put_a_copy_in_place_of(place)
        with pytest.raises(CoordinatorUnavailable, match="another directory was put in place of this one"):
            await first.members()
        # Others, who have no name there, may be quicker to look, and remove what nobody has locked.
        assert [each.server for each in await coordinator_in(one, str(place)).members()] == [1]
        assert not await goes.renew()
        with pytest.raises(CoordinatorUnavailable, match=r"all have registered there, in \d"):
            await second.members()
        goes = await second.register(Registration(2, "b:1"))
        await time_passes(REPLACED_S)
        for each in (first, second):
            assert await stays.renew()
            assert await goes.renew()
            assert [member.server for member in await each.members()] == [1, 2]
        await first.close()
        await second.close()


async def test_a_renewal_registers_in_a_copy_of_the_directory_before_anybody_looks_who_lives(tmp_path: Path) -> None:
    """Whoever does not believe the values of the copy only renews."""
    place = tmp_path / "coordinator"
    with contextlib.closing(RealHost()) as one, contextlib.closing(RealHost()) as other:
        first, second = coordinator_in(one, str(place)), coordinator_in(other, str(place))
        await first.initialize(DESCRIPTION)
        memberships = [await each.register(Registration(number, f"s:{number}"))
                       for number, each in ((1, first), (2, second))]  # fmt: skip
        put_a_copy_in_place_of(place)
        for membership in memberships:
            assert not await membership.renew(), "others may have looked before"
            assert await membership.renew()
        # By one who has just come, and waits for nobody.
        assert [each.server for each in await coordinator_in(one, str(place)).members()] == [1, 2]
        for each in (first, second):
            with pytest.raises(CoordinatorUnavailable, match="another directory was put in place of this one"):
                await each.members()
            await each.close()


@in_a_scene
async def test_a_damaged_registration_of_a_living_server_is_named(scene: Scene) -> None:
    coordinator = await scene.made()
    await coordinator.register(Registration(5, "s:5"))
    scene.put("members/5", b"torn")
    with pytest.raises(CoordinatorDamaged, match=r"members/5.*restart server 5"):
        await (await scene.open()).members()


def test_crashed_members_are_swept() -> None:
    async def scenario(scene: Scene, call: int) -> bool:
        await scene.made()
        in_time = await scene.crash_at(call, lambda coordinator: coordinator.register(Registration(5, "s:5")))
        assert await (await scene.open()).members() == []
        assert "members/5" not in scene.names()
        return in_time

    at_every_call(scenario)


async def test_a_change_that_fails_after_its_caller_has_given_up_is_an_error_of_nobodys(
    host: RealHost, tmp_path: Path
) -> None:
    begun, fails = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await fails.wait()
        raise CoordinatorUnavailable("the disk has failed")

    directory = ValueDirectory(host, str(tmp_path), 10.0)
    with errors_nobody_took() as told:
        changing = asyncio.ensure_future(directory.alone(CHANGE_LOCK, work))
        await begun.wait()
        changing.cancel()
        await asyncio.wait([changing])
        fails.set()
        await directory.settle()
        await asyncio.sleep(0)
        del changing
    assert told == []


async def test_a_file_in_the_directory_s_place_is_waited_for_once_the_cluster_was_read(tmp_path: Path) -> None:
    with contextlib.closing(RealHost()) as host:
        directory = tmp_path / "coordinator"
        coordinator = coordinator_in(host, str(directory))
        await coordinator.initialize(DESCRIPTION)
        await coordinator.describe()
        directory.rename(tmp_path / "moved")
        directory.touch()
        with pytest.raises(CoordinatorUnavailable):
            await coordinator.describe()
        with pytest.raises(BadOption, match="not a directory"):
            await coordinator_in(host, str(directory)).describe()
        directory.unlink()
        (tmp_path / "moved").rename(directory)
        assert await coordinator.describe() == DESCRIPTION


# ------------------------------------------------------------------ real processes

COUNTING = """
import asyncio, sys
from dataclasses import replace
from polonaise.coordination.file import REPLACED_S, FileBackend, coordinator_in
from polonaise.coordination.values import Registration
from polonaise.host.real import run

async def main(host):
    coordinator = coordinator_in(host, sys.argv[1])
    server = await coordinator.unique_id()
    await coordinator.register(Registration(server, f"s:{server}"))
    print(server, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for _ in range(int(sys.argv[2])):
        while True:
            found = await coordinator.partition(0)
            raised = replace(found.value, session=found.value.session + 1)
            if await coordinator.set_partition(0, raised, found.version) is not None:
                break
        print(await coordinator.unique_id(), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

run(main)
"""


def test_several_real_processes_lose_no_update_and_a_killed_one_is_no_member(tmp_path: Path) -> None:
    rounds, count = 15, 4
    directory = str(tmp_path / "coordinator")
    host = RealHost()

    async def initialize() -> None:
        await coordinator_in(host, directory).initialize(DESCRIPTION)

    async def look() -> tuple[int, list[int]]:
        coordinator = coordinator_in(host, directory)
        return (await coordinator.partition(0)).version, [m.server for m in await coordinator.members()]

    asyncio.run(initialize())
    command = [sys.executable, "-c", COUNTING, directory, str(rounds)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        servers = [_line(process) for process in processes]
        assert asyncio.run(look()) == (0, sorted(servers))
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        ids = servers + [_line(process) for _ in range(rounds) for process in processes]
        processes[0].kill()
        processes[0].wait()
        assert asyncio.run(look()) == (rounds * count, sorted(servers[1:]))
        assert sorted(ids) == list(range(1, count + rounds * count + 1))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        host.close()


def _line(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


async def test_an_entry_that_stays_as_it_is_is_looked_at_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    backend = FileBackend(RealHost(), "nowhere")
    monkeypatch.setattr("polonaise.coordination.file.asyncio.sleep", sleep)
    for version in (7,) * 12 + (8,):
        await backend.changed("assignment", version)
    assert pauses[:2] == [0.05, 0.0625]
    assert pauses[8:] == [0.25] * 4 + [0.05], "soon again after a change: these come in groups"
