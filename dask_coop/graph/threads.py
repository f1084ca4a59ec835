"""Work on a large NumPy chunk with several threads, where there are fewer chunks than threads.

A chunk is cut into tiles. Tiles are treated as chunks: their states combine to the chunk's state,
and the tiles of a line are scanned from base sums::

    chunk --cut--> p0 --lift--> s0 -+                  p0 --scan---------> y0 --+
                   p1 --lift--> s1 -+-combine--> s     p1 --scan from s0-> y1 --+--> y
                   p2 --lift--> s2 -+                  p2 --scan from s01> y2 --+

Whether a chunk is cut is decided when the graph is built, and the cuts depend on its shape alone.
So results are the same on every run, however many threads are free.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import dask
import numpy as np
from dask import system
from dask.array.core import Array

from dask_coop import chunks
from dask_coop.algebra.bins import Grid
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.monoids import State
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.algebra.windows import Window
from dask_coop.graph import config
from dask_coop.graph.prefixes import base_of, sequential

#: The least elements of a tile, so that work takes far longer than starting it.
TILE = 1 << 20
#: The most tiles of a chunk; enough for threads to end at about the same time.
MOST = 64

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads_for(x: Array) -> int:
    """Return how many threads may work on each chunk of an array.

    Raises
    ------
    ValueError
        If ``coop.threads`` is neither "auto" nor a positive number.
    """
    threads = config.get("coop.threads", "auto", config.COUNT)
    total = configured() if threads == "auto" else threads
    largest = math.prod(map(max, x.chunks))
    if total <= x.npartitions or not largest >= 2 * TILE or chunks.kind(x._meta) != "numpy":
        return 1
    return int(total // x.npartitions)


def configured() -> int:
    """Return how many threads Dask's configuration sets for Dask."""
    if dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    return int(dask.config.get("num_workers", None) or system.CPU_COUNT)


def shared(threads: int) -> dict[str, int]:
    """Return the keyword of a task whose chunk several threads may work on; none for one thread."""
    return {"threads": threads} if threads > 1 else {}


def lift_by_threads(
    op: Operation, x: Any, axes: tuple[int, ...], where: Any = None, threads: int = 1
) -> State:
    """Return the state of a chunk, computed with at most `threads` threads."""
    backend = chunks.backend_of(x)
    if threads <= 1 or op.monoid.lift is not None:
        return backend.lift(op, x, axes, where)
    # Order along the reduced axes matters to these monoids, so cut the first of them only.
    in_order = op.monoid.positional or not op.monoid.commutative
    first = axes[:1] if in_order else axes
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    small = math.prod(x.shape[axis] for axis in kept) <= TILE // MOST
    cut = _tiling(x.shape, {*kept, *(first if small else ())})
    if cut is None:
        return backend.lift(op, x, axes, where)
    axis, tiles = cut
    valid = None if where is None else np.broadcast_to(where, x.shape)

    def lifted(tile: slice) -> State:
        block = _along(x, axis, tile)
        mask = None if valid is None else _along(valid, axis, tile)
        state = backend.lift(op, block, axes, mask)
        if op.monoid.positional and axis in axes:
            starts = (tile.start if d == axis else 0 for d in axes)
            origin = tuple((start, x.shape[d]) for start, d in zip(starts, axes, strict=True))
            return op.shift(state, tuple(block.shape[d] for d in axes), origin)
        shape = tuple(block.shape[d] for d in kept)
        if axis not in kept:
            return state
        # A field may be one number for all lines, or have an axis of entries behind them.
        return tuple(
            np.broadcast_to(field, shape + np.shape(field)[len(kept) :]) for field in state
        )

    states = _run_each(lifted, tiles, threads)
    if axis in axes:
        return op.combine(states)
    along = kept.index(axis)
    return tuple(np.concatenate(fields, along) for fields in zip(*states, strict=True))


