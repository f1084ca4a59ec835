"""Loops that copy elements of arrays of any layout and dtype into blocks.

A record of int64 describes an array, so that loops are compiled once for all arrays: a code for its
dtype, the address of its first element, its number of axes, their lengths, their strides in bytes,
and room for a position. Elements are in the order of these axes, of which the last moves fastest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dask_coop.compiled.jit import jit_inner

Array = Any

#: The codes of dtypes, floats first.
CODES = {"f8": 0, "f4": 1, "i8": 2, "i4": 3, "i2": 4, "u8": 5, "u4": 6, "u2": 7, "u1": 8}
FIRST_INTEGER = CODES["i8"]
_F8, _F4, _I8, _I4, _I2, _U8, _U4, _U2, _U1 = CODES.values()

#: The bit pattern that maps the order of uint64 to that of int64.
TOP = 1 << 63


def _loader(result: Any) -> Any:
    """Return a function that reads a number at an address and an offset in bytes.

    Loops with it compile sooner than those over arrays made from addresses, and run as fast.
    """

    @intrinsic  # type: ignore[untyped-decorator]
    def load(context: Any, address: Any, distance: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
            pointer = builder.gep(pointer, [arguments[1]])
            kind = context.get_value_type(result).as_pointer()
            return builder.load(builder.bitcast(pointer, kind))

        return result(types.int64, types.int64), generate

    return load


load_f8: Any = _loader(types.float64)
load_i8: Any = _loader(types.int64)
load_i4: Any = _loader(types.int32)
_load_f4, _load_u4 = map(_loader, (types.float32, types.uint32))
_load_u2, _load_u1 = map(_loader, (types.uint16, types.uint8))


@jit_inner
def seek(array: Array, start: int) -> tuple[int, int]:
    """Set the position of an array to element `start`.

    Return the number of elements before the last axis ends, and the address of the first.
    """
    ndim, address = array[2], array[1]
    for axis in range(ndim + 2, 2, -1):
        start, at = divmod(start, array[axis])
        array[axis + 2 * ndim] = at
        address += at * array[axis + ndim]
    return array[2 + ndim] - array[2 + 3 * ndim], address


@jit_inner
def advance(array: Array) -> tuple[int, int]:
    """Move the position of an array to the next start of its last axis; return as `seek` does."""
    ndim, address = array[2], array[1]
    array[2 + 3 * ndim] = 0
    moves = 1
    for axis in range(ndim + 1, 2, -1):
        at = array[axis + 2 * ndim] + moves
        moves = 1 if at == array[axis] else 0
        at = 0 if moves else at
        array[axis + 2 * ndim] = at
        address += at * array[axis + ndim]
    return array[2 + ndim], address


@jit_inner
def load_floats(array: Array, start: int, out: Array) -> None:
    """Write float elements, from `start` on, in float64."""
    n, code, step = len(out), array[0], array[2 + 2 * array[2]]
    left, address = seek(array, start)
    done = 0
    while done < n:
        end = done + left if left < n - done else n
        run = out[done:end]
        if code == _F8 and step == 8:
            for i in range(len(run)):
                run[i] = load_f8(address, i * 8)
        elif code == _F8:
            for i in range(len(run)):
                run[i] = load_f8(address, i * step)
        elif step == 4:
            for i in range(len(run)):
                run[i] = _load_f4(address, i * 4)
        else:
            for i in range(len(run)):
                run[i] = _load_f4(address, i * step)
        done = end
        if done < n:
            left, address = advance(array)


@jit_inner
def load_integers(array: Array, start: int, out: Array) -> None:
    """Write integer elements, from `start` on, in int64; uint64 keep their bits."""
    n, code, step = len(out), array[0], array[2 + 2 * array[2]]
    left, address = seek(array, start)
    done = 0
    while done < n:
        end = done + left if left < n - done else n
        run = out[done:end]
        if code in (_I8, _U8):
            for i in range(len(run)):
                run[i] = load_i8(address, i * step)
        elif code in (_I4, _U4):
            for i in range(len(run)):
                run[i] = _load_u4(address, i * step)
        elif code in (_I2, _U2):
            for i in range(len(run)):
                run[i] = _load_u2(address, i * step)
        else:
            for i in range(len(run)):
                run[i] = _load_u1(address, i * step)
        done = end
        if done < n:
            left, address = advance(array)
    # Extend the sign of integers shorter than int64.
    top = (1 << 31) * (code == _I4) + (1 << 15) * (code == _I2)
    if top:
        for i in range(n):
            out[i] = (out[i] ^ top) - top


@jit_inner
def widen(whole: Array, code: int, out: Array) -> None:
    """Write integers in float64."""
    if code == _U8:
        for i in range(len(out)):
            out[i] = np.uint64(whole[i])
    else:
        for i in range(len(out)):
            out[i] = whole[i]


@jit_inner
def offsets(array: Array, start: int, out: Array) -> None:
    """Write the offsets of elements, from `start` on, from the first one, which has address 0."""
    n, step = len(out), array[2 + 2 * array[2]]
    left, offset = seek(array, start)
    done = 0
    while done < n:
        end = done + left if left < n - done else n
        run = out[done:end]
        for i in range(len(run)):
            run[i] = np.int32(offset + i * step)
        done = end
        if done < n:
            left, offset = advance(array)
