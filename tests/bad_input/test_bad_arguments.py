"""What an application gives the client by mistake: refused at the call, by name, with what was given and is wanted.

Nothing of it gets as far as the partition's sending, where it would take other appends with it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise import Change, Draft, Expectation, Lock, Log
from polonaise.errors import AppendExpired, BadOption, Closed
from polonaise.terms import ChangeKind, ExpectationKind, LockMode
from rigs.scenarios import runs_tests
from rigs.town import Fold, Town


@runs_tests
def in_a_town(main: Callable[[Log], Awaitable[None]]) -> None:
    async def story(town: Town) -> None:
        async def application(log: Log) -> None:
            await log.ready(0, timeout=60)
            await main(log)

        await town.application("newcomer", application)

    Town(1).run(story)


async def called(call: Callable[[], Any]) -> Any:
    """What a plain or a coroutine method comes to."""
    result = call()
    return await result if hasattr(result, "__await__") else result


def at(draft: Callable[[Draft], Any]) -> Callable[[Log], Any]:
    """A mistake within a transaction context."""
    return lambda log: log.run(draft, partition=0, timeout=5)


MISTAKES: list[tuple[str, Callable[[Log], Any], list[str]]] = [
    # partition
    ("partition of text", lambda log: log.append(b"", partition="0"), ["partition='0'", "(str)", "integer, 0 to 0"]),  # type: ignore[arg-type]
    ("partition of a list", lambda log: log.append(b"", partition=[0]), ["partition=[0]", "(list)"]),  # type: ignore[arg-type]
    ("partition of a fraction", lambda log: log.applied(0.5), ["partition=0.5", "(float)"]),  # type: ignore[arg-type]
    ("partition to be read", lambda log: log.read("0"), ["partition='0'", "(str)"]),  # type: ignore[arg-type]
    ("partition of a request", lambda log: log.high_water_mark("0"), ["partition='0'", "(str)"]),  # type: ignore[arg-type]
    # bodies and headers
    ("body of text", lambda log: log.append("paid", 0), ["bytes, not str", "encode it"]),
    ("no body", lambda log: log.append(None, 0), ["bytes, not NoneType"]),
    ("header of text", lambda log: log.append(b"", 0, header="1"), ["header='1'", "(str)"]),  # type: ignore[arg-type]
    ("no header", lambda log: log.append(b"", 0, header=None), ["header=None"]),  # type: ignore[arg-type]
    ("header of a fraction", lambda log: log.append(b"", 0, header=0.0), ["header=0.0", "(float)"]),  # type: ignore[arg-type]
    ("header in a context", at(lambda tx: tx.append(b"", header="1")), ["header='1'"]),  # type: ignore[arg-type]
    ("header of a bool", lambda log: log.append(b"", 0, header=True), ["header=True", "(bool)"]),
    ("mark of a bool", lambda log: log.append(b"", 0, high_water_mark=True), ["high_water_mark=True", "(bool)"]),
    ("timeout of a bool", lambda log: log.ready(0, timeout=True), ["timeout=True", "seconds"]),
    ("mark of text", lambda log: log.append(b"", 0, high_water_mark="7"), ["high_water_mark='7'", "integer"]),  # type: ignore[arg-type]
    ("mark too large", lambda log: log.append(b"", 0, high_water_mark=2**70), ["high_water_mark="]),
    # locks
    ("lock id of bytes", at(lambda tx: tx.write_lock("a", b"b")), ["id=b'b'", "(bytes)", "text"]),  # type: ignore[arg-type]
    ("lock id of a fraction", at(lambda tx: tx.read_lock("a", 0.5)), ["id=0.5", "(float)"]),  # type: ignore[arg-type]
    ("lock id of nothing", at(lambda tx: tx.append_lock("a", None)), ["id=None"]),  # type: ignore[arg-type]
    ("lock id of a list", at(lambda tx: tx.write_lock("a", [])), ["id=[]", "(list)"]),  # type: ignore[arg-type]
    ("lock id of 65 bits", at(lambda tx: tx.write_lock("a", 2**64)), ["id=18446744073709551616", "text"]),
    ("lock name of a number", at(lambda tx: tx.write_lock(1, 2)), ["name=1", "(int)", "text"]),  # type: ignore[arg-type]
    ("lock name that is no text", at(lambda tx: tx.write_lock("\ud800", 2)), ["name=", "UTF-8"]),
    ("lock id that is no text", at(lambda tx: tx.write_lock("a", "\ud800")), ["id='\\ud800'", "UTF-8"]),
    ("lock id of a bool", at(lambda tx: tx.write_lock("a", True)), ["id=True", "(bool)", "text"]),
    ("one lock", lambda log: log.append(b"", 0, locks=Lock("a", 1)), ["locks=", "[Lock(name, id)]"]),  # type: ignore[arg-type]
    ("a pair as a lock", lambda log: log.append(b"", 0, locks=[("a", 1)]), ["('a', 1)", "Lock(name, id, mode)"]),  # type: ignore[list-item]
    ("locks as a number", lambda log: log.append(b"", 0, locks=5), ["locks=5"]),  # type: ignore[arg-type]
    ("a lock of bytes", lambda log: log.append(b"", 0, locks=[Lock("a", b"b")]), ["id=b'b'"]),  # type: ignore[arg-type]
    ("a lock of no mode", lambda log: log.append(b"", 0, locks=[Lock("a", 1, 7)]), ["mode=7", "LockMode"]),  # type: ignore[arg-type]
    (
        "a lock that is there, of a mode below all",
        lambda log: log.append(b"", 0, locks=[Lock("a", 1, LockMode.APPEND), Lock("a", 1, -1)]),  # type: ignore[arg-type]
        ["mode=-1", "LockMode"],
    ),
    # registers
    ("key of text", at(lambda tx: tx.set("k", b"")), ["key='k'", "(str)", "encode"]),  # type: ignore[arg-type]
    ("value of a number", at(lambda tx: tx.set(b"k", 5)), ["value=5", "(int)"]),  # type: ignore[arg-type]
    ("key asked for", lambda log: log.register("k", 0), ["key='k'", "(str)"]),  # type: ignore[arg-type]
    ("key asked for too long", lambda log: log.register(b"k" * 2_000, 0), ["2000 bytes", "1024"]),
    ("register of a producer", at(lambda tx: tx.set(b"producer/x", b"")), ["key=b'producer/x'", "b'producer/'"]),
    (
        "register of a Spark sink",
        lambda log: log.append(b"", 0, changes=[Change.set(b"spark/app", b"")]),
        ["key=b'spark/app'", "registers under b'spark/' are the library's"],
    ),
    (
        "register of a producer beside a group",
        lambda log: log.append_group(polonaise.Group.of([b""]), 0, changes=[Change.set(b"producer/", b"")]),
        ["b'producer/'", "the library's"],
    ),
    ("position of text", at(lambda tx: tx.expect_position("5")), ["id='5' (str)"]),  # type: ignore[arg-type]
    ("one change", lambda log: log.append(b"", 0, changes=Change.set(b"k", b"v")), ["changes=", "list of Change"]),  # type: ignore[arg-type]
    ("expectations of text", lambda log: log.append(b"", 0, expectations=["k"]), ["expectations='k'"]),  # type: ignore[list-item]
    (
        "an expectation made by hand",
        lambda log: log.append(b"", 0, expectations=[Expectation(ExpectationKind.POSITION, b"", b"1")]),
        ["expectations=", "Expectation.equals"],
    ),
    (
        "a change that is a producer's",
        lambda log: log.append(b"", 0, changes=[Change(ChangeKind.PRODUCE, b"k", b"v")]),
        ["changes=", "Change.set"],
    ),
    # times
    *(
        (f"{name} of {timeout!r} s", call, ["timeout=", "seconds"])
        for timeout in ("5", -1, -0.001, math.nan, math.inf, [1])
        for name, call in {
            "run": lambda log, t=timeout: log.run(lambda tx: tx.append(b""), partition=0, timeout=t),
            "submit": lambda log, t=timeout: log.submit(lambda tx: tx.append(b""), partition=0, timeout=t),
            "ready": lambda log, t=timeout: log.ready(0, timeout=t),
            "flush": lambda log, t=timeout: log.flush(0, timeout=t),
            "producer": lambda log, t=timeout: log.producer("p", partition=0, timeout=t),
            "wait_applied": lambda log, t=timeout: log.wait_applied(0, 0, timeout=t),
            "high_water_mark": lambda log, t=timeout: log.high_water_mark(0, timeout=t),
            "register": lambda log, t=timeout: log.register(b"k", 0, timeout=t),
            "health": lambda log, t=timeout: log.health(0, timeout=t),
            "transaction": lambda log, t=timeout: log.transaction(0, 0, timeout=t),
            "read": lambda log, t=timeout: log.read(0, timeout=t),
            "read_time": lambda log, t=timeout: log.read_time(0, since=1, timeout=t),
            "applied": lambda log, t=timeout: log.append(b"", 0).applied(t),
        }.items()
    ),
    ("since of text", lambda log: log.read_time(0, since="today"), ["since='today'", "microseconds UTC"]),  # type: ignore[arg-type]
    # ids
    ("id of text", lambda log: log.wait_applied("5", 0), ["id='5'", "(str)"]),  # type: ignore[arg-type]
    ("transaction of text", lambda log: log.transaction("5", 0), ["id='5'", "(str)"]),  # type: ignore[arg-type]
    ("transaction before the first", lambda log: log.transaction(-1, 0), ["id=-1", "from 0 to 2**63 - 1"]),
    ("transaction of no log", lambda log: log.transaction(2**63, 0), ["id=", "from 0 to 2**63 - 1"]),
    ("after of text", lambda log: log.read(0, after="5"), ["after='5'"]),  # type: ignore[arg-type]
    ("after before the first", lambda log: log.read(0, after=-2), ["after=-2", "from -1 on"]),
    ("until of a fraction", lambda log: log.read_batches(0, until=1.5), ["until=1.5"]),  # type: ignore[arg-type]
    # contexts and producers
    ("no context", lambda log: log.run(None, partition=0), ["context=None", "function"]),  # type: ignore[arg-type]
    ("what a context returned", lambda log: log.submit(5, partition=0), ["context=5", "run(context, *args)"]),  # type: ignore[arg-type]
    ("producer that is no text", lambda log: log.producer("\ud800", partition=0), ["name='\\ud800'", "UTF-8"]),
    ("producer of a number", lambda log: log.producer(5, partition=0), ["name=5", "text"]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("mistake", "naming"), [pytest.param(m, n, id=i) for i, m, n in MISTAKES])
@in_a_town
async def test_an_invalid_argument(log: Log, *, mistake: Callable[[Log], Any], naming: list[str]) -> None:
    before = log.append(b"before", 0)
    with pytest.raises(BadOption) as raised:
        await called(lambda: mistake(log))
    assert all(each in raised.value.text for each in naming), raised.value.text
    after = log.append(b"after", 0)
    assert [(await before).id >= 0, (await after).id >= 0] == [True, True], "neighbours are not harmed"


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (("0", b""), "sequence='0'"),
        ((-1, b""), "sequence=-1"),
        ((0, "text"), "bytes, not str"),
        ((0, b"", {"timeout": "5"}), "timeout='5'"),
        ((0, b"", {"header": "5"}), "header='5'"),
        ((0, b"", {"locks": [("a", 1)]}), "Lock(name, id, mode)"),
    ],
)
@in_a_town
async def test_an_invalid_producers_argument(log: Log, *, arguments: tuple[Any, ...], naming: str) -> None:
    producer = await log.producer("p", partition=0)
    *plain, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(BadOption) as raised:
        await producer.append(*plain, **options)
    assert naming in raised.value.text
    await producer.append(0, b"", locks=[Lock("a", 1)])


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        ({"view": object()}, ["view=", "high_water_mark", "apply"]),
        ({"view": Draft}, ["view=", "an instance, not the class"]),
        ({"serializer": "json"}, ["serializer='json'", "encode"]),
        ({"settings": {"name": "x"}}, ["settings=", "ClientSettings"]),
        ({"partitioner": 0}, ["partitioner=0", "function"]),
        ({"partitions": 0}, ["partitions=0", "list"]),
        ({"partitions": "0"}, ["partitions='0'", "list"]),
        ({"bodies": "lazy"}, ["bodies='lazy'", "BodyForm"]),
        ({"header_filter": 3}, ["header_filter=3", "(mask, value)"]),
    ],
)
async def test_an_invalid_option_of_connect(options: dict[str, Any], naming: list[str], tmp_path: Path) -> None:
    with pytest.raises(BadOption) as raised:
        async with polonaise.connect(f"file:{tmp_path}", **options):
            pass
    assert all(each in raised.value.text for each in naming), raised.value.text


@pytest.mark.parametrize("address", [None, 5, Path("bank"), b"file:bank", "file:\0"])
async def test_an_invalid_address(address: Any) -> None:
    with pytest.raises(BadOption, match="file:PATH"):
        async with polonaise.connect(address):
            pass


@in_a_town
async def test_no_time_at_all_is_too_little(log: Log) -> None:
    with pytest.raises(AppendExpired, match="timeout=0 leaves no time"):
        await log.run(lambda tx: tx.append(b""), partition=0, timeout=0)


@pytest.mark.parametrize("mark", [None, "5", 0.5, -2, 2**63])
def test_a_view_that_does_not_tell_a_mark_stops_its_partition_and_it_is_said_why(mark: Any) -> None:
    class Unsure(Fold):
        def high_water_mark(self, partition: int) -> int:
            return mark  # type: ignore[no-any-return]

    async def story(town: Town) -> None:
        async def application(log: Log) -> None:
            for wait in (log.ready(0), log.run(lambda tx: tx.append(b""), partition=0), log.wait_applied(0, 0)):
                with pytest.raises(BadOption, match=r"high_water_mark.0.*-1 for none") as raised:
                    await wait
                assert repr(mark) in raised.value.text

        await town.application("newcomer", application, Unsure(lambda value, tx: value))

    Town(1).run(story)


@in_a_town
async def test_a_context_that_yields_is_told_that_it_never_ran(log: Log) -> None:
    def generator(tx: Draft) -> Any:
        yield tx.append(b"")

    async def asynchronous_generator(tx: Draft) -> Any:
        yield tx.append(b"")

    for context in (generator, asynchronous_generator):
        with pytest.raises(BadOption, match="yields never ran"):
            await log.run(context, partition=0)


# ---------------------------------------------------------------------- wrong order


@in_a_town
async def test_a_transaction_that_is_built_after_its_context_has_returned(log: Log) -> None:
    kept: list[Draft] = []

    def context(tx: Draft) -> None:
        kept.append(tx)
        tx.append(b"in time")

    receipt = await log.run(context, partition=0, timeout=60)
    (tx,) = kept
    lates = (lambda: tx.append(b"late"), lambda: tx.set(b"k", b"v"), tx.abandon, lambda: tx.expect_position(5))
    for late in (*lates, lambda: tx.write_lock("account", 1)):
        with pytest.raises(Closed, match="the context has returned"):
            late()
    assert (receipt.id, [tx.data async for tx in log.read(0)]) == (0, [b"in time"])


def test_what_is_called_after_the_close_says_so() -> None:
    async def story(town: Town) -> None:
        logs: list[Log] = []

        async def application(log: Log) -> None:
            logs.append(log)
            await log.append(b"", 0)

        await town.application("newcomer", application)
        (log,) = logs

        async def late(_: Log) -> None:
            for call in (
                lambda: log.append(b"", 0),
                lambda: log.run(lambda tx: tx.append(b""), partition=0),
                lambda: log.submit(lambda tx: tx.append(b""), partition=0),
                lambda: log.ready(0),
                lambda: log.flush(0),
                lambda: log.read(0),
                lambda: log.high_water_mark(0),
                lambda: log.producer("p", partition=0),
                lambda: log.wait_applied(10, 0),
                log.start,
            ):
                with pytest.raises(Closed, match="closed"):
                    await called(call)
            await log.close()

        await town.application("late", late)

    Town(1).run(story)


@in_a_town
async def test_a_client_is_started_once(log: Log) -> None:
    with pytest.raises(BadOption, match="started before"):
        await log.start()
    await log.append(b"", 0)


@in_a_town
async def test_an_append_from_a_callback_of_the_loop_is_an_append(log: Log) -> None:
    receipts: list[polonaise.Receipt] = []
    asyncio.get_running_loop().call_soon(lambda: receipts.append(log.append(b"from a callback", 0)))
    await asyncio.sleep(0)
    assert (await receipts[0]).id == 0
