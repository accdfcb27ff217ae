"""The target's side of streams over gRPC: a server of `grpc.aio`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import grpc

from polonaise.errors import AddressInUse, BadOption, CertificateRefused, ProtocolError
from polonaise.host.address import HostPort
from polonaise.host.names import names
from polonaise.host.tls import TlsIdentity
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.grpctransport.channels import (
    KEEPALIVE_S,
    SCHEME,
    GrpcIdentity,
    check_player,
    finished,
    place_of,
    server_options,
)
from polonaise.player.grpctransport.messages import METHOD, SERVICE, VERSION, Greeting, UnsentAnswers, read_by_target
from polonaise.player.protocol.entries import Fence
from polonaise.player.targetsession import ACKNOWLEDGE_S, ServedTargets, TargetSession, stream_health
from polonaise.terms import PartitionId, TransactionId

_log = logging.getLogger("polonaise.player")

_HELLO_S_MAX: Final = 10.0
"""The longest that a player may take for its hello."""
_STREAMS_MAX: Final = 1_000
"""The most streams of one server; a target has one, and some that nobody has told yet that they are over."""
_UNSENT_ANSWERS_MAX: Final = 1_000
"""A stream with more answers that the player does not read takes nothing more from it."""
_GONE_S_MAX: Final = 5.0
"""The longest that the end of a stream waits for a target that goes on although it was cancelled."""
_CLOSING: Final = "the server of the target closes"
_LAST_ANSWERS_S: Final = 1.0
"""The longest that `close` waits for players to take the last answers."""


class GrpcServer:
    """Serves targets at an address: `start`, and in the end `close`. The targets stay the application's."""

    def __init__(
        self, targets: ServedTargets, tls: TlsIdentity | None = None, *, keepalive_s: float = KEEPALIVE_S
    ) -> None:
        self.targets = targets
        self.on_fail: Callable[[BaseException], None] = _told_to_nobody
        """Is called with a mistake of the library's own."""
        self._identity = None if tls is None else GrpcIdentity(tls)
        self._options = server_options(keepalive_s)
        self._server: Any = None
        self.streams: dict[_ServedStream, None] = {}
        """Those whose players have not gone."""

    async def start(self, address: str) -> str:
        """Accept streams at an address, `host:port`; return it with the port that the system chose. Raises `BadOption`
        for no such address, and `AddressInUse` if it can't be had."""
        place = place_of(address)
        try:
            # gRPC looks a name up in the event loop itself, which would stand still while the name service is silent.
            await names.addresses(place, socket.AI_PASSIVE)
        except (OSError, ValueError) as error:
            raise BadOption(f"cannot listen at {SCHEME}{place}: {error}: name a host of this machine") from error
        handler = grpc.stream_stream_rpc_method_handler(self._deliver)
        server = grpc.aio.server(options=self._options, maximum_concurrent_rpcs=_STREAMS_MAX)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        try:
            if self._identity is None:
                port = server.add_insecure_port(str(place))
            else:
                port = server.add_secure_port(str(place), self._identity.of_server())
        except RuntimeError:
            port = 0
        if not port:
            raise AddressInUse(
                f"no server can listen at {SCHEME}{place}: choose another port, or a host of this machine"
            )
        self._server = server
        try:
            await server.start()
        except BaseException:
            await self.close(0.0)
            raise
        return str(HostPort(place.host, port))

    async def close(self, within_s: float) -> None:
        """Accept nothing more, answer what is being applied, for `within_s` seconds at most, and end all streams."""
        server, self._server = self._server, None
        if server is not None:
            await finished(self._stop(server, within_s))

    async def _stop(self, server: Any, within_s: float) -> None:
        await asyncio.gather(*(stream.finish(within_s) for stream in self.streams))
        await server.stop(_LAST_ANSWERS_S if self.streams else None)

    def health(self) -> list[dict[str, Any]]:
        return [stream.health() for stream in self.streams if stream.source is not None]

    def trouble(self) -> str:
        return "" if self._identity is None else self._identity.warning()

    async def _deliver(self, _: Any, context: Any) -> None:
        """Serve one stream. gRPC cancels this when the player has gone."""
        if self._identity is not None:
            try:
                check_player(context.auth_context())
            except CertificateRefused as error:
                _log.warning("refused a stream of %s: %s", context.peer(), error)
                await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        if self._server is None:
            await _refuse(context, grpc.StatusCode.UNAVAILABLE, _CLOSING)
        stream = _ServedStream(self, context)
        self.streams[stream] = None
        try:
            await stream.serve()
        finally:
            self.streams.pop(stream, None)


