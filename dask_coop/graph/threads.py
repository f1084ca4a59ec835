"""A large chunk of NumPy, worked on by several threads where there are fewer chunks than threads.

The chunk is cut into tiles, which are taken for chunks: their states combine to that of the chunk,
and tiles of a line are scanned from base sums::

    chunk --cut--> p0 --lift--> s0 -+                  p0 --scan---------> y0 --+
                   p1 --lift--> s1 -+-combine--> s     p1 --scan from s0-> y1 --+--> y
                   p2 --lift--> s2 -+                  p2 --scan from s01> y2 --+

Where a chunk is cut depends on its shape alone, and whether on what the graph was built with. So
results are the same on every run, however many threads have had nothing else to do.
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

#: The least elements of a tile: what is done to it is to take far longer than to begin it.
TILE = 1 << 20
#: Tiles of a chunk, at most: so many that threads end at about the same time.
MOST = 64

Item = TypeVar("Item")
Made = TypeVar("Made")


def threads_for(x: Array) -> int:
    """Return how many threads may work on each chunk of an array, as the configuration has it.

    Raises
    ------
    ValueError
        If ``coop.threads`` is neither "auto" nor a positive number.
    """
    given = config.get("coop.threads", "auto", config.COUNT)
    total = _configured() if given == "auto" else given
    largest = math.prod(map(max, x.chunks))
    if total <= x.npartitions or not largest >= 2 * TILE or chunks.kind(x._meta) != "numpy":
        return 1
    return int(total // x.npartitions)


def _configured() -> int:
    """Return how many threads Dask itself is to use, as far as its configuration tells."""
    if dask.config.get("scheduler", None) in ("sync", "synchronous", "single-threaded"):
        return 1
    return int(dask.config.get("num_workers", None) or system.CPU_COUNT)


def shared(threads: int) -> dict[str, int]:
    """Return what tells a task how many threads may work on its chunk; nothing of one."""
    return {"threads": threads} if threads > 1 else {}


def lift_by_threads(
    op: Operation, x: Any, axes: tuple[int, ...], where: Any = None, threads: int = 1
) -> State:
    """Return the state of a chunk, as its backend makes it, by up to so many threads."""
    backend = chunks.backend_of(x)
    if threads <= 1 or op.monoid.lift is not None:
        return backend.lift(op, x, axes, where)
    # Elements of some are in the order of the reduced axes.
    in_order = op.monoid.positional or not op.monoid.commutative
    first = axes[:1] if in_order else axes
    kept = tuple(axis for axis in range(x.ndim) if axis not in axes)
    small = math.prod(x.shape[axis] for axis in kept) <= TILE // MOST
    cut = _cut(x.shape, {*kept, *(first if small else ())})
    if cut is None:
        return backend.lift(op, x, axes, where)
    axis, tiles = cut
    valid = None if where is None else np.broadcast_to(where, x.shape)

    def lifted(tile: slice) -> State:
        block = _along(x, axis, tile)
        some = None if valid is None else _along(valid, axis, tile)
        state = backend.lift(op, block, axes, some)
        if op.monoid.positional and axis in axes:
            starts = (tile.start if d == axis else 0 for d in axes)
            origin = tuple((start, x.shape[d]) for start, d in zip(starts, axes, strict=True))
            return op.shift(state, tuple(block.shape[d] for d in axes), origin)
        shape = tuple(block.shape[d] for d in kept)
        if axis not in kept:
            return state
        # What all lines have in common may be one number; lines may have an axis of entries.
        return tuple(
            np.broadcast_to(field, shape + np.shape(field)[len(kept) :]) for field in state
        )

    states = _each(lifted, tiles, threads)
    if axis in axes:
        return op.combine(states)
    along = kept.index(axis)
    return tuple(np.concatenate(fields, along) for fields in zip(*states, strict=True))


def lift_groups_by_threads(
    ops: Sequence[Operation], x: Any, codes: Any, n: int, threads: int = 1
) -> list[State]:
    """Return the states of the groups of a chunk, as its backend makes them, by some threads."""
    backend = chunks.backend_of(x)
    kept = x.ndim - codes.ndim
    cut = None
    if threads > 1 and all(op.monoid.lift is None for op in ops):
        # Tables of tiles are to be far smaller than these.
        small = math.prod(x.shape[:kept]) * n <= TILE // MOST
        cut = _cut(x.shape, {*range(kept), *([kept] if small else [])})
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

        _each(put, tiles, threads)
        return whole

    def lifted(tile: slice) -> list[State]:
        block, own = _along(x, axis, tile), _along(codes, 0, tile)
        origin = ((tile.start, codes.shape[0]), *((0, length) for length in codes.shape[1:]))
        return [
            op.shift(state, own.shape, origin) if op.monoid.positional else state
            for op, state in zip(ops, backend.lift_groups(ops, block, own, n), strict=True)
        ]

    found = _each(lifted, tiles, threads)
    return [op.combine([*states]) for op, states in zip(ops, zip(*found, strict=True), strict=True)]


def count_by_threads(
    op: Operation, samples: Sequence[Any], grid: Any, weights: Any, threads: int
) -> State:
    """Return the table of a chunk of samples, as its backend makes it, by up to so many threads."""
    if isinstance(grid, Grid) and grid.squares:
        weights = weights.astype("f8") ** 2
    blocks = [*samples] if weights is None else [*samples, weights]
    backend = chunks.backend_of(*blocks)
    cut = None
    if threads > 1 and isinstance(grid, Grid | Digits) and not grid.has_lines:
        shape = samples[0].shape[: -1 if grid.ndim > len(samples) else None]
        if grid.entries <= TILE // MOST or isinstance(grid, Digits):
            cut = _cut(shape, {*range(len(shape))})
    if cut is None:
        return backend.histogram(op, samples, grid, weights)
    axis, tiles = cut

    def counted(tile: slice) -> State:
        some = None if weights is None else _along(weights, axis, tile)
        return backend.histogram(op, [_along(x, axis, tile) for x in samples], grid, some)

    return op.combine(_each(counted, tiles, threads))


def scan_by_threads(
    op: Operation,
    x: Any,
    spec: ScanSpec,
    base: State | None = None,
    heads: Any = None,
    threads: int = 1,
) -> Any:
    """Return the scan of a chunk, as its backend makes it, by up to so many threads."""
    backend = chunks.backend_of(x)
    cut = None
    if threads > 1 and heads is None and op.monoid.lift is None and not chunks.is_masked(x):
        cut = _cut(x.shape, {*range(x.ndim)} - {spec.axis}) or _cut(x.shape, {spec.axis})
    if cut is None:
        return backend.scan(op, x, spec, base, heads)
    axis, tiles = cut
    shape = list(x.shape)
    shape[spec.axis] += spec.initial
    result = np.empty(shape, op.output)
    if axis == spec.axis:
        _scan_tiles(op, x, spec, base, tiles, result, threads)
        return result
    at = axis - (axis > spec.axis)

    def scanned(tile: slice) -> None:
        # Bases have the shape of the chunk without the axis of the scan.
        some = None if base is None else tuple(_along(field, at, tile) for field in base)
        _along(result, axis, tile)[...] = backend.scan(op, _along(x, axis, tile), spec, some)

    _each(scanned, tiles, threads)
    return result


def move_by_threads(
    window: Window, x: Any, halo: Any, base: State | None = None, threads: int = 1
) -> Any:
    """Return statistics of windows in a chunk, as its backend makes them, by so many threads."""
    backend, along = chunks.backend_of(x), window.axis
    cut = None
    if threads > 1 and not chunks.is_masked(x):
        cut = _cut(x.shape, {*range(x.ndim)} - {along})
        if cut is None and base is None and window.length * MOST <= x.shape[along]:
            cut = _cut(x.shape, {along})
    if cut is None:
        return backend.move(window, x, halo, base)
    axis, tiles = cut
    result = np.empty(x.shape, window.result(x.dtype))
    at = axis - (axis > along)

    def moved(tile: slice) -> None:
        some = base
        if axis != along:
            before = _along(halo, axis, tile)
            some = None if base is None else tuple(_along(field, at, tile) for field in base)
        elif tile.start:
            before = _along(x, along, slice(max(0, tile.start - window.length + 1), tile.start))
        else:
            before = halo
        _along(result, axis, tile)[...] = backend.move(window, _along(x, axis, tile), before, some)

    _each(moved, tiles, threads)
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
    """Scan the lines of a chunk tile by tile, as those of an array chunk by chunk."""
    axis, backend = spec.axis, chunks.backend_of(x)
    if spec.reverse:
        # All from here on is in the order of the scan.
        x, result = np.flip(x, axis), np.flip(result, axis)
        spec = replace(spec, reverse=False)

    def lifted(tile: slice) -> State:
        return backend.lift(op, _along(x, axis, tile), (axis,))

    states = _each(lifted, tiles[:-1], threads)
    bases = [base, *(base_of(op, s) for s in sequential(op.monoid.combine, states, base))]

    def scanned(each: tuple[slice, State | None]) -> None:
        tile, before = each
        of_part = spec.part(first=tile.start == 0)
        results = slice(tile.start + spec.initial - of_part.initial, tile.stop + spec.initial)
        made = backend.scan(op, _along(x, axis, tile), of_part, before)
        _along(result, axis, results)[...] = made

    _each(scanned, [*zip(tiles, bases, strict=True)], threads)


def _along(x: Any, axis: int, tile: slice) -> Any:
    return x[(*(slice(None),) * axis, tile)]


def _cut(shape: Sequence[int], axes: set[int]) -> tuple[int, list[slice]] | None:
    """Return one of some axes, and the tiles into which it cuts a large chunk; None of others."""
    n = min(math.prod(shape) // TILE, MOST)
    for axis in sorted(axes):
        if 2 <= n <= shape[axis]:
            edges = [shape[axis] * i // n for i in range(n + 1)]
            return axis, [slice(*ends) for ends in itertools.pairwise(edges)]
    return None


# Threads.


#: Threads of this process that work on tiles now.
_busy = 0
_lock = threading.Lock()
_limit: ContextVar[int | None] = ContextVar("dask_coop.graph.threads", default=None)


def within(threads: int, function: Callable[..., Made], *args: Any) -> Made:
    """Call a function that may have so many threads of this process work on tiles."""
    token = _limit.set(threads)
    try:
        return function(*args)
    finally:
        _limit.reset(token)


def _each(function: Callable[[Item], Made], items: Sequence[Item], threads: int) -> list[Made]:
    """Call a function with each item, in the calling thread and in others that are free."""
    results: list[Any] = [None] * len(items)
    todo = iter(range(len(items)))

    def work() -> None:
        try:
            for i in todo:
                results[i] = function(items[i])
        except BaseException:
            # The others are to end soon.
            for _ in todo:
                pass
            raise

    with _granted(min(threads, len(items)) - 1) as n:
        # What they do counts as the caller's (`dask_coop.meters`).
        helpers = [_pool(os.getpid()).submit(copy_context().run, work) for _ in range(n)]
        try:
            work()
        finally:
            # They use what the caller has.
            wait(helpers)
    for helper in helpers:
        helper.result()
    return results


@contextmanager
def _granted(wanted: int) -> Iterator[int]:
    """Count the calling thread, and as many more as are wanted and free."""
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
    if (given := _limit.get()) is not None:
        return given
    # Only a process that has workers of a cluster has imported this.
    if (worker := sys.modules.get("distributed.worker")) is not None:
        with suppress(ValueError):
            return int(worker.get_worker().state.nthreads)
    return int(system.CPU_COUNT)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process, which are made when they are needed."""
    return ThreadPoolExecutor(1 << 10, thread_name_prefix="dask_coop tile")
