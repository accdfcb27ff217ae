"""Directories of campaigns that keep nothing: each is removed at its campaign's end, or by a later campaign.

One that is killed by SIGKILL can't remove its own. The next one does: of those whose lock nobody holds any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from polonaise.errors import PolonaiseError
from polonaise.host.files import try_lock
from polonaise_proving.stages.watchdog import kill_all

PREFIX: Final = "polonaise-campaign-"
_LOCK: Final = "lock"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a directory for as long as the block runs, after removing those of campaigns that have died.

    A campaign's processes run under its name: see `watchdog.watched`.
    """
    sweep(Path(tempfile.gettempdir()))
    # Under another name until it is locked: nobody may take it for a dead campaign's meanwhile.
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    try:
        lock = try_lock(str(made / _LOCK))
        try:
            made = made.rename(made.with_name(made.name.removeprefix(".")))
            yield made
        finally:
            # After Ctrl-C nobody has waited for the watchdog, and what still writes would keep the directory.
            kill_all(made.name)
            shutil.rmtree(made, ignore_errors=True)
            lock.release()
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)  # it may not have come to the yield
        raise


def sweep(where: Path) -> list[Path]:
    """Remove what dead campaigns have left in a directory, processes included; return what was removed."""
    swept = []
    for path in sorted(where.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError, PolonaiseError):  # that campaign lives, or something else is as it was
            if path.is_symlink() or path.stat().st_uid != os.geteuid() or not (path / _LOCK).is_file():
                continue
            lock = try_lock(str(path / _LOCK))
            try:
                kill_all(path.name)
                shutil.rmtree(path)
                swept.append(path)
            finally:
                lock.release()
    return swept
