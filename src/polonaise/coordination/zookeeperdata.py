"""The decision whether ZooKeeper has lost data, from what its servers say of themselves.

A server ends the connection of a client that has seen a later transaction than the server itself: for ever, if
ZooKeeper began anew, or with an older copy of its files. It gives no reason, but its answer to `srvr` names its last
transaction, and whether it leads.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_CONFIRM_S: Final = 0.4
"""Between two looks that both have to show a leader, or the only server, behind: a leader may apply a transaction a
moment after a follower."""
_LAG_S: Final = 5.0
"""For so long a majority of an ensemble, none of which leads, has to be behind: a server that lags catches up
before."""
_SERVER: Final = re.compile(r"^Zxid: 0x([0-9a-fA-F]{1,16})$.*^Mode: (\w+)$", re.MULTILINE | re.DOTALL)
NOT_SERVING: Final = "not currently serving"
"""What a server says that has not joined a majority of its ensemble."""


class ServerState(NamedTuple):
    """What a server that serves says of itself."""

    mode: str
    """`standalone`, `leader`, `follower` or `observer`."""
    last: int
    """The number (zxid) of its last transaction."""


def state_in(answer: str) -> ServerState | None:
    """Return what an answer to `srvr` says, if it tells."""
    found = _SERVER.search(answer.replace("\r", ""))
    return None if found is None else ServerState(found[2], int(found[1], 16))


def why_ended(server: str, answer: str, seen: int) -> str:
    """Return why a server has ended this process's connection, in a sentence; empty if that is not known. `answer` is
    what it said to `srvr`, and `seen` the last transaction that this process has seen."""
    state = state_in(answer)
    if state is None:
        if NOT_SERVING in answer:
            return f"{server} does not serve: it has not joined a majority of the ensemble"
        return f"{server} answers, and has ended this process's connection without a reason" if answer else ""
    if state.last >= seen:
        return f"{server} serves ({state.mode}), and has ended this process's connection without a reason"
    numbers = f"its last transaction is 0x{state.last:x}, and this process has seen 0x{seen:x}"
    if state.mode in ("standalone", "leader"):
        return f"{server} ({state.mode}) has lost data, or has an older copy of them: {numbers}"
    return f"{server} ({state.mode}) is behind, so it does not go on with this process's session: {numbers}"


class DataTrial:
    """Judges whether ZooKeeper has lost what this process has seen: then no server ever goes on with its session. One
    server of an ensemble that is behind proves nothing: it lags. A leader proves it, which has all that was ever
    committed; so does the only server, or a majority that stays behind."""

    def __init__(self, anew_s: float) -> None:
        """After `anew_s` seconds of refusals the session has ended in any case."""
        self._anew_s = anew_s
        self._behind: dict[str, float] = {}
        self._refused_s: float | None = None

    def connected(self) -> None:
        """Note that a server goes on with the session, or has begun one."""
        self._behind.clear()
        self._refused_s = None

    def refused(self, server: str, answer: str, seen: int, servers: int, now_s: float) -> bool:
        """Whether a session has to be begun anew, after one of so many servers ended a connection (`why_ended`)."""
        state = state_in(answer)
        if not answer or NOT_SERVING in answer:  # it may be electing a leader
            self._behind.pop(server, None)
            return False
        if self._refused_s is None:
            self._refused_s = now_s
        if state is None or state.last >= seen:
            self._behind.pop(server, None)
        else:
            since_s = self._behind.setdefault(server, now_s)
            if state.mode == "leader" or (state.mode == "standalone" and servers == 1):
                if now_s - since_s >= _CONFIRM_S:
                    return True
            elif servers > 2 and 2 * sum(now_s - each_s >= _LAG_S for each_s in self._behind.values()) > servers:
                return True
        return now_s - self._refused_s >= self._anew_s
