"""The programs that CuPy chunks can need, listed without a GPU, for tests and for warming up.

Some depend on a GPU's number of processors and shared memory: by default those of an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np

from dask_coop.algebra.fills import fill, weighted_mean, weighted_spread, weighted_sum
from dask_coop.algebra.monoids import (
    ANY,
    ARGMAX,
    COMPENSATED_SUM,
    COUNT_NONZERO,
    LOGADDEXP,
    MAX,
    MEAN,
    MIN,
    MONOIDS,
    NANMAX,
    NANMIN,
    OF_GROUPS,
    PROD,
    RUN_LENGTHS,
    RUN_PLACES,
    SUM,
    MonoidRow,
    accumulator,
    size_dtype,
)
from dask_coop.algebra.operation import Operation, bind, compensated
from dask_coop.algebra.paired import COMOMENTS, WEIGHTED_MEAN, WEIGHTED_VAR, of_complex
from dask_coop.algebra.runs import Statistic, runs
from dask_coop.cuda.devices import Device, usual
from dask_coop.cuda.programs import custom as custom_monoid
from dask_coop.cuda.programs import grouped as by_group
from dask_coop.cuda.programs import (
    histogram,
    matmul,
    multichunk,
    reduce,
    scan,
    select,
    transpose,
    window,
)
from dask_coop.cuda.programs.base import CTYPES, Functor, ctype

_H200 = usual("sm_90")

#: The letters of the dtypes of weights.
_WEIGHTS = "?bhilBHILefd"


@cache
def functor(op: Operation) -> Functor:
    """Return the C++ functor of an operation's monoid."""
    value = ctype(op.element)
    name = f"{op.monoid.functor}<{', '.join((value, *op.monoid.arguments))}>"
    if op.monoid.cuda is not None:
        parts = layout(op), op.monoid.identity(op.element), op.monoid.cuda
        return Functor(name, custom_monoid.define(op.monoid.functor, *parts))
    if op.skipna:
        name = f"SkipNan<{name}, {value}>"
    return Functor(f"Where<{name}, {value}>" if op.masked else name)


@cache
def element(op: Operation) -> np.dtype[Any]:
    """Return the dtype of the elements that a reduction reads."""
    if not op.masked:
        return op.element
    return np.dtype([("value", op.element), ("counts", "?")], align=True)


def segmented_layout(op: Operation) -> np.dtype[Any]:
    """Return the layout of a state with a flag of restarts."""
    return scan.segmented_layout(layout(op))


@cache
def layout(op: Operation) -> np.dtype[Any]:
    """Return the structured dtype of a state, with the layout of its C struct."""
    names = [field.name for field in op.monoid.fields]
    dtypes = op.monoid.dtypes(op.element)
    return np.dtype(list(zip(names, dtypes, strict=True)), align=True)


def offsets(state: np.dtype[Any]) -> list[tuple[np.dtype[Any], int]]:
    """Return the dtype and the offset, in bytes, of every field of a layout."""
    return [state.fields[name][:2] for name in state.names] if state.fields and state.names else []


@cache
def has_gaps(state: np.dtype[Any]) -> bool:
    """Return whether a layout has bytes between its fields."""
    return 0 < sum(dtype.itemsize for dtype, _ in offsets(state)) < state.itemsize


def written(op: Operation) -> np.dtype[Any]:
    """Return the dtype that a scan writes: states, for a user's monoid with structured states."""
    if op.monoid.lift is None:
        return op.output
    state = layout(op)
    return state if custom_monoid.is_struct(state) else op.monoid.dtypes(op.element)[0]


@cache
def scanned(op: Operation, exclusive: bool = False, reverse: bool = False) -> scan.Scan:
    """Return the common parameters of the scans of an operation."""
    narrow = layout(replace(op, monoid=SUM)) if op.monoid.has_excess else None
    if op.monoid is LOGADDEXP:
        # The maximum, and the sum of exponentials of differences from it.
        narrow = np.dtype("f8, f8")
    of = scan.of(functor(op), op.element, written(op), layout(op), exclusive, reverse, narrow)
    return replace(of, ordered=not op.monoid.commutative, costly=op.monoid.costly)


def skips(monoid: MonoidRow) -> tuple[bool, ...]:
    """Return the values of `skipna` for which a row has programs."""
    return (False, True) if "skipna" in monoid.options else (False,)


