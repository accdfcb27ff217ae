"""Run a whole cluster of processes on this machine, watch them, and start again those that end by themselves."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from polonaise.admin import zookeeper
from polonaise.admin.asking import answered
from polonaise.admin.cluster import ClusterObserver, ClusterStatus, Wellness
from polonaise.admin.configuration import configuration_of
from polonaise.admin.localplan import LOCK, NODES_LOCK, ZOOKEEPER, LocalPlan, Wanted, forget_plan, plan_in, write_plan
from polonaise.admin.opening import opened_coordinator
from polonaise.errors import CoordinatorLost, DirectoryInUse, ExtraMissing, JavaMissing, PolonaiseError, WrongClusterKey
from polonaise.host.files import RealLock, try_lock, with_own_errors
from polonaise.host.stopsignals import StopFlag
from polonaise.node.local import ChildNode, LocalCluster, StartFailed
from polonaise.redaction import redacted
from polonaise.terms import counted

_LOOK_S: Final = 0.1
_ASK_S: Final = 2.0
_READY_S: Final = 60.0
_READY_PARTITION_S: Final = 0.1
"""Seconds after which a cluster that is not ready counts as failed, and those that each partition adds."""
_WELL_S: Final = 10.0
"""Seconds in which a cluster whose partitions are all ready may become well in everything else."""
_EARLIER_S: Final = 20.0
"""Seconds that the processes of an earlier run get to end: those that hang kill themselves after twelve."""
_BACKOFF_S_MIN: Final = 0.5
_BACKOFF_S_MAX: Final = 10.0
"""The shortest and the longest pause, in seconds, before a process is started again."""
_STEADY_S: Final = 30.0
"""Seconds that a process has to live so that the next pause is the shortest again."""
_LAST_LINE_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Told:
    """An event of a local cluster, or of a run of `polonaise smoke`, to be told to the user who started it."""

    event: str
    """What happened to the cluster: `starting`, `waiting`, `ready`, `not_ready`, `ended`, `restarted` or `stopping`."""
    text: str
    """The event in a line for people."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The event for programs."""


Tell = Callable[[Told], None]


