"""The contract `proto/delivery.proto`: what is loaded is what it says, and messages say what they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from polonaise.errors import ProtocolError
from polonaise.player.deliverytarget import DeliverySource
from polonaise.player.grpctransport import messages
from polonaise.player.grpctransport.messages import (
    GATHERED_BYTES_MAX,
    Greeting,
    UnsentAnswers,
    batches_bytes,
    hello_bytes,
    read_by_target,
    tell_answers,
)
from polonaise.player.protocol.entries import DeliveryBatch, Fence, RoutedEntry

HERE = Path(__file__).parents[2]
CONTRACT = HERE / "proto" / "delivery.proto"
COMPILED = HERE / "src" / "polonaise" / "player" / "grpctransport" / "delivery.binpb"

NUMBERS = st.integers(1, 2**63 - 1)
IDS = st.integers(-1, 2**63 - 1)
PARTITIONS = st.integers(0, 2**31 - 1)


def protoc(*arguments: str) -> None:
    from grpc_tools import protoc as tools  # not for the tests that need none

    proto = f"--proto_path={CONTRACT.parent}"
    assert tools.main(["protoc", proto, *arguments, CONTRACT.name]) == 0


def test_what_is_loaded_is_the_contract_as_it_is_now(tmp_path: Path) -> None:
    made = tmp_path / "delivery.binpb"
    protoc(f"--descriptor_set_out={made}")
    both = [descriptor_pb2.FileDescriptorSet.FromString(each.read_bytes()) for each in (COMPILED, made)]
    assert both[0] == both[1], (
        "proto/delivery.proto has changed: python -m grpc_tools.protoc --proto_path=proto "
        "--descriptor_set_out=src/polonaise/player/grpctransport/delivery.binpb delivery.proto"
    )
    (file,) = both[0].file
    (service,) = file.service
    assert f"{file.package}.{service.name}" == messages.SERVICE
    assert [(each.name, each.client_streaming, each.server_streaming) for each in service.method] == [
        (messages.METHOD, True, True)
    ]


def test_an_application_may_have_classes_of_its_own_of_the_same_contract() -> None:
    """Protobuf's own pool takes a name once, and the application's file may have another name or be an older one."""
    file = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file[0]
    file.name = "of_the_application/delivery.proto"
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    named = descriptor_pool.Default().FindMessageTypeByName("polonaise.delivery.v1.ToTarget")
    message = message_factory.GetMessageClass(named).FromString(
        next(batches_bytes([DeliveryBatch(3, -1, [RoutedEntry(0, None)])]))
    )
    assert message.batches[0].partition == 3
    assert not message.batches[0].entries[0].HasField("payload")


@given(st.binary(max_size=64), st.text(max_size=200), st.text(max_size=200), NUMBERS, NUMBERS)
def test_a_hello_says_what_it_was_given(key: bytes, player: str, target: str, epoch: int, term: int) -> None:
    source, fence = DeliverySource(key, player, target), Fence(epoch, term)
    assert read_by_target(hello_bytes(fence, source)) == Greeting(messages.VERSION, source, fence)


@st.composite
def batches(draw: st.DrawFn) -> DeliveryBatch:
    previous, *ids = sorted(draw(st.sets(IDS, min_size=2, max_size=6)))
    payloads = st.one_of(st.none(), st.binary(max_size=10))
    return DeliveryBatch(draw(PARTITIONS), previous, [RoutedEntry(id, draw(payloads)) for id in ids])


@given(st.lists(batches(), min_size=1, max_size=5))
def test_batches_say_what_they_were_given(given: list[DeliveryBatch]) -> None:
    (message,) = batches_bytes(given)
    assert read_by_target(message) == given


def test_batches_share_messages_that_stay_small_and_large_ones_go_alone() -> None:
    small = DeliveryBatch(0, -1, [RoutedEntry(0, bytes(200_000))])
    large = DeliveryBatch(1, -1, [RoutedEntry(0, bytes(5_000_000))])
    sent = [read_by_target(each) for each in batches_bytes([small, small, small, large, small, small])]
    assert sent == [[small, small], [small], [large], [small, small]]
    assert 2 * small.size <= GATHERED_BYTES_MAX < 3 * small.size


def test_an_answer_without_anything_but_zeros_is_one_nevertheless() -> None:
    answers = UnsentAnswers()
    answers.accepted({})
    answers.acknowledged(0, 0)
    answers.refused(0, 0, "")
    answers.fenced(Fence(0, 0))
    answers.ended("")
    assert told(answers) == [
        ("accepted", {}), ("acknowledged", 0, 0), ("refused", 0, 0, ""), ("fenced", Fence(0, 0)), ("ended", "")
    ]  # fmt: skip


def test_an_acknowledgement_stands_for_those_before_but_not_across_a_refusal() -> None:
    answers = UnsentAnswers()
    for through in (1, 2):
        for partition in (0, 1):
            answers.acknowledged(partition, through)
    answers.refused(0, 2, "no")
    answers.acknowledged(0, 3)
    answers.acknowledged(1, 4)
    assert told(answers) == [
        ("acknowledged", 0, 2), ("acknowledged", 1, 4), ("refused", 0, 2, "no"), ("acknowledged", 0, 3)
    ]  # fmt: skip
    answers.acknowledged(0, 4)
    assert told(answers) == [("acknowledged", 0, 4)]
    assert not answers


def test_a_reason_that_utf_8_can_t_have_is_sent_nevertheless_and_such_a_name_is_not() -> None:
    answers = UnsentAnswers()
    answers.ended("\ud800 is half a letter")
    assert told(answers) == [("ended", "? is half a letter")]
    with pytest.raises(ProtocolError, match="can't be sent"):
        hello_bytes(Fence(1, 1), DeliverySource(b"k", "p", "\ud800"))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    for read in (read_by_target, lambda data: tell_answers(data, Told())):
        try:
            wrong = ""
            read(data)
        except ProtocolError as error:
            wrong = str(error)
        assert len(wrong) < 500


class Told:
    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *about: self.all.append((name, *about))


def told(answers: UnsentAnswers) -> list[tuple[Any, ...]]:
    to = Told()
    tell_answers(answers.take(), to)
    return to.all
