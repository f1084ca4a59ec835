"""Exact medians and quantiles of groups, their modes, and their numbers of distinct elements.

`graph/group_quantiles.py` gathers the elements of groups, of lazy labels in whole lines;
`graph/group_selection.py` counts digits of all elements where lazy labels are along all axes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np

from dask_coop import chunks
from dask_coop.algebra.quantiles import METHODS, Quantiles
from dask_coop.algebra.statistics import Fill
from dask_coop.api.arguments import as_dtype, rechunk, reshaped, without_empty
from dask_coop.api.groups.statistics import Asked, filled_dtype, missing, refuse_others
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.chunks.labels import Coder
from dask_coop.chunks.repeats import Repeats
from dask_coop.errors import Declined, Refused, remedy
from dask_coop.graph import executor, found_groups, group_quantiles, group_selection, line_quantiles
from dask_coop.graph.found_groups import Found
from dask_coop.graph.group_quantiles import Coded, Form
from dask_coop.graph.grouped import Known, Lazy

#: The statistics of this module.
NAMES = ("median", "nanmedian", "quantile", "nanquantile", "mode", "nanmode", "nunique")

#: What quantiles take in `finalize_kwargs`.
WORDS = {"q", "method"}

#: The bytes of an array that one task sorts in less time than rounds of counting take.
_SMALL = 2**18


def quantiles(
    func: str,
    x: da.Array,
    labels: Known | Lazy | Found,
    shape: tuple[int, ...],
    asked: Asked,
    kwargs: dict[str, Any],
) -> da.Array:
    """Return quantiles of the groups of `x`; axes are those of `q`, the kept ones, and the groups.

    Raises
    ------
    TypeError, ValueError
        If `q` is missing or invalid, or elements cannot be sorted.
    """
    if executor.runner() is not None:
        raise Declined(f"the elements of each group are gathered for its {func}")
    if x.dtype.kind not in "biufmM" or not (x.dtype.kind in "mM" or chunks.is_common(x.dtype)):
        kinds = "biufmM"
        raise Refused(
            f"groupby_reduce by {func} does not take dtype {x.dtype}; {remedy(x.dtype, kinds)}"
        )
    if x.dtype.kind == "M":
        return _of_dates(func, x, labels, shape, asked, kwargs)
    quantiles = _quantiles(func, kwargs)
    counted = isinstance(quantiles, Quantiles) and x.dtype.kind == "b"
    element = np.dtype("i8") if counted else x.dtype
    x = as_dtype(x, element)
    result = quantiles.result(element) if asked.dtype is None else np.dtype(asked.dtype)
    nothing = 0 if func == "nunique" else missing(result)
    dtype = result if asked.fill_value is None else filled_dtype(result, asked.fill_value)
    fill = Fill(asked.fill_value, asked.least, nothing)
    form = Form(func, quantiles, result, dtype, fill)
    x = without_empty(x)
    if not isinstance(labels, Known):
        return _of_lazy(x, labels, shape, form)
    kept, n = x.ndim - labels.ndim, math.prod(shape)
    codes, outer = of_rows(labels, x.shape[kept:], n)
    x = reshaped(x, (*x.shape[:kept], codes.size)) if labels.ndim > 1 else x
    order: np.ndarray[Any, Any] | None
    order = np.argsort(codes, kind="stable")
    order = order[np.searchsorted(codes[order], 0) :]
    lengths = np.bincount(codes[order], minlength=n * math.prod(outer))
    whole = [(0, len(lengths))]
    if np.array_equal(order, np.arange(x.shape[-1])):
        order = None
    elif x.numblocks[-1] == 1:
        # Tasks take the elements of each group where they lie.
        return _shaped(group_quantiles.quantiles(x, order, lengths, whole, form), outer, shape)
    else:
        x = x[..., order]
    if x.size:
        x, cuts = group_quantiles.gathered(x, lengths)
    else:
        x, cuts = rechunk(x, (*x.chunks[:-1], (x.shape[-1],))), whole
    return _shaped(group_quantiles.quantiles(x, None, lengths, cuts, form), outer, shape)


def _shaped(values: da.Array, outer: tuple[int, ...], shape: tuple[int, ...]) -> da.Array:
    """Return the results of all rows and groups, with an axis for each row axis and each label."""
    if not outer and len(shape) == 1:
        return values
    return reshaped(values, (*values.shape[:-1], *outer, *shape))


def _of_lazy(x: da.Array, labels: Lazy | Found, shape: tuple[int, ...], form: Form) -> da.Array:
    """Return quantiles of groups of lazy labels, of whole lines or by counts of digits."""
    kept = x.ndim - labels.ndim + labels.rows
    arrays: tuple[da.Array, ...]
    coder: Coder | da.Array
    sizes: tuple[float, ...]
    if isinstance(labels, Found):
        arrays, coder, sizes = (labels.label,), found_groups.groups(labels.label), (np.nan,)
    else:
        arrays, coder, sizes = labels.arrays, labels.coder, shape
    if not kept and x.nbytes > _SMALL and isinstance(form.quantiles, Quantiles):
        coded = Coded(_like(arrays, x.chunks), coder)
        return group_selection.quantiles(x, coded, sizes, form)
    axes = tuple(range(kept, x.ndim))
    if any(n != n for n in x.shape):
        x = x.rechunk(dict.fromkeys(axes, -1))
    elif x.size:
        x = line_quantiles.gathered(x, axes)
    else:
        x = rechunk(x, (*x.chunks[:kept], *((n,) for n in x.shape[kept:])))
    coded = Coded(_like(arrays, x.chunks[x.ndim - labels.ndim :]), coder, labels.rows)
    return group_quantiles.quantiles_of_lazy(x, coded, sizes, form)


def _like(arrays: tuple[da.Array, ...], sizes: Any) -> tuple[da.Array, ...]:
    return tuple(rechunk(array, sizes) for array in arrays)


def _of_dates(
    func: str,
    x: da.Array,
    labels: Known | Lazy | Found,
    shape: tuple[int, ...],
    asked: Asked,
    kwargs: dict[str, Any],
) -> da.Array:
    """Return quantiles of dates, from their durations since 1970; NumPy has no medians of dates."""
    dates = x.dtype.newbyteorder("=")
    since = np.dtype(dates.str.replace("M", "m"))
    if asked.fill_value is not None:
        asked = replace(asked, fill_value=np.asarray(asked.fill_value).astype(dates).view(since))
    x = x.astype(dates).map_blocks(_seen_as, since, **declared_by(x), dtype=since)
    durations = quantiles(func, x, labels, shape, asked, kwargs)
    if func == "nunique":
        return durations
    meta = chunks.zeros_like(durations._meta, dates)
    return durations.map_blocks(_seen_as, dates, dtype=dates, meta=meta)


def _quantiles(func: str, kwargs: dict[str, Any]) -> Quantiles | Repeats:
    options, skipna = dict(kwargs), func.startswith("nan")
    asked: Quantiles | Repeats
    if func == "nunique":
        asked = Repeats("nunique", True)
    elif func.endswith("mode"):
        asked = Repeats("mode", skipna)
    elif func.endswith("median"):
        asked = Quantiles(None, skipna=skipna)
    else:
        if "q" not in options:
            raise ValueError(f"{func} needs q: finalize_kwargs={{'q': 0.9}}")
        try:
            q = np.asarray(options["q"], "f8")
        except (TypeError, ValueError):
            raise TypeError(f"q of {func} is one number or several, got {options['q']!r}") from None
        if q.ndim > 1 or not ((q >= 0) & (q <= 1)).all():
            raise ValueError(f"q of {func} is between 0 and 1, one number or several, got {q}")
        method = options.get("method", "linear")
        if method not in METHODS:
            raise ValueError(f"{method!r} is not a valid method; there are {', '.join(METHODS)}")
        asked = Quantiles(q, method, skipna)
    refuse_others(func, options, WORDS if func.endswith("quantile") else ())
    return asked


def of_rows(
    labels: Known, sides: tuple[int, ...], n: int
) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """Return the codes of all elements along the label axes; each row has its own groups."""
    codes = np.broadcast_to(labels.codes, sides)
    outer = sides[: labels.rows]
    first = np.arange(math.prod(outer)).reshape(*outer, *(1,) * (len(sides) - labels.rows)) * n
    return np.where(codes < 0, -1, codes + first).reshape(-1), outer


# Inside the task.


@casts
def _seen_as(x: Any, dtype: np.dtype[Any]) -> Any:
    return x.view(dtype)
