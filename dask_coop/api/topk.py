"""The k largest elements along an axis, and sorting along it: topk, argtopk, sort, argsort.

The first two are reductions; a state holds the best elements so far. Sorting needs whole lines, so
chunks are rechunked along the other axes, and each is then sorted alone::

    a b | c d                 a b c d
    ----+----   --rechunk-->  -------   --sort each-->
    e f | g h                 e f g h

Lines too long to gather stay in several chunks, which are sorted together
(`dask_coop.graph.sorting.exchange`).
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import dask.array as da
import numpy as np
from dask import config
from dask.array.blockwise import blockwise
from dask.array.core import asanyarray, map_blocks, stack
from dask.array.utils import validate_axis
from dask.tokenize import tokenize
from dask.utils import parse_bytes

from dask_coop import chunks
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import bind
from dask_coop.algebra.topk import best, rank
from dask_coop.api.arguments import (
    SplitEvery,
    as_dtype,
    as_integer,
    has_unknown_size,
    rechunk,
    without_empty,
)
from dask_coop.api.call.public import Engine, like, named, public
from dask_coop.api.scan_arguments import flatten
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import reduce as graph_reduce
from dask_coop.graph.line_quantiles import gathered
from dask_coop.graph.selection import even
from dask_coop.graph.sorting import exchange

#: NumPy's names of sorting algorithms, and whether each is stable.
_KINDS = {None: False, "quicksort": False, "heapsort": False, "mergesort": True, "stable": True}

SortKind = Literal["quicksort", "mergesort", "heapsort", "stable"] | None


@public("selection")
@named
def topk(
    name: str,
    /,
    a: Any,
    k: int,
    axis: int = -1,
    split_every: SplitEvery = None,
    *,
    engine: Engine = "auto",
) -> da.Array:
    """Find the k largest elements along an axis, the largest first.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Bool, integers, floats, dates or durations, in NumPy or CuPy chunks. NaN and NaT count as
        larger than all others, as in NumPy's sort.
    k : int
        How many elements to find; if negative, the ``-k`` smallest, the smallest first.
    axis : int
        The axis to search along, by default the last one.
    split_every : int or dict of int to int, optional
        How many states one task combines; 16 by default. A state has up to `k` elements of each
        line, so with a large `k` a smaller number saves memory.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s dtype, with chunks of the kind of `a`'s: one of ``min(abs(k), n)`` elements
        along `axis`, where `a` has n, and `a`'s chunks along the others.

    Raises
    ------
    TypeError
        If `k` or `axis` is not an integer, or `a` is masked.
    AxisError, ValueError
        If `a` has no such axis, or `split_every` is less than 2.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([5, 1, 3, 6], chunks=2)
    >>> dc.topk(x, 2).compute()
    array([6, 5])
    >>> dc.topk(x, -2).compute()
    array([1, 3])
    """
    x = asanyarray(a)
    indices, k = name == "argtopk", as_integer(name, "k", k)
    along = validate_axis(as_integer(name, "axis", axis), x.ndim)
    _refuse_masked(name, x)
    output = np.dtype("i8") if indices else x.dtype.newbyteorder("=")
    op = bind(best(k, indices), x.dtype, x.dtype, name, times="mM")
    if indices and x.shape[along] != x.shape[along] and x.numblocks[along] > 1:
        raise ValueError(
            f"{name} does not count along axis {along}, which has unknown chunksizes; "
            "x.compute_chunk_sizes() finds them"
        )
    outputs = {name: (partial(_indices if indices else _values, k, along), output)}
    (lazy,) = graph_reduce.reduction(op, x, (along,), True, split_every, outputs)
    return lazy


@like(topk)
def argtopk() -> None:
    """Find the indices of the k largest elements along an axis, the largest first.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`topk`.
    k : int
        How many indices to find; if negative, those of the ``-k`` smallest elements, the smallest
        first.
    axis, split_every
        As for :func:`topk`.
    engine : {"auto", "collective"}
        As for :func:`sum`.

    Returns
    -------
    dask.array.Array
        Lazy, int64, otherwise as for :func:`topk`. Among equal elements the first ones are found,
        in their order, whatever the chunks.

    Raises
    ------
    TypeError, AxisError
        As for :func:`topk`.
    ValueError
        As for :func:`topk`, and if indices depend on unknown chunk sizes.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([5, 1, 6, 6], chunks=2)
    >>> dc.argtopk(x, 2).compute()
    array([2, 3])
    >>> dc.argtopk(x, -2).compute()
    array([1, 0])
    """


@public("blockwise", dask=False)
@named
def sort(
    name: str,
    /,
    a: Any,
    axis: int | None = -1,
    kind: SortKind = None,
    order: None = None,
    *,
    stable: bool | None = None,
    descending: bool | None = None,
) -> da.Array:
    """Sort the elements along an axis, NaN last.

    Lines of up to ``array.chunk-size`` in Dask's configuration are gathered: several chunks along
    the axis become one, and the other axes are cut so that chunks keep about their size. A task
    holds whole lines and their sorted copy. If chunk sizes are unknown, lines of any length are
    gathered and the other axes are not cut: a task takes all chunks that follow one another along
    the axis. To find only the first or last few, use :func:`topk`, which gathers nothing.

    Longer lines stay in as many chunks. Each chunk is sorted, samples tell where the sorted chunks
    must be divided so that results have equal sizes, and their slices are exchanged and merged. No
    task holds more than about two chunks and their copy. With k chunks there are about
    ``4 k + k min(k, 2 sqrt(k))`` tasks; those of the second term only cut. Lines of an array of
    several axes are sorted one by one in this way.

    Parameters
    ----------
    a : dask.array.Array or array_like
        Of any dtype that NumPy sorts, or CuPy where chunks are CuPy's.
    axis : int or None
        The axis to sort along, by default the last one; None stands for the flattened array.
    kind : {"quicksort", "mergesort", "heapsort", "stable"}, optional
        NumPy's names: "mergesort" and "stable" keep equal elements in their order, the others may
        not. Sorts of CuPy chunks always do.
    order : None
        Only for NumPy's signature: there is no order of fields.
    stable : bool, optional
        Whether to keep equal elements in their order; an alternative to `kind`.
    descending : bool, optional
        Whether the largest come first, as in NumPy 2.5. NaN and NaT are last in both orders. A task
        needs memory for another copy of its lines.

    Returns
    -------
    dask.array.Array
        Lazy, of `a`'s shape and dtype, of the kind of `a`'s chunks: in one chunk along `axis`, or
        for longer lines in chunks of sizes that differ by at most one.

    Raises
    ------
    TypeError
        If `a` is masked, has fields, or has chunks that are neither NumPy's nor CuPy's.
    AxisError, ValueError
        If `a` has no such axis, `kind` is none of those above or is given with `stable`, or `order`
        is given.

    Notes
    -----
    P. J. Varman et al., "Merging multiple lists on hierarchical-memory multiprocessors", Journal of
    Parallel and Distributed Computing 12, 1991, divides sorted lists at exact ranks.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.sort(da.from_array([3, 1, 2], chunks=2)).compute()
    array([1, 2, 3])
    """
    is_stable = _is_stable(name, kind, order, stable)
    return _sorted(name, asanyarray(a), axis, is_stable, bool(descending))


@like(sort)
def argsort() -> None:
    """Return the indices that would sort the elements along an axis.

    Tasks gather lines, or exchange slices of them, as for :func:`sort`, and need more memory: an
    index takes eight bytes.

    Parameters
    ----------
    a : dask.array.Array or array_like
        As for :func:`sort`.
    axis, kind, order
        As for :func:`sort`. As in NumPy, indices of equal elements are in any order by default.
    stable : bool, optional
        As for :func:`sort`: with True, the first of equal elements comes first, in both orders.
    descending : bool, optional
        As for :func:`sort`.

    Returns
    -------
    dask.array.Array
        Lazy, int64, otherwise as for :func:`sort`. With `axis` None, indices count in C order.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.argsort(da.from_array([3, 1, 2], chunks=2), stable=True).compute()
    array([1, 2, 0])
    """


def _refuse_masked(name: str, x: da.Array) -> None:
    """Refuse masked arrays, whose masks Dask's functions ignore."""
    if chunks.is_masked(x._meta):
        raise TypeError(
            f"{name} does not take masked arrays; fill them, such as with da.ma.filled(x, value)"
        )


