"""Two clients with one id, which a coordinator of an older state gives out again: neither is taken for the other."""

from __future__ import annotations

import asyncio

import pytest

from polonaise import testing
from polonaise.client.clientparts import Identity
from polonaise.errors import ConsistencyLost
from rigs.clients import Memo, World
from rigs.waiting import nothing_happens_for, wait_until


@pytest.fixture(autouse=True)
def one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Identity._take
    monkeypatch.setattr(Identity, "_take", lambda self, _: take(self, 90))


@pytest.mark.slow
async def test_a_lease_that_one_of_them_holds_the_other_one_does_not_hold() -> None:
    async with testing.log() as log, log.cluster.connect() as other:
        assert log.client_id == other.client_id == 90
        first, second = log.lease("n"), other.lease("n")
        await first.acquire()
        waiting = asyncio.ensure_future(second.acquire())
        await nothing_happens_for(0.3)
        assert (first.held, second.held, waiting.done()) == (True, False, False)
        await first.release()
        await waiting


async def test_what_an_earlier_one_has_appended_is_no_append_of_the_later_one() -> None:
    async with testing.log() as log:
        await log.append(b"of the earlier one")
        view = Memo()
        async with log.cluster.connect(view=view) as other:
            assert other.client_id == 90
            receipt = await other.append(b"of the later one")
            assert receipt.id == 1
            assert receipt.sequence == 1
            assert other.trouble(0) is None
        first, second = log.transactions()
        assert first.request_id != second.request_id


async def test_an_append_that_waits_is_not_committed_by_the_same_number_of_another_client(world: World) -> None:
    client = await world.ready_client()
    world.server.hold = True
    receipt = client.append(b"mine")
    await wait_until(lambda: world.server.held)
    _, _, appends = world.server.held[0]
    earlier = appends.sequences[0] - 60_000_000
    for sequence in (1, earlier):
        world.log.fill(b"of another one", client=90, sequence=sequence)
    world.server.feed_all()
    await nothing_happens_for(0.1)
    assert (receipt.id, receipt.failure) == (-1, None)
    world.server.release()
    assert (await receipt).id == 2


async def test_a_client_whose_id_a_later_one_was_given_says_what_to_do(world: World) -> None:
    client = await world.ready_client()
    receipt = await client.append(b"mine")
    later = world.server.heard.appends[-1][1].sequences[0] + 60_000_000
    assert receipt.sequence == 1
    world.log.fill(b"of a later one", client=90, sequence=later)
    world.server.feed_all()
    await wait_until(lambda: client.trouble(0))
    trouble = client.trouble(0)
    assert isinstance(trouble, ConsistencyLost)
    assert "another client may have been given this one's id: close this one and connect again" in str(trouble)
