"""What all connections hold together, and who has to go when that is too much."""

from __future__ import annotations

import asyncio

from polonaise.errors import Overloaded, PolonaiseError
from polonaise.link.budget import Budget
from polonaise.wire.messages import Refused
from rigs.link import Rig, simulated
from rigs.waiting import wait_until

MB = 2**20


class Holding:
    """Something that holds bytes until it is cut off."""

    def __init__(self, name: str) -> None:
        self.peer_name = name
        self.error: PolonaiseError | None = None

    def abort(self, error: PolonaiseError) -> None:
        self.error = error


def test_the_greediest_goes_and_the_others_stay() -> None:
    budget = Budget(10 * MB)
    modest, greedy, late = Holding("modest"), Holding("greedy"), Holding("late")
    budget.book(modest, 2 * MB)
    budget.book(greedy, 7 * MB)
    assert budget.cut_off == 0
    budget.book(late, 3 * MB)
    assert isinstance(greedy.error, Overloaded)
    assert modest.error is None
    assert late.error is None
    assert (budget.total, budget.cut_off) == (5 * MB, 1)


def test_what_was_given_back_is_there_again() -> None:
    budget = Budget(10 * MB)
    first, second = Holding("first"), Holding("second")
    for _ in range(5):
        budget.book(first, 9 * MB)
        assert budget.tight
        budget.book(first, 0)
        budget.book(second, 9 * MB)
        budget.release(second)
    assert (budget.total, budget.cut_off) == (0, 0)
    assert not budget.tight


@simulated
async def test_answers_that_are_taken_are_on_nobodys_account(rig: Rig) -> None:
    budget = rig.server.budget = Budget(100 * MB)
    reading, deaf = await rig.greeted_raw(), await rig.greeted_raw()
    deaf.transport.pause_reading()
    for connection in rig.server.connections:
        for _ in range(40):
            connection.send(Refused(0, "code", "x" * 60_000))
    await wait_until(lambda: len(reading.heard) == 41)
    await asyncio.sleep(2)  # the next heartbeat looks
    assert 1 * MB < budget.total < 2.4 * MB, "what the network took of it is off too"
    deaf.transport.abort()
    await wait_until(lambda: budget.total == 0)


@simulated
async def test_what_is_shared_is_on_nobodys_account(rig: Rig) -> None:
    """A live feed to a thousand subscribers is one batch in memory, not a thousand."""
    budget = rig.server.budget = Budget(1 * MB)
    deaf = await rig.greeted_raw()
    deaf.transport.pause_reading()
    for _ in range(40):
        rig.server.only.send(Refused(0, "code", "x" * 60_000), shared=True)
    await asyncio.sleep(2)
    assert (budget.total, budget.cut_off) == (0, 0)


@simulated
async def test_unfinished_frames_are_bounded_over_all_connections(rig: Rig) -> None:
    budget = rig.server.budget = Budget(2 * MB)
    greedy = [await rig.greeted_raw() for _ in range(4)]
    modest = await rig.connect()
    begun = MB.to_bytes(4, "little") + bytes(20)
    for number, peer in enumerate(greedy):
        peer.say(begun + bytes((number + 1) * 240_000))
    await wait_until(lambda: budget.cut_off > 0)
    await asyncio.sleep(1)
    assert budget.total <= 2 * MB
    assert greedy[3].lost
    assert modest.closed is None
