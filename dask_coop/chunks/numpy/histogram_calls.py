"""Calls of the compiled loop of histograms, one for each chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_coop.algebra.bins import Numbering
from dask_coop.chunks.numpy.bin_finder import Finder
from dask_coop.chunks.numpy.lines import read_only
from dask_coop.chunks.numpy.loops import bin_index as kinds
from dask_coop.chunks.numpy.loops import histogram
from dask_coop.chunks.numpy.loops.strided import CODES, TOP

Array = np.ndarray[Any, Any]

#: Samples in a block. With several arrays, short blocks make the processor stop prefetching
#: each time it turns to another array.
BLOCK, LONG_BLOCK = 1 << 10, 1 << 13

#: The most bytes of all copies of a table; samples are counted into the copies in turn.
COPIES_BYTES = 1 << 14

#: The samples for each entry of a table from which on counters have 32 bits.
NARROW = 8

#: The most samples that 32-bit counters can count.
MOST_COUNTED = (1 << 31) - 1

#: The fewest samples of two bytes for which the bins of all values are found first.
WORTH_A_TABLE = 1 << 22

_TABLES = [np.dtype(name) for name in ("i8", "u8", "f8", "c16")]


def takes(finders: Sequence[Finder], shape: tuple[int, ...], dtype: Any) -> bool:
    """Return whether the loop handles so many bins, and a table of this shape and dtype."""
    few = all(n + 3 < kinds.MOST for n in (math.prod(shape), *(finder.n for finder in finders)))
    return few and np.dtype(dtype) in _TABLES


def count(
    samples: Sequence[Array],
    finders: Sequence[Finder],
    entries: tuple[int, ...],
    kept: tuple[int, ...],
    weights: Array | None,
    dtype: Any,
) -> Array:
    """Return the flat table of counts, or sums of weights, for each line of the kept axes.

    `entries` has the table's length along each coordinate.
    """
    prepared = [_prepare(x, finder) for x, finder in zip(samples, finders, strict=True)]
    shifts, dtype = [1 - finder.numbering.first for finder in finders], np.dtype(dtype)
    if len(samples) == 1 and not kept:
        (shift,), (n,) = shifts, entries
        return _count(prepared, None, None, weights, finders[0].n + 3, dtype)[shift : shift + n]
    lines, n_lines = [0] * samples[0].ndim, 1
    for axis in reversed(kept):
        lines[axis] = n_lines
        n_lines *= samples[0].shape[axis]
    size = 1 + n_lines * math.prod(entries)
    along = np.stack([shifts, entries], 1)
    return _count(prepared, along, lines if kept else None, weights, size, dtype)[1:]


def tally(x: Array, n: int, weights: Array | None, dtype: Any) -> tuple[Array, bool]:
    """Return the table of integers below `n`, and whether all integers are below `n`."""
    if weights is None and x.flags.c_contiguous and n >= x.size // NARROW:
        # With few samples for each entry, one addition seldom waits for another.
        table = np.zeros(n, dtype)
        return table, not histogram.tally(read_only(_plain(x)), table)
    record = np.zeros((), kinds.FINDER)
    record["kind"], record["n"] = kinds.SELF, n
    table = _count([(_plain(x), record)], None, None, weights, n + 1, np.dtype(dtype))
    return table[1:], not record["others"]


def locate(x: Array, finder: Finder) -> Array:
    """Return the bin number of each sample, int64 of the shape of `x`."""
    numbers, n = finder.numbering, finder.n
    apart = Numbering(0, n + 1, n + 2, 1, 1, numbers.closed)
    prepared = _prepare(x, finder._replace(numbering=apart))
    order = _memory_order(prepared[0])
    result = np.empty([x.shape[axis] for axis in order], "i8")
    in_order = np.array(
        [numbers.below, numbers.above, numbers.missing, numbers.first, numbers.step]
    )
    _run([prepared], order, None, None, None, result.reshape(-1), 0, x.size, numbers=in_order)
    return result.transpose(np.argsort(order))


def _count(
    prepared: Sequence[tuple[Any, ...]],
    entries: Array | None,
    lines: Sequence[int] | None,
    weights: Array | None,
    size: int,
    dtype: np.dtype[Any],
) -> Array:
    """Return a table of `size` entries, counted or summed by the loop."""
    table, x = np.zeros(size, dtype), prepared[0][0]
    if dtype.kind == "c":
        assert weights is not None
        for part, into in ((weights.real, table.real), (weights.imag, table.imag)):
            into[...] = _count(prepared, entries, lines, part, size, into.dtype)
        return table
    weights = None if weights is None else _plain(np.asarray(weights))
    # 32-bit counters where there are many samples for each entry.
    narrow = weights is None and size < x.size // NARROW
    counts = np.dtype("i4") if narrow else np.dtype(dtype.str.replace("u", "i"))
    copies = max(n for n in (1, 2, 4) if n == 1 or n * size * counts.itemsize <= COPIES_BYTES)
    direct = copies == 1 and not narrow
    part = table.view(counts) if direct else np.zeros(copies * size, counts)
    step = MOST_COUNTED if narrow else max(x.size, 1)
    order = _memory_order(x)
    for start in range(0, x.size, step):
        end = min(start + step, x.size)
        _run(prepared, order, entries, lines, weights, part, start, end, copies)
        if not direct:
            table += part.reshape(copies, -1).sum(0, counts).astype(dtype, copy=False)
            part[:] = 0
    return table


def _run(
    prepared: Sequence[tuple[Any, ...]],
    order: Sequence[int],
    entries: Array | None,
    lines: Sequence[int] | None,
    weights: Array | None,
    table: Array,
    start: int,
    end: int,
    copies: int = 1,
    numbers: Array | None = None,
) -> None:
    """Call the loop, with the arrays' axes in memory order and merged where possible."""
    samples = [x for x, *_ in prepared]
    arrays = samples if weights is None else [*samples, weights]
    records = [record.reshape(1) for _, record, *_ in prepared]
    finders = records[0] if len(records) == 1 else np.concatenate(records)
    shape = [samples[0].shape[axis] for axis in order]
    folded = [_fold(shape, [x.strides[axis] for axis in order]) for x in arrays]
    x = rows = along = summed = exact = floating = None
    whole = _some(finders["whole"].any())
    direct = all(axes == [(a.size, a.itemsize)] for a, axes in zip(arrays, folded, strict=True))
    if direct and lines is None and len(samples) <= 2 and samples[0].dtype == samples[-1].dtype:
        flat = [_flatten(array, order) for array in arrays]
        x, weights = tuple(flat[: len(samples)]), None if weights is None else flat[-1]
    else:
        codes = [CODES[array.dtype.str[1:]] for array in arrays]
        rows = _rows(codes, [array.ctypes.data for array in arrays], folded)
        summed = _some(weights is not None)
        exact, weights = _some(summed and table.dtype.kind != "f"), None
        floating = _some(any(array.dtype.kind == "f" for array in arrays))
        whole = _some(any(array.dtype.kind != "f" for array in arrays))
    if lines is not None:
        along = _rows([0], [1], [_fold(shape, [lines[axis] for axis in order])])[0]
    kind, block = finders["kind"], BLOCK if entries is None else LONG_BLOCK
    histogram.count(
        x,
        weights,
        rows,
        summed,
        exact,
        finders,
        _some((kind == kinds.LINE).any()),
        _some(((kind > kinds.LINE) & (kind < kinds.VALUES)).any()),
        _some((kind >= kinds.VALUES).any()),
        floating,
        whole,
        along,
        entries,
        start,
        end,
        copies,
        table,
        numbers,
        *(np.empty(block, dtype) for dtype in ("f8", "i8", "i4", "i4", "i4")),
    )


