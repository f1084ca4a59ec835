"""Programs of kernel_order_statistics.cuh, kernel_order_digits.cuh and kernel_order_gather.cuh."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import ctype

#: The threads of a block if threads, warps or many blocks take a line; and if a block takes one, by
#: its length.
BY_THREADS, BY_WARPS, BY_DIGITS = 128, 256, 256
_BY_BLOCKS = (1024, 512, 256, 128)

#: The most bytes of keys that a thread with a line of its own holds in registers. It is faster than
#: a warp, which must add up its lanes' counts at every step.
_THREAD_BYTES = 256

#: The numbers of keys that programs exist for: of a thread's line, and of each lane of a warp.
_OF_THREADS, _OF_LANES = (4, 8, 16, 32, 64), (2, 4, 8, 12, 16, 24, 32)

#: The longest line of a warp. A warp is faster than a block, whose warps wait for one another.
OF_WARPS = 32 * _OF_LANES[-1]

#: The bits of a digit, and the number of digits.
_DIGIT, BINS = 11, 2048

#: The side of a tile of gathered lines, and the threads of a block that gathers.
SIDE, BY_GATHERS = 32, 256

_WANTED = (
    "i64 lines, const i64* ranks, i64 step, int m, i64 distance, {type}* values, i64* counts",
    "Wanted<{type}>{{lines, ranks, step, m, distance, values, counts}}",
)


def key_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of a key."""
    return max(4, dtype.itemsize)


def thread_keys(dtype: np.dtype[Any], n: int) -> int | None:
    """Return how many keys a thread holds of a line of `n` elements, None if too many."""
    most = _THREAD_BYTES // key_bytes(dtype)
    return next((vt for vt in _OF_THREADS if n <= vt <= most), None)


def lane_keys(n: int) -> int | None:
    """Return how many keys each lane of a warp holds of a line, None if too many."""
    return next((vt for vt in _OF_LANES if n <= 32 * vt), None)


def block_threads(n: int) -> int:
    """Return the threads of a block for a line of `n` elements: at least 32 elements each.

    All threads wait for one another at every step, so few threads with much to do are better.
    """
    return next((nt for nt in _BY_BLOCKS if n >= 32 * nt), _BY_BLOCKS[-1])


def digits(dtype: np.dtype[Any]) -> list[tuple[int, int]]:
    """Return the shift and the bits of each digit of keys, the highest first."""
    left, found = 8 * dtype.itemsize, []
    while left:
        width = min(left, _DIGIT)
        left -= width
        found.append((left, width))
    return found


def _entry(header: str, dtype: np.dtype[Any], threads: int, own: str, call: str, *rest: str) -> str:
    name = ctype(dtype)
    given, wanted = (part.format(type=name) for part in _WANTED)
    parameters = ", ".join((f"const {name}* x", own, given, *rest))
    return (
        f'#include "{header}"\nusing namespace coop;\n'
        f'extern "C" __global__ void __launch_bounds__({threads})\nentry({parameters}) {{\n'
        f"  {call.format(type=name, wanted=wanted)};\n}}\n"
    )


@cache
def by_threads(dtype: np.dtype[Any], vt: int) -> str:
    """Return the program for lines of up to `vt` elements."""
    call = f"select_by_threads<{{type}}, {vt}, {BY_THREADS}>(x, n, inner, {{wanted}})"
    return _entry("kernel_order_statistics.cuh", dtype, BY_THREADS, "int n, i64 inner", call)


@cache
def by_warps(dtype: np.dtype[Any], vt: int) -> str:
    """Return the program for lines of up to 32 * `vt` elements."""
    call = f"select_by_warps<{{type}}, {vt}, {BY_WARPS}>(x, n, inner, width, pad, {{wanted}})"
    own = "int n, i64 inner, int width, int pad"
    return _entry("kernel_order_statistics.cuh", dtype, BY_WARPS, own, call)


@cache
def by_blocks(dtype: np.dtype[Any], threads: int) -> str:
    """Return the program for contiguous lines that fit in a block's shared memory."""
    call = f"select_by_blocks<{{type}}, {threads}>(x, n, {{wanted}})"
    return _entry("kernel_order_statistics.cuh", dtype, threads, "int n", call)


@cache
def by_digits(dtype: np.dtype[Any]) -> str:
    """Return the program that finds the next digit of the wanted keys of contiguous lines."""
    call = (
        f"find_digit<{{type}}, {BINS}, {BY_DIGITS}>(x, n, shift, width, first, parts, {{wanted}}, "
        "known, found, tallies, missing, tickets)"
    )
    own = "i64 n, int shift, int width, int first, int parts"
    rest = "const Digits* known, Digits* found, u64* tallies, u64* missing, unsigned* tickets"
    return _entry("kernel_order_digits.cuh", dtype, BY_DIGITS, own, call, rest)


@cache
def gather(nbytes: int, tiles: bool) -> str:
    """Return the program that gathers elements of `nbytes` into lines, by tiles or one by one."""
    kind, size, more, last = (
        ("tiles", f"{nbytes}, {SIDE}", "", "")
        if tiles
        else ("elements", f"{nbytes}", ", i64 count", ", count")
    )
    return (
        '#include "kernel_order_gather.cuh"\nusing namespace coop;\n'
        f'extern "C" __global__ void __launch_bounds__({BY_GATHERS})\n'
        "entry(const void* x, void* lines, const i64* index, i64 n, i64 inner, i64 groups, "
        f"i64 columns, i64 length{more}) {{\n"
        f"  gather_{kind}<{size}, {BY_GATHERS}>(x, lines, index, n, inner, groups, columns, "
        f"length{last});\n}}\n"
    )


def all_of(dtype: np.dtype[Any]) -> list[str]:
    """Return every program for elements of `dtype`."""
    most = _THREAD_BYTES // key_bytes(dtype)
    return [
        *(by_threads(dtype, vt) for vt in _OF_THREADS if vt <= most),
        *(by_warps(dtype, vt) for vt in _OF_LANES),
        *(by_blocks(dtype, threads) for threads in _BY_BLOCKS),
        by_digits(dtype),
        *(gather(dtype.itemsize, tiles) for tiles in (True, False)),
    ]
