"""How copies between the host and the GPUs are configured, and Dask's own `to_backend` by them.

``x.to_backend("cupy")`` makes tasks that call `dask.array.dispatch.to_cupy_dispatch`, and the other
way `to_numpy_dispatch`; both are of the class `Dispatch`, with a table of functions by type::

    task --> Dispatch.__call__ --> CuPy's function of the table
                  |
                  '-- ours, while somebody wants it --> chunks.asarray, through pinned memory

A function in that table would not do: Dask enters CuPy's when it first meets an array of CuPy,
maybe after ours, and a task takes a copy of the table to its worker, from a process where ours need
not be. So the call itself is replaced; it is Dask's again when nobody wants it any more.
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

#: The bytes of pinned memory for a GPU, None if nothing is said; whether files are read directly.
Configured = tuple[int | None, Direct]

#: The least pinned memory of a GPU: two buffers each way, one that is filled while one is copied.
LEAST_BYTES = 16 << 20

#: Dask's dispatches, and the kinds of arrays that they take and make.
_WAYS = {"to_cupy_dispatch": ("numpy", "cupy"), "to_numpy_dispatch": ("cupy", "numpy")}

#: Reentrant, because a Node that is collected meanwhile gives back what it wanted.
_lock = threading.RLock()
#: As those who want ours want them.
_wanted: dict[object, Configured] = {}
_dasks: Callable[..., Any] = Dispatch.__call__
_is_ours = False


@casts
def copy_to_gpu(x: Any, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    """Return a chunk on the current GPU; the arguments are as `configured` returns them."""
    return chunks.asarray(x, "cupy", nbytes, direct)


@casts
def copy_to_host(x: Any, nbytes: int | None = None, direct: Direct = "auto") -> Any:
    """Return a chunk on the host."""
    return chunks.asarray(x, "numpy", nbytes, direct)


def store_chunk(x: Any, out: Any, index: Any, nbytes: int | None = None, **options: Any) -> Any:
    """Do what Dask's `load_store_chunk` does, of a chunk that need not be on the host.

    Its copy goes into the memory of `out` if that is a NumPy array.
    """
    is_plain = isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray)
    # Without an axis, what is at an index is no view.
    if not is_plain or not out.ndim or options["region"]:
        return load_store_chunk(copy_to_host(x, nbytes), out, index, **options)
    with options["lock"] or nullcontext():
        chunks.put_into(out[index], x, nbytes)
    return load_store_chunk(None, out, index, **options)


def configured() -> Configured:
    """Return how copies are to be made, from Dask's configuration."""
    direct = config.get("coop.transfer.direct", "auto", True, False)
    return config.get("coop.transfer.buffers", config.size(LEAST_BYTES)), direct


def take_over(given: Configured = (None, "auto")) -> Callable[[], bool]:
    """Have `to_backend` go through pinned memory.

    Returns
    -------
    callable
        It ends that, and returns whether nobody else wants it; to be called once.
    """
    global _dasks, _is_ours
    me = object()
    with _lock:
        # First, so that whoever is collected from here on is not the last.
        _wanted[me] = given
        if not _is_ours:
            # Another library may have a call of its own there.
            _dasks, _is_ours = Dispatch.__call__, True
            Dispatch.__call__ = _call
    return partial(_give_back, me)


def _give_back(who: object) -> bool:
    global _is_ours
    with _lock:
        del _wanted[who]
        # If somebody has put a call around ours, it stays, and is as Dask's where nobody wants it.
        if not _wanted and Dispatch.__call__ is _call:
            Dispatch.__call__, _is_ours = _dasks, False
        return not _wanted


def _call(dispatch: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a dispatch: its own function, but for copies that are ours."""
    source, target = _WAYS.get(getattr(dispatch, "__name__", ""), ("", ""))
    # Dask's functions have options that ours do not.
    if not _wanted or not target or args or kwargs or not chunks.can_move(x, source):
        return _dasks(dispatch, x, *args, **kwargs)
    given = next(reversed([*_wanted.values()]), ())
    return chunks.asarray(x, target, *given)
