"""Tell storage nodes the coordinator's values, which they note in case the coordinator loses them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final

from polonaise.errors import PolonaiseError
from polonaise.link.connection import Connection
from polonaise.server.clusteranswers import UNIQUE_IDS
from polonaise.server.coordinatortrouble import answered_within
from polonaise.server.expectedservers import ExpectedServersWatch
from polonaise.server.protocol.recovery import OlderStateProved
from polonaise.server.servedpartition import ServedPartition
from polonaise.server.sharedparts import SharedParts
from polonaise.terms import PartitionId, StorageId
from polonaise.wire.messages import NOTES_VERSION, NoteValues

_log = logging.getLogger(__name__)

_FIRST_S: Final = 0.05
_VALUES_S: Final = 5.0
"""Between two looks at the description, unless one has failed."""
_IDS_S: Final = 1.0
"""The same for how many unique ids were given out: until a server has seen one given out, it would not notice that the
coordinator was put back to the state before, and give it out a second time."""
_TRIED_S: Final = 10.0
"""By then each partition that a server owns was tried to be started, as a rule."""
_DESCRIPTION: Final = "the cluster's description can't be read"


class ValueNotes:
    """Tells each storage node what it has not been told on its connection yet of the coordinator's values.

    The description, the unique ids, the expected servers, and each partition's value, as its session began, go to all:
    who has a copy that was given up learns so by the value. What is not of one partition is told only once a session
    has begun here, at the beginning in each partition, and while none proves the coordinator to be of an older state:
    else a description that nobody is to believe would be noted over the true one. Nothing waits for a note. The values
    that are read for them, which servers hardly need once they have started, are watched on the way: `trouble` is told
    what is wrong with them.
    """

    def __init__(
        self, shared: SharedParts, partitions: Mapping[PartitionId, ServedPartition], expected: ExpectedServersWatch
    ) -> None:
        self._shared = shared
        self._cluster = shared.cluster
        self._partitions = partitions
        self._changes = shared.changes
        self._tried_s = shared.host.clock.monotonic_s() + _TRIED_S
        """When every partition has had its chance to prove the coordinator to be of an older state."""
        self._looked_at: tuple[int, bool, dict[str | PartitionId, Any]] | None = None
        """The count of changes when `_known` last looked, whether that was after `_tried_s`, and the cluster's
        values."""
        self._latest: dict[str | PartitionId, Any] = {}
        self._expected = expected
        self._trouble = shared.trouble
        self._unique_id = 0
        self._looked_s: dict[str, float] = {}
        self._told: dict[StorageId, tuple[Connection, dict[str | PartitionId, Any]]] = {}

    async def run(self) -> None:
        """Tell what has changed, every `notes_s` seconds; sooner at first, as an embedded log may be open for a moment
        only.
        """
        pause_s = min(_FIRST_S, self._shared.settings.notes_s)
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._shared.settings.notes_s)
            await self._look_at_values()
            known = self._known()
            for name in list(self._shared.links):
                try:
                    await self._tell(name, known)
                except PolonaiseError as error:
                    _log.debug("storage node %s notes nothing: %s", name, error)

    async def _look_at_values(self) -> None:
        """Read the values that nothing else reads so often, and tell `trouble` which can't be."""
        now_s = self._shared.host.clock.monotonic_s()
        failing = self._trouble.is_failing(UNIQUE_IDS) or self._trouble.is_failing(_DESCRIPTION)
        looks = (_DESCRIPTION, _VALUES_S, self._cluster.read_description), (UNIQUE_IDS, _IDS_S, self._look_at_ids)
        for what, every_s, look in looks:
            if now_s - self._looked_s.get(what, float("-inf")) < every_s and not failing:
                continue
            self._looked_s[what] = now_s
            try:
                async with answered_within(self._shared.settings.coordinator_s_max, self._shared.coordinator):
                    await look()
            except PolonaiseError as error:
                self._trouble.failed(what, error, server=self._cluster.server)
            else:
                self._trouble.succeeded(what)

    async def _look_at_ids(self) -> None:
        self._unique_id = await self._shared.coordinator.unique_ids_given()
        # A client was refused one: that there are some to be read does not show that they can be given out again.
        if self._trouble.is_failing(UNIQUE_IDS):
            self._unique_id = await self._shared.coordinator.unique_id()

    async def _tell(self, name: StorageId, known: dict[str | PartitionId, Any]) -> None:
        connection = self._shared.links[name].bulk
        if connection is None or connection.peer.version_max < NOTES_VERSION:
            return
        before, told = self._told.get(name, (None, {}))
        told = told if before is connection else {}
        if told is known:
            return
        # First whether they are the same objects, and only what is new is encoded: of thousands nearly all stay.
        news = {key: value for key, value in known.items() if (last := told.get(key)) is not value and last != value}
        if not news:
            self._told[name] = connection, known
            return
        document: dict[str, Any] = {key: value for key, value in news.items() if isinstance(key, str)}
        for key in {"description", "expected"} & document.keys():
            document[key] = [news[key].version, news[key].value.encode().decode()]
        document["partitions"] = {
            str(key): value.encode().decode() for key, value in news.items() if not isinstance(key, str)
        }
        asked = NoteValues(json.dumps(document).encode())
        await connection.request(asked, deadline_s=self._shared.settings.replica_s_max)
        self._told[name] = connection, known

    def _known(self) -> dict[str | PartitionId, Any]:
        """Return what a storage node is to know: the same object as before, if nothing has changed."""
        cluster: dict[str | PartitionId, Any] = {"unique_id": self._unique_id, "description": self._cluster.described}
        if self._expected.seen is not None and self._expected.seen.version >= 0:
            cluster["expected"] = self._expected.seen
        count, tried = self._changes.count, self._shared.host.clock.monotonic_s() >= self._tried_s
        if self._looked_at is not None and self._looked_at[:2] == (count, tried):
            before = self._looked_at[2]
            if before.keys() == cluster.keys() and all(before[key] is cluster[key] for key in cluster):
                return self._latest
        self._looked_at = count, tried, cluster
        owners = {partition: served.owner for partition, served in self._partitions.items()}
        values: dict[str | PartitionId, Any] = {
            partition: owner.session.value for partition, owner in owners.items() if owner.session is not None
        }
        older = any(isinstance(each.stopped or each.readiness.blocked, OlderStateProved) for each in owners.values())
        believed = bool(values) and not older and (tried or values.keys() == owners.keys())
        self._latest = {**(cluster if believed else {}), **values}
        return self._latest
