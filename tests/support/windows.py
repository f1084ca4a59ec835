"""What moving windows are held to: every window laid out, and reduced by itself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

FUNCTIONS = {
    "sum": np.nansum,
    "mean": np.nanmean,
    "var": np.nanvar,
    "std": np.nanstd,
    "min": np.nanmin,
    "max": np.nanmax,
}
STATISTICS = tuple(FUNCTIONS)


def _place(windows: Any, axis: int, best: Any) -> Any:
    """Return how far from the end of each window its extremum is, the last of several."""
    extremum = best(windows, axis=axis)
    return (windows == extremum[..., None])[..., ::-1].argmax(-1)


def _rank(windows: Any, axis: int) -> Any:
    last = windows[..., -1:]
    below, above = ((windows < last).sum(axis), (windows > last).sum(axis))
    ranks = (below - above) / np.maximum((windows == windows).sum(axis) - 1, 1)
    return np.where(last[..., 0] == last[..., 0], ranks, np.nan)


#: Statistics that need the order of a window's elements.
ORDER = {
    "median": np.nanmedian,
    "argmin": lambda windows, axis: _place(windows, axis, np.nanmin),
    "argmax": lambda windows, axis: _place(windows, axis, np.nanmax),
    "rank": _rank,
}
ORDERED = tuple(ORDER)


def laid_out(x: Any, window: int, axis: int = -1, center: bool = False) -> Any:
    """Return the window of each element along a last axis, NaN where it is behind an end."""
    x = np.asarray(x)
    x = np.moveaxis(x.astype(np.result_type(x.dtype, "f8")), axis, -1)
    ahead = (window - 1) // 2 if center else 0
    widths = [(0, 0)] * (x.ndim - 1) + [(window - 1, ahead)]
    padded = np.pad(x, widths, constant_values=np.nan)
    return np.lib.stride_tricks.sliding_window_view(padded, window, -1)[..., ahead:, :]


def moved(
    statistic: str,
    x: Any,
    window: int,
    min_count: int | None = None,
    axis: int = -1,
    *,
    center: bool = False,
    ddof: int = 0,
) -> Any:
    """Return the statistic of each window in float64."""
    windows = laid_out(x, window, axis, center)
    counts = (windows == windows).sum(-1)
    options = {"ddof": ddof} if statistic in ("var", "std") else {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = (FUNCTIONS | ORDER)[statistic](windows, axis=-1, **options)
    found = np.where(counts >= (window if min_count is None else min_count), found, np.nan)
    return np.moveaxis(found, -1, axis)


def sizes(x: Any, window: int, axis: int = -1, center: bool = False) -> Any:
    """Return the sum of the absolute values in each window: what its sums are rounded to."""
    return np.moveaxis(np.nansum(np.abs(laid_out(x, window, axis, center)), -1), -1, axis)


def check(statistic: str, found: Any, x: Any, window: int, *given: Any, **options: Any) -> None:
    """Hold results to what each window alone has, to what rounding may change."""
    expected = moved(statistic, x, window, *given, **options)
    axis = given[1] if len(given) > 1 else options.get("axis", -1)
    eps = np.finfo(found.dtype).eps
    with np.errstate(all="ignore"):
        if statistic in ("min", "max", *ORDER):
            np.testing.assert_array_equal(found, expected.astype(found.dtype))
            return
        scale = sizes(x, window, axis, options.get("center", False))
        if statistic in ("var", "std"):
            # Of squares, of which some are taken from others.
            scale = scale * scale
        bound = np.nan_to_num(window * 2.0**-51 * scale, nan=0, posinf=0)
        if statistic == "std":
            found, expected = np.square(found.astype("f8")), np.square(expected)
        tiny = np.finfo(found.dtype).smallest_normal
        close = np.abs(found - expected) <= bound + 4 * eps * np.abs(expected) + tiny
        rounded = expected.astype(found.dtype)
        same = (found == expected) | (found == rounded) | (np.isnan(found) & np.isnan(expected))
    wrong = ~(close | same)
    assert not wrong.any(), (found[wrong][:5], expected[wrong][:5])
