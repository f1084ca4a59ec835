"""Puts this library in the place of Dask's functions, and of xarray's and flox's."""

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
from dask_coop.api.install import (
    of_xarray as installed_xarray,
)
from dask_coop.api.install import (
    on_gpus as gpu_chunks,
)
from dask_coop.api.install.substitutes import put, take_back

#: Which kind of chunks the functions work on.
Chunks = Literal["numpy", "cupy"]

_lock = threading.RLock()
#: As those who want it installed want the chunks, the latest one last.
_wanted: dict[object, Chunks] = {}
#: Who `install` is, who needs no other name.
_PROCESS = object()
_waiting: WhenImported | None = None


def install(chunks: Chunks = "numpy") -> None:
    """Have this library serve Dask's functions, and xarray's, in this process.

    From here on ``x.sum()``, ``da.sum(x)``, ``np.sum(x)`` and what xarray makes of them call
    functions of this library, where Dask's are looked up; and so do xarray's rolling windows,
    ``ffill`` and ``bfill``, and flox's groups. What this library does not take goes to the function
    that was there. Code stays as it is.

    Parameters
    ----------
    chunks : {"numpy", "cupy"}
        Which chunks they work on: those that there are, or with "cupy" chunks on GPUs.

    Raises
    ------
    ValueError
        If there is no such kind of chunks, or with "cupy" Dask plans queries.
    RuntimeError
        With "cupy", if CuPy or an NVIDIA GPU is missing.

    See Also
    --------
    uninstall : The way back.
    installed : For a block of code.
    report : What was served by which library, and why.

    Notes
    -----
    Nothing is installed by an import alone, unless the environment has ``DASK_COOP_INSTALL=1``,
    which is also read when Dask is imported. ``python -m dask_coop run SCRIPT`` runs a script
    with it, and ``%load_ext dask_coop`` installs it in IPython.

    It may be called again, in any thread, before or after xarray is imported, and holds for all
    threads. Results are those of Dask's functions: lazy, with the same shapes and dtypes.
    Workers of a cluster need nothing: graphs carry functions of this library, which must be there.

    Names that a module has taken before, by ``from dask.array import mean``, stay Dask's.

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
    """Put Dask's functions, xarray's and flox's back where `install` has found them.

    Every name is again the function that it was. Results that were made in between stay as they
    are. Blocks with `installed` keep it until they end.

    See Also
    --------
    install
    """
    _want(_PROCESS, None)


@contextmanager
def installed(chunks: Chunks = "numpy") -> Iterator[None]:
    """Have this library serve Dask's functions, and xarray's, in a block of code.

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
    install : With notes. It holds for all threads, here too.

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
    """Install what DASK_COOP_INSTALL asks for."""
    chunks: Any = wanted_chunks()
    if chunks is not None:
        install(chunks)


def is_installed() -> bool:
    """Tell whether anybody wants it."""
    return bool(_wanted)


def _want(who: object, chunks: Chunks | None) -> None:
    global _waiting, _wanted
    if chunks not in (*get_args(Chunks), None):
        raise ValueError(f"chunks must be 'numpy' or 'cupy', got {chunks!r}")
    if chunks == "cupy":
        gpu_chunks.require()
    if chunks is not None:
        # Without the lock, which whoever imports them may want.
        finish_imports(row.module for row in installed_xarray.rows())
    with _lock:
        others = {other: wanted for other, wanted in _wanted.items() if other is not who}
        # At once, for calls of other threads look at it without the lock.
        _wanted = others if chunks is None else {**others, who: chunks}
        wants_gpus = "cupy" in [*_wanted.values()][-1:]
        public.before = gpu_chunks.before if wants_gpus else None
        if not wants_gpus:
            take_back(gpu_chunks.rows())
        rows = [*installed_dask.rows(), *installed_xarray.rows()]
        # Begun before the last one ends, so that what another thread imports meanwhile is served.
        before, _waiting = _waiting, None
        if _wanted:
            later = {row.module for row in rows} - sys.modules.keys()
            _waiting = WhenImported([*later], _put_in)
            _waiting.start()
        if before is not None:
            before.stop()
        if not _wanted:
            take_back(rows)
            return
        if wants_gpus:
            rows += gpu_chunks.rows()
        put(rows, is_installed)


def _put_in(module: ModuleType) -> None:
    """Serve the functions of xarray or flox in a module that has just been imported."""
    with _lock:
        # It may have been uninstalled while the module was being imported.
        if _wanted:
            put(
                [row for row in installed_xarray.rows() if row.module == module.__name__],
                is_installed,
            )
