"""The programs that CUDA chunks can ask for, listed without a GPU: for tests and for warming up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from dask_coop.cuda.programs import (
    CTYPES,
    count,
    ctype,
    histogram,
    matmul,
    reduce,
    scan,
    transpose,
)
from dask_coop.monoids import (
    COUNTS,
    MAX,
    MEAN,
    MIN,
    MINMAX,
    MOMENTS,
    MONOIDS,
    SUM,
    VAR,
    Operation,
    accumulator,
    bind,
)

#: What `common` covers.
_COMMON = (SUM, MIN, MAX, MINMAX, MEAN, VAR, MOMENTS)


@cache
def functor(op: Operation) -> str:
    """Return the C++ name of an operation's monoid."""
    return f"{op.monoid.functor}<{ctype(op.element)}>"


@cache
def layout(op: Operation) -> np.dtype[Any]:
    """Return the structured dtype of a state, laid out as C lays out its struct."""
    names = [field.name for field in op.monoid.fields]
    dtypes = op.monoid.dtypes(op.element)
    return np.dtype(list(zip(names, dtypes, strict=True)), align=True)


def places(state: np.dtype[Any]) -> list[tuple[np.dtype[Any], int]]:
    """Return the dtype and the offset, in bytes, of every field of a layout."""
    return [state.fields[name][:2] for name in state.names] if state.fields and state.names else []


def reductions(op: Operation) -> Iterator[str]:
    """Yield what `lift` can launch for `op`."""
    name, state = functor(op), layout(op)
    yield reduce.slabs(name, op.element, state)
    yield reduce.rows(name, op.element, state)
    yield reduce.long_rows(name, op.element, state)
    for v in sorted({1, reduce.columns_per_thread(op.element, state)}):
        yield reduce.long_columns(name, op.element, state, v)
        yield reduce.threads(name, op.element, state, v)


def scans(op: Operation, hopper: bool = True) -> Iterator[str]:
    """Yield what `scan` can launch for `op`, on a GPU with or without Device.hopper."""
    of = scan.of(functor(op), op.element, op.output, layout(op))
    spine = scan.of_states(of)
    for team in (32, scan.THREADS):
        yield from (scan.rows(of, team), scan.rows(spine, team))
    yield from (scan.short_rows(of), scan.upsweep(of), scan.upsweep(spine))
    yield scan.upsweep_columns(of)
    yield from (scan.columns(of), scan.columns(spine), scan.fan(of), scan.fan(spine))
    yield scan.cooperative(of)
    for width in scan.STREAM_WIDTHS:
        for streamed in (of, spine):
            chunks = {16, streamed.element_bytes} - {1, 2}
            yield from (scan.stream(streamed, width, chunk) for chunk in sorted(chunks))
    if op.element.kind in "biu":
        yield scan.lookback(of)
    if hopper:
        # An H200's processors and memory, and lines of two tiles.
        for shared in (True, False):
            yield scan.waves(of, scan.tune(of, 1 << 14, 132, 232_448, shared))


def histograms(samples: np.dtype[Any], hopper: bool = True) -> Iterator[str]:
    """Yield what `histogram` can launch for samples of that dtype, and its common weights."""
    samples = np.dtype("u1") if samples.kind == "b" else samples
    edges = {"f": "f4 f8" if samples.itemsize <= 4 else "f8", "i": "f8 i8", "u": "f8 i8 u8"}
    for edge in map(np.dtype, edges[samples.kind].split()):
        yield from (count.count(samples, edge, shared) for shared in (True, False))
        for weight in map(np.dtype, "?bhilBHILefd"):
            yield count.weigh(samples, edge, weight, accumulator(weight))
        for find in finders(samples, edge):
            yield from (histogram.windows(find, packed, 1) for packed in (False, True))
            if find.frugal:
                yield histogram.windows(find, False, 2)
            yield histogram.everywhere(find)
            yield histogram.partition(find)
            if hopper:
                yield histogram.distributed(find)
        for weight in map(np.dtype, "?bhilBHILefd"):
            for shared in (True, False):
                yield histogram.weigh(find, weight, shared)
    yield histogram.lists()
    yield from (histogram.largest(np.dtype(weight)) for weight in "efd")
    yield from (histogram.settle(np.dtype(total)) for total in "Ld")


def finders(samples: np.dtype[Any], edge: np.dtype[Any]) -> list[histogram.Finder]:
    """Return the ways in which such samples find their bins."""
    searched = histogram.finder("searched", samples, edge, edge)
    if edge.kind != "f":
        return [searched]
    f4, f8 = np.dtype("f4"), np.dtype("f8")
    nearest = [
        histogram.finder("nearest", samples, edge, guess) for guess in (f4, f8) if guess >= edge
    ]
    return [searched, *nearest, histogram.finder("guessed", samples, edge, edge)]


def transposes(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield what `transpose` can launch for elements of `dtype`."""
    yield from transpose.programs(dtype.itemsize)


def matmuls(dtype: np.dtype[Any]) -> Iterator[str]:
    """Yield what `matmul` can launch for elements of `dtype`."""
    yield from matmul.programs(dtype)


def common(dtypes: tuple[np.dtype[Any], ...], hopper: bool = True) -> list[str]:
    """Return what most work on elements of `dtypes` needs, with or without Device.hopper."""
    sources: list[str] = []
    for dtype in dtypes:
        for monoid in _COMMON:
            op = bind(monoid, dtype, _output(monoid, dtype), monoid.name)
            sources += reductions(op)
        sources += scans(bind(SUM, dtype, _output(SUM, dtype), "scan"), hopper)
        edge = np.dtype("f4" if dtype.kind == "f" and dtype.itemsize <= 4 else "f8")
        sources += (count.count(dtype, edge, shared) for shared in (True, False))
    return sources


def everything() -> list[str]:
    """Return every program that the library can ask for, each once."""
    sources: dict[str, None] = {}
    for name in CTYPES:
        dtype = np.dtype(name)
        for monoid in MONOIDS:
            if dtype.kind in monoid.kinds and monoid is not COUNTS:
                op = bind(monoid, dtype, _output(monoid, dtype), monoid.name)
                sources.update(dict.fromkeys(reductions(op)))
        total = accumulator(dtype)
        for output in map(np.dtype, CTYPES):
            if output.kind == total.kind:
                sources.update(dict.fromkeys(scans(bind(SUM, dtype, output, "scan"))))
        if dtype.kind == "b":
            sources.update(dict.fromkeys(scans(bind(SUM, dtype, dtype, "scan"))))
        if dtype.kind in COUNTS.kinds:
            sources.update(dict.fromkeys(histograms(dtype)))
        sources.update(dict.fromkeys(transposes(dtype)))
        if dtype.kind == "b" or dtype in matmul.DTYPES:
            sources.update(dict.fromkeys(matmuls(dtype)))
    return list(sources)


def _output(monoid: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if monoid is SUM:
        return accumulator(dtype) if dtype.kind in "biu" else dtype
    if monoid is MEAN:
        return np.dtype("f8") if dtype.kind in "biu" else dtype
    return dtype
