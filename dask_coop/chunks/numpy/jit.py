"""How Numba compiles the loops over NumPy chunks: when they are first called, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
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
    try:
        compiled: F = numba.njit(function, nogil=True, cache=True, **options)
    except RuntimeError:
        # There is no folder to keep it in.
        compiled = numba.njit(function, nogil=True, **options)
    return compiled
