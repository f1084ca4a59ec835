"""Runs of a mask by a plain loop: what tests hold the functions of runs to."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np


def run_bounds(line: Any, heads: Any = None) -> list[tuple[int, int]]:
    """Return where each run of true elements of a line begins, and its length."""
    heads = np.zeros(len(line), "?") if heads is None else heads
    number = np.cumsum(heads)
    bounds, start = [], 0
    for (value, _), elements in groupby(zip(line, number, strict=True)):
        length = len(list(elements))
        bounds += [(start, length)] * bool(value)
        start += length
    return bounds


def statistic(name: str, mask: Any, axis: int, least: int = 1) -> Any:
    """Return a statistic of the runs of each line, by the name of the public function."""

    def of_line(line: Any) -> float:
        bounds = [(start, n) for start, n in run_bounds(line) if n >= least]
        match name:
            case "longest_run":
                return max((n for _, n in bounds), default=0)
            case "count_runs":
                return len(bounds)
            case "count_in_runs":
                return sum(n for _, n in bounds)
            case "first_run":
                return bounds[0][0] if bounds else np.nan
        return sum(bounds[-1]) - 1 if bounds else np.nan

    lines = np.moveaxis(mask, axis, -1)
    result = np.zeros(lines.shape[:-1], "f8" if name in ("first_run", "last_run") else "i8")
    for at in np.ndindex(result.shape):
        result[at] = of_line(lines[at])
    return result


def lengths(mask: Any, axis: int, index: str, heads: Any = None) -> Any:
    """Return what `run_lengths` is held to."""
    lines = np.moveaxis(mask, axis, -1)
    flags = np.zeros(mask.shape, "?") if heads is None else np.broadcast_to(heads, mask.shape)
    flags, result = np.moveaxis(flags, axis, -1), np.zeros(lines.shape)
    for at in np.ndindex(lines.shape[:-1]):
        for start, n in run_bounds(lines[at], flags[at]):
            result[at][start : start + n] = np.nan
            result[at][start if index == "first" else start + n - 1] = n
    return np.moveaxis(result, -1, axis)


def sums(mask: Any, values: Any, axis: int, least: int) -> Any:
    """Return the sums of values over runs, at their first elements."""
    lines, numbers = np.moveaxis(mask, axis, -1), np.moveaxis(values, axis, -1)
    result = np.zeros(lines.shape, numbers.dtype)
    for at in np.ndindex(lines.shape[:-1]):
        for start, n in run_bounds(lines[at]):
            if n >= least:
                result[at][start] = numbers[at][start : start + n].sum()
    return np.moveaxis(result, -1, axis)
