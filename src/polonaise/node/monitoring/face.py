"""Answer the HTTP requests of operators: `/live`, `/ready`, `/health` and `/metrics` of one node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from polonaise.errors import BadOption, PolonaiseError
from polonaise.histogram import Histogram
from polonaise.host import Clock, DiskSpace, Host, Network, certificate_expired, certificate_expires_s, unreachable
from polonaise.node.condition import HealthStatus, conditions_in, why_not_serving
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.httplistener import HttpAnswer, HttpRequest
from polonaise.node.monitoring.samples import Detail, Samples, detail_in
from polonaise.node.monitoring.servermetrics import server_samples
from polonaise.node.monitoring.storagemetrics import storage_samples
from polonaise.node.reasons import Reason, ServerTold, Trouble, lines_of, server_reasons, storage_reasons
from polonaise.redaction import redacted
from polonaise.server.startingserver import AnyServer
from polonaise.storage.node import StorageNode
from polonaise.terms import PartitionId

_JSON: Final = "application/json"
_NAMED_MAX: Final = 8
_VERDICT_S: Final = 1.0
"""So long a verdict on readiness stands, so that frequent requests don't keep the node busy."""
_SPACE_S: Final = 1.0
"""So long the disk has to tell its free space: one that hangs must not hold up the other metrics."""

TextOf = Callable[[Samples, str], tuple[bytes, str]]
"""Returns samples as text, and the text's content type, given the header `Accept`."""


class ObservedNode(Protocol):
    """What the paths need of a node."""

    def labels(self) -> tuple[str, str]:
        """Return the node's role, and a server's id (empty for a storage node), as values of labels."""

    def not_ready(self) -> str:
        """Return why the node is not ready; empty if it is."""

    async def health(self) -> dict[str, Any]:
        """Return the node's health document, with `status`, `ready`, `reasons` and `problems` first."""

    async def samples(self, detail: Detail) -> Samples:
        """Read the node's metrics."""


class ObservedServer:
    def __init__(self, present: Callable[[], AnyServer], clock: Clock) -> None:
        """`present` returns the server as it is: one that starts, and later the one that runs."""
        self._present = present
        self._clock = clock

    def labels(self) -> tuple[str, str]:
        return "server", str(self._present().id)

    def not_ready(self) -> str:
        """Return why it is not ready. One without partitions is, unless something keeps it from serving any."""
        server = self._present()
        if not server.followed:
            return server.waits_for
        # The health document is not used: for thousands of partitions it takes tens of milliseconds of the event loop.
        now_s, waits = self._clock.monotonic_s(), {}
        for partition, served in server.partitions.items():
            readiness = served.owner.readiness
            trouble = readiness.trouble(now_s)
            if trouble or served.owner.session is None:
                waits[partition] = trouble or readiness.waits_for
        if not server.partitions:
            # A coordinator that is away for a moment is no reason: every server does without it then.
            why = "; ".join(why_not_serving(ServerTold(server.measures().own._replace(coordinator=""))))
            return why and f"the server could take no partition over: {why}"
        return _not_ready(waits)

    async def health(self) -> dict[str, Any]:
        server = self._present()
        document = await server.checked_health() if server.followed else server.health()
        conditions = conditions_in(document).values()
        found = {str(each.partition): reasons for each in conditions if (reasons := each.reasons)}
        own = server_reasons(ServerTold.of(document))
        if not server.followed and Reason.COORDINATOR not in (reason for reason, _ in own):
            own.insert(0, (Reason.COORDINATOR, server.waits_for))
        if own:
            found["server"] = own
        problems = {whose: lines_of(each) for whose, each in found.items()}
        waits = not all(each.ready for each in conditions)
        return {**verdict(self.not_ready(), found.values(), problems, waits=waits), **document}

    async def samples(self, detail: Detail) -> Samples:
        return await server_samples(self._present(), self._clock, detail)


def verdict(
    not_ready: str, found: Iterable[Iterable[Trouble]], problems: Any, *, waits: bool = False
) -> dict[str, Any]:
    """Return what a health document begins with: a node is ready unless it is `not_ready`.

    With `waits`, something in it is not ready, whatever the node says.
    """
    reasons = sorted({reason for troubles in found for reason, _ in troubles})
    status = HealthStatus.NOT_READY if not_ready or waits else HealthStatus.DEGRADED if reasons else HealthStatus.OK
    return {"status": status.value, "ready": not not_ready, "reasons": reasons, "problems": problems}


def _not_ready(waits: Mapping[PartitionId, str]) -> str:
    if not waits:
        return ""
    waiting = sorted(waits)
    named = ", ".join(map(str, waiting[:_NAMED_MAX]))
    more = f" and {len(waiting) - _NAMED_MAX} more" if len(waiting) > _NAMED_MAX else ""
    return f"partition {named}{more}: {waits[waiting[0]]}"


