"""`log.once`: something is done once for a key, whoever asks, how often, and whatever dies."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Connection, select, text

import polonaise
from polonaise import blocking, testing
from polonaise.client.protocol.oncekeys import OnceRecord
from polonaise.errors import Abandoned, AppendExpired, AppendUnknown, BadOption, OnceDiffers, ViewUnavailable, ViewUnfit
from polonaise.terms import PartitionId, Transaction, TransactionId
from polonaise.views.marks import OnceKept
from polonaise_proving.stages.databaseservers import engine_at
from rigs.bankview import Bank, accounts, body
from rigs.databases import execute
from rigs.waiting import nothing_happens_for, wait_until

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "web-services.md"


class OnceBank(Bank):
    once_table = "polonaise_once"


def pay(tx: polonaise.Draft, number: int) -> dict[str, int]:
    tx.append(body(number))
    return {"paid": number}


def kept(url: str) -> list[tuple[Any, ...]]:
    with engine_at(url) as engine, engine.connect() as db:
        return [tuple(row) for row in db.execute(text("SELECT * FROM polonaise_once ORDER BY id"))]


async def test_a_context_with_needs_is_refused_because_a_repetition_could_not_wait_for_them(url: str) -> None:
    def context(tx: polonaise.Draft) -> None:
        tx.append(body(1))
        tx.need(copies=3)

    async with testing.log(view=OnceBank(url)) as log:
        for _ in range(2):
            with pytest.raises(BadOption, match="topic require"):
                await log.once("order 7", context, timeout=10)
        assert log.transactions() == []


async def test_a_second_call_with_the_same_key_returns_the_first_and_runs_nothing(url: str) -> None:
    async with testing.log(view=OnceBank(url)) as log:
        ran: list[int] = []

        def context(tx: polonaise.Draft, number: int) -> dict[str, int]:
            ran.append(number)
            return pay(tx, number)

        first = await log.once("order 7", context, 1, timeout=10)
        assert (first.id, first.appended, first.value, first.repeated) == (0, 1, {"paid": 1}, False)
        again = await log.once("order 7", context, 2, timeout=10)
        assert again == first._replace(repeated=True)
        other = await log.once("ORDER 7", context, 3, timeout=10)
        assert (other.id, other.value) == (2, {"paid": 3}), "no collation takes two keys for one"
        assert ran == [1, 3]
        assert [tx.data for tx in log.transactions()] == [body(1), body(3)]
        await log.wait_applied(3, timeout=10)
    assert [(row[0], row[2], row[3], row[4], json.loads(row[6])) for row in kept(url)] == [
        (0, "order 7", 0, 1, {"paid": 1}), (0, "ORDER 7", 2, 1, {"paid": 3}),
    ]  # fmt: skip


async def test_a_table_of_keys_that_is_gone_or_was_changed_by_others_is_named(url: str) -> None:
    async with testing.log(view=OnceBank(url)) as log:
        await log.once("order 7", pay, 1, timeout=10)
        await log.wait_applied(1, timeout=10)
        execute(url, "UPDATE polonaise_once SET value = 'x'")
        with pytest.raises(ViewUnfit, match="table polonaise_once has a value that is no JSON for key order 7 of "):
            await log.once("order 7", pay, 1, timeout=10)
        execute(url, "ALTER TABLE polonaise_once RENAME TO aside")
        with pytest.raises(ViewUnavailable, match=r"what log\.once itself needs: .*polonaise_once"):
            await log.once("order 7", pay, 1, timeout=10)
        execute(url, "ALTER TABLE aside RENAME TO polonaise_once")


async def test_a_key_that_the_database_has_lost_again_is_not_free(url: str) -> None:
    async with testing.log(view=OnceBank(url)) as log:
        first = await log.once("order 7", pay, 7, timeout=10)
        await log.wait_applied(first.id, 0)
        await log.wait_applied(await log.high_water_mark(0), 0)
        # As after the promotion of a standby that was behind.
        execute(
            url, "DELETE FROM polonaise_once", "DELETE FROM journal", "UPDATE polonaise_marks SET high_water_mark = -1"
        )
        with pytest.raises(ViewUnavailable, match="stepped back"):
            await log.once("order 7", pay, 7, timeout=10)
        await wait_until(lambda: len(kept(url)) == 1, 20)  # though nothing is appended
        again = await log.once("order 7", pay, 7, timeout=10)
        assert again.repeated
        assert again.id == first.id


async def test_of_requests_under_one_key_at_the_same_time_one_is_done(url: str) -> None:
    cluster = testing.MemoryCluster()
    async with cluster.connect(view=OnceBank(url)) as one, cluster.connect(view=OnceBank(url)) as other:
        asked = [(one, other)[number % 2].once("key", pay, number, timeout=30) for number in range(12)]
        told = await asyncio.gather(*asked)
        assert sum(not each.repeated for each in told) == 1
        assert len({each.id for each in told}) == 1
        assert len({each.value["paid"] for each in told}) == 1
        assert len(one.transactions()) == 1


async def test_after_a_lost_answer_the_key_says_what_became_of_it(sqlite_url: str) -> None:
    async with testing.log(view=OnceBank(sqlite_url)) as log:
        await log.ready()
        for number, committed in enumerate((True, False)):
            log.faults.unknown_next_append(committed=committed)
            with pytest.raises(AppendUnknown):
                await log.once(f"key {number}", pay, number, timeout=0.3)
            log.faults.reconnect()
            told = await log.once(f"key {number}", pay, number, timeout=10)
            assert told.value == {"paid": number}
            # What was not committed is sent again, and is perhaps in the log before the second attempt's own append.
            assert told.repeated or not committed
        assert [tx.data for tx in log.transactions()] == [body(0), body(1)]


async def test_a_view_that_is_built_anew_knows_the_keys(sqlite_url: str, tmp_path: Path) -> None:
    async with testing.log(view=OnceBank(sqlite_url)) as log:
        first = await log.once("key", pay, 1, timeout=10)
        async with log.cluster.connect(view=OnceBank(f"sqlite:///{tmp_path / 'new.db'}")) as late:
            assert await late.once("key", pay, 2, timeout=10) == first._replace(repeated=True)


FAR_KEYS = ("a\0b", "ключ", "📦 7", "é", "\x01\n\x7f", "a\\u0000b", '"', "ключ" * 128)


def receipted(tx: polonaise.Draft) -> str:
    tx.append(body(1))
    return "чек \0"


async def check_far_keys(url: str) -> None:
    async with testing.log(view=OnceBank(url)) as log:
        for number, key in enumerate(FAR_KEYS):
            first = await log.once(key, receipted, request="о\0", timeout=10)
            assert (first.id, first.value, first.repeated) == (2 * number, "чек \0", False)
            again = await log.once(key, pay, 2, request="о\0", timeout=10)
            assert again == first._replace(repeated=True)
        await log.wait_applied(2 * len(FAR_KEYS) - 1, timeout=10)
        assert log.trouble(0) is None
    rows = kept(url)
    assert all((row[2] + row[6]).isascii() for row in rows)
    assert [row[2] for row in rows][:2] == ["a\\u0000b", "\\u043a\\u043b\\u044e\\u0447"]


async def test_every_key_that_is_taken_is_kept(url: str) -> None:
    await check_far_keys(url)


async def test_a_database_whose_encoding_lacks_its_letters_keeps_a_key_all_the_same(narrow_url: str) -> None:
    await check_far_keys(narrow_url)


async def test_a_key_that_was_kept_as_it_is_by_an_older_version_is_found(url: str) -> None:
    key = 'said "now"'  # ASCII: every database can hold it as it is
    async with testing.log(view=OnceBank(url)) as log:
        first = await log.once(key, pay, 1, timeout=10)
        await log.wait_applied(1, timeout=10)
        with engine_at(url) as engine, engine.begin() as db:
            db.execute(OnceKept("polonaise_once", None).table.update().values(key=key))
        assert await log.once(key, pay, 2, timeout=10) == first._replace(repeated=True)


async def test_a_group_is_done_once_and_what_gives_up_leaves_the_key_free(sqlite_url: str) -> None:
    async with testing.log(view=OnceBank(sqlite_url)) as log:

        def stumbles(tx: polonaise.Draft) -> None:
            tx.append(body(1))
            raise ValueError("no")

        async def several(tx: polonaise.Draft) -> str:
            for number in range(3):
                tx.append(body(number))
            return "done"

        with pytest.raises(ValueError, match="no"):
            await log.once("key", stumbles)
        with pytest.raises(Abandoned):
            await log.once("key", lambda tx: tx.abandon("no"))
        with pytest.raises(Abandoned, match="no"):
            await log.once("key", lambda tx: tx.abandon("no") or object())  # type: ignore[func-returns-value]
        with pytest.raises(Abandoned, match="appended nothing"):
            await log.once("key", lambda tx: object())
        with pytest.raises(BadOption, match="JSON"):
            await log.once("key", lambda tx: tx.append(body(1)) or object())  # type: ignore[func-returns-value]
        first = await log.once("key", several, timeout=10)
        assert (first.id, first.appended, first.value) == (0, 3, "done")
        assert await log.once("key", several, timeout=10) == first._replace(repeated=True)


async def test_what_gave_up_because_of_what_was_done_under_its_key_is_told_of_that(
    sqlite_url: str, tmp_path: Path
) -> None:
    cluster = testing.MemoryCluster()
    view = OnceBank(f"sqlite:///{tmp_path / 'other.db'}")
    async with cluster.connect(view=OnceBank(sqlite_url)) as log, cluster.connect(view=view) as other:
        for how in ("abandon", "raise"):

            async def context(tx: polonaise.Draft, how: str) -> None:
                first = await other.once(f"key {how}", pay, 1, timeout=10)
                await log.wait_applied(first.id + 1, timeout=10)
                if how == "raise":
                    raise ValueError("it is paid already")
                tx.abandon("it is paid already")

            told = await log.once(f"key {how}", context, how, timeout=10)
            assert (told.repeated, told.value) == (True, {"paid": 1})


async def test_another_request_under_the_same_key_is_told(sqlite_url: str) -> None:
    async with testing.log(view=OnceBank(sqlite_url)) as log:
        first = await log.once("key", pay, 1, request=b"pay 1", timeout=10)
        assert (await log.once("key", pay, 1, request="pay 1", timeout=10)).repeated
        assert (await log.once("key", pay, 1, timeout=10)).repeated
        with pytest.raises(OnceDiffers, match="another request") as raised:
            await log.once("key", pay, 2, request=b"pay 2", timeout=10)
        assert raised.value.first == first.id


async def test_invalid_arguments_are_refused(sqlite_url: str) -> None:
    async with testing.log() as log:
        with pytest.raises(BadOption, match="once_table"):
            await log.once("key", pay, 1)
    async with testing.log(view=OnceBank(sqlite_url)) as log:
        for key in ("", b"key", 7, "x" * 1_025, "\ud800"):
            with pytest.raises(BadOption, match="key"):
                await log.once(key, pay, 1)  # type: ignore[arg-type]
        for no_request in (7, "\ud800"):
            with pytest.raises(BadOption, match="request"):
                await log.once("key", pay, 1, request=no_request)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, {"rate": [math.inf]}, -math.inf], ids=repr)
async def test_what_only_python_takes_for_json_is_refused_and_nothing_is_appended(sqlite_url: str, value: Any) -> None:
    def context(tx: polonaise.Draft) -> Any:
        tx.append(body(1))
        return value

    async with testing.log(view=OnceBank(sqlite_url)) as log:
        with pytest.raises(BadOption, match="JSON"):
            await log.once("key", context, timeout=10)
        assert await log.high_water_mark() == -1
        assert (await log.once("key", pay, 1, timeout=10)).id == 0, "the key is free"


class Hanging(OnceBank):
    """Its database stops answering, as one does whose process is stopped."""

    hangs = False

    async def once(self, partition: PartitionId, key: str) -> tuple[TransactionId, OnceRecord] | None:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().once(partition, key)


@pytest.mark.parametrize("hangs_from", ["before the context", "within it"])
async def test_a_database_that_does_not_say_whether_the_key_was_used_is_told_as_that(
    sqlite_url: str, hangs_from: str
) -> None:
    view = Hanging(sqlite_url)

    def raises(tx: polonaise.Draft) -> None:
        view.hangs = True
        raise ValueError("the second look never ends")

    async with testing.log(view=view) as log:
        first = await log.once("key", pay, 1, timeout=10)
        await log.wait_applied(1, timeout=10)
        view.hangs = hangs_from == "before the context"
        with pytest.raises(AppendExpired) as raised:
            await log.once("other", raises, timeout=0.5)
        told = raised.value.text
        assert "within 0.5 s, and nothing will be: the view could not be asked whether the key was used before" in told
        assert "the view's database did not answer within the 0." in told
        assert "context" not in told
        view.hangs = False
        assert await log.once("key", pay, 2, timeout=10) == first._replace(repeated=True)


async def test_a_context_that_is_slow_itself_is_blamed_with_the_callers_own_timeout(sqlite_url: str) -> None:
    async def slow(tx: polonaise.Draft) -> None:
        await asyncio.Event().wait()

    async with testing.log(view=OnceBank(sqlite_url)) as log:
        with pytest.raises(AppendExpired, match=r"within 0\.5 s, and nothing will be: the context took too long"):
            await log.once("key", slow, timeout=0.5)


async def test_a_timeout_of_zero_is_told_as_too_little_time(sqlite_url: str) -> None:
    async with testing.log(view=OnceBank(sqlite_url)) as log:
        told = []
        for asked in (log.once("key", pay, 1, timeout=0), log.run(pay, 1, timeout=0)):
            with pytest.raises(AppendExpired, match="timeout=0 leaves no time") as raised:
                await asked
            told.append(raised.value.text)
        assert told[0] == told[1]


async def test_a_key_and_what_was_done_are_applied_together(sqlite_url: str) -> None:
    class Stumbling(OnceBank):
        def apply(self, tx: Transaction, db: Connection) -> None:
            super().apply(tx, db)
            db.execute(select(accounts))

    view = Stumbling(sqlite_url)
    view.poison = {(0, 0)}
    async with testing.log(view=view) as log:
        asked = asyncio.ensure_future(log.once("key", pay, 1))
        await nothing_happens_for(0.2)
        assert kept(sqlite_url) == [], "not applied, so not kept"
        view.poison.clear()
        assert not (await asked).repeated
        await log.wait_applied(1, timeout=10)
        assert len(kept(sqlite_url)) == 1


def test_threads_do_something_once_too(sqlite_url: str, tmp_path: Path) -> None:
    with blocking.connect(f"embedded:{tmp_path / 'log'}", view=OnceBank(sqlite_url)) as log:
        first = log.once("key", pay, 1, timeout=30)
        assert (first.value, first.repeated) == ({"paid": 1}, False)
        assert log.once("key", pay, 2, timeout=30) == first._replace(repeated=True)


# ------------------------------------------------------------------ the web service of the document


async def post(app: Any, key: str | bytes, asked: Any) -> tuple[int, Any]:
    said: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": asked if isinstance(asked, bytes) else json.dumps(asked).encode()}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    headers = [(b"idempotency-key", key if isinstance(key, bytes) else key.encode())] if key else []
    await app({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    return said[0]["status"], json.loads(said[1]["body"])


async def test_the_documents_web_service_does_what_it_is_asked_for_once(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_DATABASE", sqlite_url)
    monkeypatch.setenv("BANK_LOG", f"embedded:{tmp_path / 'log'}")
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    module = ModuleType("service")
    exec(compile(code, str(DOCUMENT), "exec"), module.__dict__)
    stop = asyncio.Event()
    told: asyncio.Queue[str] = asyncio.Queue()
    started = False

    async def receive() -> dict[str, str]:
        nonlocal started
        if started:
            await stop.wait()
        started = True
        return {"type": "lifespan"}

    async def send(message: dict[str, str]) -> None:
        told.put_nowait(message["type"])

    living = asyncio.ensure_future(module.app({"type": "lifespan"}, receive, send))
    assert await asyncio.wait_for(told.get(), 30) == "lifespan.startup.complete"
    deposit, withdraw = {"account": 1, "amount": 100}, {"account": 1, "amount": -70}
    assert await post(module.app, "a", deposit) == (200, {"account": 1, "balance": 100})
    assert await post(module.app, "b", withdraw) == (200, {"account": 1, "balance": 30})
    assert await post(module.app, "b", withdraw) == (200, {"account": 1, "balance": 30})
    assert (await post(module.app, "b", deposit))[0] == 422
    assert (await post(module.app, "c", withdraw))[0] == 409
    assert (await post(module.app, "k" * 200, deposit))[0] == 200
    for wrong_key in ("", "k" * 201, "k" * 2_000, "two words", "clé", b"\xff\xfe", b"\n"):
        status, said = await post(module.app, wrong_key, deposit)
        assert (status, "Idempotency-Key" in said["error"]) == (400, True), wrong_key
    infinite, beyond = {"account": 1, "amount": math.inf}, {"account": 2**31, "amount": 1}
    for wrong_body in (b"", b"no", b"\xff", [1], {"account": 1}, {"account": "1", "amount": 1}, infinite, beyond):
        status, said = await post(module.app, "d", wrong_body)
        assert (status, '"account"' in said["error"]) == (400, True), wrong_body
    stop.set()
    await asyncio.wait_for(living, 30)
