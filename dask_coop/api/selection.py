"""Select elements by masks, and find nonzero ones: select, compress, extract, nonzero."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import dask
import dask.array as da
import numpy as np
from dask.array.core import asanyarray, elemwise
from dask.array.utils import validate_axis
from dask.base import is_dask_collection
from dask.tokenize import tokenize

from dask_coop import chunks
from dask_coop.algebra import merges
from dask_coop.api.arguments import (
    as_dtype,
    broadcastable,
    has_unknown_size,
    rechunk,
    require_one_kind,
)
from dask_coop.api.call.public import like, named, public
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.graph import selection as graph_selection

Sizes = Literal["compute"] | None


@public("blockwise", dask=False)
def select(
    x: Any, mask: Any, default: Any = 0, *, sizes: Sizes = None, balanced: bool = False
) -> da.Array:
    """Return the elements where a mask is true, as ``x[mask]``; with lists, :func:`numpy.select`.

    Parameters
    ----------
    x : dask.array.Array or array_like
        In NumPy or CuPy chunks, of any dtype and any shape. Or a list of arrays of bool, the
        conditions of :func:`numpy.select`.
    mask : dask.array.Array or array_like
        Bool, of the shape of `x` or of its first axes; it is rechunked if its chunks are not those
        of `x`. Masked elements of a mask select nothing. Or a list of arrays and numbers, the
        choices: each element comes from the one whose condition is the first to be true.
    default : array_like
        The value of elements for which no condition of a list is true.
    sizes : {None, "compute"}
        "compute" computes a lazy mask at once to count the selected elements, so that chunk sizes
        are known; by default they are nan. They are always known for a mask that is not lazy.
    balanced : bool
        Whether to cut the result into chunks of equal sizes, in about the same number; chunk sizes
        must be known.

    Returns
    -------
    dask.array.Array
        Lazy, one-dimensional if the mask has the shape of `x`, else of the shape ``(n,
        *x.shape[mask.ndim:])``, in C order and in chunks of the kind of `x`'s. Masked arrays stay
        masked. With lists, an array of the shape to which they all broadcast.

    Raises
    ------
    IndexError
        If the mask does not have the shape of the first axes of `x`.
    TypeError
        If the mask or a condition is not bool, chunks are neither NumPy's nor CuPy's, lists come
        with `sizes` or `balanced`, or a mask with `default`.
    ValueError
        If `sizes` has another value, `balanced` comes with unknown sizes, or chunk sizes of the
        arguments are unknown and chunks do not match one to one.

    Notes
    -----
    To keep C order, chunks of several axes are cut along the first one only. With
    ``sizes="compute"`` the mask is computed twice, once to count and once to select; persist it if
    it is costly.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([3, 1, 4, 1, 5, 9], chunks=3)
    >>> dc.select(x, x > 2, sizes="compute").chunks
    ((2, 2),)
    >>> dc.select(x, x > 2).compute()
    array([3, 4, 5, 9])
    >>> dc.select([x > 4, x > 2], [x * 10, x], default=-1).compute()
    array([ 3, -1,  4, -1, 50, 90])
    """
    if _are_lists(x, mask):
        if sizes is not None or balanced:
            raise TypeError("select takes sizes= and balanced= with a mask, not with lists")
        return _choose(x, mask, default)
    if type(default) is not int or default:
        raise TypeError(
            "select takes default= with lists of conditions and choices, not with a mask"
        )
    options = _ChunkOptions("select", sizes, balanced, _known(mask))
    array, truths = asanyarray(x), asanyarray(mask)
    if truths.dtype.kind != "b":
        raise TypeError(
            f"select takes a mask of bool, got dtype {truths.dtype}; compare it, such as with != 0"
        )
    _require_fit(array, truths)
    return _select(array, truths, 0, options)


@public("blockwise")
def compress(
    condition: Any,
    a: Any,
    axis: int | None = None,
    *,
    sizes: Sizes = None,
    balanced: bool = False,
) -> da.Array:
    """Return the slices of an array along an axis where a condition holds.

    Parameters
    ----------
    condition : dask.array.Array or array_like
        One-dimensional, bool or converted to bool. If it is shorter than the axis, the rest of the
        axis is not selected.
    a : dask.array.Array or array_like
        As `x` for :func:`select`.
    axis : int, optional
        The axis to take slices along; by default `a` is flattened first.
    sizes, balanced
        As for :func:`select`.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape of `a` except along the axis, in chunks of the kind of `a`'s.

    Raises
    ------
    AxisError
        If there is no such axis.
    IndexError
        If the condition is longer than the axis.
    ValueError
        If the condition is not one-dimensional, or as for :func:`select`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.arange(6, chunks=3).reshape(2, 3)
    >>> dc.compress([True, False, True], x, axis=1).compute()
    array([[0, 2],
           [3, 5]])
    """
    options = _ChunkOptions("compress", sizes, balanced, _known(condition))
    array = asanyarray(a)
    shape = condition.shape if is_dask_collection(condition) else np.shape(condition)
    if len(shape) != 1:
        raise ValueError(f"condition must be a 1-d array, got shape {shape}")
    if axis is None:
        array, axis = _flat(options.name, array), 0
    axis = validate_axis(axis, array.ndim)
    return _select(*_fitted(array, _as_truths(condition), axis, options.known), axis, options)


@public("blockwise")
def extract(condition: Any, arr: Any, *, sizes: Sizes = None, balanced: bool = False) -> da.Array:
    """Return the elements of an array where a condition holds, in C order.

    Parameters
    ----------
    condition : dask.array.Array or array_like
        Bool or converted to bool, of the shape of `arr`; if shapes differ, both are flattened.
    arr : dask.array.Array or array_like
        As `x` for :func:`select`.
    sizes, balanced
        As for :func:`select`.

    Returns
    -------
    dask.array.Array
        Lazy, one-dimensional, in chunks of the kind of `arr`'s.

    Raises
    ------
    IndexError
        If the condition has more elements than the array.
    ValueError
        As for :func:`select`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.arange(6, chunks=3).reshape(2, 3)
    >>> dc.extract(x % 2, x).compute()
    array([1, 3, 5])
    """
    options = _ChunkOptions("extract", sizes, balanced, _known(condition))
    array, truths = asanyarray(arr), _as_truths(condition)
    if truths.ndim == array.ndim and all(map(_may_equal, truths.shape, array.shape)):
        return _select(array, truths, 0, options)
    truths = _flat(options.name, truths)
    return _select(*_fitted(_flat(options.name, array), truths, 0, options.known), 0, options)


@public("blockwise")
def nonzero(a: Any, *, sizes: Sizes = None, balanced: bool = False) -> tuple[da.Array, ...]:
    """Return the indices of the nonzero elements, one array for each axis.

    Parameters
    ----------
    a : dask.array.Array or array_like
        In NumPy or CuPy chunks, of any dtype, with at least one axis. NaN is nonzero, and masked
        elements count as zero.
    sizes : {None, "compute"}
        "compute" reads `a` at once to count its nonzero elements, so that chunk sizes are known; by
        default they are nan.
    balanced : bool
        As for :func:`select`.

    Returns
    -------
    tuple of dask.array.Array
        Lazy, int64, in C order of the elements and in chunks of the kind of `a`'s: one array for
        each axis. Compute them together to read `a` once.

    Raises
    ------
    TypeError, ValueError
        As for :func:`select`, and if `a` has no axis.

    Notes
    -----
    Indices depend on where each chunk begins. If that is unknown, ``sizes="compute"`` finds it
    along the first axis, provided that each other axis has one chunk.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> rows, columns = dc.nonzero(da.from_array([[3, 0], [0, 4]], chunks=(1, 2)))
    >>> rows.compute(), columns.compute()
    (array([0, 1]), array([0, 1]))
    """
    x = asanyarray(a)
    if not x.ndim:
        raise ValueError("nonzero takes arrays of one axis or more; use flatnonzero or reshape(1)")
    return tuple(_find(x, _ChunkOptions("nonzero", sizes, balanced)))


@public("blockwise")
@named
def flatnonzero(name: str, /, a: Any, *, sizes: Sizes = None, balanced: bool = False) -> da.Array:
    """Return the indices of the nonzero elements of the flattened array.

    Parameters
    ----------
    a, sizes, balanced
        As for :func:`nonzero`; `a` may have no axis.

    Returns
    -------
    dask.array.Array
        Lazy, int64, ascending, in chunks of the kind of `a`'s.

    Raises
    ------
    TypeError, ValueError
        As for :func:`nonzero`.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.flatnonzero(da.from_array([0, 2, 0, 3], chunks=2)).compute()
    array([1, 3])
    """
    (indices,) = _find(asanyarray(a), _ChunkOptions(name, sizes, balanced))
    return indices


@like(flatnonzero)
def argwhere() -> None:
    """Return the indices of the nonzero elements, one row for each element.

    Returns
    -------
    dask.array.Array
        Lazy, int64, of shape ``(n, a.ndim)``, in chunks of the kind of `a`'s.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.argwhere(da.from_array([[3, 0], [0, 4]], chunks=(1, 2))).compute()
    array([[0, 0],
           [1, 1]])
    """


class _ChunkOptions(NamedTuple):
    """The name of a public function, and the options for the chunks of its result.

    Attributes
    ----------
    name : str
    sizes, balanced
        The arguments.
    known : numpy.ndarray, optional
        A mask that is not lazy, flattened.
    """

    name: str
    sizes: Sizes
    balanced: bool
    known: Any = None

    def check(self) -> None:
        """Raise ValueError for options that are invalid or do not go together."""
        if self.sizes is not None and not (isinstance(self.sizes, str) and self.sizes == "compute"):
            raise ValueError(f"sizes must be None or 'compute', got {self.sizes!r}")
        if self.balanced and self.sizes is None and self.known is None:
            raise ValueError(
                f"{self.name} balances chunks whose sizes are known; give sizes='compute' besides"
            )

    def count_blocks(self, x: da.Array) -> tuple[list[int] | None, list[int] | None]:
        """Return the number of elements of each block of `x`, and that of its nonzero elements.

        None stands for counts that would need computing, which `sizes` does not ask for.
        """
        if self.known is not None:
            sizes = _sizes(x)
            ends = itertools.accumulate(sizes, initial=0)
            return sizes, [
                int(np.count_nonzero(self.known[begin:end]))
                for begin, end in itertools.pairwise(ends)
            ]
        if self.sizes is None:
            return None, None
        (counted,) = dask.compute(graph_selection.count(x))
        flat = counted.reshape(-1)
        return flat["size"].tolist(), flat["nonzero"].tolist()

    def cut(self, result: da.Array, axis: int = 0) -> da.Array:
        """Return `result`, in equal chunks if `balanced`."""
        if not self.balanced:
            return result
        n, blocks = result.shape[axis], result.numblocks[axis]
        sizes = list(result.chunks)
        sizes[axis] = graph_selection.even(n, min(n, blocks))
        return rechunk(result, tuple(sizes))


def _are_lists(x: Any, mask: Any) -> bool:
    """Return whether these are lists of conditions and choices, not an array and a mask."""
    both = isinstance(x, list | tuple) and isinstance(mask, list | tuple)
    if not both or any(isinstance(choice, list | tuple) for choice in mask):
        return False
    return len(x) > 0 and all(getattr(condition, "ndim", 0) > 0 for condition in x)


def _choose(conditions: Sequence[Any], choices: Sequence[Any], default: Any) -> da.Array:
    """Select as :func:`numpy.select`. Dask's own gives different results the same name."""
    if len(conditions) != len(choices):
        raise ValueError(
            f"select takes as many choices as conditions, got {len(choices)} and {len(conditions)}"
        )
    truths = [asanyarray(condition) for condition in conditions]
    for number, truth in enumerate(truths):
        if truth.dtype.kind != "b":
            raise TypeError(
                f"select takes conditions of bool, got dtype {truth.dtype} for number {number}; "
                "compare it, such as with != 0"
            )
    values = [v if np.isscalar(v) else asanyarray(v) for v in (*choices, default)]
    for value in (*truths[1:], *(v for v in values if getattr(v, "ndim", 0))):
        require_one_kind("select", truths[0], "choices", value)
    # Python's numbers do not widen a dtype.
    weak = int, float, complex
    dtype = np.result_type(
        *(v if type(v) in weak else getattr(v, "dtype", type(v)) for v in values)
    )
    values = [np.asarray(v, dtype)[()] if np.isscalar(v) else v for v in values]
    name = f"select-{tokenize(truths, values, dtype)}"
    arrays: list[Any] = [*truths, *values]
    cut = broadcastable
    if any(0 in v.shape for v in arrays):
        # Dask rechunks an empty array by making a new one, in NumPy chunks.
        cut = _in_one_chunk
    arrays = [v if np.isscalar(v) else cut(v) for v in arrays]
    choose = partial(_chosen, dtype=dtype, **declared_by(*arrays))
    return elemwise(choose, *arrays, dtype=dtype, name=name)


