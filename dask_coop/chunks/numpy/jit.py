"""How Numba compiles the loops over NumPy chunks: when they are first called, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

#: What lets LLVM add up in several lanes and fuse multiplications with additions. NaN, infinities
#: and comparisons keep their meaning, which they lose by the other flags of fastmath.
_REASSOCIATED = {"reassoc", "contract", "nsz"}


def jit(function: F) -> F:
    """Return a compiled function, whose machine code is kept on disk where there is a folder.

    It keeps the order of operations.
    """
    return _compile(function, fastmath=False)


def jit_reassociated(function: F) -> F:
    """Return what `jit` does, of additions and multiplications in any order."""
    return _compile(function, fastmath=_REASSOCIATED)


def jit_inner(function: F) -> F:
    """Return what `jit` does, to be called by compiled functions only: it compiles sooner."""
    compiled: F = numba.njit(
        function, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy"
    )
    return compiled


def _compile(function: F, **options: Any) -> F:
    compiled: Any
    try:
        compiled = numba.njit(function, nogil=True, cache=True, **options)
    except RuntimeError:
        # There is no folder to keep it in.
        compiled = numba.njit(function, nogil=True, **options)
    # By itself Numba looks at the function's own file, and not at those of what it calls.
    if kept := getattr(getattr(compiled, "_cache", None), "_cache_file", None):
        kept._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
    result: F = compiled
    return result


@cache
def _stamp(folder: Path) -> tuple[Any, ...]:
    """Return what changes with the modules of a folder, which call one another."""
    found = [(path.name, path.stat()) for path in sorted(folder.glob("*.py"))]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)
