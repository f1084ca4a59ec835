"""The graphs: nothing computed while they are built, their keys, their sizes, their messages."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import boost_histogram as bh
import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks
from dask.array.utils import assert_eq, same_keys
from dask.base import key_split
from dask.task_spec import Alias, Task
from distributed import Client
from scipy import ndimage, signal, stats
from support import runs
from support.calls import refuse
from support.clusters import cluster
from support.processes import printed
from support.strategies import REAL
from support.windows import moved

import dask_coop as dc
from dask_coop.algebra.monoids import ANY

FAN_IN = 16
GROUP = 32
#: The groups of the columns of `numbers`.
LABELS = np.array([2, 0, 1, 1, 0, 2, 0])
# Where these are not side by side, Dask moves them there by tasks that pick items.
RUNS = np.sort(LABELS)
HYPOT = dc.Monoid("hypot", np.hypot, 0, "f8", cuda="hypot(a, b)")
AXIS = bh.axis.Regular(5, 0, 9)


def collections(x: da.Array) -> dict[str, da.Array]:
    """Return one or more lazy results of every public function, by a name that says which."""
    counts, edges = dc.histogram(x, 5)
    density, _ = dc.histogram(x, np.arange(8), density=True, weights=x)
    return {
        "sum": dc.sum(x),
        "sum of lines": dc.sum(x, axis=0, keepdims=True),
        "sum along lines": dc.sum(x, axis=0),
        "sum by fours": dc.sum(x, split_every=4),
        "narrow sum": dc.sum(x, dtype="f4"),
        "reproducible sum": dc.sum(x, reproducible=True),
        "reproducible narrow sum": dc.sum(x, dtype="f4", reproducible=True),
        "reproducible mean": dc.mean(x, axis=0, reproducible=True),
        "min": dc.min(x),
        "max": dc.max(x, axis=-1),
        "mean": dc.mean(x),
        "prod": dc.prod(x + 1, axis=0),
        "var": dc.var(x, ddof=1),
        "std": dc.std(x, axis=0),
        "any": dc.any(x),
        "all": dc.all(x, axis=1),
        "count_nonzero": dc.count_nonzero(x),
        "argmin": dc.argmin(x),
        "argmax": dc.argmax(x, axis=1),
        "ptp": dc.ptp(x),
        "nansum": dc.nansum(x),
        "nanmin": dc.nanmin(x, axis=0),
        "nanargmax": dc.nanargmax(x, axis=1),
        "nanmean": dc.nanmean(x),
        "nanvar": dc.nanvar(x, axis=1),
        "nanprod": dc.nanprod(x + 1, axis=0),
        "nanmax": dc.nanmax(x, axis=1),
        "nanargmin": dc.nanargmin(x, axis=0),
        "nanstd": dc.nanstd(x),
        "reduce": dc.reduce(x, HYPOT, axis=1),
        "var by its state": _of_state(dc.combine([dc.reduce(x, "var", return_state=True)])),
        "topk": dc.topk(x, 2),
        "argtopk": dc.argtopk(x, -3, axis=0, split_every=2),
        "sort": dc.sort(x, axis=0),
        "argsort": dc.argsort(x, axis=1, stable=True),
        **exchanged(x),
        "transpose": dc.transpose(x, contiguous=True),
        "view": dc.transpose(x),
        "copy": dc.transpose(x, (0, 1), contiguous=True),
        "matmul": dc.matmul(x.astype(int), dc.transpose(x).astype(int)),
        "shortest paths": dc.matmul(x, dc.transpose(x), semiring="min_plus"),
        "paths by twos": dc.matmul(x, dc.transpose(x), semiring="min_plus", split_every=2),
        "the other product": dc.matmul(dc.transpose(x).astype(int), x.astype(int)),
        "moment": dc.moment(x, 3),
        "skew": dc.skew(x, axis=1),
        "kurtosis": dc.kurtosis(x, None),
        "average": dc.average(x, 0, x % 4),
        "sums of weights": dc.average(x, 0, x % 4, returned=True)[1],
        "weighted mean": dc.mean(x, weights=x % 4),
        "weighted var": dc.var(x, axis=1, weights=x % 4),
        "cov": dc.cov(x),
        "corrcoef": dc.corrcoef(x, rowvar=False),
        "line": dc.linregress(x % 4, x).slope,
        "norm": dc.norm(x, 3, axis=0),
        "deviations from the median": dc.median_abs_deviation(x),
        "deviation from the median": dc.mad_std(x),
        "what is clipped": dc.sigma_clip(x, 1, masked=False),
        "masked sum": dc.sum(x, where=x > 1),
        "masked mean": dc.mean(x, where=x > 1),
        "sum from 5": dc.sum(x, initial=5),
        "cumsum": dc.cumsum(x, axis=0),
        "other cumsum": dc.cumsum(x, axis=1),
        "narrow cumsum": dc.cumsum(x, axis=0, dtype="f4"),
        "flat cumsum": dc.cumsum(x),
        "cumsum by chain": dc.cumsum(x, axis=0, method="sequential"),
        "cumsum read twice": dc.cumsum(x, axis=0, method="recompute"),
        "reverse cumsum": dc.cumsum(x, axis=0, reverse=True),
        "exclusive cumsum": dc.cumsum(x, axis=0, exclusive=True),
        "cumsum of parts": dc.cumsum(x, axis=0, segments=x > 4),
        "cumulative_sum": dc.cumulative_sum(x, axis=1, include_initial=True),
        "cumulative_prod": dc.cumulative_prod(x, axis=1, include_initial=True),
        "cumprod": dc.cumprod(x, axis=0),
        "nancumsum": dc.nancumsum(x, axis=0),
        "nancumprod": dc.nancumprod(x, axis=0),
        "cummax": dc.cummax(x, axis=1),
        "cummin": dc.cummin(x, axis=1),
        "logcumsumexp": dc.logcumsumexp(x, axis=1),
        "scan": dc.scan(x, ANY, axis=1),
        "ffill": dc.ffill(_with_gaps(x), axis=0),
        "ffill of few": dc.ffill(_with_gaps(x), axis=1, limit=1),
        "ffill by chain": dc.ffill(_with_gaps(x), axis=0, method="sequential"),
        "bfill": dc.bfill(_with_gaps(x), axis=1),
        "bfill of parts": dc.bfill(_with_gaps(x), axis=0, segments=x > 4),
        "ewm_mean": dc.ewm_mean(x, axis=0, alpha=0.5),
        "ewm_mean of some": dc.ewm_mean(_with_gaps(x), axis=1, com=3, min_periods=2, adjust=False),
        "ewm_sum": dc.ewm_sum(x, axis=0, alpha=0.5),
        "ewm_var": dc.ewm_var(_with_gaps(x), axis=1, com=3, adjust=False),
        "ewm_std": dc.ewm_std(x, axis=0, span=3, bias=True),
        "ewm_cov": dc.ewm_cov(x, x + 1, axis=1, com=3, min_periods=2),
        "ewm_corr": dc.ewm_corr(x, 9 - x, axis=0, com=3),
        "cumulative_trapezoid": dc.cumulative_trapezoid(x, axis=0),
        "lfilter": dc.lfilter([1.0, 2.0], [1.0, -0.5], x, axis=0),
        "sosfilt": dc.sosfilt([[1.0, 0, 0, 1, -0.5, 0]], x, method="sequential"),
        "longest_run": dc.longest_run(x > 4, axis=0),
        "count_runs": dc.count_runs(x > 4, min_length=2),
        "count_in_runs": dc.count_in_runs(x > 4, axis=0, min_length=2),
        "first_run": dc.first_run(x > 2, min_length=3),
        "last_run": dc.last_run(x > 2, axis=0, min_length=2, split_every=2),
        "run_lengths": dc.run_lengths(x > 2, axis=0),
        "lengths at the ends of runs": dc.run_lengths(x > 2, index="last"),
        "lengths of runs within segments": dc.run_lengths(x > 2, segments=x > 6),
        **{f"events {n}": a for n, a in dc.run_events(x > 2, x, 0, 2)._asdict().items()},
        "uneven cumulative_trapezoid": dc.cumulative_trapezoid(x, dc.cumsum(x, 1), initial=0),
        "move_sum": dc.move_sum(x, 3, axis=0),
        "move_mean": dc.move_mean(x, 5, min_count=2, center=True),
        "move_std": dc.move_std(x, 3, axis=1),
        "move_median": dc.move_median(x, 3, min_count=1, center=True),
        "move_quantile": dc.move_quantile(x, 4, 0.25, axis=0),
        "move_rank": dc.move_rank(x, 3),
        "move_argmin": dc.move_argmin(x, 4, axis=0),
        "move_argmax": dc.move_argmax(x, 3, min_count=2, center=True),
        "move_std of few": dc.move_std(x, 3, axis=1, min_count=2, center=True),
        "move_var": dc.move_var(x, 4, ddof=1, axis=0),
        "move_cov": dc.move_cov(x, x, 4, axis=0),
        "polynomials": dc.polyfit(range(6), x, 1),
        "move_corr": dc.move_corr(x, -x, 3),
        "move_min": dc.move_min(x, 6, axis=0, min_count=1),
        "move_max": dc.move_max(x, 2, axis=1),
        "box_filter": dc.box_filter(x, (2, 3)),
        "coarsened": dc.coarsen(np.mean, x, {0: 3}),
        "coarsened by a function of ours": dc.coarsen(dc.var, x, {0: 2, 1: 7}),
        "pyramid": dc.pyramid(x, 1, np.max, {0: 2})[0],
        "integral_image": dc.integral_image(x),
        "labels": dc.label(x > 4)[0],
        "number of labels": dc.label(x > 4, np.ones((3, 3)))[1],
        "counts": counts,
        "edges": edges,
        "density": density,
        "counts in a range": dc.histogram(x, 5, (0, 9))[0],
        "weights": dc.histogram(x, 5, (0, 9), weights=x)[0],
        "weights between edges": dc.histogram(x, np.arange(8), weights=x)[0],
        "finer counts": dc.histogram(x, 6, (0, 9))[0],
        "counts of lines": dc.histogram(x, 5, axis=1)[0],
        "counts and the rest": dc.histogram(x, 5, (2, 7), flow=True)[0],
        "counts by a rule": dc.histogram(x, "sturges")[0],
        "complex weights": dc.histogram(x, 5, (0, 9), weights=x * 1j)[0],
        "counts between lazy edges": dc.histogram(x, da.arange(8.0, chunks=8))[0],
        "counts of rows": dc.histogramdd(x, 2)[0],
        "weights of rows": dc.histogramdd(x, 2, [(0, 9)] * 7, weights=dc.sum(x, axis=1))[0],
        "counts of pairs": dc.histogram2d(x, 9 - x, [4, np.arange(8)])[0],
        "density of pairs": dc.histogram2d(x, 9 - x, 3, [(0, 9)] * 2, density=True)[0],
        "integers": dc.bincount(x.astype("i4"), minlength=3),
        "weighed integers": dc.bincount(x.astype("i4"), weights=x, split_every=4),
        "bins": dc.digitize(x, [1, 2, 5]),
        **({"counts of an axis": _values(dc.to_hist(x, AXIS))} if is_numpy(x) else {}),
        **({"weights of an axis": _values(dc.to_hist(x, AXIS, x))} if is_numpy(x) else {}),
        "finer counts of all": dc.histogram(x, 6)[0],
        "median": dc.median(x),
        "median made anew": dc.median(x, recompute=True),
        "quantiles of lines": dc.quantile(x, 0.4, axis=0),
        "a quantile": dc.quantile(x, 0.4),
        "another quantile": dc.quantile(x, 0.41),
        "nanmedian of lines": dc.nanmedian(x, axis=0),
        "quantiles made anew": dc.quantile(x, [0.1, 0.7], split_every=2, recompute=True),
        "percentile": dc.percentile(x, 30, method="nearest"),
        "median of what is there": dc.nanmedian(x),
        "quantile of what is there": dc.nanquantile(x, 0.2),
        "percentiles of what is there": dc.nanpercentile(x, [20, 60]),
        "elements above 4": dc.select(x, x > 4),
        "lines": dc.select(x, dc.max(x, axis=1) > 7),
        "columns": dc.compress(dc.max(x, axis=0) > 7, x, axis=1),
        "odd elements": dc.extract(x % 2, x),
        "rows of indices": dc.nonzero(x)[0],
        "columns of indices": dc.nonzero(x)[1],
        "flat indices": dc.flatnonzero(x > 4),
        "pairs of indices": dc.argwhere(x),
        "distinct values": dc.unique(x),
        "first places": dc.unique(x, return_index=True)[1],
        "places among values": dc.unique(x, return_inverse=True)[1],
        "places among values and NaN": dc.unique(x, return_inverse=True, equal_nan=False)[1],
        "counts of values": dc.unique(x, return_counts=True)[1],
        "frequent values": dc.value_counts(x, n=3)[0],
        "ranks": dc.rankdata(x, "min", axis=1),
        "order by two keys": dc.lexsort([x, x % 3], axis=0),
        "counts of pairs of values": dc.crosstab(x, x % 2).count,
        "percentile of a score": dc.percentileofscore(x, 4),
        "mode": dc.mode(x, axis=None).mode,
        "modes": dc.mode(x).mode,
        "count of modes": dc.mode(x, axis=1).count,
        "nunique": dc.nunique(x),
        "approx_nunique": dc.approx_nunique(x),
        "approx_nunique of lines": dc.approx_nunique(x, axis=1, error=0.02, keepdims=True),
        "nunique of lines": dc.nunique(x, axis=1, keepdims=True),
        "shares of values": dc.value_counts(x, normalize=True, ascending=True)[1],
        "isin": dc.isin(x, dc.sum(x, axis=0) / 4),
        "not isin": dc.isin(x, dc.sum(x, axis=0) / 3, invert=True),
        "searchsorted": dc.searchsorted(dc.cumsum(x), x * 20),
        "groups": dc.groupby_reduce(x, LABELS, func="sum")[0],
        "groups of groups": dc.groupby_reduce(x, LABELS, LABELS > 1, func=["std", "max"])[0][1],
        "groups of lazy labels": dc.groupby_reduce(
            x, _labels(x), func="mean", expected_groups=[0, 1, 2]
        )[0],
        "medians of groups": dc.groupby_reduce(x, RUNS, func="median")[0],
        "medians of lazy groups": dc.groupby_reduce(
            x, _labels(x), func="median", expected_groups=[0, 1, 2]
        )[0],
        "other groups": dc.groupby_reduce(x, LABELS % 2, func="sum")[0],
        "covariances of groups": dc.groupby_reduce(x, LABELS, func="cov", y=x)[0],
        "groups by a monoid": dc.groupby_reduce(x, RUNS, func=HYPOT)[0],
        "firsts of groups": dc.groupby_reduce(
            x, RUNS, func=["first", "nanquantile"], finalize_kwargs={"q": 0.5}
        )[0][0],
        "found groups": _found_groups(x)[0][0],
        "labels of found groups": _found_groups(x)[1],
        "scans of groups": dc.groupby_scan(x, RUNS, func="cumsum"),
        "means in bins": dc.binned_statistic(x, x, "mean", [0, 3, 9]).statistic,
        "counts in found bins": dc.binned_statistic(x, x, ["count", "sum"], 4).statistic[0],
        "maxima in bins of pairs": dc.binned_statistic_2d(x, 9 - x, x, "max", 3).statistic,
        "numbers of bins": dc.binned_statistic_dd([x], x, "sum", 3).binnumber,
        **{f"describe {n}": a for n, a in dc.describe(x)._asdict().items()},
        **{f"describe lines {n}": a for n, a in dc.describe(x, axis=0)._asdict().items()},
    }


def exchanged(x: da.Array) -> dict[str, da.Array]:
    """Return sorts of lines that are too long to gather."""
    with dask.config.set({"array.chunk-size": "1B"}):
        return {
            "sort of a long line": dc.sort(x, axis=None),
            "argsort of a long line": dc.argsort(x, axis=None, stable=True),
            "ranks of a long line": dc.rankdata(x),
            "order of a long line by two keys": dc.lexsort([x.reshape(-1), x.reshape(-1) % 3]),
        }


def collections_of_no_axes(x: da.Array) -> dict[str, Any]:
    """Return lazy results of every public function that takes an array of no axes."""
    total, durations = dc.sum(x), x.astype("i8").astype("m8[s]")
    return {
        **{
            name: getattr(dc, name)(x)
            for name in (
                *("sum", "prod", "min", "max", "mean", "var", "std", "any", "all", "ptp", "norm"),
                *("count_nonzero", "argmin", "argmax", "nansum", "nanprod", "nanmin", "nanmax"),
                *("nanmean", "nanvar", "nanstd", "nanargmin", "nanargmax", "transpose", "cumsum"),
                *("cumprod", "nancumsum", "nancumprod", "cummax", "cummin", "logcumsumexp"),
            )
        },
        **({"sum of durations": dc.sum(durations)} if is_numpy(x) else {}),
        **({"mean of durations": dc.mean(durations)} if is_numpy(x) else {}),
        "sum of a sum": dc.sum(total, dtype="f4"),
        "integer nansum": dc.nansum(total, dtype="i8"),
        "reproducible sum": dc.sum(x, reproducible=True),
        "reproducible norm": dc.norm(x, reproducible=True),
        "masked sum": dc.sum(x, where=x > 1, initial=5),
        "moment": dc.moment(x, 3),
        "skew": dc.skew(x.reshape(1)),
        "kurtosis": dc.kurtosis(x.reshape(1)),
        "average": dc.average(x, weights=x),
        "cov": dc.cov(x),
        "corrcoef": dc.corrcoef(x),
        "line": dc.linregress(x.reshape(1), x.reshape(1)).slope,
        "mad_std": dc.mad_std(x),
        "median_abs_deviation": dc.median_abs_deviation(x, None),
        "clipped": dc.sigma_clip(x, masked=False),
        "reduce": dc.reduce(x, HYPOT),
        "var by its state": _of_state(dc.combine([dc.reduce(x, "var", return_state=True)])),
        "topk": dc.topk(x.reshape(1), 1),
        "argtopk": dc.argtopk(x.reshape(1), 1),
        "sort": dc.sort(x, None),
        "argsort": dc.argsort(x, None),
        "scan": dc.scan(x, ANY),
        **{
            name: getattr(dc, name)(x.reshape(1), 1)
            for name in (
                *("move_sum", "move_mean", "move_std", "move_var", "move_min", "move_max"),
                *("move_median", "move_rank", "move_argmin", "move_argmax"),
            )
        },
        "move_quantile": dc.move_quantile(x.reshape(1), 1, 0.5),
        "polynomials": dc.polyfit([1], x.reshape(1), 0),
        "move_cov": dc.move_cov(x.reshape(1), x.reshape(1), 1, ddof=0),
        "move_corr": dc.move_corr(x.reshape(1), x.reshape(1), 1),
        "box_filter": dc.box_filter(x.reshape(1), 1, (0,)),
        "coarsen": dc.coarsen(np.sum, x, {}),
        "pyramid": dc.pyramid(x, 1)[0],
        "integral_image": dc.integral_image(x, ()),
        "lfilter": dc.lfilter([1.0], [1.0, 0.5], x.reshape(1)),
        "sosfilt": dc.sosfilt([[1.0, 0, 0, 1, 0.5, 0]], x.reshape(1)),
        "label": dc.label(x)[0],
        "sequential cumsum": dc.cumsum(x, method="sequential"),
        "cumulative_sum": dc.cumulative_sum(x.reshape(1), include_initial=True),
        "ffill": dc.ffill(_with_gaps(x.reshape(1))),
        "bfill": dc.bfill(_with_gaps(x.reshape(1)), limit=1),
        **{
            name: getattr(dc, name)(x.reshape(1), alpha=1)
            for name in ("ewm_mean", "ewm_sum", "ewm_var", "ewm_std")
        },
        "ewm_cov": dc.ewm_cov(x.reshape(1), x.reshape(1), com=1),
        "ewm_corr": dc.ewm_corr(x.reshape(1), x.reshape(1), com=1),
        **{
            name: getattr(dc, name)(x.reshape(1) > 1)
            for name in ("longest_run", "count_runs", "count_in_runs", "first_run", "last_run")
        },
        "run_lengths": dc.run_lengths(x.reshape(1) > 1),
        "run_events": dc.run_events(x.reshape(1) > 1).length,
        "cumulative_trapezoid": dc.cumulative_trapezoid(x.reshape(1), initial=0),
        "cumulative_prod": dc.cumulative_prod(x.reshape(1)),
        "matmul": dc.matmul(x.reshape(1), x.reshape(1)),
        "shortest paths": dc.matmul(x.reshape(1), x.reshape(1), semiring="min_plus"),
        "counts": dc.histogram(x, 5)[0],
        "edges": dc.histogram(x, 5)[1],
        "density": dc.histogram(x, np.arange(8), density=True, weights=x)[0],
        "counts of pairs": dc.histogram2d(x, x, 3, [(0, 9)] * 2)[0],
        "counts of one": dc.histogramdd((x,), 3, [(0, 9)])[0],
        "median": dc.median(x),
        "median of what is there": dc.nanmedian(x),
        "quantile": dc.quantile(x, 0.5),
        "quantile of what is there": dc.nanquantile(x, 0.5),
        "percentile": dc.percentile(x, [10, 90]),
        "percentile of what is there": dc.nanpercentile(x, 40),
        "integers": dc.bincount(x.astype("i4")),
        "bins": dc.digitize(x, [1, 2, 5]),
        **({"counts of an axis": _values(dc.to_hist(x, AXIS))} if is_numpy(x) else {}),
        "selected": dc.select(x, x > 1),
        "compressed": dc.compress([True], x),
        "extracted": dc.extract(x > 1, x),
        "where of one": dc.nonzero(x.reshape(1))[0],
        "where": dc.flatnonzero(x),
        "rows of where": dc.argwhere(x),
        "distinct values": dc.unique(x),
        "places among values": dc.unique(x, return_inverse=True)[1],
        "frequent values": dc.value_counts(x)[0],
        "mode": dc.mode(x, None).mode,
        "nunique": dc.nunique(x),
        "approx_nunique": dc.approx_nunique(x),
        "ranks": dc.rankdata(x),
        "order by two keys": dc.lexsort([x.reshape(1)] * 2),
        "counts of pairs of values": dc.crosstab(x, x).count,
        "percentile of a score": dc.percentileofscore(x, 4),
        "isin": dc.isin(x, x),
        "searchsorted": dc.searchsorted(x.reshape(1), x),
        "groups": dc.groupby_reduce(x.reshape(1), [3], func="mean")[0],
        "scans of groups": dc.groupby_scan(x.reshape(1), [3], func="cumsum"),
        "mean in bins": dc.binned_statistic(x.reshape(1), x.reshape(1), bins=3)[0],
        "in bins of pairs": dc.binned_statistic_2d(*[x.reshape(1)] * 3, bins=3)[0],
        "in bins of one": dc.binned_statistic_dd(*[x.reshape(1, 1), x.reshape(1)], bins=3)[0],
        **{f"describe {n}": a for n, a in dc.describe(x)._asdict().items()},
    }


def _of_state(state: Any) -> da.Array:
    """Return the lazy number of a lazy state."""
    return da.from_delayed(state.result(pure=True), (), "f8")


def _values(filled: Any) -> da.Array:
    """Return the lazy values of a lazy histogram of five bins."""
    return da.from_delayed(filled.values(pure=True), (5,), "f8")


def _labels(x: da.Array) -> da.Array:
    return dc.sum(x, axis=0).astype("i8") % 3


def _found_groups(x: da.Array) -> Any:
    return dc.groupby_reduce(x, _labels(x), func=["mean", "argmin"])


def _with_gaps(x: da.Array) -> da.Array:
    return x.map_blocks(_without_large, dtype=x.dtype, meta=x._meta)


def _without_large(x: Any) -> Any:
    return np.where(x > 6, np.nan, x)


def is_numpy(x: da.Array) -> bool:
    return isinstance(x._meta, np.ndarray)


@pytest.mark.parametrize("build", [collections, collections_of_no_axes], ids=["axes", "no axes"])
def test_every_public_function_is_among_the_collections(build: Callable[..., Any]) -> None:
    source = inspect.getsource(build)
    functions = {name for name in dc.__all__ if inspect.isfunction(getattr(dc, name))}
    # Which make no collection, and those that only read or move chunks.
    functions -= {"explain", "install", "installed", "report", "uninstall"}
    functions -= {"from_npy", "from_zarr", "to_zarr", "to_gpu", "to_host"}
    named = {name for name in functions if f"dc.{name}(" in source or f'"{name}"' in source}
    assert functions == named


def numbers() -> Any:
    return np.arange(42.0).reshape(6, 7) % 9


def expectations(array: Any) -> dict[str, Any]:
    """Return what NumPy says to `collections`, where a test has not said it yet."""
    fours = np.lib.stride_tricks.sliding_window_view(array, 4, 0)
    nothing = np.full_like(array[:3], np.nan)
    return {
        "median": np.median(array),
        "quantiles made anew": np.quantile(array, [0.1, 0.7]),
        "percentile": np.percentile(array, 30, method="nearest"),
        "median of what is there": np.nanmedian(array),
        "quantile of what is there": np.nanquantile(array, 0.2),
        "percentiles of what is there": np.nanpercentile(array, [20, 60]),
        "sum": array.sum(),
        "sum of lines": array.sum(0, keepdims=True),
        "reproducible sum": array.sum(),
        "reproducible mean": array.mean(0),
        "min": array.min(),
        "max": array.max(-1),
        "mean": array.mean(),
        "prod": (array + 1).prod(0),
        "var": array.var(ddof=1),
        "std": array.std(0),
        "any": array.any(),
        "all": array.all(1),
        "count_nonzero": np.count_nonzero(array),
        "argmin": array.argmin(),
        "argmax": array.argmax(1),
        "ptp": np.ptp(array),
        "nansum": array.sum(),
        "nanmin": array.min(0),
        "nanargmax": array.argmax(1),
        "nanmean": array.mean(),
        "nanvar": array.var(1),
        "nanprod": (array + 1).prod(0),
        "nanmax": array.max(1),
        "nanargmin": array.argmin(0),
        "nanstd": array.std(),
        "average": np.average(array, 0, array % 4),
        "sums of weights": (array % 4).sum(0),
        "weighted mean": np.average(array, weights=array % 4),
        "cov": np.cov(array),
        "corrcoef": np.corrcoef(array.T),
        "reduce": np.hypot.reduce(array, 1),
        "var by its state": array.var(),
        "topk": np.sort(array, 1)[:, :-3:-1],
        "argtopk": np.argsort(array, 0, stable=True)[:3],
        "sort": np.sort(array, 0),
        "argsort": np.argsort(array, 1, stable=True),
        "ranks of a long line": stats.rankdata(array),
        "order of a long line by two keys": np.lexsort([array.ravel(), array.ravel() % 3]),
        "sort of a long line": np.sort(array, None),
        "argsort of a long line": np.argsort(array, None, stable=True),
        "transpose": array.T,
        "matmul": (array @ array.T).astype(int),
        "shortest paths": (array[:, None] + array).min(2),
        "norm": np.linalg.norm(array, 3, axis=0),
        "masked sum": array[array > 1].sum(),
        "masked mean": array[array > 1].mean(),
        "sum from 5": array.sum(initial=5),
        "cumsum": array.cumsum(0),
        "other cumsum": array.cumsum(1),
        "flat cumsum": array.cumsum(),
        "cumsum by chain": array.cumsum(0),
        "cumsum read twice": array.cumsum(0),
        "reverse cumsum": array[::-1].cumsum(0)[::-1],
        "exclusive cumsum": array.cumsum(0) - array,
        "cumulative_sum": np.insert(array.cumsum(1), 0, 0, axis=1),
        "cummax": np.maximum.accumulate(array, 1),
        "logcumsumexp": np.logaddexp.accumulate(array, 1),
        "scan": np.logical_or.accumulate(array, 1),
        "cumulative_trapezoid": np.cumsum((array[1:] + array[:-1]) / 2, 0),
        "longest_run": runs.statistic("longest_run", array > 4, 0),
        "count_runs": runs.statistic("count_runs", array > 4, 1, 2),
        "count_in_runs": runs.statistic("count_in_runs", array > 4, 0, 2),
        "first_run": runs.statistic("first_run", array > 2, 1, 3),
        "last_run": runs.statistic("last_run", array > 2, 0, 2),
        "run_lengths": runs.lengths(array > 2, 0, "first"),
        "lengths at the ends of runs": runs.lengths(array > 2, 1, "last"),
        "lengths of runs within segments": runs.lengths(array > 2, 1, "first", array > 6),
        "events sum": runs.sums(array > 2, array, 0, 2),
        "move_sum": moved("sum", array, 3, axis=0),
        "move_mean": moved("mean", array, 5, 2, center=True),
        "move_median": moved("median", array, 3, 1, center=True),
        "move_quantile": np.vstack([nothing, np.quantile(fours, 0.25, -1)]),
        "move_rank": moved("rank", array, 3),
        "move_argmin": moved("argmin", array, 4, axis=0),
        "move_argmax": moved("argmax", array, 3, 2, center=True),
        "move_std": moved("std", array, 3),
        "move_var": moved("var", array, 4, axis=0, ddof=1),
        "move_cov": moved("var", array, 4, axis=0, ddof=1),
        "polynomials": np.polyfit(range(6), array, 1),
        "move_corr": np.where(moved("var", array, 3) > 0, -1, np.nan),
        "move_min": moved("min", array, 6, 1, axis=0),
        "move_max": moved("max", array, 2),
        "lfilter": signal.lfilter([1.0, 2.0], [1.0, -0.5], array, 0),
        "sosfilt": signal.sosfilt([[1.0, 0, 0, 1, -0.5, 0]], array),
        "integral_image": array.cumsum(0).cumsum(1),
        "deviations from the median": stats.median_abs_deviation(array),
        "deviation from the median": stats.median_abs_deviation(array, None, scale="normal"),
        "means in bins": stats.binned_statistic(*[array.ravel()] * 2, "mean", [0, 3, 9]).statistic,
        "counts in found bins": stats.binned_statistic(*[array.ravel()] * 2, "count", 4).statistic,
        "labels": ndimage.label(array > 4)[0],
        "number of labels": ndimage.label(array > 4, np.ones((3, 3)))[1],
        "counts": np.histogram(array, 5)[0],
        "edges": np.histogram(array, 5)[1],
        "density": np.histogram(array, np.arange(8), density=True, weights=array)[0],
        "weights": np.histogram(array, 5, (0, 9), weights=array)[0],
        "counts by a rule": np.histogram(array, "sturges")[0],
        "counts of rows": np.histogramdd(array, 2)[0],
        "integers": np.bincount(array.astype("i4").ravel(), minlength=3),
        "weighed integers": np.bincount(array.astype("i4").ravel(), weights=array.ravel()),
        "bins": np.digitize(array, [1, 2, 5]),
        "counts of an axis": np.histogram(array, 5, (0, 9))[0].astype("f8"),
        "weights of an axis": np.histogram(array, 5, (0, 9), weights=array)[0],
        "elements above 4": array[array > 4],
        "coarsened": array.reshape(2, 3, 7).mean(1),
        "coarsened by a function of ours": array.reshape(3, 2, 7).var((1, 2))[:, np.newaxis],
        "pyramid": array.reshape(3, 2, 7).max(1),
        "lines": array[array.max(1) > 7],
        "columns": array.compress(array.max(0) > 7, 1),
        "odd elements": np.extract(array % 2, array),
        "rows of indices": np.nonzero(array)[0],
        "columns of indices": np.nonzero(array)[1],
        "flat indices": np.flatnonzero(array > 4),
        "pairs of indices": np.argwhere(array),
        "distinct values": np.unique(array),
        "first places": np.unique(array, return_index=True)[1],
        "places among values": np.unique(array, return_inverse=True)[1],
        "places among values and NaN": np.unique(array, return_inverse=True)[1],
        "counts of values": np.unique(array, return_counts=True)[1],
        "percentile of a score": stats.percentileofscore(array.reshape(-1), 4),
        "ranks": stats.rankdata(array, "min", axis=1).astype("f8"),
        "order by two keys": np.lexsort([array, array % 3], axis=0),
        "counts of pairs of values": stats.contingency.crosstab(
            array.ravel(), array.ravel() % 2
        ).count,
        "mode": stats.mode(array, axis=None).mode,
        "modes": stats.mode(array).mode,
        "count of modes": stats.mode(array, axis=1).count,
        "nunique": len(np.unique(array)),
        "approx_nunique": len(np.unique(array)),
        "approx_nunique of lines": np.array([[len(np.unique(line))] for line in array]),
        "nunique of lines": np.array([[len(np.unique(line))] for line in array]),
        "frequent values": np.array([0.0, 1, 2]),
        "shares of values": np.sort(np.unique(array, return_counts=True)[1]) / array.size,
        "isin": np.isin(array, array.sum(0) / 4),
        "not isin": np.isin(array, array.sum(0) / 3, invert=True),
        "searchsorted": np.searchsorted(array.cumsum(), array * 20),
        "groups": np.stack([array[:, g == LABELS].sum(1) for g in range(3)], 1),
        "covariances of groups": np.stack(
            [np.var(array[:, g == LABELS], axis=1, ddof=1) for g in range(3)], 1
        ),
        "scans of groups": sum(
            np.cumsum(np.where(g == RUNS, array, 0), 1) * (g == RUNS) for g in range(3)
        ),
        "medians of groups": np.stack(
            [np.median(array[:, g == RUNS], axis=1) for g in range(3)], 1
        ),
        "describe nans": np.int64(0),
        "describe std": array.std(),
        "describe lines var": array.var(0),
    }


def test_building_computes_nothing_and_touches_no_chunk(
    xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = to_chunks(xp, numbers(), 2).map_blocks(refuse, dtype="f8", meta=xp.empty((0, 0)))
    monkeypatch.setattr("dask_coop.chunks.backend_of", refuse)
    with dask.config.set(scheduler=refuse):
        for name, lazy in collections(x).items():
            assert dask.is_dask_collection(lazy), name
            with pytest.raises(AssertionError, match="computed while building"):
                lazy.compute()


@pytest.mark.parametrize(
    "kwargs",
    [
        {"bins": da.arange(4, chunks=4)},
        {"bins": 3, "range": (da.zeros(()), da.ones(()))},
        {"bins": da.ones((), dtype=int), "range": (0, 1)},
    ],
)
def test_lazy_bins_are_not_computed_while_building(kwargs: Any) -> None:
    with dask.config.set(scheduler=refuse):
        for lazy in dc.histogram(da.ones(4, chunks=2), **kwargs):
            assert dask.is_dask_collection(lazy)


def test_the_same_call_has_the_same_keys(xp: Any) -> None:
    first, second = (collections(to_chunks(xp, numbers(), 2)) for _ in range(2))
    for name, lazy in first.items():
        assert same_keys(lazy, second[name]), name
        assert dict(lazy.dask).keys() == dict(second[name].dask).keys(), name


def test_keys_tell_nothing_that_nobody_has_written(
    xp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = itertools.count(1)

    def filling(make: Callable[..., Any]) -> Callable[..., Any]:
        def filled(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            if type(made) is np.ndarray and made.shape == () and made.dtype.kind != "O":
                made.reshape(1).view("u1")[:] = next(fresh) % 255
            return made

        return filled

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(np, name, filling(getattr(np, name)))
    for dtype in ("f8", "f4", "i4"):
        first, second = (
            collections_of_no_axes(to_chunks(xp, np.array(4).astype(dtype), ())) for _ in range(2)
        )
        for name, lazy in first.items():
            assert dict(lazy.dask).keys() == dict(second[name].dask).keys(), (name, dtype)


def test_other_calls_have_other_keys(xp: Any) -> None:
    x = to_chunks(xp, numbers(), 2)
    lazy = {**collections(x), "chunks": dc.sum(x.rechunk(3)), "data": dc.sum(x + 1)}
    assert len({a.name for a in lazy.values()}) == len(lazy)
    mine = [set(a.dask) - set(x.dask) for a in (lazy["sum"], lazy["sum of lines"], lazy["mean"])]
    assert not mine[0] & mine[1]
    assert not mine[0] & mine[2]


def lazy_numbers() -> dict[str, Any]:
    """Return all collections, of two axes and of none, and one of masked chunks."""
    of_none = collections_of_no_axes(da.from_array(np.array(4.0), chunks=()))
    x = da.from_array(numbers(), chunks=2)
    return {
        **collections(x),
        **{f"{name} of no axes": lazy for name, lazy in of_none.items()},
        "sum of what is not masked": dc.sum(da.ma.masked_greater(x, 1)),
    }


def keys_elsewhere(seed: int) -> Any:
    """Return the names and the number of tasks of `lazy_numbers` in a process of its own.

    The process has other hashes, and finds other bytes in the memory that it is given.
    """
    # dask-array changes the tokens of functions and types in every process that imports it.
    code = (
        "import json\n"
        "from test_graphs import lazy_numbers\n"
        f"{'import dask_array' if 'dask_array' in sys.modules else ''}\n"
        "lazy = lazy_numbers()\n"
        "print(json.dumps({n: [a.name, len(dict(a.dask))] for n, a in lazy.items()}))"
    )
    return json.loads(printed("-c", code, PYTHONHASHSEED=seed, MALLOC_PERTURB_=seed))


def test_another_process_has_the_same_keys() -> None:
    expected = {name: [a.name, len(dict(a.dask))] for name, a in lazy_numbers().items()}
    assert keys_elsewhere(1) == expected
    assert keys_elsewhere(2) == expected


def added(lazy: da.Array, x: da.Array) -> int:
    """Return how many tasks `lazy` has beyond those of `x`."""
    return len(dict(lazy.dask)) - len(dict(x.dask))


COUNTS = [1, 2, 17, 31, 32, 33, 34, 65, 66, 100, 1025, 1026, 5000]


@pytest.mark.parametrize("k", COUNTS)
def test_a_scan_of_k_chunks_adds_two_tasks_a_chunk_and_a_spine(k: int) -> None:
    x = da.zeros(2 * k, chunks=2)
    spine, states = 0, k - 1
    while states:
        groups = math.ceil(states / GROUP)
        states = groups - 1
        spine += groups + states
    count = added(dc.cumsum(x), x)
    assert count == (k - 1) + k + spine
    assert count <= 2 * k + 2 * k / (GROUP - 1) + 4


@pytest.mark.parametrize("k", [1, 2, 33, 34, 100])
def test_a_scan_of_more_dimensions_is_that_for_every_line(k: int) -> None:
    x = da.zeros((3, k, 4), chunks=(1, 1, 2))
    count = added(dc.cumsum(x, axis=1), x)
    assert count == 6 * added(dc.cumsum(x[0, :, :2], axis=0), x[0, :, :2])
    assert count <= 6 * (2 * k + 2 * k / (GROUP - 1) + 4)


def tree(k: int, ways: int, limit: int) -> int:
    """Return how many tasks combine k states, `ways` at a time, until `limit` are left."""
    count = 0
    while k > limit:
        k = math.ceil(k / ways)
        count += k
    return count


@pytest.mark.parametrize("k", COUNTS)
@pytest.mark.parametrize("ways", [2, 3, FAN_IN])
def test_a_reduction_of_k_chunks_adds_k_and_a_tree(k: int, ways: int) -> None:
    x = da.zeros(2 * k, chunks=2)
    for function in (dc.sum, dc.min, dc.max, dc.mean, dc.prod, dc.var, dc.any, dc.argmin):
        assert added(function(x, split_every=ways), x) == k + tree(k, ways, ways) + 1
    described = dc.describe(x, split_every=ways)
    merged = {key for a in described for key in dict(a.dask)}
    assert len(merged) - len(dict(x.dask)) == k + tree(k, ways, 1) + len(described)


def test_a_reduction_along_an_axis_is_that_for_every_line() -> None:
    x = da.zeros((4, 40), chunks=(2, 1))
    assert added(dc.sum(x, axis=1), x) == 2 * (40 + tree(40, FAN_IN, FAN_IN) + 1)
    assert added(dc.sum(x, axis=0), x) == 40 * (2 + 1)


def test_ways_by_axis_multiply() -> None:
    x = da.zeros((8, 8), chunks=1)
    lazy = dc.sum(x, split_every={0: 2, 1: 3})
    assert added(lazy, x) == added(dc.sum(x, split_every=6), x) == 64 + tree(64, 6, 6) + 1


@pytest.mark.parametrize("k", [1, 16, 17, 100])
def test_a_histogram_of_k_chunks_adds_k_and_a_tree(k: int) -> None:
    x = da.zeros(2 * k, chunks=2)
    once = k + tree(k, FAN_IN, FAN_IN) + 1
    assert added(dc.histogram(x, 5, (0, 1))[0], x) == once
    assert added(dc.histogram(x, 5, (0, 1), weights=x)[0], x) == once
    assert added(dc.histogram(x, 5)[0], x) == 2 * once


def test_tasks_are_dasks_own_and_none_only_picks_an_item(xp: Any) -> None:
    x = to_chunks(xp, numbers(), 2)
    flat = dict(x.reshape(-1).dask)  # Dask's reshape has tasks of its own
    for name, lazy in collections(x).items():
        if name in ("box_filter", "polynomials"):
            continue  # Dask puts boxes together of slices; positions in memory are an array of its
        graph = dict(lazy.dask)
        for key in graph.keys() - x.dask.keys() - flat.keys():
            assert isinstance(graph[key], (Task, Alias)), (name, key)
            assert key_split(key) != "getitem", (name, key)


def test_layers_say_what_they_depend_on(xp: Any) -> None:
    # Chunks that are made by tasks are copied by some methods.
    x = to_chunks(xp, numbers(), 2).map_blocks(xp.asarray, dtype="f8")
    for name, lazy in collections(x).items():
        graph = lazy.dask
        graph.validate()
        owner = {key: layer for layer, tasks in graph.layers.items() for key in tasks}
        for layer, tasks in graph.layers.items():
            needed = {
                owner[key]
                for task in dict(tasks).values()
                for key in getattr(task, "dependencies", ())
            }
            assert needed - {layer} <= graph.dependencies[layer], (name, layer)


STATES = ("-lift-", "-combine-", "-base-", "-total-", "-spine-")


def states_of(lazy: da.Array) -> dict[str, list[Any]]:
    """Run the graph by hand and return what its state tasks give, by the sort of task."""
    graph = dict(lazy.dask)
    found: dict[str, list[Any]] = {}
    for sort in STATES:
        keys = [k for k in graph if sort in (k[0] if isinstance(k, tuple) else k)]
        found[sort] = list(dask.get(graph, keys)) if keys else []
    return found


def assert_small(state: Any, xp: Any, size: int) -> None:
    assert type(state) is tuple
    for field in state:
        assert isinstance(field, np.generic) or type(field) in (np.ndarray, xp.ndarray)
        assert field.size <= size


@pytest.mark.parametrize("k", [18, 40, 80])
def test_messages_are_tuples_of_scalars_or_of_small_arrays(xp: Any, k: int) -> None:
    wide = to_chunks(xp, np.ones((3 * k, 5)), (3, 5))
    long = to_chunks(xp, np.ones(1000 * k), 1000)
    cases = [
        (dc.sum(long), 1),
        (dc.mean(long), 1),
        (dc.describe(long).std, 1),
        (dc.cumsum(long), 1),
        (dc.sum(wide, axis=0), 5),
        (dc.describe(wide, axis=0).var, 5),
        (dc.cumsum(wide, axis=0), 5),
        (dc.histogram(long, 7, (0, 1))[0], 7),
        (dc.histogram(long, 7)[0], 7),
    ]
    for lazy, size in cases:
        found = states_of(lazy)
        scan = lazy.name.startswith("cumsum")
        assert len(found["-lift-"]) >= k - scan
        for state in found["-lift-"] + found["-combine-"] + found["-total-"]:
            assert_small(state, xp, size)
        for group in found["-base-"] + found["-spine-"]:
            assert type(group) is list
            assert 1 <= len(group) <= GROUP
            for state in group:
                assert_small(state, xp, size)
        assert bool(found["-base-"]) == scan
        assert bool(found["-spine-"]) == (scan and k - 1 > GROUP)
        if xp is np:
            assert max(len(pickle.dumps(s)) for s in found["-lift-"]) < 1000


def test_the_scan_of_5000_chunks_is_built_in_half_a_second() -> None:
    x = da.zeros(10_000, chunks=2)
    times = []
    for _ in range(3):
        # The process's own time: other tests run beside this one.
        start = time.process_time()
        dc.cumsum(x)
        times.append(time.process_time() - start)
    assert min(times) < 0.5


def reader(array: Any, chunks: Any) -> tuple[da.Array, list[Any]]:
    """Return a Dask array and a list that grows by each block that is computed."""
    read: list[Any] = []

    def note(block: Any, block_id: Any) -> Any:
        read.append(block_id)
        return block

    x = da.from_array(array, chunks=chunks)
    return x.map_blocks(note, dtype=array.dtype, meta=np.empty((0,) * x.ndim, array.dtype)), read


@pytest.mark.parametrize(("stop", "blocks"), [(5, 1), (10, 1), (11, 2), (200, 20), (400, 40)])
def test_the_beginning_of_a_scan_needs_only_the_beginning(stop: int, blocks: int) -> None:
    x, read = reader(np.arange(600), 10)
    result = dc.cumsum(x)[:stop].compute(scheduler="synchronous")
    np.testing.assert_array_equal(result, np.cumsum(np.arange(stop)))
    assert set(read) >= {(i,) for i in range(blocks)}
    # A base comes from a group of states.
    assert len(set(read)) <= (1 if blocks == 1 else GROUP * math.ceil(blocks / GROUP))


def test_one_line_of_a_scan_or_reduction_needs_only_that_line() -> None:
    for function in (dc.cumsum, dc.sum, dc.mean):
        x, read = reader(np.ones((4, 30)), (1, 3))
        function(x, axis=1)[2].compute(scheduler="synchronous")
        assert set(read) == {(2, j) for j in range(10)}


def test_one_statistic_reads_the_data_once_and_so_do_all() -> None:
    x, read = reader(np.arange(50.0), 5)
    dask.compute(*dc.describe(x), scheduler="synchronous")
    assert sorted(read) == [(i,) for i in range(10)]


def like(xp: Any, expected: Any) -> Any:
    """Return what NumPy expects as the kind of `xp`'s arrays, which assert_eq tells apart."""
    return expected if xp is np else xp.asarray(expected)


