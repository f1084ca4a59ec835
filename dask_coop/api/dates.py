"""Statistics of dates and durations in NumPy chunks.

Sums and means of durations are computed from sums of integers; NaT if an element is NaT.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import handle_out, map_blocks

from dask_coop import chunks
from dask_coop.algebra import ticks
from dask_coop.algebra.monoids import ANY, SUM, TICKS, State
from dask_coop.algebra.operation import bind
from dask_coop.algebra.statistics import only_field
from dask_coop.api.arguments import ReductionArguments, SplitEvery, reduce_array
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Declined, Refused, remedy
from dask_coop.graph import executor
from dask_coop.graph import reduce as graph_reduce

#: The statistics of dates. Durations have a sum, too. There is no variance: NumPy has no unit for
#: squares.
OF_DATES = ("count", "nans", "min", "max", "mean", "std")


def describe_dates(
    x: da.Array, axes: tuple[int, ...], keepdims: bool, split_every: SplitEvery
) -> dict[str, da.Array]:
    """Return the available statistics of datetime64 or timedelta64, by name."""
    op = bind(TICKS, x.dtype, x.dtype, "describe", times="mM")
    element, count = op.element, np.dtype("i8")
    dtypes = dict.fromkeys(OF_DATES, element) | {"count": count, "nans": count}
    if element.kind == "m":
        dtypes["sum"] = element
    dtypes["std"] = np.dtype(element.str.replace("M8", "m8"))
    outputs = {name: (partial(_statistic, name, dtype), dtype) for name, dtype in dtypes.items()}
    arrays = graph_reduce.reduction(op, x, axes, keepdims, split_every, outputs)
    return dict(zip(outputs, arrays, strict=True))


# From the last state to the result, inside the task.


def _statistic(name: str, dtype: np.dtype[Any], state: State) -> Any:
    count, nats, least, most, high, low, m2 = state
    match name:
        case "count":
            return count
        case "nans":
            return nats
        case "sum":
            return np.asarray((high << 48) + low).view(dtype)
        case "min":
            value = least
        case "max":
            value = most
        case "mean":
            value, remainder = ticks.divide(high, low, count)
            # Round towards zero, as NumPy divides durations.
            value = value + ((value < 0) & (remainder > 0) & (dtype.kind == "m"))
        case "std":
            value = np.rint(np.sqrt(m2 / np.maximum(count, 1)))
            # For dates at both ends of time this would round to the tick after the last.
            value = np.minimum(value, np.nextafter(2.0**63, 0))
    value = np.where(count > 0, value, ticks.NAT)
    return value.astype("i8").view(dtype)


def reduce_durations(
    name: str,
    x: da.Array,
    dtype: Any,
    given: ReductionArguments,
) -> da.Array:
    """Return the sum or the mean of timedelta64 by the arguments of the public function `name`.

    Raises
    ------
    Refused
        If `dtype` is another dtype, `initial` is set, or chunks are not NumPy's.
    Declined
        If a runner works at once.
    """
    native = x.dtype.newbyteorder("=")
    for argument, value, bad in (
        ("chunks of type", "cupy.ndarray", chunks.kind(x._meta) != "numpy"),
        ("initial =", given.initial, given.initial is not None),
        ("dtype =", dtype, dtype is not None and np.dtype(dtype).newbyteorder("=") != native),
    ):
        if bad:
            raise Refused(
                f"{name} does not take dtype {x.dtype} with {argument} {value!r}; "
                f"{remedy(x.dtype, 'i')}"
            )
    if executor.runner() is not None:
        raise Declined(f"{name} of durations adds numbers that tasks make of the chunks")
    x = x.astype(native)
    # Sums of integers are reproducible in any case.
    within = given._replace(out=None, reproducible=False)

    def reduced(monoid: Any, function: Any, kind: str) -> da.Array:
        """Apply `function` to each chunk, and reduce the results."""
        meta = chunks.zeros_like(x._meta, kind)
        converted = map_blocks(function, x, **declared_by(x), dtype=kind, meta=meta)
        return reduce_array(monoid, name, only_field, converted, within)

    reductions = [reduced(SUM, _numbers, "i8"), reduced(ANY, _isnat, "?")]
    if name == "mean":
        reductions.append(reduced(SUM, _ones, "i8"))
    meta = chunks.zeros_like(reductions[0]._meta, x.dtype)
    result = map_blocks(_finish, *reductions, of=x.dtype, token=name, dtype=x.dtype, meta=meta)
    return handle_out(given.out, result)


# Inside the task.


@casts
@chunks.keeps_mask
def _numbers(x: Any) -> Any:
    return np.where(np.isnat(x), 0, x.view("i8"))


@casts
@chunks.keeps_mask
def _isnat(x: Any) -> Any:
    return np.isnat(x)


@casts
@chunks.keeps_mask
def _ones(x: Any) -> Any:
    return np.ones(x.shape, "i8")


def _finish(total: Any, missing: Any, count: Any = None, *, of: Any) -> Any:
    mask = np.ma.getmask(total)
    value = np.asarray(total, "i8").view(of)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = value if count is None else value / np.ma.getdata(count)
    value = np.where(np.ma.getdata(missing), np.array("NaT", value.dtype), value)
    value = value.astype(of, copy=False)
    return (value if mask is np.ma.nomask else np.ma.array(value, mask=mask))[()]