def _is_stable(name: str, kind: Any, order: Any, stable: Any) -> bool:
    """Return whether equal elements must keep their order."""
    if order is not None:
        raise ValueError(f"{name} takes no order of fields, got order={order!r}")
    if kind is not None and stable is not None:
        raise ValueError(f"{name} takes kind or stable and not both, got {kind!r} and {stable!r}")
    if kind not in _KINDS:
        known = ", ".join(word for word in _KINDS if word is not None)
        raise ValueError(f"kind must be one of {known}, got {kind!r}")
    return bool(stable) or _KINDS[kind]


def _sorted(name: str, x: da.Array, axis: int | None, stable: bool, descending: bool) -> da.Array:
    """Sort blocks of whole lines by the backend's function `name`."""
    if x.dtype.names is not None:
        raise TypeError(f"{name} does not take dtype {x.dtype}; take one of its fields")
    _refuse_masked(name, x)
    chunks.kind(x._meta, "a")
    if axis is None:
        x, axis = _gathered(x, None) if has_unknown_size(x) else flatten(x), -1
    along = validate_axis(as_integer(name, "axis", axis), x.ndim)
    dtype = np.dtype("i8") if name == "argsort" else x.dtype
    if is_too_long(x, along):
        return _exchanged(name, x, along, stable, descending)
    return map_blocks(
        partial(_sort_block, function=name, axis=along, stable=stable, descending=descending),
        whole_lines(x, along),
        **declared_by(x),
        dtype=dtype,
        meta=chunks.zeros_like(x._meta, dtype),
        name=f"{name}-{tokenize(x, along, stable, descending)}",
    )


