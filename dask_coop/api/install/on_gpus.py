"""Run code that was written for NumPy chunks on GPUs: ``install(chunks="cupy")``.

    x = da.from_zarr(...)     NumPy chunks
    mean = x.mean(0)          our first operation: `to_gpu` moves x to the GPUs
    y = (x - mean) ** 2       chunks of both kinds: x moves here, too, and y is on the GPUs
    y.sum().compute()         the result is NumPy's again

For this, three more functions of Dask are replaced: `blockwise`, which does all arithmetic, the
function that joins the chunks of a computed result, and `store`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
from dask.array.core import Array, asanyarray

from dask_coop import chunks
from dask_coop.api.call.fallback import dasks
from dask_coop.api.call.planning import convert_parts
from dask_coop.api.install.substitutes import Row
from dask_coop.api.transfer import to_gpu, to_host
from dask_coop.graph.transfer import join_on_host


def require() -> None:
    """Raise ValueError or RuntimeError if chunks can't be on GPUs here."""
    if da.array_expr_enabled():
        raise ValueError("chunks='cupy' works on graphs; set array.query-planning to False")
    to_gpu(da.empty(0))


#: Functions of which these arguments move to GPUs; the others are labels.
_GROUPS = {"groupby_reduce": ("array", "y"), "groupby_scan": ("array",)}


def before(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of our public function `name` with Dask arrays moved to GPUs."""
    if name in ("to_gpu", "to_host", "to_zarr"):
        return args, kwargs
    if name in _GROUPS:
        named = {k: moved(v) if k in _GROUPS[name] else v for k, v in kwargs.items()}
        return (*map(moved, args[:1]), *args[1:]), named
    return convert_parts(moved, args), {k: convert_parts(moved, v) for k, v in kwargs.items()}


def moved(value: Any) -> Any:
    """Return a Dask array with its NumPy chunks moved to GPUs; other values unchanged."""
    is_array = isinstance(value, Array) and chunks.can_move(value._meta, "numpy")
    return to_gpu(value) if is_array else value


def _is_on_gpus(x: Any) -> bool:
    return isinstance(x, Array) and chunks.can_move(x._meta, "cupy")


def _blockwise(func: Callable[..., Any], out_ind: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of `dask.array.blockwise` with all arrays moved to GPUs."""
    arguments = list(args)
    for i in range(0, len(arguments), 2):
        if arguments[i + 1] is not None:
            arguments[i] = moved(asanyarray(arguments[i]))
    return dasks(da.blockwise)(func, out_ind, *arguments, **kwargs)


def _mixes(func: Any, out_ind: Any, *args: Any, **kwargs: Any) -> bool:
    pairs = zip(args[::2], args[1::2], strict=False)
    on_gpus = {_is_on_gpus(x) for x, indices in pairs if indices is not None}
    return len(on_gpus) == 2


def _postcompute(self: Any) -> Any:
    return join_on_host, ()


def _store(sources: Any, *args: Any, **kwargs: Any) -> Any:
    """Store arrays that are on GPUs."""
    on_host = convert_parts(lambda x: to_host(x) if _is_on_gpus(x) else x, sources)
    return dasks(da.store)(on_host, *args, **kwargs)


def _stores_some(sources: Any, *args: Any, **kwargs: Any) -> bool:
    return any(map(_is_on_gpus, sources if isinstance(sources, list | tuple) else [sources]))


def rows() -> list[Row]:
    """Return the rows of Dask's functions that chunks on GPUs need, and ours."""
    return [
        Row("dask.array", "blockwise", _blockwise, _mixes),
        Row("dask.array", "store", _store, _stores_some),
        Row("dask.array.core", "Array.__dask_postcompute__", _postcompute, _is_on_gpus),
    ]
