"""How quickly does the player deliver? The experiments of the LogPlayer paper, beside bare programs and beside Kafka.

    python -m benchmarks.delivery [--seconds 10] [--runs 3] [--only delays,kafka] [--quick] [--write]

One server, three storage processes that sync each commit, the committing client, the player and the targets: each in
a process of its own, on one machine, the targets together in `--processes` ones. Transactions are appended in an open
loop, `--rate` a second; of 10 keys, each of 1 KB, every target gets the values of its own.

- `delays`: 2 to 20 targets, and 1 to 10 KB, over each of `--transports`; and the floor, bare programs that only send
  the same bytes (`gRPC`, and asyncio's streams for the link), also while the log has the same load beside them.
- `saturation`: how many deliveries there are a second at most.
- `stopped`: one target's process is stopped for `--stopped` seconds.
- `behind`: a target that lacks `--behind` entries catches up.
- `kafka`: the same transactions through Kafka, on the brokers of `benchmarks/peers`. Needs the figures of `delays`.

Commit is the time before the append; dispatch, that at which the route function is called; apply, that at which the
target has the entry. Figures are the medians of the runs. With `--write` they replace those in docs/performance.md,
and the plot. `--quick` is a smoke run of seconds: its figures mean little.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import uvloop
from benchmarks.deliveries.bare import BARE_GRPC, BARE_STREAMS
from benchmarks.deliveries.delays import Delays
from benchmarks.deliveries.form import Workload
from benchmarks.deliveries.kafka_rig import DESIGNS, PLAIN, TRANSACTIONS, TWO_LEVELS, KafkaRun, brokers, measured_kafka
from benchmarks.deliveries.page import (
    FLOOR_OF,
    PLOT,
    behind_lines,
    delays_lines,
    kafka_lines,
    saturation_lines,
    stopped_lines,
)
from benchmarks.deliveries.plot import plot
from benchmarks.deliveries.rig import DIRECT, GRPC, LINK, TRANSPORTS, Log, log_in, measured_delays
from benchmarks.deliveries.strain import behind, saturation, stopped_target
from benchmarks.document import DOCUMENT, arguments, machine, words, write_figures
from benchmarks.floor import echo_ms, fdatasync_ms
from benchmarks.loads import Missing
from benchmarks.peers.kafka import Kafka

T = TypeVar("T")

BY_TARGETS = [Workload(targets) for targets in (2, 5, 10, 20)]
BY_SIZE = [Workload(20, keys) for keys in (1, 2, 5, 10)]
LARGEST = Workload(20)
ORDER = [BARE_STREAMS, LINK, DIRECT, BARE_GRPC, GRPC]
"""The order of turns: each transport beside its floor."""
KAFKA = "kafka"
KAFKA_DESIGNS = {Workload(10): DESIGNS, Workload(20): (PLAIN, TRANSACTIONS), Workload(20, 1): (PLAIN, TRANSACTIONS)}
KAFKA_TRANSACTIONS = 1_000
"""The transactions of the design with two levels of topics, as in the paper; their delay grows with their number."""
QUICK = {"seconds": 1.0, "runs": 1, "stopped": 2.0, "behind": 5_000, "warming": 0.5}


class Benchmark:
    """The experiments, and their figures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.transports = _chosen(options.transports, TRANSPORTS)
        self.parts = _chosen(options.only, [*PARTS, KAFKA])
        self.by_targets, self.by_size = ([Workload(10)], [Workload(20, 1)]) if options.quick else (BY_TARGETS, BY_SIZE)
        self.delays: dict[Workload, dict[str, Delays]] = {}
        self.floor = ""
        self.pages: dict[str, list[str]] = {}
        """By part, the lines for the page."""

    async def run(self, directory: Path) -> None:
        """Run all parts that were asked for."""
        self.floor = f"One fdatasync {fdatasync_ms(directory):.3f} ms, one loopback echo {echo_ms():.3f} ms."
        print(self.floor, flush=True)
        on_log = [part for part in self.parts if part in PARTS]
        if on_log:
            async with log_in(directory / "log") as log:
                for part in on_log:
                    self._told(part, await PARTS[part](self, log))
        if KAFKA in self.parts:
            self._told(KAFKA, await self._beside_kafka(directory / "kafka"))

    def _told(self, part: str, lines: list[str]) -> None:
        self.pages[part] = [self._about(part), "", *lines]
        print("\n".join(["", *self.pages[part], ""]), flush=True)

    def _about(self, part: str) -> str:
        options = self.options
        names = ["seconds", "rate", "processes"] + (["runs"] if part == "delays" else [])
        names += [part] if part in ("stopped", "behind") else []
        names += ["transports"] if options.transports else []
        given = {name: getattr(options, name) for name in names}
        only = f"delays,{KAFKA}" if part == KAFKA else part
        runs = f"; medians of {options.runs} runs" if part == "delays" else ""
        command = f"`python -m benchmarks.delivery --only {only} {words(**given)} --write` {machine()}"
        return f"{command}{runs}. {self.floor}"

    def write(self) -> None:
        """Write the pages, and the plot, in their places in docs/."""
        for part, lines in self.pages.items():
            write_figures(f"delivery --only {part}", lines)
        if "delays" in self.pages:
            by_targets = {each: self.delays[each] for each in self.by_targets}
            by_size = {each: self.delays[each] for each in self.by_size}
            plot(by_targets, by_size, DOCUMENT.with_name(PLOT))

    # ------------------------------------------------------------------ the parts

    async def _delays(self, log: Log) -> list[str]:
        for workload in dict.fromkeys((*self.by_targets, *self.by_size)):
            self.delays[workload] = await self._delays_of(log, workload)
        return delays_lines(self.delays)

    async def _delays_of(self, log: Log, workload: Workload) -> dict[str, Delays]:
        """Measure each transport and its floor, by turns: a shared machine changes."""
        options = self.options
        floors = [FLOOR_OF[each] for each in self.transports if FLOOR_OF[each]]
        turns = [(name, name, False) for name in self.transports]
        turns += [(name, name, False) for name in floors]
        turns += [(f"{name}, beside the log at work", name, True) for name in floors if workload == LARGEST]
        runs: dict[str, list[Delays]] = {}
        for _ in range(options.runs):
            for label, name, beside in sorted(turns, key=lambda turn: ORDER.index(turn[1])):
                one = await measured_delays(
                    log, name, workload, options.rate, options.seconds, options.processes, beside=beside
                )
                runs.setdefault(label, []).append(one)
                print(f"{workload.targets} targets, {workload.kilobytes} KB, {label}: {one}", flush=True)
        return {label: Delays.medians(each) for label, each in runs.items()}

    async def _each(self, measure: Callable[[str], Awaitable[T]], names: Iterable[str]) -> dict[str, T]:
        figures = {}
        for name in names:
            figures[name] = await measure(name)
            print(f"{name}: {figures[name]}", flush=True)
        return figures

    async def _saturation(self, log: Log) -> list[str]:
        options = self.options
        return saturation_lines(
            await self._each(
                lambda name: saturation(log, name, LARGEST, options.seconds, options.processes), self.transports
            )
        )

    async def _stopped(self, log: Log) -> list[str]:
        options = self.options
        figures = await self._each(
            lambda name: stopped_target(
                log, name, LARGEST, options.rate, options.seconds, options.stopped, options.processes
            ),
            [each for each in self.transports if each != DIRECT],  # it has no process to be stopped
        )
        return stopped_lines(figures)

    async def _behind(self, log: Log) -> list[str]:
        options = self.options
        figures = await self._each(
            lambda name: behind(log, name, LARGEST, options.rate, options.seconds, options.behind, options.processes),
            self.transports,
        )
        return behind_lines(figures)

    async def _beside_kafka(self, directory: Path) -> list[str]:
        missing, version = "", ""
        workloads = [Workload(10)] if self.options.quick else list(KAFKA_DESIGNS)
        theirs: dict[Workload, dict[str, KafkaRun]] = {workload: {} for workload in workloads}
        try:
            with brokers(directory) as (kafka, version):
                for design in (PLAIN, TRANSACTIONS):
                    await self._through_kafka(kafka, design, workloads[0], self.options.warming, "warming")
                for workload, done in theirs.items():
                    for design in KAFKA_DESIGNS[workload]:
                        done[design] = await self._through_kafka(
                            kafka, design, workload, self.options.seconds, f"{workload.targets}-{workload.keys}"
                        )
                        what = f"{workload.targets} targets, {workload.kilobytes} KB, {design}"
                        print(f"{what}: {done[design]}", flush=True)
        except Missing as reason:
            missing = str(reason)
            print(f"Kafka: {missing}", flush=True)
        return kafka_lines(self.delays, theirs, version, missing)

    async def _through_kafka(
        self, kafka: Kafka, design: str, workload: Workload, seconds: float, label: str
    ) -> KafkaRun:
        options = self.options
        if design == TWO_LEVELS and not options.quick:
            seconds = KAFKA_TRANSACTIONS / options.rate
        label = f"{label}-{DESIGNS.index(design)}"
        return await measured_kafka(kafka, design, workload, options.rate, seconds, options.processes, label)


