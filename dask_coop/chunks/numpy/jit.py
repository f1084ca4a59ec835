"""How Numba compiles the loops over NumPy chunks: when they are first called, without the GIL."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache, partial
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
    compiled: Any
    try:
        compiled = numba.njit(function, nogil=True, cache=True)
    except RuntimeError:
        # There is no folder to keep it in.
        compiled = numba.njit(function, nogil=True)
    if kept := getattr(getattr(compiled, "_cache", None), "_cache_file", None):
        # By itself Numba looks at the function's own file, and not at those of what it calls.
        kept._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
        # It numbers files, and of two processes each may write its own under the same number.
        kept._data_name = partial(_data_name, kept._index_name)
    result: F = compiled
    return result


def jit_inner(function: F, fastmath: bool | set[str] = False) -> F:
    """Return what `jit` does, to be called by compiled functions only: it compiles sooner."""
    compiled: F = numba.njit(
        function,
        nogil=True,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        error_model="numpy",
        fastmath=fastmath,
    )
    return compiled


def jit_inner_reassociated(function: F) -> F:
    """Return what `jit_inner` does, of additions and multiplications in any order."""
    return jit_inner(function, _REASSOCIATED)


def _data_name(index: str, number: int) -> str:
    """Return the name of a file for machine code, which no other has."""
    return f"{index.removesuffix('.nbi')}.{uuid.uuid4().hex}.nbc"


@cache
def _stamp(folder: Path) -> tuple[Any, ...]:
    """Return what changes with the modules of a folder, which call one another."""
    found = [(path.name, path.stat()) for path in sorted(folder.glob("*.py"))]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)
