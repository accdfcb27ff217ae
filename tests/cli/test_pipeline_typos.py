"""What is mistyped in `polonaise pipeline …` is told before a Spark is started, and nothing is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import polonaise_proving.demo.views
from polonaise.pipelines import job
from rigs.shell import Shell

VIEWS = polonaise_proving.demo.views.__file__


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "job_session", None)


@pytest.mark.parametrize("job", ["views", "audit"])
@pytest.mark.parametrize(
    ("log", "view", "table", "code", "naming"),
    [
        ("fragments:store", f"{VIEWS}:acounts", "parquet:x", "bad_option", "It declares accounts, balances"),
        ("fragments:store", "polonaise_proving.demo.views:acounts", "parquet:x", "bad_option", "which view of"),
        ("fragments:store", "nowhere.py:accounts", "parquet:x", "bad_option", "no file 'nowhere.py'"),
        ("fragments:store", f"{VIEWS}:accounts", "balances", "bad_option", "no table at 'balances'"),
        ("embedded:nowhere", f"{VIEWS}:accounts", "parquet:x", "not_initialized", "no embedded log at"),
    ],
)
def test_what_is_mistyped_is_told_before_spark_starts(
    shell: Shell, job: str, log: str, view: str, table: str, code: str, naming: str
) -> None:
    shell.refuses("pipeline", job, log, view, table, code=code, naming=naming)


def test_the_audit_of_a_store_without_a_view_says_what_to_write(shell: Shell) -> None:
    told = "write polonaise pipeline audit LOG --fragments https://key:***@h/store, or"
    shell.refuses("pipeline", "audit", "fragments:https://key:s3cret@h/store", code="bad_option", naming=told)


def test_an_audit_makes_no_database_of_a_mistyped_url(shell: Shell, tmp_path: Path) -> None:
    audit = ("pipeline", "audit", "fragments:store", f"{VIEWS}:accounts")
    file = tmp_path / "bnak.db"
    shell.refuses(*audit, f"sqlite:///{file}", code="not_found", naming=f"no SQLite file {file}: correct the URL")
    for kind in ("parquet", "delta"):
        shell.refuses(*audit, f"{kind}:{tmp_path / 'nowhere'}", code="not_found", naming="no directory")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("job", ["views", "audit"])
def test_a_file_that_is_no_database_is_told_before_spark_starts(shell: Shell, tmp_path: Path, job: str) -> None:
    file, report = tmp_path / "notes.txt", tmp_path / "report.json"
    file.write_text("notes, and no database\n")
    command = ("pipeline", job, "fragments:store", f"{VIEWS}:accounts", f"sqlite:///{file}", "--report", report)
    shell.refuses(*command, code="view_unfit", naming=f"{file} is no SQLite database, or is damaged: correct the URL")
    assert json.loads(report.read_text())["error"]["code"] == "view_unfit"
    assert file.read_text() == "notes, and no database\n"


@pytest.mark.parametrize("job", ["archive", "report"])
def test_every_job_looks_for_its_log_first(shell: Shell, tmp_path: Path, job: str) -> None:
    shell.refuses("pipeline", job, "embedded:nowhere", tmp_path / "out", code="not_initialized")
    assert list(tmp_path.iterdir()) == []


def test_restore_names_the_command_that_it_is_now(shell: Shell, tmp_path: Path) -> None:
    command = ("pipeline", "restore", tmp_path / "store", tmp_path / "log", "--until", "0=4", "--new-key")
    shell.refuses(*command, "--report", "x", code="bad_option", naming="is now polonaise archive restore")
    assert list(tmp_path.iterdir()) == []
