"""Who has given up waiting is told what was waited for."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence

import pytest

from polonaise import testing
from polonaise.client.log import Log
from polonaise.client.protocol.draft import Draft
from polonaise.coordination.values import Assignment, Versioned
from polonaise.errors import AppendExpired, AppendUnknown, DeadlineExceeded, PolonaiseError, ViewUnavailable
from polonaise.terms import BodyForm, Transaction
from rigs.clients import Memo, World
from rigs.waiting import time_passes, wait_until

SHORT_S = 0.03


async def told(client: Log) -> list[str]:
    """What each kind of waiting ends with."""
    waits = (
        client.ready(timeout=SHORT_S),
        client.flush(timeout=SHORT_S),
        client.run(lambda tx: tx.append(b""), timeout=SHORT_S),
        client.wait_applied(0, timeout=SHORT_S),
        client.append(b"").applied(SHORT_S),
        client.producer("p", timeout=SHORT_S),
    )
    texts = []
    for wait in waits:
        with pytest.raises((DeadlineExceeded, AppendExpired)) as raised:
            await wait
        texts.append(raised.value.text)
    return texts


async def test_while_nobody_owns_the_partition(world: World) -> None:
    world.coordinator._assignment = Versioned(2, Assignment())
    client = await world.client()
    for text in await told(client):
        assert "a server that owns it: none does" in text
        assert "polonaise server run" in text
    with pytest.raises(DeadlineExceeded, match="none does"):
        await client.high_water_mark(timeout=SHORT_S)


async def test_while_the_owner_cannot_be_reached(world: World) -> None:
    world.server.crash()
    client = await world.client(view=Memo())
    for text in (await told(client))[:-1]:
        assert f"its owner, {world.server.address}" in text
        assert "nobody listens on" in text


async def test_while_the_owner_does_not_answer_a_mount(world: World) -> None:
    world.server.silent_mounts = True
    client = await world.client(view=Memo(), settings={"mount_s_max": 5.0})
    await wait_until(lambda: world.server.heard.mounts)
    for text in (await told(client))[:-1]:
        assert f"an answer of {world.server.address} to its mount" in text


async def test_a_mount_that_took_too_long_is_given_longer_the_next_time(world: World) -> None:
    """What was read for it from slow disks would else come too late each time."""
    world.server.silent_mounts = True
    client = await world.client(view=Memo(), settings={"mount_s_max": 0.02})
    await wait_until(lambda: "did not answer a mount within 0.16 s" in str(client.trouble(0)))


async def test_a_request_that_took_too_long_is_given_longer_the_next_time(world: World) -> None:
    """Bodies that are read from slow disks would else come too late each time, and the view would stay for good."""
    world.server.fetch_s = 0.15
    view = Memo()
    client = await world.client(view=view, bodies=BodyForm.LAZY, settings={"request_s_max": 0.06})
    await client.append(b"slow").applied(5)
    asked = len(world.server.heard.fetches)
    assert asked > 1, "what is tested has happened"
    # Where one answer took long, the next one is waited for as long at once: asking again is more work for the disks.
    await client.append(b"as slow").applied(5)
    assert len(world.server.heard.fetches) == asked + 1
    assert view.bodies == [b"slow", b"as slow"]


async def test_while_the_owner_is_not_ready(world: World) -> None:
    world.server.not_ready = 10**6
    client = await world.client(view=Memo(), settings={"retry_s_max": 0.002})
    await wait_until(lambda: client.trouble(0))
    for text in (await told(client))[:-1]:
        assert "told so" in text


async def test_while_the_view_does_not_tell_its_mark(world: World) -> None:
    class Silent(Memo):
        async def high_water_mark(self, partition: int) -> int:  # type: ignore[override]
            await asyncio.Event().wait()
            raise AssertionError

    client = await world.client(view=Silent())
    for text in (await told(client))[:-1]:
        assert "the view to tell its high-water mark" in text


async def test_while_the_appends_before_are_undecided(world: World) -> None:
    world.server.hold = True
    client = await world.ready_client(settings={"outstanding_count_max": 2})
    client.append(b"one"), client.append(b"two")
    with pytest.raises(DeadlineExceeded, match=r"2 appends \(6 bytes\) are undecided"):
        await client.ready(timeout=SHORT_S)


async def test_a_receipt_whose_append_is_not_decided(world: World) -> None:
    world.server.hold = True
    client = await world.ready_client()
    receipt = client.append(b"held")
    with pytest.raises(DeadlineExceeded, match=r"not decided after 0.03 s.*await the receipt again"):
        await receipt.applied(SHORT_S)
    world.server.release()
    await receipt.applied(5)


async def test_a_receipt_whose_transaction_the_view_has_not_applied(world: World, view: Memo) -> None:
    view.gate = asyncio.Event()
    client = await world.client(view=view)
    receipt = await client.append(b"paid")
    with pytest.raises(DeadlineExceeded, match=r"committed as 0, .* applied up to -1") as raised:
        await receipt.applied(SHORT_S)
    assert isinstance(raised.value, PolonaiseError)
    view.gate.set()
    await receipt.applied(5)


class Runs(Memo):
    """As `Memo`, in runs."""

    async def apply_run(self, run: Sequence[Transaction]) -> int:
        for tx in run:
            await self.apply(tx)
        return run[-1].id


@pytest.mark.parametrize(("kind", "which"), [(Memo, "transaction 1"), (Runs, "transactions 1 to 2")])
async def test_a_view_that_does_not_come_back_from_applying_is_told(
    world: World, kind: type[Memo], which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = kind()
    client = await world.client(view=view)
    await client.append(b"well").applied(5)
    view.gate = asyncio.Event()
    client.append(b"hangs")
    receipt = client.append(b"with it")
    with pytest.raises(DeadlineExceeded, match=rf"applied up to 0; the view has been applying {which} for 0(\.\d+)? s"):
        await receipt.applied(SHORT_S)
    assert client.trouble(0) is None, "it may just be busy"
    monkeypatch.setattr("polonaise.client.condition._SLOW_S", 0.0)
    trouble = client.trouble(0)
    assert isinstance(trouble, ViewUnavailable)
    assert f"partition 0: the view has been applying {which} for 0" in trouble.text
    view.gate.set()
    await receipt.applied(5)
    assert client.trouble(0) is None
    with pytest.raises(DeadlineExceeded, match=r"applied up to 2$"):
        await client.wait_applied(9, timeout=SHORT_S)


async def test_a_context_that_always_conflicts() -> None:
    async with testing.log() as log:

        async def context(tx: Draft) -> None:
            tx.write_lock("account", 1)
            tx.append(b"x")
            log.faults.fail_next_lock()
            # so that the time is over within the context, and not while an append is under way
            await time_passes(0.1)

        with pytest.raises(AppendExpired, match=r"and nothing will be: .* refused, \d+ times") as raised:
            await log.run(context, timeout=0.35)
        found = re.search(
            r"the context ran, and its append was refused, (\d+) times, (\d+) of them for conflicts of its locks, "
            r"the last for what transaction -?\d+ or one before it may have changed: lock less",
            raised.value.text,
        )
        assert found
        assert found[1] == found[2]


async def test_a_context_whose_appends_fail_for_other_reasons() -> None:
    async with testing.log() as log:

        def context(tx: Draft) -> None:
            tx.append(b"x")
            log.faults.fail_next_append()

        async def run() -> None:
            # A deadline that passes while an append is on its way tells nothing of this: once more.
            with contextlib.suppress(AppendUnknown):
                await log.run(context, timeout=0.3)
            await log.run(context, timeout=0.3)

        with pytest.raises(AppendExpired, match=r"refused, \d+ times$"):
            await run()
