"""Take a server that is gone for good out of those that the cluster is to have."""

from __future__ import annotations

from typing import Final

from polonaise.admin.asking import answered
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ExpectedServer
from polonaise.errors import BadOption, fault
from polonaise.redaction import redacted

_UNCHANGED: Final = ": correct its address or start it, then repeat the command. Nothing was changed"


async def remove_server(coordinator: Coordinator, asked: str, timeout_s: float) -> tuple[str, ExpectedServer]:
    """Have nobody miss a server any more, asked for by name, number or address; return its name and what was known.

    Raises `BadOption` for one that the cluster does not have, or has more than once, `cluster_in_use` while the server
    is registered, and what the coordinator raises, such as that it is of an older state.
    """
    expected = (await answered(coordinator, coordinator.expected_servers(), timeout_s, _UNCHANGED)).value
    meant = [asked] if asked in expected.servers else [
        name for name, each in expected.servers.items() if asked in (str(each.server), each.address)
    ]  # fmt: skip
    if not meant:
        known = ", ".join(expected.servers) or "none has a name"
        raise BadOption(f"the cluster misses no server {redacted(asked)!r}; its servers are: {known}")
    if len(meant) > 1:
        raise BadOption(
            f"{redacted(asked)!r} may be any of the servers {', '.join(meant)}: give the name or the number"
        )
    (name,) = meant
    server = expected.servers[name]
    # Before the advice to stop it: in an older state of the coordinator it may be the only one that still serves.
    await answered(coordinator, coordinator.may_change(), timeout_s, _UNCHANGED)
    if name not in expected.missing(await answered(coordinator, coordinator.members(), timeout_s, _UNCHANGED)):
        raise fault(
            "cluster_in_use",
            f"server {name} is registered, at {server.address}: stop it first; one that was killed is registered for a "
            "few seconds more",
        )
    await answered(
        coordinator, coordinator.forget_server(name), timeout_s, ", and may have made the change: look again"
    )
    return name, server