@pytest.mark.parametrize("dtype", REAL)
def test_results_keep_dasks_promises(xp: Any, dtype: str) -> None:
    array = np.random.default_rng(7).integers(0, 2, (7, 9)).astype(dtype)
    x = to_chunks(xp, array, (3, 4))
    for axis in (None, 0, 1, (0, 1)):
        for name in ("sum", "min", "max"):
            assert_eq(getattr(dc, name)(x, axis), like(xp, getattr(np, name)(array, axis)))
            kept = getattr(dc, name)(x, axis, keepdims=True)
            assert_eq(kept, like(xp, getattr(np, name)(array, axis, keepdims=True)))
        assert_eq(
            dc.mean(x, axis), like(xp, np.mean(array, axis, dtype="f8").astype(dc.mean(x).dtype))
        )
        for lazy in dc.describe(x, axis):
            assert_eq(lazy, lazy)
    for axis in (None, 0, 1):
        assert_eq(dc.cumsum(x, axis), like(xp, np.cumsum(array, axis)))
    for lazy in dc.histogram(x, 4):
        assert_eq(lazy, lazy)


def test_the_kind_of_chunk_is_kept_where_there_is_no_gpu_to_ask() -> None:
    # A client that sends work to GPUs may have none; the type's name is all that it can go by.
    cupys = type("ndarray", (np.ndarray,), {"__module__": "cupy"})
    meta = np.empty((0, 0)).view(cupys)
    x = da.from_array(numbers(), chunks=2).map_blocks(refuse, dtype="f8", meta=meta)
    for name, lazy in collections(x).items():
        # Edges are NumPy's in any case, and so is what histograms of axes hold; and NumPy's
        # subclasses cannot be zero-dimensional.
        is_numpys = name == "edges" or "of an axis" in name
        expected = cupys if lazy.ndim and not is_numpys else np.ndarray
        assert type(lazy._meta) is expected, name


