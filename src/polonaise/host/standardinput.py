"""Standard input as a sign of life of the parent: a child process stops when the parent has ended, even by kill -9."""

from __future__ import annotations

import os
import signal
import threading
from typing import Final

from polonaise.host.stopsignals import STOPS

STOP_S: Final = 12.0
"""So long a node has to stop once standard input has ended."""


def stop_when_stdin_ends(within_s: float = STOP_S) -> None:
    """Stop this process by SIGTERM when standard input ends, as its parent has, and by SIGKILL after `within_s`
    seconds.

    SIGTERM is handled by the event loop, and one that hangs handles nothing.
    """

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they are for whoever stops the node, and not for this thread
        try:
            while os.read(0, 4096):
                pass
        except OSError:  # a closed standard input, or a terminal that is gone, is an end, too
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(within_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="stdin", daemon=True).start()
