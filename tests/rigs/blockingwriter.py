"""Writes the first half of each class of `polonaise.blocking` from the asynchronous class: a program (`make blocking`).

The first half of such a class stands above a line with `BY_HAND`. It has what the asynchronous class has, with the same
docstrings and parameters, and what each method does is to have the method of the same name called in the background
thread. What differs for threads stands below the line, written by hand. There a method with the name of an asynchronous
one takes its place, and one with an underscore before that name (`_run`) is what the method above the line calls.

Docstrings are those of the asynchronous class, without `await` and `async`, with `PHRASES` replaced, and with what
`ADDED` says of threads at the end.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import polonaise

BLOCKING: Final = Path(__file__).parents[2] / "src" / "polonaise" / "blocking"
BY_HAND: Final = "# ---- by hand: what differs for threads"
MADE: Final = "# ---- from {} by `make blocking`: change it there"


class Twin(NamedTuple):
    """A class of the blocking face, or with `connect` the function, and what it is made from."""

    of: Any
    """The asynchronous class or function, which has the same name."""
    file: str
    held: str = ""
    """The attribute in which an object of the blocking class has the asynchronous one."""
    without: frozenset[str] = frozenset()
    """What threads do not have: the class's inner life, and what `connect` does."""
    in_thread: frozenset[str] = frozenset()
    """Properties that are looked up in the background thread, because more than one value makes them."""
    in_place: frozenset[str] = frozenset()
    """Methods that touch nothing of the client: the calling thread runs them itself."""

    @property
    def name(self) -> str:
        return str(self.of.__name__)


TWINS: Final = (
    Twin(
        polonaise.Log, "log.py", "_log",
        without=frozenset({"start", "fail", "cluster_topics", "id_of", "servers_health", "whereabouts"}),
        in_thread=frozenset({"clock_ahead_s"}),
        in_place=frozenset({"decode"}),
    ),
    Twin(polonaise.Lease, "lease.py", "_lease", in_thread=frozenset({"held"})),
    Twin(polonaise.Producer, "producer.py", "_producer"),
    Twin(polonaise.Receipt, "receipt.py", "_receipt", without=frozenset({"failure", "settled", "size", "watchers"})),
    Twin(polonaise.Submission, "receipt.py", "_submission"),
    Twin(polonaise.WorkerGroup, "workergroup.py", "_group", in_thread=frozenset({"partitions"})),
    Twin(polonaise.connect, "connecting.py"),
)  # fmt: skip

WRAPPED: Final = {"Lease", "Producer", "Receipt"}
"""Classes of which a method's result is wrapped in the class of the same name."""
READERS: Final = {
    "TransactionReader": ("Reading[Transaction]", "body_bytes"),
    "BatchReader": ("Reading[Batch]", "batch_bytes"),
}
"""Asynchronous readers: what stands for them, and the function that tells the size of an item."""
PARAMETERS: Final = {"= _NONE": "= 0", "Handler | None": "PlainHandler | None", "AsyncIterator[Log]": "Log"}
"""What is another word in a method's head."""

