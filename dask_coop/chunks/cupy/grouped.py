"""Reduce CuPy chunks by group: choose kernels of kernel_grouped.cuh, pieces and a grid.

A chunk is viewed as an array of shape (outer, n, inner), whose n rows have a code each. Several
operations on the same elements form one monoid, and one read::

    codes --> plan: rows by group --> columns, lines or gathered --> states --> combine
                                      codes --> private tables ----------------^

If labels lie as the elements do and there are many groups, many_groups.py computes sums, variances
and extrema.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.monoids import (
    COMPENSATED_MEAN,
    COMPENSATED_SUM,
    COUNT,
    MEAN,
    NO_INDEX,
    REPRODUCIBLE_COMPLEX_MEAN,
    REPRODUCIBLE_COMPLEX_SUM,
    REPRODUCIBLE_MEAN,
    REPRODUCIBLE_SUM,
    SUM,
    VAR,
    State,
)
from dask_coop.algebra.operation import Operation
from dask_coop.chunks import paired
from dask_coop.chunks.cupy import many_groups, programs_list
from dask_coop.chunks.cupy.arrays import (
    HOST_STATE_BYTES,
    aligned,
    deliver_all,
    dense,
)
from dask_coop.chunks.cupy.exact import cast
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch, prepare
from dask_coop.cuda.programs import grouped as programs
from dask_coop.cuda.programs.grouped import Product

Array = Any

#: The most bytes of the states of operations that share one read.
_PRODUCT_BYTES = 96

#: Rows whose state counts elements (all of them without skipna), with the rows of the other fields.
_COUNTING = {
    VAR: VAR,
    MEAN: SUM,
    COMPENSATED_MEAN: COMPENSATED_SUM,
    REPRODUCIBLE_MEAN: REPRODUCIBLE_SUM,
    REPRODUCIBLE_COMPLEX_MEAN: REPRODUCIBLE_COMPLEX_SUM,
}

#: The most rows of a chunk at a time, whose numbers have 32 bits.
_MOST_ROWS = 1 << 30

#: The most codes that a warp sorts.
_WARP_CODES = 1 << 13

#: The threads that keep a multiprocessor busy, and the wanted multiple of them.
_BUSY, _WAVES = 1024, 4

#: The threads of a multiprocessor whose loads alone use most of the memory's bandwidth.
_ENOUGH = 192

#: The fewest rows of a piece.
_PIECE = 64

#: The bytes of neighbouring lines that a block takes at a time, and the most bytes of a line.
_LINES_BYTES, _MOST_LINE_BYTES = 1 << 15, 96 << 10

#: The fewest threads of a block with private tables.
_PRIVATE = 128

#: The most lines that are reduced one after the other to many groups.
_LINES_ALONE = 4


def lift_groups(ops: Sequence[Operation], x: Array, codes: Array, n: int) -> list[State]:
    """Reduce the elements of every group of the chunk `x` to states.

    Parameters
    ----------
    ops : sequence of Operation
    x : cupy.ndarray
        Any strides; may be empty.
    codes : cupy.ndarray
        The groups of the elements along the last axes of `x`, int32 or int64; -1 leaves an element
        out.
    n : int
        The number of groups.

    Returns
    -------
    list of tuples of arrays
        A state for each operation, whose fields have the shape of the other axes of `x` and one
        more axis for the groups.
    """
    with x.device:
        if any(isinstance(op.monoid, paired.BY_SUMS) for op in ops):
            return paired.each_of_groups(lift_groups, ops, x, codes, n)
        labels = codes.ndim
        kept = x.shape[: x.ndim - labels]
        codes = contiguous(codes).reshape(-1).astype(np.int32, copy=False)
        found: dict[int, State] = {}
        pending: list[tuple[list[int], _Fields, _Places]] = []
        rows = [i for i, op in enumerate(ops) if op.monoid is COUNT and not op.skipna]
        # Some states count all elements, too.
        counting = next((i for i, op in enumerate(ops) if _counts_rows(op)), None)
        uncounted = bool(rows) and counting is None
        for some in _together(ops, rows):
            lines, places = _lines(cast(x, ops[some[0]].element), labels)
            if not (lines.size and n):
                for i in some:
                    state = _identity(ops[i], (lines.shape[0], n, lines.shape[2]))
                    found[i] = places.restored(state, x.shape)
                continue
            for numbers, fields in _reduce([ops[i] for i in some], lines, codes, n, uncounted):
                pending.append(([some[i] for i in numbers], fields, places))
                uncounted &= not fields.counts_rows
        if uncounted:
            pending.append(([], _count_rows(codes, n), _Places([], 0)))
        rooms = deliver_all([(fields.room, fields.small) for _, fields, _ in pending])
        for (numbers, fields, places), room in zip(pending, rooms, strict=True):
            for i, state in zip(numbers, fields.states(room), strict=True):
                found[i] = places.restored(state, x.shape)
            if fields.counts_rows:
                sizes = fields.rows(room)
                counts = _namespace(sizes).broadcast_to(sizes, (*kept, n))
                found.update((i, (counts,)) for i in rows)
        if rows and counting is not None:
            at = [field.name for field in ops[counting].monoid.fields].index("count")
            found.update((i, (found[counting][at],)) for i in rows)
        return [found[i] for i in range(len(ops))]


def _count_rows(codes: Array, n: int) -> _Fields:
    """Return the number of rows of each group."""
    fields = _Fields((), (1, n, 1), planned=False, counts_rows=True, zeros=True)
    if codes.size and n:
        many_groups.count_rows(codes, n, fields.rows(fields.room))
    return fields


@dataclass(frozen=True)
class _Places:
    """The order of the kept axes in memory, and how many come before the label axes."""

    order: list[int]
    outer: int

    @property
    def axes(self) -> list[int]:
        """The permutation that puts the result's axes in their original order, groups last."""
        at = {d: i + (i >= self.outer) for i, d in enumerate(self.order)}
        return [*(at[d] for d in range(len(self.order))), self.outer]

    def restored(self, state: State, sides: tuple[int, ...]) -> State:
        """Return a state of (outer, n, inner) with the kept axes of a chunk, then the groups."""
        shape = [sides[d] for d in self.order]
        shape.insert(self.outer, state[0].shape[1])
        return tuple(field.reshape(shape).transpose(self.axes) for field in state)


