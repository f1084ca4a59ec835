"""Find the bins of the samples of CuPy chunks: by arithmetic, or by a search of the edges.

Kernels that count take a `Lookup`; `find_indices` and `find_numbers` write bin indices, and `codes`
the codes of labels, in one read of each label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from dask_coop.algebra.bins import Grid, Integers, Numbering, Steps
from dask_coop.algebra.digits import Digits
from dask_coop.algebra.edges import Bins
from dask_coop.chunks.cupy.arrays import aligned
from dask_coop.chunks.cupy.transpose import contiguous
from dask_coop.chunks.labels import Coder, Intervals, Values
from dask_coop.cuda.devices import Device, device
from dask_coop.cuda.launch import launch
from dask_coop.cuda.programs import grouped
from dask_coop.cuda.programs import histogram as programs

Array = Any


class Lookup(NamedTuple):
    """A class of bins.cuh that finds the bins of samples, and its arguments.

    Attributes
    ----------
    finder : programs.Finder
    arguments : tuple
        The kernel's arguments for it.
    staged : int
        The bytes of shared memory that it takes in kernels that count there.
    tables : tuple of cupy.ndarray
        The arrays that the arguments point to.
    """

    finder: programs.Finder
    arguments: tuple[Any, ...]
    staged: int = 0
    tables: tuple[Array, ...] = ()


#: The most entries of a table, so that offsets fit in uint32.
MOST = (1 << 31) - 1

#: The most edges that LinearBins may have to step over.
_STEPS = 16


def look_up(
    gpu: Device,
    samples: np.dtype[Any],
    bins: Bins | Integers | Digits,
    counter_bytes: int = 4,
) -> Lookup:
    """Return the lookup of bins for samples of a dtype.

    Parameters
    ----------
    gpu : Device
    samples : numpy.dtype
    bins : Bins, Integers or Digits
    counter_bytes : int
        The shared memory of a bin's counter, in bytes.
    """
    match bins:
        case Integers():
            return Lookup(programs.finder("unit", samples, samples), (np.int32(bins.n),))
        case Digits():
            return _look_up_digits(gpu, samples, bins, counter_bytes)
        case Bins():
            return _look_up(gpu, samples, bins, counter_bytes)


def _look_up_digits(
    gpu: Device, samples: np.dtype[Any], digits: Digits, counter_bytes: int
) -> Lookup:
    several = len(digits.prefixes) > 1
    numbers = *map(np.int32, (digits.n, digits.shift, digits.width)), np.uint64(digits.prefixes[0])
    finder = programs.finder("digits" if several else "digit", samples, samples)
    if not several:
        return Lookup(finder, numbers)
    prefixes = np.array(digits.prefixes, "u8")
    staged = prefixes.nbytes + digits.slots.nbytes
    if staged > gpu.shared_bytes - counter_bytes * (digits.n + 2):
        staged = 0
    tables = cupy.asarray(prefixes), cupy.asarray(digits.slots)
    pointers = (table.data.ptr for table in tables)
    arguments = *numbers, np.int32(prefixes.size), *pointers, np.int32(staged > 0)
    return Lookup(finder, arguments, staged, tables)


def _look_up(gpu: Device, samples: np.dtype[Any], bins: Bins, counter_bytes: int) -> Lookup:
    edge, limits = _comparison_dtype(samples, bins.dtype), bins.whole_limits(samples)
    low, high = (end.astype(edge) for end in bins.ends)
    outer, more = (low, high), ()
    if limits is not None:
        info = np.iinfo(samples)
        more = tuple(samples.type(min(max(limit, info.min), info.max)) for limit in limits)
        # All samples are below limits beyond their dtype.
        outer = outer if limits[0] <= info.max else (edge.type(np.inf), edge.type(np.inf))
    bounds = np.int32(bins.n), *outer

    def found(kind: programs.Kind, *arguments: Any, staged: int = 0, tables: Any = ()) -> Lookup:
        finder = programs.finder(kind, samples, edge, bool(more))
        return Lookup(finder, (*bounds, *arguments, *more), staged, tables)

    # Kernels round to the dtype of comparison, which differs from the edges' for float16.
    if edge == bins.dtype and bins.line is not None:
        step, start = bins.line
        numbers = bins.n, float(low), float(high), step, start
        scale, error, guess = _arithmetic(edge, samples.kind != "f", *numbers)
        linear = np.float64(step), np.float64(start), np.float64(scale)
        if guess is not None:
            return found("guessed", *linear, *guess)
        if error < _STEPS:
            return found("linear", *linear)
    edges = bins.cuts.astype(edge)
    # In shared memory if the counters fit there too.
    room = gpu.shared_bytes - counter_bytes * (bins.n + 2)
    for cells in (max(2 * bins.n, min(16 * bins.n, 4096)), bins.n):
        staged = (edges.nbytes + (cells + 1) * 4 + 7) // 8 * 8
        if staged <= room:
            break
    else:
        cells, staged = min(2 * bins.n, 1 << 16), 0
    guide, per_unit = _guide(edges, cells)
    tables = cupy.asarray(edges), cupy.asarray(guide)
    pointers = (table.data.ptr for table in tables)
    arguments = *pointers, np.int32(guide.size - 1), per_unit, np.int32(staged > 0)
    return found("searched", *arguments, staged=staged, tables=tables)


def _comparison_dtype(samples: np.dtype[Any], edges: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which kernels compare as NumPy does for these two dtypes."""
    common = np.result_type(samples, edges)
    if common.kind == "f":
        # float16 compares the same as float32.
        return np.dtype("f4" if common.itemsize <= 4 else "f8")
    return np.dtype("u8" if common.kind == "u" else "i8")