def test_chunks_of_results(xp: Any) -> None:
    x = to_chunks(xp, np.ones((7, 9, 4)), ((3, 0, 4), (5, 4), 4))
    assert dc.sum(x, axis=1).chunks == ((3, 0, 4), (4,))
    assert dc.sum(x, axis=(0, 2), keepdims=True).chunks == ((1,), (5, 4), (1,))
    assert dc.sum(x).chunks == ()
    assert dc.cumsum(x, axis=2).chunks == x.chunks
    assert dc.histogram(x, 6, (0, 1))[0].chunks == ((6,),)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Return a client of two worker processes."""
    with cluster(2) as client:
        yield client


@pytest.fixture(params=["synchronous", "threads", "cluster"])
def scheduler(request: pytest.FixtureRequest) -> Any:
    """Return what `dask.compute(scheduler=)` takes, for every sort of scheduler."""
    return request.getfixturevalue("client") if request.param == "cluster" else request.param


def test_every_scheduler_gives_numpys_results(scheduler: Any) -> None:
    array = numbers()
    lazy = collections(da.from_array(array, chunks=2))
    results = dict(zip(lazy, dask.compute(*lazy.values(), scheduler=scheduler), strict=True))
    for name, expected in expectations(array).items():
        np.testing.assert_allclose(results[name], expected, rtol=1e-14, err_msg=name)
        assert results[name].dtype == lazy[name].dtype


def test_every_scheduler_takes_many_chunks(scheduler: Any) -> None:
    array = np.arange(600)
    x = da.from_array(array, chunks=2)
    scan, total = dask.compute(dc.cumsum(x), dc.sum(x), scheduler=scheduler)
    np.testing.assert_array_equal(scan, np.cumsum(array))
    assert total == array.sum()


def test_results_persist_and_go_on(scheduler: Any) -> None:
    array = numbers()
    x = da.from_array(array, chunks=2).persist(scheduler=scheduler)
    scan = dc.cumsum(x, axis=0).persist(scheduler=scheduler)
    after = dc.sum(scan.map_blocks(np.negative), axis=1)
    np.testing.assert_allclose(after.compute(scheduler=scheduler), -array.cumsum(0).sum(1))


def test_errors_of_tasks_reach_the_caller(scheduler: Any) -> None:
    lazy = dc.histogram(da.from_array(np.array([1.0, np.nan, 2.0]), chunks=1), 3)[0]
    with pytest.raises(ValueError, match="is not finite"):
        lazy.compute(scheduler=scheduler)


@pytest.mark.cublas
def test_collections_pickle(xp: Any) -> None:
    array = numbers()
    lazy = collections(to_chunks(xp, array, 2))
    found = expectations(array)
    for name in found.keys() & lazy.keys():
        again, expected = pickle.loads(pickle.dumps(lazy[name])), found[name]
        assert again.name == lazy[name].name
        # Edges are NumPy's in any case.
        assert_eq(again, expected if name == "edges" else like(xp, expected))


def unknown(array: Any, keep: Callable[[Any], Any]) -> da.Array:
    """Return the kept elements in chunks whose sizes Dask does not know, some of them empty."""
    x = da.from_array(array, chunks=4)
    x = x[keep(x)]
    assert math.isnan(x.shape[0])
    return x


def test_unknown_chunk_sizes_need_not_be_known() -> None:
    array = np.arange(30.0)
    x, kept = unknown(array, lambda x: x >= 9), array[9:]
    for name in ("sum", "min", "max", "mean", "any", "all", "ptp", "count_nonzero"):
        assert getattr(dc, name)(x).compute() == getattr(np, name)(kept)
    assert dc.prod(x).compute() == pytest.approx(kept.prod(), rel=1e-14)
    assert dc.var(x).compute() == pytest.approx(kept.var(), rel=1e-15)
    assert dc.describe(x).std.compute() == pytest.approx(kept.std(), rel=1e-15)
    np.testing.assert_array_equal(dc.cumsum(x).compute(), kept.cumsum())
    np.testing.assert_array_equal(dc.cumsum(x, axis=0).compute(), kept.cumsum())
    for args in ((5, (0, 20)), (5,), ([0, 10, 20],)):
        counts, edges = dc.histogram(x, *args)
        np.testing.assert_array_equal(counts.compute(), np.histogram(kept, *args)[0])
        np.testing.assert_array_equal(np.asarray(edges), np.histogram(kept, *args)[1])


@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_nothing_behind_unknown_chunk_sizes_is_refused_when_it_shows(dtype: str) -> None:
    x = unknown(np.arange(10, dtype=dtype), lambda x: x > 99)
    assert dc.sum(x).compute() == 0
    assert np.isnan(dc.mean(x).compute())
    for function in (dc.min, dc.max):
        with pytest.raises(ValueError, match="zero-size array to reduction operation"):
            function(x).compute(scheduler="synchronous")
