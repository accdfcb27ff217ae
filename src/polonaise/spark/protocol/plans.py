"""Records of what tasks have staged, and plans, which order the staged blocks of one partition into groups.

A batch is cut into groups once, by its plan. A stored plan begins with a line that has the format's name and the CRC-32
of all that follows, in hexadecimal. Then come a line of JSON, and the blocks that travelled inside tasks' messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from polonaise.checksum import crc32
from polonaise.client.protocol.draft import Limits
from polonaise.errors import fault
from polonaise.terms import PartitionId

PLANS: Final = "plans/"
STAGED: Final = "staged/"
INLINE: Final = -1
"""`BlockRef.object` of a block that lies within the message, or the plan, itself."""
_MAGIC: Final = b"polonaise-plan 1 "
_CRC_DIGITS: Final = 8


class BlockRef(NamedTuple):
    """Place and size of a staged block."""

    partition: PartitionId
    object: int
    """Index among the objects of the message or plan, or `INLINE`."""
    offset: int
    length: int
    rows: int
    weight: int
    """Bytes of bodies and locks, as a group's limit counts them."""
    crc: int
    """CRC-32 of the encoded block."""


class Staged(NamedTuple):
    """Everything that one task has staged, as the task's message tells it to the driver."""

    task: int
    """The Spark partition. Rows go into the log in ascending order of this number."""
    objects: Sequence[str]
    """Names of the task's objects in the staging store."""
    blocks: Sequence[BlockRef]
    inline: bytes
    """The blocks that travel in this message instead of in an object, one after the other."""


class Plan(NamedTuple):
    """The groups of one batch in one partition, in the order in which they are appended."""

    app: str
    batch: int
    partition: PartitionId
    objects: Sequence[str]
    groups: Sequence[Sequence[BlockRef]]
    inline: bytes
    """The blocks that lie in the plan itself, one after the other."""
    cluster: str = ""
    """The log's key (`Log.log_key`), hexadecimal: several logs, or topics, may share a staging store."""

    def pack(self) -> bytes:
        fields = {
            "cluster": self.cluster,
            "app": self.app,
            "batch": self.batch,
            "partition": self.partition,
            "objects": list(self.objects),
            "groups": self.groups,
        }
        body = json.dumps(fields, separators=(",", ":")).encode() + b"\n" + self.inline
        return _MAGIC + b"%08x\n" % crc32(body) + body

    @classmethod
    def parse(cls, raw: bytes, name: str) -> Plan:
        """Decode a stored plan. Raises `sink_state_damaged` for bytes that are not a plan of this version."""
        start = len(_MAGIC) + _CRC_DIGITS + 1
        body = raw[start:]
        if not raw.startswith(_MAGIC) or raw[len(_MAGIC) : start] != b"%08x\n" % crc32(body):
            raise fault(
                "sink_state_damaged",
                f"{name} in the staging store does not read as a plan of this version: restore it, finish the batch "
                "with the version that began it, or write the rest under another txnAppId",
            )
        line, _, inline = body.partition(b"\n")
        fields: dict[str, Any] = json.loads(line)
        groups = [[BlockRef(*ref) for ref in group] for group in fields["groups"]]
        return cls(
            fields["app"], fields["batch"], fields["partition"], fields["objects"], groups, inline, fields["cluster"]
        )


def plans_of(app: str, batch: int, staged: Iterable[Staged], limits: Limits, cluster: str = "") -> list[Plan]:
    """Return a plan for each partition that has rows: undivided blocks in the order of tasks, in few groups."""
    drafts: dict[PartitionId, _Draft] = {}
    for task in sorted(staged, key=lambda each: each.task):
        for ref in task.blocks:
            drafts.setdefault(ref.partition, _Draft()).take(task, ref)
    return [
        Plan(app, batch, partition, list(draft.places), _grouped(draft.refs, limits), b"".join(draft.inline), cluster)
        for partition, draft in sorted(drafts.items())
    ]


MARK_PARTITION: Final = 0
"""The partition whose register records a batch without rows."""


def plan_of_nothing(app: str, batch: int, cluster: str) -> Plan:
    """Return the plan of a batch without rows: one empty group, which sets the register and so records the batch."""
    return Plan(app, batch, MARK_PARTITION, [], [[]], b"", cluster)


class _Draft:
    """The blocks of one partition before they are cut into groups."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        """Index of each object, in the order of first use."""
        self.refs: list[BlockRef] = []
        self.inline: list[bytes] = []
        self._inline_bytes = 0

    # Each task counts its objects and inline bytes from 0; a plan has one list and one run of inline bytes for all.
    def take(self, task: Staged, ref: BlockRef) -> None:
        if ref.object == INLINE:
            self.inline.append(task.inline[ref.offset : ref.offset + ref.length])
            self.refs.append(ref._replace(offset=self._inline_bytes))
            self._inline_bytes += ref.length
        else:
            index = self.places.setdefault(task.objects[ref.object], len(self.places))
            self.refs.append(ref._replace(object=index))


def _grouped(refs: Iterable[BlockRef], limits: Limits) -> list[list[BlockRef]]:
    groups: list[list[BlockRef]] = []
    rows = weight = 0
    for ref in refs:
        rows, weight = rows + ref.rows, weight + ref.weight
        # A block is never larger than a group may be (`staging.Stage` closes it before), so each fits somewhere.
        if not groups or rows > limits.group_count_max or weight > limits.group_bytes_max:
            groups.append([])
            rows, weight = ref.rows, ref.weight
        groups[-1].append(ref)
    return groups


def plans_prefix(app: str, batch: int) -> str:
    """Return the prefix of the names of a batch's plans: no folder, which deleting would leave behind, empty."""
    # Hashed: an application's name may not be a valid file name.
    return f"{PLANS}{sha256(app.encode()).hexdigest()[:32]}/{batch:020d}-"


def check_block(ref: BlockRef, raw: bytes, where: str) -> None:
    """Raise `sink_state_damaged` unless `raw` is exactly what was staged."""
    if len(raw) != ref.length or crc32(raw) != ref.crc:
        raise fault(
            "sink_state_damaged",
            f"staged rows in {where} at {ref.offset} are not those that were written there: restore them from a copy, "
            "or write the rest under another txnAppId",
        )
