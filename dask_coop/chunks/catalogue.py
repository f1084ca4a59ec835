"""The programs that CUDA chunks can ask for, listed without a GPU: for tests and for warming up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_coop.cuda.programs import CTYPES, ctype, histogram, reduce, scan
from dask_coop.monoids import COUNTS, MEAN, MONOIDS, SUM, Operation, accumulator, bind


def functor(op: Operation) -> str:
    """Return the C++ name of an operation's monoid."""
    return f"{op.monoid.functor}<{ctype(op.element)}>"


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
    for team in (*(team for team, _ in reduce.TEAMS), reduce.THREADS):
        yield reduce.rows(name, op.element, state, team)
        yield reduce.merge_rows(name, state, team)
    yield reduce.columns(name, op.element, state)
    yield reduce.merge_columns(name, state)


def scans(op: Operation) -> Iterator[str]:
    """Yield what `scan` can launch for `op`, beside the reductions."""
    name, state = functor(op), layout(op)
    for team in (32, scan.THREADS):
        yield scan.rows(name, op.element, op.output, state, team)
    yield scan.columns(name, op.element, op.output, state)
    yield scan.spine_rows(name, state)
    yield scan.spine_columns(name, state)


def histograms(samples: np.dtype[Any]) -> Iterator[str]:
    """Yield what `histogram` can launch for samples of that dtype, and its common weights."""
    samples = np.dtype("u1") if samples.kind == "b" else samples
    edges = {"f": "f4 f8" if samples.itemsize <= 4 else "f8", "i": "f8 i8", "u": "f8 i8 u8"}
    for edge in map(np.dtype, edges[samples.kind].split()):
        for shared in (True, False):
            yield histogram.count(samples, edge, shared)
        for weight in map(np.dtype, "?bhilBHILefd"):
            yield histogram.weigh(samples, edge, weight, accumulator(weight))


def common(dtypes: tuple[np.dtype[Any], ...]) -> list[str]:
    """Return what most work on elements of `dtypes` needs."""
    sources: list[str] = []
    for dtype in dtypes:
        for monoid in MONOIDS:
            if monoid is not COUNTS:
                op = bind(monoid, dtype, _output(monoid, dtype), monoid.name)
                sources += reductions(op)
        sources += scans(bind(SUM, dtype, _output(SUM, dtype), "scan"))
        edge = np.dtype("f4" if dtype.kind == "f" and dtype.itemsize <= 4 else "f8")
        sources += (histogram.count(dtype, edge, shared) for shared in (True, False))
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
    return list(sources)


def _output(monoid: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if monoid is SUM:
        return accumulator(dtype) if dtype.kind in "biu" else dtype
    if monoid is MEAN:
        return np.dtype("f8") if dtype.kind in "biu" else dtype
    return dtype
