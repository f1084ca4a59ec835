"""Distinct values, their counts and those of pairs, and searches for elements in other arrays."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.blockwise import blockwise
from dask.array.core import asanyarray

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.api.arguments import has_unknown_size, in_shape_of, require_one_kind
from dask_coop.api.call.public import public
from dask_coop.api.call.results import CrosstabResult
from dask_coop.chunks.backend import Side
from dask_coop.chunks.masks import is_masked
from dask_coop.errors import Refused, remedy
from dask_coop.graph import unique as graph_unique

#: The kinds of elements that have an order, by NumPy's letters.
_KINDS = "biufcmMSU"
#: More columns than a table has.
_COLUMNS = 2**31


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
    """Find the sorted distinct values; optionally first indices, inverse indices and counts.

    Parameters
    ----------
    ar : dask.array.Array or array_like
        Bool, numbers, dates or durations, strings or bytes in NumPy chunks, or bool and numbers in
        CuPy chunks, of any shape.
    return_index : bool
        Whether to return the index of each value's first occurrence in the flattened array, in C
        order.
    return_inverse : bool
        Whether to return, for each element, the index of its value.
    return_counts : bool
        Whether to return how often each value occurs.
    equal_nan : bool
        Whether all NaN, or NaT, are one value; if False, each is a value of its own.
    split_every : int, optional
        How many partial results one task merges; 8 by default.

    Returns
    -------
    dask.array.Array or tuple of dask.array.Array
        Lazy, with chunks of the kind of `ar`'s. First the values, in one chunk whose length is
        unknown until it is computed; then the other results, int64, in the order of the parameters.
        The inverse indices have `ar`'s shape and chunks.

    Raises
    ------
    TypeError
        If elements of that dtype have no order, or are masked.
    ValueError
        If `split_every` is less than 2, or `return_index` is true and chunk sizes are unknown.

    Notes
    -----
    Memory must hold all values several times, since a task holds those of a group of chunks while
    it merges them. For inverse indices, the chunks of `ar` are read again, or kept in memory until
    the values are known.

    Values are those of :func:`numpy.unique`, with the same dtype; -0.0 and 0.0 are one value. All
    complex numbers with a NaN are one value, of which the first is returned.

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
        # Dask's function would return masked values, too.
        raise TypeError(
            "unique takes no masked array: fill it, by da.ma.filled(x, value), or leave what is "
            "masked out, by da.ma.getdata(x)[~da.ma.getmaskarray(x)]"
        )
    x = sortable("unique", ar)
    equal_nan = bool(equal_nan) or x.dtype.kind not in "fcmM"
    # If each NaN is a value of its own, indices tell them apart.
    index = return_index or (return_inverse and not equal_nan)
    if index:
        _require_places("unique", x)
    wanted = {"unique": 0, **({"unique-index": 1} if index else {})}
    wanted |= {"unique-counts": -1} if return_counts else {}
    dtypes = {"unique": x.dtype}
    outputs = {
        name: (partial(_field, field), dtypes.get(name, np.dtype("i8")))
        for name, field in wanted.items()
    }
    options = {"index": index, "counts": return_counts, "equal_nan": equal_nan}
    arrays = graph_unique.distinct_values(x, outputs, split_every, **options)
    by_name = dict(zip(wanted, arrays, strict=True))
    results = [by_name["unique"]]
    if return_index:
        results.append(by_name["unique-index"])
    if return_inverse:
        first = None if equal_nan else by_name["unique-index"]
        results.append(graph_unique.inverse(x, by_name["unique"], first))
    if return_counts:
        results.append(by_name["unique-counts"])
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
    """Return the distinct values and their counts, the most frequent first.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`unique`, of any shape.
    n : int, optional
        The largest number of values to return, from the first; all by default.
    sort : bool
        Whether to order by count, and by value where counts are equal; if False, by value alone.
    ascending : bool
        Whether the least frequent values come first.
    dropna : bool
        Whether to leave out NaN and NaT. If False, they are counted as one value, the last.
    normalize : bool
        Whether to return counts divided by their sum, as float64.
    split_every : int, optional
        As for :func:`unique`.

    Returns
    -------
    values, counts : dask.array.Array
        Lazy, each in one chunk of the kind of `a`'s. Its length is unknown until it is computed,
        even with `n`, since there may be fewer values.

    Raises
    ------
    TypeError
        If elements of that dtype have no order, or are masked, or `n` is not an integer.
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


@public("blockwise", dask=False)
def crosstab(a: Any, b: Any) -> CrosstabResult:
    """Count how often each distinct value of one array is at the place of each one of another.

    Parameters
    ----------
    a, b : dask.array.Array or array_like
        As for :func:`unique`; `b` has `a`'s shape, or one that is broadcast to it.

    Returns
    -------
    CrosstabResult
        Lazy arrays: `elements`, the distinct values of `a` and those of `b`, and `count`, int64,
        with a row for each value of `a` and a column for each of `b`. They are in one chunk each,
        and their lengths are unknown until they are computed.

    Raises
    ------
    TypeError
        If elements of that dtype have no order, or are masked, or only one array has CuPy chunks.
    ValueError
        If `b` does not fit `a`.

    Notes
    -----
    The results are those of :func:`scipy.stats.contingency.crosstab`; all NaN are one value. Chunks
    are read twice, or kept until the distinct values are known. Memory must hold the whole table.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> land = da.from_array([1, 2, 1, 1], chunks=2)
    >>> soil = da.from_array([5, 5, 7, 7], chunks=2)
    >>> dc.crosstab(land, soil).count.compute()
    array([[1, 2],
           [1, 0]])
    """
    x, y = sortable("crosstab", a, "a"), sortable("crosstab", b, "b")
    require_one_kind("a", x, "b", y)
    (rows, of_x), (columns, of_y) = (unique(array, return_inverse=True) for array in (x, y))
    # Where Dask aligns chunks, empty CuPy chunks become NumPy's.
    places = blockwise(
        _place_of_pairs,
        (index := tuple(range(x.ndim))),
        *(of_x, index, in_shape_of("b", of_y, of_x), index),
        dtype="i8",
        meta=of_x._meta,
        token="pairs",
        align_arrays=False,
    )
    pairs, counts = unique(places, return_counts=True)
    count = blockwise(
        _counts_of_pairs,
        (0, 1),
        *(rows, (0,), columns, (1,), pairs, (2,), counts, (2,)),
        concatenate=True,
        dtype="i8",
        meta=chunks.zeros_like(counts._meta, counts.dtype, 2),
        token="crosstab",
    )
    return CrosstabResult((rows, columns), count)


@public("blockwise")
def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    split_every: int | None = None,
) -> da.Array:
    """Test whether each element is in another array.

    Parameters
    ----------
    element : dask.array.Array or array_like
        As for :func:`unique`, of any shape.
    test_elements : dask.array.Array or array_like
        The values to compare elements with, of any shape and chunks.
    assume_unique : bool
        Only for NumPy's signature: a tree makes `test_elements` unique in any case.
    invert : bool
        Whether to invert the result: True for elements that are not in `test_elements`.
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
    Elements are looked up in the distinct `test_elements`, which must fit in memory. NaN is not
    equal to itself. Integers of different dtypes are compared by value; others in their common
    dtype, as in NumPy.

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
    """Find the indices at which to insert elements into a sorted array to keep its order.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Sorted, of one axis, in any chunks; elements as for :func:`unique`.
    v : dask.array.Array or array_like
        The elements to insert into `a`, of any shape.
    side : {"left", "right"}
        Whether to insert before or after equal elements of `a`.
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
        If `a` does not have exactly one axis, or `side` has another value.

    Notes
    -----
    Every chunk of `v` meets every chunk of `a`; elements that lie before or after all of a chunk
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
    """Return an argument as an array; refuse elements that the function `name` does not take."""
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
    """Refuse arrays whose elements have no common dtype, or only that of strings."""
    kinds = x.dtype.kind, y.dtype.kind
    try:
        common = np.result_type(x.dtype, y.dtype).kind
    except TypeError:
        common = "O"
    if common == "O" or (common in "SU" and not {*kinds} <= {*"SU"}):
        raise Refused(f"{name} does not compare dtypes {x.dtype} and {y.dtype}")


def _require_places(name: str, x: da.Array) -> None:
    """Raise ValueError if the positions of chunks in the array are unknown."""
    if has_unknown_size(x) and (x.ndim > 1 or x.npartitions > 1):
        raise ValueError(
            f"{name} needs positions, and so known chunk sizes; x.compute_chunk_sizes() finds them"
        )


# Inside tasks.


def _field(field: int, state: State) -> Any:
    return state[field]


def _place_of_pairs(row: Any, column: Any) -> Any:
    return row * _COLUMNS + column


def _counts_of_pairs(rows: Any, columns: Any, pairs: Any, counts: Any) -> Any:
    table = np.zeros_like(counts, shape=(len(rows), len(columns)))
    table[pairs // _COLUMNS, pairs % _COLUMNS] = counts
    return table


def _table(
    n: int | None, sort: bool, ascending: bool, dropna: bool, state: State
) -> tuple[Any, Any, Any]:
    """Return values and counts in their order, and the sum of all counts."""
    values, counts = state
    if dropna and values.dtype.kind in "fcmM":
        valid = values == values
        values, counts = values[valid], counts[valid]
    total = counts.sum()
    if sort:
        order = np.argsort(counts if ascending else -counts, kind="stable")[:n]
        return values[order], counts[order], total
    return values[:n], counts[:n], total


def _of_table(table: Any, field: int, normalize: bool, state: State) -> Any:
    *fields, total = table(state)
    return fields[field] / total if normalize else fields[field]
