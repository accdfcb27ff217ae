"""`polonaise pipeline views` and `audit`, on the bank."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

import polonaise
from polonaise.cli import main
from polonaise_proving.demo.payments import Book
from rigs.databases import execute
from rigs.demobank import balances_of, bank
from rigs.programs import output_of, run_python
from rigs.storagefiles import flip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SOURCE = str(Path(polonaise.__file__).parents[1])
VIEWS = Path(__file__).parents[2] / "proving" / "polonaise_proving" / "demo" / "views.py"
ENDED_S = 300.0

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bank")


@pytest.fixture(scope="module")
def book(directory: Path) -> Iterator[Book]:
    """The bank has made 2,000 payments, and is open."""
    with bank(directory / "log", f"sqlite:///{directory / 'bank.db'}", 2_000) as (_, book):
        yield book


@pytest.fixture
def pipeline(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process and its session; status, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["polonaise", "pipeline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_a_table_of_the_bank_is_made_and_brought_up_to_date(directory: Path, book: Book, pipeline: Run) -> None:
    of_table = ("views", f"embedded:{directory / 'log'}", f"{VIEWS}:balances", f"parquet:{directory / 'balances'}")
    status, output, _ = pipeline(*of_table, "--rebuild", "--until", "0=999", "--json")
    rebuilt = json.loads(output)
    assert (status, rebuilt["outcome"]) == (0, "well")
    assert rebuilt["report"]["high_water_marks"] == {"0": 999}
    status, output, _ = pipeline(*of_table)
    assert "updated, 1,050 transactions, 1 commit\n" in output
    rows = pq.read_table(directory / "balances" / "current").to_pylist()
    assert {row["account"]: row["balance"] for row in rows} == balances_of(book)
    changes = Counter(account for payment in book.payments for account in payment.accounts)
    assert {row["account"]: row["changes"] - 1 for row in rows} == changes


@pytest.mark.exhaustive("polonaise.pipelines")  # of views
@pytest.mark.parametrize("view", ["payments", "by_kind"])
def test_every_view_of_the_example_is_well_by_its_own_audit(
    directory: Path, book: Book, pipeline: Run, tmp_path: Path, view: str
) -> None:
    of_table = (f"embedded:{directory / 'log'}", f"{VIEWS}:{view}", f"sqlite:///{tmp_path / 'views.db'}")
    assert pipeline("views", *of_table, "--transactions", "700")[0] == 0
    status, output, errors = pipeline("audit", *of_table, "--json")
    assert status == 0, output + errors
    report = json.loads(output)["report"]
    assert report["rows"]["are"] > 10
    total = sum(payment.amount for payment in book.payments)
    assert total in [each["is"] for each in report["sums"].values()]


def test_the_tellers_database_is_audited_and_one_cent_is_found(directory: Path, book: Book, pipeline: Run) -> None:
    database, report = f"sqlite:///{directory / 'bank.db'}", directory / "audit.json"
    of_database = ("audit", f"embedded:{directory / 'log'}", f"{VIEWS}:accounts", database)
    of_database += ("--marks", "polonaise_marks", "--report", str(report))
    status, output, errors = pipeline(*of_database)
    assert status == 0, errors
    assert "well: the table holds what follows from the log" in output
    assert json.loads(report.read_text())["outcome"] == "well"
    execute(database, "UPDATE accounts SET balance = balance - 1 WHERE account = 17")
    status, output, _ = pipeline(*of_database)
    right = balances_of(book)[17]
    assert status == 1
    assert f"different: account 17: balance is {right - 1} instead of {right}" in output
    assert "NOT WELL: 1 key wrong: 1 different" in output
    found = json.loads(report.read_text())
    assert (found["outcome"], found["report"]["differences"]) == ("not well", {"total": 1, "different": 1})


def test_the_audit_of_a_log_is_told_copy_by_copy(directory: Path, book: Book, pipeline: Run, tmp_path: Path) -> None:
    storage = directory / "log" / "storage-0"
    status, output, errors = pipeline("audit", f"embedded:{directory / 'log'}", "--storage", str(storage))
    assert status == 0, output + errors
    assert "well: every copy is whole, and none differs as far as it goes" in output
    copied = shutil.copytree(storage, tmp_path / "copied")
    (segment,) = (copied / "0").glob("*.seq")
    flip(segment, segment.stat().st_size // 2)
    status, output, _ = pipeline("audit", f"embedded:{directory / 'log'}", "--storage", str(copied))
    assert status == 1
    assert "NOT WELL: 1 problem" in output
    assert "storage node" in output


def test_the_banks_log_is_whole_as_a_program_of_its_own_says(directory: Path, book: Book) -> None:
    quick = "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    log, storage = f"embedded:{directory / 'log'}", str(directory / "log" / "storage-0")
    command = ["-m", "polonaise.pipelines.audit", log, "--storage", storage, "--json", "--master", "local[2]"]
    done = run_python(*command, "--conf", quick, environment={"PYTHONPATH": SOURCE}, within_s=ENDED_S)
    (partition,) = json.loads(output_of(done))["report"]["partitions"]
    served, stored = partition["copies"]
    assert served["digest"] == stored["digest"]
    assert served["transactions"] == 2_050


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("audit", "nowhere"), "'nowhere' is no address of a log"),
        (("audit", "LOG", f"{VIEWS}:accounts"), "which table of view"),
        (("audit", "LOG", "--until", "0=1"), "are for a table"),
        (("audit", "LOG", f"{VIEWS}:accounts", "parquet:x", "--storage", "y"), "are for the audit of a log"),
        (("views", "LOG", f"{VIEWS}:nothing", "parquet:x"), "which view of"),
        (("views", "LOG", f"{VIEWS}", "parquet:x"), "It declares accounts, balances, payments, by_kind"),
        (("views", "LOG", "nowhere.py", "parquet:x"), "no file 'nowhere.py'"),
        (("views", "LOG", f"{VIEWS}:accounts", "parquet:x", "--until", "0=1"), "need --rebuild"),
        (("views", "LOG", f"{VIEWS}:accounts", "parquet:x", "--follow", "--report", "y"), "--follow runs until"),
    ],
)
def test_an_invalid_argument_is_one_line(
    directory: Path, book: Book, pipeline: Run, arguments: tuple[str, ...], told: str
) -> None:
    status, _, errors = pipeline(*(each.replace("LOG", f"embedded:{directory / 'log'}") for each in arguments))
    assert status == 1
    assert told in errors
    assert len(errors.splitlines()) == 1, errors
