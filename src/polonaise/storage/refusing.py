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

    def __init__(self, host: Host, settings: StorageSettings, reason: PolonaiseError) -> None:
        self._host = host
        self._settings = settings
        self._reason = reason
        self._listener: Listener | None = None
        self._connections: set[Connection] = set()

    async def start(self) -> None:
        """Listen. Raises what `Network.listen` does."""
        self._listener = await self._host.network.listen(self._settings.listen, self._accept)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for connection in list(self._connections):
            connection.close()
        if self._listener is not None:
            await self._listener.close()

    def _accept(self) -> Connection:
        connection = RefusingConnection(
            self._host, self._settings, self._reason, lambda connection, _: self._connections.discard(connection)
        )
        self._connections.add(connection)
        return connection


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
