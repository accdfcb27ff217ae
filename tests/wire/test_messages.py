"""Every message survives the wire unchanged, and no bytes make a decoder do worse than refuse them."""

from __future__ import annotations

import itertools
import sys
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polonaise.errors import FrameDamaged, FrameTooLarge, ProtocolError
from polonaise.wire import codec
from polonaise.wire.codec import HEADER_BYTES, Frames, Message
from polonaise.wire.messages import Batches, Flush, Hello, Refused
from rigs.hostile import raw_frame

_BY_FORM: dict[str, st.SearchStrategy[Any]] = {
    "B": st.integers(0, 2**8 - 1),
    "H": st.integers(0, 2**16 - 1),
    "I": st.integers(0, 2**32 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
    "16s": st.binary(min_size=16, max_size=16),
    "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    "blob": st.binary(max_size=60),
}


def messages_of(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of one kind, with any values that its fields' wire types can hold."""
    hints = get_type_hints(kind, include_extras=True)
    given_fields: dict[str, st.SearchStrategy[Any]] = {}
    for name in (field.name for field in fields(kind)):
        if name == "payload":
            given_fields[name] = st.lists(st.binary(min_size=1, max_size=30), max_size=1)
        else:
            given_fields[name] = _BY_FORM[hints[name].__metadata__[0]]
    return st.builds(kind, **given_fields)


any_message = st.one_of([messages_of(kind) for _, kind in sorted(codec.kinds().items())])
request_numbers = st.integers(0, 2**32 - 1)
partitions = st.integers(-(2**31), 2**31 - 1)


def on_the_wire(message: Message, request: int = 0, partition: int = -1) -> bytes:
    return b"".join(message.frame(request=request, partition=partition))


def received(raw: bytes) -> list[codec.Frame]:
    return Frames(codec.FRAME_BYTES_MAX).feed(raw)


@pytest.mark.parametrize("number", sorted(codec.kinds()), ids=lambda n: codec.kinds()[n].__name__)
@settings(max_examples=10)
@given(data=st.data(), request=request_numbers, partition=partitions)
def test_every_message_arrives_as_it_was_said(number: int, data: st.DataObject, request: int, partition: int) -> None:
    message = data.draw(messages_of(codec.kinds()[number]))
    (cut,) = received(on_the_wire(message, request, partition))
    assert (cut.type, cut.request, cut.partition) == (number, request, partition)
    assert codec.decode(cut) == message


@given(said=st.lists(any_message, min_size=1, max_size=5), data=st.data())
def test_however_the_stream_is_cut_the_same_messages_come_out(said: list[Message], data: st.DataObject) -> None:
    stream = b"".join(on_the_wire(message) for message in said)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    positions = [0, *sorted(cuts), len(stream)]
    frames, heard = Frames(codec.FRAME_BYTES_MAX), []
    for start, stop in itertools.pairwise(positions):
        heard += [codec.decode(cut) for cut in frames.feed(stream[start:stop])]
    assert heard == said
    assert not frames.kept_bytes


def test_no_more_is_kept_than_has_come() -> None:
    frames = Frames(codec.FRAME_BYTES_MAX)
    promised = on_the_wire(Batches(0, payload=[bytes(1_000_000)]))
    for position in range(500):
        frames.feed(promised[position : position + 1])
    assert sys.getsizeof(frames._kept) < 1_000


def test_a_frame_behind_the_hello_is_judged_by_the_limit_that_the_hello_brings() -> None:
    """A peer that was greeted at once may say more before its hello has been looked at."""
    frames = Frames()
    hello = on_the_wire(Hello(1, 1, 1, 5, bytes(16), "quick"))
    large = on_the_wire(Batches(3, payload=[bytes(100_000)]))
    (first,) = frames.feed(hello + large + large[:30])
    assert isinstance(codec.decode(first), Hello)
    frames.bytes_max = codec.FRAME_BYTES_MAX
    (second,) = frames.feed(b"")
    assert codec.decode(second) == Batches(3, payload=[bytes(100_000)])
    (third,) = frames.feed(large[30:])
    assert bytes(third.payload) == bytes(100_000)


def test_without_a_hello_that_raises_it_the_limit_holds_for_what_follows_too() -> None:
    frames = Frames()
    assert len(frames.feed(on_the_wire(Flush()) + on_the_wire(Batches(3, payload=[bytes(100_000)])))) == 1
    with pytest.raises(FrameTooLarge):
        frames.feed(b"")


# ------------------------------------------------------------------ frames that are none


FLUSH = on_the_wire(Flush())


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        pytest.param(raw_frame(17, length=0), ProtocolError, id="length 0"),
        pytest.param(raw_frame(17, length=HEADER_BYTES - 1), ProtocolError, id="shorter than its header"),
        pytest.param(raw_frame(17, length=2**32 - 1), FrameTooLarge, id="length 2^32-1"),
        pytest.param(raw_frame(17, length=2**31 - 1), FrameTooLarge, id="length 2^31-1"),
        pytest.param(raw_frame(17, length=4097), FrameTooLarge, id="just over the limit"),
        pytest.param(raw_frame(17, head_bytes=1), ProtocolError, id="head beyond the frame"),
        pytest.param(raw_frame(17, head_bytes=2**32 - 1), ProtocolError, id="head of 2^32-1"),
        pytest.param(FLUSH[:-1] + bytes([FLUSH[-1] ^ 1]), FrameDamaged, id="wrong crc"),
        pytest.param(raw_frame(17, flags=1), ProtocolError, id="unknown flags"),
        pytest.param(bytes(4096), ProtocolError, id="zeros"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: log\r\n\r\n", FrameTooLarge, id="http"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", FrameTooLarge, id="http/2 preface"),
        pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n" + bytes(8), FrameTooLarge, id="ssh banner"),
        pytest.param(bytes.fromhex("1603010200010001fc0303") + bytes(40), FrameTooLarge, id="tls hello"),
    ],
)
def test_bytes_that_are_no_frame_are_refused(raw: bytes, error: type[ProtocolError]) -> None:
    with pytest.raises(error):
        Frames().feed(raw)
    frames = Frames()
    with pytest.raises(error):
        _ = [frames.feed(raw[position : position + 1]) for position in range(len(raw))]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_frame(9999), id="unknown type"),
        pytest.param(raw_frame(17, b"ab"), id="trailing bytes"),
        pytest.param(raw_frame(16, b"abc"), id="fields cut short"),
        pytest.param(raw_frame(25, (2**32 - 1).to_bytes(4, "little")), id="blob longer than the frame"),
        pytest.param(raw_frame(25, b"abc"), id="length of a blob cut short"),
        pytest.param(raw_frame(2, bytes(8) + b"\2\0\xff\xfe" + b"\0\0"), id="text that is not utf-8"),
        pytest.param(raw_frame(17, payload=b"extra"), id="a payload that nobody takes"),
    ],
)
def test_frames_that_are_no_message_are_refused(raw: bytes) -> None:
    (cut,) = received(raw)
    with pytest.raises(ProtocolError):
        codec.decode(cut)


