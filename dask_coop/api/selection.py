"""What masks select, and where elements are not zero: select, compress, extract, nonzero."""

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
    """Elements that a mask holds for, as ``x[mask]`` has them; of lists, what numpy.select returns.

    Parameters
    ----------
    x : dask.array.Array or array_like
        In NumPy or CuPy chunks, of any dtype and any shape. Or a list of arrays of bool, the
        conditions of :func:`numpy.select`.
    mask : dask.array.Array or array_like
        Bool, of the shape of `x` or of its first axes; in other chunks than `x` it is rechunked.
        Where it is a masked array, what is masked selects nothing. Or a list of arrays and numbers,
        from which each element is taken by the first condition that holds for it.
    default : array_like
        What elements are where no condition of a list holds.
    sizes : {None, "compute"}
        "compute" reads a lazy mask at once to count what it selects, so that the sizes of chunks
        are known; by default they are nan. Of a mask that is not lazy they are known anyway.
    balanced : bool
        Whether the result is cut into chunks of equal sizes, as many as it comes in; these have to
        be known.

    Returns
    -------
    dask.array.Array
        Lazy, one-dimensional for a mask of the shape of `x`, and else of the shape
        ``(n, *x.shape[mask.ndim:])``, in C order and in chunks of the kind of `x`'s. Masked arrays
        stay masked. Of lists, an array of the shape to which all in them broadcast.

    Raises
    ------
    IndexError
        If the mask has another shape than the axes of `x`.
    TypeError
        If the mask or a condition is not bool, chunks are neither NumPy's nor CuPy's, lists come
        with `sizes` or `balanced`, or a mask with `default`.
    ValueError
        If `sizes` is something else, or balanced chunks are asked for and sizes are not known; or
        if chunk sizes of the arguments are unknown and chunks are not one to one.

    Notes
    -----
    Of several axes, chunks are cut along the first one only, for C order. With ``sizes="compute"``
    the mask is computed twice, once to count and once to select; persist it if it is costly.

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
    given = _Given("select", sizes, balanced, _known(mask))
    array, truths = asanyarray(x), asanyarray(mask)
    if truths.dtype.kind != "b":
        raise TypeError(
            f"select takes a mask of bool, got dtype {truths.dtype}; compare it, such as with != 0"
        )
    _require_fit(array, truths)
    return _select(array, truths, 0, given)


@public("blockwise")
def compress(
    condition: Any,
    a: Any,
    axis: int | None = None,
    *,
    sizes: Sizes = None,
    balanced: bool = False,
) -> da.Array:
    """Slices of an array along an axis where a condition holds.

    Parameters
    ----------
    condition : dask.array.Array or array_like
        One-dimensional, bool or converted to it; where it is shorter than the axis it does not hold
        for the rest.
    a : dask.array.Array or array_like
        As that of :func:`select`.
    axis : int, optional
        By default `a` is flattened before.
    sizes, balanced
        As for :func:`select`.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape of `a` but along the axis, in chunks of the kind of `a`'s.

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
    given = _Given("compress", sizes, balanced, _known(condition))
    array = asanyarray(a)
    shape = condition.shape if is_dask_collection(condition) else np.shape(condition)
    if len(shape) != 1:
        raise ValueError(f"condition must be a 1-d array, got shape {shape}")
    if axis is None:
        array, axis = _flat(given.name, array), 0
    axis = validate_axis(axis, array.ndim)
    return _select(*_fitted(array, _as_truths(condition), axis, given.known), axis, given)


