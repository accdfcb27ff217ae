"""A text is cut where it is redacted, and nowhere else: half of a password is not seen to be one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

import polonaise
import polonaise_proving

SOURCES = tuple(Path(package.__file__).parent for package in (polonaise, polonaise_proving))

MAY_CUT = {
    "redaction.py: shortened": "the one place",
    "redaction.py: redacted_end": "the one place, for the end of a text",
    "wire/codec.py: _pack_variable": "bytes of a text that was redacted on the line before",
    "cli/output.py: say_row": "data of the log as it is, on the terminal of who asks for it",
    "views/writerconnection.py: _ends_on_mariadb": "matched, and told nobody",
    "admin/certificates.py: _at": "makes a name for a certificate of hosts that were checked to be such",
}
"""Functions that cut texts by themselves, and why they may."""
MAY_SHORTEN = {"player/grpctransport/endpoint.py"}
"""Modules that cut a text without redacting it: an address is put before what a target says, and that is redacted."""

TEXT_CALLS = {"str", "repr", "ascii", "format", "redacted", "redacted_text", "redacted_trace", "printable"}
TEXT_METHODS = {
    "casefold", "decode", "expandtabs", "format", "join", "lower", "lstrip", "read_text", "removeprefix",
    "removesuffix", "replace", "rstrip", "strip", "title", "translate", "upper",
}  # fmt: skip
LIST_METHODS = {"partition", "rpartition", "split", "splitlines", "rsplit"}
"""Methods that return texts, and those that return several."""
BOUNDED = re.compile(r"^_?[A-Z][A-Z_]*$")
"""A bound that has a name in capitals is a length; what a parser has found has none."""
CHARACTERS_MIN = 20
"""From how many characters on a bound that is written as a number may leave half a secret."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
LOGGED = {"debug", "info", "warning", "error", "exception", "critical"}


def declared_texts(trees: list[ast.Module]) -> set[str]:
    """Return the names of attributes and functions that are annotated as texts, and nowhere as anything else."""
    texts, others = set(), set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, Function) and node.returns is not None:
            (texts if _is_text(node.returns) else others).add(node.name)
        elif isinstance(node, ast.AnnAssign):
            name = getattr(node.target, "attr", getattr(node.target, "id", ""))
            (texts if _is_text(node.annotation) else others).add(name)
    return texts - others


def cuts_in(tree: ast.Module, declared: set[str]) -> Iterator[tuple[str, int, str]]:
    """Yield the function, the line and the source of each slice that cuts a text, or is told as it is."""
    for function in [tree, *(each for each in ast.walk(tree) if isinstance(each, Function))]:
        own = _own_nodes(function)
        slices = [node for node in own if _is_slice(node) and not _is_digest(node.value)]
        if not slices:
            continue
        told = set(_told_in(own))
        decoded = {
            node.func.value
            for node in own
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode"
        }
        known = _texts_of(function, declared) if not isinstance(function, ast.Module) else set()
        for node in slices:
            is_text = node in decoded or _tells_text(node.value, known, declared)
            if node in told or (_cuts(node.slice) and is_text):
                yield getattr(function, "name", ""), node.lineno, ast.unparse(node)


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function without those of functions within it."""
    own, left = [], [function]
    while left:
        within = [each for each in ast.iter_child_nodes(left.pop()) if not isinstance(each, Function)]
        own += within
        left += within
    return own


def _is_slice(node: ast.AST) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)


def _is_text(annotation: ast.AST) -> bool:
    if not isinstance(annotation, ast.Name | ast.Constant | ast.BinOp):
        return False  # to write it out takes far longer
    return ast.unparse(annotation).strip("\"'") in ("str", "str | bytes", "bytes | str", "str | None")


def _is_digest(value: ast.AST) -> bool:
    name = ast.unparse(value).removesuffix("()").rpartition(".")[2]
    return name in ("hex", "digest", "hexdigest")


def _cuts(bounds: ast.Slice) -> bool:
    """Does it keep a number of characters of its choice? What begins or ends where something was found does not."""
    for bound in (bounds.lower, bounds.upper):
        if bound is None or (isinstance(bound, ast.Call) and ast.unparse(bound.func) == "len"):
            continue  # the length of a prefix that is taken off
        for each in ast.walk(bound):
            if isinstance(each, ast.Constant) and isinstance(each.value, int) and each.value >= CHARACTERS_MIN:
                return True
            if isinstance(each, ast.Name | ast.Attribute):
                name = each.id if isinstance(each, ast.Name) else each.attr
                if BOUNDED.match(name) or name.endswith(("_max", "width")):
                    return True
    return False


def _told_in(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Yield the slices within f-strings, errors and lines of the log, but for those of lists that are joined."""
    for node in nodes:
        logs = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in LOGGED
        if isinstance(node, ast.FormattedValue | ast.Raise) or logs:
            yield from _sliced(node)


