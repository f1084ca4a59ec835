"""The functions that `install` puts in the place of Dask's, and of the package dask-array's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import numpy as np
from dask.array import reductions
from dask.array.core import Array, asanyarray

from dask_coop.api import (
    cumulative,
    extrema,
    fills,
    moments,
    norm,
    order,
    selection,
    sums,
    topk,
    unique,
    windows,
)
from dask_coop.api.arguments import as_dtype
from dask_coop.api.call.fallback import is_left_to_dask
from dask_coop.api.call.planning import holds_theirs, with_expressions
from dask_coop.api.call.public import strict
from dask_coop.api.call.report import differing
from dask_coop.api.histograms import bincount, histogram, histogramdd
from dask_coop.api.install.substitutes import Row
from dask_coop.api.paired import average, covariance
from dask_coop.errors import Refused

#: Our modules, and their functions that replace Dask's of the same name. Not `transpose`, which
#: calls Dask's, and not `select`, which in Dask is another function.
_SAME = {
    sums: "sum prod any all count_nonzero nansum nanprod",
    extrema: "min max ptp argmin argmax nanmin nanmax nanargmin nanargmax",
    moments: "mean var std nanmean nanvar nanstd moment",
    average: "average",
    covariance: "cov corrcoef",
    bincount: "digitize",
    order: "median nanmedian quantile nanquantile nanpercentile",
    topk: "topk argtopk",
    selection: "compress extract nonzero flatnonzero argwhere",
    unique: "isin searchsorted",
    windows: "coarsen",
}

_SCANS = (cumulative.cumsum, cumulative.cumprod, cumulative.nancumsum, cumulative.nancumprod)

_NUMPYS = "values are NumPy's where Dask's are not, and chunks may be others"
_FIRST = "the index is that of the first of equal elements, as NumPy's"

#: How results may differ from Dask's, for `report`.
_DIFFERENCES = {
    **dict.fromkeys(("quantile", "nanquantile", "median", "nanmedian"), _NUMPYS),
    **dict.fromkeys(("percentile", "nanpercentile"), f"exact; {_NUMPYS}"),
    "coarsen": "chunks may be others",
    **dict.fromkeys(("argmin", "argmax", "nanargmin", "nanargmax"), _FIRST),
}

#: Dask's methods of scans; methods of arrays always pass one.
_METHODS = ("sequential", "blelloch")


@cache
def _served(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that builds our lazy results; it refuses `engine`, as Dask has none."""
    build, differences = strict(function), _DIFFERENCES.get(function.__name__, "")

    @wraps(function)
    def serve(*args: Any, **kwargs: Any) -> Any:
        if "engine" in kwargs:
            raise Refused(f"{function.__name__} has no engine in the place of Dask's")
        with differing(differences):
            return build(*args, **kwargs)

    return serve


def _scan(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a scan that uses our method, whichever of Dask's methods the caller names."""
    build = _served(function)

    @wraps(function)
    def scan(
        x: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        method: Any = None,
        **others: Any,
    ) -> Any:
        if method is not None and method not in _METHODS:
            raise Refused(f"method is none of Dask's, but {method!r}")
        return build(x, axis, dtype, out, **others)

    return scan


def _percentile(
    a: Any, q: Any, method: str = "linear", internal_method: str = "default", **others: Any
) -> Any:
    """Return percentiles as NumPy's; refuse Dask's approximate methods."""
    if internal_method != "default":
        raise Refused(f"percentiles are exact, not those of internal_method={internal_method!r}")
    return _served(order.percentile)(a, q, method=method, **others)


def _nanmedian(
    a: Any, axis: Any = None, keepdims: bool = False, out: Any = None, **others: Any
) -> Any:
    """Return medians, in float64 where Dask would call numbagg."""
    by_numbagg = getattr(reductions, "HAS_NUMBAGG", False) and axis is not None and not keepdims
    if by_numbagg and getattr(a, "dtype", None) in (np.float16, np.float32):
        a = as_dtype(asanyarray(a), "f8")
    return _served(order.nanmedian)(a, axis, keepdims, out, **others)


def _histogram(a: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a histogram; edges given as a list become lazy, as in Dask."""
    counts, edges = _served(histogram.histogram)(a, *args, **kwargs)
    bins = args[0] if args else kwargs.get("bins")
    return counts, asanyarray(edges) if isinstance(bins, list | tuple) else edges


def _in_memory(edges: Any) -> Any:
    """Return edges that depend on no data as NumPy's, as Dask does for several coordinates."""
    return edges.compute(scheduler="sync") if len(edges.__dask_graph__()) == 1 else edges


def _histogramdd(*args: Any, **kwargs: Any) -> Any:
    counts, edges = _served(histogramdd.histogramdd)(*args, **kwargs)
    return counts, [*map(_in_memory, edges)]


def _histogram2d(*args: Any, **kwargs: Any) -> Any:
    counts, *edges = _served(histogramdd.histogram2d)(*args, **kwargs)
    return counts, *map(_in_memory, edges)


def _bincount(x: Any, weights: Any = None, minlength: int = 0, *args: Any, **kwargs: Any) -> Any:
    """Return counts with the length `minlength`, as Dask declares it: code may rely on that."""
    counts = _served(bincount.bincount)(x, weights, minlength, *args, **kwargs)
    if not minlength or not isinstance(counts, Array):
        return counts
    return Array(counts.dask, counts.name, ((int(minlength),),), meta=counts._meta)


def _unique(ar: Any, *args: Any, sorted: bool = True, **kwargs: Any) -> Any:
    """Return distinct values; NumPy's `sorted` permits any order, and they always have theirs."""
    return _served(unique.unique)(ar, *args, **kwargs)


def _push(array: Any, n: int | None, axis: int) -> Any:
    """Return an array with its gaps filled; Dask's function takes the limit before the axis."""
    return strict(fills.ffill)(array, axis, n)


def _is_ours(*args: Any, **kwargs: Any) -> bool:
    return not is_left_to_dask()


def _is_of_theirs(*args: Any, **kwargs: Any) -> bool:
    return not is_left_to_dask() and holds_theirs((args, *kwargs.values()))


@cache
def rows() -> tuple[Row, ...]:
    """Return the rows of Dask's functions and ours."""
    same = [getattr(module, name) for module, names in _SAME.items() for name in names.split()]
    served = {function.__name__: _served(function) for function in same}
    served |= {function.__name__: _scan(function) for function in _SCANS}
    served |= {"histogram": _histogram, "histogramdd": _histogramdd, "histogram2d": _histogram2d}
    served |= {"bincount": _bincount, "percentile": _percentile, "push": _push}
    served["unique"] = _unique
    served["nanmedian"] = _nanmedian
    return (
        *(Row("dask.array", name, build, _is_ours) for name, build in served.items()),
        Row("dask.array.linalg", "norm", _served(norm.norm), _is_ours),
        Row("dask.array.stats", "skew", _served(moments.skew), _is_ours),
        Row("dask.array.stats", "kurtosis", _served(moments.kurtosis), _is_ours),
    )


@cache
def rows_of_dask_array() -> tuple[Row, ...]:
    """Return the rows of the functions of dask-array, which have the names of Dask's, and ours."""
    return tuple(
        Row(
            row.module.replace("dask.array", "dask_array"),
            row.name,
            with_expressions(row.build),
            _is_of_theirs,
        )
        for row in rows()
    )
