"""The plots of one file of results: time against size, throughput against bins or threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .targets import Row, kinds, read
from .threads import THREADS, most_threads, name_of

#: The colour of each contender's line, and its marker and style, which grey shows, too.
LINES = {
    "dask_coop": ("#c8553d", "o-"),
    "CUB": ("#2f6f9f", "s-"),
    "CuPy": ("#6a994e", "^-"),
    "PyTorch": ("#8d6a9f", "D:"),
    "NumPy": ("#2f6f9f", "s-"),
    "Dask": ("#6a994e", "^-"),
    "floor": ("0.6", "--"),
}

#: The works that have a panel.
WORKS = ("sum", "argmax", "var", "describe", "scan", "histogram")


def draw(path: Path, found: dict[str, Any]) -> list[Path]:
    """Write the plots beside the results at `path`, and return their paths."""
    rows = [row for row in found["rows"] if row["status"] == "ok" and len(row["shape"]) == 1]
    rows += [{**row, "contender": "floor", "ms": row["floor_ms"]} for row in rows if _first(row)]
    makers: dict[str, Callable[[list[Row]], Figure]]
    makers = {"sizes": _sizes, "bins": _bins, "threads": partial(_threads, found["machine"])}
    written = []
    # The same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "dask_coop", "svg.fonttype": "none"}):
        for kind in kinds(found):
            target = path.with_name(f"{path.stem}-{kind}.svg")
            makers[kind](rows).savefig(target, metadata={"Date": None})
            written.append(target)
    return written


def _first(row: Row) -> bool:
    return bool(row["contender"] == "dask_coop" and row["floor_ms"])


def _sizes(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(10, 6), layout="constrained")
    figure.suptitle("Time of a call against size, float32, uniform")
    chosen = [r for r in rows if (r["dtype"], r["data"]) == ("float32", "uniform")]
    for axes, work in zip(figure.subplots(2, 3, sharex=True).flat, WORKS, strict=True):
        # For histograms, the fewest bins that have all sizes.
        mine = [r for r in chosen if r["work"] == work]
        sizes = {b: len({r["shape"][0] for r in mine if r["bins"] == b}) for b in _values(mine)}
        bins = max(sizes, key=lambda b: (sizes[b], -b), default=0)
        mine = [r for r in mine if r["bins"] == bins]
        _lines(axes, mine, [(r["shape"][0], r["ms"]) for r in mine])
        axes.set_xscale("log", base=2)
        axes.set_title(work + (f", {bins:,} bins" if bins else ""))
        axes.set_ylabel("milliseconds")
    _legend(figure)
    return figure


def _bins(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    figure.suptitle("Throughput of a histogram against bins, float32, the largest size")
    rows = [r for r in rows if (r["work"], r["dtype"]) == ("histogram", "float32")]
    largest = max((r["shape"][0] for r in rows), default=0)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, data in zip(panels, ("uniform", "constant"), strict=True):
        mine = [r for r in rows if r["data"] == data and r["shape"][0] == largest]
        _lines(axes, mine, [(r["bins"], r["bytes"] / r["ms"] / 1e6) for r in mine])
        axes.set_xscale("log", base=2)
        axes.set_title({"uniform": "uniform samples", "constant": "all samples equal"}[data])
        axes.set_xlabel("bins")
        axes.set_ylabel("GB/s of samples")
    _legend(figure)
    return figure


def _threads(machine: Row, rows: list[Row]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    rows = [row for row in rows if row["primitive"] == "threads"]
    markers = itertools.cycle("os^Dv<>PX*hp")
    of = {name_of(n): n for n in THREADS} | {"dask_coop": most_threads(machine["processors"])}
    for work in dict.fromkeys(row["work"] for row in rows):
        mine = [row for row in rows if row["work"] == work and row["contender"] in of]
        points = sorted((of[row["contender"]], read(row) / row["ms"] / 1e6) for row in mine)
        axes.plot(*zip(*points, strict=True), marker=next(markers), markersize=4, label=work)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title("Whole calls of dask_coop on NumPy chunks, float32")
    axes.set_xlabel("threads")
    axes.set_ylabel("GB/s of input")
    axes.grid(alpha=0.3)
    _legend(figure, 3)
    return figure


def _values(rows: list[Row]) -> list[int]:
    return sorted({row["bins"] for row in rows})


def _lines(axes: Axes, rows: list[Row], points: list[tuple[float, float]]) -> None:
    for name, (color, style) in LINES.items():
        mine = sorted(p for p, row in zip(points, rows, strict=True) if row["contender"] == name)
        if mine:
            ours: dict[str, Any] = {"linewidth": 2.2, "zorder": 3} if name == "dask_coop" else {}
            axes.plot(
                *zip(*mine, strict=True), style, color=color, label=name, markersize=4, **ours
            )
    axes.set_yscale("log")
    axes.grid(alpha=0.3)


def _legend(figure: Figure, columns: int = 6) -> None:
    named: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns)
