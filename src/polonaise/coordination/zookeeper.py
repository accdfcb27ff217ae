"""The backend of several machines: a ZooKeeper ensemble, through kazoo.

::

    <root>/
      creation                                                says whether the cluster is being made, or made
      description · assignment · unique-id · partition-<p>    one value each
      members/<n>                                             one name each, which goes with its process's session

An entry's node holds a line that says what it is, with the cluster key, and then the contents. An entry's version is
the one with which it was created, which the line tells, plus that of its ZooKeeper node.

kazoo works in threads of its own; what they learn is handed to the event loop, where every request and every watch has
a deadline. A connection that breaks is made again, in the same session if that still lives. A name goes when its
session ends, and `renew` takes it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)

from polonaise.coordination.backend import Entry, damaged, missing, unsupported
from polonaise.coordination.lease import LEASE_S
from polonaise.coordination.values import DESCRIPTION, is_key
from polonaise.coordination.zookeeperensemble import ensemble_troubles
from polonaise.coordination.zookeepersession import ZooKeeperSession
from polonaise.errors import Closed, CoordinatorDamaged, CoordinatorUnavailable
from polonaise.host.tls import TlsFiles

SESSION_S: Final = 6.0
"""After so long ZooKeeper ends the session of a process that it does not hear from; also the deadline of a request."""
FORMAT: Final = 1

_MAGIC: Final = "polonaise-coordinator"
_CREATION: Final = "creation"
_MAKING: Final = b"making"
_MADE: Final = b"made"
_TOGETHER_MAX: Final = 500
"""The most nodes that one transaction creates or deletes: ZooKeeper refuses messages of more than 1 MiB."""
_WATCH_S: Final = 30.0
"""After so long a wait for a change ends, so that a lost watch delays nobody for longer."""
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 10.0
"""The first and the longest pause before the making of a cluster is claimed again that another process has claimed;
each is made up to twice as long, at random."""
_AGAIN_S: Final = 0.05


class _Node(NamedTuple):
    data: bytes
    version: int
    owner: int
    """The session that it goes with; 0 for a node that stays."""


class ZooKeeperBackend:
    """The coordinator's entries at these `hosts` (joined by commas), below `root`, for one event loop."""

    def __init__(self, hosts: str, root: str, *, session_s: float = SESSION_S, tls: TlsFiles | None = None) -> None:
        self._hosts = hosts
        self._root = root
        self._session_s = session_s
        self._tls = tls
        self._session: ZooKeeperSession | None = None
        self._closed = False
        self.renewed_us: int | None = None
        self._own: dict[str, Entry] = {}
        self._watchers: dict[str, asyncio.Future[None]] = {}
        """By key, resolved when the entry changes or its watch is lost. One serves all who wait."""

    def __str__(self) -> str:
        return f"zookeeper://{self._hosts}{self._root}"

    has_servers = True
    found_again_s = SESSION_S  # a process looks for a server that answers as long as its session may last

    def place(self, key: str) -> str:
        return f"{self}/{key}"

    async def servers(self, timeout_s: float) -> Mapping[str, str]:
        return await ensemble_troubles(self._hosts, self._tls, timeout_s)

    # -------------------------------------------------------------- values

    async def create(self, entries: Mapping[str, Entry]) -> bool:
        """Make a cluster of these entries; return False when one exists. The nodes are written under a claim: the
        version of the node `creation`, which each transaction checks. Of two processes at once, nothing of the one that
        claimed earlier is written any more."""
        await self._make_path(self._root)
        pause_s = _PAUSE_S_MIN
        while True:
            claim = await self._claim()
            if claim is None:
                return False
            if await self._make(entries, claim):
                return True
            # Another process has claimed since, and goes on if it lives: let it, each time for longer. With equal
            # pauses, two that make a large cluster would take it from each other for ever.
            await asyncio.sleep(pause_s * (1 + random.random()))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _claim(self) -> int | None:
        while True:
            node = await self._get(_CREATION)
            if node is not None and node.data == _MADE:
                return None
            if node is None:
                if await self._create_node(_CREATION, _MAKING):
                    return 0
            elif (stat := await self._set(_CREATION, _MAKING, node.version)) is not None:
                return int(stat.version)

    async def _make(self, entries: Mapping[str, Entry], claim: int) -> bool:
        """Create all nodes, the description's last; return False when another process has the claim."""
        if not await self._clear(claim, keeping=entries):
            return False
        present = set(await self._children(self._root))
        first = [key for key in entries if key != DESCRIPTION]
        for start in range(0, len(first), _TOGETHER_MAX):
            keys = first[start : start + _TOGETHER_MAX]
            leftovers = [key for key in keys if key in present]
            if not await self._commit(claim, _MAKING, {key: entries[key] for key in keys}, leftovers):
                return False
        return await self._commit(claim, _MADE, {DESCRIPTION: entries[DESCRIPTION]}, [])

    async def delete(self, description: Entry) -> bool:
        node, creation = await self._get(DESCRIPTION), await self._get(_CREATION)
        if node is None or creation is None or self._entry(DESCRIPTION, node) != description:
            return False

        def begin(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.delete(self._path(DESCRIPTION), node.version)
            # As if the cluster were being made: whoever makes one here takes the rest for leftovers.
            transaction.set_data(self._path(_CREATION), _MAKING, creation.version)
            return transaction.commit_async()

        if not await self._transact(f"deleting the cluster in {self}", begin):
            return False
        # Unless another process has begun to make a cluster here, which deletes them itself.
        if await self._clear(creation.version + 1, keeping=()):
            with contextlib.suppress(NoNodeError, BadVersionError):
                await self._ask(
                    f"deleting {self.place(_CREATION)}",
                    lambda client: client.delete_async(self._path(_CREATION), creation.version + 1),
                    changes=True,
                )
        return True

    async def _clear(self, claim: int, keeping: Container[str]) -> bool:
        """Delete the nodes of values that an unfinished change left; return False if the claim has passed on."""
        leftovers = [key for key in await self._children(self._root) if is_key(key) and key not in keeping]
        return all(
            [
                await self._commit(claim, _MAKING, {}, leftovers[start : start + _TOGETHER_MAX])
                for start in range(0, len(leftovers), _TOGETHER_MAX)
            ]
        )

    async def _commit(self, claim: int, state: bytes, entries: Mapping[str, Entry], leftovers: Iterable[str]) -> bool:
        """Delete leftovers and create nodes in one transaction; return False when the claim has passed on."""

        def begin(client: KazooClient) -> Any:
            transaction = client.transaction()
            transaction.check(self._path(_CREATION), claim)
            for key in leftovers:
                transaction.delete(self._path(key))
            for key, entry in entries.items():
                transaction.create(self._path(key), _sealed(entry))
            if state == _MADE:
                transaction.set_data(self._path(_CREATION), state, claim)
            return transaction.commit_async()

        return await self._transact(f"making a cluster in {self}", begin)

    async def _transact(self, what: str, begin: Callable[[KazooClient], Any]) -> bool:
        """Send a transaction; return False, with nothing changed, when a node is not as expected."""
        results = await self._ask(what, begin, changes=True)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors and not any(isinstance(error, BadVersionError | NoNodeError | NodeExistsError) for error in errors):
            raise self._unavailable(what, errors[0], changes=True) from errors[0]
        return not errors

    async def add(self, entries: Mapping[str, Entry]) -> None:
        for key, entry in entries.items():
            try:
                await self._create_node(key, _sealed(entry))
            except NoNodeError as error:
                raise missing(self.place(key)) from error

    async def read(self, key: str) -> Entry | None:
        """Return the present entry, or None without one. The server first catches up with the leader: the entry is no
        older than what any process had written before."""
        node = await self._get(key, fresh=True)
        if node is not None:
            return self._entry(key, node)
        if key == DESCRIPTION:
            creation = await self._get(_CREATION)
            # Looked for once more: another process may have finished making the cluster between the two reads.
            if creation is not None and creation.data == _MADE:
                if (node := await self._get(key)) is not None:
                    return self._entry(key, node)
                raise damaged(self.place(DESCRIPTION), "it is missing, and a cluster was made here")
        return None

    async def compare_and_set(self, key: str, contents: bytes, present: Entry | None, least: int = -1) -> Entry | None:
        while True:
            node = await self._get(key)
            if node is None:
                raise missing(self.place(key))
            current = self._entry(key, node)
            if current.version < least or (present is not None and current != present):
                return None
            entry = Entry(current.cluster_key, current.version + 1, contents)
            first = current.version - node.version
            if await self._set(key, _sealed(entry._replace(version=first)), node.version) is not None:
                return entry
            if present is not None:
                return None

    async def changed(self, key: str, version: int) -> None:
        watcher = self._watchers.get(key)
        watch = None
        if watcher is None or watcher.done():
            watcher = self._watchers[key] = asyncio.get_running_loop().create_future()
            watch = self._opened().resolving(watcher)
        try:
            # Read even if there is a watch already: it tells of changes after it was set, and `version` may be older.
            node = await self._get(key, watch=watch)
        except BaseException:
            if watch is not None and not watcher.done():
                watcher.set_result(None)  # nothing may be watching: those who wait as well read again
            raise
        if node is None and watch is not None and not watcher.done():
            watcher.set_result(None)  # ZooKeeper watches no node that is not there
        if node is None or self._entry(key, node).version != version:
            return
        # Shielded: others may wait for the same.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(watcher), _WATCH_S)

    # -------------------------------------------------------------- names

    async def register(self, name: str, entry: Entry) -> bool:
        """Take a name for this process's life; return False while another session has it, even a dead process's."""
        entry = self._own.get(name, entry)
        await self._make_path(self._path(name.partition("/")[0]))
        # Tried for a name of this process as well: the session that had it may have ended.
        if not await self._take(name, entry):
            return False
        self._own[name] = entry
        return True

    async def _take(self, name: str, entry: Entry) -> bool:
        """Create the name's node in this session; return False when another session has it, or its folder is gone:
        `register` makes that again."""
        try:
            if await self._create_node(name, _sealed(entry), ephemeral=True):
                return True
        except NoNodeError:
            return False
        # A call whose answer was lost may have created the node.
        node = await self._get(name)
        return node is not None and node.owner == self._opened().number()

    @property
    def holds_s(self) -> float:
        return min(LEASE_S, self._session_s if self._session is None else self._session.granted_s)

    async def renew(self, name: str) -> bool:
        """Raise the version of one's own name, or take it again if the session that had it has ended."""
        entry = self._own.get(name)
        if entry is None:
            return False
        node = await self._get(name)
        if node is None:
            self.renewed_us = None  # a creation tells no time, and that of an earlier renewal would be taken for now
            return await self._take(name, entry)
        if node.owner != self._opened().number():
            return False
        stat = await self._set(name, node.data, node.version)
        if stat is None:
            return False
        self.renewed_us = int(stat.mtime) * 1_000
        return True

    async def tell(self, name: str, contents: bytes) -> None:
        entry = self._own.get(name)
        if entry is None:
            return
        entry = self._own[name] = entry._replace(contents=contents)
        node = await self._get(name)
        if node is not None and node.owner == self._opened().number():
            await self._set(name, _sealed(entry), node.version)

    async def leave(self, name: str) -> None:
        if self._own.pop(name, None) is None:
            return
        node = await self._get(name)
        if node is not None and node.owner == self._opened().number():
            with contextlib.suppress(NoNodeError):
                await self._ask(
                    f"leaving {self.place(name)}", lambda client: client.delete_async(self._path(name)), changes=True
                )

    async def registered(self, folder: str) -> dict[str, Entry]:
        path = self._path(folder)
        names = [name for name in await self._children(path, fresh=True) if name.isdecimal()]
        nodes = await asyncio.gather(*(self._get(f"{folder}/{name}") for name in names))
        living: dict[str, Entry] = {}
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                try:
                    living[name] = self._entry(f"{folder}/{name}", node)
                except CoordinatorDamaged:
                    living[name] = Entry(b"", node.version, b"")
        return living

    async def close(self) -> None:
        """End the session, and with it this process's names. Waits for kazoo's threads."""
        self._closed = True
        self._own.clear()
        session, self._session = self._session, None
        if session is not None:
            await asyncio.shield(asyncio.to_thread(session.close))

    # -------------------------------------------------------------- nodes

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _entry(self, key: str, node: _Node) -> Entry:
        head, newline, contents = node.data.partition(b"\n")
        words = head.decode("ascii", "replace").split(" ")
        if not newline or words[0] != _MAGIC or len(words) < 2:
            raise damaged(self.place(key), "it is not a coordinator's value")
        if words[1] != str(FORMAT):
            raise unsupported(self.place(key), words[1], FORMAT)
        try:
            _, _, cluster_key, first = words
            return Entry(bytes.fromhex(cluster_key), int(first) + node.version, contents)
        except ValueError as error:
            raise damaged(self.place(key), f"its first line is invalid: {error}") from error

    async def _get(self, key: str, *, fresh: bool = False, watch: Callable[..., None] | None = None) -> _Node | None:
        """Return a node, if there is one. With `fresh`, the server catches up with the leader first."""
        path = self._path(key)
        try:
            data, stat = await self._ask(
                f"reading {self.place(key)}",
                lambda client: client.get_async(path, watch),
                catch_up=path if fresh else None,
            )
        except NoNodeError:
            return None
        return _Node(data, stat.version, stat.ephemeralOwner)

    async def _set(self, key: str, data: bytes, version: int) -> Any:
        """Replace a node of this version and return what ZooKeeper says of it; None when it has another, or is gone."""
        path = self._path(key)
        try:
            return await self._ask(
                f"changing {self.place(key)}", lambda client: client.set_async(path, data, version), changes=True
            )
        except (BadVersionError, NoNodeError):
            return None

    async def _create_node(self, key: str, data: bytes, *, ephemeral: bool = False) -> bool:
        """Create a node; return False when there is one. Raises `NoNodeError` without the one above it."""
        path = self._path(key)
        try:
            await self._ask(
                f"creating {self.place(key)}",
                lambda client: client.create_async(path, data, ephemeral=ephemeral),
                changes=True,
            )
        except NodeExistsError:
            return False
        return True

    async def _make_path(self, path: str) -> None:
        await self._ask(f"creating {path}", lambda client: client.ensure_path_async(path), changes=True)

    async def _children(self, path: str, *, fresh: bool = False) -> list[str]:
        """Return the names of the nodes below this one. `fresh` as in `_get`."""
        try:
            return list(
                await self._ask(
                    f"listing {path}", lambda client: client.get_children_async(path), catch_up=path if fresh else None
                )
            )
        except NoNodeError:
            return []

    # -------------------------------------------------------------- requests

    async def _ask(
        self, what: str, begin: Callable[[KazooClient], Any], *, changes: bool = False, catch_up: str | None = None
    ) -> Any:
        """Send a request and return its answer; the server first catches up with the leader about the node `catch_up`.
        Raises `CoordinatorUnavailable` when there is none in time, or ZooKeeper refuses or fails; and `Closed`. What
        kazoo raises for the state of a node (`NoNodeError`, `NodeExistsError`, `BadVersionError`) passes."""
        session = self._opened()
        is_sent = False
        try:
            async with asyncio.timeout(self._session_s):
                while True:
                    await session.live.wait()
                    is_sent = True
                    try:
                        return await session.ask(begin, catch_up, changes=changes)
                    except (ConnectionLoss, SessionExpiredError):
                        if changes:
                            raise
                    # What was only asked is asked again, of the server that is connected to next. Not at once: it
                    # takes a moment until the session is known not to be live.
                    await asyncio.sleep(_AGAIN_S)
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except (NoAuthError, AuthFailedError) as error:
            raise CoordinatorUnavailable(
                f"{what}: ZooKeeper denies access: give this process's user all rights on {self._root}"
            ) from error
        except (KazooException, TimeoutError) as error:
            if not is_sent:
                raise CoordinatorUnavailable(
                    f"{what}: no ZooKeeper answers at {self._hosts} within {self._session_s:g} s, and nothing was "
                    f"changed: {self._hint()}"
                ) from error
            raise self._unavailable(what, error, changes=changes) from error

    @property
    def trouble(self) -> str:
        return "; ".join(self._session.troubles) if self._session is not None else ""

    def _hint(self) -> str:
        remedy = "start ZooKeeper, or correct the address"
        trouble = self.trouble
        if not trouble.endswith("nobody listens there") and not (self._session is not None and self._session.speaks):
            tls = "one with TLS answers only to TLS" if self._tls is None else "?tls=no is for one without TLS"
            remedy = f"{remedy}; {tls}"
        return f"{trouble}: {remedy}" if trouble else remedy

    def _opened(self) -> ZooKeeperSession:
        if self._closed:
            raise Closed(f"the coordinator in {self} was closed by this process")
        if self._session is None:
            self._session = ZooKeeperSession(self._hosts, self._session_s, self._tls)
        return self._session

    def _unavailable(self, what: str, error: BaseException, *, changes: bool) -> CoordinatorUnavailable:
        hint = ". The change may have been made: read again" if changes else ""
        why = {
            TimeoutError: "no answer came in time",
            ConnectionLoss: "the connection to ZooKeeper was lost",
            SessionExpiredError: "ZooKeeper has ended this process's session, which begins anew",
        }.get(type(error), type(error).__name__)
        because = f" ({self.trouble})" if self.trouble else ""
        return CoordinatorUnavailable(f"{what}: {why}{because}{hint}")


def _sealed(entry: Entry) -> bytes:
    """Return a node's data. A new node's version counts from 0."""
    return f"{_MAGIC} {FORMAT} {entry.cluster_key.hex()} {entry.version}\n".encode() + entry.contents