@public("blockwise")
def extract(condition: Any, arr: Any, *, sizes: Sizes = None, balanced: bool = False) -> da.Array:
    """Elements of an array where a condition holds, in C order.

    Parameters
    ----------
    condition : dask.array.Array or array_like
        Bool or converted to it, of the shape of `arr`; of another shape both are flattened.
    arr : dask.array.Array or array_like
        As that of :func:`select`.
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
    given = _Given("extract", sizes, balanced, _known(condition))
    array, truths = asanyarray(arr), _as_truths(condition)
    if truths.ndim == array.ndim and all(map(_may_equal, truths.shape, array.shape)):
        return _select(array, truths, 0, given)
    truths = _flat(given.name, truths)
    return _select(*_fitted(_flat(given.name, array), truths, 0, given.known), 0, given)


@public("blockwise")
def nonzero(a: Any, *, sizes: Sizes = None, balanced: bool = False) -> tuple[da.Array, ...]:
    """Where elements are not zero, as indices along each axis.

    Parameters
    ----------
    a : dask.array.Array or array_like
        In NumPy or CuPy chunks, of any dtype, of one axis or more. NaN is not zero, and what is
        masked counts as zero.
    sizes : {None, "compute"}
        "compute" reads `a` at once to count, so that the sizes of chunks are known; by default they
        are nan.
    balanced : bool
        As for :func:`select`.

    Returns
    -------
    tuple of dask.array.Array
        Lazy, int64, in C order of the elements and in chunks of the kind of `a`'s: an array for
        each axis, which are read together.

    Raises
    ------
    TypeError, ValueError
        As for :func:`select`; or if `a` has no axis.

    Notes
    -----
    Indices count from where a chunk begins. Where that is unknown, ``sizes="compute"`` finds it
    along the first axis, if the others are in one chunk each.

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
    return tuple(_find(x, _Given("nonzero", sizes, balanced)))


@public("blockwise")
@named
def flatnonzero(name: str, /, a: Any, *, sizes: Sizes = None, balanced: bool = False) -> da.Array:
    """Where elements are not zero, as indices of the flattened array.

    Parameters
    ----------
    a, sizes, balanced
        As for :func:`nonzero`; `a` may be of no axis.

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
    (found,) = _find(asanyarray(a), _Given(name, sizes, balanced))
    return found


@like(flatnonzero)
def argwhere() -> None:
    """Where elements are not zero, as a row of indices for each of them.

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


class _Given(NamedTuple):
    """The name of a public function, and what tells how its result is cut.

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
        """Raise ValueError for what is not there to be chosen."""
        if self.sizes is not None and not (isinstance(self.sizes, str) and self.sizes == "compute"):
            raise ValueError(f"sizes must be None or 'compute', got {self.sizes!r}")
        if self.balanced and self.sizes is None and self.known is None:
            raise ValueError(
                f"{self.name} balances chunks whose sizes are known; give sizes='compute' besides"
            )

    def count_blocks(self, x: da.Array) -> tuple[list[int] | None, list[int] | None]:
        """Return how many elements the blocks of an array have, and how many are not zero.

        None stands for what is not to be computed.
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
        """Return a result in the chunks that were asked for."""
        if not self.balanced:
            return result
        n, blocks = result.shape[axis], result.numblocks[axis]
        sizes = list(result.chunks)
        sizes[axis] = graph_selection.even(n, min(n, blocks))
        return rechunk(result, tuple(sizes))


def _are_lists(x: Any, mask: Any) -> bool:
    """Tell whether these are conditions and choices, not an array and a mask."""
    both = isinstance(x, list | tuple) and isinstance(mask, list | tuple)
    if not both or any(isinstance(choice, list | tuple) for choice in mask):
        return False
    return len(x) > 0 and all(getattr(condition, "ndim", 0) > 0 for condition in x)


def _choose(conditions: Sequence[Any], choices: Sequence[Any], default: Any) -> da.Array:
    """Return what :func:`numpy.select` does. Dask's gives different results one name."""
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
    # Python's numbers leave a dtype as it is.
    weak = int, float, complex
    dtype = np.result_type(
        *(v if type(v) in weak else getattr(v, "dtype", type(v)) for v in values)
    )
    values = [np.asarray(v, dtype)[()] if np.isscalar(v) else v for v in values]
    name = f"select-{tokenize(truths, values, dtype)}"
    arrays: list[Any] = [*truths, *values]
    cut = broadcastable
    if any(0 in v.shape for v in arrays):
        # Dask cuts arrays without elements by making others, of NumPy.
        cut = _in_one_chunk
    arrays = [v if np.isscalar(v) else cut(v) for v in arrays]
    choose = partial(_chosen, dtype=dtype, **declared_by(*arrays))
    return elemwise(choose, *arrays, dtype=dtype, name=name)


