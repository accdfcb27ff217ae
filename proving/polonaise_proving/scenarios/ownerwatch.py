"""The watch of owners: looks for servers that run on although their sessions at the coordinator can have ended."""

from __future__ import annotations

import asyncio
from typing import Final

from polonaise_proving.judges.ownershipcheck import OwnershipCheck
from polonaise_proving.stages.simulated.cluster import Cluster

_LOOK_S: Final = 0.02
_FAULT: Final = "session_run_out"
"""The class of fault that is counted, at each look: a server runs on although its session can have ended."""


async def watch_owners(cluster: Cluster, check: OwnershipCheck) -> None:
    """Look again and again, until one owns something then. Only for seeds with sessions."""
    session_s = cluster.knobs.session_s
    was_paused: set[str] = set()
    while True:
        await asyncio.sleep(_LOOK_S)
        for node in cluster.servers:
            server, contact = cluster.owners.get(node.name), cluster.contacts.get(node.name)
            if server is None or contact is None or node.process is None or not node.running:
                continue
            # One that has just been resumed has had no chance yet to look at its clock.
            paused_before = node.name in was_paused
            was_paused.discard(node.name)
            if node.process.paused:
                was_paused.add(node.name)
            if node.process.paused or paused_before:
                continue
            over_s = cluster.world.now - (contact.contact_s + session_s)
            if over_s <= 0.0:
                continue
            cluster.world.faults.count(_FAULT)
            if owned := [number for number, served in server.partitions.items() if served.owner.session]:
                check.outlives(node.name, owned, over_s)
                return
