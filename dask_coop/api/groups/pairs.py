"""Statistics of pairs by group: covariances, correlations and straight lines.

Two arrays become one of complex numbers, whose states by group are reduced like any others::

    x, y  --pair by pair-->  y + ix  --by group-->  counts, means, products of deviations  --> cov
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np

from dask_coop import chunks
from dask_coop.algebra.monoids import COUNT, State
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.paired import COMOMENTS
from dask_coop.algebra.statistics import quotient
from dask_coop.api.arguments import in_chunks_of, in_shape_of, pairs_of, require_known_sizes
from dask_coop.api.groups.statistics import Asked, Statistic, as_number, make, refuse_others
from dask_coop.api.paired.regression import of_line, require_alternative
from dask_coop.errors import Declined
from dask_coop.graph import executor


def _of_line(name: str, *, alternative: str = "two-sided") -> Callable[[State], Any]:
    require_alternative(alternative)
    return partial(of_line, alternative, name)


def _of_products(*, ddof: float = 1) -> Callable[[State], Any]:
    return partial(_covariance, ddof)


#: By statistic: makes, with the caller's keywords, the function from states to results.
_FINISH: dict[str, tuple[Callable[..., Callable[[State], Any]], set[str]]] = {
    "cov": (_of_products, {"ddof"}),
    "corr": (partial(_of_line, "rvalue"), set()),
    "slope": (partial(_of_line, "slope"), set()),
    "intercept": (partial(_of_line, "intercept"), set()),
    "pvalue": (partial(_of_line, "pvalue"), {"alternative"}),
    "stderr": (partial(_of_line, "stderr"), set()),
    "intercept_stderr": (partial(_of_line, "intercept_stderr"), set()),
}

#: The keywords that each statistic takes.
KEYWORDS = {f"{nan}{name}": words for nan in ("", "nan") for name, (_, words) in _FINISH.items()}


def paired_up(x: da.Array, y: Any) -> da.Array:
    """Return two arrays as one of complex numbers, y + ix.

    Raises
    ------
    TypeError
        If an array has no real numbers, or is masked, or their chunks are of two kinds.
    ValueError
        If their shapes do not fit.
    """
    y = in_chunks_of("array", x, "y", y)
    require_known_sizes("groupby_reduce with y", x, y)
    if executor.runner() is not None:
        raise Declined("tasks make pairs of two arrays")
    for name, array in (("array", x), ("y", y)):
        chunks.kind(array._meta, name)
        chunks.refuse_masked("groupby_reduce", array._meta)
        bind(COMOMENTS, array.dtype, array.dtype, "groupby_reduce by pairs")
    if x.ndim < y.ndim or (x.ndim == y.ndim and x.size < y.size):
        x = in_shape_of("array", x, y)
    else:
        y = in_shape_of("y", y, x)
    return pairs_of("groupby_reduce", y, x, np.result_type(x.dtype, y.dtype, "c8"))


def find(func: Any, element: np.dtype[Any], asked: Asked, options: Mapping[str, Any]) -> Statistic:
    """Return the statistic `func` of pairs.

    Raises
    ------
    TypeError, ValueError
        If it is no statistic of pairs, or does not take these keywords.
    """
    if not isinstance(func, str) or func not in KEYWORDS:
        raise ValueError(
            f"groupby_reduce with y= takes the statistics of pairs, {', '.join(KEYWORDS)}; got "
            f"func={func!r}; statistics of one array take no y"
        )
    refuse_others(func, options, KEYWORDS[func])
    if "ddof" in options:
        options = {"ddof": as_number(func, "ddof", options["ddof"])}
    finish = _FINISH[func.removeprefix("nan")][0](**options)
    result = np.dtype("f8" if asked.dtype is None else asked.dtype).newbyteorder("=")
    op = Operation(COMOMENTS, element, np.dtype("f8"), func.startswith("nan"))
    statistic = make(func, op, finish, result, asked)
    # The first field of states that leave NaN out counts pairs without NaN.
    counts = {Operation(COUNT, element, np.dtype("i8"), True): replace(op, skipna=True)}
    return replace(statistic, ops=tuple(counts.get(some, some) for some in statistic.ops))


# Inside the task.


def _covariance(ddof: float, state: State) -> Any:
    return quotient((state[7], np.maximum(state[0] - ddof, 0)))