def _in_one_chunk(x: da.Array) -> da.Array:
    return rechunk(x, tuple((n,) for n in x.shape))


def _select(x: da.Array, mask: da.Array, axis: int, given: _Given) -> da.Array:
    """Select by a mask of the axes from `axis` on, which is of their shape."""
    given.check()
    chunks.kind(x._meta, "the array")
    chunks.kind(mask._meta, "the mask")
    stop = axis + mask.ndim
    along = x.chunks[axis:stop]
    if has_unknown_size(mask) or any(n != n for n in x.shape[axis:stop]):
        if mask.numblocks != x.numblocks[axis:stop]:
            raise ValueError(
                f"{given.name} needs as many chunks of the mask as of the array, "
                f"{x.numblocks[axis:stop]}, if the sizes of either's are unknown, got "
                f"{mask.numblocks}; compute_chunk_sizes() finds them"
            )
        for sizes in (along, mask.chunks):
            _require_order(given.name, sizes)
    else:
        along = _ordered(along)
        mask = rechunk(mask, along)
        x = rechunk(x, (*x.chunks[:axis], *along, *x.chunks[stop:]))
    _, lengths = given.count_blocks(mask)
    return given.cut(graph_selection.select(x, mask, axis, lengths), axis)


def _find(x: da.Array, given: _Given) -> list[da.Array]:
    """Find what is not zero."""
    given.check()
    chunks.kind(x._meta, "the array")
    if any(n != n for n in x.shape[1:]):
        raise ValueError(_unknown(given.name, "an axis behind the first"))
    x = _cut(given.name, x)
    sizes, lengths = given.count_blocks(x)
    if sizes is None:
        if has_unknown_size(x) and x.numblocks[0] > 1:
            raise ValueError(
                _unknown(given.name, "axis 0") + ", and so does sizes='compute', which counts"
            )
        # Nobody asks where the block behind the last one begins.
        sizes = [n if n == n else 0 for n in _sizes(x)]
    found = graph_selection.find(x, sizes, lengths, given.name)
    return [given.cut(result) for result in found]


def _flat(name: str, x: da.Array) -> da.Array:
    """Return an array along one axis, in C order."""
    if x.ndim == 1:
        return x
    x = _cut(name, x)
    return graph_selection.flatten(x, _sizes(x))


def _cut(name: str, x: da.Array) -> da.Array:
    """Return an array in chunks that hold elements in C order."""
    if has_unknown_size(x):
        _require_order(name, x.chunks)
        return x
    return rechunk(x, _ordered(x.chunks))


def _sizes(x: da.Array) -> list[Any]:
    """Return how many elements each block has, as far as is known."""
    return [math.prod(pieces) for pieces in itertools.product(*x.chunks)]


def _ordered(sizes: graph_selection.Sizes) -> graph_selection.Sizes:
    """Return chunks that hold elements in C order."""
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
    """Return an array and a condition along an axis, both as long as the shorter of them."""
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
    """Return what is known of a mask that is not lazy: bool along one axis, else None."""
    if not isinstance(mask, np.ndarray | list | tuple):
        return None
    return np.ma.filled(np.ma.asanyarray(mask).astype("?"), False).reshape(-1)


def _as_truths(condition: Any) -> da.Array:
    """Return a condition as a lazy array of bool."""
    return as_dtype(asanyarray(condition), "?")


@casts
def _chosen(*args: Any, dtype: np.dtype[Any]) -> Any:
    """Return of conditions, as many choices, and a default what the first that holds chooses."""
    count = len(args) // 2
    choices = [merges.cast(choice, dtype) for choice in args[count:]]
    result = choices.pop()
    for condition, choice in zip(args[count - 1 :: -1], choices[::-1], strict=True):
        result = np.where(condition, choice, result)
    return result