def reductions(op: Operation) -> Iterator[str]:
    """Yield the programs that `lift` can launch for `op`."""
    if not op.monoid.commutative:
        for of in (scanned(op), scan.of_states(scanned(op))):
            yield from (scan.rows(of, team, write=False) for team in (32, scan.THREADS))
            yield scan.reduce_columns_in_order(of)
        return
    name, read, state = functor(op), element(op), layout(op)
    yield reduce.slabs(name, read, state)
    yield reduce.rows(name, read, state)
    yield reduce.long_rows(name, read, state)
    for v in sorted({1, reduce.columns_per_thread(read, state)}):
        yield reduce.long_columns(name, read, state, v)
        yield reduce.threads(name, read, state, v)


@cache
def grouped(op: Operation) -> by_group.Product:
    """Return the parameters of the programs of reductions by group."""
    state = layout(op)
    leaves = tuple((offset, dtype.itemsize) for dtype, offset in offsets(state))
    return by_group.Product(functor(op), op.element, state, leaves, not op.monoid.commutative)


def groups(of: by_group.Product) -> Iterator[str]:
    """Yield the programs that `lift_groups` can launch for the monoids of a product."""
    yield by_group.plan()
    yield from (by_group.columns(of, v) for v in sorted({1, by_group.columns_per_thread(of)}))
    yield from (by_group.lines(of), by_group.gathered(of), by_group.combine(of))
    if not of.ordered:
        yield from (by_group.private(of, v) for v in by_group.private_widths(of))


@cache
def extremes(op: Operation) -> tuple[str, str]:
    """Return the C++ name of the keys of extrema, and the program that turns them into elements."""
    most = op.monoid in (MAX, NANMAX, ARGMAX)
    keeps_nan = op.element.kind == "f" and op.monoid not in (NANMIN, NANMAX) and not op.skipna
    keys = by_group.key(op.element, most, keeps_nan, op.monoid.positional)
    value = replace(op, monoid=MAX if most else MIN) if op.monoid.positional else op
    return keys, by_group.settle_extremes(op.element, keys, functor(value))