class ObservedStorage:
    def __init__(self, node: StorageNode, host: Host, directory: str) -> None:
        self._node = node
        self._host = host
        self._directory = directory
        self._asking: asyncio.Task[None] | None = None
        self._space: DiskSpace | None = None

    def labels(self) -> tuple[str, str]:
        return "storage", ""

    def not_ready(self) -> str:
        """Return why it is not ready. With replicas that can't be used it is: it tells servers which, and why."""
        if self._node.serving:
            return ""
        return (
            self._node.measures().health.gone or "the storage node has not opened its directory yet, or it is stopping"
        )

    async def health(self) -> dict[str, Any]:
        health = self._node.measures().health
        found = storage_reasons(health)
        return {**verdict(self.not_ready(), [found], lines_of(found)), **health.document()}

    async def samples(self, detail: Detail) -> Samples:
        return await storage_samples(self._node, await self._ask_space(), detail)

    async def _ask_space(self) -> DiskSpace | None:
        """Return the space of the disk if it is known in time. A disk that hangs is not asked again."""
        if self._asking is None:
            self._asking = self._host.spawn(self._read_space(), f"space of {self._directory}")
            self._space = None
        await asyncio.wait([self._asking], timeout=_SPACE_S)
        return self._space

    async def _read_space(self) -> None:
        try:
            self._space = await self._host.disk.space(self._directory)
        except PolonaiseError:
            self._space = None  # a new node has no directory yet
        finally:
            self._asking = None


class HttpFace:
    """Answers the requests of operators about one node."""

    def __init__(
        self,
        node: ObservedNode,
        clock: Clock,
        text: TextOf,
        loop_delays: Histogram,
        version: str,
        network: Network | None = None,
    ) -> None:
        self._node = node
        self._network = network
        self._clock = clock
        self._text = text
        self._loop_delays = loop_delays
        self._version = version
        self._reading = asyncio.Lock()
        """Held while health or metrics are made, so that many requests don't do so at once."""
        self._reason = ""
        self._judged_s: float | None = None

    async def answer(self, asked: HttpRequest) -> HttpAnswer:
        """Answer a request. Raises what the node raises."""
        match asked.path:
            case "/live":
                # At once, and without a thread: supervisors restart a node that does not answer in time.
                return HttpAnswer(200, _JSON, b'{"live": true}\n')
            case "/health":
                async with self._reading:
                    document = await self._node.health()
                    if self._out_of_reach():
                        document = {**document, "status": HealthStatus.NOT_READY.value, "ready": False}
                    return await _json(200, document)
            case "/ready":
                reason = self._not_ready()
                return await _json(503 if reason else 200, {"ready": not reason, "reason": reason})
            case "/metrics":
                return await self._metrics(asked)
            case "/":
                return HttpAnswer(200, "text/plain; charset=utf-8", b"/live /ready /health /metrics\n")
        return await _json(404, {"error": "there are /live, /ready, /health and /metrics"})

    def _not_ready(self) -> str:
        """Return why the node is not ready, by a verdict at most `_VERDICT_S` old."""
        now_s = self._clock.monotonic_s()
        if self._judged_s is None or now_s - self._judged_s >= _VERDICT_S:
            self._reason, self._judged_s = self._out_of_reach() or self._node.not_ready(), now_s
        return self._reason

    def _out_of_reach(self) -> str:
        """Return why nobody connects to the node: its certificate has expired, or its socket is gone."""
        if self._network is None:
            return ""
        return certificate_expired(self._network, self._clock.wall_us()) or unreachable(self._network)

    async def _metrics(self, asked: HttpRequest) -> HttpAnswer:
        try:
            detail = detail_in(asked.query)
        except BadOption as error:
            return await _json(400, {"error": error.text})
        async with self._reading:
            samples = await self._node.samples(detail)
            self._add_node(samples)
            # In a thread: writing thousands of lines would hold the event loop up. It is safe because samples share
            # nothing with the node's state.
            body, content_type = await asyncio.to_thread(self._text, samples, asked.accept)
        return HttpAnswer(200, content_type, body)

    def _add_node(self, samples: Samples) -> None:
        role, name = self._node.labels()
        samples.add(metrics.NODE_INFO, 1, role, self._version, name)
        samples.add(metrics.NODE_READY, int(not self._not_ready()))
        expires_s = None if self._network is None else certificate_expires_s(self._network)
        if expires_s is not None:
            samples.add(metrics.NODE_CERTIFICATE_EXPIRES, expires_s)
        samples.add(metrics.NODE_TASKS, len(asyncio.all_tasks()))
        samples.add_histogram(metrics.NODE_LOOP_DELAY, self._loop_delays)


async def _json(status: int, document: Mapping[str, Any]) -> HttpAnswer:
    def encoded() -> bytes:
        return (json.dumps(_without_secrets(document), ensure_ascii=False, indent=1) + "\n").encode()

    # In a thread: with thousands of partitions it is large.
    return HttpAnswer(status, _JSON, await asyncio.to_thread(encoded))


def _without_secrets(value: Any) -> Any:
    """Return a JSON value with each text redacted: errors of coordinators and stores may have addresses in them."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: _without_secrets(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(each) for each in value]
    return value
