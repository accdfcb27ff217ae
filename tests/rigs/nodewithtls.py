"""A node on this machine that accepts connections, with TLS or without."""

from __future__ import annotations

import asyncio

from polonaise.errors import ConnectionLost
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsIdentity
from polonaise.link.settings import LinkSettings
from polonaise.wire.messages import ROLE_SERVER, ROLE_STORAGE
from rigs.link import Side


class NodeWithTls(Side):
    """Accepts connections as a storage node or server does, as long as its context lasts."""

    def __init__(self, identity: TlsIdentity | None, role: int = ROLE_STORAGE, takes: int = ROLE_SERVER) -> None:
        self.own_host = RealHost(tls=identity)
        super().__init__(self.own_host, role, (takes,))
        self.accepts = True
        self.settings = LinkSettings()
        self.address = ""
        self.port = 0

    async def __aenter__(self) -> NodeWithTls:
        self.listener = await self.host.network.listen("127.0.0.1:0", self.make)
        self.address = self.listener.address
        self.port = int(self.address.rpartition(":")[2])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.close()
        for connection in self.connections:
            connection.abort(ConnectionLost("the test is over"))
        await asyncio.sleep(0)
        self.own_host.close()

    def dialling(self, host: RealHost) -> Side:
        """Return the side of one whom this node takes."""
        (role,) = self.peer_roles
        made = Side(host, role, (self.said.role,))
        made.settings = LinkSettings()
        return made
