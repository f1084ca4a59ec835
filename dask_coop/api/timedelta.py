"""Sums and means of durations in NumPy chunks: sums of integers, unless one is NaT."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import handle_out, map_blocks

from dask_coop import chunks
from dask_coop.algebra.monoids import ANY, SUM
from dask_coop.api.arguments import ReductionArguments, only_field, reduce_array
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Refused, remedy


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
        If it is asked for as another dtype, from an initial one, or of chunks that are not NumPy's.
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
    x = x.astype(native)
    # Integers add up to the same bits in any order.
    within = given._replace(out=None, reproducible=False)

    def reduced(monoid: Any, part: Any, kind: str) -> da.Array:
        """Reduce what `part` makes of a chunk."""
        meta = chunks.zeros_like(x._meta, kind)
        made = map_blocks(part, x, **declared_by(x), dtype=kind, meta=meta)
        return reduce_array(monoid, name, only_field, made, within)

    parts = [reduced(SUM, _numbers, "i8"), reduced(ANY, _isnat, "?")]
    if name == "mean":
        parts.append(reduced(SUM, _ones, "i8"))
    meta = chunks.zeros_like(parts[0]._meta, x.dtype)
    result = map_blocks(_finish, *parts, of=x.dtype, token=name, dtype=x.dtype, meta=meta)
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
    value = np.where(np.ma.getdata(missing), np.timedelta64("NaT"), value)
    value = value.astype(of, copy=False)
    return (value if mask is np.ma.nomask else np.ma.array(value, mask=mask))[()]
