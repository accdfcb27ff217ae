"""Every version's frames mean today what they meant then, and sides of different versions settle on what both speak."""

from __future__ import annotations

from typing import Any

import pytest

from polonaise.errors import UnsupportedVersion
from polonaise.link.connection import Connection
from polonaise.link.protocol.greeting import hello
from polonaise.wire import codec
from polonaise.wire.codec import FRAME_BYTES_MAX, Frames
from polonaise.wire.messages import (
    NAMES_VERSION,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    ROLE_CLIENT,
    ROLE_SERVER,
    Hello,
    HighWaterMark,
    HighWaterMarkIs,
    Refused,
)
from rigs import keptlog
from rigs.link import KEY, Rig, simulated
from rigs.waiting import wait_until

FRAMES = [(version, kept) for version in keptlog.VERSIONS for kept in keptlog.manifest(version)["frames"]]


@pytest.mark.parametrize(("version", "kept"), FRAMES, ids=[f"{version}-{kept['name']}" for version, kept in FRAMES])
def test_a_frame_reads_as_it_was_written_and_is_written_the_same(version: str, kept: dict[str, Any]) -> None:
    raw = bytes.fromhex(kept["bytes"])
    (frame,) = Frames(FRAME_BYTES_MAX).feed(raw)
    message = codec.decode(frame)
    assert type(message).__name__ == kept["name"]
    meant = keptlog.message_with(type(message), kept["values"])
    for name in kept["values"]:
        told, then = getattr(message, name), getattr(meant, name)
        assert (b"".join(told), b"".join(then)) if name == "payload" else told == then
    assert b"".join(bytes(part) for part in meant.frame(request=7, partition=3)) == raw


@pytest.mark.parametrize("version", keptlog.VERSIONS)
def test_no_message_of_an_earlier_version_has_gone(version: str) -> None:
    there = {number: kind.__name__ for number, kind in codec.kinds().items()}
    kept = {each["type"]: each["name"] for each in keptlog.manifest(version)["frames"]}
    assert kept.items() <= there.items()


def spoken(low: int, high: int, role: int, name: str) -> Hello:
    return Hello(low, high, role, 1, KEY, name)


NEWER = PROTOCOL_VERSION + 1


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, NEWER), (PROTOCOL_VERSION, NEWER)])
@simulated
async def test_a_client_of_another_version_is_served_if_both_speak_one(rig: Rig, *, low: int, high: int) -> None:
    peer = await rig.raw(spoken(low, high, ROLE_CLIENT, "of another version"))
    await wait_until(lambda: bool(peer.heard_of(Hello)))
    (said,) = peer.heard_of(Hello)
    assert (said.version_min, said.version_max) == (PROTOCOL_VERSION_MIN, PROTOCOL_VERSION)
    peer.say(HighWaterMark())
    await wait_until(lambda: bool(peer.heard_of(HighWaterMarkIs)))
    assert not peer.heard_of(Refused)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (1, NEWER)])
@simulated
async def test_a_client_of_today_uses_a_server_of_another_version_if_both_speak_one(
    rig: Rig, *, low: int, high: int
) -> None:
    rig.server.said = spoken(low, high, ROLE_SERVER, "of another version")
    connection: Connection = await rig.connect()
    # What is newer than both is asked of nobody: `peer.version_max` says what the other side has.
    assert (connection.peer.version_max >= NAMES_VERSION) == (high > 1)


@pytest.mark.parametrize("high", [NEWER, NEWER + 5])
@simulated
async def test_sides_without_a_common_version_are_told_which_one_to_upgrade(rig: Rig, *, high: int) -> None:
    peer = await rig.raw(spoken(NEWER, high, ROLE_CLIENT, "from the future"))
    await wait_until(lambda: peer.lost)
    (refused,) = peer.heard_of(Refused)
    assert refused.code == UnsupportedVersion.code
    assert f"speaks protocol {NEWER} to {high}, this side 1 to {PROTOCOL_VERSION}" in refused.text
    assert "upgrade the older one" in refused.text


@simulated
async def test_a_client_that_needs_what_an_old_server_lacks_is_told_so(rig: Rig) -> None:
    rig.server.said = spoken(1, 1, ROLE_SERVER, "server of 0.1")
    rig.client.said = hello(ROLE_CLIENT, "carol", cluster_key=KEY, version_min=2)
    with pytest.raises(UnsupportedVersion, match="upgrade the older one"):
        await rig.connect()