def _sliced(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and getattr(child.func, "attr", getattr(child.func, "id", "")) in (
            "join",
            "int",
        ):
            continue
        if isinstance(child, ast.Subscript) and isinstance(child.slice, ast.Slice) and _cuts(child.slice):
            yield child
        yield from _sliced(child)


def _texts_of(function: ast.AST, declared: set[str]) -> set[str]:
    """Return the names in a function that are texts; those of lists of texts end with `[]`."""
    known: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.annotation is not None and _is_text(node.annotation):
            known.add(node.arg)
    for node in ast.walk(function):
        pairs: list[tuple[ast.AST, ast.AST]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, ast.NamedExpr):
            pairs = [(node.target, node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name):
                if _tells_text(value, known, declared):
                    known.add(target.id)
                elif _lists_texts(value):
                    known.add(f"{target.id}[]")
    return known


def _lists_texts(value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "attr", "") in LIST_METHODS


def _tells_text(value: ast.AST, known: set[str], declared: set[str]) -> bool:
    match value:
        case ast.JoinedStr():
            return True
        case ast.Name(id=name):
            return name in known
        case ast.Attribute(attr=name):
            return name in declared
        case ast.Call(func=ast.Name(id=name)):
            return name in TEXT_CALLS or name in declared
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in TEXT_METHODS or name in declared
        case ast.BinOp(left=left, right=right):
            return _tells_text(left, known, declared) or _tells_text(right, known, declared)
        case ast.IfExp(body=body, orelse=other):
            return _tells_text(body, known, declared) or _tells_text(other, known, declared)
        case ast.Subscript(value=inner, slice=index) if not isinstance(index, ast.Slice):
            return _lists_texts(inner) or (isinstance(inner, ast.Name) and f"{inner.id}[]" in known)
        case ast.Subscript(value=inner):
            return _tells_text(inner, known, declared)
    return False


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
def test_texts_are_cut_where_they_are_redacted_and_nowhere_else() -> None:
    paths = {path: str(path.relative_to(source)) for source in SOURCES for path in sorted(source.rglob("*.py"))}
    trees = {path: ast.parse(path.read_text()) for path in paths}
    declared = declared_texts(list(trees.values()))
    found: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for function, line, source in cuts_in(tree, declared):
            found.setdefault(f"{paths[path]}: {function}", []).append(f"line {line}: {source}")
    assert {place: cuts for place, cuts in found.items() if place not in MAY_CUT} == {}, "write redacted(text, n)"
    assert set(found) == set(MAY_CUT)
    shorteners = {paths[path] for path in trees if "shortened(" in path.read_text()}
    assert shorteners == {"redaction.py", *MAY_SHORTEN}


@pytest.mark.parametrize(
    "body",
    [
        "raise BadOption(f'no log at {address[:60]}')",
        "raise BadOption(f'the register holds {value[:40]!r}')",
        "_log.warning('it said %s', said[:100])",
        "return ' '.join(str(error).split())[:200]",
        "return str(error)[:_SHOWN_MAX]",
        "reason = f'{type(error).__name__}: {error}'; return Answer(reason[:_REASON_CHARACTERS_MAX])",
        "last, reason = 0, f'{error}'; return Answer(reason[:_REASON_CHARACTERS_MAX])",
        "lines = self.log.strip().splitlines(); return lines[-1][:_LINE_MAX]",
        "return self.log[-_LOG_END:].strip()",
        "return raw[:2000].decode(errors='replace')",
        "return text if len(text) <= characters_max else text[:characters_max] + '…'",
        "return redacted(error)[:2 * _SHOWN_MAX]",
    ],
)
def test_a_text_that_is_cut_elsewhere_is_found(body: str) -> None:
    """Planted: each is a way in which a text was cut before, or may be."""
    source = f"class Told:\n    log: str\n    def tell(self, text: str, error: Exception) -> str:\n        {body}\n"
    tree = ast.parse(source)
    assert len(list(cuts_in(tree, declared_texts([tree])))) == 1


@pytest.mark.parametrize(
    "body",
    [
        "return ', '.join(names[:20])", "return text[1:-1]",
        "raise BadOption(f'known are {chr(44).join(names[:_NAMED_MAX])}')",
        "return hashlib.sha256(text.encode()).hexdigest()[:32]", "return text[len('file:'):]",
        "begin = text.index(':'); return text[:begin]", "return redacted(text, _SHOWN_MAX)",
    ],
)  # fmt: skip
def test_what_is_parsed_or_listed_is_no_cut(body: str) -> None:
    tree = ast.parse(f"def tell(text: str, names: list[str]) -> str:\n    {body}\n")
    assert list(cuts_in(tree, declared_texts([tree]))) == []
