"""Draw the picture of ``describe``: a histogram above a cumulative distribution.

Importing this imports matplotlib, so import it only where a figure is drawn.
"""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dask_coop.api.call.drawings import readable
from dask_coop.cli.describe.pictures import SOFTWARE
from dask_coop.cli.describe.summaries import Summary

COLOR = "#2f6f9f"
ACCENT = "#c8553d"
#: The quantiles to draw, and their markers.
SHOWN = {"1 %": "v", "median": "o", "99 %": "^"}


def save_summary(path: Path, title: str, subtitle: str, summary: Summary) -> None:
    """Write a summary as a PNG.

    Parameters
    ----------
    path : pathlib.Path
        The file to write.
    title, subtitle : str
        The two lines at the top.
    summary : Summary
    """
    figure, above, _ = _draw(summary)
    figure.suptitle(title, fontsize="x-large", fontweight="bold", parse_math=False)
    above.set_title(subtitle, fontsize="medium", color="0.35", parse_math=False)
    figure.savefig(path, dpi=150, metadata={"Software": SOFTWARE})


class Drawn(NamedTuple):
    """A picture for a page.

    Attributes
    ----------
    svg : str
        The picture, an element of HTML.
    edges : list of float
        Positions of the edges of its bars from the left, in its own units.
    frames : list of two (float, float)
        Top and bottom of its two plots, from the top.
    """

    svg: str
    edges: list[float]
    frames: list[tuple[float, float]]


def draw_svg(summary: Summary, name: str) -> Drawn:
    """Return the picture without a title, and the positions of its bars and plots.

    Pictures of different names have no element id in common.
    """
    figure, *plots = _draw(summary)
    text = StringIO()
    # Keep text as text, and the file the same on every run.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    # matplotlib counts from the bottom, and SVG from the top.
    points, height = 72 / figure.dpi, figure.get_figheight() * 72
    _, edges = summary.bars()
    corners = np.stack((_positions(summary, edges), np.zeros(len(edges))), 1)
    # By the lower plot: the upper one may be logarithmic, without a zero.
    left = plots[1].transData.transform(corners)[:, 0] * points
    frames = [plot.get_window_extent() for plot in plots]
    return Drawn(
        svg=re.sub(r'<g id="[^"]*"', "<g", drawn[drawn.index("<svg") :]),
        edges=left.round(2).tolist(),
        frames=[(height - frame.y1 * points, height - frame.y0 * points) for frame in frames],
    )


def _draw(summary: Summary) -> tuple[Figure, Axes, Axes]:
    # A Figure without pyplot has neither window nor state, and draws with Agg.
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_histogram(above, summary)
    _draw_cumulative(below, summary)
    return figure, above, below


def _draw_histogram(axes: Axes, summary: Summary) -> None:
    counts, edges = summary.bars()
    edges = _positions(summary, edges)
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
    x, fractions = summary.curve()
    axes.plot(_positions(summary, x), fractions, color=COLOR)
    for name, (position, fraction) in summary.dots().items():
        if name not in SHOWN:
            continue
        value, number = _positions(summary, np.array([position]))[0], summary.quantiles[name]
        text = readable(number) if summary.origin is not None else f"{number:.4g}"
        axes.plot([value, value], [0, fraction], color=ACCENT, linestyle="--", linewidth=1)
        axes.plot(
            *(value, fraction, SHOWN[name]),
            color=ACCENT,
            markersize=7,
            clip_on=False,
            zorder=3,
            label=f"{name}: {text}",
        )
    if axes.get_legend_handles_labels()[0]:
        # A rising curve leaves one of these corners free.
        is_high = np.mean(fractions) > 0.5
        axes.legend(loc="lower right" if is_high else "upper left", framealpha=0.9)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("values up to here")
    if _is_calendar(summary):
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlabel(_name(summary))
    axes.grid(alpha=0.3)


def _is_calendar(summary: Summary) -> bool:
    """Return whether the values are dates that matplotlib can show and distinguish."""
    if not isinstance(summary.origin, np.datetime64):
        return False
    if np.datetime_data(summary.origin.dtype)[0] in ("ps", "fs", "as"):
        # These units reach only near 1970, and NumPy does not convert them.
        return False
    ends = _dates(summary, summary.edges[[0, -1]])
    first, last = ends.astype("M8[Y]").astype("i8") + 1970
    return bool(first >= 1 and last < 9999 and np.ptp(ends.astype("M8[s]").astype("i8")))


def _dates(summary: Summary, numbers: Any) -> Any:
    """Return dates, a second off both ends of time, where NumPy's conversion overflows."""
    values = summary.values(numbers)
    last = np.iinfo("i8").max - 10**9
    return np.clip(values.view("i8"), -last, last).view(values.dtype)


def _positions(summary: Summary, numbers: Any) -> Any:
    """Return positions on the axis of values for `numbers` along a summary's edges."""
    if _is_calendar(summary):
        return date2num(_dates(summary, numbers))
    if isinstance(summary.origin, np.timedelta64):
        return np.add(numbers, float(summary.origin.view("i8")))
    return np.asarray(numbers)


def _name(summary: Summary) -> str:
    """Return the label of the axis of values."""
    if summary.origin is None or _is_calendar(summary):
        return "value"
    unit, step = np.datetime_data(summary.origin.dtype)
    unit = f"{step} {unit}" if step > 1 else unit
    if isinstance(summary.origin, np.timedelta64):
        return f"value in {unit}"
    return f"{unit} since {readable(summary.origin)}"
