"""Every fault can be pickled and copied: it leaves a process of a pool as what it is."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import pickle
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import polonaise
import polonaise_proving
from polonaise import errors, testing
from polonaise.errors import (
    CODES,
    AppendUnknown,
    CopiesUnproved,
    LockConflict,
    PolonaiseError,
    Retry,
    error_of,
    fault,
    fresh,
)

PACKAGES = (polonaise, polonaise_proving)
NAMES = "|".join(name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception))


def _import_all_kinds() -> None:
    """Import each module that has a fault of its own: what else was imported may not decide which tests there are."""
    own = re.compile(rf"^class \w+\((.*\b)?({NAMES})\b", re.MULTILINE)
    for root in (Path(package.__file__).parent for package in PACKAGES):
        for path in sorted(root.rglob("*.py")):
            if own.search(path.read_text()):
                importlib.import_module(".".join(path.relative_to(root.parent).with_suffix("").parts))


def _kinds(kind: type[PolonaiseError] = PolonaiseError) -> Iterator[type[PolonaiseError]]:
    yield kind
    for each in kind.__subclasses__():
        if each.__module__.split(".")[0] in {package.__name__ for package in PACKAGES}:
            yield from _kinds(each)


_import_all_kinds()
KINDS = sorted(set(_kinds()), key=lambda kind: kind.__name__)


def _told(error: PolonaiseError) -> tuple[Any, ...]:
    parts = {name: part for name, part in vars(error).items() if name != "receipt"}
    return type(error), error.code, error.retry, str(error), error.text, error.args, parts


def _needed(kind: type[PolonaiseError]) -> list[int]:
    """Return values for the arguments without which, beside the message, the fault can't be made."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[2:]
    return [7 for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]


TEXT = "what happened, and what to do"
FAULTS = [kind(TEXT, *_needed(kind)) for kind in KINDS] + [fault(code, TEXT) for code in CODES]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: error.code)
def test_a_fault_is_the_same_after_it_was_pickled_and_copied(error: PolonaiseError) -> None:
    error.add_note("because of something")
    for number in range(pickle.HIGHEST_PROTOCOL + 1):
        assert _told(pickle.loads(pickle.dumps(error, number))) == _told(error)
    for copied in (copy.copy(error), copy.deepcopy(error), fresh(error)):
        assert _told(copied) == _told(error)
        assert copied is not error


@pytest.mark.parametrize("code", CODES)
def test_a_fault_without_a_class_is_the_same_on_the_other_side_of_a_connection(code: str) -> None:
    error = fault(code, TEXT)
    assert (error.code, error.retry, str(error)) == (code, CODES[code].retry, f"[{code}] {TEXT}")
    assert _told(error_of(error.code, error.text)) == _told(error)
    assert (PolonaiseError.code, PolonaiseError.retry) == ("internal", Retry.NEVER), "of others nothing is changed"


@pytest.mark.parametrize("kind", [AppendUnknown, CopiesUnproved])
def test_what_belongs_to_the_process_stays_in_a_copy_and_is_none_in_another_process(kind: Any) -> None:
    receipt = threading.Lock()  # like a receipt, it can't be pickled
    error = kind("not decided by the deadline", receipt)
    assert copy.copy(error).receipt is receipt
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is kind
    assert arrived.receipt is None
    assert arrived.text == "not decided by the deadline"


def test_attributes_and_arguments_that_can_be_sent_are_sent() -> None:
    assert pickle.loads(pickle.dumps(LockConflict("stale", 17))).conflict == 17
    assert pickle.loads(pickle.dumps(PolonaiseError(threading.Lock()))).text.startswith("<unlocked _thread.lock")


def _append() -> None:
    with testing.blocking_log() as log:
        raise AppendUnknown("not decided by the deadline", log.append(b"x"))


@pytest.mark.slow
def test_unknown_is_told_as_unknown_by_a_pool_of_processes() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        appended = pool.submit(_append)
    with pytest.raises(AppendUnknown, match="not decided by the deadline") as caught:
        appended.result(timeout=60)
    assert caught.value.receipt is None


def test_a_receipt_says_that_it_can_not_be_pickled() -> None:
    with testing.blocking_log() as log, pytest.raises(TypeError, match="send another one its id"):
        pickle.dumps(log.append(b"x"))
