"""Compile the library's loops by Numba, at their first call and without the GIL.

Machine code is kept on disk: in NUMBA_CACHE_DIR, beside the package if that is writable, or in the
user's cache. Loading unpickles it, so only folders are used to which nobody else can write
(folders.py). Without such a folder every process compiles its loops, and a warning tells so.
Outdated machine code is removed (kept.py).

waits.py prints a line for a user who waits for a compilation.

With ``NUMBA_BOUNDSCHECK=1`` in the environment loops raise IndexError instead of writing outside of
an array; then their machine code is not kept.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.caching import NullCache

from dask_coop.compiled import folders, kept
from dask_coop.compiled.waits import compiling, kept_in

F = TypeVar("F", bound=Callable[..., Any])

#: Flags that let LLVM sum in several lanes and fuse multiplications with additions. Unlike the
#: other flags of fastmath, they keep the meaning of NaN, infinities and comparisons.
_REASSOCIATED = {"reassoc", "contract", "nsz"}

#: The loops of a module, for users; others are called by its name.
_WORDS = {
    "bin_index": "histograms",
    "compensated": "sums",
    "copies_numba": "copies to GPUs",
    "frames_numba": "frames of files",
    "gaps": "gaps and weighted means",
    "group_lanes": "groups",
    "histogram": "histograms",
    "logaddexp": "logarithms of sums",
    "moments": "moments and variances",
    "paired": "weighted moments",
    "reproducible": "reproducible sums",
    "selection": "quantiles and selections",
    "strided": "histograms",
    "unique": "distinct values",
    "unpacking": "packed numbers",
    "walkers": "scans",
    "window_extrema": "windows",
    "window_order": "windows",
    "window_sums": "windows",
}


class _Waiting(event.Listener):  # type: ignore[misc]
    """Times how long Numba compiles functions of this library, with their callees."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def on_start(self, event: Any) -> None:
        """Begin to time a function, unless another one needs it."""
        running = self._running()
        compiled = event.data["dispatcher"]
        module = compiled.py_func.__module__
        if not running and module.startswith("dask_coop."):
            name = module.rpartition(".")[2]
            running.append(
                compiling(
                    f"loops for {_WORDS.get(name, name)}",
                    lambda: kept_in(compiled.stats.cache_path),
                )
            )
            running[0].__enter__()
        elif running:
            running.append(None)

    def on_end(self, event: Any) -> None:
        """End."""
        running = self._running()
        if running and (last := running.pop()) is not None:
            last.__exit__()

    def _running(self) -> list[Any]:
        """Return the compilations of this thread, each of which the one before needs."""
        return self._thread.__dict__.setdefault("running", [])  # type: ignore[no-any-return]


event.register("numba:compile", _Waiting())


def jit(function: F, allocates: bool = True) -> F:
    """Return a compiled function, with machine code on disk if there is a folder for it.

    It keeps the order of operations. Without `allocates`, Numba skips reference counts, which cost
    as much as some elements in every step that takes arrays; the function must make no arrays.
    """
    compiled: Any = numba.njit(function, nogil=True, _nrt=allocates)
    # Machine code on disk does not tell whether it checks indices.
    if not numba.config.BOUNDSCHECK and (
        reason := _keep(compiled, Path(function.__code__.co_filename))
    ):
        _warn_once(
            f"compiled loops are not kept: {reason}. Every process compiles them anew; set "
            "NUMBA_CACHE_DIR to a folder that only you can write to"
        )
    return cast(F, compiled)


def jit_inner(function: F, fastmath: bool | set[str] = False, **options: bool) -> F:
    """Return a compiled function for compiled callers only, which compiles faster than `jit`."""
    compiled: F = numba.njit(
        function,
        nogil=True,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        error_model="numpy",
        fastmath=fastmath,
        **options,
    )
    return compiled


def jit_inner_reassociated(function: F) -> F:
    """Return a `jit_inner` function whose additions and multiplications may be reordered."""
    return jit_inner(function, _REASSOCIATED)


def jit_uncounted(function: F) -> F:
    """Return a compiled inner function that makes no arrays: Numba counts no references."""
    return jit_inner(function, _nrt=False)


def jit_step(function: F) -> F:
    """Return a compiled step of a loop, which the loop inlines and which makes no arrays."""
    return jit_inner(function, forceinline=True, _nrt=False)


def _keep(compiled: Any, module: Path) -> str:
    """Keep a function's machine code on disk; return an empty string, or why that is impossible."""
    if reason := _objection(module.parent):
        return reason
    try:
        compiled.enable_caching()
    except RuntimeError:
        return "none that Numba tries can be written"
    # Numba may have chosen another folder, or made one below with the user's umask.
    if reason := _objection_to(compiled.stats.cache_path):
        compiled._cache = NullCache()
        return reason
    kept.adapt(compiled._cache._cache_file, _stamp(module.parent))
    return ""


@cache
def _objection(modules: Path) -> str:
    """Return why there is no folder for the machine code of the modules in `modules`, or "".

    Make the folder here: Numba would make one named ~ if the user has no home.
    """
    python_cache = modules / "__pycache__"
    if path := numba.config.CACHE_DIR:
        folder = Path(path)
    elif os.access(python_cache if python_cache.exists() else modules, os.W_OK):
        return ""
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
        if not folder.is_absolute():
            return "the user has no home folder"
    try:
        return folders.make(folder)
    except OSError:
        # Numba tries other folders.
        return ""


@cache
def _objection_to(path: str) -> str:
    # Whoever can write beside the modules can change the modules themselves.
    return "" if Path(path).name == "__pycache__" else folders.objection(Path(path))


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


@cache
def _stamp(folder: Path) -> tuple[Any, ...]:
    """Return a value that changes when any module of `folder` or of this package changes.

    All modules count, because compiled functions contain those that they call.
    """
    paths = [*sorted(folder.glob("*.py")), *sorted(Path(__file__).parent.glob("*.py"))]
    statuses = ((path.name, path.stat()) for path in paths)
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in statuses)
