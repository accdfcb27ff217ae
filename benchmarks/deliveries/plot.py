"""The plot of docs/performance.md: delays by number of targets and by size, as in the paper's figures 9 and 10."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.deliveries.bare import BARE_GRPC, BARE_STREAMS
from benchmarks.deliveries.delays import Delays
from benchmarks.deliveries.form import Workload
from benchmarks.deliveries.paper import APPLY, PLAYER_BY_SIZE, PLAYER_BY_TARGETS, Stated
from benchmarks.deliveries.rig import DIRECT, GRPC, LINK, TRANSPORTS

COLOURS = {DIRECT: "#2a9d8f", LINK: "#2f6f9f", GRPC: "#b8651b", BARE_STREAMS: "#9bb8cc", BARE_GRPC: "#dcb48f"}
PAPER = "#c0392b"

Figures = Mapping[Workload, Mapping[str, Delays]]
"""By workload and transport or floor, the delays."""


def plot(by_targets: Figures, by_size: Figures, path: Path) -> None:
    """Draw two rows, LogPlayer delay and apply delay, over the number of targets and over the size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    columns: Sequence[tuple[Figures, Callable[[Workload], int], str, Stated]] = [
        (by_targets, lambda each: each.targets, "targets, 10 keys of 1 KB", PLAYER_BY_TARGETS),
        (by_size, lambda each: each.kilobytes, "KB of a transaction, 20 targets", PLAYER_BY_SIZE),
    ]
    for column, (figures, place, label, stated) in enumerate(columns):
        player, apply = axes[0][column], axes[1][column]
        _lines(player, figures, place, lambda each: each.player, COLOURS)
        _lines(apply, figures, place, lambda each: each.apply, TRANSPORTS)  # the bare programs have no log
        for each in (player, apply):
            each.set_xticks([place(workload) for workload in figures])
        _paper(player, stated)
        if column == 0:
            _paper(apply, APPLY)
        player.set_title("LogPlayer delay (apply − dispatch)")
        apply.set_title("apply delay (apply − commit)")
        apply.set_xlabel(label)
    for each in axes.flat:
        each.set_ylabel("ms")
        each.set_yscale("log")
        each.grid(visible=True, which="both", axis="y", color="#e4e4e4", linewidth=0.6)
        each.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(fontsize=8, frameon=False, ncols=2)
    figure.suptitle("full: mean; dashed: p99; red: what the paper states of its own machine", fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _lines(
    axes: Any,
    figures: Figures,
    place: Callable[[Workload], int],
    part: Callable[[Delays], Any],
    names: Iterable[str],
) -> None:
    for name in names:
        colour = COLOURS[name]
        points = [(place(each), part(delays[name])) for each, delays in figures.items() if name in delays]
        xs = [x for x, _ in points]
        axes.plot(xs, [spread.mean for _, spread in points], "o-", color=colour, label=name, markersize=4)
        axes.plot(xs, [spread.p99 for _, spread in points], "o--", color=colour, markersize=3, linewidth=1)


def _paper(axes: Any, stated: Stated) -> None:
    axes.axhline(stated.mean, color=PAPER, linewidth=1)
    axes.axhline(stated.p99, color=PAPER, linewidth=1, linestyle="--")
