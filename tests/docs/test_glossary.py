"""`docs/glossary.md` decides over names: a class name stands once, and a word that was replaced stays replaced."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from inspect import isclass
from pathlib import Path

import pytest

import polonaise
from polonaise import blocking

ROOT = Path(__file__).parents[2]
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
