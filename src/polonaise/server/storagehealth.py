"""The health of the storage nodes, which a server asks for when it is asked for its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from polonaise.errors import PolonaiseError, ProtocolError
from polonaise.host import Host
from polonaise.server.storagelinks import StorageLink, expect
from polonaise.terms import StorageId
from polonaise.wire.messages import Health, HealthIs

_ANSWER_S: Final = 0.5
"""A storage node has so long to answer: health tells that one is slow, and does not wait for it."""
_FRESH_S: Final = 1.0
"""For so long one round of answers serves all requests."""


class StorageHealth:
    """Asks all storage nodes for their health at the same time, once for all requests of a moment."""

    def __init__(self, host: Host, links: Mapping[StorageId, StorageLink]) -> None:
        self._host = host
        self._links = links
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")
        self.answers: dict[StorageId, dict[str, Any]] = {}
        """The health documents of the last round, by node, without nodes that did not answer."""

    async def ask(self) -> None:
        """Bring `answers` up to date, within about half a second. Raises nothing."""
        if self._asking is None:
            if self._host.clock.monotonic_s() - self._asked_s < _FRESH_S:
                return
            self._asking = self._host.spawn(self._ask_all(), "health of the storage nodes")
        await asyncio.wait([self._asking])

    async def _ask_all(self) -> None:
        try:
            names = list(self._links)
            answers = await asyncio.gather(*(self._ask_one(self._links[name]) for name in names))
            self.answers = {name: answer for name, answer in zip(names, answers, strict=True) if answer is not None}
        finally:
            self._asked_s = self._host.clock.monotonic_s()
            self._asking = None

    async def _ask_one(self, link: StorageLink) -> dict[str, Any] | None:
        """Return a node's health; None if no valid answer comes in time."""
        connection = link.bulk or link.session
        if connection is None:
            return None
        try:
            answer = expect(await connection.request(Health(), deadline_s=_ANSWER_S), HealthIs)
            return _parsed(answer.document)
        except PolonaiseError:
            return None


def _parsed(document: bytes) -> dict[str, Any]:
    """Parse a node's health document. Raises `ProtocolError` unless it is JSON with an object `scrub`."""
    try:
        health = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a storage node's health is not a JSON document") from error
    if not isinstance(health, dict) or not isinstance(health.get("scrub"), dict):
        raise ProtocolError("a storage node's health document has no object 'scrub'")
    return health
