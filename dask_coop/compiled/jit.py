"""How Numba compiles the loops of this library: when they are first called, without the GIL.

Machine code is kept on disk: where NUMBA_CACHE_DIR says, beside the package if that can be written,
or in the user's cache. What is loaded from there is unpickled, so only folders that others cannot
write to are used (folders.py). Where there is none to use, every process compiles for itself, and a
warning says so. What later code replaces is removed (kept.py).

With ``NUMBA_BOUNDSCHECK=1`` in the environment loops raise IndexError where they leave an array,
instead of writing there; their machine code is not kept then.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import NullCache

from dask_coop.compiled import folders, kept

F = TypeVar("F", bound=Callable[..., Any])

#: What lets LLVM add up in several lanes and fuse multiplications with additions. NaN, infinities
#: and comparisons keep their meaning, which they lose by the other flags of fastmath.
_REASSOCIATED = {"reassoc", "contract", "nsz"}


def jit(function: F, allocates: bool = True) -> F:
    """Return a compiled function, whose machine code is kept on disk where there is a folder.

    It keeps the order of operations. Unless it `allocates`, Numba counts no references to arrays:
    where a step takes some, that would cost as much as ten elements.
    """
    compiled: Any = numba.njit(function, nogil=True, _nrt=allocates)
    # Machine code on disk does not say whether it checks indices.
    if not numba.config.BOUNDSCHECK and (
        reason := _keep(compiled, Path(function.__code__.co_filename))
    ):
        _warn_once(
            f"compiled loops are not kept: {reason}. Every process compiles them anew; set "
            "NUMBA_CACHE_DIR to a folder that only you can write to"
        )
    return cast(F, compiled)


def jit_inner(function: F, fastmath: bool | set[str] = False, **options: bool) -> F:
    """Return what `jit` does, to be called by compiled functions only: it compiles sooner."""
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
    """Return what `jit_inner` does, of additions and multiplications in any order."""
    return jit_inner(function, _REASSOCIATED)


def jit_uncounted(function: F) -> F:
    """Return what `jit_inner` does, without counts of references: the function makes no arrays."""
    return jit_inner(function, _nrt=False)


def jit_step(function: F) -> F:
    """Return what `jit_uncounted` does, of a step, which LLVM copies into loops that call it."""
    return jit_inner(function, forceinline=True, _nrt=False)


def _keep(compiled: Any, module: Path) -> str:
    """Have machine code kept on disk, or say why not."""
    if reason := _objection(module.parent):
        return reason
    try:
        compiled.enable_caching()
    except RuntimeError:
        return "none that Numba tries can be written"
    # Numba may have gone on to another folder, or have made one below with the user's umask.
    if reason := _objection_to(compiled.stats.cache_path):
        compiled._cache = NullCache()
        return reason
    kept.adapt(compiled._cache._cache_file, _stamp(module.parent))
    return ""


@cache
def _objection(beside: Path) -> str:
    """Say why there is no folder to keep the machine code of a folder's modules in; "" if one is.

    Numba makes the folder, and would make one named ~ where it is not known who the user is.
    """
    own = beside / "__pycache__"
    if given := numba.config.CACHE_DIR:
        folder = Path(given)
    elif os.access(own if own.exists() else beside, os.W_OK):
        return ""
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
        if not folder.is_absolute():
            return "the user has no home folder"
    try:
        return folders.make(folder)
    except OSError:
        # Numba tries others.
        return ""


@cache
def _objection_to(path: str) -> str:
    # Who can write beside the modules can change these.
    return "" if Path(path).name == "__pycache__" else folders.objection(Path(path))


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


@cache
def _stamp(folder: Path) -> tuple[Any, ...]:
    """Return what changes with the modules of a folder, which call one another, and with these."""
    paths = [*sorted(folder.glob("*.py")), *sorted(Path(__file__).parent.glob("*.py"))]
    found = [(path.name, path.stat()) for path in paths]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)
