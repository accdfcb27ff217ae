"""A node that dies at every call to its disk in turn, by itself or with the power: what it said before stays true.

The script is a small life of a replica: three sessions with appends over several segments, a cut, copies, joins. It
notes what it was told; whatever happens to the node, that is what the node must still know afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest

from polonaise.errors import ConnectionLost, DiskFailed, DiskFull, Fenced, PolonaiseError
from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.terms import NO_SESSION, UNRESOLVED
from polonaise_proving.stages.simulated import Configuration, World
from rigs.log import Maker, crcs
from rigs.storage import Node, Owner, connected, fenced, opened, serve, simulate

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 1_200


class History:
    """What the owner sent, and what it was told."""

    def __init__(self) -> None:
        self.fence = self.joined = NO_SESSION
        self.confirmed = -1
        self.must: list[Batch] = []
        """Acknowledged, and not asked to be cut since."""
        self.sent: set[int] = set()
        self.gone: set[int] = set()
        """Cut, and the node said so."""
        self.finished = False

    async def run(self, owner: Owner) -> None:
        maker = Maker()
        good = maker.batches(9, size=150, changes=[(b"k", b"v")])
        dirty = Maker(5, good[5].crc).batches(5, size=150, salt=1)
        await self._start(owner, 1)
        await self._store(owner, 1, good[:2])
        await self._store(owner, 2, good[2:4])
        await self._confirm(owner, 3)
        await self._store(owner, 3, good[4:6])
        await self._store(owner, 4, dirty)
        await self._fence(owner, 2)
        await self._cut(owner, 5)
        await self._copy(owner, good[6:])
        await self._join(owner)
        await self._confirm(owner, 8)
        await self._store(owner, 1, maker.batches(2, session=2, size=150))
        await self._fence(owner, 3)
        await self._cut(owner, 8)
        await self._join(owner)
        await self._store(owner, 1, Maker(8, good[8].crc).batches(3, size=150, salt=2))
        self.finished = True

    # ------------------------------------------------------------------ steps: asked, then noted

    async def _fence(self, owner: Owner, session: int) -> None:
        info = await owner.fence(session)
        owner.acknowledged = 0
        self.fence = session
        assert (info.fence, info.max_synced) == (session, len(self.must) - 1)

    async def _join(self, owner: Owner) -> None:
        await owner.join(len(self.must) - 1, self.must[-1].crc if self.must else 0)
        self.joined = owner.session

    async def _start(self, owner: Owner, session: int) -> None:
        await self._fence(owner, session)
        await self._join(owner)

    async def _store(self, owner: Owner, number: int, batches: Sequence[Batch]) -> None:
        self.sent.update(batch.crc for batch in batches)
        await owner.store(number, *batches)
        self.must += batches

    async def _copy(self, owner: Owner, batches: Sequence[Batch]) -> None:
        self.sent.update(batch.crc for batch in batches)
        await owner.copy(batches)
        self.must += batches

    async def _cut(self, owner: Owner, last: int) -> None:
        cut = self.must[last + 1 :]
        del self.must[last + 1 :]
        await owner.truncate(last)
        self.gone.update(batch.crc for batch in cut)

    async def _confirm(self, owner: Owner, mark: int) -> None:
        await owner.confirm(mark)
        self.confirmed = mark

    # ------------------------------------------------------------------ afterwards

    async def check(self, owner: Owner, *, may_have_lost: bool) -> None:
        """The node knows all that it said, and can be used."""
        if self.fence > 0:
            with pytest.raises(Fenced):
                await owner.fence(self.fence - 1)
        info = await owner.fence(90)
        assert info.joined >= self.joined
        assert info.confirmed >= self.confirmed
        must = self.must
        if may_have_lost and info.lost_above != UNRESOLVED:
            must = must[: info.lost_above + 1]
        else:
            assert info.lost_above == UNRESOLVED
        held = await owner.read_all()
        assert info.max_synced == len(held) - 1
        assert info.last_crc == (held[-1].crc if held else 0)
        assert crcs(held[: len(must)]) == crcs(must), "nothing acknowledged is missing"
        assert {batch.crc for batch in held} <= self.sent, "nothing is invented"
        assert not {batch.crc for batch in held} & self.gone, "nothing that was cut comes back"
        assert (await owner.digest(info.max_synced))[0] == info.last_crc
        mark = min(info.max_synced, len(must) - 1)
        done = await owner.truncate(mark)
        await owner.join(mark, done.last_crc)
        await owner.store(1, *Maker(mark, done.last_crc).batches(8, size=150, salt=9))
        self.must = held[: mark + 1]


def live(
    seed: int,
    inflict: Callable[[Node], None],
    *,
    crash_on_call: int = 0,
    power_loss: bool = False,
    may_fail: tuple[type[BaseException], ...] = (),
    may_have_lost: bool = False,
) -> tuple[int, History]:
    """One life of the script on a node to which something happens, a second of the node, a look, and another."""
    world = World(seed, Configuration())
    node = Node(world.machine("storage"))
    history = History()
    calls = 0

    async def script(host: Host) -> None:
        try:
            await history.run(await connected(host))
        except PolonaiseError:
            return

    async def look(host: Host) -> None:
        owner = await connected(host)
        await history.check(owner, may_have_lost=may_have_lost)

    async def again(host: Host) -> None:
        info = await (await connected(host)).fence(91)
        assert info.joined == 90
        if not may_have_lost or info.lost_above == UNRESOLVED:
            # With it, a name whose sync failed once may be gone: no later sync makes up for that, and it is told.
            assert info.max_synced == len(history.must) + 7, "what was told before the last power loss"

    async def scenario() -> None:
        nonlocal calls
        node.start(segment_bytes_max=SEGMENT_BYTES, may_fail=may_fail, crash_on_call=crash_on_call)
        inflict(node)
        await serve(world, script)
        calls = node.process.calls
        node.mend()
        await node.restart(power_loss=power_loss, segment_bytes_max=SEGMENT_BYTES)
        await serve(world, look)
        await node.restart(power_loss=True)
        await serve(world, again)

    world.run(scenario())
    return calls, history


def nothing(node: Node) -> None:
    return


@functools.cache
def calls_of_a_life() -> int:
    calls, history = live(0, nothing)
    assert history.finished
    return calls


def test_the_script_comes_to_its_end_when_nothing_happens() -> None:
    assert calls_of_a_life() > 100


PARTS = 8


@pytest.mark.exhaustive
@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power loss"])
@pytest.mark.parametrize("part", range(PARTS))
def test_a_node_that_dies_at_any_call_keeps_its_word(part: int, power_loss: bool) -> None:
    for call in range(1 + part, calls_of_a_life() + 1, PARTS):
        live(call, nothing, crash_on_call=call, power_loss=power_loss)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_node_that_loses_power_at_any_call_keeps_its_word_whatever_is_left(seed: int) -> None:
    for call in range(1, calls_of_a_life() + 1):
        live(10_000 * seed + call, nothing, crash_on_call=call, power_loss=True)


# ------------------------------------------------------------------ disks that fail


@pytest.mark.exhaustive
@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power loss"])
@pytest.mark.parametrize(("kind", "most"), [("sync", 30), ("write", 36), ("read", 6)])
def test_a_node_whose_disk_fails_once_acknowledges_only_what_lasts(kind: str, most: int, power_loss: bool) -> None:
    finished = 0
    for number in range(1, most):

        def inflict(node: Node, number: int = number) -> None:
            node.fail_at(kind, number)

        _, history = live(number, inflict, power_loss=power_loss, may_fail=(DiskFailed,), may_have_lost=True)
        finished += history.finished
    assert 0 < finished <= most / 2, "the failures reach to the end of the script, and not far beyond it"


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power loss"])
def test_a_node_whose_disk_is_full_refuses_and_keeps_what_it_has(power_loss: bool) -> None:
    for spare in range(0, 9_000, 300):

        def inflict(node: Node, spare: int = spare) -> None:
            node.disk.fill(spare)

        live(spare, inflict, power_loss=power_loss, may_fail=(DiskFull,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20))
def test_a_fence_that_reads_back_after_its_sync_failed_is_durable_before_it_is_told(seed: int) -> None:
    async def script(host: Host, node: Node) -> None:
        await (await connected(host)).open(1)
        owner = await connected(host)
        node.fail_at("sync", 1)
        with pytest.raises(ConnectionLost):
            await owner.fence(2)
        assert node.process.dead, "what can't keep its promises must not be there to be asked"
        node.mend()
        node.start()
        assert (await (await connected(host)).fence(2)).fence == 2
        await node.restart(power_loss=True)
        with pytest.raises(Fenced):
            await (await connected(host)).fence(1)

    simulate(script, seed=seed, may_fail=(DiskFailed,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20))
def test_batches_that_read_back_after_their_sync_failed_unheard_are_durable_before_they_are_told(seed: int) -> None:
    made = Maker().batches(3, size=3_000)

    async def script(host: Host, node: Node) -> None:
        owner = await opened(host)
        await owner.store(1, made[0])
        fails = node.disk.fails

        def fails_and_dies(what: str) -> bool:
            if what == "sync":
                node.process.crash_on_call = node.process.calls + 1
                node.disk.fail_syncs(1)
            return fails(what)

        node.disk.fails = fails_and_dies  # type: ignore[method-assign]
        owner.send(2, *made[1:])
        with pytest.raises(ConnectionLost):
            await owner.settled(2)
        node.mend()
        node.start()
        told = await (await connected(host)).fence(2)
        assert told.max_synced >= 0
        await node.restart(power_loss=True)
        later, info = await fenced(host, 3)
        assert (info.max_synced, info.last_crc, info.lost_above) == (told.max_synced, told.last_crc, UNRESOLVED)
        assert crcs(await later.read_all()) == crcs(made[: info.max_synced + 1])

    simulate(script, seed=seed)
