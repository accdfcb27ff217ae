"""Serving targets to players in other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from polonaise.client.applicationhost import ApplicationHost
from polonaise.client.waiting import check_loop, forked, is_inherited, own_loop
from polonaise.errors import Closed
from polonaise.host.tls import TARGET, TlsFiles
from polonaise.host.unawaited import fail
from polonaise.player.deliverytarget import DeliveryTarget
from polonaise.player.linkserver import LinkServer
from polonaise.player.protocol.entries import TargetName
from polonaise.player.remotetargets import GRPC, identity_of, remote_place
from polonaise.player.targetsession import ServedTargets

if TYPE_CHECKING:
    from polonaise.player.grpctransport.server import GrpcServer

CLOSE_S_MAX: Final = 5.0
"""Seconds that a server waits when it is closed for what its targets are applying."""
_FORKED: Final = "server of targets was started"


class TargetServer:
    """A server of targets, made by `serve`: an asynchronous context manager, or awaited, and closed in the end."""

    def __init__(self, scheme: str, place: str, server: LinkServer | GrpcServer, release: Callable[[], None]) -> None:
        self._scheme = scheme
        self._place = place
        self._server = server
        self._release = release
        self._ended: asyncio.Future[None] | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address for `remote`, with the port that the system chose, once the server is started."""
        return f"{self._scheme}://{self._place}"

    async def start(self) -> Self:
        """Accept streams. Raises `AddressInUse`, `BadOption` for an unusable address, and `Closed` the second time."""
        if self._ended is not None or self._closed:
            raise Closed(f"the server at {self.address} was started or closed before: make a new one")
        self._ended = own_loop().create_future()
        try:
            self._place = await self._server.start(self._place)
        except BaseException:
            self._closed = True
            self._release()
            raise
        return self

    async def ended(self) -> None:
        """Wait until the server serves nothing more, and raise why: `Closed` after `close`, `Forked` in a forked child,
        or what is wrong."""
        if self._ended is None:
            raise Closed(f"the server at {self.address} was not started: use `async with`, or await it")
        check_loop(self._ended.get_loop(), _FORKED)
        await asyncio.shield(self._ended)

    def _fail(self, error: BaseException) -> None:
        """End with this error: it is a mistake of the library's own."""
        if self._ended is not None and not self._ended.done():
            fail(self._ended, error)
            self._closing = asyncio.get_running_loop().create_task(self.close(), name="close a server that has failed")

    async def close(self) -> None:
        """Answer what the targets are applying just now, and end all streams. The targets stay open."""
        if self._closed:
            return
        self._closed = True
        if self._ended is not None and is_inherited(self._ended.get_loop()):
            return  # in a forked child, which ends: sockets and streams are its parent's
        if self._ended is not None:
            fail(self._ended, Closed(f"the server at {self.address} was closed"))
        try:
            if self._ended is not None:
                await self._server.close(CLOSE_S_MAX)
        finally:
            self._release()

    def health(self) -> dict[str, Any]:
        """Return the streams that are served and what is wrong, as a dict for JSON; `well` says whether anything is.

        By `streams`: the `target` and `player` by name, the `log` by its key, where it comes `from`, whether it is
        `accepted`, its `epoch` and `term`, the `waiting_bytes` that are not applied yet, and by partition which entry
        is `refused`, and why. What goes wrong before a stream is accepted is told to the player alone.
        """
        ended = self._ended
        error = ended.exception() if ended is not None and ended.done() else None
        if ended is not None and is_inherited(ended.get_loop()):
            error = forked(_FORKED)
        trouble, streams = self._server.trouble(), self._server.health()
        is_well = ended is not None and error is None and not trouble
        return {
            "well": is_well and not any(each["refused"] for each in streams),
            "address": self.address,
            "ended": "" if error is None else str(error),
            "trouble": trouble,
            "streams": streams,
        }

    def __await__(self) -> Generator[Any, None, Self]:
        return self.start().__await__()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def serve(
    targets: DeliveryTarget | Mapping[TargetName, DeliveryTarget], address: str, *, tls: TlsFiles | None = None
) -> TargetServer:
    """Return a server of a target, or of several by name, for players in other processes.

    ::

        async with serve(Accounts(url), "link://0.0.0.0:7300") as server:
            await server.ended()

    Port 0 lets the system choose; `TargetServer.address` tells. A single target is served under every name. The targets
    stay the application's: close them after the server. `tls` has the TLS files of a target, by default those that the
    environment names (docs/tls.md); without any, whoever reaches the port may deliver.

    Raises `BadOption` for what can't be meant, `CertificateUnusable`, and `ExtraMissing` without the extra `grpc`.
    """
    scheme, place = remote_place(address)
    served = ServedTargets(targets)
    identity = identity_of(TARGET, tls)
    if scheme == GRPC:
        from polonaise.player.grpctransport.server import GrpcServer  # only here, because it needs an extra

        over_grpc = GrpcServer(served, identity)
        server = TargetServer(scheme, place, over_grpc, lambda: None)
        over_grpc.on_fail = server._fail
        return server
    host = ApplicationHost(identity)
    server = TargetServer(scheme, place, LinkServer(host, served), host.close)
    host.on_fail = server._fail
    return server
