"""NumPy's functions that Dask lacks, such as `sort`: ours, or NumPy's with a clear warning.

NumPy hands calls with Dask arrays to Dask (NEP 18). If Dask has no function of that name, it
computes the arrays and calls NumPy's. While `install` is in force, Dask's table of handlers has an
entry for each such function::

    np.sort(x)         -->  ours, lazy
    np.split(x, 3)     -->  NumPy's in memory; a warning names the size and another way
    np.put(x, i, v)    -->  refused: it would write to a copy
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.array.core import _HANDLED_FUNCTIONS, asanyarray, blockwise
from dask.base import is_dask_collection
from dask.utils import format_bytes

from dask_coop import chunks
from dask_coop.api import cumulative, fills, norm, ranks, sums, topk, unique
from dask_coop.api.arguments import as_integer
from dask_coop.api.call.fallback import is_left_to_dask, warn
from dask_coop.api.call.public import behind_wrappers, strict
from dask_coop.api.call.report import count, differing, uncounted
from dask_coop.api.histograms import histogram
from dask_coop.chunks.dtypes import casts, declared_by
from dask_coop.errors import Refused
from dask_coop.graph import config

#: The modules whose functions may be Dask's, and what their names begin with here.
_MODULES = {"": np, "linalg.": np.linalg, "fft.": np.fft}

#: Functions that write to their first argument.
_WRITERS = ("copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask")

_SETS = "dask_coop.unique and dask_coop.isin are lazy"
_SLICES = "slice the array instead, which is lazy"
_OVERLAP = "da.map_overlap applies it to chunks with their neighbours"
_EQUAL = "(x == y).all() is lazy"

#: What to do instead of calls that NumPy computes in memory.
_INSTEAD = {
    "interp": "give positions and values of known length, in NumPy chunks",
    "polyfit": "da.linalg.lstsq is lazy",
    "take_along_axis": "x.vindex takes elements by their indices and is lazy",
    **dict.fromkeys(("intersect1d", "setdiff1d", "setxor1d"), _SETS),
    **dict.fromkeys(("array_split", "dsplit", "hsplit", "split", "unstack", "vsplit"), _SLICES),
    **dict.fromkeys(("convolve", "correlate", "unwrap"), _OVERLAP),
    **dict.fromkeys(("array_equal", "array_equiv"), _EQUAL),
}
_ELSE = "da.map_blocks applies it to chunks; to call it in memory, compute() its arguments first"


def _sorted(function: Callable[..., Any], a: Any, kth: Any, axis: Any, order: Any) -> Any:
    """Return `a` in the order of `sort` or `argsort`, which is one that a partition may have."""
    x = asanyarray(a)
    n = x.size if axis is None else x.shape[axis]
    for k in np.ravel(kth):
        if not -n <= as_integer("partition", "kth", k) < n:
            raise ValueError(f"kth(={k}) out of bounds ({n})")
    with differing("sorted, which is one of the orders that a partition may have"):
        return strict(function)(a, axis, None, order)


def _partition(
    a: Any, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None
) -> Any:
    return _sorted(topk.sort, a, kth, axis, order)


def _argpartition(
    a: Any, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None
) -> Any:
    return _sorted(topk.argsort, a, kth, axis, order)


def _unique(x: Any, **wanted: bool) -> Any:
    """Return distinct values as the array API standard has them: each NaN is one of its own."""
    with differing("values are sorted"):
        return strict(unique.unique)(x, **wanted, equal_nan=False)


def _unique_all(x: Any) -> Any:
    wanted = dict.fromkeys(("return_index", "return_inverse", "return_counts"), True)
    return type(np.unique_all([0]))(*_unique(x, **wanted))


def _unique_counts(x: Any) -> Any:
    return type(np.unique_counts([0]))(*_unique(x, return_counts=True))


def _unique_inverse(x: Any) -> Any:
    return type(np.unique_inverse([0]))(*_unique(x, return_inverse=True))


def _trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    """Return the integral of samples along an axis."""
    areas, axis = fills.areas_between("trapezoid", y, x, dx, axis)
    return strict(sums.sum)(areas, axis)


def _interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Return values between samples; each task takes one chunk of `x` and all samples."""
    arrays = [asanyarray(array) for array in (x, xp, fp)]
    for array in arrays:
        if chunks.kind(array._meta, "x") != "numpy":
            raise Refused("interp takes NumPy chunks")
        chunks.refuse_masked("interp", array._meta)
    at, places, values = arrays
    if places.ndim != 1 or places.shape != values.shape:
        raise ValueError("fp and xp are not of the same length.")
    inside, samples = tuple(range(at.ndim)), (at.ndim,)
    result = blockwise(
        partial(_interp_block, left=left, right=right, period=period),
        inside,
        *(at, inside, places, samples, values, samples),
        concatenate=True,
        dtype="c16" if values.dtype.kind == "c" else "f8",
        token="interp",
        **declared_by(*arrays),
    )
    count("interp", x, "dask_coop")
    return result


def _bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    return strict(histogram.histogram)(a, bins, range, weights=weights)[1]


