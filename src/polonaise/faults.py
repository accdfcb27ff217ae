"""What every fault has: a stable code, whether to try again, and a text that says what to do; and how it is passed on.

`polonaise.errors` is where all names of this module are public.
"""

from __future__ import annotations

import enum
import pickle
from copy import copy
from typing import Any, Final, NamedTuple, Self, TypeVar


class Retry(enum.Enum):
    """The possible effects of trying a failed call again."""

    NEVER = "never"
    """The same call fails again, or must not be made again before somebody has looked: the caller, its configuration or
    its data is wrong, something is damaged, or the fate of an append is unknown."""
    AGAIN = "again"
    """The fault is passing: the same call may succeed after a pause."""
    ELSEWHERE = "elsewhere"
    """Another node has to be asked: another replica, or the owner that the assignment, read anew, names."""
    REBUILT = "rebuilt"
    """The call succeeds only after the transaction has been built anew from fresh state."""


class PolonaiseError(Exception):
    """A fault. `code` is stable and goes over the wire. `retry` says what trying again would do. `str(error)` is the
    code in brackets and the message."""

    code: str = "internal"
    retry: Retry = Retry.NEVER

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"

    @property
    def text(self) -> str:
        """The message without the code."""
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the fault without what belongs to this process, such as a receipt, which is None. So
        it leaves a process of a pool as what it is."""
        args = tuple(each if _is_sendable(each) else str(each) for each in self.args)
        parts = {name: part if _is_sendable(part) else None for name, part in self.__dict__.items()}
        return _restored, (type(self), args), parts

    def __copy__(self) -> Self:
        copied = _restored(type(self), self.args)
        copied.__dict__.update(self.__dict__)
        return copied


def _is_sendable(part: Any) -> bool:
    if type(part) in (str, int, type(None)):
        return True
    try:
        pickle.dumps(part)
    except Exception:  # noqa: BLE001 - objects of any kind say so in any way
        return False
    return True


def _restored(kind: type[E], args: tuple[Any, ...]) -> E:
    """Return a fault with these arguments; its `__init__` may take others."""
    made = kind.__new__(kind, *args)
    made.args = args
    return made


E = TypeVar("E", bound=PolonaiseError)


def fresh(error: E) -> E:
    """Return a copy of the fault, to be raised in place of an object that is kept, with its cause and notes. An
    exception grows by a piece of traceback with each raise, and keeps alive whatever was being handled then."""
    copied = copy(error)
    copied.__cause__ = error.__cause__
    copied.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        copied.__notes__ = list(error.__notes__)
    return copied


def trace_of(error: BaseException) -> BaseException | None:
    """Return the error whose traceback is to be logged: None for one of Polonaise's, whose message says what to do."""
    return None if isinstance(error, PolonaiseError) else error


class InvariantViolated(Exception):
    """A mistake of our own code. The node that finds one stops; code that handles faults must not catch it."""


def invariant(holds: object, message: str) -> None:
    """Raise `InvariantViolated` unless this holds: what must if our own code is right, never what a peer said."""
    if not holds:
        raise InvariantViolated(message)


# ------------------------------------------------------------------ faults without a class


class Code(NamedTuple):
    """What a code without a class means, and whether to try again."""

    meaning: str
    retry: Retry = Retry.NEVER


CODES: Final = {
    "wrong_storage_node": Code(
        "A storage node has another name than the one by which it was asked for or started: an address or path is "
        "wrong. The message has both names, and what to do."
    ),
    "topic_exists": Code("The cluster has a topic of that name already. Nothing was changed."),
    "cluster_in_use": Code(
        "Servers of a cluster that is to be deleted or recovered run, or it was changed meanwhile: nothing was done.",
        Retry.AGAIN,
    ),
    "control_file_missing": Code(
        "A storage directory has partitions but no control file. To open them as empty would forget every promise."
    ),
    "cluster_file_damaged": Code(
        "The file that says what a cluster of this machine consists of (`cluster start`) can't be read."
    ),
    "partition_unavailable": Code(
        "The partition's files on this node can't be used, or not for this request. The message says why."
    ),
    "wrong_generation": Code(
        "A client and the owner that answers it have different generations of the partition: the owner has changed.",
        Retry.ELSEWHERE,
    ),
    "body_undecodable": Code("A query's decoder cannot read a transaction's data. The message names the transaction."),
    "mark_beyond_log": Code(
        "An append claims a client high-water mark that the log has not reached: nothing can have been built on that.",
        Retry.REBUILT,
    ),
    "address_gone": Code(
        "Nobody can connect to the address at which this process listens: its socket's directory is gone, or taken."
    ),
    "history_incomplete": Code(
        "The fragments of a store do not make up one log: ids are missing, or fragments contradict each other."
    ),
    "wrong_event_loop": Code(
        "A client or one of its receipts was used outside of the event loop that it was connected in."
    ),
    "wrong_thread": Code("A blocking method was called in the background thread, which would have to wait for itself."),
    "half_patched": Code(
        "gevent or eventlet has patched only a part of what threads and event loops stand on in this process."
    ),
    "servers_unavailable": Code(
        "None of the servers that a client knows of has answered. The message names each with its reason.", Retry.AGAIN
    ),
    "not_embedded_log": Code(
        "The directory holds something else than an embedded log, one without its marker, or an unfinished restore."
    ),
    "host_failed": Code(
        "The nodes of an embedded log stopped themselves in this process, or could not be started. They stop when a "
        "disk fails, when their directory is gone, or when our code made a mistake."
    ),
    "not_archived": Code(
        "Transactions to be trimmed, or asked for, are not, or not provably, in the fragments of the store in use."
    ),
    "bad_columns": Code(
        "A DataFrame's columns, or their types, are not those that the sink takes. The message names the column."
    ),
    "bad_row": Code("A row can't be appended as it is, such as one without data. The message says what to change."),
    "batch_unfinished": Code(
        "A sink was given a batch while an earlier one of the same application is published in part only. Write "
        "the earlier one again to finish it; the message names it. Or the batch itself was begun before, with "
        "rows for other partitions: repeat it with the same rows."
    ),
    "batch_overtaken": Code(
        "A sink was given a batch after a later one of the same application had been written. Batch numbers only go up."
    ),
    "staging_lost": Code("Rows that a sink had staged are gone before they were published."),
    "sink_state_damaged": Code(
        "The state of a sink (staged rows, a plan, its register) does not read as it was written."
    ),
    "spark_failed": Code(
        "Spark could not do what a job asked of it, or has ended. The message says why, as far as Spark tells."
    ),
}
"""The faults that only people tell apart: each is a `PolonaiseError` with this code, and has no class."""


def fault(code: str, message: str) -> PolonaiseError:
    """Return a fault with one of `CODES`."""
    made = PolonaiseError(message)
    made.code, made.retry = code, CODES[code].retry
    return made
