"""Nodes of an earlier version: its sources, taken from the history of git, run by this environment's Python."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from polonaise.node.local import ChildNode
from rigs.lacking import lacking
from rigs.programs import output_of, run_program

BEFORE: Final = "71bcac6d439a296b7d1d1bf332ed0d0109932542"
"""The commit of 0.1 as the upgrade promises it: the last one before clusters on many machines."""
PROJECT: Final = Path(__file__).parents[2]
TODAY: Final = PROJECT / "src"


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(PROJECT), *arguments], capture_output=True, check=False, timeout=60)


@functools.cache
def sources_of(commit: str) -> Path:
    """Return the `src` of a commit, unpacked once for this process.

    Skips the test without the history of git, as in an archive of the sources or a shallow clone, in CI as well: no
    package brings the history. A whole clone that lacks the commit fails in CI.
    """
    packed = _git("archive", commit, "src")
    if packed.returncode:
        why = f"no commit {commit[:7]} in this copy (git fetch --unshallow): {packed.stderr.decode().strip()[-200:]}"
        if _git("rev-parse", "--is-shallow-repository").stdout.strip() != b"false":
            pytest.skip(why)
        lacking(why)
    directory = Path(_scratch().name)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as sources:
        sources.extractall(directory / commit, filter="data")
    found = directory / commit / "src"
    where = [sys.executable, "-c", "import polonaise; print(polonaise.__file__)"]
    assert output_of(run_program(*where, environment={"PYTHONPATH": str(found)})).startswith(str(found))
    return found


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """The directory of all unpacked sources, which goes with this process."""
    return tempfile.TemporaryDirectory(prefix="polonaise-sources-")


@contextlib.asynccontextmanager
async def old_client(address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an application with the library of 0.1, which ends by itself when its input does."""
    old = await asyncio.to_thread(sources_of, BEFORE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", str(Path(__file__).with_name("oldclient.py")), address,
        env={"PYTHONPATH": str(old)}, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class NodeOfAVersion(ChildNode):
    """A node whose version changes while it is stopped; it keeps its address and its directory."""

    sources: Path = TODAY

    def launch(self) -> None:
        """Start the process with the present `sources`, and do not wait for it."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(self.sources))
            super().launch()

    def restart_with(self, sources: Path) -> None:
        """Stop the process as an operator does, and start it with other sources."""
        self.stop()
        assert self.exit_status == 0, self.log[-2000:]
        self.sources = sources
        self.start()