PHRASES: Final = {
    # The log
    "and only in the event loop that started it (`wrong_event_loop` elsewhere; `Forked` in a child process)": (
        "and in any number of threads at the same time"
    ),
    "Use it as an asynchronous context manager, or call `start` and `close`,": (
        "Use it as a context manager, or `close` it,"
    ),
    "`polonaise.connect` makes one.": "`polonaise.blocking.connect` makes one.",
    "Giving up a wait, by cancellation or by a deadline,": "Giving up a wait, by a deadline or by an exception,",
    "Parameters (`polonaise.connect` takes the same without the first two, and the topic as a part of the address):": (
        "Options of `polonaise.blocking.connect`:"
    ),
    "- `host`, `discovery`: the machine, and what finds the cluster: its coordinator, or a `ServerDiscovery`.": "",
    "- `topic`: the name of the topic whose partitions the client sees, as 0, 1, 2, …; empty for the log's own, in no "
    "topic. `partition_count` rises when the topic grows.": "",
    "; 0 before `start`": "",
    "; empty before `start`": "",
    "in a task of its own; return": "in the background thread; return",
    "Awaiting the submission raises": "`Submission.result` raises",
    "`await` the receipt, or not.": "Wait for the receipt, or not.",
    "Awaiting the receipt raises": "`Receipt.result` raises",
    "is a coroutine function that is given": "is a plain function that is given",
    # Receipts and submissions
    "`await receipt` returns": "`result` returns",
    "Any number of tasks of the client's event loop may await it,": "Any number of threads may wait for it,",
    "The error that awaiting the receipt raises": "The error that `result` raises",
    "receipt = submission  # or": "receipt = submission.result()  # or",
    "Any number of tasks may await it.": "Any number of threads may wait for it.",
    # The others
    "With `handler`, a coroutine function,": "With `handler`, a plain function,",
    "and close it when the context ends": "and return it, connected; use it as a context manager, or `close` it",
    "polonaise.connect(": "polonaise.blocking.connect(",
}
"""What docstrings say otherwise for threads, in the order in which it is replaced."""

ADDED: Final = {
    "Log": "Each method does what the one of `polonaise.Log` does, and waits where that is awaited. In addition, every "
    "method but `close` and `decode` raises `Forked` in a child process, and every method that waits raises "
    "`wrong_thread` in the background thread.",
    "Log.close": "Waits in other threads end with `Closed`, and a second call waits for the end of the first. Raises "
    "`wrong_thread` in the background thread; does nothing in a child process. Takes at most 10 seconds, also when the "
    "view or a submitted context holds up the background thread.",
    "Log.run": "The context is a plain function, and runs in this thread. One that is running when `timeout` seconds "
    "are over runs to its end before `AppendExpired` is raised.",
    "Log.submit": "The context is a plain function, and must not wait: nothing else goes on in that thread meanwhile.",
    "Log.once": "The context is a plain function, and runs in this thread.",
    "Log.group": "The handler runs in threads of the group, one for each partition that is being worked on, and may "
    "wait, for this log, too.",
    "Lease.acquire": "One that was got in the moment in which the wait was broken off is given back.",
    "Lease.release": "If the wait is broken off, that goes on to its end.",
    "WorkerGroup.leave": "A handler that takes longer runs to its end in its thread, and its transaction comes again "
    "elsewhere. Nor does a call do anything for a log that was closed.",
    "connect": "Which thread calls the view, the partitioner and the serializer is said in `polonaise.blocking`.",
}  # fmt: skip
"""What is true for threads only, as the last paragraph of a docstring."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_WIDTH: Final = 120


def made(twin: Twin, text: str) -> str:
    """Return the text of the twin's file, with what is made in it made anew."""
    head = re.search(rf"^(class|def) {twin.name}\b.*?(?=^ *{re.escape(BY_HAND)})", text, re.MULTILINE | re.DOTALL)
    assert head is not None, f"{twin.file} has no {twin.name} with a line {BY_HAND!r}"
    written = _function(twin) if head[1] == "def" else _class(twin, text)
    return text[: head.start()] + written + text[head.end() :]


def written(name: str, text: str) -> str:
    """Return what a file of the blocking face with this text has to be: what is made in it made anew, and formatted."""
    for twin in TWINS:
        if twin.file == name:
            text = made(twin, text)
    return subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", BLOCKING / name, "-"],
        input=text, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def files() -> list[Path]:
    return sorted({BLOCKING / twin.file for twin in TWINS})


# ------------------------------------------------------------------ what is made


_source = cache(inspect.getsource)  # which takes a file apart for each
_parsed = cache(ast.parse)