def _some(condition: Any) -> bool | None:
    """Return True or None, the values for which the loop is compiled."""
    return True if condition else None


def _memory_order(x: Array) -> list[int]:
    """Return the axes in the order of their strides, the largest first."""
    return sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis]))


def _fold(shape: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return lengths and distances along axes, with neighbouring axes merged where possible."""
    axes: list[tuple[int, int]] = []
    for n, step in zip(shape, steps, strict=True):
        if n > 1 and axes and axes[-1][1] == n * step:
            axes[-1] = axes[-1][0] * n, step
        elif n > 1:
            axes.append((n, step))
    return axes or [(1, 0)]


def _flatten(x: Array, order: Sequence[int]) -> Array:
    """Return contiguous elements as one axis: one signature for all arrays of a dtype."""
    flat = x.transpose(order).reshape(-1)
    flat.flags.writeable = False
    return flat


def _rows(
    codes: Sequence[int], addresses: Sequence[int], folded: Sequence[list[tuple[int, int]]]
) -> Array:
    """Return the records of arrays that loops/strided.py reads."""
    longest = max(map(len, folded))
    rows = np.zeros((len(codes), 3 + 3 * longest), "i8")
    for row, code, address, axes in zip(rows, codes, addresses, folded, strict=True):
        row[:3] = code, address, len(axes)
        row[3 : 3 + 2 * len(axes)] = np.array(axes).T.reshape(-1)
    return rows


def _plain(x: Array) -> Array:
    """Return the elements in the machine's byte order, aligned, and of a dtype that loops read."""
    if x.dtype.kind == "b":
        x = x.view("u1")
    name = {"i1": "i2", "f2": "f4"}.get(x.dtype.str[1:], x.dtype.str[1:])
    if x.dtype == name and x.flags.aligned:
        return x
    return x.astype(name)


def _prepare(x: Array, finder: Finder) -> tuple[Any, ...]:
    """Return samples for the loop, the record of a finder, and the arrays it has addresses of."""
    record, n, numbers = np.zeros((), kinds.FINDER), finder.n, finder.numbering
    record["n"], record["closed"] = n, numbers.closed
    missing = {numbers.above: n + 1, numbers.below: 0}.get(numbers.missing, n + 2)
    few = x.dtype.kind == "f" or x.size >= WORTH_A_TABLE
    if x.itemsize == 1 or (x.itemsize == 2 and few):
        native = x.dtype.newbyteorder("=")
        values = np.arange(1 << 8 * x.itemsize, dtype=f"u{x.itemsize}")
        slots = np.empty(values.size, "i8")
        finder = finder._replace(numbering=Numbering(0, n + 1, missing, 1, 1, numbers.closed))
        finder.find(values.view(native), slots)
        guide = slots.astype("i4")
        record["kind"], record["guide"] = kinds.VALUES, guide.ctypes.data
        return _plain(x.astype(native, copy=False).view(values.dtype)), record, guide
    x = _plain(x if finder.limits is None else finder.convert(x))
    record["missing"] = missing * (x.dtype.kind == "f")
    record["low"], record["high"] = map(float, finder.ends)
    record["scale"] = finder.scale
    if finder.line is not None:
        record["kind"] = kinds.LINE
        record["width"], record["start"], record["single"] = finder.line
        _doubt(record, finder.doubt)
        return x, record
    edges = finder.edges
    record["whole"], record["flip"] = edges.dtype.kind != "f", -TOP * (edges.dtype.kind == "u")
    cells = _guide(edges, finder, record)
    edges = np.ascontiguousarray(edges.view("i8") ^ record["flip"] if record["whole"] else edges)
    record["edges"] = edges.ctypes.data
    return x, record, edges, cells


def _doubt(record: Any, doubt: float) -> None:
    """Write the error of guesses, in bins, into a finder's record; negative means none.

    Then only the last edge, and samples beyond it, need a comparison.
    """
    n, exact = float(record["n"]), doubt < 0
    # Sums of guesses and errors are rounded, too.
    off = 0.0 if exact else doubt + (n + 1) * 2.0**-52
    record["least"], record["most"] = 1 - off, 1 + off
    record["last"] = n - 0.5 if exact else n + 0.5


def _guide(edges: Array, finder: Finder, record: Any) -> Array | None:
    """Choose the search among edges, and return its guide, or None if it needs none."""
    low, n = float(edges[0]), finder.n
    with np.errstate(all="ignore"):
        width = float(edges[-1]) - low
        if finder.scale > 0:
            off = abs((edges - low) * finder.scale - np.arange(n + 1)).max()
            record["kind"] = kinds.TABLE
            _doubt(record, min(finder.doubt + float(off), 1.0))
            return None
        cells = min(max(2 * n, min(32 * n, 1 << 16)), 1 << 20)
        scale = cells / width if width > 0 else 0.0
        if not (width < math.inf and 0 < scale < math.inf):
            record["kind"] = kinds.EDGES
            return None
        # The loop's arithmetic, so that no edge falls into a later cell than a sample above it.
        cell = ((edges.astype("f8") - low) * scale).astype("i8")
    # Rounding may put the last edge into a cell behind the last.
    here = np.bincount(cell, minlength=cells + 2)
    guide = here.cumsum()
    # A search begins at the last edge before the cell.
    guide[cell] = kinds.UNSURE + np.maximum(guide - here, 1)[cell]
    guide = np.concatenate([guide, [0, n + 1, kinds.UNSURE + max(n, 1)]]).astype("i4")
    record["kind"], record["guide"] = kinds.CELLS, guide.ctypes.data
    record["cells"], record["scale"] = cells + 2, scale
    return guide
