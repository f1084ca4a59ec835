"""How Numba compiles the loops over NumPy chunks: when they are first called, without the GIL.

Not with fastmath, which would change the order of operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Return a compiled function, whose machine code is kept on disk where there is a folder."""
    try:
        compiled: F = numba.njit(function, nogil=True, cache=True)
    except RuntimeError:
        # There is no folder to keep it in.
        compiled = numba.njit(function, nogil=True)
    return compiled