async def _refuse(context: Any, code: grpc.StatusCode, reason: str) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HELLO_S_MAX):
            await context.read()  # a player that is still writing would not learn why
    await context.abort(code, reason)


def _told_to_nobody(error: BaseException) -> None:
    _log.error("a stream of a player has ended by a mistake: %s", error, exc_info=error)


class _ServedStream:
    """One stream of a player: `serve` writes the answers, and a task beside it reads."""

    def __init__(self, server: GrpcServer, context: Any) -> None:
        self._server = server
        self._context = context
        self._answers = UnsentAnswers()
        self._something_new = asyncio.Event()
        """Whether there are answers to be sent, or the stream is over."""
        self._telling: asyncio.TimerHandle | None = None
        self._may_read = asyncio.Event()
        self._session: TargetSession | None = None
        self._over = False
        self.source: DeliverySource | None = None
        """Where the stream comes from, once the player has said it."""

    async def serve(self) -> None:
        reader = asyncio.create_task(self._read(), name=f"batches from {self._context.peer()}")
        try:
            while self._answers or not self._over:
                await self._something_new.wait()
                self._something_new.clear()
                while self._answers:
                    await self._context.write(self._answers.take())
                    self._may_read.set()
        except grpc.aio.BaseError as error:
            _log.debug("a stream of a player broke: %s", error)
        finally:
            await finished(self._let_go(reader))

    async def _let_go(self, reader: asyncio.Task[None]) -> None:
        self._over = True
        if self._telling is not None:
            self._telling.cancel()
        if self._session is not None:
            self._session.close()
        reader.cancel()
        await asyncio.wait((reader,))
        if self._session is not None:
            gone = asyncio.ensure_future(self._session.gone())
            if not (await asyncio.wait((gone,), timeout=_GONE_S_MAX))[0]:
                gone.cancel()  # or the server could never be closed
                _log.warning("a target goes on applying although its stream has ended, and it was cancelled")
        if not reader.cancelled() and (error := reader.exception()) is not None:
            raise error

    async def finish(self, within_s: float) -> None:
        if self._session is None:
            self.ended(_CLOSING)
        else:
            await self._session.finish(_CLOSING, within_s)

    def health(self) -> dict[str, Any]:
        assert self.source is not None
        return stream_health(self.source, self._context.peer(), self._session)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(_HELLO_S_MAX):
                data = await self._context.read()
            session = None if data is grpc.aio.EOF else await self._greeted(data)
            while session is not None:
                data = await self._context.read()
                if data is grpc.aio.EOF:
                    break
                batches = read_by_target(data)
                if isinstance(batches, Greeting):
                    raise ProtocolError("a second hello on one stream")
                for batch in batches:
                    session.take(batch)
                while session.full or len(self._answers) > _UNSENT_ANSWERS_MAX:
                    self._may_read.clear()
                    await self._may_read.wait()
        except TimeoutError:
            self.ended(f"no hello within {_HELLO_S_MAX:g} s")
        except ProtocolError as error:
            self.ended(str(error))
        except grpc.aio.BaseError as error:
            _log.debug("a stream of a player broke: %s", error)
        finally:
            self._end()

    async def _greeted(self, data: bytes) -> TargetSession | None:
        """Return the session for a stream that the target has accepted; None after the answer that says why not."""
        greeting = read_by_target(data)
        if not isinstance(greeting, Greeting):
            raise ProtocolError("a stream begins with a batch, and not with a hello")
        if greeting.version != VERSION:
            raise ProtocolError(
                f"the player follows version {greeting.version} of the contract, and this target version {VERSION}: "
                "upgrade the older one"
            )
        self.source = source = greeting.source
        self._session = session = self._server.targets.session(source.target, greeting.fence, self)
        applied = None if session is None else await session.greet(source)
        if applied is None:
            return None
        self._answers.accepted(applied)
        self._something_new.set()
        return session

    def _end(self) -> None:
        self._over = True
        self._something_new.set()

    # ------------------------------------------------------------------ what the session answers

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        """Send it, a little later: what arrives meanwhile, for any target here, is applied first."""
        if not self._answers:
            self._telling = asyncio.get_running_loop().call_later(ACKNOWLEDGE_S, self._something_new.set)
        self._answers.acknowledged(partition, through)

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        self._answers.refused(partition, last, reason)
        self._something_new.set()

    def fenced(self, kept: Fence) -> None:
        self._answers.fenced(kept)
        self._end()

    def ended(self, reason: str) -> None:
        if not self._over:
            self._answers.ended(reason)
            self._end()

    def failed(self, error: BaseException) -> None:
        self.ended("a mistake of the target's server, which its log tells of")
        self._server.on_fail(error)

    def eased(self) -> None:
        self._may_read.set()
