"""Command-line input: parses arguments and standard input into values.

Invalid input raises `BadOption`, or `ValueError` in parsers that typer calls: typer prints the error's message.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polonaise.errors import BadOption, BodyTooLarge, DiskFailed, NotFound
from polonaise.redaction import redacted

if TYPE_CHECKING:
    from polonaise.client.protocol.locks import Lock
    from polonaise.terms import LockMode

ANY_ARGUMENTS: Final = {"ignore_unknown_options": True, "allow_extra_args": True}
"""The settings of a command that takes whatever is given, such as one that only refuses."""
STANDARD_INPUT: Final = "-"
LOG_ADDRESSES: Final = "polonaise://HOST:PORT,…, zookeeper://…, file:PATH or embedded:PATH"
"""The forms of a log's address, for helps."""
_ADDRESS: Final = re.compile(r"[a-z]+:")
_LOCK: Final = re.compile(r"([^\ud800-\udfff]+):(-?[0-9]{1,19})")
_PARTITION_ID: Final = re.compile(r"([0-9]{1,10})=(-1|[0-9]{1,19})")
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SECONDS_MAX: Final = 86_400.0
_PARTITIONS_MAX: Final = 100_000
_CHUNK_BYTES: Final = 65_536
_CHUNKS_AHEAD: Final = 16


def seconds_of(text: str) -> float:
    """Return a number of seconds to wait. Raises `ValueError` unless it is above 0 and at most a day."""
    seconds = float(text)
    if not 0.0 < seconds <= _SECONDS_MAX:
        raise ValueError(f"invalid number of seconds {text}: it must be above 0 and at most {_SECONDS_MAX:g}")
    return seconds


def partition_of(text: str) -> int:
    """Return the number of a partition. Raises `ValueError` unless the text is a number from 0 to 999,999,999."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"invalid partition {text!r}: give one number, from 0 on")
    return int(text)


class Numbers(tuple[int, ...]):
    """Several numbers of one argument. A class of its own, because help prints the name of an argument's type."""

    __slots__ = ()


def partitions_of(text: str) -> Numbers:
    """Return the numbers in `3`, `0-3` or `0-3,7`, in their order. Raises `ValueError` for other texts."""
    found: list[int] = []
    for part in text.split(","):
        first, to, last = part.partition("-")
        numbers = range(partition_of(first), partition_of(last if to else first) + 1)
        if not numbers or len(found) + len(numbers) > _PARTITIONS_MAX:
            raise ValueError(f"invalid partitions {part!r}: give the lower number first, and {_PARTITIONS_MAX} at most")
        found.extend(numbers)
    return Numbers(sorted(set(found)))


def bytes_of(text: str) -> bytes:
    """Return an argument as the bytes that were typed, also where those are not UTF-8."""
    return text.encode(errors="surrogateescape")


def address_of(argument: str | None, option: str | None) -> str:
    """Return the log's address: the argument, or else the option --log (by default POLONAISE_LOG). Or `BadOption`."""
    address = argument or option
    if not address:
        from polonaise.admin.configuration import not_read_here

        raise BadOption(
            f"which log? Give its address ({LOG_ADDRESSES}) first, with --log, or in POLONAISE_LOG"
            f"{not_read_here('log', 'POLONAISE_LOG')}"
        )
    return address


def listed(text: str) -> tuple[str, ...]:
    """Return the items of a list that is written as A,B,C; blanks around them are left out."""
    return tuple(item.strip() for item in text.split(",") if item.strip())


def address_and_data(arguments: list[str], option: str | None) -> tuple[str, str | None]:
    """Return the log's address and the body (None: not given) from the arguments of `append`.

    One argument alone is the body if --log or POLONAISE_LOG names the log, else the address. Raises `BadOption`.
    """
    if len(arguments) > 2:
        raise BadOption(
            f"too many arguments ({len(arguments)}): append takes a log and a body; quote a body with spaces"
        )
    if len(arguments) == 2:
        return arguments[0], arguments[1]
    if not arguments:
        return address_of(None, option), None
    if not option:
        return arguments[0], None
    if _ADDRESS.match(arguments[0]):
        raise BadOption(f"is {redacted(arguments[0])!r} the log or the body? Give both")
    return option, arguments[0]


def lock_of(text: str, mode: LockMode) -> Lock:
    """Return the lock that is written as NAME:ID. Raises `BadOption`."""
    from polonaise.client.protocol.locks import Lock

    match = _LOCK.fullmatch(text)
    if match is None or not -(2**63) <= int(match[2]) < 2**63:
        raise BadOption(f"invalid lock {text!r}: write NAME:ID, for example account:1; ID is an integer of 64 bits")
    return Lock(match[1], int(match[2]), mode)