@given(said=any_message, position=st.integers(0), bit=st.integers(0, 7))
def test_no_flipped_bit_in_front_of_the_payload_goes_unseen(said: Message, position: int, bit: int) -> None:
    raw = bytearray(on_the_wire(said))
    (cut,) = received(bytes(raw))
    raw[position % (len(raw) - len(cut.payload))] ^= 1 << bit
    try:
        assert received(bytes(raw)) == []  # the length was hit, and the rest has not come yet
    except ProtocolError:
        pass


@given(raw=st.binary(max_size=200))
def test_noise_is_refused_or_waited_for(raw: bytes) -> None:
    try:
        for cut in received(raw):
            assert type(codec.decode(cut)) is codec.kinds()[cut.type]
    except ProtocolError:
        pass


@given(kind=st.sampled_from(sorted(codec.kinds())), head=st.binary(max_size=100), rest=st.binary(max_size=20))
def test_a_frame_with_a_right_checksum_and_any_contents_is_a_message_or_refused(
    kind: int, head: bytes, rest: bytes
) -> None:
    (cut,) = received(raw_frame(kind, head, rest, request=0, partition=-1))
    try:
        message = codec.decode(cut)
    except ProtocolError:
        return
    assert on_the_wire(message) == raw_frame(kind, head, rest, request=0, partition=-1)


# ------------------------------------------------------------------ text


def test_a_text_that_is_too_long_is_cut_between_two_characters() -> None:
    (cut,) = received(on_the_wire(Refused(0, "x", "ä€" * 40_000)))
    text = codec.decode(cut).text  # type: ignore[attr-defined]
    assert ("ä€" * 40_000).startswith(text)
    assert 65_530 < len(text.encode()) <= 65_535


def test_a_text_with_stray_bytes_of_a_file_name_can_still_be_said() -> None:
    (cut,) = received(on_the_wire(Refused(0, "not_found", b"/log/\xff.seq".decode(errors="surrogateescape"))))
    assert codec.decode(cut) == Refused(0, "not_found", "/log/?.seq")