def _class(twin: Twin, text: str) -> str:
    own = next(each for each in _parsed(text).body if isinstance(each, ast.ClassDef) and each.name == twin.name)
    mark = own.lineno + text.splitlines()[own.lineno :].index(f"    {BY_HAND}")
    by_hand = {each.name for each in own.body if isinstance(each, Function) and each.lineno > mark}
    lines = [f"class {twin.name}:", f"    {MADE.format(twin.of.__module__)}", ""]
    lines += _docstring(twin.name, inspect.getdoc(twin.of) or "", "    ")
    for member in _members(twin):
        if member.name not in by_hand:
            lines += ["", *_member(twin, member, f"_{member.name}" in by_hand)]
    return "\n".join([*lines, "", ""])


def _function(twin: Twin) -> str:
    source = _source(twin.of)
    (node,) = _parsed(source).body
    assert isinstance(node, Function)
    lines = [_head(node, source), f"    {MADE.format(twin.of.__module__)}"]
    lines += _docstring(twin.name, inspect.getdoc(twin.of) or "", "    ")
    return "\n".join([*lines, f"    return _{twin.name}({_passed(node)})", "", "", ""])


class _Member(NamedTuple):
    """A public method, property or attribute of an asynchronous class."""

    name: str
    type: str
    """What a property or attribute holds, or a method returns, as it is written."""
    doc: str
    function: Function | None = None
    """None for an attribute."""
    head: str = ""
    """The head of a method, for threads."""


def _members(twin: Twin) -> Iterator[_Member]:
    """Yield what the asynchronous class has that is public; what its bases have comes first."""
    found: dict[str, _Member] = {}
    for base in reversed(twin.of.__mro__):
        if base.__module__.startswith("polonaise"):
            for member in _members_of(_source(base)):
                if member.doc or member.name not in found:  # else a base tells more
                    found[member.name] = member
    for member in found.values():
        if member.name not in twin.without:
            assert member.doc, f"{twin.name}.{member.name} has no docstring"
            assert member.type, f"{twin.name}.{member.name} has no type: annotate it"
            yield member


def _members_of(source: str) -> Iterator[_Member]:
    (node,) = _parsed(source).body
    assert isinstance(node, ast.ClassDef)
    for each in node.body:
        if isinstance(each, Function) and each.name == "__init__":
            yield from _attributes(each)
        elif isinstance(each, Function) and not each.name.startswith("_"):
            doc = ast.get_docstring(each) or ""
            yield _Member(each.name, ast.unparse(each.returns or each), doc, each, _head(each, source))