def all_of_many_groups(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield the programs of reductions of many groups for elements of `dtype`."""
    yield from (by_group.deal(dtype), by_group.add(dtype))
    yield by_group.settle(accumulator(dtype))
    if dtype.kind == "f":
        yield by_group.largest(dtype)
    for monoid in (MIN, NANMAX, ARGMAX):
        if dtype.kind in monoid.kinds:
            keys, settle = extremes(bind(monoid, dtype, monoid.output(dtype), monoid.name))
            yield from (by_group.extremes(dtype, keys, v, c) for v in (1, 4) for c in (False, True))
            yield from (by_group.extremes_of_lists(dtype, keys), settle)
            if monoid.positional:
                yield from (by_group.find_extremes(dtype, keys, v) for v in (1, 4))


def sums_of_groups(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield the programs that add and count elements of `dtype`, or squares of deviations."""
    index = np.dtype("u4")
    find = histogram.finder("unit", index, index)
    skips = (False, True) if dtype.kind == "f" else (False,)
    for kind in ("whole", "lean", "global"):
        for skipna in skips:
            yield histogram.weigh(find, dtype, kind, "counted", skipna)
            yield histogram.weigh(find, dtype, kind, "sized", skipna)
        yield histogram.weigh(find, dtype, kind, "squares")
    yield histogram.largest_square(dtype)
    yield histogram.average(accumulator(dtype), dtype.itemsize == 8)
    yield histogram.settle_squares()


def codes(label: np.dtype[Any]) -> Iterator[str]:
    """Yield the programs that code labels of a dtype."""
    if label.kind in "iu":
        yield from (by_group.codes(label, coding, label) for coding in ("range", "table"))
    compared = {"f": "f8" if label.itemsize > 4 else "f4 f8", "i": "i8 f8", "u": "u8 f8"}
    for other in map(np.dtype, compared[label.kind].split()):
        yield by_group.codes(label, "sorted", other)


def all_groups(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield the programs of reductions by group for elements of `dtype`.

    As for multi-chunk launches, these are sums of every dtype, and all monoids of some dtypes by
    one kernel, which uses the parts of all.
    """
    total, mean = (grouped(bind(m, dtype, m.output(dtype), m.name)) for m in (SUM, MEAN))
    yield from groups(total)
    if dtype.itemsize <= 4:
        yield from all_of_many_groups(dtype)
    if dtype.kind in "biuf":
        yield from sums_of_groups(dtype)
    if dtype.kind in "iuf":
        yield from codes(dtype)
    if dtype not in _FULLY_LISTED:
        return
    yield from groups(total.and_then(mean))
    for monoid in (*MONOIDS, *OF_GROUPS):
        for skipna in skips(monoid) if dtype.kind in monoid.kinds else ():
            op = bind(monoid, dtype, monoid.output(dtype), monoid.name, skipna)
            yield by_group.columns(grouped(op), 1)


def scans(
    op: Operation, gpu: Device = _H200, exclusive: bool = False, reverse: bool = False
) -> Iterator[str]:
    """Yield the programs that `scan` can launch for `op`."""
    of = scanned(op, exclusive, reverse)
    spine = scan.of_states(of)
    for team in (32, scan.THREADS):
        yield from (scan.rows(of, team), scan.rows(spine, team))
    yield scan.short_rows(of)
    yield from (scan.columns(of), scan.columns(spine))
    for width in scan.STREAM_WIDTHS:
        for streamed in (of, spine):
            chunks = {16, streamed.element_bytes} - {1, 2} if streamed.is_copied else set()
            yield from (scan.stream(streamed, width, chunk) for chunk in sorted(chunks))
    if of.ordered:
        yield from (scan.rows(lines, scan.THREADS, write=False) for lines in (of, spine))
        yield scan.reduce_columns_in_order(of)
    else:
        yield from (scan.upsweep(of), scan.upsweep_columns(of))
    if gpu.hopper and of.is_bulk:
        # For lines of two tiles.
        for shared in (True, False):
            tuning = scan.tune(of, 1 << 14, gpu.processors, gpu.shared_bytes, shared)
            yield scan.waves(of, tuning)


def named_scans(op: Operation) -> Iterator[str]:
    """Yield more programs of `scan_lines`, for strategies that it does not choose itself."""
    of = scanned(op)
    spine = scan.of_states(of)
    yield from (scan.upsweep(spine), scan.fan(of), scan.fan(spine), scan.cooperative(of))


def segmented_scans(op: Operation, exclusive: bool = False, reverse: bool = False) -> Iterator[str]:
    """Yield the programs that `scan` and `lift_segments` launch for `op` with segments."""
    of = scan.segmented(scanned(op, exclusive, reverse), layout(op))
    yield scan.columns(of)
    for lines in (of, scan.of_states(of)):
        yield from (scan.rows(lines, team) for team in (32, scan.THREADS))
        yield scan.rows(lines, scan.THREADS, write=False)


def all_scans() -> Iterator[str]:
    """Yield the programs of all sums, and of some scans by other monoids and in other directions.

    All are compiled from the same templates, which depend only on the sizes and conversions of
    elements, states and results: `_SCANNED` has each of those, and `reductions` every monoid.
    """
    for dtype in map(np.dtype, CTYPES):
        total = accumulator(dtype)
        for output in map(np.dtype, CTYPES):
            if output.kind == total.kind or output.kind == dtype.kind == "b":
                yield from scans(bind(SUM, dtype, output, "scan"))
                yield from named_scans(bind(SUM, dtype, output, "scan"))
        yield from segmented_scans(bind(SUM, dtype, total, "scan"))
    for monoid, names in _SCANNED.items():
        for dtype in map(np.dtype, names.split()):
            op = bind(monoid, dtype, monoid.output(dtype), "scan")
            yield from scans(op)
            yield from segmented_scans(op)
    for name in ("f4", "c8"):
        yield from scans(bind(SUM, np.dtype(name), np.dtype(name), "scan", skipna=True))
    for name in ("f8", "c16"):
        skipping = bind(COMPENSATED_SUM, np.dtype(name), np.dtype(name), "scan", skipna=True)
        yield from scans(skipping)
    double = np.dtype("f8")
    yield from named_scans(bind(COMPENSATED_SUM, double, double, "scan"))
    directed = {SUM: "u1 f4", COMPENSATED_SUM: "f8", MAX: "f2"}
    for monoid, dtype in ((m, np.dtype(name)) for m in directed for name in directed[m].split()):
        op = bind(monoid, dtype, monoid.output(dtype), "scan")
        for directions in ((True, False), (False, True), (True, True)):
            yield from scans(op, _H200, *directions)
            yield from segmented_scans(op, *directions)


def _spread(statistic: str, adjust: bool) -> MonoidRow:
    return weighted_spread(statistic, 0.1, adjust, False, False)


def pairs() -> Iterator[str]:
    """Yield the programs of weighted means and of moments of two variables."""
    double = np.dtype("f8")
    for row in (WEIGHTED_MEAN, WEIGHTED_VAR, COMOMENTS):
        for dtype in map(np.dtype, ("c8", "c16")):
            for skipna in skips(of_complex(row)):
                op = Operation(of_complex(row), dtype, double, skipna)
                yield from reductions(op)
                yield reduce.long_pairs(functor(op), dtype, layout(op))


def gaps() -> Iterator[str]:
    """Yield the programs of series with gaps and of runs, with some limits, weights and lengths."""
    fills = fill(None), fill(3)
    means: list[MonoidRow] = [weighted_mean(0.1, of, not of) for of in (True, False)]
    means += [weighted_sum(0.1, False), *(_spread(name, True) for name in ("var", "std"))]
    means.append(_spread("var", False))
    of_two = _spread("cov", True), _spread("corr", True), _spread("cov", False)
    listed: list[tuple[MonoidRow, str]] = [(monoid, "f2 f4 f8 c8") for monoid in fills]
    listed += ((monoid, "f2 f4 f8") for monoid in means)
    listed += ((monoid, "c8 c16") for monoid in of_two)
    for monoid, names in listed:
        for dtype in map(np.dtype, names.split()):
            output = size_dtype(dtype) if monoid in of_two else dtype
            op = Operation(monoid, dtype, output)
            yield from reductions(op)
            yield from scans(op)
            if dtype == np.float32:
                yield from scans(op, reverse=True)
                yield from segmented_scans(op)
    mask, place = np.dtype("?"), np.dtype("u1")
    for statistic in get_args(Statistic):
        yield from reductions(Operation(runs(statistic, 3), mask, np.dtype("i8")))
    of_mask = Operation(RUN_PLACES, mask, place)
    for op in (of_mask, Operation(RUN_LENGTHS, place, np.dtype("f8"))):
        yield from reductions(op)
        for reverse in (False, True):
            yield from scans(op, reverse=reverse)
    yield from segmented_scans(of_mask)
    yield from segmented_scans(of_mask, reverse=True)


#: The dtypes of elements, by the monoid of scans that `all_scans` lists.
_SCANNED = {
    COMPENSATED_SUM: "f4 f8 c16",
    PROD: "u1 i8 f4 c8",
    MIN: "? u2 f4",
    MAX: "? i1 i8 f2 f8",
    LOGADDEXP: "f2 f4 f8",
    ANY: "f4",
    COUNT_NONZERO: "i2",
}


def histograms(samples: np.dtype[Any], gpu: Device) -> Iterator[str]:
    """Yield the programs that `histogram` can launch for samples of a dtype, with usual weights."""
    samples = np.dtype("u1") if samples.kind == "b" else samples
    for find in digits(samples):
        yield from (*counts(find), *weighs(find, "d"))
    if samples.itemsize > 2:
        yield from (select.collect(samples, many) for many in (False, True))
    edges = {"f": "f4 f8" if samples.itemsize <= 4 else "f8", "i": "f8 i8", "u": "f8 i8 u8"}
    for edge in map(np.dtype, edges[samples.kind].split()):
        for find in finders(samples, edge):
            yield from counts(find)
            if gpu.hopper:
                yield histogram.distributed(find)
            yield from (histogram.locate(find, np.dtype(index)) for index in ("u4", "i8"))
        yield from weighs(find, _WEIGHTS)
    yield from (histogram.largest(np.dtype(weight)) for weight in "efd")
    yield from (histogram.clear(), histogram.settle())


def digits(samples: np.dtype[Any]) -> list[histogram.Finder]:
    """Return the finders of samples by digits of their keys, for one prefix and for several."""
    samples = np.dtype("u1") if samples.kind == "b" else samples
    return [histogram.finder(kind, samples, samples) for kind in ("digit", "digits")]


def tallies(integers: np.dtype[Any], gpu: Device) -> Iterator[str]:
    """Yield the programs that count integers of a dtype, or bin indices, which are uint32."""
    integers = np.dtype("u1") if integers.kind == "b" else integers
    find = histogram.finder("unit", integers, integers)
    yield from counts(find)
    if gpu.hopper:
        yield histogram.distributed(find)
    yield from weighs(find, _WEIGHTS if integers == np.dtype("u4") else "id")


def weighs(find: histogram.Finder, weights: str) -> Iterator[str]:
    """Yield the programs that sum weights of some dtypes, given by their letters."""
    for weight in map(np.dtype, weights):
        sums: tuple[histogram.Sums, ...] = ("whole", "lean", "global")
        yield from (histogram.weigh(find, weight, kind) for kind in sums)


def counts(find: histogram.Finder) -> Iterator[str]:
    """Yield the programs of a histogram without weights, except clusters."""
    yield from (histogram.windows(find, packed) for packed in (False, True))
    yield from (histogram.everywhere(find), histogram.partition(find), histogram.lists())
    if find.element in ("signed char", "unsigned char"):
        yield histogram.by_value(find)


def finders(samples: np.dtype[Any], edge: np.dtype[Any]) -> list[histogram.Finder]:
    """Return the finders of bins between edges of a dtype."""
    if edge.kind != "f":
        return [histogram.finder("searched", samples, edge)]
    # Large integers have limits of their own, because floats cannot distinguish neighbours.
    limited = (False, True) if samples.kind in "iu" and samples.itemsize == 8 else (False,)
    return [
        histogram.finder(kind, samples, edge, own)
        for own in limited
        for kind in ("searched", "linear", "guessed")
    ]


def multichunk_scan(of: scan.Scan, gpu: Device) -> str:
    """Return the scan of several chunks, as `multichunk.scan` launches it."""
    if not (gpu.hopper and of.is_bulk):
        return multichunk.scan(of, None)
    # Blocks scan tiles one after the other, as in endless lines; the program itself takes some of
    # their shared memory.
    return multichunk.scan(
        of, scan.tune(of, 1 << 40, gpu.processors, gpu.shared_bytes - 2048, False)
    )


#: The dtypes for which `multichunks` lists all programs.
_FULLY_LISTED = tuple(map(np.dtype, ("i4", "f4", "c8")))


def multichunks(dtype: np.dtype[Any], gpu: Device) -> Iterator[str]:
    """Yield multi-chunk launches for elements of `dtype`.

    As in `all_scans`, these are sums of every dtype and some of the rest, and one or two
    histograms. Scans by LOGADDEXP are left out, because they take long to compile and use the same
    template.
    """
    full = dtype in _FULLY_LISTED
    for monoid in MONOIDS:
        if monoid is SUM or (full and dtype.kind in monoid.kinds):
            for skipna in skips(monoid) if full else (False,):
                op = compensated(bind(monoid, dtype, monoid.output(dtype), monoid.name, skipna))
                yield multichunk.reduce(functor(op), element(op), layout(op))
    for monoid, names in {SUM: dtype.str[1:], **_SCANNED}.items():
        if dtype.str[1:] in names.split() and monoid is not LOGADDEXP:
            for skipna in skips(monoid) if full else (False,):
                op = compensated(bind(monoid, dtype, monoid.output(dtype), "scan", skipna))
                of = scanned(op)
                yield multichunk_scan(of, gpu)
                if full:
                    yield multichunk.scan(of, None)
    if dtype.kind in "biuf":
        one, _ = digits(dtype)
        yield multichunk.histogram(one, dtype.itemsize > 1)
    if dtype.kind in "iuf":
        edge = np.dtype("f4" if dtype.kind == "f" and dtype.itemsize <= 4 else "f8")
        for find in finders(dtype, edge) if full else [histogram.finder("guessed", dtype, edge)]:
            yield from (multichunk.histogram(find, packed) for packed in (False, True)[: 1 + full])
    if dtype.kind in "iu":
        yield multichunk.histogram(histogram.finder("unit", dtype, dtype), False)


def transposes(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield the programs that `transpose` can launch for elements of `dtype`."""
    yield from transpose.programs(dtype.itemsize)


def selections() -> Iterator[str]:
    """Yield the programs of selections from chunks, by some kinds of bins."""
    yield from select.programs()
    for dtype in map(np.dtype, CTYPES):
        for kind in ("above", "below") if dtype.kind in "iuf" else ():
            find = histogram.finder(kind, dtype, dtype)
            yield select.mark_found(find, select.tile_of(None))
    yield from scans(bind(SUM, np.dtype("i8"), np.dtype("i8"), "scan"))
    for name in ("u1", "i8", "f4"):
        dtype = np.dtype(name)
        found = finders(dtype, np.dtype("f4" if dtype.kind == "f" else "f8"))
        if dtype.kind != "f":
            found.append(histogram.finder("unit", dtype, dtype))
        for find in found:
            yield select.mark_found(find, select.tile_of(dtype.itemsize))


def windows(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield the programs of windows over elements of `dtype`."""
    if dtype in (np.float32, np.float64):
        yield from window.programs(dtype)


def matmuls(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield the programs that `matmul` can launch for elements of `dtype`."""
    yield from matmul.programs(dtype)
    yield matmul.deviations(dtype)
