"""Statistics of groups of dates and durations in NumPy chunks, computed from their integer ticks.

NaT is the lowest integer. So the minimum of ticks is NaT if any element is, and their maximum only
if all elements are. For negated ticks, where NaT stays the lowest integer, it is the other way
round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import map_blocks

from dask_coop import chunks
from dask_coop.api.groups.statistics import Asked, find, refuse_others
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Declined, Refused
from dask_coop.graph import executor

#: By statistic of dates: the statistic of ticks, and whether to negate these.
_OF_TICKS = {
    "min": ("min", False),
    "max": ("min", True),
    "nanmin": ("max", True),
    "nanmax": ("max", False),
    "first": ("first", False),
    "last": ("last", False),
    "argmin": ("argmin", False),
    "argmax": ("argmin", True),
}

Reduce = Callable[[Any, Any], list[da.Array]]


def reduce_dates(func: Any, request: Any, kwargs: Mapping[str, Any], reduced: Reduce) -> da.Array:
    """Return a statistic of groups of dates or durations; `reduced` reduces groups of numbers.

    Raises
    ------
    TypeError
        If dates do not support the statistic, or chunks are not NumPy's.
    """
    x, asked = request.x, request.asked
    dtype = x.dtype.newbyteorder("=")
    if chunks.kind(x._meta) != "numpy":
        raise Refused(f"groupby_reduce takes dtype {dtype} in NumPy chunks only")
    refuse_others(f"{func} of dtype {dtype}", kwargs, ())
    if asked.dtype is not None and np.dtype(asked.dtype) != dtype:
        raise Refused(f"groupby_reduce by {func} gives dtype {dtype}, not {asked.dtype}")
    if executor.runner() is not None:
        raise Declined("dates are reduced by their ticks, which tasks make of them")
    x = x.astype(dtype)

    def reduce_numbers(
        name: str, convert: Callable[..., Any], *args: Any, kind: str = "i8", **more: Any
    ) -> Any:
        """Return a statistic of the numbers that `convert` returns for each chunk."""
        meta = chunks.zeros_like(x._meta, kind)
        options = {**declared_by(x), "dtype": kind, "meta": meta, "token": "groupby-ticks"}
        numbers = map_blocks(convert, x, *args, **options)
        statistic = find(name, np.dtype(kind), replace(asked, dtype=None, **more), {})
        return reduced(request._replace(x=numbers), [statistic])[0]

    if func == "count":
        return reduce_numbers("sum", _valid, kind="?", fill_value=asked.fill_value or 0)
    if func in _OF_TICKS:
        return _of_ticks(func, asked, dtype, reduce_numbers)
    if func in ("mean", "nanmean") or (func in ("sum", "nansum") and dtype.kind == "m"):
        return _of_sums(func, asked, dtype, reduce_numbers)
    takes = ", ".join([*_OF_TICKS, "count", "mean", "nanmean", "median", "quantile"])
    raise Refused(
        f"groupby_reduce by {func} does not take dtype {dtype}; there are {takes} of dates, and of "
        "durations sum and nansum; .view('i8') has the ticks, NaT as the least integer"
    )


def _of_ticks(func: str, asked: Asked, dtype: np.dtype[Any], reduce_numbers: Any) -> da.Array:
    name, negated = _OF_TICKS[func]
    if func.startswith("arg"):
        return reduce_numbers(name, _ticks, negated)
    fill = None
    if asked.fill_value is not None:
        fill = int(_ticks(_as_time(asked.fill_value, dtype), negated))
    ticks = reduce_numbers(name, _ticks, negated, fill_value=fill)
    meta, token = _meta(ticks, dtype), f"groupby-{func}-dates"
    return map_blocks(_from_ticks, ticks, negated, dtype, dtype=dtype, meta=meta, token=token)


def _of_sums(func: str, asked: Asked, dtype: np.dtype[Any], reduce_numbers: Any) -> da.Array:
    """Return exact sums or means, from sums of the upper and the lower halves of ticks."""
    unfilled = {"fill_value": None, "least": 0}
    halves = [reduce_numbers("sum", _half, upper, **unfilled) for upper in (True, False)]
    counts = [reduce_numbers("sum", flags, kind="?", **unfilled) for flags in (_valid, _nat)]
    fill = None if asked.fill_value is None else _as_time(asked.fill_value, dtype)
    return map_blocks(
        _of_halves,
        *halves,
        *counts,
        func,
        fill,
        asked.least,
        dtype,
        dtype=dtype,
        meta=_meta(halves[0], dtype),
        token=f"groupby-{func}-dates",
    )


def _as_time(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, float) and np.isnan(value):
        value = "NaT"
    return np.asarray(value).astype(dtype)


def _meta(x: da.Array, dtype: np.dtype[Any]) -> Any:
    return chunks.zeros_like(x._meta, dtype)


# Inside the task.


@casts
def _ticks(x: Any, negated: bool) -> Any:
    ticks = x.view("i8")
    with np.errstate(over="ignore"):
        return -ticks if negated else ticks


def _from_ticks(x: Any, negated: bool, dtype: np.dtype[Any]) -> Any:
    return _ticks(x, negated).view(dtype)


@casts
def _valid(x: Any) -> Any:
    return ~np.isnat(x)


@casts
def _nat(x: Any) -> Any:
    return np.isnat(x)


@casts
def _half(x: Any, upper: bool) -> Any:
    ticks = np.where(np.isnat(x), 0, x.view("i8"))
    return ticks >> 32 if upper else ticks & 0xFFFFFFFF


def _of_halves(
    upper: Any, lower: Any, count: Any, nats: Any, func: str, fill: Any, least: int, dtype: Any
) -> Any:
    """Return sums or means of ticks from the sums of their halves; means are rounded as NumPy's."""
    # Counts of groups without elements may be a negative fill value.
    upper, lower, count, nats = (
        np.maximum(x, 0) if x is not upper else x for x in (upper, lower, count, nats)
    )
    upper = np.where(count > 0, upper, 0)
    with np.errstate(over="ignore"):
        if func.endswith("sum"):
            total = (upper << 32) + lower
        else:
            divisor = np.maximum(count, 1)
            high, remainder = np.divmod(upper, divisor)
            low, remainder = np.divmod((remainder << 32) + lower, divisor)
            total = (high << 32) + low
            if dtype.kind == "m":
                # NumPy rounds durations towards zero, dates down.
                total = total + ((total < 0) & (remainder > 0))
    result = total.view(dtype)
    lost = (nats > 0) if not func.startswith("nan") else False
    nothing = lost | (count == 0) if func.endswith("mean") else lost
    result = np.where(nothing, np.array("NaT", dtype), result)
    empty = count + nats == 0
    few = empty | (count < least)
    if few.any():
        result = np.where(few, np.array("NaT", dtype) if fill is None else fill, result)
    return result
