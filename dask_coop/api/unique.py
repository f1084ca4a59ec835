"""Distinct values and how often they occur, and looking elements up in others."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.api.arguments import has_unknown_size
from dask_coop.api.call.public import public
from dask_coop.chunks.backend import Side
from dask_coop.chunks.masks import is_masked
from dask_coop.errors import Refused, remedy
from dask_coop.graph import unique as graph_unique

#: The kinds of elements that have an order of their own, by NumPy's letters.
_KINDS = "biufcmMSU"


@public("blockwise")
def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
    split_every: int | None = None,
) -> Any:
    """Distinct values, sorted; also where each is first, where among them elements are, and counts.

    Parameters
    ----------
    ar : dask.array.Array or array_like
        Bool, numbers, dates or durations, strings or bytes in NumPy chunks, or bool and numbers in
        CuPy chunks, of any shape.
    return_index : bool
        Whether to return where in the flattened array, in C order, each value is first.
    return_inverse : bool
        Whether to return where among the values each element is.
    return_counts : bool
        Whether to return how often each value occurs.
    equal_nan : bool
        Whether all NaN, or NaT, are one value, or each is a value of its own.
    split_every : int, optional
        How many partial results one task merges; 8 by default.

    Returns
    -------
    dask.array.Array or tuple of dask.array.Array
        Lazy, with chunks of the kind of `ar`'s: the values, in one chunk of a length that is not
        known before it is computed, and what else is asked for, in the order of the parameters,
        int64. Where elements are among the values has `ar`'s shape and chunks.

    Raises
    ------
    TypeError
        If elements of that dtype have no order, or are masked.
    ValueError
        If `split_every` is less than 2, or `return_index` asks for what is not known: where chunks
        begin whose sizes are unknown.

    Notes
    -----
    All values have to fit in memory several times, as those of a group of chunks do while they are
    merged. To know where elements are among the values the chunks of `ar` are read again, or kept
    in memory until the values are known.

    The values are those of :func:`numpy.unique`, of its dtype, and so are -0.0 and 0.0 one value.
    Of complex numbers that have a NaN, which are one value, the first one counts.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([3, 1, 3, 2], chunks=2)
    >>> values, counts = dc.unique(x, return_counts=True)
    >>> values.compute(), counts.compute()
    (array([1, 2, 3]), array([1, 1, 2]))
    """
    if is_masked(asanyarray(ar)._meta):
        # Dask's function would tell of what is masked, too.
        raise TypeError(
            "unique takes no masked array: fill it, by da.ma.filled(x, value), or leave what is "
            "masked out, by da.ma.getdata(x)[~da.ma.getmaskarray(x)]"
        )
    x = sortable("unique", ar)
    equal_nan = bool(equal_nan) or x.dtype.kind not in "fcmM"
    # Where NaN differ, their places in the array tell them apart.
    index = return_index or (return_inverse and not equal_nan)
    if index:
        _require_places("unique", x)
    wanted = {"unique": 0, **({"unique-index": 1} if index else {})}
    wanted |= {"unique-counts": -1} if return_counts else {}
    dtypes = {"unique": x.dtype}
    outputs = {
        name: (partial(_field, at), dtypes.get(name, np.dtype("i8"))) for name, at in wanted.items()
    }
    options = {"index": index, "counts": return_counts, "equal_nan": equal_nan}
    found = graph_unique.distinct_values(x, outputs, split_every, **options)
    made = dict(zip(wanted, found, strict=True))
    results = [made["unique"]]
    if return_index:
        results.append(made["unique-index"])
    if return_inverse:
        first = None if equal_nan else made["unique-index"]
        results.append(graph_unique.inverse(x, made["unique"], first))
    if return_counts:
        results.append(made["unique-counts"])
    return tuple(results) if len(results) > 1 else results[0]


@public("blockwise", dask=False)
def value_counts(
    a: Any,
    *,
    n: int | None = None,
    sort: bool = True,
    ascending: bool = False,
    dropna: bool = True,
    normalize: bool = False,
    split_every: int | None = None,
) -> tuple[da.Array, da.Array]:
    """Distinct values and how often each occurs, the most frequent first.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`unique`, of any shape.
    n : int, optional
        How many values to return at most, from the first; all by default.
    sort : bool
        Whether values are in the order of their counts, those as frequent as one another in that of
        the values; or all in the order of the values.
    ascending : bool
        Whether the least frequent values come first.
    dropna : bool
        Whether NaN and NaT are left out. All NaN are one value otherwise, behind any other.
    normalize : bool
        Whether to return shares of all elements that count, float64, and not counts.
    split_every : int, optional
        As for :func:`unique`.

    Returns
    -------
    values, counts : dask.array.Array
        Lazy, each in one chunk of the kind of `a`'s, whose length is not known before it is
        computed, also with `n`, for there may be fewer values.

    Raises
    ------
    TypeError
        If elements of that dtype have no order, or are masked, or `n` is no integer.
    ValueError
        If `n` is negative, or `split_every` is less than 2.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([3, 1, 3, 2, 1, 3], chunks=2)
    >>> values, counts = dc.value_counts(x, n=2)
    >>> values.compute(), counts.compute()
    (array([3, 1]), array([3, 2]))
    """
    x = sortable("value_counts", a)
    if n is not None and (n := operator.index(n)) < 0:
        raise ValueError(f"n is how many values to return at most, and must not be negative: {n}")
    table = partial(_table, n, sort, ascending, dropna)
    outputs = {
        "value_counts": (partial(_of_table, table, 0, False), x.dtype),
        "value_counts-counts": (
            partial(_of_table, table, 1, normalize),
            np.dtype("f8" if normalize else "i8"),
        ),
    }
    values, counts = graph_unique.distinct_values(x, outputs, split_every, counts=True)
    return values, counts


@public("blockwise")
def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    split_every: int | None = None,
) -> da.Array:
    """Whether each element is among others.

    Parameters
    ----------
    element : dask.array.Array or array_like
        As for :func:`unique`, of any shape.
    test_elements : dask.array.Array or array_like
        What elements are compared with, of any shape and chunks.
    assume_unique : bool
        Taken as NumPy's, and of no use here: `test_elements` are made unique, by a tree, in any
        case.
    invert : bool
        Whether to tell which elements are not among the others.
    split_every : int, optional
        As for :func:`unique`, of `test_elements`.

    Returns
    -------
    dask.array.Array
        Lazy, bool, of the shape and in the chunks of `element`.

    Raises
    ------
    TypeError
        If elements of such dtypes cannot be compared, or are masked.
    ValueError
        If `split_every` is less than 2.

    Notes
    -----
    Elements are looked up in the distinct `test_elements`, which have to fit in memory. NaN is not
    equal to itself. Integers of all dtypes are compared as the numbers that they are; others in
    the dtype that has both, as NumPy's.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.isin(da.arange(5, chunks=2), da.from_array([7, 3, 1])).compute()
    array([False,  True, False,  True, False])
    """
    x, tests = sortable("isin", element), sortable("isin", test_elements, "test_elements")
    _require_comparable("isin", x, tests)
    outputs = {"isin-values": (partial(_field, 0), tests.dtype)}
    (values,) = graph_unique.distinct_values(tests, outputs, split_every)
    return graph_unique.isin(x, values, bool(invert))


@public("blockwise")
def searchsorted(a: Any, v: Any, side: Side = "left", sorter: None = None) -> da.Array:
    """Where elements would go into a sorted array.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Sorted, of one axis, in any chunks; elements as for :func:`unique`.
    v : dask.array.Array or array_like
        What is to be put into `a`, of any shape.
    side : {"left", "right"}
        Whether before or behind elements of `a` that are equal.
    sorter : None
        Not supported, as in Dask.

    Returns
    -------
    dask.array.Array
        Lazy, int64, of the shape and in the chunks of `v`, of the kind of `a`'s.

    Raises
    ------
    NotImplementedError
        If there is a `sorter`.
    TypeError
        If elements of such dtypes cannot be compared, or are masked.
    ValueError
        If `a` has not one axis, or `side` is another word.

    Notes
    -----
    Every chunk of `v` meets every chunk of `a`, and elements that are before or behind all of it
    are not searched for in it.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.searchsorted(da.arange(0, 100, 10, chunks=4), da.from_array([25, 30])).compute()
    array([3, 3])
    """
    if sorter is not None:
        raise NotImplementedError("searchsorted with a sorter is not supported; sort a by it first")
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', got {side!r}")
    x, to_find = sortable("searchsorted", a), sortable("searchsorted", v, "v")
    if x.ndim != 1:
        raise ValueError(f"Input array a must be one dimensional, got {x.ndim} axes")
    _require_comparable("searchsorted", x, to_find)
    return graph_unique.searchsorted(x, to_find, side)


def sortable(name: str, a: Any, argument: str = "x") -> da.Array:
    """Return an argument as an array, if the function `name` takes its elements."""
    x = asanyarray(a)
    kind = chunks.kind(x._meta, argument)
    chunks.refuse_masked(name, x._meta)
    if x.dtype.kind not in _KINDS or (kind != "numpy" and not chunks.is_common(x.dtype)):
        raise Refused(
            f"{name} does not take dtype {x.dtype}; it takes bool, numbers, dates, durations, "
            f"strings and bytes; {remedy(x.dtype, _KINDS)}"
        )
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def _require_comparable(name: str, x: da.Array, y: da.Array) -> None:
    """Refuse arrays whose elements have no dtype in common, but as strings."""
    kinds = x.dtype.kind, y.dtype.kind
    try:
        common = np.result_type(x.dtype, y.dtype).kind
    except TypeError:
        common = "O"
    if common == "O" or (common in "SU" and not {*kinds} <= {*"SU"}):
        raise Refused(f"{name} does not compare dtypes {x.dtype} and {y.dtype}")


def _require_places(name: str, x: da.Array) -> None:
    """Raise ValueError if it is not known where in the whole array chunks are."""
    if has_unknown_size(x) and (x.ndim > 1 or x.npartitions > 1):
        raise ValueError(
            f"{name} does not count in an array of unknown chunksizes; "
            "x.compute_chunk_sizes() finds them"
        )


# Inside the tasks.


def _field(at: int, state: State) -> Any:
    return state[at]


def _table(
    n: int | None, sort: bool, ascending: bool, dropna: bool, state: State
) -> tuple[Any, Any, Any]:
    """Return values and counts in their order, and the sum of all counts."""
    values, counts = state
    if dropna and values.dtype.kind in "fcmM":
        kept = values == values
        values, counts = values[kept], counts[kept]
    total = counts.sum()
    if sort:
        order = np.argsort(counts if ascending else -counts, kind="stable")[:n]
        return values[order], counts[order], total
    return values[:n], counts[:n], total


def _of_table(table: Any, at: int, shares: bool, state: State) -> Any:
    *fields, total = table(state)
    return fields[at] / total if shares else fields[at]
