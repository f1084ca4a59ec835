"""Scans of CuPy chunks: picks a strategy of kernel_scan.cuh and its neighbours.

======================== ======= =================================================================
strategy                 traffic lines
======================== ======= =================================================================
``"single-pass"``        2N      contiguous, shared by all blocks of a GPU with Device.hopper
``"look-back"``          2N      contiguous, of integers: its order of sums is not fixed
``"lines"``              2N      whole: contiguous ones by a warp or a block, 32 strided ones a warp
``"two-level"``          3N      cut into a fixed number of pieces: three launches
``"cooperative"``        3N      contiguous; the same in one cooperative launch
``"reduce-then-scan"``   3N      contiguous, cut into pieces of a fixed length, recursively
``"scan-then-fan"``      4N      contiguous, cut into pieces of a fixed length, recursively
======================== ======= =================================================================
"""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np

from dask_coop.algebra.operation import Operation
from dask_coop.chunks.cupy import programs_list
from dask_coop.chunks.cupy.reduce import PART_BYTES, Shape, parts_of
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import scan as programs

Array = Any

STRATEGIES = (
    "single-pass",
    "look-back",
    "lines",
    "two-level",
    "cooperative",
    "reduce-then-scan",
    "scan-then-fan",
)

#: The most parts of a strided line: one thread scans their states.
_COLUMN_PARTS = 4096

#: Elements of a piece of fixed length, and the most states of a line that one block scans.
_PIECE, _SPINE = 8192, 1 << 15

#: Blocks that stream columns: how many keep a multiprocessor's memory busy, and how few still do
#: better with whole columns than more would with pieces.
_BLOCKS, _FEW_BLOCKS = 3, 0.9