def _lines(x: Array, labels: int) -> tuple[Array, _Places]:
    """Return `x` as an array of shape (outer, n, inner), and the places of its kept axes."""
    kept = x.ndim - labels
    seen, order = dense(x)
    at = order.index(kept)
    if order[at : at + labels] != list(range(kept, x.ndim)):
        seen, order, at = aligned(contiguous(x)), list(range(x.ndim)), kept
    shape = (
        math.prod(seen.shape[:at]),
        math.prod(seen.shape[at : at + labels]),
        math.prod(seen.shape[at + labels :]),
    )
    return seen.reshape(shape), _Places([d for d in order if d < kept], at)


def _together(ops: Sequence[Operation], rows: list[int]) -> list[list[int]]:
    """Return groups of the numbers of operations, but those of `rows`, that share one read."""
    together: list[list[int]] = []
    open_ones: dict[Any, tuple[list[int], int]] = {}
    for i, op in enumerate(ops):
        if i in rows:
            continue
        nbytes = programs_list.layout(op).itemsize
        some, room = open_ones.get(op.element, ([], 0))
        if room < nbytes:
            some, room = [], _PRODUCT_BYTES
            together.append(some)
        some.append(i)
        open_ones[op.element] = some, room - nbytes
    return together


def _namespace(x: Any) -> Any:
    return np if isinstance(x, np.ndarray) else cupy


def _identity(op: Operation, shape: tuple[int, ...]) -> State:
    """Return the states of groups without elements."""
    values = op.monoid.identity(op.element)
    nbytes = math.prod(shape) * sum(value.dtype.itemsize for value in values)
    xp = np if nbytes <= HOST_STATE_BYTES else cupy
    return tuple(xp.full(shape, value, value.dtype) for value in values)


@cache
def _product(ops: tuple[Operation, ...]) -> Product:
    return reduce(Product.and_then, map(programs_list.grouped, ops))


def _reduce(
    ops: Sequence[Operation], x: Array, codes: Array, n: int, uncounted: bool
) -> list[tuple[list[int], _Fields]]:
    """Reduce nonempty `x`, viewed as (outer, rows, inner), to fields of (outer, n, inner).

    Return the numbers of operations with their fields, of which some may count the rows of groups,
    too, if these are `uncounted`.
    """
    outer, rows, inner = x.shape
    everything = [*range(len(ops))]
    if rows > _MOST_ROWS:
        return [(everything, _reduce_halves(ops, x, codes, n))]
    gpu = device(cupy.cuda.runtime.getDevice())
    if inner > 1 or _fits(rows * x.itemsize, x.itemsize, gpu):
        return [(everything, _planned(tuple(ops), x, codes, n, gpu, uncounted))]
    of = _product(tuple(ops))
    threads = 0 if of.ordered else _private_threads(of, gpu, n)
    if threads:
        return [(everything, _private(of, tuple(ops), x, codes, n, gpu, threads))]
    able = outer <= _LINES_ALONE
    alone = [i for i, op in enumerate(ops) if able and many_groups.takes(op, n)]
    others = [i for i in everything if i not in alone]
    reads = []
    if alone:
        those = tuple(ops[i] for i in alone)
        fields = _Fields(those, (outer, n, 1), False, uncounted, zeros=True)
        sizes = fields.rows(fields.room) if uncounted else None
        many_groups.reduce(those, x, codes, n, fields.states(fields.room), sizes)
        reads.append((alone, fields))
        uncounted = False
    if others:
        those = tuple(ops[i] for i in others)
        reads.append((others, _planned(those, x, codes, n, gpu, uncounted)))
    return reads