def lift_groups_by_threads(
    ops: Sequence[Operation], x: Any, codes: Any, n: int, threads: int = 1
) -> list[State]:
    """Return the states of a chunk's groups, computed with at most `threads` threads."""
    backend = chunks.backend_of(x)
    kept = x.ndim - codes.ndim
    cut = None
    if threads > 1 and all(op.monoid.lift is None for op in ops):
        # A tile's tables must be far smaller than the tile.
        small = math.prod(x.shape[:kept]) * n <= TILE // MOST
        cut = _tiling(x.shape, {*range(kept), *([kept] if small else [])})
    if cut is None:
        return backend.lift_groups(ops, x, codes, n)
    axis, tiles = cut
    if axis < kept:
        whole: list[State] = []
        lock = threading.Lock()

        def table(tile: Any) -> Any:
            return np.empty(
                (*tile.shape[:axis], x.shape[axis], *tile.shape[axis + 1 :]), tile.dtype
            )

        def put(tile: slice) -> None:
            states = backend.lift_groups(ops, _along(x, axis, tile), codes, n)
            with lock:
                # All tiles have tables of the same dtypes.
                if not whole:
                    whole.extend(tuple(map(table, state)) for state in states)
            # Tables can be as large as the chunk, so each thread copies its own.
            for state, tables in zip(states, whole, strict=True):
                for field, to in zip(state, tables, strict=True):
                    _along(to, axis, tile)[...] = field

        _run_each(put, tiles, threads)
        return whole

    def lifted(tile: slice) -> list[State]:
        block, labels = _along(x, axis, tile), _along(codes, 0, tile)
        origin = ((tile.start, codes.shape[0]), *((0, length) for length in codes.shape[1:]))
        return [
            op.shift(state, labels.shape, origin) if op.monoid.positional else state
            for op, state in zip(ops, backend.lift_groups(ops, block, labels, n), strict=True)
        ]

    by_op = zip(*_run_each(lifted, tiles, threads), strict=True)
    return [op.combine([*states]) for op, states in zip(ops, by_op, strict=True)]


def count_by_threads(
    op: Operation, samples: Sequence[Any], grid: Any, weights: Any, threads: int
) -> State:
    """Return the table of a chunk of samples, computed with at most `threads` threads."""
    if isinstance(grid, Grid) and grid.squares:
        weights = weights.astype("f8") ** 2
    blocks = [*samples] if weights is None else [*samples, weights]
    backend = chunks.backend_of(*blocks)
    cut = None
    if threads > 1 and isinstance(grid, Grid | Digits) and not grid.has_lines:
        shape = samples[0].shape[: -1 if grid.ndim > len(samples) else None]
        if grid.entries <= TILE // MOST or isinstance(grid, Digits):
            cut = _tiling(shape, {*range(len(shape))})
    if cut is None:
        return backend.histogram(op, samples, grid, weights)
    axis, tiles = cut

    def counted(tile: slice) -> State:
        weighing = None if weights is None else _along(weights, axis, tile)
        return backend.histogram(op, [_along(x, axis, tile) for x in samples], grid, weighing)

    return op.combine(_run_each(counted, tiles, threads))


def scan_by_threads(
    op: Operation,
    x: Any,
    spec: ScanSpec,
    base: State | None = None,
    heads: Any = None,
    threads: int = 1,
) -> Any:
    """Return the scan of a chunk, computed with at most `threads` threads."""
    backend = chunks.backend_of(x)
    cut = None
    if threads > 1 and heads is None and op.monoid.lift is None and not chunks.is_masked(x):
        cut = _tiling(x.shape, {*range(x.ndim)} - {spec.axis}) or _tiling(x.shape, {spec.axis})
    if cut is None:
        return backend.scan(op, x, spec, base, heads)
    axis, tiles = cut
    shape = list(x.shape)
    shape[spec.axis] += spec.initial
    result = np.empty(shape, op.output)
    if axis == spec.axis:
        _scan_tiles(op, x, spec, base, tiles, result, threads)
        return result
    # Bases have the chunk's axes but for the scan's.
    base_axis = axis - (axis > spec.axis)

    def scanned(tile: slice) -> None:
        before = None if base is None else tuple(_along(field, base_axis, tile) for field in base)
        _along(result, axis, tile)[...] = backend.scan(op, _along(x, axis, tile), spec, before)

    _run_each(scanned, tiles, threads)
    return result


def move_by_threads(
    window: Window, x: Any, halo: Any, base: State | None = None, threads: int = 1
) -> Any:
    """Return a chunk's statistics of windows, computed with at most `threads` threads."""
    backend, along = chunks.backend_of(x), window.axis
    cut = None
    if threads > 1 and not chunks.is_masked(x):
        cut = _tiling(x.shape, {*range(x.ndim)} - {along})
        if cut is None and base is None and window.length * MOST <= x.shape[along]:
            cut = _tiling(x.shape, {along})
    if cut is None:
        return backend.move(window, x, halo, base)
    axis, tiles = cut
    result = np.empty(x.shape, window.result(x.dtype))
    base_axis = axis - (axis > along)

    def moved(tile: slice) -> None:
        state = base
        if axis != along:
            before = _along(halo, axis, tile)
            state = base and tuple(_along(field, base_axis, tile) for field in base)
        elif tile.start:
            before = _along(x, along, slice(max(0, tile.start - window.length + 1), tile.start))
        else:
            before = halo
        _along(result, axis, tile)[...] = backend.move(window, _along(x, axis, tile), before, state)

    _run_each(moved, tiles, threads)
    return result


