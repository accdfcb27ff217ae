"""The greeting: what both sides of a connection say of themselves first, and whether they fit.

1. Nothing of a peer counts before its hello: it is the first message, and the only hello.
2. The side that has connected says its hello at once. The accepting side says its own only to a peer that was admitted:
   the hello has the cluster key in it.
3. The version is looked at first, then the role, then the certificate, then the cluster: a peer of another version may
   mean something else by the rest.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from polonaise.errors import PolonaiseError, ProtocolError, UnsupportedVersion, WrongClusterKey, WrongRole
from polonaise.link.protocol.peertext import printable
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    ROLE_CLIENT,
    ROLE_OPERATOR,
    ROLE_PLAYER,
    ROLE_SERVER,
    ROLE_STORAGE,
    ROLE_TARGET,
    Hello,
)

ANY_CLUSTER: Final = bytes(16)
"""The key of a side that does not know its cluster yet."""
ROLE_NAMES: Final = {
    ROLE_CLIENT: "client",
    ROLE_SERVER: "server",
    ROLE_STORAGE: "storage node",
    ROLE_OPERATOR: "operator",
    ROLE_PLAYER: "player",
    ROLE_TARGET: "target of players",
}
_OTHERS: Final = {
    ROLE_STORAGE: (
        "the directory of this storage node belongs to another cluster: check the address, and which directory it is. "
        "Keep that directory, which may be the only copy of a log; to use the node here, give it a new one"
    )
}
"""What a side tells a peer of another cluster, by its own role."""
_ANOTHER_CLUSTER: Final = "the peer belongs to another cluster: check the address, or the directory"


class PeerGreeting:
    """Judges the peer's hello, and keeps what is known of the peer."""

    __slots__ = ("_tells_strangers", "accepted", "barred", "mine", "peer", "peer_name", "peer_role", "roles")

    def __init__(
        self, mine: Hello, roles: Collection[int], *, accepted: bool = False, tells_strangers: Collection[int] = ()
    ) -> None:
        """`mine` is this side's hello; for the rest see `Connection`."""
        self.mine: Final = mine
        self.roles: Final = roles
        self.accepted: Final = accepted
        self._tells_strangers: Final = tells_strangers
        self.barred: PolonaiseError | None = None
        """Why the peer is refused whatever its hello says. `Connection.bar` writes it."""
        self.peer: Hello | None = None
        """None until it has been checked. Only `admit` writes it, once."""
        self.peer_role = 0
        """0 until version, role and certificate were found right; the hello may still be refused for its cluster. Only
        `admit` writes it."""
        self.peer_name = "a peer that has not said hello"
        """What the peer is called in logs and messages. `admit` writes it, and later `Connection.call_peer`, for a user
        of the connection who knows a better name."""

    def hear(self, message: Message) -> Hello | PolonaiseError:
        """Return the hello that a first message has to be, to be compared with the certificate, or a refusal."""
        if not isinstance(message, Hello):
            return ProtocolError(f"the peer sent {type(message).__name__} before its hello")
        if self.barred is not None:
            return self.barred
        mine = self.mine
        if message.version_min > mine.version_max or message.version_max < mine.version_min:
            return UnsupportedVersion(
                f"the peer speaks protocol {message.version_min} to {message.version_max}, "
                f"this side {mine.version_min} to {mine.version_max}: upgrade the older one"
            )
        if message.role not in self.roles:
            return WrongRole(
                f"the peer is a {ROLE_NAMES.get(message.role, 'stranger')}, not a "
                f"{' or '.join(ROLE_NAMES[role] for role in self.roles)}: check the address"
            )
        return message

    def admit(self, said: Hello) -> PolonaiseError | None:
        """Take the peer with this hello, or return why it is refused after all: it is of another cluster."""
        self.peer_role = said.role
        self.peer_name = printable(said.name, 100) or f"a {ROLE_NAMES[said.role]}"
        if not self._belongs(said.cluster_key):
            return WrongClusterKey(_OTHERS.get(self.mine.role, _ANOTHER_CLUSTER))
        self.peer = said
        return None

    def _belongs(self, key: bytes) -> bool:
        """Whether a peer with this cluster key may be talked to: the same key, or one side has `ANY_CLUSTER`, unless it
        is a peer that has connected to this side, which tells no strangers.
        """
        mine = self.mine.cluster_key
        return (
            key == mine
            or mine == ANY_CLUSTER
            or (key == ANY_CLUSTER and (not self.accepted or self.peer_role in self._tells_strangers))
        )


def hello(
    role: int, name: str, *, cluster_key: bytes = ANY_CLUSTER, node: int = 0, version_min: int = PROTOCOL_VERSION_MIN
) -> Hello:
    """Return this side's hello; `version_min` is the oldest protocol version that has what will be asked."""
    return Hello(
        version_min=version_min, version_max=PROTOCOL_VERSION, role=role, node=node, cluster_key=cluster_key, name=name
    )