def _in_one_chunk(x: da.Array) -> da.Array:
    return rechunk(x, tuple((n,) for n in x.shape))


def _select(x: da.Array, mask: da.Array, axis: int, options: _ChunkOptions) -> da.Array:
    """Select by a mask that has the shape of the axes from `axis` on."""
    options.check()
    chunks.kind(x._meta, "the array")
    chunks.kind(mask._meta, "the mask")
    stop = axis + mask.ndim
    along = x.chunks[axis:stop]
    if has_unknown_size(mask) or any(n != n for n in x.shape[axis:stop]):
        if mask.numblocks != x.numblocks[axis:stop]:
            raise ValueError(
                f"{options.name} needs as many chunks of the mask as of the array, "
                f"{x.numblocks[axis:stop]}, if the sizes of either's are unknown, got "
                f"{mask.numblocks}; compute_chunk_sizes() finds them"
            )
        for sizes in (along, mask.chunks):
            _require_order(options.name, sizes)
    else:
        along = _ordered(along)
        mask = rechunk(mask, along)
        x = rechunk(x, (*x.chunks[:axis], *along, *x.chunks[stop:]))
    _, lengths = options.count_blocks(mask)
    return options.cut(graph_selection.select(x, mask, axis, lengths), axis)


def _find(x: da.Array, options: _ChunkOptions) -> list[da.Array]:
    """Return the indices of the nonzero elements."""
    options.check()
    chunks.kind(x._meta, "the array")
    if any(n != n for n in x.shape[1:]):
        raise ValueError(_unknown(options.name, "an axis behind the first"))
    x = _cut(options.name, x)
    sizes, lengths = options.count_blocks(x)
    if sizes is None:
        if has_unknown_size(x) and x.numblocks[0] > 1:
            raise ValueError(
                _unknown(options.name, "axis 0") + ", and so does sizes='compute', which counts"
            )
        # No block follows one of unknown size, so its size does not matter.
        sizes = [n if n == n else 0 for n in _sizes(x)]
    results = graph_selection.find(x, sizes, lengths, options.name)
    return [options.cut(result) for result in results]


