"""Runs a smoke test: starts everything, inflicts the faults of the schedule, and checks the history at the end."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polonaise
from polonaise.admin import zookeeper
from polonaise.admin.localcluster import Told
from polonaise.errors import BadOption, ExtraMissing, PolonaiseError
from polonaise.host.files import try_lock, with_own_errors
from polonaise.host.stopsignals import StopFlag
from polonaise_proving.faults.dealing import TOLD_HOLD_S, FaultStep, digest_of, schedule_of
from polonaise_proving.faults.hostfaults import befalls, begin, end
from polonaise_proving.judges.histories import BrokenPromise, violations
from polonaise_proving.judges.told import TOLD_S, is_to_be_told, lines_in, untold
from polonaise_proving.mutations.children import loads_in, put_into_children
from polonaise_proving.mutations.known import LISTS_MUTATIONS, MUTATIONS
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.record.faultkinds import KINDS, Fault, FaultKind, NodeGroup, Way, nodes_of
from polonaise_proving.record.history import LineKind
from polonaise_proving.scenarios.running import ended_if_hanging
from polonaise_proving.scenarios.smoke.report import FILE, JUDGED, PLANNED, STATUS, SmokeReport, this_version
from polonaise_proving.stages.hosts.clientjob import GO, PAUSE, QUIET
from polonaise_proving.stages.hosts.hosts import Hosts, LoopbackHosts, NamespaceHosts, namespaces_possible
from polonaise_proving.stages.hosts.leftovers import NoNetwork, Notes, sweep
from polonaise_proving.stages.hosts.town import PARTITIONS, Town, free_ports
from polonaise_proving.stages.watchdog import watched

NAMESPACES: Final = "namespaces"
LOOPBACK: Final = "loopback"
RATE: Final = 500.0
"""The most operations that each client begins in a second, on average."""
PROGRESS_S: Final = 60.0
"""Seconds without an acknowledged append, while the clients are to append, after which the run has failed: no fault
takes a quorum away."""
_WELL_S: Final = 120.0
"""Seconds that the clients get to work again after a step, and then the cluster to be well again; and at the start."""
_THROUGH_S: Final = 180.0
"""Seconds that the clients get to learn all fates, and then as many again to apply all of the log."""
_ARCHIVE_EVERY_S: Final = 5.0
_ARCHIVE_S: Final = 120.0
_LOOK_S: Final = 0.05
_STARTING: Final = (Way.KILL, Way.WIPE, Way.END)
"""The ways at whose end a process is started again."""
_TROUBLE_S: Final = 0.3
"""Seconds between two looks at whether the cluster is well, or at what its status tells."""
_STATUS_S: Final = 1.5
"""The time limit of each wait of a look at the cluster's status, in seconds."""

Tell = Callable[[Told], None]


class Interrupted(Exception):
    """`stop_soon` was called."""


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """What a smoke test is asked for."""

    directory: Path
    transactions: int
    seed: int
    hosts: str = ""
    """`namespaces` or `loopback`; empty for namespaces where these are possible, and else loopback."""
    mutation: str = ""
    """A mutation that all processes of the run have, which it has to find; empty for none."""
    faults: str = ""
    """The kinds of faults that happen, with commas between; empty for all that the hosts can have."""

    def kinds(self) -> frozenset[FaultKind]:
        """Return the kinds of faults that may happen. Raises `BadOption` for a name that is of no kind."""
        named = [each.strip() for each in self.faults.split(",") if each.strip()]
        if unknown := [each for each in named if each not in set(FaultKind)]:
            raise BadOption(f"there is no fault {', '.join(unknown)}; --faults takes {', '.join(FaultKind)}")
        return frozenset(map(FaultKind, named or FaultKind))

    def command(self, hosts: str) -> str:
        """Return the command that does the same again, on hosts of this kind."""
        directory = shlex.quote(str(self.directory))
        return (
            f"polonaise smoke --transactions {self.transactions} --seed {self.seed} --directory {directory} "
            f"--hosts {hosts}"
            + (f" --mutation {self.mutation}" if self.mutation else "")
            + (f" --faults {shlex.quote(self.faults)}" if self.faults else "")
        )


