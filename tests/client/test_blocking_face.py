"""The blocking face has a twin for whatever the log can do, under the same names and with the same signatures.

`tests/test_house.py` has the files made again; here is what comes of it.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from polonaise import blocking
from rigs import blockingwriter
from rigs.blockingwriter import ADDED, BY_HAND, MADE, PHRASES, TWINS, for_threads

CLASSES = [twin for twin in TWINS if inspect.isclass(twin.of)]
LONGER_OR_SHORTER = {"Receipt.wait", "Submission.outcome"}
"""Written by hand, with a timeout in seconds where a task gives a time of its loop, or is cancelled."""


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_each_method_has_a_twin_of_the_same_shape_that_is_documented(twin: blockingwriter.Twin) -> None:
    of = getattr(blocking, twin.name)
    pairs = [(twin.name, twin.of, of)] if twin not in CLASSES else []
    for name, member in inspect.getmembers(twin.of, inspect.isfunction) if twin in CLASSES else []:
        if not name.startswith("_") and name not in twin.without and f"{twin.name}.{name}" not in LONGER_OR_SHORTER:
            pairs.append((name, member, getattr(of, name)))
    assert pairs
    for name, asynchronous, plain in pairs:
        assert shape(plain) == shape(asynchronous), name
        assert inspect.getdoc(plain), name


def unformatted() -> str:
    """What is made, all of it, before it is formatted: quick."""
    return "".join(blockingwriter.made(twin, (blockingwriter.BLOCKING / twin.file).read_text()) for twin in TWINS)


@pytest.mark.parametrize("key", [*PHRASES, *ADDED])
def test_whatever_is_said_otherwise_for_threads_is_said(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = unformatted()
    monkeypatch.delitem(PHRASES if key in PHRASES else ADDED, key)
    assert unformatted() != made


def test_no_docstring_that_is_made_speaks_of_tasks() -> None:
    for twin in TWINS:
        _, *halves = (blockingwriter.BLOCKING / twin.file).read_text().split(MADE.split("{")[0])
        assert halves
        for half in halves:
            told = half.split(BY_HAND)[0]
            assert re.findall(r".*\b(?:await|async|coroutine|event loop)\b.*", told) == [], twin.name


@pytest.mark.parametrize(
    ("said", "for_thread"),
    [
        ("Awaits it, or `await receipt.applied()`.", "Waits for it, or `receipt.applied()`."),
        ("    receipt = await log.append(b'x')", "    receipt = log.append(b'x').result()"),
        ("    async with log.lease('a') as lease:  # waits", "    with log.lease('a') as lease:  # waits"),
        ("- first\n  line\n- await second", "- first\n  line\n- wait for second"),
        ("Nothing else\nthan before.", "Nothing else\nthan before."),
    ],
)
def test_words_of_tasks_become_words_of_threads(said: str, for_thread: str) -> None:
    assert for_threads(said, 116) == for_thread


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    def lost(self) -> str:", "    def lost(self, timeout: float) -> str:"),
        ('"""The lease\'s name."""', '"""The name."""'),
        ("return waited(self._background, self._lease.lost)", 'return ""'),
    ],
)
def test_what_is_made_and_was_changed_is_made_again(right: str, wrong: str) -> None:
    text = (blockingwriter.BLOCKING / "lease.py").read_text()
    assert right in text
    assert blockingwriter.written("lease.py", text.replace(right, wrong)) == text


def test_what_is_by_hand_stays() -> None:
    text = (blockingwriter.BLOCKING / "lease.py").read_text()
    changed = text.replace("self.acquire()", "self.acquire(timeout=1)")
    assert changed != text
    assert blockingwriter.written("lease.py", changed) == changed
