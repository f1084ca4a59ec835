"""Scans of CuPy chunks, by the strategies of `algebra/strategies.py`: see `_STRATEGIES`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.operation import Operation
from dask_coop.algebra.strategies import AUTO, MULTICHUNK, refusal
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.reduce import TILE_BYTES, Shape, tiles_of
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import scan as programs
from dask_coop.cuda.team import most_blocks

Array = Any

#: The most tiles of a strided line, whose states one thread scans.
_COLUMN_TILES = 4096

#: Elements of a tile of fixed length, and the most states of a line that one block scans.
_TILE, _SPINE = 8192, 1 << 15

#: Numbers of blocks that stream columns: enough to keep a multiprocessor's memory busy, and the
#: fewest for which whole columns still beat more blocks with tiles.
_BLOCKS, _FEW_BLOCKS = 3, 0.9

#: The fewest rows of a tile that are worth a ring in shared memory.
_RING_ROWS = 128


def scan_lines(
    op: Operation,
    x: Array,
    y: Array,
    base: Array | None,
    shape: Shape,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    segments: Array | None = None,
) -> None:
    """Scan `x`, seen as (outer, n, inner), along n into `y`, by the strategy of the operation.

    Parameters
    ----------
    op : Operation
    x, y : cupy.ndarray
        Contiguous arrays: `x` of outer * n * inner elements, at least one, and `y` with room for
        as many of dtype ``programs_list.written(op)``.
    base : cupy.ndarray, optional
        The states from which the outer * inner lines start, or their bytes.
    shape : tuple of int
        (outer, n, inner).
    exclusive : bool
        Whether each result leaves out its own element.
    reverse : bool
        Whether lines are scanned from their ends.
    segments : cupy.ndarray, optional
        Bool, contiguous, one for each element: true where a segment begins, so that the scan
        restarts from nothing. In a reverse scan, that is the element which is scanned first.

    Raises
    ------
    ValueError
        If the strategy does not support this GPU, operation or axis.
    """
    gpu = device(cupy.cuda.runtime.getDevice())
    scan = programs_list.scanned(op, exclusive, reverse)
    heads = 0
    if segments is not None:
        plain = scan.state_bytes
        scan, heads = programs.segmented(scan, programs_list.layout(op)), segments.data.ptr
        if base is not None:
            # No line has restarted yet.
            base_states = cupy.ascontiguousarray(base).view("u1").reshape(-1, plain)
            base = cupy.zeros((len(base_states), scan.state_bytes), "u1")
            base[:, :plain] = base_states
    start = base.data.ptr if base is not None else 0
    lines = _Lines(scan, x.data.ptr, y.data.ptr, start, shape, heads)
    strategy = op.strategy
    if strategy == AUTO:
        strategy = _choose(gpu, lines)
    elif reason := _objection(gpu, op, lines, strategy):
        raise refusal("scan", strategy, reason)
    _STRATEGIES[strategy].run(gpu, lines)


def reduce_segments(op: Operation, x: Array, heads: Array, shape: Shape, reverse: bool) -> Array:
    """Return the bytes of the states behind the last head flag of every line of (outer, n, 1).

    `x` and `heads` are contiguous and not empty; `reverse` reads lines from their ends.
    """
    scan = programs.segmented(programs_list.scanned(op, reverse=reverse), programs_list.layout(op))
    lines = _Lines(scan, x.data.ptr, 0, 0, shape, heads.data.ptr)
    tiles = tiles_of(lines.outer, lines.n * x.itemsize // TILE_BYTES)
    states = lines.states(tiles)
    _leave_totals(lines, states.data.ptr, tiles)
    if tiles == 1:
        return states
    spine = _Lines(programs.of_states(scan), states.data.ptr, 0, 0, (lines.outer, tiles, 1))
    totals = spine.states(1)
    _leave_totals(spine, totals.data.ptr, 1)
    return totals


def _leave_totals(lines: _Lines, totals: int, tiles: int) -> None:
    """Reduce the tiles of contiguous lines, in order, to one state each."""
    sizes = np.int64(lines.outer), np.int64(lines.n), np.int64(tiles)
    source = programs.rows(lines.scan, programs.THREADS, write=False)
    lines.launch(source, lines.outer * tiles, programs.THREADS, totals, *sizes)


class _Lines:
    """Lines to scan: the operation, the addresses, and the shape (outer, n, inner)."""

    def __init__(
        self, scan: programs.Scan, x: int, y: int, base: int, shape: Shape, heads: int = 0
    ) -> None:
        self.scan, self.x, self.y, self.base, self.heads = scan, x, y, base, heads
        self.outer, self.n, self.inner = shape

    def launch(self, source: str, blocks: int, threads: int, *values: Any, **options: Any) -> None:
        """Launch a program on these addresses."""
        heads = (self.heads,) if self.scan.flagged else ()
        launch(source, blocks, threads, self.x, self.y, self.base, *heads, *values, **options)

    def states(self, tiles: int) -> Array:
        """Return memory for the states of so many tiles of every line."""
        return cupy.empty(self.outer * tiles * self.inner * self.scan.state_bytes, "u1")

    @property
    def is_bulk(self) -> bool:
        """Whether the bulk copy engine can move every line, if kernels accept the elements."""
        scan, pitch = self.scan, self.n if self.outer > 1 else 0
        offsets = self.x, self.y, pitch * scan.element_bytes, pitch * scan.result_bytes
        return scan.is_bulk and all(offset % 16 == 0 for offset in offsets)


def _objection(gpu: Device, op: Operation, lines: _Lines, strategy: str) -> str:
    """Return why a strategy does not apply, or "" if it does."""
    if strategy == MULTICHUNK:
        return "takes the chunks of a Node or a collective together, not one by one"
    row = _STRATEGIES[strategy]
    if lines.inner > 1 and not row.strided:
        return "is for the last axis of a chunk"
    if not (op.monoid.commutative or row.ordered):
        return "does not keep the order of states"
    if lines.scan.flagged and not (row.flagged if lines.inner == 1 else strategy == "lines"):
        return "does not take segments"
    if row.bulk and not gpu.hopper:
        return f"needs compute capability 9.0, and this GPU is {gpu.arch}"
    if row.bulk and not lines.scan.is_bulk:
        return f"does not take states of {lines.scan.state_bytes} bytes"
    return ""


def _choose(gpu: Device, lines: _Lines) -> str:
    outer, n, inner = lines.outer, lines.n, lines.inner
    if lines.scan.flagged:
        long = inner == 1 and n > programs.WARP_LINE and outer < 4 * gpu.processors
        return "two-level" if long else "lines"
    if inner > 1:
        blocks = outer * -(-inner // programs.STREAM_WIDTHS[0])
        enough = blocks >= _FEW_BLOCKS * gpu.processors
        return "lines" if enough or n < 2 * _RING_ROWS else "two-level"
    if n <= programs.WARP_LINE or outer >= 4 * gpu.processors:
        return "lines"
    if gpu.hopper and lines.is_bulk:
        return "single-pass"
    return "two-level"


def _waves(gpu: Device, lines: _Lines, shared: bool) -> None:
    """Scan contiguous lines with the bulk copy engine, by all blocks together or one block each."""
    scan, blocks = lines.scan, gpu.processors
    tuning = programs.tune(scan, lines.n, blocks, gpu.shared_bytes, shared)
    tiles = -(-lines.n // tuning.tile) * lines.outer
    blocks = min(blocks, tiles if shared else lines.outer)
    board, lowest_tag = 0, 1
    if shared:
        words = tuning.rounds * blocks * programs.tagged_words(scan.held_bytes)
        room, lowest_tag = _board(words, -(-tiles // blocks))
        board = room.data.ptr
    lines.launch(
        programs.waves(scan, tuning),
        blocks,
        tuning.threads,
        np.int64(lines.outer),
        np.int64(lines.n),
        board,
        np.uint32(lowest_tag),
        shared=programs.waves_shared_bytes(scan, tuning),
        cooperative=shared,
    )


_local = threading.local()


def _board(words: int, waves: int) -> tuple[Array, int]:
    """Return memory for tagged states, and the first of `waves` tags that occur nowhere in it.

    Clearing the memory takes as long as a small scan, so this thread and stream keep it, and every
    launch uses new tags. A captured graph replays its tags, so it gets cleared memory of its own.
    """
    stream = cupy.cuda.get_current_stream()
    if stream.is_capturing():
        return _cleared(words), 1
    kept: dict[Any, tuple[Array, int]] = _local.__dict__.setdefault("boards", {})
    key = cupy.cuda.runtime.getDevice(), stream.ptr
    board, tag = kept.get(key, (None, 1))
    if board is None or board.size < words or tag + waves > 1 << 32:
        board, tag = _cleared(max(words, 1 << 13)), 1
    kept[key] = board, tag + waves
    return board, tag


def _cleared(words: int) -> Array:
    room = cupy.empty(words, "u8")
    room.data.memset_async(0, room.nbytes)
    return room


def _whole(gpu: Device, lines: _Lines) -> None:
    """Scan each line in one go."""
    if lines.inner > 1:
        _cut_columns(gpu, lines, 1)
    elif lines.scan.flagged:
        _cut_rows(lines, 1)
    elif lines.n > programs.WARP_LINE and gpu.hopper and lines.is_bulk:
        _waves(gpu, lines, shared=False)
    elif lines.n <= programs.SHORT_LINE and lines.outer > 1:
        blocks = -(-lines.outer // (lines.scan.tile // lines.n))
        sizes = np.int64(lines.outer), np.int32(lines.n)
        lines.launch(programs.short_rows(lines.scan), blocks, programs.THREADS, *sizes)
    else:
        _cut_rows(lines, 1)


def _two_level(gpu: Device, lines: _Lines) -> None:
    """Scan lines by as many tiles as fill the GPU."""
    outer, n, inner = lines.outer, lines.n, lines.inner
    if inner == 1:
        return _cut_rows(lines, tiles_of(outer, n * lines.scan.element_bytes // TILE_BYTES))
    blocks = outer * -(-inner // programs.STREAM_WIDTHS[0])
    tiles = _BLOCKS * gpu.processors // blocks
    return _cut_columns(gpu, lines, max(1, min(tiles, n // _RING_ROWS, _COLUMN_TILES)))


def _reduce_then_scan(gpu: Device, lines: _Lines) -> None:
    """Scan contiguous lines by tiles of a fixed length, and the tiles' totals in the same way."""
    _cut_rows(lines, -(-lines.n // _TILE))


def _cut_rows(lines: _Lines, tiles: int) -> None:
    """Scan contiguous lines by tiles: upsweep, spine, downsweep."""
    threads, team = programs.THREADS, _team(lines.n)
    blocks = -(-lines.outer * tiles // (threads // team))
    sizes = np.int64(lines.outer), np.int64(lines.n), np.int64(tiles)
    source = programs.rows(lines.scan, team)
    if tiles > 1:
        states = lines.states(tiles)
        at = states.data.ptr
        spine = programs.rows(programs.of_states(lines.scan), _team(tiles))
        if lines.scan.ordered:
            prepare(programs.rows(lines.scan, threads, write=False), spine, source)
            bare = _Lines(lines.scan, lines.x, lines.y, 0, (lines.outer, lines.n, 1), lines.heads)
            _leave_totals(bare, at, tiles)
        else:
            upsweep = programs.upsweep(lines.scan)
            prepare(upsweep, spine, source)
            launch(upsweep, lines.outer * tiles, threads, lines.x, at, 0, *sizes[1:])
        _spine(lines, at, tiles)
        lines = _Lines(lines.scan, lines.x, lines.y, at, (lines.outer, lines.n, 1), lines.heads)
    lines.launch(source, blocks, threads, 0, *sizes)


def _team(n: int) -> int:
    """Return the number of threads that scan a contiguous line or tile."""
    return 32 if n <= programs.WARP_LINE else programs.THREADS


def _spine(lines: _Lines, states: int, tiles: int) -> None:
    """Turn the states of tiles into their bases, in place."""
    shape = lines.outer, tiles, 1
    spine = _Lines(programs.of_states(lines.scan), states, states, lines.base, shape)
    _cut_rows(spine, 1 if tiles <= _SPINE else -(-tiles // _TILE))


def _scan_then_fan(gpu: Device, lines: _Lines) -> None:
    """Scan tiles of contiguous lines, scan their totals, and add these to the results."""
    threads, tiles = programs.THREADS, -(-lines.n // _TILE)
    if tiles == 1:
        return _cut_rows(lines, 1)
    states = lines.states(tiles)
    at, blocks = states.data.ptr, lines.outer * tiles
    sizes = np.int64(lines.outer), np.int64(lines.n), np.int64(tiles)
    source = programs.rows(lines.scan, threads)
    launch(source, blocks, threads, lines.x, lines.y, 0, at, *sizes)
    spine = programs.of_states(lines.scan)
    _scan_then_fan(gpu, _Lines(spine, at, at, lines.base, (lines.outer, tiles, 1)))
    fan = programs.fan(lines.scan)
    return launch(fan, blocks, threads, lines.x, lines.y, at, np.int64(lines.n), np.int64(tiles))


def _cooperative(gpu: Device, lines: _Lines) -> None:
    """Scan contiguous lines by two levels in one launch, with a grid barrier between them."""
    source, ordinal = programs.cooperative(lines.scan), cupy.cuda.runtime.getDevice()
    # All blocks must be resident at once, and GPUs with little shared memory hold fewer.
    slots = min(
        gpu.processors * programs.COOPERATIVE_BLOCKS,
        most_blocks(source, (ordinal,), programs.THREADS, 0),
    )
    if lines.outer > slots:
        return _cut_rows(lines, 1)
    tiles = max(1, min(slots // lines.outer, -(-lines.n // _TILE)))
    states = lines.states(tiles)
    arrived = cupy.zeros(1, "u4")
    return lines.launch(
        source,
        lines.outer * tiles,
        programs.THREADS,
        states.data.ptr,
        arrived.data.ptr,
        np.int64(lines.n),
        np.int64(tiles),
        cooperative=True,
    )


def _cut_columns(gpu: Device, lines: _Lines, tiles: int) -> None:
    """Scan strided lines by tiles: upsweep, spine, downsweep."""
    scan, threads, inner = lines.scan, programs.THREADS, lines.inner
    sizes = np.int64(lines.n), np.int64(inner), np.int64(tiles)
    source, streamed = _column_program(gpu, lines, tiles)
    if tiles > 1:
        width = min(1 << (inner - 1).bit_length(), 32)
        states = lines.states(tiles)
        at = states.data.ptr
        grid = lines.outer * tiles * -(-inner // width)
        spine = _Lines(programs.of_states(scan), at, at, lines.base, (lines.outer, tiles, inner))
        scans = _column_program(gpu, spine, 1)[0], source
        if scan.ordered:
            blocks, outer = -(-lines.outer * tiles * inner // threads), np.int64(lines.outer)
            upsweep = programs.reduce_columns_in_order(scan)
            prepare(upsweep, *scans)
            launch(upsweep, blocks, threads, lines.x, at, 0, outer, *sizes)
        else:
            upsweep = programs.upsweep_columns(scan)
            prepare(upsweep, *scans)
            launch(upsweep, grid, threads, lines.x, at, 0, *sizes, np.int32(width.bit_length() - 1))
        _cut_columns(gpu, spine, 1)
        lines = _Lines(scan, lines.x, lines.y, at, (lines.outer, lines.n, inner), lines.heads)
    if not streamed:
        blocks = -(-lines.outer * tiles * inner // threads)
        return lines.launch(source, blocks, threads, np.int64(lines.outer), *sizes)
    return lines.launch(
        source,
        lines.outer * tiles * -(-inner // streamed),
        streamed,
        *sizes,
        shared=programs.stream_shared_bytes(scan, streamed),
    )


def _column_program(gpu: Device, lines: _Lines, tiles: int) -> tuple[str, int]:
    """Return the program that scans tiles of strided lines, and the columns of a stream, or 0."""
    scan = lines.scan
    aligned = (lines.x | lines.inner * scan.element_bytes) % 16 == 0
    # The asynchronous copy has no sizes below 4 bytes.
    copied = scan.is_copied and (aligned or scan.element_bytes >= 4)
    if scan.flagged or lines.n // tiles < _RING_ROWS or not copied:
        return programs.columns(scan), 0
    width = _width(gpu, lines.outer * tiles, lines.inner)
    return programs.stream(scan, width, 16 if aligned else scan.element_bytes), width


def _width(gpu: Device, tiles: int, inner: int) -> int:
    """Return the columns of a block: the most that leave no multiprocessor without a block."""
    for width in programs.STREAM_WIDTHS:
        if tiles * -(-inner // width) >= _FEW_BLOCKS * gpu.processors:
            return width
    return programs.STREAM_WIDTHS[-1]


class _Strategy(NamedTuple):
    """A strategy, and where it applies.

    Attributes
    ----------
    run : callable
        Scans lines on a GPU.
    strided, ordered, flagged : bool
        Whether it supports strided lines, keeps the order of states, and supports contiguous lines
        with segments.
    bulk : bool
        Whether it moves elements with the bulk copy engine.
    """

    run: Callable[[Device, _Lines], None]
    strided: bool = False
    ordered: bool = True
    flagged: bool = False
    bulk: bool = False


_STRATEGIES = {
    "lines": _Strategy(_whole, strided=True, flagged=True),
    "single-pass": _Strategy(partial(_waves, shared=True), bulk=True),
    "two-level": _Strategy(_two_level, strided=True, flagged=True),
    "cooperative": _Strategy(_cooperative, ordered=False),
    "reduce-then-scan": _Strategy(_reduce_then_scan),
    "scan-then-fan": _Strategy(_scan_then_fan, ordered=False),
}
