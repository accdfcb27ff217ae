"""Progress bars: show the progress of a job on the terminal, or nothing if standard error is no terminal."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from typing import Self


class ProgressBars:
    """One bar for each step of a job: a `polonaise.pipelines.progress.JobProgress`, and a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        shown = console if console is not None else Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), console=shown, disable=not shown.is_terminal)
        self._step: TaskID | None = None
        self._total = 0

    def begin(self, what: str, total: int) -> None:
        self._end()
        self._step, self._total = self._progress.add_task(what, total=total), total

    def done(self, parts: int) -> None:
        if self._step is not None:
            self._progress.update(self._step, completed=parts)

    def _end(self) -> None:
        if self._step is not None:
            self._progress.update(self._step, completed=self._total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self._end()
        self._progress.stop()
