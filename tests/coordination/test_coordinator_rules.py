"""The coordinator's rules for what no backend of ours would answer by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.backend import Entry, damaged, deleted, outdated
from polonaise.coordination.coordinator import first_entries
from polonaise.coordination.lease import LEASE_S, RENEW_S
from polonaise.coordination.rebuilding import UNIQUE_IDS_APART
from polonaise.coordination.seen import CALM_S
from polonaise.coordination.values import (
    UNIQUE_ID_MAX,
    VERSIONS_APART,
    Assignment,
    Beginning,
    ClusterDescription,
    ExpectedServer,
    Owner,
    Registration,
)
from polonaise.errors import CoordinatorDamaged, CoordinatorOutdated, CoordinatorUnavailable, PolonaiseError

DESCRIPTION = ClusterDescription(bytes(range(16)), 1, ("a:1", "b:1", "c:1"))
KEY = DESCRIPTION.key
OTHER_KEY = b"k" * 16


class Scripted:
    """A backend that answers what the test says."""

    def __init__(self) -> None:
        self.entries = first_entries(DESCRIPTION)
        self.names: dict[str, Entry] = {}
        self.now_s = 0.0
        self.now_us = 0
        self.held: list[asyncio.Future[None]] | None = None
        """While it is a list, answers to reads and changes wait there until they are let go."""

    has_servers = False
    found_again_s = 0.0
    renewed_us: int | None = None

    async def servers(self, timeout_s: float) -> Mapping[str, str]:
        return {}

    def place(self, key: str) -> str:
        return f"the place of {key}"

    async def read(self, key: str) -> Entry | None:
        answer = self.entries.get(key)
        await self._let_go()
        return answer

    async def _let_go(self) -> None:
        if self.held is not None:
            self.held.append(asyncio.get_running_loop().create_future())
            await self.held[-1]

    async def add(self, entries: Mapping[str, Entry]) -> None:
        self.entries = {**entries, **self.entries}

    async def delete(self, description: Entry) -> bool:
        self.entries = {}
        return True

    async def compare_and_set(self, key: str, contents: bytes, present: Entry | None, least: int = -1) -> Entry | None:
        found = self.entries[key]
        if found.version < least or (present is not None and found != present):
            return None
        changed = self.entries[key] = Entry(found.cluster_key, found.version + 1, contents)
        await self._let_go()
        return changed

    async def registered(self, _: str) -> dict[str, Entry]:
        return dict(self.names)

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        self.now_us += 1
        return self.now_us

    def raise_version(self, key: str, by: int) -> None:
        self.entries[key] = self.entries[key]._replace(version=self.entries[key].version + by)


@pytest.fixture
def backend() -> Scripted:
    return Scripted()


@pytest.fixture
def coordinator(backend: Scripted) -> Coordinator:
    return Coordinator(backend, backend)  # type: ignore[arg-type]


async def test_an_answer_that_was_overtaken_by_a_newer_one_is_no_value_that_went_back_nor_forgets_the_newer(
    backend: Scripted, coordinator: Coordinator
) -> None:
    await coordinator.describe()
    old = backend.entries["assignment"]
    backend.held = []
    slow = asyncio.ensure_future(coordinator.assignment())
    await asyncio.sleep(0)
    backend.raise_version("assignment", 1)
    quick = asyncio.ensure_future(coordinator.assignment())
    await asyncio.sleep(0)
    for answer, reading, version in ((backend.held[1], quick, 1), (backend.held[0], slow, 0)):
        answer.set_result(None)
        assert (await reading).version == version
    backend.held = None
    backend.entries["assignment"] = old
    with pytest.raises(CoordinatorDamaged, match="went back from version 1 to 0"):
        await coordinator.assignment()


def put(backend: Scripted, version: int, **topics: tuple[int, ...]) -> Entry:
    """Put a description with these topics in place, of this version."""
    described = replace(DESCRIPTION, topics=topics)
    backend.entries["description"] = Entry(DESCRIPTION.key, version, described.encode())
    return backend.entries["description"]


async def test_a_description_that_went_back_is_not_believed_by_a_later_version_but_as_it_was(
    backend: Scripted, coordinator: Coordinator
) -> None:
    latest = put(backend, 5, t=(1,))
    await coordinator.describe()
    put(backend, 4, t=(1,))
    with pytest.raises(CoordinatorOutdated, match="went back from version 5 to 4"):
        await coordinator.describe()
    for version in (6, 5, 7):
        put(backend, version, t=(1,), u=(2,))
        with pytest.raises(CoordinatorOutdated, match=f"its version {version} does not follow version 5"):
            await coordinator.describe()
    backend.entries["description"] = latest
    assert (await coordinator.description()).version == 5
    put(backend, 6, t=(1,), u=(2,))
    assert (await coordinator.description()).version == 6, "once it is back, it goes on"


@pytest.mark.parametrize(
    ("version", "topics"), [(5, {"u": (1,)}), (6, {"u": (1,)}), (6, {}), (6, {"t": (2,), "u": (1,)})]
)
async def test_a_description_without_a_topic_that_was_there_is_of_an_older_copy_that_was_changed(
    backend: Scripted, coordinator: Coordinator, version: int, topics: dict[str, tuple[int, ...]]
) -> None:
    put(backend, 5, t=(1,))
    await coordinator.describe()
    put(backend, version, **topics)
    for _ in range(2):
        with pytest.raises(CoordinatorOutdated, match="does not follow version 5"):
            await coordinator.describe()


async def test_a_description_that_was_made_again_need_not_follow(backend: Scripted, coordinator: Coordinator) -> None:
    put(backend, 5, t=(1,))
    await coordinator.describe()
    put(backend, 4)
    with pytest.raises(CoordinatorOutdated):
        await coordinator.describe()
    put(backend, 4 + VERSIONS_APART, u=(1,))
    assert (await coordinator.describe()).topics == {"u": (1,)}
    put(backend, 5 + VERSIONS_APART, u=(1,), v=(2,))
    assert (await coordinator.describe()).topics == {"u": (1,), "v": (2,)}


async def test_an_id_whose_answer_was_overtaken_by_a_look_at_the_counter_is_no_older_state(
    backend: Scripted, coordinator: Coordinator
) -> None:
    assert await coordinator.unique_id() == 1
    backend.held = []
    slow = asyncio.ensure_future(coordinator.unique_id())
    await asyncio.sleep(0)
    look = asyncio.ensure_future(coordinator.unique_ids_given())
    await asyncio.sleep(0)
    for answer, asking in ((backend.held[1], look), (backend.held[0], slow)):
        answer.set_result(None)
        assert await asking == 2
    backend.held = None
    backend.raise_version("unique-id", 2)  # by others
    assert await coordinator.unique_id() == 5


async def put_back(backend: Scripted, coordinator: Coordinator) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """Have the coordinator see its counter of ids at 5, put the state before that back; return this and the latest."""
    backend.raise_version("unique-id", 4)
    older = dict(backend.entries)
    assert await coordinator.unique_id() == 5
    latest = backend.entries
    backend.entries = dict(older)
    return older, latest


async def all_is_well_with(latest: dict[str, Entry], backend: Scripted, coordinator: Coordinator) -> None:
    """Assert that with the latest state of `put_back` back, the next id is given out."""
    backend.entries = latest
    assert await coordinator.unique_ids_given() == 5
    backend.now_s += CALM_S
    assert await coordinator.unique_id() == 6


async def test_a_counter_of_ids_that_went_back_is_neither_counted_up_nor_believed_until_it_is_back(
    backend: Scripted, coordinator: Coordinator
) -> None:
    older, latest = await put_back(backend, coordinator)
    for _ in range(3):
        with pytest.raises(CoordinatorOutdated, match="went back from version 5 to 4"):
            await coordinator.unique_id()
    assert backend.entries == older, "nothing is written"
    backend.raise_version("unique-id", 2)  # by others, who have not seen the later state
    for ask in (coordinator.unique_id, coordinator.unique_ids_given):
        with pytest.raises(CoordinatorOutdated, match="its version 6 does not follow version 5"):
            await ask()
    await all_is_well_with(latest, backend, coordinator)


async def test_a_counter_that_others_counted_up_in_the_older_state_is_not_taken_for_the_one_that_was_known(
    backend: Scripted, coordinator: Coordinator
) -> None:
    _, latest = await put_back(backend, coordinator)
    other = Coordinator(backend, backend)  # type: ignore[arg-type]
    for given in (5, 6):
        assert await other.unique_id() == given
        with pytest.raises(CoordinatorOutdated, match=f"its version {given} does not follow version 5"):
            await coordinator.unique_ids_given()
    await all_is_well_with(latest, backend, coordinator)


async def test_nothing_that_is_read_while_another_value_is_doubted_counts_as_known(
    backend: Scripted, coordinator: Coordinator
) -> None:
    put(backend, 5, t=(1,))
    backend.raise_version("unique-id", 4)
    assert await coordinator.unique_ids_given() == 4
    latest = dict(backend.entries)
    put(backend, 4)
    backend.raise_version("unique-id", 2)  # by others, in the older state
    for ask in (coordinator.describe, coordinator.unique_ids_given):
        with pytest.raises(CoordinatorOutdated, match="the place of description: "):
            await ask()
    backend.entries = latest
    assert (await coordinator.describe()).topics == {"t": (1,)}
    assert await coordinator.unique_ids_given() == 4


async def test_what_was_read_just_before_the_latest_state_is_back_is_read_again(
    backend: Scripted, coordinator: Coordinator
) -> None:
    put(backend, 5, t=(1,))
    await coordinator.describe()
    latest = dict(backend.entries)
    put(backend, 4)
    with pytest.raises(CoordinatorOutdated):
        await coordinator.describe()
    owned = Assignment({0: Owner(3, "s:3", 1)})
    backend.entries["assignment"] = backend.entries["assignment"]._replace(version=7, contents=owned.encode())
    backend.held = []
    reading = asyncio.ensure_future(coordinator.assignment())
    await asyncio.sleep(0)
    (answer,), backend.held = backend.held, None
    backend.entries = latest
    answer.set_result(None)
    assert (await reading).version == 0


@pytest.mark.parametrize("key", ["unique-id", "assignment", "partition-0", "description"])
async def test_while_one_value_is_older_than_it_was_no_other_is_believed_or_changed(
    backend: Scripted, coordinator: Coordinator, key: str
) -> None:
    for each in ("unique-id", "assignment", "partition-0", "description"):
        backend.raise_version(each, 4)
    value, assignment = await coordinator.partition(0), await coordinator.assignment()
    described = await coordinator.description()
    await coordinator.unique_ids_given()
    latest = dict(backend.entries)
    reads = {
        "unique-id": coordinator.unique_ids_given,
        "assignment": coordinator.assignment,
        "partition-0": lambda: coordinator.partition(0),
        "description": coordinator.describe,
    }
    changes = (
        coordinator.unique_id,
        lambda: coordinator.set_partition(0, replace(value.value, session=1), value.version),
        lambda: coordinator.set_assignment(assignment.value, assignment.version),
        lambda: coordinator.set_description(described.value, described.version),
        lambda: coordinator.make_partitions({1: ("a:1",)}, ["a:1"]),
        lambda: coordinator.expect_server("s", ExpectedServer(3, "s:1")),
        lambda: coordinator.delete(KEY),
    )
    backend.raise_version(key, -1)
    with pytest.raises(CoordinatorOutdated, match=f"the place of {key}: it went back from version 4 to 3"):
        await reads[key]()
    for version in (3, 5):
        backend.entries[key] = latest[key]._replace(version=version)
        there = dict(backend.entries)
        for ask in (*reads.values(), *changes):
            with pytest.raises(CoordinatorOutdated, match=f"the place of {key}: "):
                await ask()  # type: ignore[operator]
        assert backend.entries == there
    backend.entries = dict(latest)
    for read in reads.values():
        await read()
    assert await coordinator.partition(0) == value


async def test_values_of_one_version_that_differ_are_of_two_histories(
    backend: Scripted, coordinator: Coordinator
) -> None:
    await coordinator.assignment()
    before = backend.entries["assignment"]
    owned = Assignment({0: Owner(3, "s:3", 1)})
    backend.entries["assignment"] = before._replace(contents=owned.encode())
    for _ in range(2):
        with pytest.raises(CoordinatorOutdated, match="its version 0 does not follow version 0"):
            await coordinator.assignment()
    backend.entries["assignment"] = before
    assert (await coordinator.assignment()).value == Assignment()


async def test_the_first_to_be_sure_again_changes_nothing_before_the_others_have_seen_what_is_back(
    backend: Scripted, coordinator: Coordinator
) -> None:
    other = Coordinator(backend, backend)  # type: ignore[arg-type]
    backend.raise_version("assignment", 4)
    latest = backend.entries["assignment"]
    for each in (coordinator, other):
        await each.assignment()
    backend.raise_version("assignment", -2)
    for each in (coordinator, other):
        with pytest.raises(CoordinatorOutdated):
            await each.assignment()
    backend.entries["assignment"] = latest
    found = await coordinator.assignment()
    for change in (coordinator.unique_id, lambda: coordinator.set_assignment(found.value, found.version)):
        with pytest.raises(CoordinatorUnavailable, match="what this process had seen is there again only now"):
            await change()
    backend.now_s += CALM_S - 0.1
    await other.assignment()
    with pytest.raises(CoordinatorUnavailable, match=r"For 0.1 s more"):
        await coordinator.unique_id()
    backend.now_s += 0.2
    assert await coordinator.unique_id() == 1
    assert await coordinator.set_assignment(found.value, found.version) is not None


async def test_values_that_were_made_again_end_every_doubt(backend: Scripted, coordinator: Coordinator) -> None:
    for key in ("unique-id", "assignment"):
        backend.raise_version(key, 4)
    await coordinator.assignment()
    await coordinator.unique_ids_given()
    for key, ask in (("unique-id", coordinator.unique_ids_given), ("assignment", coordinator.assignment)):
        backend.raise_version(key, -1)
        with pytest.raises(CoordinatorOutdated):
            await ask()  # type: ignore[operator]
    beginning = Beginning(unique_id=UNIQUE_IDS_APART, version=VERSIONS_APART)
    backend.entries = first_entries(DESCRIPTION, beginning)
    assert await coordinator.unique_id() == UNIQUE_IDS_APART + 1
    assert (await coordinator.assignment()).version == VERSIONS_APART


async def test_a_description_of_two_clusters_is_refused(backend: Scripted, coordinator: Coordinator) -> None:
    backend.entries["description"] = backend.entries["description"]._replace(cluster_key=OTHER_KEY)
    with pytest.raises(CoordinatorDamaged, match="the place of description: it has two different cluster keys"):
        await coordinator.describe()


async def test_unique_ids_end_below_two_to_the_31(backend: Scripted, coordinator: Coordinator) -> None:
    backend.raise_version("unique-id", UNIQUE_ID_MAX - 1)
    assert await coordinator.unique_id() == UNIQUE_ID_MAX == 2**31 - 1
    for _ in range(2):
        with pytest.raises(PolonaiseError, match="have been given out"):
            await coordinator.unique_id()


async def test_a_registration_of_another_cluster_in_the_same_place_is_passed_over(
    backend: Scripted, coordinator: Coordinator
) -> None:
    backend.names = {
        "5": Entry(OTHER_KEY, 0, Registration(5, "s:5").encode()),
        "12": Entry(KEY, 0, Registration(12, "s:12").encode()),
    }
    assert [each.server for each in await coordinator.members()] == [12]


@pytest.mark.parametrize(
    "wrong",
    [
        Entry(KEY, 0, b""),
        Entry(KEY, 0, b"[5]"),
        Entry(KEY, 0, b'[5,"s:5"]'),
        Entry(KEY, 0, Registration(6, "s:5").encode()),
    ],
)
async def test_a_registration_that_is_not_its_server_s_is_named_as_long_as_that_works(
    backend: Scripted, coordinator: Coordinator, wrong: Entry
) -> None:
    backend.names = {"5": wrong, "12": Entry(KEY, 0, Registration(12, "s:12").encode())}
    with pytest.raises(CoordinatorDamaged, match=r"the place of members/5: .* restart server 5"):
        await coordinator.members()
    for beat in range(int(LEASE_S / RENEW_S) + 1):
        backend.now_s += RENEW_S
        backend.names["12"] = backend.names["12"]._replace(version=beat)
        if beat < LEASE_S / RENEW_S - 1:
            with pytest.raises(CoordinatorDamaged):
                await coordinator.members()
    assert await coordinator.members() == [Registration(12, "s:12")]


async def test_a_member_that_comes_back_after_it_was_gone_works_until_its_lease_runs_out_again(
    backend: Scripted, coordinator: Coordinator
) -> None:
    entry = Entry(KEY, 0, Registration(5, "s:5").encode())

    async def looks(count: int) -> int:
        for _ in range(count):
            backend.now_s += RENEW_S
            members = await coordinator.members()
        return len(members)

    backend.names = {"5": entry}
    assert await looks(20) == 0
    backend.names = {}
    assert await looks(1) == 0
    backend.names = {"5": entry}
    assert await looks(2) == 1
    assert await looks(20) == 0


def test_a_registration_without_preferences_is_what_older_versions_read() -> None:
    assert Registration(5, "s:5").encode() == b'[5, "s:5"]'
    preferring = Registration(5, "s:5", frozenset({3, 0}))
    assert preferring.encode() == b'[5, "s:5", [0, 3]]'
    assert Registration.decode(preferring.encode()) == preferring
    assert Registration.decode(b'[5, "s:5"]') == Registration(5, "s:5")


def test_only_where_it_may_be_one_is_an_embedded_log_spoken_of() -> None:
    for error in (lambda place: damaged(place, "gone"), deleted, lambda place: outdated(place, 2, 1)):
        in_zookeeper, in_a_directory = (
            str(error(place)) for place in ("zookeeper://m1:2181/bank/cluster", "/d/cluster")
        )
        assert "polonaise cluster recover" in in_zookeeper
        assert "embedded" not in in_zookeeper
        assert "for an embedded log with --coordinator embedded:PATH" in in_a_directory


async def test_what_replicas_prove_keeps_the_assignment_until_its_session_is_there_and_other_partitions_go_on(
    backend: Scripted, coordinator: Coordinator
) -> None:
    present = await coordinator.partition(0)
    assignment = await coordinator.assignment()
    await coordinator.prove_older(0, 3)

    async def assert_kept() -> None:
        with pytest.raises(CoordinatorOutdated, match="replicas know of session 3, and it does not"):
            await coordinator.set_assignment(assignment.value, assignment.version)

    await assert_kept()
    tried = replace(present.value, session=3, outdated=3)  # what an older state says after enough attempts
    for value in (replace(present.value, session=2), tried):
        backend.entries["partition-0"] = Entry(KEY, 9, value.encode())
        await assert_kept()
    # It may be so for good: sessions of other partitions begin, and clients get ids.
    assert await coordinator.unique_id() == 1
    written = await coordinator.set_partition(0, replace(tried, session=4), 9)
    assert written is not None
    # Nothing of what is known may be held against the latest state: neither versions nor contents.
    backend.entries["partition-0"] = Entry(KEY, 1, replace(present.value, session=3).encode())
    backend.entries["assignment"] = Entry(KEY, assignment.version, Assignment({0: Owner(4, "d:1", 1)}).encode())
    backend.raise_version("unique-id", -1)
    latest = await coordinator.assignment()
    assert latest.value.owners[0].server == 4
    assert await coordinator.unique_ids_given() == 0
    with pytest.raises(CoordinatorUnavailable, match="is there again only now"):
        await coordinator.set_assignment(latest.value, latest.version)
    backend.now_s += CALM_S
    assert await coordinator.set_assignment(latest.value, latest.version) is not None


async def test_where_processes_find_the_coordinator_again_one_by_one_more_time_passes_before_a_change(
    backend: Scripted,
) -> None:
    backend.found_again_s = 6.0
    coordinator = Coordinator(backend, backend)  # type: ignore[arg-type]
    older, latest = await put_back(backend, coordinator)
    with pytest.raises(CoordinatorOutdated):
        await coordinator.unique_ids_given()
    assert older != latest
    backend.entries = latest
    with pytest.raises(CoordinatorUnavailable, match=r"For 11\.0 s more"):
        await coordinator.unique_id()
    backend.now_s += 11
    assert await coordinator.unique_id() == 6