class SmokeRun:
    """One run, from its start, or from where it was interrupted, to its report."""

    def __init__(self, options: SmokeOptions, tell: Tell) -> None:
        """Start nothing yet. `tell` is called with each change of state."""
        self._options = options
        self._tell = tell
        self._directory = options.directory.absolute()
        self._stopped = StopFlag()
        self._began_s = time.monotonic()
        self._acknowledged = 0
        self._acknowledged_s = 0.0
        self._faulty: set[str] = set()
        self._archive_s = 0.0
        self._word = PAUSE
        """What `_tell_clients` has told last. `PAUSE` before that, because new clients wait for their first word."""
        self._report: SmokeReport
        self._town: Town
        self._notes: Notes
        self._goes_on: Callable[[], None] = lambda: None

    @property
    def _notes_of_mutation(self) -> Path:
        return self._directory / "mutated"

    def stop_soon(self) -> None:
        """End the run soon; it can be resumed. May be called by a signal handler."""
        self._stopped.set()

    def run(self) -> SmokeReport | None:
        """Run to the end, and return the report, which is in the directory too; None after `stop_soon`.

        Afterwards nothing is left of the run but its directory. What fails while the cluster runs, faults of the disk
        included, is in the report, also if that can't be written. Raises `BadOption`, `DirectoryInUse`, `JavaMissing`,
        `ExtraMissing`, `NoNetwork`, `AddressInUse`, and faults of the disk, some of them as `OSError`.
        """
        if self._options.mutation not in ("", *MUTATIONS):
            raise BadOption(f"unknown mutation {self._options.mutation!r}: {LISTS_MUTATIONS} names them")
        self._options.kinds()
        zookeeper.check_installed()
        _check_extras()
        with_own_errors(str(self._directory), lambda: self._directory.mkdir(parents=True, exist_ok=True))
        SmokeReport.begun(self._directory)  # a directory of something else is refused before it has a lock
        lock = try_lock(str(self._directory / "lock"))
        try:
            resumed = self._resumed()
            for swept in sweep():
                self._say("swept", f"removed what run {swept} had left behind")
            self._notes = Notes()
            try:
                with (
                    ended_if_hanging() as self._goes_on,
                    watched(str(self._notes.path)),
                    put_into_children(self._options.mutation, self._notes_of_mutation),
                ):
                    return self._on_hosts(resumed)
            finally:
                self._notes.tidy()
        finally:
            lock.release()

    def _resumed(self) -> SmokeReport | None:
        """Return the unfinished run in the directory; None for a new one, for which a finished one is removed.

        Raises `BadOption` for an unfinished run of other parameters, and what `SmokeReport.begun` raises.
        """
        found = SmokeReport.begun(self._directory)
        if found is None:
            return None
        if found.finished:
            for path in self._directory.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            return None
        wanted = self._options
        begun = SmokeOptions(wanted.directory, found.transactions, found.seed, found.hosts, found.mutation)
        if wanted not in (begun, replace(begun, hosts="")):
            raise BadOption(
                f"{self._directory} holds an unfinished run: resume it with {begun.command(found.hosts)}, or name "
                "another directory"
            )
        return found

    def _on_hosts(self, resumed: SmokeReport | None) -> SmokeReport | None:
        kind = resumed.hosts if resumed is not None else self._options.hosts or _possible()
        if kind == NAMESPACES and (why := namespaces_possible()):
            raise NoNetwork(f"no network namespaces here: {why}; or run on loopback: --hosts loopback")
        nodes = [node for group in NodeGroup for node in nodes_of(group)]
        network = "" if resumed is None else resumed.network
        hosts: Hosts = NamespaceHosts(self._notes.prefix, nodes, network) if kind == NAMESPACES else LoopbackHosts()
        try:
            options = self._options
            steps = schedule_of(options.seed, options.transactions, self._kinds(hosts))
            schedule, command = digest_of(steps), options.command(kind)
            if resumed is None:
                started = datetime.now(UTC).isoformat(timespec="seconds")
                self._report = SmokeReport(
                    command, options.seed, options.transactions, kind, started, hosts.network, free_ports(hosts),
                    schedule=schedule, steps=len(steps), mutation=options.mutation,
                )  # fmt: skip
            elif resumed.schedule != schedule:
                raise BadOption(
                    f"{self._directory} holds an unfinished run by another version, or with other --faults: resume it "
                    "as it was begun, or name another directory"
                )
            else:
                self._report = resumed
                resumed.interruptions += 1
                resumed.command, resumed.failure = command, ""
                # The others are found again: the history is checked anew.
                resumed.violations = [each for each in resumed.violations if each.promise in JUDGED]
            self._report.commit = this_version()
            self._keep()
            lives = {name: _lives(self._directory, name) for name in nodes_of(NodeGroup.CLIENT)}
            self._town = Town(self._directory, hosts, self._report.ports, lives, options.seed, RATE)
            return self._in_town(steps)
        finally:
            hosts.close()

    def _kinds(self, hosts: Hosts) -> frozenset[FaultKind]:
        """Return the kinds of faults of this run. Raises `BadOption` if its hosts can have none of them."""
        kinds = self._options.kinds() & frozenset(hosts.kinds)
        if not kinds:
            raise BadOption(
                f"only hosts with a network of their own can have the faults {self._options.faults}: run with --hosts "
                "namespaces, or name other faults"
            )
        return kinds

    def _keep(self) -> None:
        """Keep the report, by which the run can be resumed. Raises faults of the disk."""
        path = self._directory / FILE
        with_own_errors(str(path), lambda: self._report.keep(path))

    def _in_town(self, steps: tuple[FaultStep, ...]) -> SmokeReport | None:
        report = self._report
        before_s = report.duration_s
        try:
            try:
                self._work(steps)
            finally:
                report.duration_s = round(before_s + time.monotonic() - self._began_s, 1)
                self._say("stopping", "stopping")
                self._town.kill()
            report.finished = True
        except (Interrupted, PolonaiseError, OSError) as error:
            if self._stopped.is_set():  # what was being stopped may fail in any way
                self._keep()
                far = f"after {report.done} of {len(steps)} steps"
                self._say("interrupted", f"interrupted {far}; the same command resumes it")
                return None
            report.failure = str(error)
            # Any other trouble is the machine's, such as a full disk: the run goes on once that is mended.
            report.finished = isinstance(error, GaveUp)
        report.archive_runs = self._town.archiver.runs
        report.mutation_loads = loads_in(self._notes_of_mutation)
        try:
            (self._directory / "report.txt").write_text(report.text() + "\n")
            self._keep()  # last: a run without its report is not finished, and can be resumed
        except (PolonaiseError, OSError) as error:
            report.failure = "; ".join(filter(None, [report.failure, f"the report can't be written: {error}"]))
        return report

    def _work(self, steps: tuple[FaultStep, ...]) -> None:
        town, report = self._town, self._report
        self._say("starting", f"{report.hosts} in {self._directory}: {len(steps)} steps, schedule {report.schedule}")
        town.start(self._check_wanted)
        self._say("started", f"started: {', '.join(part.name for part in town.parts)}")
        self._until(lambda: all(client.is_open for client in town.clients), "the clients open the log", _WELL_S)
        self._until_well()
        for step in steps[report.done :]:
            self._until_acknowledged(step.at)
            failed = sum(len(client.failed) for client in town.clients)
            self._do(step)
            following = steps[step.number + 1].at if step.number + 1 < len(steps) else report.transactions
            self._recover(following)
            self._judge_planned(step, failed)
            report.done += 1
            self._keep()
        self._until_acknowledged(report.transactions)
        self._finish()

    def _do(self, step: FaultStep) -> None:
        """Inflict the faults of a step, and end them after its time, and once the cluster's status has told of them."""
        step = step._replace(faults=tuple(befalls(self._town, fault) for fault in step.faults))
        self._faulty = {name for fault in step.faults for name in (fault.node, fault.other) if name}
        inflicted = []
        for fault in step.faults:
            self._say("fault", f"step {step.number}: {fault}, for {step.hold_s:g} s")
            if begin(self._town, fault):
                inflicted.append(fault)
                _count(self._report.faults, fault.kind)
        until_s = time.monotonic() + step.hold_s
        if step.hold_s >= TOLD_HOLD_S:
            self._until_told(step, inflicted)
        self._until(lambda: time.monotonic() >= until_s, "time passes", step.hold_s + PROGRESS_S)
        for fault in step.faults:
            end(self._town, fault)
            self._check_wanted()
        for fault in step.faults:
            if KINDS[fault.kind].way in _STARTING:
                self._town.part(fault.node).wait_serving()
        self._faulty = set()
        self._say("ended", f"step {step.number}: over")

    def _until_told(self, step: FaultStep, faults: Sequence[Fault]) -> None:
        """Look at the cluster's status until it tells of these faults; note it if that takes longer than `TOLD_S`."""
        judged = [fault for fault in faults if is_to_be_told(fault)]
        if not judged:
            return
        for fault in judged:
            _count(self._report.judged, fault.kind)
        began_s = time.monotonic()
        while True:
            next_s = time.monotonic() + _TROUBLE_S
            status = asyncio.run(self._town.status(_STATUS_S))
            wrong = untold(faults, status, self._town.addresses)
            # A look that began in time counts: how long it takes is the operator's `--timeout`, and the machine's load.
            if not wrong or time.monotonic() >= began_s + TOLD_S:
                break
            self._say("untold", f"step {step.number}: not yet after {time.monotonic() - began_s:.1f} s: {wrong}")
            self._look()
            time.sleep(max(0.0, next_s - time.monotonic()))
        named = ", ".join(map(str, faults))
        said = "; ".join(lines_in(status)) or "all is well"
        if wrong:
            self._note(STATUS, f"step {step.number}: {named}: after {TOLD_S:g} s {wrong}. It said: {said}")
            return
        took_s = round(time.monotonic() - began_s, 1)
        for fault in judged:
            self._report.told_s[fault.kind] = max(took_s, self._report.told_s.get(fault.kind, 0.0))
        self._say("told", f"step {step.number}: the status tells of {named} after {took_s:g} s: {said}")

    def _note(self, promise: str, text: str) -> None:
        """Note a promise that was broken while the run goes on."""
        self._report.violations.append(BrokenPromise(promise, text))
        self._say("broken", f"BROKEN {promise}: {text}")

    def _judge_planned(self, step: FaultStep, failed: int) -> None:
        """Note the appends that failed in a step of planned changes; `failed` had before it."""
        operations = [operation for client in self._town.clients for operation in client.failed]
        if step.is_planned and len(operations) > failed:
            named = f"{', '.join(map(str, step.faults))} failed {len(operations) - failed} appends"
            self._note(PLANNED, f"step {step.number}: {named}, such as {operations[-1]}")

    def _recover(self, following: int) -> None:
        """Wait until each client has appends acknowledged again, and the cluster is well.

        In the second of the two waits, the clients pause if they come to where the next step begins.
        """
        before = {client.name: client.acknowledged for client in self._town.clients}
        self._until(
            lambda: all(client.acknowledged > before[client.name] for client in self._town.clients),
            "each client has an append acknowledged again", _WELL_S,
        )  # fmt: skip
        self._until_well(following)

    def _until_acknowledged(self, count: int) -> None:
        """Let the clients append until so many transactions are acknowledged in all."""
        self._tell_clients(GO)
        self._until(lambda: self._acknowledged >= count, f"{count} transactions are acknowledged", None)

    def _until_well(self, pause_at: int | None = None) -> None:
        began_s, asked_s, trouble = time.monotonic(), 0.0, ""

        def well() -> bool:
            nonlocal asked_s, trouble
            if pause_at is not None and self._acknowledged >= pause_at:
                self._tell_clients(PAUSE)
            now_s = time.monotonic()
            if now_s < asked_s + _TROUBLE_S:
                return False
            trouble = asyncio.run(self._town.trouble())
            asked_s = time.monotonic()
            return not trouble

        self._until(well, lambda: f"the cluster is well again: {trouble}", _WELL_S)
        self._say("well", f"all is well, {time.monotonic() - began_s:.1f} s later")

    def _finish(self) -> None:
        """End the clients and the archive, and check the history."""
        town = self._town
        self._tell_clients(QUIET)
        self._until(lambda: all(client.is_quiet for client in town.clients), "the clients know all fates", _THROUGH_S)
        for client in town.clients:
            client.stop()
        self._until(
            lambda: all(client.is_through for client in town.clients), "the clients come to their end", _THROUGH_S
        )
        self._until_well()
        runs = town.archiver.runs
        self._archive_s = 0.0
        # Two more: the one under way may have begun before the last transaction was committed.
        self._until(lambda: town.archiver.runs >= runs + 2, "the archive is complete", _ARCHIVE_S)
        self._faulty.add(town.archiver.name)
        town.archiver.kill()
        self._say("checking", "all is quiet; checking the history")
        asyncio.run(self._check())
        town.stop()

    async def _check(self) -> None:
        # Imported here, because it needs extras of which the command tells by name.
        from polonaise_proving.record.evidence import history_of

        report, digest, counts = self._report, hashlib.sha256(), Counter[str]()
        broken: list[BrokenPromise] = []
        committed = 0
        async with polonaise.connect(self._town.log) as log:
            for partition in range(PARTITIONS):
                history = await history_of(self._town, log, partition)
                broken += violations(history)
                committed += len(history.entries)
                digest.update(history.digest().encode())
                counts.update(line.kind for line in history.lines)
                self._say("checked", f"partition {partition}: {len(history.entries):,} transactions")
                self._check_wanted()
        report.violations += broken
        report.history, report.committed = digest.hexdigest(), committed
        names = {
            LineKind.ASK: "asked",
            LineKind.ACK: "acknowledged",
            LineKind.REFUSED: "refused",
            LineKind.UNKNOWN: "unknown",
        }
        report.operations = {name: counts[kind] for kind, name in names.items()}

    # ------------------------------------------------------------------ watching

    def _tell_clients(self, word: str) -> None:
        if word != self._word:
            self._word = word
            self._acknowledged_s = time.monotonic()
            for client in self._town.clients:
                client.tell(word)

    def _until(self, condition: Callable[[], bool], what: str | Callable[[], str], within_s: float | None) -> None:
        """Watch everything until the condition is true.

        Raises `GaveUp` if that takes more than `within_s` seconds, if no append is acknowledged for `PROGRESS_S`
        seconds although the clients were told to go, or if a process ends by itself; `Interrupted` after `stop_soon`.
        """
        began_s = time.monotonic()
        while True:
            self._look()
            if condition():
                return
            if within_s is not None and time.monotonic() > began_s + within_s:
                text = what if isinstance(what, str) else what()
                raise GaveUp(f"not within {within_s:g} s: {text}")
            time.sleep(_LOOK_S)

    def _look(self) -> None:
        """Look once at all processes, and at what was acknowledged; start the archiver when it is due."""
        self._goes_on()
        self._check_wanted()
        town, now_s = self._town, time.monotonic()
        for client in town.clients:
            client.follow()
        acknowledged = sum(client.acknowledged for client in town.clients)
        if acknowledged != self._acknowledged or self._word != GO:
            self._acknowledged, self._acknowledged_s = acknowledged, now_s
        elif now_s > self._acknowledged_s + PROGRESS_S:
            raise GaveUp(f"no append was acknowledged for {PROGRESS_S:g} s, with a quorum up and reachable")
        for part in town.parts:
            if part.name not in self._faulty and part.pid is not None and (how := part.ended()):
                raise GaveUp(f"{part.name} has ended by itself: {how}")
        if town.archiver.pid is None and town.archiver.name not in self._faulty and now_s > self._archive_s:
            town.archiver.start()
            self._archive_s = now_s + _ARCHIVE_EVERY_S

    def _check_wanted(self) -> None:
        """Raise `Interrupted` after `stop_soon`."""
        if self._stopped.is_set():
            raise Interrupted

    def _say(self, event: str, text: str) -> None:
        after_s = time.monotonic() - self._began_s
        fields = {"after_s": round(after_s, 2), "acknowledged": self._acknowledged, "text": text}
        self._tell(Told(event, f"{after_s:8.2f} s  {self._acknowledged:>9,}  {text}", fields))


def _possible() -> str:
    """Return the best kind of hosts that is possible here: namespaces, or else loopback."""
    return LOOPBACK if namespaces_possible() else NAMESPACES


def _lives(directory: Path, name: str) -> int:
    """Return the number of the last start of a client that left a journal in this directory; 0 for none."""
    return max((int(path.name.split(".")[1]) for path in directory.glob(f"{name}.*.journal")), default=0)


def _check_extras() -> None:
    """Raise `ExtraMissing` if a library is missing that the run needs."""
    try:
        import polonaise.coordination.zookeeper
        import polonaise.fragments.history
        import polonaise.views.sql  # noqa: F401
    except ImportError as error:
        raise ExtraMissing(
            f"the smoke test needs {error.name}: pip install 'polonaise[fragments,spark,sql,zookeeper]'"
        ) from error


def _count(counts: dict[str, int], kind: FaultKind) -> None:
    counts[kind] = counts.get(kind, 0) + 1
