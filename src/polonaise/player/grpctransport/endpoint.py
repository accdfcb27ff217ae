"""The player's side of streams over gRPC: a client of `grpc.aio`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

import grpc

from polonaise.applicationcode import is_being_cancelled
from polonaise.errors import PolonaiseError, ProtocolError
from polonaise.host.tls import TlsIdentity
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.endpoint import DeliveryStream, StreamEvents
from polonaise.player.grpctransport.channels import (
    KEEPALIVE_S,
    SCHEME,
    GrpcIdentity,
    client_options,
    connectable,
    finished,
)
from polonaise.player.grpctransport.messages import (
    MESSAGE_BYTES_MAX,
    METHOD,
    SERVICE,
    batches_bytes,
    hello_bytes,
    tell_answers,
)
from polonaise.player.protocol.entries import REASON_CHARACTERS_MAX, DeliveryBatch, Fence
from polonaise.redaction import redacted, shortened
from polonaise.terms import PartitionId, TransactionId

_METHOD: Final = f"/{SERVICE}/{METHOD}"
_LAST_WORDS_S: Final = 1.0
"""Seconds that a call which takes nothing more has to tell why."""
_HANDSHAKE: Final = re.compile("handshake|ssl|certificate|tls", re.IGNORECASE)
_BROKEN_WRITE: Final = "Internal error from Core"
"""What gRPC tells if a stream ends while it is written to; it does not tell why then."""
_PINGS: Final = re.compile("too.many.pings", re.IGNORECASE)
_ADVICE: Final = {
    grpc.StatusCode.UNIMPLEMENTED: f"no {SERVICE} is served there: check the address",
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        "if a message was too large for the target, raise the limit of its server (max receive message length) above "
        f"its largest entry; {MESSAGE_BYTES_MAX // 2**20} MiB are always enough"
    ),
    grpc.StatusCode.PERMISSION_DENIED: "give this player other TLS files, or none, as the target asks for",
    grpc.StatusCode.UNAUTHENTICATED: "give this player other TLS files, or none, as the target asks for",
    grpc.StatusCode.CANCELLED: "its server has cancelled the stream",
    grpc.StatusCode.INTERNAL: "look into the log of the target's server",
    grpc.StatusCode.UNKNOWN: "look into the log of the target's server",
}


class GrpcEndpoint:
    """Opens streams over gRPC to a target that serves `proto/delivery.proto`.

    `place` is its `host:port`; with `tls` connections have TLS, else they are plain. After `keepalive_s` seconds of
    silence the target is asked whether it is still there, and has twice as long to answer; its server must permit that.
    Raises `BadOption` for a place where nobody can be reached.
    """

    def __init__(self, place: str, tls: TlsIdentity | None = None, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._place = connectable(place)
        self.address = f"{SCHEME}{self._place}"
        self._identity = None if tls is None else GrpcIdentity(tls)
        self._keepalive_s = keepalive_s

    @property
    def with_tls(self) -> bool:
        return self._identity is not None

    def stream(self, fence: Fence, events: StreamEvents) -> DeliveryStream:
        return _GrpcStream(self, fence, events)

    async def close(self) -> None:
        """Do nothing: each stream has a connection of its own, and closes it."""

    def channel(self, open_s_max: float) -> Any:
        """Return a channel for one stream, which is connected within `open_s_max` seconds or not at all. One for all
        would wait before it connects again, and keep the TLS files that it was made with."""
        options = client_options(self._keepalive_s, open_s_max)
        if self._identity is None:
            return grpc.aio.insecure_channel(self._place, options)
        return grpc.aio.secure_channel(self._place, self._identity.of_channel(), options)


class _GrpcStream:
    """One stream: `serve` reads what the target answers, and a task beside it writes what it is sent."""

    def __init__(self, endpoint: GrpcEndpoint, fence: Fence, events: StreamEvents) -> None:
        self._endpoint = endpoint
        self._fence = fence
        self._events = events
        self._unsent: list[DeliveryBatch] = []
        self._something_unsent = asyncio.Event()
        self._accepted = False
        self._told_end = False
        """Whether the player knows that the stream has ended, or has closed it: it is told nothing more."""
        self._call: Any = None

    def send(self, batches: Sequence[DeliveryBatch]) -> bool:
        self._unsent.extend(batches)
        self._something_unsent.set()
        return False

    def close(self) -> None:
        self._told_end = True
        if self._call is not None:
            self._call.cancel()

    async def serve(self, source: DeliverySource, open_s_max: float) -> None:
        if self._told_end:
            return
        try:
            hello = hello_bytes(self._fence, source)
            channel = self._endpoint.channel(open_s_max)
        except PolonaiseError as error:
            self._end(str(error))
            return
        self._call = call = channel.stream_stream(_METHOD)()
        writer = asyncio.create_task(self._write(call, hello), name=f"batches to {self._endpoint.address}")
        try:
            async with asyncio.timeout(open_s_max) as deadline:
                while not self._told_end:
                    data = await call.read()
                    if data is grpc.aio.EOF:
                        self._end(f"{self._endpoint.address}: the target has ended the stream, and does not say why")
                        break
                    tell_answers(data, self)
                    if self._accepted and deadline.when() is not None:
                        deadline.reschedule(None)
        except TimeoutError:
            self._end(f"{self._endpoint.address}: the target did not answer within {open_s_max:g} s")
        except ProtocolError as error:
            self._end(f"{self._endpoint.address}: {error}")
        except grpc.aio.AioRpcError as error:
            self._end(self._why(error))
        except asyncio.CancelledError:
            # A call that `close` has cancelled raises it, too.
            if not self._told_end or is_being_cancelled():
                raise
        finally:
            self._told_end = True
            self._call = None  # as long as anything refers to it, the connection stays
            await finished(_let_go(call, writer, channel))

    async def _write(self, call: Any, hello: bytes) -> None:
        try:
            await call.write(hello)
            while True:
                await self._something_unsent.wait()
                self._something_unsent.clear()
                batches, self._unsent = self._unsent, []
                for batch in batches:
                    if batch.size > MESSAGE_BYTES_MAX:
                        self._end(_too_large(batch))
                        return
                for message in batches_bytes(batches):
                    await call.write(message)
                if not self._told_end:
                    self._events.written()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The call is over, and `serve` learns why: what the target said last, or the status of the call.
            await asyncio.sleep(_LAST_WORDS_S)
            self._end(f"{self._endpoint.address}: the stream broke while it was written to")
        finally:
            call.cancel()  # so that `serve` ends

    # ------------------------------------------------------------------ answers

    def accepted(self, applied: dict[PartitionId, TransactionId]) -> None:
        if self._accepted:
            raise ProtocolError("the target has accepted the stream twice")
        self._accepted = True
        if not self._told_end:
            self._events.connected(applied)

    def fenced(self, kept: Fence) -> None:
        if not self._told_end:
            self._told_end = True
            self._events.fenced(kept)

    def acknowledged(self, partition: PartitionId, through: TransactionId) -> None:
        self._check_accepted()
        if not self._told_end:
            self._events.acknowledged(partition, through)

    def refused(self, partition: PartitionId, last: TransactionId, reason: str) -> None:
        self._check_accepted()
        if not self._told_end:
            self._events.refused(partition, last, told_by_target(reason))

    def ended(self, reason: str) -> None:
        self._end(told_by_target(reason) or "the target has ended the stream, and does not say why")

    def _check_accepted(self) -> None:
        if not self._accepted:
            raise ProtocolError("the target answers batches before it has accepted the stream")

    def _end(self, reason: str) -> None:
        if not self._told_end:
            self._told_end = True
            self._events.disconnected(shortened(reason, REASON_CHARACTERS_MAX))

    def _why(self, error: grpc.aio.AioRpcError) -> str:
        endpoint = self._endpoint
        return why_ended(endpoint.address, error.code(), error.details(), with_tls=endpoint.with_tls)


async def _let_go(call: Any, writer: asyncio.Task[None], channel: Any) -> None:
    """End the call, the task that writes, and the connection. Raises what was wrong in that task."""
    call.cancel()
    writer.cancel()
    await asyncio.wait((writer,))
    await channel.close()
    if not writer.cancelled():
        writer.result()


def _too_large(batch: DeliveryBatch) -> str:
    return (
        f"entry {batch.last} of partition {batch.partition} has {batch.size} bytes, and a message over gRPC at most "
        f"{MESSAGE_BYTES_MAX}: have the route function return less, or deliver to this target within the process"
    )


def why_ended(address: str, code: grpc.StatusCode, details: str | None, *, with_tls: bool) -> str:
    """Return why a stream to this address has ended, from the status that gRPC tells."""
    told = told_by_target(" ".join((details or "").split()))
    if _PINGS.search(told):
        advice = "its server takes no keepalive pings as often as this player sends them: have it permit them"
    elif told == _BROKEN_WRITE:
        advice = "the stream broke while it was written to: look whether the target runs, and into its log"
    elif code is grpc.StatusCode.UNAVAILABLE:
        advice = _advice_without_connection(told, with_tls)
    else:
        advice = _ADVICE.get(code, "")
    # What to do comes first: gRPC's own text may be long.
    parts = (address, advice, f"{code.name} {told}".rstrip())
    return shortened(": ".join(part for part in parts if part), REASON_CHARACTERS_MAX)


def _advice_without_connection(told: str, with_tls: bool) -> str:
    if with_tls and "CERTIFICATE_VERIFY_FAILED" in told:
        return "its certificate is not of a CA that this player trusts, or has expired"
    if with_tls and "Hostname Verification" in told:
        return "its certificate does not name this host: issue one that does"
    if with_tls and "WRONG_VERSION_NUMBER" in told:
        return "it speaks no TLS, and this player does: give both TLS files, or neither"
    if with_tls and _HANDSHAKE.search(told):
        return "the TLS handshake failed: use certificates of one CA for both, and look whether the target has TLS"
    if with_tls:
        return "no connection: start the target there; if it runs, look whether it has TLS and takes this certificate"
    return "no connection: start the target there; if it runs, look whether it takes connections with TLS only"


def told_by_target(reason: str) -> str:
    """Return the text of a target as it may be shown. It may be of any length, and have anything in it."""
    return redacted(reason, REASON_CHARACTERS_MAX)
