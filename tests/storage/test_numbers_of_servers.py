"""What a server of the cluster says in numbers is checked before it is obeyed: nothing makes a copy unusable."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from polonaise.coordination.values import PartitionValue
from polonaise.errors import PolonaiseError, ProtocolError
from polonaise.host import Host
from polonaise.wire.codec import Message
from polonaise.wire.messages import (
    Confirm,
    CutForReset,
    Digest,
    EmptyCopy,
    GetRegisters,
    Join,
    LowerMarks,
    NotedAre,
    NoteValues,
    ReadBatches,
    TellNoted,
    Trim,
    Truncate,
    ValuesNoted,
)
from rigs.log import PARTITION, Maker
from rigs.storage import Node, connected, opened, simulated

KINDS = (Truncate, CutForReset, LowerMarks, Join, Confirm, Trim, ReadBatches, GetRegisters, Digest, EmptyCopy)
LIMITS = {"q": (-(2**63), -(2**62), -2, -1, 0, 1, 3, 2**31, 2**62, 2**63 - 1), "I": (0, 1, 2**32 - 1), "B": (0, 2, 255)}


def extremes(kind: type[Message]) -> Iterator[Message]:
    """Messages of session 2 with each other field in turn at its limits."""
    forms = dict(zip(kind._FIXED_NAMES, kind._FIXED.format.lstrip("<"), strict=True))
    usual = {**dict.fromkeys(forms, 1), "session": 2}
    for name, form in forms.items():
        for value in LIMITS[form] if name != "session" else (-(2**63), -1, 0, 1):
            yield kind(**{**usual, name: value})


CASES = [pytest.param(message, id=repr(message)) for kind in KINDS for message in extremes(kind)]


@pytest.mark.exhaustive  # of messages and numbers
@pytest.mark.parametrize("message", CASES)
@simulated
async def test_a_number_at_its_limits_leaves_a_copy_that_sessions_can_use(
    host: Host, node: Node, *, message: Message
) -> None:
    made = Maker()
    owner = await opened(host)
    await owner.store_each(made.batches(4))
    await owner.confirm(1)
    await owner.fence(2)
    with contextlib.suppress(PolonaiseError):
        await owner.link.request(message, partition=owner.partition, deadline_s=10)
    assert not owner.link.closed
    for restarts in (False, True):
        if restarts:
            await node.restart(power_loss=True)
        owner = await connected(host)
        info = await owner.fence(3 + restarts)
        assert -1 <= info.confirmed <= info.max_synced <= 3
        assert -1 <= info.prepared <= 3
        assert 0 <= info.joined <= 2 + restarts
        await owner.truncate(info.max_synced)
        await owner.join(info.max_synced, info.last_crc)
        held = await owner.read_all()
        assert len(held) == info.max_synced + 1


@simulated
async def test_a_copy_that_was_given_up_is_told_apart_by_the_value_that_a_server_tells(host: Host, node: Node) -> None:
    def told(*members: str) -> NoteValues:
        value = PartitionValue.initial(members).encode().decode()
        partitions = {str(partition): value for partition in (PARTITION, PARTITION + 1)}
        return NoteValues(json.dumps({"partitions": partitions}).encode())

    owner = await opened(host)
    await owner.identify("here")
    await owner.link.request(told("here", "b", "c"), deadline_s=10)
    assert node.node.given_up == set()
    for _ in range(2):
        await owner.link.request(told("a", "b", "c"), deadline_s=10)
        assert node.node.given_up == {PARTITION}, "of the other it has no copy"
        assert (node.node.health()["partitions"], node.node.health()["given_up"]) == (1, 1)
        await node.restart()
        owner = await connected(host)
        await owner.identify("here")
        assert node.node.given_up == {PARTITION}
    told_of = await owner.link.request(TellNoted(), deadline_s=10)
    assert isinstance(told_of, NotedAre)
    assert list(json.loads(told_of.document)["note"]["partitions"]) == [str(PARTITION), str(PARTITION + 1)]
    await owner.link.request(told("here", "b", "c"), deadline_s=10)
    assert node.node.given_up == set()


NOTES = [
    pytest.param(document, id=document.decode()[:40])
    for document in (
        b"[]",
        b"{",
        b'{"description": "text"}',
        b'{"description": [1, 2]}',
        b'{"description": [1e999, "text"]}',
        b'{"description": [-1, "text"]}',
        b'{"description": [9223372036854775808, "text"]}',
        b'{"expected": [true, "text"]}',
        b'{"unique_id": "1"}',
        b'{"unique_id": -1}',
        b'{"unique_id": 2147483648}',
        b'{"unique_id": 1.5}',
        b'{"partitions": []}',
        b'{"partitions": {"4096": "text"}}',
        b'{"partitions": {"2147483647": "text"}}',
        b'{"partitions": {"-1": "text"}}',
        b'{"partitions": {"01": "text"}}',
        b'{"partitions": {"\xd9\xa3": "text"}}',
        b'{"partitions": {"1": null}}',
        b'{"partitions": {"1": "' + bytes(20_000_000).replace(b"\0", b"x") + b'"}}',
        b"[" * 100_000,
    )
]


@pytest.mark.parametrize("document", NOTES)
@simulated
async def test_values_of_another_form_are_not_noted_and_those_of_before_stay(
    host: Host, node: Node, *, document: bytes
) -> None:
    good = {"description": [3, "the cluster"], "unique_id": 7, "partitions": {"0": "a value"}}
    owner = await connected(host)
    await owner.link.request(NoteValues(json.dumps(good).encode()), deadline_s=10)
    with pytest.raises(ProtocolError, match="invalid values"):
        await owner.link.request(NoteValues(document), deadline_s=10)
    await node.restart()
    owner = await connected(host)
    told = await owner.link.request(TellNoted(), deadline_s=10)
    assert isinstance(told, NotedAre)
    assert json.loads(told.document)["note"] == good
    later = {**good, "description": [4, "the cluster"]}
    assert isinstance(await owner.link.request(NoteValues(json.dumps(later).encode()), deadline_s=10), ValuesNoted)
