"""Sees to it that a field of a protocol object is written by its own class, or by whom its docstring names.

A field is one that a class in `protocol/` of a room sets in `__init__` or declares. Its writers are named, in
backticks, in a sentence that says that they write, set, raise, assign or clear it: in the field's docstring, or in its
class's, where such a sentence is about the fields that it names, or else about all.
"""

from __future__ import annotations

import ast
import re
import sys
from abc import ABCMeta
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Final

PROTOCOL: Final = re.compile(r"polonaise\.\w+\.protocol\.\w+")
_WRITES: Final = re.compile(r"\b(writes?|[Ww]ritten|set|sets|raises|assigns|clears?)\b")
_NAMED: Final = re.compile(r"`([\w.]+)`")


@dataclass
class OwnedClass:
    """What the text of one class says of its fields."""

    name: str
    told: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    """By name, with their docstrings."""
    containers: set[str] = field(default_factory=set)
    """The fields that hold a list, a dict or the like, as far as the text shows it."""

    def may_write(self, name: str, writer: str) -> bool:
        """Whether a docstring names the writer of this field, such as `polonaise.client.receipt.tell`."""
        for sentence in re.split(r"(?<=[.:;])\s+", f"{self.told} {self.fields[name]}"):
            named = set(_NAMED.findall(sentence)) if _WRITES.search(sentence) else set()
            about = named & self.fields.keys() if sentence in self.told else set()
            if (not about or name in about) and any(f".{each}." in f".{writer}." for each in named):
                return True
        return False


_CONTAINERS: Final = re.compile(r"\b(list|dict|set|deque|Counter|OrderedDict|defaultdict|bytearray|array)\b")


def _fields_in(body: list[ast.stmt], of: type[ast.expr]) -> Iterator[tuple[str, str, str]]:
    """Yield name, docstring, and annotation with value of the fields that these statements set or declare."""
    for statement, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        text = ""
        match after:
            case ast.Expr(value=ast.Constant(value=str(text))):
                pass
        match statement:
            case ast.Assign(targets=targets, value=value):
                made = ast.unparse(value)
            case ast.AnnAssign(target=target, annotation=annotation):
                targets, made = [target], ast.unparse(annotation)
            case ast.If(body=inner, orelse=orelse):
                yield from _fields_in([*inner, *orelse], of)
                continue
            case _:
                continue
        for each in targets:
            for target in each.elts if isinstance(each, ast.Tuple) else [each]:
                if isinstance(target, of):
                    yield ast.unparse(target).removeprefix("self."), text, made


def classes_of(text: str) -> dict[str, OwnedClass]:
    """Return the classes of a module whose fields can be written, by name."""
    found = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef):
            continue
        owned = OwnedClass(node.name, " ".join((ast.get_docstring(node) or "").split()))
        makers = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        bodies: list[tuple[list[ast.stmt], type[ast.expr]]] = [(node.body, ast.Name)]
        for body, of in [*bodies, *((maker.body, ast.Attribute) for maker in makers)]:
            for name, told, made in _fields_in(body, of):
                owned.fields.setdefault(name, " ".join(told.split()))
                if _CONTAINERS.search(made.partition("(")[0]):
                    owned.containers.add(name)
        found[node.name] = owned
    return found


class Written(AssertionError):
    """A field was written by somebody whom no docstring names."""


_passed: set[tuple[type, str, int]] = set()
_kept: list[CodeType] = []
"""The code that was let pass, whose ids would else be given to other code."""


@cache
def _classes_in(path: str) -> dict[str, OwnedClass]:
    return classes_of(Path(path).read_text())


def _owned(kind: type) -> OwnedClass | None:
    if not PROTOCOL.fullmatch(kind.__module__):
        return None
    # Not by `inspect`: it finds no text while a test breaks off calls at each of their lines.
    return _classes_in(sys.modules[kind.__module__].__file__ or "").get(kind.__name__)


def _check(owner: object, name: str, frame: FrameType) -> None:
    code, kind = frame.f_code, type(owner)
    if (kind, name, id(code)) in _passed:
        return
    writer = f"{frame.f_globals.get('__name__', '')}.{code.co_qualname}"
    # Programs that prove something put objects into states; what a library or a dataclass writes is an object's making.
    if writer.startswith("polonaise.") and not code.co_filename.startswith("<string"):
        told = {each: owned for each in kind.__mro__ if (owned := _owned(each)) is not None and name in owned.fields}
        own = any(f"{each.__module__}.{each.__qualname__}." in writer for each in kind.__mro__)
        if told and not own and not any(owned.may_write(name, writer) for owned in told.values()):
            raise Written(
                f"{writer} writes {kind.__name__}.{name}: "
                "give that class a method, or name the writer there (CONTRIBUTING.md, Style)"
            )
    _passed.add((kind, name, id(code)))
    _kept.append(code)


def _set(self: object, name: str, value: object) -> None:
    _check(self, name, sys._getframe(1))
    object.__setattr__(self, name, value)


def _delete(self: object, name: str) -> None:
    _check(self, name, sys._getframe(1))
    object.__delattr__(self, name)


def guard(module: ModuleType) -> None:
    """Guard the objects of the classes of this module that can be written."""
    # Not at the first write, which may come deep in calls, or in a greenlet: Python 3.11's parser fails there.
    _classes_in(module.__file__ or "")
    for kind in vars(module).values():
        if type(kind) not in (type, ABCMeta) or kind.__module__ != module.__name__ or issubclass(kind, tuple):
            continue  # also protocols and enums, which are no objects with fields
        if kind.__setattr__ is object.__setattr__:  # else it is frozen, or an exception
            kind.__setattr__, kind.__delattr__ = _set, _delete


def guard_all() -> None:
    """Guard the classes of each `protocol/`, those of modules that are loaded later, too."""
    load = SourceFileLoader.exec_module

    def exec_module(self: SourceFileLoader, module: ModuleType) -> None:
        load(self, module)
        if PROTOCOL.fullmatch(module.__name__):
            guard(module)

    SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]
    for name, module in list(sys.modules.items()):
        if PROTOCOL.fullmatch(name):
            guard(module)


_MUTATES: Final = re.compile(
    "(__setitem__|add|append(left)?|clear|discard|extend(left)?|insert|move_to_end|pop(item|left)?|remove|reverse|rotate|"
    "setdefault|sort|subtract|(difference_|intersection_|symmetric_difference_)?update)"
)
_MUTATE_FIRST: Final = frozenset({"heapify", "heappop", "heappush", "heappushpop", "heapreplace", "insort"})
"""Functions that change what they are given first."""


def _changed(node: ast.AST) -> ast.expr | None:
    """Return what a node changes the contents of."""
    match node:
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return value
        case ast.AugAssign(target=ast.Attribute() as target):
            return target
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if _MUTATES.fullmatch(name):
            return value
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[first, *_]) if name in _MUTATE_FIRST:
            return first
    return None


def contents_changed(module: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield each attribute of another object whose contents the text changes, such as `feeds.mounts`, and by whom."""

    def visit(node: ast.AST, writer: str) -> Iterator[tuple[str, str]]:
        changed = _changed(node)
        while isinstance(changed, ast.Subscript):
            changed = changed.value
        if isinstance(changed, ast.Attribute) and ast.unparse(changed.value) != "self":
            yield f"{ast.unparse(changed.value)}.{changed.attr}", writer
        for child in ast.iter_child_nodes(node):
            yield from visit(child, f"{writer}.{child.name}" if hasattr(child, "name") and child.name else writer)

    yield from visit(ast.parse(text), module)
