"""Programs of kernel_transpose.cuh and kernel_join.cuh, which copy, and the plan of a copy.

A copy is planned in bytes, because kernels ignore the values that they move::

    axes of the result, slowest first, and the bytes of an element as one more
      neighbours that stay neighbours are merged        (a, b, c) -> (c, a, b) is (ab, c) -> (c, ab)
      what is contiguous on both sides is a *row*       its bytes are words of 1 to 16 bytes
    rows of many words                                  copy_rows
    rows of one word, two long axes                     transpose_tiles
    all else                                            transpose_boxes
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_coop.errors import DoesNotApply

#: The threads of a block that makes boxes or copies rows.
THREADS = 256

#: The numbers of batch axes that kernels are compiled for.
BATCHES = (1, 3, 8)


class Tile(NamedTuple):
    """The side of a tile, its threads, and the elements of a vector, best first."""

    side: int
    threads: int
    vectors: tuple[int, ...]


#: The tiles, by the bytes of an element: at least 256 bytes in a row, or 16 bytes in every load.
TILES = {
    1: Tile(128, 64, (16, 8, 4, 1)),
    2: Tile(128, 256, (4, 2, 1)),
    4: Tile(64, 256, (4, 2, 1)),
    8: Tile(32, 256, (2, 1)),
    16: Tile(32, 256, (1,)),
}

#: The words of a joined chunk that a block copies at a time.
JOINED_TILE = 4 * THREADS

#: The tiles side by side that neighbouring blocks take.
BAND = 4

#: The shortest axes that are worth tiles, and the shortest rows that are worth a warp, in words.
_LONG, _ROW = 24, 32

#: The words that a thread of a row has in flight, and the words of a box by their bytes.
_UNROLL = 8
_CAPACITY = {1: 8192, 2: 8192, 4: 4096, 8: 2048, 16: 1024}


class Axis(NamedTuple):
    """An axis of a copy: its length, and its strides in the input and in the output."""

    size: int
    source: int
    target: int


@dataclass(frozen=True)
class Launch:
    """A launch; `offsets`, in bytes, go to the addresses, which precede `arguments`."""

    source: str
    blocks: int
    threads: int
    offsets: tuple[int, int]
    arguments: tuple[Any, ...]


def tiles(size: int, v: int, dims: int) -> str:
    """Return the program that transposes tiles of elements of `size` bytes, `v` at a time."""
    side, threads, _ = TILES[size]
    return _program(
        "i64 m, i64 n, i64 from, i64 to",
        f"transpose_tiles<{size}, {v}, {side}, {threads}, {BAND}>(x, y, m, n, from, to, ",
        dims,
        threads,
    )


def boxes(size: int, dims: int) -> str:
    """Return the program that transposes boxes of elements of `size` bytes."""
    sides = [
        ", ".join(f"i64 {side}_size_{d}, i64 {side}_stride_{d}, int {side}_box_{d}" for d in "012")
        for side in ("in", "out")
    ]
    axes = [
        "BoxAxes{"
        + ", ".join(
            "{" + ", ".join(f"{side}_{what}_{d}" for d in "012") + "}"
            for what in ("size", "stride", "box")
        )
        + "}"
        for side in ("in", "out")
    ]
    return _program(
        ", ".join((*sides, "int order_0, int order_1, int order_2, int group")),
        "const int order[3] = {order_0, order_1, order_2};\n"
        f"  transpose_boxes<{size}, {_CAPACITY[size]}, {THREADS}>("
        f"x, y, {', '.join(axes)}, order, group, ",
        dims,
    )


def rows(size: int, dims: int) -> str:
    """Return the program that copies rows of elements of `size` bytes."""
    return _program(
        "i64 length, i64 rows",
        f"copy_rows<{size}, {_UNROLL}, {THREADS}>(x, y, length, rows, ",
        dims,
    )


def programs(size: int) -> Iterator[str]:
    """Yield every program for words of `size` bytes."""
    yield join(size)
    for dims in BATCHES:
        yield from (tiles(size, v, dims) for v in TILES[size].vectors)
        yield boxes(size, dims)
        yield rows(size, dims)


def join(size: int) -> str:
    """Return the program that copies chunks into one array, as words of `size` bytes."""
    return f"""#include "kernel_join.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({THREADS})
