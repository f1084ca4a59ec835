"""How Numba compiles the loops over NumPy chunks: when they are first called, without the GIL.

Machine code is kept on disk: where NUMBA_CACHE_DIR says, beside the package if that can be written,
or in the user's cache. What is loaded from there is unpickled, so a folder of another owner, or one
that everybody may write to, is not used. Where there is none to use, every process compiles for
itself, and a warning says so.

With ``NUMBA_BOUNDSCHECK=1`` in the environment loops raise IndexError where they leave an array,
instead of writing there; their machine code is not kept then.
"""

from __future__ import annotations

import os
import stat
import uuid
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

#: What lets LLVM add up in several lanes and fuse multiplications with additions. NaN, infinities
#: and comparisons keep their meaning, which they lose by the other flags of fastmath.
_REASSOCIATED = {"reassoc", "contract", "nsz"}


def jit(function: F) -> F:
    """Return a compiled function, whose machine code is kept on disk where there is a folder.

    It keeps the order of operations.
    """
    compiled: Any = numba.njit(function, nogil=True)
    if numba.config.BOUNDSCHECK:
        # Machine code on disk does not say whether it checks indices.
        return cast(F, compiled)
    beside = Path(function.__code__.co_filename).parent
    reason = _objection(beside)
    if not reason:
        try:
            compiled.enable_caching()
        except RuntimeError:
            reason = "none that Numba tries can be written"
    if reason:
        _warn_once(
            f"compiled loops are not kept: {reason}. Every process compiles them anew; set "
            "NUMBA_CACHE_DIR to a folder that only you can write to"
        )
    if kept := getattr(getattr(compiled, "_cache", None), "_cache_file", None):
        # By itself Numba looks at the function's own file, and not at those of what it calls.
        kept._source_stamp = _stamp(beside)
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
def _objection(beside: Path) -> str:
    """Say why there is no folder to keep the machine code of a folder's modules in; "" if one is.

    Numba makes the folder, and would make one named ~ where it is not known who the user is.
    """
    own = beside / "__pycache__"
    if given := numba.config.CACHE_DIR:
        folder = Path(given)
    elif os.access(own if own.exists() else beside, os.W_OK):
        # Who can write there can change the modules.
        return ""
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
        if not folder.is_absolute():
            return "the user has no home folder"
    if not folder.exists():
        return ""
    found = folder.stat()
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        return f"{folder} belongs to user {found.st_uid}, and this is user {os.getuid()}"
    return f"everybody may write to {folder}" if found.st_mode & stat.S_IWOTH else ""


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


@cache
def _stamp(folder: Path) -> tuple[Any, ...]:
    """Return what changes with the modules of a folder, which call one another."""
    found = [(path.name, path.stat()) for path in sorted(folder.glob("*.py"))]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in found)
