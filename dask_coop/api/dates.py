"""What describe tells of dates and durations, in NumPy chunks."""

from __future__ import annotations

from functools import partial
from typing import Any

import dask.array as da
import numpy as np

from dask_coop.algebra import ticks
from dask_coop.algebra.monoids import TICKS, State
from dask_coop.algebra.operation import bind
from dask_coop.api.arguments import SplitEvery
from dask_coop.graph import reduce as graph_reduce

#: The statistics of dates. Durations have a sum, too; squares have no unit that NumPy knows.
OF_DATES = ("count", "nans", "min", "max", "mean", "std")


def describe_dates(
    x: da.Array, axes: tuple[int, ...], keepdims: bool, split_every: SplitEvery
) -> dict[str, da.Array]:
    """Return the statistics that there are of datetime64 or timedelta64, by name."""
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
            value, rest = ticks.divide(high, low, count)
            # As NumPy divides durations: towards zero.
            value = value + ((value < 0) & (rest > 0) & (dtype.kind == "m"))
        case "std":
            value = np.rint(np.sqrt(m2 / np.maximum(count, 1)))
            # Of dates at both ends of time it rounds to a tick behind the last one.
            value = np.minimum(value, np.nextafter(2.0**63, 0))
    value = np.where(count > 0, value, ticks.NAT)
    return value.astype("i8").view(dtype)