entry(const JoinedChunk* chunks, i64 tiles, i64 pitch, void* out) {{
  join_chunks<{size}, {THREADS}, {JOINED_TILE // THREADS}>(chunks, tiles, pitch, out);
}}
"""


def _program(parameters: str, call: str, dims: int, threads: int = THREADS) -> str:
    names = ("size", "from", "to")
    batch = ", ".join(f"i64 {name}_{d}" for d in range(dims) for name in names)
    values = ", ".join("{" + ", ".join(f"{name}_{d}" for d in range(dims)) + "}" for name in names)
    return f"""#include "kernel_transpose.cuh"
using namespace coop;
extern "C" __global__ void __launch_bounds__({threads})
entry(const void* x, void* y, {parameters}, {batch}) {{
  {call}Batch<{dims}>{{{values}}});
}}
"""


def plan(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    itemsize: int,
    addresses: tuple[int, int],
    strategy: str | None = None,
) -> Iterator[Launch]:
    """Yield the launches that copy an array in C order.

    Parameters
    ----------
    shape, strides : tuple of int
        The shape and the strides, in bytes, of the array with its axes in their new order.
    itemsize : int
        The bytes of an element.
    addresses : (int, int)
        The addresses of the array and its copy; vectors need them aligned.
    strategy : {"tiles", "boxes", "rows"}, optional
        The kernel to use; by default the best.

    Raises
    ------
    DoesNotApply
        If the strategy does not apply to such an array.
    """
    if math.prod(shape) == 0:
        return
    axes, length = _merge(shape, strides, itemsize)
    aligned = math.gcd(16, length, *addresses, *(axis.source for axis in axes))
    size, group = aligned, length // aligned
    axes = [Axis(n, source // size, target // size) for n, source, target in axes]
    for offsets, rest in _outer(axes):
        at = (offsets[0] * size, offsets[1] * size)
        yield _launch(rest, size, group, addresses, at, strategy)


def _merge(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[list[Axis], int]:
    """Return the merged axes of a copy, with strides in bytes, and the bytes of its rows."""
    axes: list[Axis] = []
    target = itemsize
    inner = Axis(itemsize, 1, 1)
    for n, stride in reversed([*zip(shape, strides, strict=True)]):
        if n == 1:
            continue
        if stride == inner.size * inner.source:
            inner = Axis(n * inner.size, inner.source, inner.target)
        else:
            axes.append(inner)
            inner = Axis(n, stride, target)
        target *= n
    axes.append(inner)
    length = axes[0].size
    return axes[:0:-1], length


def _outer(axes: list[Axis]) -> Iterator[tuple[tuple[int, int], list[Axis]]]:
    """Yield the offsets and the axes of subarrays with at most as many axes as a kernel takes."""
    if len(axes) <= BATCHES[-1]:
        yield (0, 0), axes
        return
    first, *others = axes
    for i in range(first.size):
        for (source, target), rest in _outer(others):
            yield (i * first.source + source, i * first.target + target), rest


def _launch(
    axes: list[Axis],
    size: int,
    group: int,
    addresses: tuple[int, int],
    offsets: tuple[int, int],
    strategy: str | None,
) -> Launch:
    # The fastest axes of the input and of the output.
    inner = min(range(len(axes)), key=lambda d: abs(axes[d].source), default=0)
    outer = len(axes) - 1
    square = group == 1 and inner < outer and axes[inner].source == 1
    if strategy is None:
        if group >= _ROW or not axes:
            strategy = "rows"
        elif square and min(axes[inner].size, axes[outer].size) >= _LONG:
            strategy = "tiles"
        else:
            strategy = "boxes"
    if strategy == "rows":
        return _launch_rows(axes, size, group, offsets)
    if strategy == "boxes":
        return _launch_boxes(axes, size, group, offsets)
    if not square:
        raise DoesNotApply("needs two axes that are exchanged, the input's contiguous")
    starts = [
        (address + offset) // size for address, offset in zip(addresses, offsets, strict=True)
    ]
    return _launch_tiles(axes, inner, size, offsets, starts)


def _launch_rows(axes: list[Axis], size: int, group: int, offsets: tuple[int, int]) -> Launch:
    tiles = -(-group // (_UNROLL * 32))
    count = math.prod(axis.size for axis in axes)
    dims, batch = _batch(axes)
    blocks = -(-tiles * count // (THREADS // 32))
    return Launch(
        rows(size, dims), blocks, THREADS, offsets, (np.int64(group), np.int64(count), *batch)
    )


def _launch_tiles(
    axes: list[Axis], inner: int, size: int, offsets: tuple[int, int], starts: list[int]
) -> Launch:
    column, row, tile = axes[inner], axes[-1], TILES[size]
    others = axes[:inner] + axes[inner + 1 : -1]
    whole = [column.size, row.size, column.target, row.source, *starts]
    whole += [stride for axis in others for stride in axis[1:]]
    v = next(v for v in tile.vectors if all(steps % v == 0 for steps in whole))
    dims, batch = _batch(others)
    blocks = -(-column.size // tile.side) * -(-row.size // tile.side)
    blocks *= math.prod(axis.size for axis in others)
    sizes = map(np.int64, (row.size, column.size, row.source, column.target))
    return Launch(tiles(size, v, dims), blocks, tile.threads, offsets, (*sizes, *batch))


def _launch_boxes(axes: list[Axis], size: int, group: int, offsets: tuple[int, int]) -> Launch:
    capacity = _CAPACITY[size]
    if group > capacity // 4:
        raise DoesNotApply(f"needs rows of at most {capacity // 4} words, not {group}")
    # The fastest axes of either side, in turns, up to three.
    by_source = sorted(axes, key=lambda axis: abs(axis.source))
    turns = itertools.chain.from_iterable(zip(by_source, reversed(axes), strict=True))
    chosen = list(dict.fromkeys(turns))[:3]
    box = _sides(chosen, capacity // group)
    while len(chosen) < 3:
        chosen.append(Axis(1, 0, 0))
        box.append(1)
    others = [axis for axis in axes if axis not in chosen]
    dims, batch = _batch(others)
    inward = sorted(range(3), key=lambda d: -abs(chosen[d].source))
    outward = sorted(range(3), key=lambda d: -chosen[d].target)
    arguments: list[Any] = []
    for order, stride in ((inward, 1), (outward, 2)):
        for d in order:
            arguments += [np.int64(chosen[d].size), np.int64(chosen[d][stride]), np.int32(box[d])]
    arguments += [np.int32(inward.index(d)) for d in outward]
    blocks = math.prod(-(-axis.size // side) for axis, side in zip(chosen, box, strict=True))
    blocks *= math.prod(axis.size for axis in others)
    return Launch(
        boxes(size, dims), blocks, THREADS, offsets, (*arguments, np.int32(group), *batch)
    )


def _sides(axes: list[Axis], room: int) -> list[int]:
    """Return the sides of a box along `axes`, of which the first two matter most."""
    sides = [1] * len(axes)
    for some in ([0, 1][: len(axes)], [2][: len(axes) - 2]):
        # A short axis fits whole, and leaves its room to the other.
        for turn, d in enumerate(sorted(some, key=lambda d: axes[d].size)):
            most = room if turn == len(some) - 1 else math.isqrt(room)
            sides[d] = min(axes[d].size, most)
            room //= sides[d]
    return sides


def _batch(axes: list[Axis]) -> tuple[int, tuple[Any, ...]]:
    """Return the number of batch axes of the kernel, and their sizes and strides."""
    dims = next(dims for dims in BATCHES if dims >= len(axes))
    padded = [Axis(1, 0, 0)] * (dims - len(axes)) + axes
    return dims, tuple(np.int64(value) for axis in padded for value in axis)