def _flat(name: str, x: da.Array) -> da.Array:
    """Return `x` flattened in C order."""
    if x.ndim == 1:
        return x
    x = _cut(name, x)
    return graph_selection.flatten(x, _sizes(x))


def _cut(name: str, x: da.Array) -> da.Array:
    """Return `x` in chunks that follow one another in C order."""
    if has_unknown_size(x):
        _require_order(name, x.chunks)
        return x
    return rechunk(x, _ordered(x.chunks))


def _sizes(x: da.Array) -> list[Any]:
    """Return the number of elements of each block, nan where it is unknown."""
    return [math.prod(lengths) for lengths in itertools.product(*x.chunks)]


def _ordered(sizes: graph_selection.Sizes) -> graph_selection.Sizes:
    """Return chunk sizes for chunks that follow one another in C order."""
    return sizes if graph_selection.is_in_order(sizes) else graph_selection.in_order(sizes)


def _require_order(name: str, sizes: graph_selection.Sizes) -> None:
    if not graph_selection.is_in_order(sizes):
        raise ValueError(_unknown(name, "chunks that are to be cut for C order"))


def _unknown(name: str, where: str) -> str:
    return (
        f"{name} does not take unknown chunk sizes along {where}; compute_chunk_sizes() finds them"
    )


def _require_fit(x: da.Array, mask: da.Array) -> None:
    """Raise NumPy's IndexError for a mask of another shape than the first axes."""
    if mask.ndim > x.ndim:
        raise IndexError(
            f"too many indices for array: array is {x.ndim}-dimensional, but {mask.ndim} were "
            "indexed"
        )
    for axis, (n, length) in enumerate(zip(x.shape, mask.shape, strict=False)):
        if not _may_equal(n, length):
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is {n} "
                f"but size of corresponding boolean axis is {length}"
            )