def _attributes(init: Function) -> Iterator[_Member]:
    """Yield the public attributes that `__init__` sets, each with its type: the one written, or its parameter's."""
    types = {each.arg: ast.unparse(each.annotation) for each in _arguments(init) if each.annotation is not None}
    for node, below in zip(init.body, [*init.body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                type = types.get(ast.unparse(value), "")
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                type = ast.unparse(annotation)
            case _:
                continue
        match below:
            case ast.Expr(value=ast.Constant(value=str(doc))) if not name.startswith("_"):
                yield _Member(name, type, inspect.cleandoc(doc))
            case _ if not name.startswith("_"):
                yield _Member(name, type, "")


def _member(twin: Twin, member: _Member, differs: bool) -> list[str]:
    """Return the lines of a member, which does what the asynchronous one does; `differs` if by hand."""
    name, function = member.name, member.function
    doc = _docstring(f"{twin.name}.{name}", member.doc, "        ")
    if function is not None and not function.decorator_list:
        return [f"    {member.head}", *doc, f"        return {_value(twin, function, member.type, differs)}"]
    value = f"self._{name}()" if differs else f"self.{twin.held}.{name}"
    if name in twin.in_thread:
        value = f"self._background.now(lambda: {value})"
    return ["    @property", f"    def {name}(self) -> {member.type}:", *doc, f"        return {value}"]


def _value(twin: Twin, function: Function, type: str, differs: bool) -> str:
    """Return what a method returns: what the asynchronous one gives in the background thread."""
    if differs:
        return f"self._{function.name}({_passed(function)})"
    call = f"self.{twin.held}.{function.name}({_passed(function)})"
    if function.name in twin.in_place:
        return call
    make = call.removesuffix("()") if call.endswith("()") else f"lambda: {call}"
    if type in READERS:
        return f"Reading(self._background, {make}, {READERS[type][1]})"
    is_awaited = isinstance(function, ast.AsyncFunctionDef)
    value = f"waited(self._background, {make})" if is_awaited else f"self._background.now({make})"
    return f"{type}(self._background, {value})" if type in WRAPPED else value


def _head(function: Function, source: str) -> str:
    """Return the first lines of a function, for threads."""
    lines = source.splitlines()[function.lineno - 1 : function.body[0].lineno - 1]
    head = "\n".join(lines).strip().removeprefix("async ")
    for old, new in PARAMETERS.items():
        head = head.replace(old, new)
    for old, (new, _) in READERS.items():
        head = re.sub(rf"\b{old}\b", new, head)
    return head


def _arguments(function: Function) -> list[ast.arg]:
    return [*function.args.args, *function.args.kwonlyargs]


def _passed(function: Function) -> str:
    """Return the arguments by which a function passes on what it is given: by position what comes so, else by name."""
    given = [each.arg for each in function.args.args if each.arg != "self"]
    if function.args.vararg is not None:
        given.append(f"*{function.args.vararg.arg}")
    return ", ".join([*given, *(f"{each.arg}={each.arg}" for each in function.args.kwonlyargs)])


# ------------------------------------------------------------------ docstrings


def _docstring(name: str, doc: str, indent: str) -> list[str]:
    """Return the lines of a docstring for threads, from that of the asynchronous twin."""
    width = _WIDTH - len(indent)
    parts = [for_threads(part, width) for part in f'"""{doc}'.split("\n\n")]
    if name in ADDED:
        parts.append(_wrapped(ADDED[name], width))
    lines = "\n\n".join(part for part in parts if part).splitlines()
    if len(lines) == 1 and len(lines[0]) + 3 <= width:
        lines[0] += '"""'
    else:
        lines.append('"""')
    return [indent + line if line else "" for line in lines]


def for_threads(part: str, width: int) -> str:
    """Return a paragraph, a list or a piece of code of a docstring, as it is for threads."""
    if part.startswith(" "):
        return "\n".join(map(_code, part.split("\n")))
    if not part.startswith("- "):
        return _filled(part, width)
    items = [_filled(item, width, "  ") for item in re.split(r"\n(?=- )", part)]
    return "\n".join(item for item in items if item)


def _filled(part: str, width: int, indent: str = "") -> str:
    """Return a paragraph, or one item of a list, as it is for threads; as it was if nothing in it is another."""
    joined = re.sub(r"\s*\n\s*", " ", part)
    text = _prose(joined)
    return part if text == joined else _wrapped(text, width, indent)


def _wrapped(text: str, width: int, indent: str = "") -> str:
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _code(line: str) -> str:
    """Without `await`: an append is waited for by the receipt that it returns."""
    line = re.sub(r"await (log\.append\w*\(.*\)|log\.submit\(.*\))(?=$|  #)", r"\1.result()", line)
    line = re.sub(r"\b(async|await) ", "", line)
    return _replaced(line)


def _prose(text: str) -> str:
    text = _replaced(text)
    text = re.sub(r"`(async|await) ", "`", text)
    text = re.sub(
        r"\b([Aa])wait(s|ing|ed)?\b", lambda found: ("W" if found[1] == "A" else "w") + f"ait{found[2] or ''} for", text
    )
    return re.sub(r"  +", " ", text).strip()


def _replaced(text: str) -> str:
    for old, new in PHRASES.items():
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    for each in files():
        each.write_text(written(each.name, each.read_text()))
