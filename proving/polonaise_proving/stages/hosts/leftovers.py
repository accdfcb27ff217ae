"""What a smoke test has on this machine outside of its directory, so that nothing of it stays behind.

A run that is killed by SIGKILL can't tidy up. A `watchdog` ends its processes, unless that was killed as well, but
nobody removes its namespaces. The next run does: of runs whose lock nobody holds any more, and nothing but what bears
their name.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from polonaise.errors import BadOption, DirectoryInUse, PolonaiseError
from polonaise.host.files import try_lock, with_own_errors
from polonaise_proving.stages.watchdog import kill_all

PREFIX: Final = "pln"
"""How the names of all namespaces and links of smoke tests begin; the id of the run follows."""
_NOTES: Final = ".notes"
_IP_S: Final = 30.0
_RUN: Final = re.compile(r"[0-9a-f]{4}")


class NoNetwork(PolonaiseError):
    """Network namespaces can't be made on this machine, or a link can't be cut or mended; the message says why."""

    code = "no_network"


def notes_directory() -> Path:
    """Return the directory in which this user's runs note that they live."""
    return Path(tempfile.gettempdir()) / f"polonaise-smoke-{os.geteuid()}"


class Notes:
    """The file that notes a run, locked for as long as the run lives."""

    def __init__(self, directory: Path | None = None) -> None:
        """Begin the notes of a new run, under an id that no other run has.

        Raises faults of the disk, and `BadOption` for a directory that others may have written to.
        """
        self._directory = directory or notes_directory()
        _checked(self._directory)
        self.run = secrets.token_hex(2)
        """The id of the run: four characters, because the names of links are short."""
        while (path := self._directory / f"{self.run}{_NOTES}").exists() or _has_network(self.prefix):
            self.run = secrets.token_hex(2)
        self.path = path
        """The lock of the run, which also names it in the environment of its processes."""
        self._lock = try_lock(str(path))

    @property
    def prefix(self) -> str:
        """How the names of this run's namespaces and links begin."""
        return f"{PREFIX}{self.run}"

    def tidy(self) -> None:
        """Remove what is left of this run, and then its notes; they stay if its network could not be removed."""
        _remove(self.path)
        self._lock.release()


def sweep(directory: Path | None = None) -> list[str]:
    """Remove what dead runs have left behind; return the ids of these runs.

    Raises `BadOption` for a directory that others may have written to, and faults of the disk.
    """
    swept = []
    directory = directory or notes_directory()
    _checked(directory)
    for path in sorted(directory.glob(f"*{_NOTES}")):
        if not _RUN.fullmatch(path.name.removesuffix(_NOTES)) or not stat.S_ISREG(path.lstat().st_mode):
            continue  # no run has written it
        try:
            lock = try_lock(str(path))
        except DirectoryInUse:
            continue  # that run lives
        _remove(path)
        lock.release()
        swept.append(path.name.removesuffix(_NOTES))
    return swept


def _checked(directory: Path) -> None:
    """Make the directory of notes if it is missing. Raises `BadOption` unless it is this user's alone.

    What its files name is killed and removed: nobody else may have a word in it.
    """
    if not os.path.lexists(directory):
        with_own_errors(str(directory), lambda: directory.mkdir(mode=0o700, exist_ok=True))
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise BadOption(
            f"{directory} is not a directory of this user alone (mode 700): look who made it and remove it, or set "
            "TMPDIR to another directory"
        )


def _remove(path: Path) -> None:
    """Remove what a run has, and then its notes; they stay if the run's network could not be removed."""
    kill_all(str(path))
    prefix = f"{PREFIX}{path.name.removesuffix(_NOTES)}"
    remove_namespaces(prefix)
    if not _has_network(prefix):
        path.unlink(missing_ok=True)


def _has_network(prefix: str) -> bool:
    return bool(names_of("netns", prefix) or names_of("link", prefix))


def remove_namespaces(prefix: str) -> None:
    """Kill all that runs in network namespaces with this prefix; remove these, and links with it."""
    for name in names_of("netns", prefix):
        for pid in _ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "delete", name)
    for name in names_of("link", prefix):
        _ip("link", "delete", name)


def names_of(what: str, prefix: str) -> list[str]:
    """Return the names of the `netns` or the `link`s of this machine that begin with this prefix."""
    listed = _ip("netns", "list") if what == "netns" else _ip("-brief", "link", "show")
    names = [line.split()[0].partition("@")[0] for line in listed.splitlines() if line.strip()]
    return [name for name in names if name.startswith(prefix)]


def _ip(*arguments: str) -> str:
    """Return what `ip` prints; nothing if it fails or is not there."""
    try:
        return run_ip(*arguments)
    except NoNetwork:
        return ""


def run_ip(*arguments: str) -> str:
    """Run `ip`, and return what it prints. Raises `NoNetwork`."""
    try:
        done = subprocess.run(
            ["ip", *arguments],
            capture_output=True, text=True, timeout=_IP_S, check=False,
            start_new_session=True,  # Ctrl-C is for the run, which tidies up by more of these
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNetwork(f"ip {' '.join(arguments)}: {error}") from error
    if done.returncode:
        raise NoNetwork(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
