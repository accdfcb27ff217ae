"""The bank on shards: its checks find what is wrong, and the whole of it runs on real processes."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import text

import polonaise
from polonaise.cli.exitstatus import ExitStatus
from polonaise.errors import BadOption
from polonaise.player import Player
from polonaise_proving.demo import shardsrun
from polonaise_proving.demo.bank import OPENING, PARTITION, PAYMENT, encode_opening
from polonaise_proving.demo.checks import FoldedShards, ShardContents, contents_of, fold_shards, shard_verdicts
from polonaise_proving.demo.payments import make_payments
from polonaise_proving.demo.shards import SHARDS, ShardAccounts, route, shard_name
from polonaise_proving.demo.shardsrun import run_shards
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.stages.databaseservers import PostgreSQL, engine_at
from polonaise_proving.stages.processes import Program
from rigs.demosession import demo_until, until_ended
from rigs.programs import output_of, run_polonaise

BALANCES = "every balance on every shard equals the fold of the log"
ONCE = "every shard has applied each of its transactions once, and no other"
ORDER = "every shard has applied its transactions in the order of the log"
MONEY = "all shards together hold the money that the log says came in and has not gone out"


# ---------------------------------------------------------------------- the checks


def wanted() -> FoldedShards:
    """Two shards, with two accounts each, after seven transactions."""
    shards = [ShardContents({2: 100, 4: 50}, [0, 1, 4, 6]), ShardContents({1: 70, 3: 30}, [2, 3, 4, 5])]
    return FoldedShards(shards, last=6, money=250)


def failed(held: Sequence[ShardContents]) -> dict[str, str]:
    return {result.what: result.detail for result in shard_verdicts(wanted(), held) if not result.holds}


def test_shards_that_hold_what_the_log_says_pass() -> None:
    results = shard_verdicts(wanted(), wanted().shards)
    assert {result.what for result in results if result.holds} == {BALANCES, ONCE, ORDER, MONEY}
    assert results[-1].detail == "1.50 + 1.00 = 2.50"


def set_balance(held: list[ShardContents], account: int, balance: int | None) -> None:
    balances = held[account % 2].balances
    if balance is None:
        del balances[account]
    else:
        balances[account] = balance


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lambda held: set_balance(held, 2, 99), {BALANCES: "2: 99, and by the log 100", MONEY: "by the log 2.50"}),
        (lambda held: set_balance(held, 3, None), {BALANCES: "account 3: none, and by the log 30", MONEY: "2.20"}),
        (
            lambda held: (set_balance(held, 1, 71), set_balance(held, 2, 99)),
            {BALANCES: "shard 1: 1 differ, such as account 1: 71"},
        ),
        (lambda held: held[0].transactions.remove(1), {ONCE: "shard 0: 1 missing, 0 twice, 0 of others"}),
        (lambda held: held[1].transactions.append(5), {ONCE: "shard 1: 0 missing, 1 twice, 0 of others"}),
        (lambda held: held[1].transactions.append(6), {ONCE: "shard 1: 0 missing, 0 twice, 1 of others"}),
        (lambda held: held[1].transactions.reverse(), {ORDER: "shard 1: 4 after 5"}),
    ],
)  # fmt: skip
def test_each_difference_is_found_by_the_check_for_it(
    plant: Callable[[list[ShardContents]], None], found: dict[str, str]
) -> None:
    held = wanted().shards
    plant(held)
    said = failed(held)
    assert said.keys() == found.keys()
    for what, detail in found.items():
        assert detail in said[what]


# ---------------------------------------------------------------------- the application


@pytest.mark.slow
async def test_shards_in_one_process_hold_what_the_checks_sum_up(tmp_path: Path) -> None:
    book = make_payments(400, seed=3, accounts=30)
    urls = [f"sqlite:///{tmp_path / shard_name(number)}.db" for number in range(SHARDS)]
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(polonaise.connect(f"embedded:{tmp_path / 'log'}"))
        shards = {shard_name(number): ShardAccounts(url) for number, url in enumerate(urls)}
        for shard in shards.values():
            stack.push_async_callback(shard.close)
        for account, balance in book.opening.items():
            await log.append(encode_opening(account, balance), PARTITION, header=OPENING)
        await log.append(b"of another application", PARTITION, header=9)
        await asyncio.gather(*(log.append(each.encode(), PARTITION, header=PAYMENT) for each in book.payments))
        async with Player(log, "p", route, shards) as player:
            folded = await fold_shards(log, SHARDS)
            for name in shards:
                await player.delivered(name, PARTITION, folded.last)
    assert [result for result in shard_verdicts(folded, [contents_of(url) for url in urls]) if not result.holds] == []
    assert folded.last >= 430
    assert sorted(folded.shards[1].balances) == list(range(1, 31, 4))


def test_a_database_without_tables_holds_nothing(tmp_path: Path) -> None:
    assert contents_of(f"sqlite:///{tmp_path / 'new.db'}") == ShardContents()


# ---------------------------------------------------------------------- the whole of it


@pytest.mark.slow
def test_the_demo_kills_a_shard_and_the_player_and_every_check_holds(tmp_path: Path) -> None:
    ended = run_polonaise(
        "demo", "shards", "--generate", 1_500, within_s=240, environment={"COLUMNS": "160", "TMPDIR": str(tmp_path)}
    )
    said = output_of(ended)
    assert said.count("│ holds │") == 4
    assert "FAILS" not in said
    assert re.search(r"shard-3 \(process \d+\) with -9 after", said)
    assert re.search(r"player-0 \(process \d+\) with -9 after [\d,]+ payments; player-1 took over in", said)
    assert "active, epoch 2" in said
    assert "Traceback" not in ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == [], "the directory is gone"


async def run_a_little(databases: Sequence[str]) -> tuple[bool, str]:
    said = StringIO()
    holds = await run_shards(make_payments(200), 1, Console(file=said, width=160), databases)
    return holds, said.getvalue()


@pytest.mark.slow
async def test_shards_may_be_databases_of_a_server(postgresql: PostgreSQL) -> None:
    databases = [postgresql.database() for _ in range(SHARDS)]
    holds, said = await run_a_little(databases)
    assert holds, said
    with pytest.raises(BadOption, match="holds an earlier day: give each shard an empty database"):
        await run_a_little(databases)


async def test_a_database_that_can_not_be_used_is_named_without_its_password() -> None:
    url = "postgresql+psycopg://me:secret@127.0.0.1:1/x"
    with pytest.raises(BadOption, match=r"the shard .*127\.0\.0\.1:1/x can't be used: ") as refused:
        await run_a_little([url] * SHARDS)
    assert "secret" not in str(refused.value)


async def test_another_number_of_databases_is_refused() -> None:
    with pytest.raises(BadOption, match="1 databases of shards: give --shard 4 times"):
        await run_a_little(["sqlite:///x.db"])


@pytest.mark.slow
def test_faults_that_are_planted_in_shards_fail_the_demo_and_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from polonaise.cli import main

    planted = {
        "shard-1.db": "DELETE FROM shard_applied WHERE position = 7",
        "shard-2.db": "UPDATE shard_accounts SET balance = balance + 1 WHERE account = 2",
        "shard-3.db": "INSERT INTO shard_applied (transaction_id) SELECT max(transaction_id) FROM shard_applied",
    }
    read = shardsrun.contents_of

    def damaged(url: str) -> ShardContents:
        if (statement := planted.get(url.rpartition("/")[2])) is not None:
            with engine_at(url) as engine, engine.begin() as db:
                db.execute(text(statement))
        return read(url)

    monkeypatch.setattr(shardsrun, "contents_of", damaged)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", ["polonaise", "demo", "shards", "--generate", "200"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitStatus.FAILED
    failing = [line for line in capsys.readouterr().out.splitlines() if "FAILS" in line]
    assert len(failing) == 3
    assert "shard 2: 1 differ, such as account 2" in failing[0]
    assert "shard 1: 1 missing, 0 twice" in failing[1]
    assert MONEY[:40] in failing[2]


@pytest.mark.exhaustive  # of ways to end
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGTERM, "demo.shards "), (signal.SIGTERM, "player start"), (signal.SIGKILL, "player start")],
)
def test_a_demo_that_is_ended_takes_all_of_its_processes_along(
    number: signal.Signals, when: str, tmp_path: Path
) -> None:
    with demo_until(when, tmp_path, demo="shards") as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=90)
        until_ended(process)
    assert "Traceback" not in output
    if number != signal.SIGKILL:
        assert process.returncode == ExitStatus.INTERRUPTED
        assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- processes


@pytest.mark.slow
def test_a_process_that_ends_instead_of_saying_what_it_should_is_told_with_its_errors(tmp_path: Path) -> None:
    command = ["polonaise_proving.demo.shards", str(tmp_path / "none")]
    process = Program("shard-0", tmp_path / "log", command=command, speaks=True)
    process.start()
    try:
        with pytest.raises(GaveUp, match=r"(?s)shard-0 did not say 'link://': .*No such file or directory"):
            process.says("link://")
    finally:
        process.end(15.0)
        process.end(15.0)
