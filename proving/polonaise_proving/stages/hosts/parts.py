"""The processes of a smoke test, each of which can be killed, stopped, continued and started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from polonaise.admin.zookeeper import ZooKeeperServer
from polonaise.node.local import ChildNode
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.record.journal import Follower
from polonaise_proving.stages.hosts.clientjob import END, ClientJob
from polonaise_proving.stages.processes import Program, last_words

START_S: Final = 60.0
"""Seconds that a node gets to start, because the machine may be busy."""


class Part(Protocol):
    """One process of a smoke test, such as a server or a client, through all its lives."""

    name: str

    @property
    def pid(self) -> int | None:
        """The id of the process that was started last; None before that, and after `kill`.

        For most parts it is None as well once `stop` or `ended` has found that the process has ended.
        """
        ...

    def start(self) -> None:
        """Start the process, and do not wait for it. Raises `OSError`."""
        ...

    def wait_serving(self) -> None:
        """Wait until the process that was started serves. Raises `StartFailed` or `ZooKeeperEnded`."""
        ...

    def kill(self) -> None:
        """Kill the process by SIGKILL, and wait for its end."""
        ...

    def stop(self) -> None:
        """Stop the process. A node stops gracefully, and is waited for; a client is told to end; an archiver is killed.

        Raises `GaveUp` if a storage node or a server does not end gracefully.
        """
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, such as SIGSTOP and SIGCONT."""
        ...

    def ended(self) -> str:
        """Return how the process has ended otherwise than it should have, with its last words; empty if it has not."""
        ...


class NodePart:
    """A storage node or a server."""

    def __init__(self, name: str, node: ChildNode) -> None:
        self.name = name
        self._node = node

    @property
    def pid(self) -> int | None:
        return self._node.pid

    def start(self) -> None:
        self._node.wait_ended()
        self._node.launch()

    def wait_serving(self) -> None:
        self._node.wait_listening(START_S)

    def kill(self) -> None:
        self._node.kill()

    def stop(self) -> None:
        if self._node.pid is None:
            return
        self._node.stop()
        if self._node.exit_status:
            raise GaveUp(
                f"{self.name} did not stop gracefully: exit status {self._node.exit_status}: "
                f"{last_words(self._node.log)}"
            )

    def signal(self, number: signal.Signals) -> None:
        self._node.ask_to_end(number)

    def ended(self) -> str:
        if not self._node.has_ended():
            return ""
        return f"exit status {self._node.exit_status}: {last_words(self._node.log)}"


class ZooKeeperPart:
    """A server of the ensemble, which the ensemble starts the first time."""

    def __init__(self, name: str, server: ZooKeeperServer) -> None:
        self.name = name
        self._server = server

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def start(self) -> None:
        self._server.start()

    def wait_serving(self) -> None:
        self._server.wait_serving(time.monotonic() + START_S)

    def kill(self) -> None:
        self._server.kill()

    def stop(self) -> None:
        self._server.stop()

    def signal(self, number: signal.Signals) -> None:
        self._server.signal(number)

    def is_leader(self) -> bool:
        """Whether the server leads the ensemble at this moment."""
        return self._server.is_leader()

    def ended(self) -> str:
        return "" if self._server.running else last_words(self._server.log)


class ClientPart(Program):
    """A client, which is told by its standard input what to do."""

    def __init__(self, job: ClientJob, log: Path, prefix: Sequence[str] = ()) -> None:
        super().__init__(job.name, log, prefix)
        self._job = job
        self._followers: list[Follower] = []
        for life in range(1, job.life + 1):  # of an earlier run in this directory
            self._followers.append(Follower(replace(job, life=life).journal))
        self._word = ""

    @property
    def life(self) -> int:
        """How often the client was started."""
        return self._job.life

    @property
    def acknowledged(self) -> int:
        """Acknowledged operations in all lives, by the journals as they were followed last."""
        return sum(follower.acknowledged for follower in self._followers)

    @property
    def failed(self) -> list[str]:
        """Operations whose append failed as none does because of a planned change, by the journals."""
        return [operation for follower in self._followers for operation in follower.failed]

    @property
    def is_open(self) -> bool:
        """Whether the present life has opened the log, by its journal as it was followed last."""
        return bool(self._followers) and self._followers[-1].opened

    @property
    def pending(self) -> bool:
        """Whether the present life has appends without an answer, by its journal as it was followed last."""
        return bool(self._followers) and bool(self._followers[-1].pending)

    @property
    def recent(self) -> Iterable[tuple[float, float]]:
        """When the operations that the present life has had acknowledged last were asked for, and acknowledged."""
        return self._followers[-1].recent if self._followers else ()

    @property
    def is_quiet(self) -> bool:
        """Whether the present life has no append without an answer, and makes no more."""
        return bool(self._followers) and self._followers[-1].quiet

    @property
    def is_through(self) -> bool:
        """Whether the present life has noted that it was fed all, and its process has ended with status 0."""
        return bool(self._followers) and self._followers[-1].ended and self.status == 0

    def follow(self) -> None:
        """Take in what the journals hold now."""
        for follower in self._followers:
            follower.follow()

    def start(self) -> None:
        self._job = replace(self._job, life=self._job.life + 1)
        self._followers.append(Follower(self._job.journal))
        self.launch(["polonaise_proving.work.bankclient", self._job.encode()])
        if self._word:
            self.say(self._word)

    def wait_serving(self) -> None:
        """Return at once: a client says in its journal when it has opened the log."""

    def stop(self) -> None:
        self.tell(END)

    def tell(self, word: str) -> None:
        """Tell the client what to do. After each start it is told the last word again."""
        self._word = word
        self.say(word)

    def ended(self) -> str:
        return "" if self.is_through else super().ended()


class ArchiverPart(Program):
    """The command that archives, run again and again."""

    def __init__(self, name: str, log: Path, prefix: Sequence[str], address: str, store: Path) -> None:
        super().__init__(name, log, prefix)
        self._arguments = ["polonaise.cli", "archive", "run", address, str(store), "--fragment-mib", "1", "--rest"]
        self.runs = 0
        """How many runs have ended with status 0, as far as `ended` has noticed."""

    def start(self) -> None:
        self.launch(self._arguments)

    def wait_serving(self) -> None:
        """Return at once: nobody waits for it."""

    def stop(self) -> None:
        self.kill()

    def ended(self) -> str:
        """Forget a run that has ended, and count one with status 0. Always empty: the next archives what is left."""
        if self.status is not None:
            self.runs += self.status == 0
            self.kill()
        return ""