def _scan_tiles(
    op: Operation,
    x: Any,
    spec: ScanSpec,
    base: State | None,
    tiles: Sequence[slice],
    result: Any,
    threads: int,
) -> None:
    """Scan the lines of a chunk tile by tile, as an array's lines chunk by chunk."""
    axis, backend = spec.axis, chunks.backend_of(x)
    if spec.reverse:
        # From here on everything is in the order of the scan.
        x, result = np.flip(x, axis), np.flip(result, axis)
        spec = replace(spec, reverse=False)

    def lifted(tile: slice) -> State:
        return backend.lift(op, _along(x, axis, tile), (axis,))

    states = _run_each(lifted, tiles[:-1], threads)
    bases = [base, *(base_of(op, s) for s in sequential(op.monoid.combine, states, base))]

    def scanned(item: tuple[slice, State | None]) -> None:
        tile, before = item
        of_tile = spec.part(first=tile.start == 0)
        results = slice(tile.start + spec.initial - of_tile.initial, tile.stop + spec.initial)
        values = backend.scan(op, _along(x, axis, tile), of_tile, before)
        _along(result, axis, results)[...] = values

    _run_each(scanned, [*zip(tiles, bases, strict=True)], threads)


def _along(x: Any, axis: int, tile: slice) -> Any:
    return x[(*(slice(None),) * axis, tile)]


def _tiling(shape: Sequence[int], axes: set[int]) -> tuple[int, list[slice]] | None:
    """Return one of `axes` and the tiles that cut a large chunk along it; None if none can."""
    n = min(math.prod(shape) // TILE, MOST)
    for axis in sorted(axes):
        if 2 <= n <= shape[axis]:
            edges = [shape[axis] * i // n for i in range(n + 1)]
            return axis, [slice(*ends) for ends in itertools.pairwise(edges)]
    return None


# Threads.


#: The number of this process's threads that work on tiles now.
_busy = 0
_lock = threading.Lock()
_limit: ContextVar[int | None] = ContextVar("dask_coop.graph.threads", default=None)


def within(threads: int, function: Callable[..., Result], *args: Any) -> Result:
    """Call a function that may use `threads` threads of this process for tiles."""
    token = _limit.set(threads)
    try:
        return function(*args)
    finally:
        _limit.reset(token)


def _run_each(
    function: Callable[[Item], Result], items: Sequence[Item], threads: int
) -> list[Result]:
    """Call a function with each item, in the calling thread and in free threads."""
    results: list[Any] = [None] * len(items)
    todo = iter(range(len(items)))

    def work() -> None:
        try:
            for i in todo:
                results[i] = function(items[i])
        except BaseException:
            # Leave no items, so that the other threads end soon.
            for _ in todo:
                pass
            raise

    with _granted(min(threads, len(items)) - 1) as n:
        # The copied context makes their work count as the caller's (`dask_coop.meters`).
        helpers = [_pool(os.getpid()).submit(copy_context().run, work) for _ in range(n)]
        try:
            work()
        finally:
            # Helpers use the caller's arrays.
            wait(helpers)
    for helper in helpers:
        helper.result()
    return results


@contextmanager
def _granted(wanted: int) -> Iterator[int]:
    """Count the calling thread, and up to `wanted` free threads, as busy; yield the latter."""
    global _busy
    with _lock:
        n = max(0, min(wanted, _most() - _busy - 1))
        _busy += n + 1
    try:
        yield n
    finally:
        with _lock:
            _busy -= n + 1


def _most() -> int:
    """Return how many threads of this process may work on tiles."""
    if (limit := _limit.get()) is not None:
        return limit
    # Without this module the process has no workers.
    if (worker := sys.modules.get("distributed.worker")) is not None:
        with suppress(ValueError):
            return int(worker.get_worker().state.nthreads)
    return int(system.CPU_COUNT)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process, which starts threads when they are needed."""
    return ThreadPoolExecutor(1 << 10, thread_name_prefix="dask_coop tile")
