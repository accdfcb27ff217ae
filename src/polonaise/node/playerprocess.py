"""Runs a process of a player until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from polonaise.host import Host
from polonaise.host.stopsignals import hangups_call
from polonaise.host.tls import TlsIdentity
from polonaise.node.connecting import connect
from polonaise.node.playernode import PlayerNode
from polonaise.node.playerplan import LoadedPlan
from polonaise.node.processes import Http, check_http, serving_its_health

if TYPE_CHECKING:
    from polonaise.node.monitoring.face import ObservedNode


async def run_player(
    host: Host,
    loaded: LoadedPlan,
    read_again: Callable[[], LoadedPlan],
    told: Callable[[str], None],
    http: Http | None = None,
    tls: TlsIdentity | None = None,
) -> None:
    """Run a process of a player until cancelled; then it hands over. On SIGHUP it reads its settings again.

    Raises `BadOption` for settings that turn out to be wrong once the log is open, what `connect` raises and waiting
    can't mend, and what listening for `http` raises.
    """
    check_http(http)
    files = None if tls is None else tls.files
    node = PlayerNode(host, loaded, files, lambda address: connect(address, tls=files), told)
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        if len(reloads) > 1:
            return  # the one that waits has not read the file yet
        task = host.spawn(node.reload(read_again), "read the settings again")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    def observed() -> ObservedNode:
        from polonaise.node.monitoring.playerface import ObservedPlayer

        return ObservedPlayer(node, host)

    async with serving_its_health(host, http, observed) as serves:
        serves()
        try:
            with hangups_call(reload):
                await node.run()
        finally:
            for task in reloads:
                task.cancel()
            await asyncio.gather(*reloads, return_exceptions=True)
