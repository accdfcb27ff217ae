"""Declarations of views: an invalid one is refused when it is declared, by name."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polonaise.errors import BadOption
from polonaise.pipelines.declarations import Declared, TableView, load_view

SQL = "SELECT account, amount FROM {log}"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": "my view"}, "invalid name of a view, 'my view'"),
        ({"query": "SELECT 1"}, r"its SQL has to read from \{log\}"),
        ({"key": "account", "merge": {"amount": "sum"}}, r"write a list of columns, \['account'\]"),
        ({"merge": {"amount": "sum"}}, "merge without a key"),
        ({"key": ["account"], "merge": {"amount": "avg"}}, "merge of amount is 'avg': write one of sum, min, max"),
        ({"key": ["account"], "merge": {"account": "sum"}}, "account is in the key"),
        ({"key": ["account"], "merge": {"amount": "sum"}, "whole": True}, "a view of the whole log is never merged"),
        ({"read": {"startingTransactions": "{}"}}, "option startingtransactions, which the job sets"),
        ({"read": {"cluster": "embedded:x"}}, "read has the option cluster"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        TableView(**{"name": "v", "query": SQL, **given})


FILE = f"""
from polonaise.pipelines.declarations import TableView
one = TableView("first", {SQL!r})
other = TableView("second", {SQL!r})
alias = other
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "declared.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    ("name", "view"), [("one", "first"), ("first", "first"), ("other", "second"), ("alias", "second")]
)
def test_a_view_is_found_by_its_variable_and_by_its_name(file: Path, name: str, view: str) -> None:
    assert load_view(f"{file}:{name}").name == view


def test_a_file_with_one_view_need_not_say_which(file: Path) -> None:
    with pytest.raises(BadOption, match=f"which view of {file}\\? It declares one, other, alias"):
        load_view(str(file))
    file.write_text("\n".join(FILE.splitlines()[:3]))
    assert load_view(str(file)).name == "first"


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    text = "from polonaise.pipelines.declarations import TableView\none = TableView('one', lambda log: log)\n"
    files = [tmp_path / "one" / "bank.py", tmp_path / "other" / "bank.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text(text)
    modules = [_module_of(file) for file in files]
    assert [sys.modules[module].__file__ for module in modules] == list(map(str, files))
    assert _module_of(files[0]) == modules[0], "as before: what was pickled by name is found again"


def _module_of(file: Path) -> str:
    query = load_view(str(file)).query
    assert not isinstance(query, str)
    return query.__module__


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nowhere.py:v", "no file 'nowhere.py'"),
        ("no.such.module:v", "no views in 'no.such.module'"),
        ("json:v", "json declares no view"),
        ("", "no views in ''"),
    ],
)
def test_what_is_not_there_is_told(text: str, told: str) -> None:
    with pytest.raises(BadOption, match=told):
        load_view(text)


def test_a_file_that_fails_says_why(file: Path) -> None:
    file.write_text("1 / 0")
    with pytest.raises(BadOption, match=r"fails: ZeroDivisionError: division by zero"):
        load_view(str(file))


def test_a_module_is_named_as_for_an_import(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.delitem(sys.modules, "declared", raising=False)
    assert load_view("declared:one").name == "first"


# ------------------------------------------------------------------ before there is a session


def test_a_name_that_is_not_there_needs_no_session_to_be_told(file: Path) -> None:
    with pytest.raises(BadOption, match="which view of"):
        Declared(f"{file}:typo").look()
    with pytest.raises(BadOption, match="no file"):
        Declared(f"{file}x.py:one").look()
    file.write_text("views = [")
    with pytest.raises(BadOption, match="SyntaxError"):
        Declared(f"{file}:one").look()


def test_what_a_session_may_mend_is_left_until_there_is_one(file: Path) -> None:
    file.write_text("import needs_a_session")
    declared = Declared(f"{file}:one")
    declared.look()
    file.write_text(FILE)
    assert declared.load().name == "first"


def test_whatever_fails_on_the_way_to_a_module_is_told_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("failing_views", "raise RuntimeError('boom')"), ("broken_views", "views = [")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for text in ("failing_views.bank:one", "broken_views.bank:one", f"{'x' * 300}.py:one"):
        declared = Declared(text)
        with suppress(BadOption):
            declared.look()
        with pytest.raises(BadOption):
            declared.load()


@pytest.mark.parametrize("makes", ["SparkSession.builder.getOrCreate()", "session('local[2]')"])
def test_a_file_that_makes_a_session_is_loaded_in_that_of_the_job(file: Path, makes: str) -> None:
    loaded = file.with_name("loaded")
    file.write_text(f"import os\nos.mkdir({str(loaded)!r})\nif False: {makes}\n{FILE}")
    declared = Declared(f"{file}:one")
    declared.look()
    assert not loaded.exists()
    assert declared.load().name == "first"


def test_a_file_is_loaded_once(file: Path) -> None:
    file.write_text(f"import os\nos.mkdir({str(file.with_name('loaded'))!r})\n{FILE}")
    declared = Declared(f"{file}:other")
    declared.look()
    assert declared.load() is declared.load()


def test_a_module_that_fails_says_why(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.with_name("failing_views.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(file.parent)
    with pytest.raises(BadOption, match="loading failing_views fails: ZeroDivisionError"):
        load_view("failing_views:one")
