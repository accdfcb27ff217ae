"""The tables of docs/performance.md, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.deliveries import paper
from benchmarks.deliveries.bare import BARE_GRPC, BARE_STREAMS
from benchmarks.deliveries.delays import Delays, Spread
from benchmarks.deliveries.form import Workload
from benchmarks.deliveries.kafka_rig import PLAIN, TRANSACTIONS, TWO_LEVELS, KafkaRun
from benchmarks.deliveries.plot import Figures
from benchmarks.deliveries.rig import DIRECT, GRPC, LINK
from benchmarks.deliveries.strain import Behind, Saturation, Stopped
from benchmarks.document import table

FLOOR_OF = {DIRECT: "", LINK: BARE_STREAMS, GRPC: BARE_GRPC}
"""The bare program that sends what a transport sends."""
PLOT = "delivery-performance.png"
NOT_MEASURED = "not measured"


def delays_lines(figures: Figures) -> list[str]:
    """Return the table of the paper's experiments, with each transport's ratios to its floor."""
    rows = [
        _delays_row(workload, name, each, measured)
        for workload, measured in figures.items()
        for name, each in measured.items()
    ]
    columns = ["targets × KB", "by", *_columns("LogPlayer delay"), "÷ floor: median", "p99"]
    columns += [*_columns("apply delay"), "processor µs"]
    stated = [
        (each.what, each.section, each.told(each.mean), each.told(each.p99))
        for each in (paper.PLAYER_BY_TARGETS, paper.PLAYER_BY_SIZE, paper.APPLY)
    ]
    return [
        *table(columns, rows),
        "",
        *table(["the paper, on its machine", "section", "mean ms", "p99 ms"], stated),
        "",
        f"![LogPlayer delay and apply delay by number of targets and size of transactions]({PLOT})",
    ]


def _columns(what: str) -> list[str]:
    return [f"{what}: mean ms", "median", "p99"]


def _delays_row(workload: Workload, name: str, each: Delays, measured: Mapping[str, Delays]) -> list[str]:
    floor = measured.get(FLOOR_OF.get(name, ""))
    ratios = ["", ""]
    if floor is not None:
        ratios = [f"{each.player.median / floor.player.median:.2f}", f"{each.player.p99 / floor.player.p99:.2f}"]
    # A bare program has no log: what it has of an apply delay is the time until it has made the transaction.
    apply = _cells(each.apply) if name in FLOOR_OF else [""] * 3
    spent = f"{each.processor_us:,.0f}"
    return [f"{workload.targets} × {workload.kilobytes}", name, *_cells(each.player), *ratios, *apply, spent]


def _cells(spread: Spread) -> list[str]:
    return [f"{value:,.2f}" for value in (spread.mean, spread.median, spread.p99)]


def saturation_lines(figures: Mapping[str, Saturation]) -> list[str]:
    """Return the table of how many deliveries there can be."""
    rows = [
        (
            name, f"{each.written_per_second:,.0f}", f"{each.while_written:,.0f}", f"{each.from_log:,.0f}",
            f"{each.memory_mb:,.0f}",
        )
        for name, each in figures.items()
    ]  # fmt: skip
    columns = ["by", "transactions/s committed", "deliveries/s meanwhile", "deliveries/s of a log written before"]
    return table([*columns, "player's memory, MB"], rows)


def stopped_lines(figures: Mapping[str, Stopped]) -> list[str]:
    """Return the table of what one stopped target means."""
    rows = [
        (
            name, f"{each.stopped_s:g}", f"{each.before.player.p99:.2f}", f"{each.meanwhile.player.p99:.2f}",
            f"{each.meanwhile.player.p99 / each.before.player.p99:.2f}",
            f"{each.catching_up.player.p99 / each.before.player.p99:.2f}" if each.catching_up else "",
            f"{each.memory_before_mb:,.0f}", f"{each.memory_most_mb:,.0f}", f"{each.lacked:,}", f"{each.back_s:.1f}",
            f"{each.caught_up_s:.1f}",
        )
        for name, each in figures.items()
    ]  # fmt: skip
    columns = ["by", "stopped, s", "the others' p99 before, ms", "meanwhile", "ratio", "ratio while it catches up"]
    columns += ["player's memory before, MB", "at most after", "entries it lacked", "its first after, s"]
    return table([*columns, "all after, s"], rows)


def behind_lines(figures: Mapping[str, Behind]) -> list[str]:
    """Return the table of targets that lack much."""
    rows = [
        (
            name, f"{each.entries:,}", f"{each.per_second:,.0f}", f"{each.before.player.p99:.2f}",
            f"{each.meanwhile.player.p99:.2f}", f"{each.memory_most_mb:,.0f}",
        )
        for name, each in figures.items()
    ]  # fmt: skip
    columns = ["by", "entries it lacks", "entries/s", "the others' p99 before, ms", "meanwhile"]
    return table([*columns, "player's memory at most, MB"], rows)


def kafka_lines(
    ours: Figures, theirs: Mapping[Workload, Mapping[str, KafkaRun]], version: str, missing: str
) -> list[str]:
    """Return the tables of apply delays beside Kafka's; `missing` says why there are none of Kafka's, if so."""
    rows = []
    for workload, kafka in theirs.items():
        mine = ours.get(workload, {})
        for name in (LINK, GRPC):
            if name in mine:
                rows.append(_apply_row(workload, name, mine[name], "", mine.get(LINK)))
        for design in (PLAIN, TRANSACTIONS, TWO_LEVELS):
            if design in kafka:
                run = kafka[design]
                rows.append(_apply_row(workload, design, run.delays, f"{run.per_second:,.0f}", mine.get(LINK)))
            elif missing and design != TWO_LEVELS:
                rows.append([_place(workload), design, *[NOT_MEASURED] * 3, "", "", ""])
    stated = [
        (each.what, each.section, each.told(each.mean), each.told(each.p99))
        for each in (paper.APPLY, paper.APPLY_KAFKA_TRANSACTIONS, paper.APPLY_KAFKA_TWO_LEVELS)
    ]
    columns = ["targets × KB", "by", *_columns("apply delay"), "÷ link: mean", "÷ link: p99", "committed/s"]
    about = [f"{version}; topics on three brokers, which sync each message."] if version else []
    if missing:
        about = [f"Kafka is {NOT_MEASURED}: {missing}"]
    return [
        *about,
        "",
        *table(columns, rows),
        "",
        *table(["the paper, on its machines", "section", "mean ms", "p99 ms"], stated),
    ]


def _apply_row(workload: Workload, name: str, each: Delays, rate: str, link: Delays | None) -> list[str]:
    ratios = ["", ""]
    if link is not None:
        ratios = [f"{each.apply.mean / link.apply.mean:.1f}", f"{each.apply.p99 / link.apply.p99:.1f}"]
    return [_place(workload), name, *_cells(each.apply), *ratios, rate]


def _place(workload: Workload) -> str:
    return f"{workload.targets} × {workload.kilobytes}"