def register_of(text: str) -> tuple[bytes, bytes]:
    """Return the key and the value of a register that is written as KEY=VALUE. Raises `BadOption`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise BadOption(f"invalid register {text!r}: write KEY=VALUE")
    return bytes_of(key), bytes_of(value)


def ids_of(texts: list[str]) -> dict[int, int]:
    """Return ids by partition, written as 0=100,1=57; -1 is before the first id. Raises `BadOption`."""
    ids: dict[int, int] = {}
    for text in ",".join(texts).split(","):
        match = _PARTITION_ID.fullmatch(text.strip())
        if match is None or int(match[2]) >= 2**63 or int(match[1]) >= 2**31:
            raise BadOption(f"invalid PARTITION=ID {text!r}: write 0=100, or 0=100,1=57")
        if int(match[1]) in ids:
            raise BadOption(f"partition {match[1]} is given twice in {','.join(texts)!r}: give one id of it")
        ids[int(match[1])] = int(match[2])
    return ids


def time_of(text: str) -> datetime | timedelta:
    """Return a time written in ISO 8601 with its zone, or how long ago it is meant to be (10m). Raises `BadOption`."""
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            length = timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
            _ = datetime.now(UTC) - length  # raises if there is no such time
            return length
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise BadOption(
            f"invalid time {text!r}: write 2026-01-31T12:00:00Z, or how long ago: 90s, 10m, 2h, 3d"
        ) from None
    if time.tzinfo is None:
        raise BadOption(
            f"time {text!r} has no time zone: write day, time and zone, such as 2026-01-31T12:00:00Z for UTC"
        )
    return time


async def one_body(body: bytes) -> AsyncGenerator[bytes, None]:
    """Yield this body alone."""
    yield body


async def whole(path: str) -> AsyncGenerator[bytes, None]:
    """Yield a file, or for `-` standard input, as one body. Raises `NotFound`, `DiskFailed`, and `BodyTooLarge`."""
    if path == STANDARD_INPUT:
        body = b""
        async for chunk in _standard_input():
            body += chunk
            _check_size(body)
    else:
        try:
            body = Path(path).read_bytes()  # noqa: ASYNC240 - one file, before anything else happens
        except FileNotFoundError:
            raise NotFound(f"no file {path!r}") from None
        except OSError as error:
            raise DiskFailed(f"can't read {path!r}: {error.strerror or error}") from error
    yield body


async def lines() -> AsyncGenerator[bytes, None]:
    """Yield the lines of standard input, each without its line end, which is LF or CR LF; the last may have none.

    A byte order mark, with which some editors begin a file, is no part of the first line. Raises `DiskFailed`, and
    `BodyTooLarge` with the number of the line.
    """
    incomplete, number = b"", 1
    async for chunk in _standard_input():
        *complete, incomplete = (incomplete + chunk).split(b"\n")
        for line in complete:
            yield _line(line, number)
            number += 1
        _line(incomplete, number)  # refused already while it is read, by the same rule
    if incomplete and (number > 1 or incomplete != codecs.BOM_UTF8):  # a mark alone is a file without a line
        yield _line(incomplete, number)


def _line(line: bytes, number: int) -> bytes:
    body = line.removesuffix(b"\r")
    if number == 1:
        body = body.removeprefix(codecs.BOM_UTF8)
    _check_size(body, number)
    return body


def _check_size(body: bytes, line: int | None = None) -> None:
    """Raise `BodyTooLarge` as soon as what was read of a body is too large: endless input would fill the memory."""
    from polonaise.client.protocol.draft import Limits, checked_body

    limits = Limits()
    try:
        checked_body(body, limits)
    except BodyTooLarge:
        if line is None:
            raise
        raise BodyTooLarge(  # without a number of bytes: the end of the line may not have been read
            f"line {line} is too long, and those before it may be in the log: a body has {limits.body_bytes_max} bytes "
            "at most; store it elsewhere and append its address"
        ) from None


async def _standard_input() -> AsyncGenerator[bytes, None]:
    """Yield standard input in chunks, read by a thread that nothing waits for: Ctrl-C ends the command at once."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)
    stopped = False
    if sys.stdin is None:
        # Standard input was closed when the process started, so descriptor 0 may belong to another file by now.
        raise DiskFailed("standard input can't be read: it is closed")
    descriptor = os.dup(0)

    def read() -> None:
        chunk: bytes | OSError = b"."
        try:
            while not stopped and chunk and isinstance(chunk, bytes):
                try:
                    chunk = os.read(descriptor, _CHUNK_BYTES)
                except OSError as error:
                    chunk = error
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
                room.acquire()
        except RuntimeError:
            pass  # the command has ended meanwhile, and its event loop with it
        finally:
            os.close(descriptor)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    try:
        while chunk := await chunks.get():
            if isinstance(chunk, OSError):
                raise DiskFailed(f"standard input can't be read: {chunk.strerror or chunk}") from chunk
            room.release()
            yield chunk
    finally:
        stopped = True
        room.release()