def _fits(nbytes: int, itemsize: int, gpu: Device) -> bool:
    """Return whether a line of `nbytes` is worth a block's shared memory."""
    most = min(_MOST_LINE_BYTES, gpu.shared_bytes // 2)
    return programs.lines_shared_bytes(nbytes, itemsize) <= most


def _reduce_halves(ops: Sequence[Operation], x: Array, codes: Array, n: int) -> _Fields:
    half = x.shape[1] // 2
    halves = []
    for some in (slice(half), slice(half, None)):
        states: dict[int, State] = {}
        rows = aligned(contiguous(x[:, some]))
        for numbers, fields in _reduce(ops, rows, codes[some], n, False):
            states |= zip(numbers, fields.states(fields.room), strict=True)
        halves.append(states)
    total = _Fields(tuple(ops), (x.shape[0], n, x.shape[2]), planned=False)
    for i, state in enumerate(total.states(total.room)):
        op, a, b = ops[i], halves[0][i], halves[1][i]
        if op.monoid.positional:
            b = (b[0], b[1] + half * (b[1] != NO_INDEX), *b[2:])
        for field, combined in zip(state, op.monoid.combine(a, b), strict=True):
            field[...] = combined
    return total


class _Field(NamedTuple):
    """A field of a state.

    Attributes
    ----------
    dtype : numpy.dtype
    shared : bool
        Whether it is the number of rows of each group, which is the same for all columns.
    passed : bool
        Whether kernels receive its address.
    """

    dtype: np.dtype[Any]
    shared: bool
    passed: bool


def _counts_rows(op: Operation) -> bool:
    return not op.skipna and op.monoid in _COUNTING


@cache
def _without_counts(op: Operation) -> Operation:
    """Return the operation whose states lack the number of rows of those of `op`."""
    if not _counts_rows(op) or op.element.kind not in "fc":
        return op
    return replace(op, monoid=_COUNTING[op.monoid])


@cache
def _fields_of(ops: tuple[Operation, ...], planned: bool) -> tuple[tuple[_Field, ...], ...]:
    """Return the fields of the states of operations; a plan provides the number of rows."""

    def of(op: Operation) -> tuple[_Field, ...]:
        counts = planned and _counts_rows(op)
        known = not counts or _without_counts(op) == op
        shared = [counts and field.name == "count" for field in op.monoid.fields]
        dtypes = op.monoid.dtypes(op.element)
        return tuple(_Field(d, s, known or not s) for d, s in zip(dtypes, shared, strict=True))

    return tuple(map(of, ops))


class _Fields:
    """Memory for the states of operations: an array for each field, in one allocation.

    Attributes
    ----------
    room : cupy.ndarray
        The memory, as bytes.
    small : bool
        Whether the states of each operation are so few that they go to the host.
    pointers : list of int
        The addresses of the fields for kernels to write; 0 for those that `sizes` replaces.
    sizes : int
        The address for the numbers of rows of groups; 0 if they are not needed.
    counts_rows : bool
        Whether `rows` is among them.
    """

    def __init__(
        self,
        ops: tuple[Operation, ...],
        shape: tuple[int, int, int],
        planned: bool,
        counts_rows: bool = False,
        zeros: bool = False,
    ) -> None:
        self._fields, self._shape = _fields_of(ops, planned), shape
        self.counts_rows = counts_rows
        self._starts: list[int] = []
        passed: list[int] = []
        n, end, shared = math.prod(shape), 0, counts_rows
        for field in (field for some in self._fields for field in some):
            start = -1 if field.shared else end
            self._starts.append(start)
            if field.passed:
                passed.append(start)
            shared |= field.shared
            if not field.shared:
                end += -(-n * field.dtype.itemsize // 256) * 256
        self._sizes = end
        total = end + shape[1] * 8 * shared
        most = max((sum(f.dtype.itemsize for f in some) for some in self._fields), default=8)
        self.small = n * most <= HOST_STATE_BYTES
        self.room = cupy.empty(total, "u1")
        if total and (zeros or self.small):
            # The gaps between fields are copied to the host, too.
            self.room.data.memset_async(0, total)
        at = self.room.data.ptr
        self.pointers = [at + start if start >= 0 else 0 for start in passed]
        self.sizes = at + end if shared else 0

    def states(self, room: Any) -> list[State]:
        """Return the states in `room`, which is the memory or a copy of it."""
        starts = iter(self._starts)
        return [
            tuple(self._field(room, field.dtype, next(starts)) for field in some)
            for some in self._fields
        ]

    def rows(self, room: Any) -> Array:
        """Return the number of rows of each group, in `room`."""
        return room[self._sizes :].view("i8")

    def _field(self, room: Any, dtype: np.dtype[Any], start: int) -> Array:
        if start < 0:
            return _namespace(room).broadcast_to(self.rows(room)[:, None], self._shape)
        nbytes = math.prod(self._shape) * dtype.itemsize
        return room[start : start + nbytes].view(dtype).reshape(self._shape)


# Plans, which sort rows by group.


def _planned(
    ops: tuple[Operation, ...], x: Array, codes: Array, n: int, gpu: Device, uncounted: bool
) -> _Fields:
    outer, rows, inner = x.shape
    of = _product(tuple(map(_without_counts, ops)))
    in_lines = inner == 1 and _fits(rows * x.itemsize, x.itemsize, gpu)
    v = programs.columns_per_thread(of)
    if inner % v or x.data.ptr % (v * x.itemsize):
        v = 1
    # Enough pieces to have enough threads if groups were of one size; no pieces if a group's
    # columns alone keep enough loads in flight.
    threads = outer * inner // v * (1 if inner > 1 else 32)
    wanted = -(-gpu.processors * _BUSY * _WAVES // threads)
    enough = in_lines or (inner > 1 and threads >= gpu.processors * _ENOUGH)
    piece = rows if enough else max(_PIECE, -(-rows // wanted))
    whole = piece >= rows
    if in_lines:
        source = programs.lines(of)
    else:
        source = programs.gathered(of) if inner == 1 else programs.columns(of, v)
    prepare(programs.plan(), source, *(() if whole else (programs.combine(of),)))
    fields = _Fields(ops, (outer, n, inner), planned=True, counts_rows=uncounted)
    plan, kept = _plan(codes, n, piece, whole, fields.sizes, gpu)
    if in_lines:
        _launch_lines(source, x, plan, fields, n, gpu)
        return fields
    pieces = n if whole else n + rows // piece
    parts = cupy.empty(0 if whole else outer * pieces * inner * of.state.itemsize, "u1")
    last: tuple[Any, ...]
    if inner == 1:
        blocks, last = -(-outer * pieces // (programs.THREADS // 32)), (np.int32(pieces),)
    else:
        vectors = inner // v
        slices = -(-vectors // programs.THREADS)
        lanes = -(-vectors // slices)
        blocks = -(-vectors // lanes) * -(-outer * pieces // (programs.THREADS // lanes))
        last = np.int64(inner), np.int32(pieces), np.int32(lanes)
    sizes = np.int64(outer), np.int64(rows)
    arguments = x.data.ptr, *plan, parts.data.ptr, *sizes, *last, *fields.pointers
    launch(source, blocks, programs.THREADS, *arguments)
    if not whole:
        _combine(of, parts, plan[2], fields, (outer, n, inner), pieces, 0, gpu)
    del kept
    return fields


def _launch_lines(
    source: str, x: Array, plan: tuple[Any, ...], fields: _Fields, n: int, gpu: Device
) -> None:
    outer, rows, _ = x.shape
    lines = max(1, min(outer, _LINES_BYTES // (rows * x.itemsize)))
    shared = programs.lines_shared_bytes(lines * rows * x.itemsize, x.itemsize)
    team = 1
    while team < 32 and (team * 32 * n <= rows or lines * n * team * 2 <= programs.THREADS):
        team *= 2
    blocks = min(-(-outer // lines), gpu.processors * max(1, min(8, gpu.shared_bytes // shared)))
    numbers = np.int64(outer), np.int32(rows), np.int32(lines), np.int32(team)
    arguments = x.data.ptr, *plan, *numbers, *fields.pointers
    launch(source, blocks, programs.THREADS, *arguments, shared=shared)


def _combine(
    of: Product,
    parts: Array,
    first: int,
    fields: _Fields,
    shape: tuple[int, int, int],
    pieces: int,
    each: int,
    gpu: Device,
) -> None:
    outer, n, inner = shape
    team = 1 if inner >= 32 else 32
    items = outer * n * (-(-inner // programs.THREADS) if team == 1 else inner)
    blocks = min(items, gpu.processors * 8)
    numbers = np.int64(outer), np.int32(n), np.int64(inner), np.int64(pieces)
    arguments = parts.data.ptr, first, *numbers, np.int32(each), np.int32(team)
    launch(programs.combine(of), blocks, programs.THREADS, *arguments, *fields.pointers)


def _plan(
    codes: Array, n: int, piece: int, whole: bool, sizes: int, gpu: Device
) -> tuple[tuple[Any, ...], Any]:
    """Return the arguments of a plan, and the arrays that they point to."""
    rows = codes.size
    warps = min(
        32, (gpu.shared_bytes - programs.plan_shared_bytes(0, n)) // (4 * n), -(-rows // 64)
    )
    if warps and rows <= warps * _WARP_CODES:
        room = cupy.empty(rows + 2 * (n + 1), "i4")
        order = room.data.ptr
        begin = order + 4 * rows
        first = 0 if whole else begin + 4 * (n + 1)
        numbers = map(np.int32, (rows, n, warps, piece))
        arguments = codes.data.ptr, *numbers, order, begin, first, sizes
        launch(
            programs.plan(),
            1,
            programs.PLAN_THREADS,
            *arguments,
            shared=programs.plan_shared_bytes(warps, n),
        )
        return (order, begin, first, np.int32(n), np.int32(piece)), (room,)
    # The smallest unsigned dtype in which what is left out becomes the largest number, sorted last.
    size = next(k for k in (1, 2, 4) if n < 1 << 8 * k)
    keys = cupy.where(codes.view("u4") < n, codes, np.int32(-1)).astype(f"u{size}")
    sorted_rows = cupy.argsort(keys, kind="stable").astype(np.int32)
    counts = cupy.zeros(n, "i8")
    if sizes:
        counts = cupy.ndarray(n, "i8", memptr=_pointer(sizes, 8 * n))
        counts[...] = 0
    many_groups.count_rows(codes, n, counts)
    bounds = cupy.zeros((2, n + 1), "i4")
    bounds[0, 1:] = cupy.cumsum(counts)
    bounds[1, 1:] = cupy.cumsum(cupy.maximum(1, -(-counts // piece)))
    begin = bounds.data.ptr
    first = 0 if whole else begin + 4 * (n + 1)
    kept = sorted_rows, bounds
    return (sorted_rows.data.ptr, begin, first, np.int32(n), np.int32(piece)), kept


def _pointer(at: int, nbytes: int) -> Any:
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(at, nbytes, None), 0)


# Private tables, for labels that lie as the elements do.


def _private_threads(of: Product, gpu: Device, n: int) -> int:
    """Return how many threads of a block can have tables of n states; 0 if too few."""
    threads = programs.PRIVATE_THREADS
    while threads >= _PRIVATE and threads * n * of.state.itemsize > gpu.shared_bytes:
        threads //= 2
    return threads if threads >= _PRIVATE else 0


def _private(
    of: Product,
    ops: tuple[Operation, ...],
    x: Array,
    codes: Array,
    n: int,
    gpu: Device,
    threads: int,
) -> _Fields:
    outer, rows, _ = x.shape
    v = programs.private_widths(of)[-1]
    # Tiles begin at multiples of 64 rows.
    if (outer > 1 and rows % v) or x.data.ptr % (v * x.itemsize) or codes.data.ptr % (4 * v):
        v = 1
    shared = threads * n * of.state.itemsize
    resident = max(1, min(gpu.shared_bytes // (shared + 1024), 2048 // threads))
    tiles = max(1, min(-(-gpu.processors * resident // outer), rows // (threads * 16)))
    source = programs.private(of, v)
    prepare(source, programs.combine(of))
    fields = _Fields(ops, (outer, n, 1), planned=False)
    parts = cupy.empty(outer * n * tiles * of.state.itemsize, "u1")
    numbers = np.int64(outer), np.int64(rows), np.int32(n), np.int64(tiles)
    arguments = x.data.ptr, codes.data.ptr, parts.data.ptr, *numbers
    launch(source, outer * tiles, threads, *arguments, shared=shared)
    _combine(of, parts, 0, fields, (outer, n, 1), n * tiles, tiles, gpu)
    return fields
