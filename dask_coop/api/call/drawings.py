"""Small tables and drawings as HTML and SVG without scripts, and readable numbers and dates."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

#: The size of drawings in pixels, beside a table.
WIDTH, HEIGHT = 320, 90
#: The most bars; more cannot be told apart.
_MOST_BARS = 160
#: The most cells along each axis.
_MOST_CELLS = 48, 16
_FILL = "#4a7fb5"
#: Room at the left and the right for text, in pixels.
_EDGE = 10


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as a table of HTML; the first row is the head."""
    head, *body = (
        "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row)
        for cell, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def side_by_side(left: str, right: str) -> str:
    """Return HTML that shows two elements side by side."""
    return f'<div style="display:flex;gap:1.5em;align-items:center"><div>{left}</div>{right}</div>'


def spread(positions: Sequence[float], words: Sequence[str]) -> str:
    """Draw the range from minimum to maximum, with the mean and the deviation around it.

    Parameters
    ----------
    positions : sequence of 5 floats
        Minimum, mean minus deviation, mean, mean plus deviation, and maximum, on any scale; the
        minimum and the maximum differ.
    words : sequence of 3 str
        The text at the minimum, the mean and the maximum.
    """
    low, high = positions[0], positions[-1]
    scale = (WIDTH - 2 * _EDGE) / (high - low)
    first, left, middle, right, last = (
        _EDGE + (min(max(position, low), high) - low) * scale for position in positions
    )
    return _svg(
        f'<path d="M{first:.1f} 45H{last:.1f}M{first:.1f} 38v14M{last:.1f} 38v14"/>'
        f'<rect x="{left:.1f}" y="33" width="{right - left:.1f}" height="24" fill="{_FILL}"/>'
        f'<path d="M{middle:.1f} 28v34"/>'
        + _word(first, 72, words[0])
        + _word(last, 72, words[2])
        # Above the bar, so that a mean at an end does not cover the extremum.
        + _word(middle, 20, words[1]),
        f"from {words[0]} to {words[2]}, mean {words[1]}",
    )


def bars(counts: Any, edges: Any, words: Sequence[str]) -> str:
    """Draw a histogram; the `words` stand at its ends."""
    merged = -(-len(counts) // _MOST_BARS)
    starts = np.arange(0, len(counts), merged)
    cuts = np.append(edges[starts], edges[-1]).astype("f8")
    # Bins may differ in width; merged bins have the sum of their widths.
    widths = np.add.reduceat(np.diff(edges).astype("f8"), starts)
    heights = np.nan_to_num(np.add.reduceat(counts.astype("f8"), starts) / widths)
    top = max(float(heights.max()), 0.0) or 1.0
    x = _EDGE + (cuts - cuts[0]) / (cuts[-1] - cuts[0]) * (WIDTH - 2 * _EDGE)
    y = 70 - 62 * np.clip(heights, 0, None) / top
    steps = "".join(f"V{h:.1f}H{right:.1f}" for h, right in zip(y, x[1:], strict=True))
    return _svg(
        f'<path d="M{x[0]:.1f} 70{steps}V70Z" fill="{_FILL}" stroke="none"/>'
        f'<path d="M{x[0]:.1f} 70H{x[-1]:.1f}"/>'
        + _word(x[0], 84, words[0])
        + _word(x[-1], 84, words[1]),
        f"{len(counts)} bins from {words[0]} to {words[1]}",
    )


def cells(counts: Any) -> str:
    """Draw a histogram of two coordinates; the first runs to the right, the second upwards."""
    merged = np.nan_to_num(counts.astype("f8"))
    for axis, most in enumerate(_MOST_CELLS):
        n = merged.shape[axis]
        merged = np.add.reduceat(merged, np.arange(0, n, -(-n // most)), axis)
    dark = np.clip(merged, 0, None) / (max(float(merged.max()), 0.0) or 1.0)
    width, height = (WIDTH - 2 * _EDGE) / len(dark), 76 / dark.shape[1]
    rectangles = [
        f'<rect x="{_EDGE + i * width:.1f}" y="{82 - (j + 1) * height:.1f}" '
        f'width="{width:.1f}" height="{height:.1f}" '
        f'fill="{_FILL}" fill-opacity="{dark[i, j]:.2f}" stroke="none"/>'
        for i, j in np.argwhere(dark > 0).tolist()
    ]
    frame = f'<rect x="{_EDGE}" y="6" width="{WIDTH - 2 * _EDGE}" height="76"/>'
    return _svg("".join([*rectangles, frame]), f"{counts.shape[0]} x {counts.shape[1]} bins")


def _word(x: float, y: float, text: str) -> str:
    anchor = "start" if x < WIDTH / 3 else "end" if x > WIDTH * 2 / 3 else "middle"
    # Attributes, because a style sheet would apply to all drawings of a page.
    look = 'fill="currentColor" stroke="none" font-size="12" font-family="sans-serif"'
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" {look}>{escape(text)}</text>'


def _svg(inner: str, label: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<g fill="none" stroke="currentColor">{inner}</g></svg>'
    )


#: Seconds per unit of time; decimal digits of smaller units.
_SECONDS = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_FRACTIONS = {"ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}
_CALENDAR = {"Y": "year", "M": "month"}


def readable(value: Any) -> str:
    """Return the text of a number, a date or a duration.

    Examples
    --------
    >>> readable(2.5), readable(np.datetime64("2020-01-31T12:00:00.500", "ns"))
    ('2.5', '2020-01-31T12:00:00.5')
    >>> readable(np.timedelta64(90_061_250, "ms")), readable(np.timedelta64(-3, "M"))
    ('1 day 01:01:01.25', '-3 months')
    """
    if isinstance(value, np.timedelta64):
        return _of_duration(value)
    if isinstance(value, np.datetime64):
        text = str(value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _of_duration(value: np.timedelta64) -> str:
    if np.isnat(value):
        return "NaT"
    unit, step = np.datetime_data(value.dtype)
    count = int(value.view("i8")) * step
    if unit in _CALENDAR:
        return _counted(count, _CALENDAR[unit])
    digits = _FRACTIONS.get(unit, 0)
    seconds, fraction = divmod(abs(count) * _SECONDS.get(unit, 1), 10**digits)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    text = f"{hour:02}:{minute:02}:{second:02}"
    if fraction:
        text += f".{fraction:0{digits}}".rstrip("0")
    if unit in ("W", "D"):
        text = _counted(days, "day")
    elif days:
        text = f"{_counted(days, 'day')} {text}"
    return f"-{text}" if count < 0 else text


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if abs(n) == 1 else f"{n} {noun}s"
