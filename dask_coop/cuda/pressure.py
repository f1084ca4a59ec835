"""Free memory that is only kept for later, before an allocation on a GPU fails.

CuPy's pool frees its unused blocks by itself when the driver has no more memory. Kept chunks are in
use for the pool, so its `malloc` is wrapped::

    array --> Relieving --> malloc of the pool, or of another library --> memory
                  '-- MemoryError: drop kept chunks, free their blocks, once more
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import cupy
from cupy.cuda import runtime

#: Takes a GPU's ordinal, drops what is only kept there, and returns how many bytes that were.
Free = Callable[[int], int]


class Relieving:
    """An allocator that calls another one, and once more after freeing kept memory.

    Parameters
    ----------
    allocate : callable
        The other allocator.
    free : callable
    """

    def __init__(self, allocate: Callable[[int], Any], free: Free) -> None:
        self._allocate, self._free = allocate, free

    def __call__(self, nbytes: int) -> Any:
        """Return memory of the current device."""
        try:
            return self._allocate(nbytes)
        except MemoryError:
            if not self._free(int(runtime.getDevice())):
                raise
        # CuPy's pool gives back a block to the driver only as a whole.
        cupy.get_default_memory_pool().free_all_blocks()
        return self._allocate(nbytes)


def keeper(free: Free) -> tuple[int | None, int]:
    """Return the current device and its bytes of memory, with `free` called before memory fails.

    The device is None on any stream but the default: work there would not wait for a kept chunk,
    nor the chunk's memory for that work.
    """
    try:
        if cupy.cuda.get_current_stream() != cupy.cuda.Stream.null:
            return None, 0
        relieve_by(free)
        device = int(runtime.getDevice())
        return device, _total(device)
    except runtime.CUDARuntimeError:
        # The copy, which fails too, has a message for it.
        return None, 0


@cache
def _total(device: int) -> int:
    with cupy.cuda.Device(device):
        return int(runtime.memGetInfo()[1])


def relieve_by(free: Free) -> None:
    """Have `free` called before an allocation of CuPy's fails in this process."""
    current = cupy.cuda.get_allocator()
    if not isinstance(current, Relieving):
        # Within `using_allocator`, memory is none of the pool's.
        with suppress(ValueError):
            cupy.cuda.set_allocator(Relieving(current, free))
