"""The contract `proto/delivery.proto`: messages say what they are given, and a target in JavaScript follows it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

import polonaise
from polonaise.errors import ProtocolError
from polonaise.player import Player, remote
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
from polonaise.player.protocol.settings import PlayerSettings
from rigs.deliverystreams import SOURCE, opening
from rigs.lacking import program
from rigs.waiting import time_passes, wait_until

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


@pytest.mark.slow
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


EXAMPLE = Path(__file__).parents[2] / "examples" / "target.mjs"

QUICK = PlayerSettings(
    retry_s_min=0.01, retry_s_max=0.1, start_patience_s=0.2, batch_entries_max=7, partition_window_bytes=2_000
)


class JavaScriptTarget:
    """The process of the example, with its file. It is started again at the same port."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.port = int((await asyncio.to_thread(self._first_line)).rpartition(" ")[2])

    def _first_line(self) -> str:
        command = [program("node", "nodejs"), str(EXAMPLE), f"127.0.0.1:{self.port}", str(self.file)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def steps(self) -> list[dict[str, Any]]:
        """The whole lines of its file."""
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def applied(self) -> dict[int, list[str]]:
        """The texts in its file, by partition; dummies have none."""
        found: dict[int, list[str]] = {}
        for step in self.steps():
            texts = [entry["text"] for entry in step.get("entries", ()) if "text" in entry]
            if texts:
                found.setdefault(step["partition"], []).extend(texts)
        return found


@pytest.fixture
async def target(tmp_path: Path) -> Any:
    made = JavaScriptTarget(tmp_path / "shard.jsonl")
    await made.start()
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_a_target_in_javascript_and_its_player_are_killed_and_nothing_is_missing_or_doubled(
    target: JavaScriptTarget, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    written: dict[int, list[str]] = {0: [], 1: []}

    async def write(log: polonaise.Log) -> None:
        for _ in range(random.randrange(5, 40)):
            partition = random.randrange(2)
            text = f"{len(written[partition])} é " * random.choice((1, 1, 50))
            await log.append(text.encode(), partition=partition)
            written[partition].append(text)

    async with polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2") as log:
        kills = 0
        for _ in range(3):
            reached = {"js": remote(target.address)}
            async with Player(log, "p", lambda tx: {"js": tx.data}, reached, settings=QUICK):
                for _ in range(2):
                    await write(log)
                    await time_passes(random.random() * 0.05)
                    target.kill()
                    kills += 1
                    await write(log)
                    await target.start()
                await write(log)
        reached = {"js": remote(target.address)}
        async with Player(log, "p", lambda tx: {"js": tx.data}, reached, settings=QUICK) as player:
            await wait_until(lambda: target.applied() == written, "it has everything")
            await wait_until(lambda: player.health()["well"])
    fences = [tuple(map(int, step["fence"])) for step in target.steps() if "fence" in step]
    assert fences == sorted(set(fences))
    assert len(fences) >= kills // 2, "it was killed between streams, too, but not always"


async def test_a_target_in_javascript_refuses_what_it_can_t_apply_and_the_rest_goes_on(
    target: JavaScriptTarget, tmp_path: Path
) -> None:
    mended = False

    def route(tx: polonaise.Transaction) -> dict[str, bytes]:
        return {"js": tx.data.replace(b"\xff", b"mended") if mended else tx.data}

    async with polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2") as log:
        for body in (b"a", b"\xff", b"b"):
            await log.append(body, partition=0)
        await log.append(b"c", partition=1)
        async with Player(log, "p", route, {"js": remote(target.address)}, settings=QUICK) as player:
            hindered = await wait_until(lambda: player.health()["targets"]["js"]["hindered"].get("0"))
            assert "entry 1 is no text" in hindered
            await player.delivered("js", 1, 0)
            assert target.applied() == {0: ["a"], 1: ["c"]}
        mended = True
        async with Player(log, "p", route, {"js": remote(target.address)}, settings=QUICK) as player:
            await player.delivered("js", 0, 2)
    assert target.applied() == {0: ["a", "mended", "b"], 1: ["c"]}


async def test_a_target_in_javascript_refuses_streams_as_the_contract_says(target: JavaScriptTarget) -> None:
    endpoint = remote(target.address)
    async with opening(endpoint, Fence(2, 1)) as stream:
        await stream.heard.until("connected", {})
    for lower in (Fence(2, 1), Fence(1, 9)):
        async with opening(endpoint, lower) as stream:
            await stream.heard.until("fenced", Fence(2, 1))
    async with opening(endpoint, Fence(3, 1), SOURCE._replace(log_key=b"another log's...")) as stream:
        await stream.heard.until("disconnected")
        assert "this file is of" in stream.heard.reason
