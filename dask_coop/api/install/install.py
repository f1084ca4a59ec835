"""Replace functions of Dask, NumPy, xarray, flox and xhistogram by this library's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal, get_args

from _dask_coop_early import WhenImported, finish_imports, wanted_chunks
from dask_coop.api.call import public
from dask_coop.api.install import (
    of_dask as installed_dask,
)
from dask_coop.api.install import of_numpy as installed_numpy
from dask_coop.api.install import (
    of_xarray as installed_xarray,
)
from dask_coop.api.install import (
    on_gpus as gpu_chunks,
)
from dask_coop.api.install.substitutes import Row, put, take_back

#: The kind of chunks that the functions work on.
Chunks = Literal["numpy", "cupy"]

_lock = threading.RLock()
#: The chunks that each caller of `install` or `installed` wants, the latest one last.
_wanted: dict[object, Chunks] = {}
#: The key of `install` in `_wanted`; each block with `installed` has its own.
_PROCESS = object()
_waiting: WhenImported | None = None


def install(chunks: Chunks = "numpy") -> None:
    """Replace Dask's and xarray's functions with this library's, in this process.

    From here on ``x.sum()``, ``da.sum(x)``, ``np.sum(x)`` and xarray's reductions call functions of
    this library; so do xarray's rolling windows, ``ffill`` and ``bfill``, flox's groups and
    xhistogram's histograms. Calls that this library does not support go to the original function.
    Your code need not change.
    Functions of NumPy that Dask lacks, such as ``np.sort``, are lazy, or warn that they compute
    their arrays in memory.

    Parameters
    ----------
    chunks : {"numpy", "cupy"}
        The chunks to work on: "numpy" leaves chunks as they are, "cupy" moves them to GPUs.

    Raises
    ------
    ValueError
        If `chunks` has another value, or is "cupy" while Dask's ``array.query-planning`` is on.
    RuntimeError
        With "cupy", if CuPy or an NVIDIA GPU is missing.

    See Also
    --------
    uninstall : Restore the original functions.
    installed : Install for a block of code.
    report : Which library served each call, and why.

    Notes
    -----
    Importing the library installs nothing, unless the environment has ``DASK_COOP_INSTALL=1``,
    which is also read when Dask is imported. ``python -m dask_coop run SCRIPT`` runs a script with
    the functions installed, and ``%load_ext dask_coop`` installs them in IPython.

    You may call it repeatedly, in any thread, before or after xarray is imported; it applies to all
    threads. Results are lazy, with the shapes and dtypes of Dask's functions. Workers of a cluster
    need the library but no installation: graphs carry its functions.

    Names that a module imported before, by ``from dask.array import mean``, stay Dask's.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.arange(8, chunks=4)
    >>> dc.install()
    >>> total = x.sum()
    >>> dc.uninstall()
    >>> dc.explain(total)[-1].served_by
    'dask_coop'
    """
    _want(_PROCESS, chunks)


def uninstall() -> None:
    """Restore the functions that `install` has replaced.

    Results that were made in between stay as they are. Blocks with `installed` keep this library's
    functions until they end.

    See Also
    --------
    install
    """
    _want(_PROCESS, None)


@contextmanager
def installed(chunks: Chunks = "numpy") -> Iterator[None]:
    """Replace Dask's and xarray's functions with this library's, in a block of code.

    Parameters
    ----------
    chunks : {"numpy", "cupy"}
        As for :func:`install`.

    Raises
    ------
    ValueError, RuntimeError
        As for :func:`install`.

    See Also
    --------
    install : The same for the process, with notes. Both apply to all threads.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> with dc.installed():
    ...     mean = da.ones(8, chunks=4).mean()
    >>> float(mean.compute())
    1.0
    """
    block = object()
    try:
        _want(block, chunks)
        yield
    finally:
        _want(block, None)


def install_if_wanted() -> None:
    """Install the functions if the environment has DASK_COOP_INSTALL."""
    chunks: Any = wanted_chunks()
    if chunks is not None:
        install(chunks)


def is_installed() -> bool:
    """Tell whether the functions are installed."""
    return bool(_wanted)


def _want(who: object, chunks: Chunks | None) -> None:
    global _waiting, _wanted
    if chunks not in (*get_args(Chunks), None):
        raise ValueError(f"chunks must be 'numpy' or 'cupy', got {chunks!r}")
    if chunks == "cupy":
        gpu_chunks.require()
    if chunks is not None:
        # Without the lock, because threads that import them may need it.
        finish_imports({row.module for row in _rows()})
    with _lock:
        others = {other: wanted for other, wanted in _wanted.items() if other is not who}
        # In one assignment, because other threads read it without the lock.
        _wanted = others if chunks is None else {**others, who: chunks}
        wants_gpus = "cupy" in [*_wanted.values()][-1:]
        public.before = gpu_chunks.before if wants_gpus else None
        if not wants_gpus:
            take_back(gpu_chunks.rows())
        rows = _rows()
        # Start the new watch before the old one stops, to miss no import of another thread.
        previous, _waiting = _waiting, None
        if _wanted:
            later = {row.module for row in rows} - sys.modules.keys()
            _waiting = WhenImported([*later], _put_in)
            _waiting.start()
        if previous is not None:
            previous.stop()
        if not _wanted:
            take_back(rows)
            installed_numpy.take_out()
            return
        if wants_gpus:
            rows += gpu_chunks.rows()
        put(rows, is_installed)
        installed_numpy.put_in()


def _rows() -> list[Row]:
    return [
        *installed_dask.rows(),
        *installed_dask.rows_of_dask_array(),
        *installed_xarray.rows(),
    ]


def _put_in(module: ModuleType) -> None:
    """Replace functions of others in a module that has just been imported."""
    with _lock:
        # Another thread may have uninstalled while the module was being imported.
        if _wanted:
            put([row for row in _rows() if row.module == module.__name__], is_installed)
