"""What an operator does who resets the head of partition 0 of a town, and what is told of the partition meanwhile."""

from __future__ import annotations

from typing import Any

from polonaise.admin.headresets import HeadOutcome, HeadState, ask_reset, await_reset, check_end, decision, head_state
from rigs.town import Town, held_down
from rigs.waiting import wait_until


def health(town: Town) -> dict[str, Any]:
    """Return what the server that runs tells of the partition; nothing while none does."""
    told = [server.health()["partitions"].get("0") for server in town.cluster.running_servers]
    return told[0] or {} if told else {}


async def lose_majority(town: Town, *, restarted: bool = False) -> None:
    """Wipe two of the three disks, and wait until all have told the server what they hold; it may start anew, too."""
    for node in town.cluster.storage[1:]:
        held_down(node, wiped=True)
    if restarted:
        town.cluster.servers[0].crash()
    for node in town.cluster.storage[1:]:
        node.let_up()
    await wait_until(lambda: len(health(town).get("held", {})) == 3)


async def state(town: Town) -> HeadState:
    return await town.operator(lambda host, coordinator: head_state(host, coordinator, 0, 2.0))


async def reset(
    town: Town, to: int, source: str | None = None, seconds: float = 60.0, *, checked: bool = True
) -> HeadOutcome:
    """Decide and wait; `checked` is False where the source does not answer to operators, or is too old to tell."""

    async def do(host: Any, coordinator: Any) -> HeadOutcome:
        found = await head_state(host, coordinator, 0, 2.0)
        decided = decision(found, to, source, host.clock.wall_us())
        if checked:
            await check_end(host, coordinator, found, decided, 2.0)
        await ask_reset(coordinator, found, decided, 20.0)
        return await await_reset(host, coordinator, found, decided, seconds)

    return await town.operator(do)