def is_too_long(x: da.Array, axis: int) -> bool:
    """Return whether the lines along an axis are in several chunks, and too long to gather."""
    if has_unknown_size(x) or not x.size or sum(n > 0 for n in x.chunks[axis]) == 1:
        return False
    return bool(x.shape[axis] * x.dtype.itemsize > parse_bytes(config.get("array.chunk-size")))


def _exchanged(name: str, x: da.Array, axis: int, stable: bool, descending: bool) -> da.Array:
    """Sort lines in several chunks, line by line."""
    if x.ndim > 1:
        other = 0 if axis else 1
        planes = (x[(slice(None),) * other + (i,)] for i in range(x.shape[other]))
        along = max(axis - 1, 0)
        return stack([_exchanged(name, y, along, stable, descending) for y in planes], other)
    native, indices = as_dtype(x, x.dtype.newbyteorder("=")), name == "argsort"
    keys, backward = native, False
    if descending:
        mirrored = _mirrored(np.zeros(1, native.dtype))
        # A stable sort of the elements from the last to the first keeps equal ones in their order.
        backward = mirrored is None
        keys = native[::-1] if backward else _mapped(native, mirrored.dtype)
    keys = without_empty(keys)
    sizes = even(x.size, keys.npartitions)
    ordered = exchange.sort(keys, sizes, indices=indices, stable=stable)
    if backward:
        ordered = x.size - 1 - ordered[::-1] if indices else ordered[::-1]
    elif descending and not indices:
        ordered = _mapped(ordered, native.dtype)
    return ordered if indices else as_dtype(ordered, x.dtype)


def _mapped(x: da.Array, dtype: np.dtype[Any]) -> da.Array:
    """Return the mirrored elements of `x`, as `dtype`."""
    meta = chunks.zeros_like(x._meta, dtype)
    mirror = partial(_mirror_block, to=dtype)
    return map_blocks(mirror, x, **declared_by(x), dtype=dtype, meta=meta, token="mirror")


def whole_lines(x: da.Array, axis: int) -> da.Array:
    """Return `x` with one chunk along `axis`, and chunks of about the same size as before."""
    if x.numblocks[axis] == 1:
        return x
    if x.shape[axis] != x.shape[axis]:
        return _gathered(x, axis)
    # The sizes of other axes may be unknown.
    if not x.size > 0:
        return rechunk(x, tuple((n,) if d == axis else x.chunks[d] for d, n in enumerate(x.shape)))
    return gathered(x, (axis,))


def _gathered(x: da.Array, axis: int | None) -> da.Array:
    """Return an array of unknown chunk sizes in one chunk along `axis`, or flattened if it is None.

    Dask's rechunk needs the sizes; tasks that concatenate chunks do not.
    """
    inside, new = tuple(range(x.ndim)), x.ndim
    outside = (new,) if axis is None else tuple(new if d == axis else d for d in inside)
    return blockwise(
        _flat if axis is None else _same,
        outside,
        x,
        inside,
        new_axes={new: (np.nan,)},
        concatenate=True,
        dtype=x.dtype,
        meta=chunks.zeros_like(x._meta, x.dtype, len(outside)),
        token="gather",
    )


# Inside tasks.


def _flat(x: Any) -> Any:
    return x.reshape(-1)


def _same(x: Any) -> Any:
    return x


def _values(k: int, axis: int, state: State) -> Any:
    values = chunks.backend_of(state[0]).sort(state[0], -1, False)
    return np.moveaxis(values[..., ::-1] if k > 0 else values, -1, axis)


def _indices(k: int, axis: int, state: State) -> Any:
    values, indices = state
    return np.moveaxis(np.take_along_axis(indices, rank(values, k), -1), -1, axis)


@casts
def _sort_block(x: Any, *, function: str, axis: int, stable: bool, descending: bool) -> Any:
    sort = getattr(chunks.backend_of(x), function)
    if not descending:
        return sort(x, axis, stable)
    native = x.astype(x.dtype.newbyteorder("="), copy=False)
    if (mirrored := _mirrored(native)) is None:
        # A stable sort of the elements from the last to the first keeps equal ones in their order.
        backward = np.flip(sort(np.flip(x, axis), axis, stable), axis)
        return x.shape[axis] - 1 - backward if function == "argsort" else backward
    ordered = sort(mirrored, axis, stable)
    if function == "argsort":
        return ordered
    return _mirrored(ordered).view(native.dtype).astype(x.dtype, copy=False)


@casts
def _mirror_block(x: Any, *, to: np.dtype[Any]) -> Any:
    return _mirrored(x).view(to)


def _mirrored(x: Any) -> Any:
    """Return numbers that sort the other way, NaN still last; None for other elements.

    Twice mirrored, they are what they were.
    """
    if x.dtype.kind in "fc" or x.dtype.name == "bfloat16":
        return -x
    if x.dtype.kind in "mM":
        # NaT, the least integer, becomes the greatest.
        return ~x.view("i8")
    return ~x if x.dtype.kind in "biu" else None