PARTS: dict[str, Callable[[Benchmark, Log], Awaitable[list[str]]]] = {
    "delays": Benchmark._delays,
    "saturation": Benchmark._saturation,
    "stopped": Benchmark._stopped,
    "behind": Benchmark._behind,
}
"""The parts that are measured on one log; then comes `KAFKA`."""


def _chosen(given: str, known: Iterable[str]) -> list[str]:
    """Return the names given with commas between, or all if none is; one that is not known ends the program."""
    names = {name.strip() for name in given.split(",") if name.strip()}
    if unknown := names - set(known):
        sys.exit(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    return [name for name in known if not names or name in names]


def read_options() -> argparse.Namespace:
    """Read the command line."""
    options = arguments(
        __doc__,
        seconds=10.0,
        runs=3,
        rate=100.0,
        processes=2,
        transports="",
        only="",
        stopped=300.0,
        behind=1_000_000,
        warming=20.0,
        directory="",
        quick=False,
    )
    if options.quick:
        vars(options).update(QUICK)
    return options


def main() -> None:
    options = read_options()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    benchmark = Benchmark(options)
    with (
        tempfile.TemporaryDirectory(prefix="polonaise-delivery-", dir=options.directory or None) as own,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(benchmark.run(Path(own)))
    if options.write:
        benchmark.write()


if __name__ == "__main__":
    main()
