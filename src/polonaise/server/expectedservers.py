"""The watch for servers, of the cluster and of its coordinator, that are to be there and are not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from polonaise.coordination import Coordinator
from polonaise.coordination.backend import NotAsked
from polonaise.coordination.values import ExpectedServer, ExpectedServers, Registration, Versioned
from polonaise.errors import PolonaiseError
from polonaise.server.coordinatortrouble import CoordinatorTrouble, answered_within
from polonaise.terms import ServerId

_log = logging.getLogger(__name__)
_EXPECTED: Final = "the servers that are to be there can't be looked up"
_LOOK_S: Final = 5.0
_AGAIN_S: Final = 1.0
_SERVER_S: Final = 2.0
_ANSWER_S: Final = 5.0


class ExpectedServersWatch:
    """Notes at the coordinator that this server is to be there, and looks for others that are to be and are not."""

    def __init__(self, coordinator: Coordinator, name: str, trouble: CoordinatorTrouble) -> None:
        """`name` is that of this server; without one, there is nothing to `run`."""
        self._coordinator = coordinator
        self._name = name
        self._trouble = trouble
        self.seen: Versioned[ExpectedServers] | None = None
        """What the coordinator said at the last look."""
        self.missing: dict[str, str] = {}
        """The addresses, by name, of the other servers not registered at the last look."""
        self.trouble = ""
        """What is wrong with the name of this server; empty if nothing is."""
        self.coordinator_servers: Mapping[str, str] = {}
        """Why each server of the coordinator did not serve at the last look, by its address (empty for one that did),
        without those that this process could not ask."""

    async def run(self, server: ServerId, address: str) -> None:
        """Look for ever. While the coordinator can't be read, what was seen last stands."""
        noted = False
        while True:
            if self._coordinator.has_servers:
                asked = await self._coordinator.servers(_SERVER_S)
                self.coordinator_servers = {each: why for each, why in asked.items() if not isinstance(why, NotAsked)}
            try:
                async with answered_within(_ANSWER_S, self._coordinator):
                    self.seen = await self._coordinator.expected_servers()
                    members = await self._coordinator.members()
                    # Again, if it was removed while it hung, and goes on, or if another one of its name has ended: from
                    # then on it is to be missed. Not when it is ending: it has left the members, so that it may be
                    # removed.
                    living = {each.server for each in members}
                    known = self.seen.value.servers.get(self._name)
                    if self._name and (not noted or (server in living and (not known or known.server not in living))):
                        await self._coordinator.expect_server(self._name, ExpectedServer(server, address))
                        noted = True
                        self.seen = await self._coordinator.expected_servers()
                    self._look(server, self.seen.value, members)
            except PolonaiseError as error:
                self._trouble.failed(_EXPECTED, error, server=server)
            else:
                self._trouble.succeeded(_EXPECTED)
            await asyncio.sleep(_AGAIN_S if self._trouble.is_failing(_EXPECTED) else _LOOK_S)

    def _look(self, server: ServerId, expected: ExpectedServers, members: Collection[Registration]) -> None:
        # Without this one itself: why it has left the others, such as for its clock, health tells by its own word.
        missing = {name: each for name, each in expected.missing(members).items() if each.server != server}
        for name in missing.keys() - self.missing.keys():
            _log.warning("%s", missing_server(name, missing[name].address), extra={"server": server})
        self.missing = {name: each.address for name, each in missing.items()}
        namesake = expected.servers.get(self._name)
        other = namesake is not None and namesake.server != server and self._name not in missing
        self.trouble = (
            f"server {server} and server {namesake.server} at {namesake.address} have the same name, {self._name}: "
            "give each its own (--name)"
            if other and namesake is not None
            else ""
        )

    def coordinator_troubles(self) -> list[str]:
        return [coordinator_server_trouble(address, why) for address, why in self.coordinator_servers.items() if why]


def coordinator_server_trouble(address: str, why: str) -> str:
    return f"ZooKeeper server {address} {why}"


def missing_server(name: str, address: str) -> str:
    where = "" if address == name else f", last at {address},"
    return (
        f"server {name}{where} is not registered, and was not removed: start it; if it runs, see what it says, such as "
        "of its clock; or tell the cluster that it is gone "
        f"for good (polonaise server remove {name})"
    )
