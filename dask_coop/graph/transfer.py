"""Configure copies between the host and the GPUs, and route Dask's `to_backend` through them.

``x.to_backend("cupy")`` makes tasks that call `dask.array.dispatch.to_cupy_dispatch`;
``x.to_backend("numpy")`` uses `to_numpy_dispatch`. Both are of the class `Dispatch`, with a table
of functions by type::

    task --> Dispatch.__call__ --> CuPy's function of the table
                  |
                  '-- ours, while somebody wants it --> chunks.asarray, through pinned memory

A function in that table would not work. Dask enters CuPy's when it first meets a CuPy array, maybe
after ours. And a task takes a copy of the table to its worker, which may lack ours. So the call
itself is replaced, and restored when nobody wants it any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
from dask.array.core import load_store_chunk
from dask.utils import Dispatch

from dask_coop import chunks
from dask_coop.chunks.dtypes import casts
from dask_coop.chunks.files import Direct
from dask_coop.graph import config

#: The bytes of pinned memory for a GPU, None for the default; and whether to read files directly.
Configured = tuple[int | None, Direct]

#: The least pinned memory of a GPU: two buffers each way, one filled while the other is copied.
LEAST_BYTES = 16 << 20

#: Dask's dispatches, with the kinds of arrays that they take and return.
_WAYS = {"to_cupy_dispatch": ("numpy", "cupy"), "to_numpy_dispatch": ("cupy", "numpy")}

#: Reentrant, because the garbage collector may end a Node, which calls `_give_back`, meanwhile.
_lock = threading.RLock()
#: The configuration of each caller of `take_over`.
_wanted: dict[object, Configured] = {}
_dasks: Callable[..., Any] = Dispatch.__call__
_is_ours = False


@casts
def copy_to_gpu(x: Any, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    """Return a chunk on the current GPU; the options are those of `configured`."""
    return chunks.asarray(x, "cupy", nbytes, direct)


@casts
def copy_to_host(x: Any, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    """Return a chunk on the host; the options are those of `configured`."""
    return chunks.asarray(x, "numpy", nbytes, direct)


def store_chunk(x: Any, out: Any, index: Any, nbytes: int | None = None, **options: Any) -> Any:
    """Do what Dask's `load_store_chunk` does, also for chunks that are not on the host.

    The chunk is copied straight into the memory of `out` if that is a NumPy array.
    """
    is_plain = isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray)
    # Indexing an array without axes gives no view.
    if not is_plain or not out.ndim or options["region"]:
        return load_store_chunk(copy_to_host(x, nbytes), out, index, **options)
    with options["lock"] or nullcontext():
        chunks.put_into(out[index], x, nbytes)
    return load_store_chunk(None, out, index, **options)


def configured() -> Configured:
    """Return the configuration of copies, from Dask's."""
    direct = config.get("coop.transfer.direct", "auto", True, False)
    return config.get("coop.transfer.buffers", config.size(LEAST_BYTES)), direct


def take_over(options: Configured = (None, "auto")) -> Callable[[], bool]:
    """Route `to_backend` through pinned memory.

    Returns
    -------
    callable
        Ends the routing for this caller, and returns whether no other caller wants it. Call it
        once.
    """
    global _dasks, _is_ours
    caller = object()
    with _lock:
        # First, so that a caller collected from here on is not the last.
        _wanted[caller] = options
        if not _is_ours:
            # Another library may have replaced the call.
            _dasks, _is_ours = Dispatch.__call__, True
            Dispatch.__call__ = _call
    return partial(_give_back, caller)


def _give_back(caller: object) -> bool:
    global _is_ours
    with _lock:
        del _wanted[caller]
        # If another library wraps our call, it stays, and acts as Dask's once nobody wants ours.
        if not _wanted and Dispatch.__call__ is _call:
            Dispatch.__call__, _is_ours = _dasks, False
        return not _wanted


def _call(dispatch: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a dispatch, with copies of our own where we can make them."""
    source, target = _WAYS.get(getattr(dispatch, "__name__", ""), ("", ""))
    # Dask's functions have options that ours lack.
    if not _wanted or not target or args or kwargs or not chunks.can_move(x, source):
        return _dasks(dispatch, x, *args, **kwargs)
    options = next(reversed([*_wanted.values()]), ())
    return chunks.asarray(x, target, *options)
