"""The stand-in for a storage node whose directory can't be opened, or is gone: it refuses, and tells why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polonaise.errors import PolonaiseError, fresh
from polonaise.host import Host, Listener
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import ANY_CLUSTER, hello
from polonaise.storage.settings import StorageSettings
from polonaise.wire.messages import ROLE_SERVER, ROLE_STORAGE

_NAME: Final = "storage node that is not started"


class RefusingNode:
    """Refuses every connection with the reason why the storage node of this address did not start.

    Without it, a node that nobody started and one whose directory is damaged would look the same to servers.
    """

    @classmethod
    async def start(cls, host: Host, settings: StorageSettings, reason: PolonaiseError) -> RefusingNode:
        """Listen, and return the node that refuses. Raises what `Network.listen` does."""
        connections: set[Connection] = set()

        def accept() -> Connection:
            connection = RefusingConnection(host, settings, reason, lambda closed, _: connections.discard(closed))
            connections.add(connection)
            return connection

        return cls(await host.network.listen(settings.listen, accept), connections)

    def __init__(self, listener: Listener, connections: set[Connection]) -> None:
        self._listener = listener
        self._connections = connections

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for connection in list(self._connections):
            connection.close()
        await self._listener.close()


class RefusingConnection(Connection):
    """Answers the first bytes of its peer with the reason, before any hello, and closes."""

    def __init__(
        self,
        host: Host,
        settings: StorageSettings,
        reason: PolonaiseError,
        on_closed: Callable[[Connection, PolonaiseError], None],
    ) -> None:
        super().__init__(
            host,
            hello=hello(ROLE_STORAGE, _NAME, cluster_key=settings.cluster_key or ANY_CLUSTER, node=0),
            peer_roles=(ROLE_SERVER,),
            on_message=lambda *_: None,  # never called, because no peer gets to say hello
            on_closed=on_closed,
            settings=settings.link,
            accepted=True,
        )
        self._reason = reason

    def data_received(self, data: bytes) -> None:
        """Refuse whatever arrives: even a peer of another cluster is told nothing but the reason."""
        if not self.closed:
            self.turn_away(fresh(self._reason))