def _vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    x = asanyarray(x)
    if isinstance(axis, tuple) or (axis is None and x.ndim != 1 and ord not in (2, None)):
        raise Refused(f"norm takes one axis for ord={ord!r}; x.reshape(-1) has one")
    whole = axis is None and x.ndim != 1
    return strict(norm.norm)(x, None if whole else ord, axis, keepdims)


def _matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    return strict(norm.norm)(x, ord, (-2, -1), keepdims)


#: Our functions, with the parameters of NumPy's.
_OURS: dict[str, Callable[..., Any]] = {
    "sort": strict(topk.sort),
    "argsort": strict(topk.argsort),
    "lexsort": strict(ranks.lexsort),
    "partition": _partition,
    "argpartition": _argpartition,
    "cumulative_sum": strict(cumulative.cumulative_sum),
    "cumulative_prod": strict(cumulative.cumulative_prod),
    "unique_values": _unique,
    "unique_all": _unique_all,
    "unique_counts": _unique_counts,
    "unique_inverse": _unique_inverse,
    "trapezoid": _trapezoid,
    "interp": _interp,
    "histogram_bin_edges": _bin_edges,
    "linalg.vector_norm": _vector_norm,
    "linalg.matrix_norm": _matrix_norm,
}


def _astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    return asanyarray(x).astype(dtype, copy=copy)


def _matrix_transpose(x: Any, /) -> Any:
    return da.swapaxes(x, -1, -2)


#: Dask's functions of other names.
_DASKS: dict[str, Callable[..., Any]] = {
    "astype": _astype,
    "copy": lambda a, order="K", subok=False: asanyarray(a).copy(),
    "matrix_transpose": _matrix_transpose,
    "linalg.matrix_transpose": _matrix_transpose,
    "linalg.matmul": lambda x1, x2, /: da.matmul(x1, x2),
    "linalg.outer": lambda x1, x2, /: da.outer(x1, x2),
    "linalg.tensordot": lambda x1, x2, /, *, axes=2: da.tensordot(x1, x2, axes),
    "size": lambda a, axis=None: asanyarray(a).size if axis is None else np.shape(a)[axis],
}


def put_in() -> None:
    """Enter a handler for each function of NumPy that Dask lacks."""
    for function, handler in _handlers().items():
        _HANDLED_FUNCTIONS.setdefault(function, handler)


def take_out() -> None:
    """Remove the handlers."""
    for function, handler in _handlers().items():
        if _HANDLED_FUNCTIONS.get(function) is handler:
            del _HANDLED_FUNCTIONS[function]


@cache
def _handlers() -> dict[Callable[..., Any], Callable[..., Any]]:
    return {function: _handler(name, function) for name, function in _missing()}


def _missing() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of NumPy's protocol that Dask lacks, with their names."""
    dispatched: type[Any] = type(np.sort)
    for prefix, module in _MODULES.items():
        theirs = da if not prefix else getattr(da, prefix.rstrip("."))
        # Not getattr: it would warn of some names.
        for function in vars(module).copy().values():
            if not isinstance(function, dispatched) or function in _HANDLED_FUNCTIONS:
                continue
            name: str = function.__name__
            home = function.__module__.partition(".")[2]
            if home == prefix.rstrip(".") and getattr(theirs, name, function) is function:
                yield prefix + name, function


def _handler(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if name in _DASKS:
        return _DASKS[name]
    serve = _OURS.get(name)

    def handle(*args: Any, **kwargs: Any) -> Any:
        if name in _WRITERS and args and is_dask_collection(args[0]):
            raise Refused(
                f"numpy.{name} would write to a copy, since a Dask array is computed first; assign "
                "to it instead, as in x[index] = values, or use da.where"
            )
        cause = f"dask.array has no {name}"
        if serve is not None and not is_left_to_dask():
            try:
                return serve(*args, **kwargs)
            except np.exceptions.AxisError as error:
                error.__traceback__ = behind_wrappers(error.__traceback__)
                raise
            except (Refused, TypeError, ValueError, NotImplementedError) as error:
                cause = str(error)
        return _in_memory(name, function, cause, args, kwargs)

    return handle


def _in_memory(
    name: str,
    function: Callable[..., Any],
    cause: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call NumPy's function on computed arrays, as Dask does, and say so."""
    arrays = [*_collections((args, [*kwargs.values()]))]
    nbytes = sum(getattr(array, "nbytes", 0) for array in arrays)
    size = "" if math.isnan(nbytes) else f" of {format_bytes(nbytes)}"
    how = f"computes its arrays{size} in memory: {cause}; {_INSTEAD.get(name, _ELSE)}"
    if config.get("coop.fallback", "allow", "warn", "raise") == "raise":
        raise Refused(f"numpy.{name} {how}; coop.fallback='allow' permits it")
    warn(f"numpy.{name} {how}")
    with uncounted():
        (args, kwargs) = dask.compute(args, kwargs)
        result = function(*args, **kwargs)
    count(name, arrays[0] if arrays else None, "NumPy", cause)
    return result


def _collections(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _collections(part)
    elif is_dask_collection(value):
        yield value


# Inside tasks.


@casts
def _interp_block(x: Any, xp: Any, fp: Any, **options: Any) -> Any:
    return np.interp(x, xp, fp, **options)