def _may_equal(n: float, m: float) -> bool:
    return n == m or n != n or m != m


def _fitted(x: da.Array, truths: da.Array, axis: int, known: Any) -> tuple[da.Array, da.Array]:
    """Return an array and a condition, cut along the axis to the shorter of their lengths."""
    n, length = x.shape[axis], truths.shape[0]
    if length > n:
        beyond = np.arange(n, length) if known is None else n + np.flatnonzero(known[n:])
        if beyond.size:
            raise IndexError(
                f"index {beyond[0]} of condition is out of bounds for axis {axis} with size {n}"
            )
        truths = truths[:n]
    elif length < n:
        x = x[(slice(None),) * axis + (slice(length),)]
    return x, truths


def _known(mask: Any) -> Any:
    """Return a mask as flat bools if it is not lazy, else None."""
    if not isinstance(mask, np.ndarray | list | tuple):
        return None
    return np.ma.filled(np.ma.asanyarray(mask).astype("?"), False).reshape(-1)


def _as_truths(condition: Any) -> da.Array:
    """Return a condition as a Dask array of bool."""
    return as_dtype(asanyarray(condition), "?")


@casts
def _chosen(*args: Any, dtype: np.dtype[Any]) -> Any:
    """Return elements by conditions: `args` are these, as many choices, and a default."""
    count = len(args) // 2
    choices = [merges.cast(choice, dtype) for choice in args[count:]]
    result = choices.pop()
    for condition, choice in zip(args[count - 1 :: -1], choices[::-1], strict=True):
        result = np.where(condition, choice, result)
    return result
