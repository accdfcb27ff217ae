"""What a smoke test has on this machine outside of its directory, noted in a file, so that nothing of it stays behind.

A run that is killed by SIGKILL can't tidy up. Its processes end by themselves, because their standard input ends, but a
stopped one does not, and neither does a namespace. The next run removes these: of runs whose lock nobody holds any
more, and nothing but what they have noted or what bears their name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from polonaise.errors import DirectoryInUse
from polonaise.host.files import try_lock

PREFIX: Final = "pln"
"""How the names of all namespaces and links of smoke tests begin; the id of the run follows."""
_NOTES: Final = ".notes"


def notes_directory() -> Path:
    """Return the directory in which this user's runs note what they have."""
    return Path(tempfile.gettempdir()) / f"polonaise-smoke-{os.getuid()}"


class Notes:
    """The notes of one run, locked for as long as the run lives."""

    def __init__(self, directory: Path | None = None) -> None:
        """Raises faults of the disk."""
        self._directory = directory or notes_directory()
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self.run = secrets.token_hex(2)
        """The id of the run: four characters, because the names of links are short."""
        while (path := self._directory / f"{self.run}{_NOTES}").exists():
            self.run = secrets.token_hex(2)
        self._path = path
        self._lock = try_lock(str(path))

    @property
    def prefix(self) -> str:
        """How the names of this run's namespaces and links begin."""
        return f"{PREFIX}{self.run}"

    def started(self, pid: int) -> None:
        """Note a process."""
        with self._path.open("a") as file:
            file.write(f"{pid} {birth_of(pid)}\n")

    def tidy(self) -> None:
        """Remove what is left of this run, and its notes."""
        _remove(self._path)
        self._path.unlink(missing_ok=True)
        self._lock.release()


def sweep(directory: Path | None = None) -> list[str]:
    """Remove what dead runs have left behind; return the ids of these runs."""
    swept = []
    for path in sorted((directory or notes_directory()).glob(f"*{_NOTES}")):
        try:
            lock = try_lock(str(path))
        except DirectoryInUse:
            continue  # that run lives
        _remove(path)
        path.unlink(missing_ok=True)
        lock.release()
        swept.append(path.name.removesuffix(_NOTES))
    return swept


def birth_of(pid: int) -> str:
    """Return when a process was started, in ticks since the machine was; empty if there is none, or no /proc.

    A number may be another process's by now: the time of its start tells.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _remove(path: Path) -> None:
    for line in path.read_text().splitlines() if path.exists() else []:
        pid, _, birth = line.partition(" ")
        if birth and birth_of(int(pid)) == birth:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
    remove_namespaces(f"{PREFIX}{path.name.removesuffix(_NOTES)}")


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
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
