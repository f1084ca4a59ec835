"""The picture that ``describe`` writes: a histogram above a cumulative distribution.

Importing this imports matplotlib, so it is imported where a figure is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dask_coop.summaries import Summary

COLOR = "#2f6f9f"
ACCENT = "#c8553d"
MOST_BARS = 1024


def save_summary(path: Path, title: str, subtitle: str, summary: Summary) -> None:
    """Write a summary as a PNG.

    Parameters
    ----------
    path : pathlib.Path
        The file to write.
    title, subtitle : str
        The two lines at the top.
    summary : Summary
        What to draw.
    """
    # A Figure without pyplot has no window and no state, and draws with Agg.
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(title, fontsize="x-large", fontweight="bold", parse_math=False)
    above.set_title(subtitle, fontsize="medium", color="0.35", parse_math=False)
    _draw_histogram(above, summary)
    _draw_cumulative(below, summary)
    figure.savefig(path, dpi=150)


def _draw_histogram(axes: Axes, summary: Summary) -> None:
    counts, edges = _coarsen(summary.counts, summary.edges)
    axes.stairs(counts, edges, fill=True, color=COLOR)
    if counts.max() > 10 * counts.mean():  # a linear axis would flatten the tail to nothing
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)
        axes.set_ylabel("values per bin, log scale")
    else:
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("values per bin")
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _draw_cumulative(axes: Axes, summary: Summary) -> None:
    shares = np.concatenate(([0], np.cumsum(summary.counts))) / summary.inside
    axes.plot(summary.edges, shares, color=COLOR)
    low, high = summary.edges[0], summary.edges[-1]
    probabilities = {"1 %": 0.01, "median": 0.5, "99 %": 0.99}
    for (name, share), value in zip(
        probabilities.items(), summary.quantiles([*probabilities.values()]), strict=True
    ):
        axes.plot([value, value], [0, share], color=ACCENT, linestyle="--", linewidth=1)
        axes.plot(value, share, "o", color=ACCENT, markersize=5, clip_on=False, zorder=3)
        # A rising curve leaves room below it on the right, and above it on the left.
        above = share < 0.1 or value > low + 0.75 * (high - low)
        left = above and value > low + 0.25 * (high - low)
        axes.annotate(
            f"{name}: {value:.4g}",
            (value, share),
            xytext=(-8 if left else 8, 6 if above and share < 0.9 else -6),
            textcoords="offset points",
            ha="right" if left else "left",
            va="bottom" if above and share < 0.9 else "top",
            color=ACCENT,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of values below")
    axes.set_xlabel(f"value (the quantiles are those of {len(summary.counts)} bins)")
    axes.grid(alpha=0.3)


def _coarsen(counts: Any, edges: Any) -> tuple[Any, Any]:
    """Merge neighbouring bins until they can be told apart on paper."""
    merged = -(-len(counts) // MOST_BARS)
    starts = np.arange(0, len(counts), merged)
    return np.add.reduceat(counts, starts), np.append(edges[starts], edges[-1])
