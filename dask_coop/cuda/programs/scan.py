"""Programs of kernel_scan.cuh and its neighbours, which scan lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs.base import Functor, ctype

#: The threads of a block, except in `waves` and `stream`.
THREADS = 256

#: The longest lines that share a block, and that a warp scans alone, in elements.
SHORT_LINE, WARP_LINE = 256, 4096

#: The blocks of `cooperative` that fit a multiprocessor.
COOPERATIVE_BLOCKS = 3

#: The numbers of columns that a block can stream, and the tiles in its ring.
STREAM_WIDTHS, STREAM_STAGES = (128, 64, 32), 4


@dataclass(frozen=True)
class Scan:
    """The common parameters of the programs of a scan.

    Attributes
    ----------
    functor : Functor
        The monoid.
    element, result : str
        The C++ names of the scanned elements and of the results.
    element_bytes, result_bytes, state_bytes : int
        The sizes of elements, results and states.
    narrow_bytes : int
        The size of the states of short stretches, ``Within<M>`` in compensated.cuh.
    exclusive : bool
        Whether a result excludes its own element.
    reverse : bool
        Whether lines are scanned from the end.
    flagged : bool
        Whether each element has a head flag, at which the scan restarts.
    ordered : bool
        Whether states do not commute.
    costly : bool
        Whether states take long to combine.
    """

    functor: Functor
    element: str
    result: str
    element_bytes: int
    result_bytes: int
    state_bytes: int
    narrow_bytes: int
    exclusive: bool = False
    reverse: bool = False
    flagged: bool = False
    ordered: bool = False
    costly: bool = False

    @property
    def held_bytes(self) -> int:
        """The largest size of the states that warps and blocks exchange."""
        return max(self.state_bytes, self.narrow_bytes)

    @property
    def flags(self) -> str:
        """The last template arguments of every kernel."""
        return f"{str(self.exclusive).lower()}, {str(self.reverse).lower()}"

    @property
    def widest(self) -> int:
        """The shared memory of an element, over which its result is written."""
        return max(self.element_bytes, self.result_bytes)

    @property
    def items(self) -> int:
        """The elements of a thread in a tile in static shared memory.

        The number is odd, to avoid bank conflicts.
        """
        itemsize = max(self.widest, self.narrow_bytes)
        if itemsize > 32:
            return 3 if itemsize <= 48 else 1
        return 15 if itemsize <= 4 else 11 if itemsize <= 8 else 5

    @property
    def tile(self) -> int:
        """The elements of such a tile, for a block of `THREADS`."""
        return THREADS * self.items

    @property
    def is_bulk(self) -> bool:
        """Whether `waves` takes such elements; ordered states must be small."""
        fits = not self.ordered or self.narrow_bytes <= _ORDERED_BYTES
        return fits and not self.flagged and self.widest in _SHARED_TILES

    @property
    def is_copied(self) -> bool:
        """Whether `stream` copies such elements."""
        return self.element_bytes in (1, 2, 4, 8, 16)


@cache
def of(
    functor: Functor,
    element: np.dtype[Any],
    result: np.dtype[Any],
    state: np.dtype[Any],
    exclusive: bool = False,
    reverse: bool = False,
    narrow: np.dtype[Any] | None = None,
) -> Scan:
    """Return the scan of arrays of `element` into arrays of `result`, which may be the `state`.

    `narrow` is the layout of the states of short stretches, if it is not `state`.
    """
    sizes = element.itemsize, result.itemsize, state.itemsize, (narrow or state).itemsize
    written = f"{functor}::State" if result.names else ctype(result)
    return Scan(functor, ctype(element), written, *sizes, exclusive, reverse)


@cache
def segmented(scan: Scan, state: np.dtype[Any]) -> Scan:
    """Return a scan that restarts at head flags, given the layout of its states without them."""
    layout = segmented_layout(state)
    functor = scan.functor.within("Segmented")
    size = layout.itemsize
    return replace(
        scan, functor=functor, state_bytes=size, narrow_bytes=size, flagged=True, ordered=True
    )


def segmented_layout(state: np.dtype[Any]) -> np.dtype[Any]:
    """Return the layout of states with a flag of restarts."""
    return np.dtype([("value", state), ("restarts", "i4")], align=True)


@cache
def of_states(scan: Scan) -> Scan:
    """Return the exclusive scan of the states of lines, the spine."""
    state, size = f"{scan.functor}::State", scan.state_bytes
    functor = scan.functor.within("Merge")
    sizes = (size,) * 4
    return Scan(functor, state, state, *sizes, True, scan.reverse, ordered=scan.ordered)


@dataclass(frozen=True)
class Waves:
    """The tuning of `waves`: see kernel_scan_waves.cuh.

    Attributes
    ----------
    warps : int
        The warps that scan.
    items : int
        The elements of a tile for each of their threads, an odd number.
    stages : int
        The tiles in shared memory.
    slots : int
        The tiles of a wave that a lane watches if blocks share lines; otherwise 0.
    """

    warps: int
    items: int
    stages: int
    slots: int

    @property
    def tile(self) -> int:
        """The elements of a tile."""
        return self.warps * 32 * self.items

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return (self.warps + 3) * 32

    @property
    def rounds(self) -> int:
        """The number of waves on the board."""
        return 2 * self.stages

    @property
    def ahead(self) -> int:
        """The waves by which tiles are reduced early: three are loaded, scanned, stored."""
        return max(1, self.stages - 3)


#: The size of the largest states that `waves` combines in order.
_ORDERED_BYTES = 48

#: The warps, and the most elements of a thread that fit its registers, by the size of an element.
_SHARED_TILES = {1: (16, 17), 2: (16, 17), 4: (8, 31), 8: (8, 15), 16: (8, 7)}
_OWN_TILES = {1: (16, 17), 2: (16, 17), 4: (16, 17), 8: (8, 17), 16: (8, 7)}


@cache
def tune(scan: Scan, n: int, processors: int, shared_bytes: int, shared: bool) -> Waves:
    """Return the tiles for lines of `n` elements that fill `shared_bytes` of shared memory.

    If blocks share lines, tiles are as large as registers allow, about 32 KiB; otherwise tiles
    divide a line evenly.
    """
    warps, most = (_SHARED_TILES if shared else _OWN_TILES)[scan.widest]
    if not scan.costly and scan.narrow_bytes > 2 * max(4, scan.widest):
        warps, most = 8, 7
    elif scan.element_bytes != scan.result_bytes:
        warps, most = 16, 7
    elif scan.costly:
        warps, most = (16, 15) if scan.widest < 4 else (8, 31 if scan.widest == 4 else 15)
    items = most
    if not shared:
        tiles = -(-n // (warps * 32 * most))
        items = min(most, -(-n // (tiles * warps * 32)) | 1)
    slots = -(-processors // 32) if shared else 0
    one = waves_shared_bytes(scan, Waves(warps, items, 1, slots))
    return Waves(warps, items, min(12, shared_bytes // one), slots)


def tagged_words(state_bytes: int) -> int:
    """Return the number of 8-byte words of a tagged state."""
    return -(-state_bytes // 4)


def waves_shared_bytes(scan: Scan, tuning: Waves) -> int:
    """Return the shared memory of a block of `waves`; the program checks that it is enough."""
    ring = tuning.tile * scan.widest
    states = 2 * -(-tuning.warps * scan.held_bytes // 16) * 16
    return -(-(ring + states + 4 * 8) * tuning.stages // 128) * 128


@cache
def waves(scan: Scan, tuning: Waves) -> str:
    """Return the program that scans contiguous lines in one pass, with the bulk copy engine."""
    numbers = tuning.warps, tuning.items, tuning.stages, tuning.ahead, tuning.slots
    arguments = ", ".join(map(str, numbers))
    rest = f"{waves_shared_bytes(scan, tuning)}{', true' * scan.ordered}"
    return _unit(
        "kernel_scan_waves.cuh",
        scan,
        f"{tuning.threads}, 1",
        "i64 outer, i64 n, u64* board, unsigned lowest_tag",
        f"scan_waves<T, M, R, {arguments}, {scan.flags}, {rest}>"
        "(x, y, base, outer, n, board, lowest_tag);",
    )


@cache
def stream(scan: Scan, width: int, chunk: int) -> str:
    """Return the program that scans strided lines, `width` by a block, copying `chunk` bytes."""
    numbers = f"{width}, {_stream_rows(scan)}, {STREAM_STAGES}, {chunk}, {scan.flags}"
    return _unit(
        "kernel_scan_columns.cuh",
        scan,
        str(width),
        "i64 n, i64 inner, i64 tiles",
        f"stream_columns<T, M, R, {numbers}>(x, y, base, n, inner, tiles);",
    )


def stream_shared_bytes(scan: Scan, width: int) -> int:
    """Return the shared memory of a block of `stream`."""
    return STREAM_STAGES * _stream_rows(scan) * width * scan.element_bytes


def _stream_rows(scan: Scan) -> int:
    return min(32, 128 // scan.element_bytes)


@cache
def rows(scan: Scan, team: int, write: bool = True) -> str:
    """Return the program that scans contiguous lines, or tiles of them, by teams of `team` threads.

    Without `write` it writes only their totals.
    """
    item = "Flagged<T>" if scan.flagged else "T"
    numbers = f"{THREADS}, {scan.items}, {team}, {str(write).lower()}, {scan.flags}"
    return _unit(
        "kernel_scan.cuh",
        scan,
        str(THREADS),
        "M::State* totals, i64 outer, i64 n, i64 tiles",
        f"scan_rows<{item}, M, R, {numbers}>({_source(scan)}, y, base, totals, outer, n, tiles);",
    )


def _source(scan: Scan) -> str:
    """Return the C++ expression of the scanned elements."""
    return "FlaggedPointer<T>{x, heads}" if scan.flagged else "x"


@cache
def short_rows(scan: Scan) -> str:
    """Return the program that scans short contiguous lines, several by a block."""
    call = f"scan_short_rows<T, M, R, {THREADS}, {scan.items}, {scan.flags}>"
    return _unit(
        "kernel_scan.cuh",
        scan,
        f"{THREADS}, 4" if scan.narrow_bytes <= 16 else str(THREADS),
        "i64 outer, int n",
        f"{call}(x, y, base, outer, n);",
    )


@cache
def columns(scan: Scan) -> str:
    """Return the program that scans strided lines, or tiles of them."""
    call = f"scan_columns<{'Flagged<T>' if scan.flagged else 'T'}, M, R, {THREADS}, {scan.flags}>"
    return _unit(
        "kernel_scan.cuh",
        scan,
        str(THREADS),
        "i64 outer, i64 n, i64 inner, i64 tiles",
        f"{call}({_source(scan)}, y, base, outer, n, inner, tiles);",
    )


@cache
def reduce_columns_in_order(scan: Scan) -> str:
    """Return the program that reduces tiles of strided lines, in order, to a state each."""
    call = f"reduce_columns_in_order<T, M, {THREADS}, {str(scan.reverse).lower()}>"
    return _unit(
        "kernel_reduce_ordered.cuh",
        scan,
        str(THREADS),
        "i64 outer, i64 n, i64 inner, i64 tiles",
        f"{call}(x, y, outer, n, inner, tiles);",
        result="M::State",
    )


@cache
def upsweep(scan: Scan) -> str:
    """Return the program that reduces tiles of contiguous lines to a state each."""
    return _unit(
        "kernel_scan.cuh",
        scan,
        str(THREADS),
        "i64 n, i64 tiles",
        f"upsweep_rows<T, M, {THREADS}>(x, y, n, tiles);",
        result="M::State",
    )


@cache
def upsweep_columns(scan: Scan) -> str:
    """Return the program that reduces tiles of strided lines to a state each."""
    return _unit(
        "kernel_scan.cuh",
        scan,
        # Four blocks saturate the memory, and small states leave enough registers for them.
        f"{THREADS}, 4" if scan.state_bytes <= 16 else str(THREADS),
        "i64 n, i64 inner, i64 tiles, int log_width",
        f"upsweep_columns<T, M, {THREADS}>(x, y, n, inner, tiles, log_width);",
        result="M::State",
    )


@cache
def fan(scan: Scan) -> str:
    """Return the program that combines results of tiles of contiguous lines with their bases."""
    return _unit(
        "kernel_scan.cuh",
        scan,
        str(THREADS),
        "i64 n, i64 tiles",
        f"fan_rows<M, R, {THREADS}>(y, base, n, tiles);",
    )


@cache
def cooperative(scan: Scan) -> str:
    """Return the program with both levels of reduce-then-scan in one cooperative launch."""
    call = f"scan_cooperative<T, M, R, {THREADS}, {scan.items}, {scan.flags}>"
    return _unit(
        "kernel_scan.cuh",
        scan,
        f"{THREADS}, {COOPERATIVE_BLOCKS}",
        "M::State* states, unsigned* arrived, i64 n, i64 tiles",
        f"{call}(x, y, base, states, arrived, n, tiles);",
    )


def _unit(
    header: str, scan: Scan, bounds: str, parameters: str, call: str, result: str | None = None
) -> str:
    return f"""#include "{header}"
using namespace coop;
{scan.functor.definition}using M = {scan.functor};
using T = {scan.element};
using R = {result or scan.result};
static_assert(sizeof(M::State) == {scan.state_bytes}, "Python and CUDA disagree on a state");
extern "C" __global__ void __launch_bounds__({bounds})
entry(const T* x, R* y, const M::State* base, {"const bool* heads, " * scan.flagged}{parameters}) {{
  {call}
}}
"""