#: The fewest rows of a piece that are worth a ring in shared memory.
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
    strategy: str | None = None,
) -> None:
    """Scan `x`, seen as (outer, n, inner), along n into `y`.

    Parameters
    ----------
    op : Operation
    x, y : cupy.ndarray
        Contiguous arrays, `x` of outer * n * inner elements, at least one, and `y` with room for
        as many of dtype ``catalogue.written(op)``.
    base : cupy.ndarray, optional
        The states from which the outer * inner lines start, or their bytes.
    shape : tuple of int
        (outer, n, inner).
    exclusive : bool
        Whether a result leaves out its own element.
    reverse : bool
        Whether lines are scanned from their ends.
    segments : cupy.ndarray, optional
        Bool, contiguous, as many as elements: whether a segment begins there, so that the scan
        restarts from nothing. In a reverse scan that is the element which is scanned first.
    strategy : str, optional
        One of `STRATEGIES`; by default the one that is fastest for the shape. Segments take "lines"
        and, contiguous ones, "two-level".

    Raises
    ------
    ValueError
        If the strategy is none of these, or not for this GPU, dtype or axis.
    """
    gpu = device(cupy.cuda.runtime.getDevice())
    scan = programs_list.scanned(op, exclusive, reverse)
    marks = 0
    if segments is not None:
        plain = scan.state_bytes
        scan, marks = programs.segmented(scan, programs_list.layout(op)), segments.data.ptr
        if base is not None:
            # No restart yet.
            lines = cupy.ascontiguousarray(base).view("u1").reshape(-1, plain)
            base = cupy.zeros((len(lines), scan.state_bytes), "u1")
            base[:, :plain] = lines
    start = base.data.ptr if base is not None else 0
    job = _Job(scan, x.data.ptr, y.data.ptr, start, shape, marks)
    if strategy is None:
        strategy = _choose(gpu, job)
    elif reason := _objection(gpu, op, shape, strategy, scan.marked):
        raise ValueError(f"strategy {strategy!r} {reason}")
    outer, n, inner = shape
    match strategy:
        case "single-pass":
            _waves(gpu, job, shared=True)
        case "look-back":
            _look_back(job)
        case "lines" if inner > 1:
            _cut_columns(gpu, job, 1)
        case "lines":
            _rows(gpu, job)
        case "cooperative":
            _cooperative(gpu, job)
        case "scan-then-fan":
            _scan_then_fan(job)
        case "reduce-then-scan":
            _cut_rows(job, -(-n // _PIECE))
        case _ if inner > 1:
            blocks = outer * -(-inner // programs.STREAM_WIDTHS[0])
            parts = _BLOCKS * gpu.processors // blocks
            _cut_columns(gpu, job, max(1, min(parts, n // _RING_ROWS, _COLUMN_PARTS)))
        case _:
            _cut_rows(job, parts_of(outer, n * scan.element_bytes // PART_BYTES))


def reduce_segments(op: Operation, x: Array, marks: Array, shape: Shape, reverse: bool) -> Array:
    """Return the bytes of the states behind the last mark of every line of (outer, n, 1).

    `x` and `marks` are contiguous and have elements; lines are read from their ends if `reverse`.
    """
    scan = programs.segmented(programs_list.scanned(op, reverse=reverse), programs_list.layout(op))
    job = _Job(scan, x.data.ptr, 0, 0, shape, marks.data.ptr)
    parts = parts_of(job.outer, job.n * x.itemsize // PART_BYTES)
    states = job.states(parts)
    _leave_totals(job, states.data.ptr, parts)
    if parts == 1:
        return states
    spine = _Job(programs.of_states(scan), states.data.ptr, 0, 0, (job.outer, parts, 1))
    totals = spine.states(1)
    _leave_totals(spine, totals.data.ptr, 1)
    return totals


def _leave_totals(job: _Job, totals: int, parts: int) -> None:
    """Reduce the pieces of contiguous lines in order, to a state each."""
    sizes = np.int64(job.outer), np.int64(job.n), np.int64(parts)
    source = programs.rows(job.scan, programs.THREADS, write=False)
    job.launch(source, job.outer * parts, programs.THREADS, totals, *sizes)


class _Job:
    """A scan and where it works: addresses and (outer, n, inner)."""

    def __init__(
        self, scan: programs.Scan, x: int, y: int, base: int, shape: Shape, marks: int = 0
    ) -> None:
        self.scan, self.x, self.y, self.base, self.marks = scan, x, y, base, marks
        self.outer, self.n, self.inner = shape

    def launch(self, source: str, blocks: int, threads: int, *rest: Any, **options: Any) -> None:
        """Launch a program on these addresses."""
        marks = (self.marks,) if self.scan.marked else ()
        launch(source, blocks, threads, self.x, self.y, self.base, *marks, *rest, **options)

    def states(self, parts: int) -> Array:
        """Return room for the states of so many parts of every line."""
        return cupy.empty(self.outer * parts * self.inner * self.scan.state_bytes, "u1")

    @property
    def is_bulk(self) -> bool:
        """Whether the bulk copy engine can move every line, for kernels that take its elements."""
        scan, pitch = self.scan, self.n if self.outer > 1 else 0
        places = self.x, self.y, pitch * scan.element_bytes, pitch * scan.result_bytes
        return scan.is_bulk and all(place % 16 == 0 for place in places)


def _objection(
    gpu: Device, op: Operation, shape: Shape, strategy: str, marked: bool = False
) -> str:
    """Say why a strategy can't be had; "" if it can."""
    if strategy not in STRATEGIES:
        return f"is none of {', '.join(STRATEGIES)}"
    if shape[2] > 1 and strategy not in ("lines", "two-level"):
        return "is for the last axis of a chunk"
    if not op.monoid.commutative and strategy not in ("lines", "two-level", "reduce-then-scan"):
        return "does not keep the order of states"
    if marked and strategy not in (("lines", "two-level") if shape[2] == 1 else ("lines",)):
        return "does not take segments"
    if strategy == "single-pass" and not gpu.hopper:
        return f"needs compute capability 9.0, and this GPU is {gpu.arch}"
    if strategy == "look-back" and op.element.kind not in "biu":
        return f"would not give the same {op.output} results on every run"
    return ""


def _choose(gpu: Device, job: _Job) -> str:
    outer, n, inner = job.outer, job.n, job.inner
    if job.scan.marked:
        long = inner == 1 and n > programs.WARP_LINE and outer < 4 * gpu.processors
        return "two-level" if long else "lines"
    if inner > 1:
        blocks = outer * -(-inner // programs.STREAM_WIDTHS[0])
        enough = blocks >= _FEW_BLOCKS * gpu.processors
        return "lines" if enough or n < 2 * _RING_ROWS else "two-level"
    if n <= programs.WARP_LINE or outer >= 4 * gpu.processors:
        return "lines"
    if gpu.hopper and job.is_bulk:
        return "single-pass"
    return "two-level"


def _waves(gpu: Device, job: _Job, shared: bool) -> None:
    """Scan contiguous lines with the bulk copy engine, shared by all blocks or a block each."""
    scan, blocks = job.scan, gpu.processors
    tuning = programs.tune(scan, job.n, blocks, gpu.shared_bytes, shared)
    tiles = -(-job.n // tuning.tile) * job.outer
    blocks = min(blocks, tiles if shared else job.outer)
    board, lowest_tag = 0, 1
    if shared:
        words = tuning.rounds * blocks * programs.tagged_words(scan.state_bytes)
        room, lowest_tag = _board(words, -(-tiles // blocks))
        board = room.data.ptr
    job.launch(
        programs.waves(scan, tuning),
        blocks,
        tuning.threads,
        np.int64(job.outer),
        np.int64(job.n),
        board,
        np.uint32(lowest_tag),
        shared=programs.waves_shared_bytes(scan, tuning),
        cooperative=shared,
    )


_local = threading.local()


def _board(words: int, waves: int) -> tuple[Array, int]:
    """Return so many words for tagged states, and a tag from which on `waves` are not on them.

    Clearing them takes as long as a small scan, so they are kept, for this thread and stream, and
    every launch takes tags of its own. A graph that is captured replays its tags.
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


def _look_back(job: _Job) -> None:
    blocks = job.outer * -(-job.n // job.scan.tile)
    board = _cleared(blocks * programs.tagged_words(job.scan.state_bytes) + 1)
    source = programs.lookback(job.scan)
    job.launch(source, blocks, programs.THREADS, np.int64(job.n), board.data.ptr)


def _rows(gpu: Device, job: _Job) -> None:
    """Scan whole contiguous lines."""
    if job.scan.marked:
        _cut_rows(job, 1)
    elif job.n > programs.WARP_LINE and gpu.hopper and job.is_bulk:
        _waves(gpu, job, shared=False)
    elif job.n <= programs.SHORT_LINE and job.outer > 1:
        lines = job.scan.tile // job.n
        sizes = np.int64(job.outer), np.int32(job.n)
        source = programs.short_rows(job.scan)
        job.launch(source, -(-job.outer // lines), programs.THREADS, *sizes)
    else:
        _cut_rows(job, 1)


def _cut_rows(job: _Job, parts: int) -> None:
    """Scan contiguous lines by pieces: upsweep, spine, downsweep."""
    threads = programs.THREADS
    team = 32 if job.n <= programs.WARP_LINE else threads
    blocks = -(-job.outer * parts // (threads // team))
    sizes = np.int64(job.outer), np.int64(job.n), np.int64(parts)
    if parts > 1:
        states = job.states(parts)
        at = states.data.ptr
        if job.scan.ordered:
            bare = _Job(job.scan, job.x, job.y, 0, (job.outer, job.n, 1), job.marks)
            _leave_totals(bare, at, parts)
        else:
            upsweep = programs.upsweep(job.scan)
            launch(upsweep, job.outer * parts, threads, job.x, at, 0, *sizes[1:])
        _spine(job, at, parts)
        job = _Job(job.scan, job.x, job.y, at, (job.outer, job.n, 1), job.marks)
    job.launch(programs.rows(job.scan, team), blocks, threads, 0, *sizes)


def _spine(job: _Job, states: int, parts: int) -> None:
    """Turn the states of pieces into their bases, in place."""
    shape = job.outer, parts, 1
    spine = _Job(programs.of_states(job.scan), states, states, job.base, shape)
    _cut_rows(spine, 1 if parts <= _SPINE else -(-parts // _PIECE))


def _scan_then_fan(job: _Job) -> None:
    threads, parts = programs.THREADS, -(-job.n // _PIECE)
    if parts == 1:
        return _cut_rows(job, 1)
    states = job.states(parts)
    at, blocks = states.data.ptr, job.outer * parts
    sizes = np.int64(job.outer), np.int64(job.n), np.int64(parts)
    source = programs.rows(job.scan, threads)
    launch(source, blocks, threads, job.x, job.y, 0, at, *sizes)
    spine = programs.of_states(job.scan)
    _scan_then_fan(_Job(spine, at, at, job.base, (job.outer, parts, 1)))
    fan = programs.fan(job.scan)
    return launch(fan, blocks, threads, job.x, job.y, at, np.int64(job.n), np.int64(parts))


def _cooperative(gpu: Device, job: _Job) -> None:
    slots = gpu.processors * programs.COOPERATIVE_BLOCKS
    if job.outer > slots:
        return _cut_rows(job, 1)
    parts = max(1, min(slots // job.outer, -(-job.n // _PIECE)))
    states = job.states(parts)
    arrived = cupy.zeros(1, "u4")
    return job.launch(
        programs.cooperative(job.scan),
        job.outer * parts,
        programs.THREADS,
        states.data.ptr,
        arrived.data.ptr,
        np.int64(job.n),
        np.int64(parts),
        cooperative=True,
    )


def _cut_columns(gpu: Device, job: _Job, parts: int) -> None:
    """Scan strided lines by pieces: upsweep, spine, downsweep."""
    scan, threads, inner = job.scan, programs.THREADS, job.inner
    sizes = np.int64(job.n), np.int64(inner), np.int64(parts)
    if parts > 1:
        width = min(1 << (inner - 1).bit_length(), 32)
        states = job.states(parts)
        at = states.data.ptr
        grid = job.outer * parts * -(-inner // width)
        if scan.ordered:
            pieces = job.outer * parts * inner
            fold, outer = programs.fold_columns(scan), np.int64(job.outer)
            launch(fold, -(-pieces // threads), threads, job.x, at, 0, outer, *sizes)
        else:
            upsweep = programs.upsweep_columns(scan)
            launch(upsweep, grid, threads, job.x, at, 0, *sizes, np.int32(width.bit_length() - 1))
        spine = _Job(programs.of_states(scan), at, at, job.base, (job.outer, parts, inner))
        _cut_columns(gpu, spine, 1)
        job = _Job(scan, job.x, job.y, at, (job.outer, job.n, inner), job.marks)
    aligned = (job.x | inner * scan.element_bytes) % 16 == 0
    # Copies of less than 4 bytes can't be had.
    copied = scan.is_copied and (aligned or scan.element_bytes >= 4)
    if scan.marked or job.n // parts < _RING_ROWS or not copied:
        lines = job.outer * parts * inner
        source = programs.columns(scan)
        return job.launch(source, -(-lines // threads), threads, np.int64(job.outer), *sizes)
    width = _width(gpu, job.outer * parts, inner)
    return job.launch(
        programs.stream(scan, width, 16 if aligned else scan.element_bytes),
        job.outer * parts * -(-inner // width),
        width,
        *sizes,
        shared=programs.stream_shared_bytes(scan, width),
    )


def _width(gpu: Device, pieces: int, inner: int) -> int:
    """Return how many columns a block takes: the most that leave no multiprocessor without one."""
    for width in programs.STREAM_WIDTHS:
        if pieces * -(-inner // width) >= _FEW_BLOCKS * gpu.processors:
            return width
    return programs.STREAM_WIDTHS[-1]
