"""Puts the mutation that the environment names into a process that starts: Python itself imports this module then."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from polonaise_proving.mutations.children import MUTATION, NOTES
from polonaise_proving.mutations.known import put_in
from polonaise_proving.mutations.mutation import MutationDoesNotApply


class _Noting:
    """Finds the changed module by the mutation's own finder, and leaves a file once this process has loaded it."""

    def __init__(self, finder: Any, notes: Path) -> None:
        self._finder = finder
        self._notes = notes

    def find_spec(self, *asked: Any) -> ModuleSpec | None:
        spec: ModuleSpec | None = self._finder.find_spec(*asked)
        if spec is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_note(module: ModuleType) -> None:
                execute(module)
                # At once, because most of these processes are killed. Those in namespaces may have equal process ids.
                (self._notes / f"{os.getpid()}-{os.urandom(8).hex()}").touch()

            loader.exec_module = execute_and_note
        return spec


if MUTATION in os.environ:
    try:
        put_in(os.environ[MUTATION])
    except MutationDoesNotApply as error:
        raise SystemExit(str(error)) from None  # any other error is only printed, and the process goes on without it
    if NOTES in os.environ:
        sys.meta_path[0] = _Noting(sys.meta_path[0], Path(os.environ[NOTES]))
