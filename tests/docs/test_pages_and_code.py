"""What pages say is what the code has: commands, settings, and names."""

from __future__ import annotations

import ast
import io
import re
import shlex
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from inspect import isclass
from pathlib import Path

import click
import pytest
import typer.main

import polonaise
from polonaise import blocking
from polonaise.admin.configuration import configuration_of
from polonaise.admin.settingkeys import TABLES
from polonaise.cli.application import application

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = frozenset("|&<>;")
COMMAND = typer.main.get_command(application)
"""Made once: it holds no state, and making it takes longer than all that is asked of it."""


@cache
def lines(page: Path) -> list[str]:
    return re.findall(r"^polonaise .*", "".join(_SHELL.findall(page.read_text())), re.MULTILINE)


def words(line: str) -> list[str]:
    """The words of one command: what it is piped into, or reads from, is no part of it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&<>;")
    lexer.whitespace_split = True
    found = []
    for word in lexer:
        if set(word) <= _END:
            break
        found.append(word)
    return found


def commands(holder: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in getattr(holder, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield " ".join(("polonaise", *path, name))


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=f"{page.name}-{line[:60]}") for page in PAGES for line in lines(page)]
)
def test_a_command_is_one_with_these_options(line: str) -> None:
    """Parsed only: the logs and ports that pages name are not here."""
    command = COMMAND
    context = command.make_context("polonaise", words(line)[1:])
    while hasattr(command, "resolve_command"):
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
        context = command.make_context(name, arguments, parent=context)
    assert context.params


@pytest.mark.parametrize("command", [*commands(COMMAND)])
def test_a_command_is_in_a_page(command: str) -> None:
    shown = [line for page in PAGES for line in lines(page)]
    assert any(line.split()[:3] == command.split() for line in shown) or any(
        f"`{command}" in page.read_text() for page in PAGES
    )


def test_no_page_gives_a_node_the_directory_of_a_cluster_that_another_command_makes_whole() -> None:
    """Who follows one block after the other would give a second coordinator the storage nodes of the first cluster."""
    shown = " ".join(page.read_text() for page in PAGES)
    whole = set(re.findall(r"cluster start --directory (\S+)", shown))
    parts = set(re.findall(r"storage run --directory (\S+)|\bfile:(\./\S+)", shown))
    assert whole
    assert not [part for pair in parts for part in pair for each in whole if part.startswith(f"{each}/")]


PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def rows_of(table: str) -> list[str]:
    """A row for each setting: name, default, meaning."""
    return [
        f"| `{each.key.name}` | {each.shown.replace('|', ' ')} | {each.key.meaning} |"
        for each in configuration_of(table, None, {}, {}).given.values()
    ]


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_is_in_the_page(table: str) -> None:
    rows = ["| setting | default | meaning |", "| --- | --- | --- |", *rows_of(table)]
    assert "\n".join(rows) in PAGE.read_text(), "docs/operations.md should say:\n" + "\n".join(rows)


PACKAGES = (ROOT / "src" / "polonaise", ROOT / "proving" / "polonaise_proving")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SAME_IN_BLOCKING = {
    name: f"{getattr(blocking, name).__module__.removeprefix('polonaise.').replace('.', '/')}.py"
    for name in blocking.__all__
    if name in polonaise.__all__ and isclass(getattr(blocking, name))
}
"""Classes of the blocking face, with their files: on purpose they have the names of those that they wait for."""
_CLASS = re.compile(r"^\s*class (\w+)", re.MULTILINE)


def replaced_words(glossary: str) -> list[str]:
    """The left column of the glossary's last table."""
    table = glossary.split("## Words that we do not use")[1]
    return [row.group(1) for row in re.finditer(r"^\| ([a-z]+) \|", table, re.MULTILINE) if row.group(1) != "not"]


def own(path: str, name: str) -> bool:
    return SAME_IN_BLOCKING.get(name) != path


def classes_that_stand_twice(sources: dict[str, str]) -> dict[str, list[str]]:
    """Class names, with the files that define one of that name, of those that more than one does."""
    files: dict[str, list[str]] = defaultdict(list)
    looks = Counter(name for path, source in sources.items() for name in _CLASS.findall(source) if own(path, name))
    for path, source in sources.items():
        if all(looks[name] < 2 for name in _CLASS.findall(source) if own(path, name)):
            continue  # taking a file apart costs far more than this look
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and own(path, node.name):
                files[node.name].append(path)
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def uses(word: str, source: str) -> Iterator[int]:
    """The lines in which a name has this word as a part of it: `_plants`, `PlantOf`, `take_plant`."""
    if word not in source.lower():  # taking a file apart costs far more than this look
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", token.string)
            if any(part.lower() in (word, f"{word}s") for part in parts):
                yield token.start[0]


def library() -> dict[str, str]:
    paths = [(package, path) for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for package, path in paths}
    sources.pop("__init__.py")  # both have one, which only says what is in the package
    return sources


def test_a_class_name_stands_once() -> None:
    assert classes_that_stand_twice(library()) == {}


@pytest.mark.parametrize("word", replaced_words(GLOSSARY))
def test_a_replaced_word_is_in_no_name(word: str) -> None:
    assert [f"{path}:{line}" for path, source in library().items() for line in uses(word, source)] == []
    named = [path for path in library() if word in Path(path).stem]
    assert named == []


def test_the_checks_would_notice() -> None:
    twice = {"log/a.py": "class Page: ...\n", "pipelines/b.py": "def f():\n    class Page: ...\n"}
    assert classes_that_stand_twice(twice) == {"Page": ["log/a.py", "pipelines/b.py"]}
    both = {"client/log.py": "class Log: ...", "blocking/log.py": "class Log: ..."}
    assert classes_that_stand_twice(both) == {}
    third = {**both, "blocking/background.py": "class Log: ..."}
    assert classes_that_stand_twice(third) == {"Log": ["client/log.py", "blocking/background.py"]}
    assert list(uses("plant", "old_plants = 1\nplantation = 2\nclass PlantOf: ...\n")) == [1, 3]
    assert "question" in replaced_words(GLOSSARY)