@lru_cache(256)
def _arithmetic(
    edge: np.dtype[Any], whole: bool, n: int, low: float, high: float, step: float, start: float
) -> tuple[float, float, tuple[Any, ...] | None]:
    """Return the bins per unit, the error of indices by it, and the numbers of GuessedBins.

    The error is in bins. The numbers are None if edges are too close or too far away. Samples may
    be `whole` numbers.
    """
    with np.errstate(all="ignore"):
        scale = float(np.divide(n, np.subtract(high, low)))
    if not 0 < scale < math.inf:
        return 0.0, math.inf, None
    size = max(abs(low), abs(high)) * scale
    error = 2.0**-51 * n + 2 * float(np.finfo(edge).eps) * size
    return scale, error, _guess(edge, whole, n, high, step, start, size)


def _guess(
    edge: np.dtype[Any], whole: bool, n: int, high: float, step: float, start: float, size: float
) -> tuple[Any, ...] | None:
    real, is_double = edge.type, edge.itemsize == 8
    most, power = (2.0**30, 900) if is_double else (2.0**22 - 2, 100)
    if max(size, n) >= most or not 2.0**-power < step < 2.0**power:
        return None
    exact = 1 / Fraction(step)
    scale = real(float(exact))
    scale_low = real(float(exact - Fraction(float(scale))))
    origin = -Fraction(start) * exact
    base = math.floor(origin)
    fraction, gap = float(origin - base), float(scale) * 2.0**-24
    # The edges of a double are rounded three times; the place of a float's edge is known.
    doubt = 2.0**-50 * (size + n) + 2.0**-49 if is_double else 2.0**-20
    last = Fraction(start) + Fraction(step) * n
    if exact == Fraction(float(scale)) and origin == base and high == last and (whole or step <= 1):
        # The step is a power of two and all edges are its multiples: there is no rounding, except
        # of tiny samples that become smaller.
        gap, doubt = 0.0, -1.0
    numbers = (real(number) for number in (fraction, fraction - 0.5, gap, 0.5 - doubt))
    # The bits of the sum start at those of 1.5 * 2^23, or for doubles at 0 in the low half.
    base -= 0 if is_double else 0x4B400000
    return scale, scale_low, *numbers, np.int32(base)


def _guide(edges: Any, cells: int) -> tuple[Any, Any]:
    """Return the number of edges in the cells before each cell, and the cells per unit."""
    distance = "f4" if edges.dtype == "f4" else "f8"
    with np.errstate(all="ignore"):
        if edges.dtype.kind == "f":
            distances = edges - edges[0]
        else:
            distances = (edges.view("u8") - edges[:1].view("u8")).astype("f8")
        per_unit = np.divide(cells, distances[-1], dtype=distance)
        if not (np.isfinite(distances[-1]) and np.isfinite(per_unit) and per_unit > 0):
            cells, per_unit = 1, np.zeros((), distance)
        cell = np.minimum(np.nan_to_num(distances * per_unit), cells - 1).astype("i4")
    return np.searchsorted(cell, np.arange(cells + 1)).astype("i4"), per_unit[()]