class LocalClusterRun:
    """One run of a local cluster: `start`, `wait_ready` and `follow` it within a `with` block, whose end stops it."""

    def __init__(
        self,
        directory: Path,
        wanted: Wanted,
        tell: Tell,
        *,
        restart: bool = True,
        config: str | None = None,
        verbose: bool = False,
    ) -> None:
        """Start nothing yet. `tell` is called with each event.

        With `restart`, a process that ends by itself is started again. `config` is a file of settings for the nodes.
        With `verbose` they log what they do.
        """
        self.directory = directory.absolute()
        self._wanted = wanted
        self._tell = tell
        self._restart = restart
        self._config = config
        self._verbose = verbose
        self._stopped = StopFlag()
        self._locks: list[RealLock] = []
        self._cluster: LocalCluster | None = None
        self._watched: list[tuple[ChildNode, zookeeper.RestartPause]] = []
        self._is_new = True
        self._is_lost = False
        """Whether the coordinator has lost the cluster's values."""
        self._left_out: list[str] = []
        """The servers of an earlier run that this one does not have: nobody is to miss them."""
        self._began_s = time.monotonic()

    @property
    def cluster(self) -> LocalCluster:
        """The processes, once `start` has begun to start them."""
        assert self._cluster is not None
        return self._cluster

    def stop_soon(self) -> None:
        """Make all calls return soon; when called again, kill the processes. May be called by a signal handler."""
        if self._stopped.is_set() and self._cluster is not None:
            self._cluster.kill()
        self._stopped.set()

    def start(self) -> None:
        """Start all processes, as they were in an earlier run in this directory, or as a new cluster.

        Raises what is wrong with the directory or with what is wanted (`BadOption`, `DirectoryInUse`, `NotADirectory`,
        `cluster_file_damaged`, …), `JavaMissing` and `ExtraMissing` without ZooKeeper, and `AddressInUse`, with nothing
        changed; and `StartFailed`, after which a new cluster is removed again if none of its servers was started.
        Returns early after `stop_soon`, and without servers if the coordinator has lost its data: the storage nodes are
        needed to make it again.
        """
        plan = self._plan()
        if plan.coordinator == ZOOKEEPER:
            _check_zookeeper()
        path = str(self.directory)
        with_own_errors(path, partial(self.directory.mkdir, parents=True, exist_ok=True))
        if not self._lock():
            return
        plan = self._plan()  # again under the lock: another run may have made the cluster meanwhile
        plan.check_free()
        before = plan_in(self.directory)
        self._is_new = before is None
        if before is not None:
            self._left_out = [each for each in before.addresses.servers if each not in plan.addresses.servers]
        write_plan(self.directory, plan)
        self._cluster = LocalCluster(
            self.directory,
            partitions=plan.partitions,
            addresses=plan.addresses,
            fragments=configuration_of("server", self._config, {})["fragments"],
            verbose=self._verbose,
            config=self._config,
            apart=True,
            holding=[lock.fileno() for lock in self._locks[1:]],
        )
        self._tell_starting(plan)
        try:
            self._cluster.start(self._stopped.is_set)
        except StartFailed as error:
            self._is_lost = not self._is_new and isinstance(error.__cause__, CoordinatorLost)
            if self._is_lost:
                self._tell_lost(error)
            elif self._is_new and not self._cluster.servers:
                self._cluster.stop()
                forget_plan(self.directory)  # nobody could append: another start may want something else
            if not self._stopped.is_set() and not self._is_lost:
                raise
        self._watched = [
            (node, zookeeper.RestartPause(_BACKOFF_S_MIN, _BACKOFF_S_MAX, _STEADY_S)) for node in self._cluster.nodes
        ]

    def _tell_lost(self, error: StartFailed) -> None:
        nodes = ",".join(f"{name}={node.address}" for name, node in self.cluster.named.items())
        command = f"polonaise cluster recover --coordinator {self.cluster.coordinator} --storage {nodes}"
        text = (
            f"{error.text}\nthe storage nodes go on, without servers, so that the coordinator can be made again. Put "
            f"its directory back; or, in another terminal:\n  {command}\n(with the file of a backup, if there is "
            "one). Then interrupt this command, and start it again"
        )
        self._tell(Told("not_ready", text, {"why": error.text, "recover": command}))

    def _plan(self) -> LocalPlan:
        plan = plan_in(self.directory)
        return LocalPlan.new(self._wanted) if plan is None else plan.started_again(self._wanted)

    def _lock(self) -> bool:
        """Lock the directory, and wait until the processes of an earlier run have ended. False after `stop_soon`.

        These hold the second lock themselves: if the earlier program was killed, they need a moment to notice.
        """
        self._locks.append(try_lock(str(self.directory / LOCK)))
        until_s = time.monotonic() + _EARLIER_S
        told = False
        while True:
            try:
                self._locks.append(try_lock(str(self.directory / NODES_LOCK)))
                return True
            except DirectoryInUse:
                if time.monotonic() > until_s:
                    raise
                if self._stopped.wait(_LOOK_S):
                    return False
                if not told:
                    self._tell(Told("waiting", "waiting for the processes of an earlier run to end"))
                    told = True

    def _tell_starting(self, plan: LocalPlan) -> None:
        storage, servers = plan.addresses.storage, plan.addresses.servers
        lines = [
            f"cluster in {self.directory}: {counted(len(storage), 'storage node')}, "
            f"{counted(len(servers), 'server')}, {counted(plan.partitions, 'partition')}",
            f"  coordinator  {self.cluster.coordinator}",
            f"  servers      {', '.join(servers)}",
            f"  storage      {', '.join(storage)}",
            f"  logs         {self.directory}/*.log",
        ]
        fields = {
            "directory": str(self.directory),
            "coordinator": self.cluster.coordinator,
            "servers": list(servers),
            "storage": list(storage),
            "partitions": plan.partitions,
        }
        self._tell(Told("starting", "\n".join(lines), fields))

    def wait_ready(self) -> None:
        """Return when every partition is ready, or `stop_soon` was called. All else gets ten seconds to be well, too.

        If that takes more than a minute, or longer for many partitions, raises `StartFailed` for a new cluster. A
        cluster that existed before goes on: a partition may wait for its operator.
        """
        if self._stopped.is_set() or self._is_lost:
            return
        try:
            missing = asyncio.run(self._until_ready())
        except StartFailed as error:
            if self._is_new:
                raise
            self._tell(Told("not_ready", f"{error.text}; the cluster goes on, {self._look_at()}", {"why": error.text}))
            return
        if not self._stopped.is_set():
            took_s = time.monotonic() - self._began_s
            log = "polonaise://" + ",".join(node.address for node in self.cluster.servers)
            text = f"ready after {took_s:.1f} s; in another terminal:"
            text += f"\n  export POLONAISE_LOG={log}"
            text += f"\n  export POLONAISE_COORDINATOR={self.cluster.coordinator}"
            text += f"\nbut something is wrong: {missing}" if missing else ""
            fields = {
                "after_s": round(took_s, 1),
                "log": log,
                "coordinator": self.cluster.coordinator,
                "trouble": missing,
            }
            self._tell(Told("ready", text, fields))

    def _look_at(self) -> str:
        return f"look at it with: polonaise cluster status --coordinator {self.cluster.coordinator}"

    async def _until_ready(self) -> str:
        """Wait until every partition is ready, and within `_WELL_S` until all is well; return what is wrong then."""
        began_s = time.monotonic()
        until_s = began_s + _READY_S + _READY_PARTITION_S * self.cluster.partitions
        missing = ""
        async with opened_coordinator(self.cluster.coordinator) as (host, coordinator):
            observer = ClusterObserver(host, coordinator, self.cluster.coordinator, _ASK_S)
            while not self._stopped.is_set():
                try:
                    while self._left_out:
                        await coordinator.ask_first()
                        await answered(coordinator, coordinator.forget_server(self._left_out[0]), _ASK_S)
                        del self._left_out[0]
                    status = await observer.look()
                    missing = _missing(status)
                    patient = time.monotonic() < began_s + _WELL_S
                    if status.wellness is Wellness.WELL or (status.wellness is Wellness.DEGRADED and not patient):
                        return missing
                except PolonaiseError as error:
                    missing = str(error)
                self.look()
                if time.monotonic() > until_s:
                    raise StartFailed(f"the cluster was not ready after {until_s - began_s:.0f} s: {missing}")
                await asyncio.sleep(_LOOK_S)
        return missing

    def follow(self) -> None:
        """Watch the processes until `stop_soon`; with `restart`, start again those that end by themselves."""
        while not self._stopped.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Check the processes once: tell of those that have ended; with `restart`, start those whose pause is over."""
        now_s = time.monotonic()
        for node, pause in self._watched:
            if node.has_ended():
                pause_s = pause.ended(now_s)
                again = f"; it starts again in {pause_s:g} s" if self._restart else ""
                text = f"{node.name} has ended ({_how(node.exit_status)}){again}{_last_words(node)}"
                self._tell(Told("ended", text, {"node": node.name, "exit_status": node.exit_status}))
            elif node.pid is None and self._restart and now_s >= pause.until_s:
                pause.started(now_s)
                node.launch()
                self._tell(Told("restarted", f"{node.name} was started again", {"node": node.name, "pid": node.pid}))

    def __enter__(self) -> LocalClusterRun:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._cluster is not None:
                self._tell(Told("stopping", "stopping"))
        finally:  # telling fails if standard output is gone, and no process must stay behind then
            if self._cluster is not None:
                self._cluster.stop()
            for lock in self._locks:
                lock.release()


def _check_zookeeper() -> None:
    """Raise `JavaMissing` or `ExtraMissing`, with the way without it, if ZooKeeper can't be run here."""
    try:
        zookeeper.check_installed()
        try:
            import polonaise.coordination.zookeeper  # noqa: F401
        except ImportError as error:
            raise ExtraMissing(f"ZooKeeper needs {error.name}: pip install 'polonaise[zookeeper]'") from error
    except (JavaMissing, ExtraMissing) as error:
        raise type(error)(
            f"{error.text}. Or choose a coordinator in a directory, for one machine: --file-coordinator"
        ) from error


def _missing(status: ClusterStatus) -> str:
    """Return what is wrong with a cluster, three reasons at most."""
    if status.coordinator_trouble:
        return status.coordinator_trouble
    wrong = f"[{WrongClusterKey.code}]"
    others = [each.name for each in status.storage if each.trouble.startswith(wrong)]
    if others:  # each partition and server tells the same of each of them
        return (
            f"{wrong} the storage directories of {', '.join(others)} belong to another cluster than the coordinator's: "
            "put back those that belong here, or start the cluster in another directory. Keep them: they may be the "
            "only copy of a log"
        )
    return "; ".join(list(dict.fromkeys(status.troubles))[:3])


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _last_words(node: ChildNode) -> str:
    """Return the last line that a process logged if it ended with an error."""
    lines = node.log.strip().splitlines()
    if not lines or (node.exit_status or 0) <= 0:
        return ""
    return f": {redacted(lines[-1], _LAST_LINE_MAX)}"
