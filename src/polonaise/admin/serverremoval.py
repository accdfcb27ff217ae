"""Take a server that is gone for good out of those that the cluster is to have."""

from __future__ import annotations

from polonaise.admin.asking import answered
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ExpectedServer
from polonaise.errors import BadOption, ClusterInUse
from polonaise.redaction import redacted


async def remove_server(coordinator: Coordinator, name: str, timeout_s: float) -> ExpectedServer:
    """Have nobody miss the server of this name any more, and return what was known of it.

    Raises `BadOption` for a name that no server of the cluster has, `ClusterInUse` while the server is registered, and
    what the coordinator raises.
    """
    expected = (await answered(coordinator, coordinator.expected_servers(), timeout_s)).value
    if (server := expected.servers.get(name)) is None:
        known = ", ".join(expected.servers) or "none has a name"
        raise BadOption(f"the cluster misses no server {redacted(name)!r}; its servers are: {known}")
    if name not in expected.missing(await answered(coordinator, coordinator.members(), timeout_s)):
        raise ClusterInUse(
            f"server {name} is registered, at {server.address}: stop it first; one that was killed is registered for a "
            "few seconds more"
        )
    await answered(
        coordinator, coordinator.forget_server(name), timeout_s, ", and may have made the change: look again"
    )
    return server