def find_indices(samples: Sequence[Array], grid: Grid, lines: tuple[int, int] | None) -> Array:
    """Return the offset of each sample in the flat table of a grid, as uint32.

    Parameters
    ----------
    samples : sequence of cupy.ndarray
        The coordinates: contiguous, of equal sizes of at least one, not bool.
    grid : Grid
    lines : tuple of int, optional
        The length of lines with their own tables, and the distance of their elements.

    Returns
    -------
    cupy.ndarray
        One-dimensional. Samples that do not count have the largest uint32.
    """
    index = cupy.empty(samples[0].size, "u4")
    for i, (x, bins, numbers) in enumerate(zip(samples, grid.bins, grid.numberings, strict=True)):
        count = 0 if i == 0 and lines is None else grid.shape[i]
        _locate(x, bins, numbers, count, lines if i == 0 else None, index)
    return index


def find_numbers(x: Array, steps: Steps, rows: Array | None) -> Array:
    """Return the bin number of each sample of a contiguous chunk, as int64; replaces `rows`."""
    index = cupy.empty(x.shape, "i8") if rows is None else rows
    if x.size:
        count = 0 if rows is None else steps.bins.n + 2
        _locate(x, steps.bins, steps.numbering, count, None, index)
    return index


def _locate(
    x: Array,
    bins: Bins,
    numbers: Numbering,
    count: int,
    lines: tuple[int, int] | None,
    index: Array,
) -> None:
    gpu = device(cupy.cuda.runtime.getDevice())
    lookup = look_up(gpu, x.dtype, bins, 0)
    tile = programs.INDEX_THREADS * programs.INDEX_UNROLL
    launch(
        programs.locate(lookup.finder, index.dtype),
        min(gpu.processors * programs.INDEX_BLOCKS, -(-x.size // tile)),
        programs.INDEX_THREADS,
        x.data.ptr,
        np.int64(x.size),
        *lookup.arguments,
        *map(np.int64, numbers[:-1]),
        np.int32(numbers.closed),
        np.int64(count),
        *map(np.int64, lines or (0, 0)),
        index.data.ptr,
        shared=lookup.staged,
    )


# Codes of labels.

#: The entries of a table of codes that a label may always have, or else for each group.
_TABLE, _TABLE_PER_GROUP = 1 << 16, 4

#: The numbers before that of the first group that labels which are codes may always have.
_LEADING = 4

#: The most shared memory of a block that searches labels; two blocks share a multiprocessor.
_SEARCHED_BYTES = 100 << 10

_COMBINE = cupy.ElementwiseKernel(
    "uint32 before, uint32 code, uint32 n, uint32 size",
    "int32 y",
    "y = before < n && code < size ? before * size + code : -1",
    "combine_codes",
)


def codes(coder: Coder, labels: Sequence[Array]) -> tuple[Array, int]:
    """Return the codes of elements as int32, and the first group's number.

    Each label is read once, unless it is the only one and is codes. Codes of no group are negative,
    or not less than the number of groups.
    """
    on_gpu = [x.device for x in labels if isinstance(x, cupy.ndarray)]
    with on_gpu[0] if on_gpu else nullcontext():
        if len(labels) == 1 and (first := _first_of_codes(coder.groups[0], labels[0])) is not None:
            return labels[0].view("i4"), first
        shape = np.broadcast_shapes(*(x.shape for x in labels))
        total: Any = None
        n = 1
        for groups, size, x in zip(coder.groups, coder.shape, labels, strict=True):
            # Labels are often broadcast along axes of the elements.
            short = x[tuple(slice(None if step else 1) for step in x.strides)]
            each = _codes_of(groups, short).view("u4")
            total = each if total is None else _COMBINE(total, each, n, size).view("u4")
            n *= size
        return cupy.broadcast_to(total.view("i4"), shape), 0


def _first_of_codes(groups: Values | Intervals | None, x: Array) -> int | None:
    """Return the first group of labels that are codes as they are; None for other labels."""
    if not isinstance(groups, Values) or not isinstance(x, cupy.ndarray):
        return None
    if x.dtype.kind not in "iu" or x.itemsize != 4:
        return None
    coding = _coding(groups, x.dtype)
    if coding.kind != "range" or coding is _NOWHERE:
        return None
    first, n = map(int, coding.numbers)
    # Groups before the first cost less than to write codes.
    return first if first <= max(_LEADING, n // 8) else None


def _codes_of(groups: Values | Intervals | None, x: Array) -> Array:
    if groups is None or not isinstance(x, cupy.ndarray) or x.dtype.kind == "c":
        computed = x if groups is None else groups.codes(x)
        return cupy.asarray(computed.astype(np.int32, copy=False))
    x = aligned(contiguous(x.view("u1") if x.dtype.kind == "b" else x))
    if isinstance(groups, Intervals):
        return _codes_of_bins(groups, x)
    coding = _coding(groups, x.dtype)
    if coding is _NOWHERE:
        return cupy.full(x.shape, -1, "i4")
    out = cupy.empty(x.shape, "i4")
    if x.size:
        gpu = device(cupy.cuda.runtime.getDevice())
        # The tables are needed until the launch.
        tables = [None if table is None else cupy.asarray(table) for table in coding.tables]
        pointers = [np.int64(0) if table is None else table.data.ptr for table in tables]
        staged = coding.staged if coding.staged <= min(_SEARCHED_BYTES, gpu.shared_bytes) else 0
        resident = min(4, gpu.shared_bytes // (staged + 1024))
        launch(
            grouped.codes(x.dtype, coding.kind, coding.compared),
            min(gpu.processors * resident, -(-x.size // (4 * grouped.CODE_THREADS))),
            grouped.CODE_THREADS,
            x.data.ptr,
            np.int64(x.size),
            *coding.arguments(pointers, staged),
            out.data.ptr,
            shared=staged,
        )
    return out


class _Coding(NamedTuple):
    """How labels of a dtype are coded.

    Attributes
    ----------
    kind : grouped.Coding
    compared : numpy.dtype
        The dtype in which labels are compared.
    numbers : tuple
        The kernel's other arguments.
    tables : tuple of numpy.ndarray or None
    staged : int
        The bytes of shared memory that the tables take if they are there.
    """

    kind: grouped.Coding
    compared: np.dtype[Any]
    numbers: tuple[Any, ...]
    tables: tuple[Any, ...] = ()
    staged: int = 0

    def arguments(self, pointers: list[Any], staged: int) -> tuple[Any, ...]:
        """Return the kernel's arguments, given the addresses of the tables."""
        if self.kind != "sorted":
            return (*self.numbers, *pointers)
        n, low, high, cells, scale = self.numbers
        edges, guide, places = pointers
        return n, low, high, edges, guide, cells, scale, np.int32(staged > 0), places


#: For labels of which no group can have any.
_NOWHERE = _Coding("range", np.dtype("u1"), ())


# By their identity, as tasks of a graph share the groups.
@lru_cache(16)
def _coding(groups: Values, dtype: np.dtype[Any]) -> _Coding:
    """Return how labels of a dtype are coded."""
    values, numbers = groups.comparable(dtype)
    if values.dtype.kind == "f":
        # NaN are last, and equal nothing.
        values = values[: len(values) - int(np.isnan(values).sum())]
    n = len(values)
    if not n:
        return _NOWHERE
    first = span = 0
    if values.dtype.kind in "iu" and dtype.kind in "iu":
        first = int(values[0])
        span = int(values[-1]) - first + 1
        if numbers is None and span == n:
            return _Coding("range", dtype, _range(first, n))
    places = np.arange(n, dtype="i4") if numbers is None else numbers[:n].astype("i4")
    if 0 < span <= max(_TABLE, _TABLE_PER_GROUP * n):
        table = np.full(span, -1, "i4")
        # Differences of int8 may need eight bits and a sign.
        table[(values.astype("u8") - values[:1].astype("u8")).astype("i8")] = places
        return _Coding("table", dtype, _range(first, span), (table,))
    compared = _comparison_dtype(dtype, values.dtype)
    edges = np.append(values, values[-1:]).astype(compared)
    guide, per_unit = _guide(edges, min(2 * n, 1 << 16))
    staged = (edges.nbytes + guide.nbytes + 7) // 8 * 8
    cells = np.int32(guide.size - 1)
    facts = np.int32(n), edges[0], edges[-1], cells, per_unit
    tables = edges, guide, None if numbers is None else places
    return _Coding("sorted", compared, facts, tables, staged)


def _range(first: int, n: int) -> tuple[Any, ...]:
    return np.uint64(first % (1 << 64)), np.uint64(n)


def _codes_of_bins(groups: Intervals, x: Array) -> Array:
    """Return the numbers of intervals, which those of their bins follow."""
    steps, out = groups.steps, cupy.empty(x.shape, "u4")
    numbering = steps.numbering
    below, above, missing = (
        k - 1 if 1 <= k <= groups.n else -1
        for k in (numbering.below, numbering.above, numbering.missing)
    )
    numbers = Numbering(
        below, above, missing, numbering.first - 1, numbering.step, numbering.closed
    )
    if x.size:
        _locate(x, steps.bins, numbers, 0, None, out)
    return out.view("i4")
