"""Whatever `polonaise` exports says what it means, in what units, and what it raises."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import polonaise
from polonaise import blocking, errors, testing
from polonaise.errors import PolonaiseError


def public(holder: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of our own classes among the bases of this one."""
    for base in holder.__mro__:
        if not base.__module__.startswith("polonaise"):
            continue
        for name, member in vars(base).items():
            if isinstance(member, classmethod | staticmethod):
                member = member.__func__
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                home = holder.__module__.removeprefix("polonaise.").split(".")[0]
                prefix = f"{home}." if home in ("blocking", "testing") else ""
                yield f"{prefix}{holder.__name__}.{name}", member


def values(holder: type) -> Iterator[str]:
    """The members of an enum, the fields of a data class: each is documented below its name."""
    if issubclass(holder, enum.Enum):
        yield from (member.name for member in holder)
    elif dataclasses.is_dataclass(holder):
        yield from (field.name for field in dataclasses.fields(holder))


def exported(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module says is public, or else its own classes and functions; ours is `polonaise` if nothing is said."""
    own = [name for name, item in vars(module).items() if getattr(item, "__module__", "").startswith("polonaise.")]
    for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
        yield f"{module.__name__}.{name}".removeprefix("polonaise."), getattr(module, name)


EXPORTED = dict(pair for module in (polonaise, errors, blocking, testing) for pair in exported(module))
CLASSES = [item for item in EXPORTED.values() if inspect.isclass(item)]
MEMBERS = dict(pair for item in CLASSES for pair in public(item))


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_an_exported_name_has_a_docstring_of_its_own(name: str) -> None:
    documented = vars(EXPORTED[name]).get("__doc__") if inspect.isclass(EXPORTED[name]) else EXPORTED[name].__doc__
    assert documented
    assert not documented.startswith(f"{name.split('.')[-1]}("), "made by the machine"


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_a_public_method_has_a_docstring(name: str) -> None:
    assert (inspect.getdoc(MEMBERS[name]) or "").strip()


@pytest.mark.parametrize("holder", [pytest.param(item, id=item.__name__) for item in CLASSES if any(values(item))])
def test_a_member_of_an_enum_and_a_setting_says_what_it_means(holder: type) -> None:
    lines = [line.strip() for line in inspect.getsource(holder).splitlines()]
    undocumented = []
    for name in values(holder):
        line_number = next(n for n, line in enumerate(lines) if line.startswith((f"{name} =", f"{name}:")))
        if not lines[line_number + 1].startswith('"""'):
            undocumented.append(name)
    assert undocumented == []


@pytest.mark.parametrize(
    ("method", "raised"),
    [
        ("Log.run", ("Abandoned", "AppendExpired", "AppendUnknown", "BadOption")),
        ("Log.submit", ("Overloaded", "BadOption")),
        ("Log.append", ("Overloaded", "LockConflict", "BadOption", "BodyTooLarge")),
        ("Log.ready", ("DeadlineExceeded",)),
        ("Log.flush", ("DeadlineExceeded",)),
        ("Log.high_water_mark", ("DeadlineExceeded",)),
        ("Log.register", ("DeadlineExceeded",)),
        ("Log.health", ("DeadlineExceeded",)),
        ("Log.transaction", ("BeyondLog", "DeadlineExceeded")),
        ("Log.read", ("DeadlineExceeded", "DataDamaged")),
        ("Receipt.applied", ("DeadlineExceeded",)),
        ("Producer.append", ("ProducerFenced", "ProducerSequence", "ProducerDiffers", "AppendUnknown")),
    ],
)
def test_a_method_that_waits_or_refuses_names_its_errors(method: str, raised: tuple[str, ...]) -> None:
    documented = inspect.getdoc(MEMBERS[method]) or ""
    assert [error for error in raised if f"`{error}`" not in documented] == []


def test_every_error_has_a_code_of_its_own() -> None:
    """Over the wire a code alone says which error it was."""
    kinds = [kind for kind in EXPORTED.values() if inspect.isclass(kind) and issubclass(kind, errors.PolonaiseError)]
    assert [kind.__name__ for kind in kinds if "code" not in vars(kind)] == []
    codes = Counter([*(kind.code for kind in dict.fromkeys(kinds)), *errors.CODES])
    assert [code for code, times in codes.items() if times > 1] == []


def codes_of_faults() -> Iterator[tuple[Path, str]]:
    """The codes of the faults that the library makes without a class, as they are written there, each with its file."""
    for path in sorted(Path(polonaise.__file__).parent.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "fault(" in source else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "fault" and path.name != "errors.py":
                code = node.args[0]
                yield path, code.value if isinstance(code, ast.Constant) else ast.unparse(code)


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
def test_every_code_without_a_class_is_one_that_is_explained_and_somewhere_made() -> None:
    made = list(codes_of_faults())
    assert [(path, code) for path, code in made if code not in errors.CODES] == []
    assert set(errors.CODES) == {code for _, code in made}
    assert all(kind.meaning.endswith(".") for kind in errors.CODES.values())


DEFINING = ("errors.py", "faults.py")
"""The files where classes of errors are listed, and not caught."""


def caught_in(source: str) -> set[str]:
    """The names in a file that do more than make something: those that are caught, looked for, or put in a list."""
    nodes = list(ast.walk(ast.parse(source)))
    made = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    said = {id(part) for node in nodes if (of := getattr(node, "returns", None)) is not None for part in ast.walk(of)}
    names = [node for node in nodes if isinstance(node, ast.Name | ast.Attribute) and id(node) not in made | said]
    return {node.id if isinstance(node, ast.Name) else node.attr for node in names}


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
def test_an_error_has_a_class_of_its_own_only_if_somebody_catches_it() -> None:
    """The library, an example or the proving ground; or an application, if a page names it or it has attributes."""
    library = Path(polonaise.__file__).parent
    root = library.parents[1]
    files = (path for place in (library, root / "examples", root / "proving") for path in place.rglob("*.py"))
    caught = set[str]().union(*(caught_in(path.read_text()) for path in files if path.name not in DEFINING))
    pages = "\n".join(path.read_text() for path in (root / "docs").glob("*.md"))
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, PolonaiseError)]
    plain = [kind.__name__ for kind in kinds if "__init__" not in vars(kind)]
    assert [name for name in plain if name not in caught and f"`{name}`" not in pages] == []


def test_the_check_would_notice_a_class_that_nobody_catches() -> None:
    assert caught_in("def f() -> Made:\n    raise Made('x')") == set()
    assert caught_in("try: ...\nexcept (A, errors.B): raise Made") == {"A", "B", "errors", "Made"}
