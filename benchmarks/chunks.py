"""One NumPy chunk on one thread, beside NumPy and the libraries that people take when it is slow.

What is timed of this library is a call on an array of one chunk, but for the building of its graph
and the scheduler: its tasks, called one after the other. Dask's calls are whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.core import flatten
from dask.optimization import cull
from dask.order import order
from dask.task_spec import DataNode

import dask_coop

from .arrays import Call, described
from .cases import Array, Case, Maker, Scale
from .histogram import STRAYS

#: Edges of 1,000 bins that are not of equal width.
EDGES = np.linspace(0, 1, 1001) ** 2

#: Bottleneck and numbagg add float32 up one after the other, in float32: what is wrong by so many
#: tolerances of other peers is right for them.
NAIVE = 100

_UNIT = {"range": (0.0, 1.0)}


@dataclass(frozen=True)
class Work:
    """A row of the table.

    Attributes
    ----------
    call : Call
        In this library, and in NumPy and Dask unless `numpy` is another.
    peers : dict of str to Maker
        The others.
    numpy : callable, optional
        What NumPy has in the place of it.
    """

    call: Call
    peers: dict[str, Maker] = field(default_factory=dict)
    numpy: Callable[..., Any] | None = None


class Tasks:
    """The tasks of a lazy call on arrays of one chunk, to be called with these chunks.

    Parameters
    ----------
    call : Call
    case : Case
    """

    def __init__(self, call: Call, case: Case) -> None:
        self._inputs = [(f"input-{i}", *(0 for _ in case.shape)) for i in range(case.arrays)]
        sizes = tuple((n,) for n in case.shape)
        lazy = [
            da.Array({key: DataNode(key, None)}, key[0], sizes, case.dtype) for key in self._inputs
        ]
        found = call.bind(dask_coop)(*lazy)
        results = found if isinstance(found, tuple) else (found,)
        self._outputs = list(flatten([result.__dask_keys__() for result in results]))
        graph: dict[Any, Any] = {}
        for result in results:
            graph |= dict(result.__dask_graph__())
        graph, _ = cull(graph, self._outputs)
        place = order(graph)
        keys = [key for key in sorted(graph, key=place.__getitem__) if key not in self._inputs]
        self._tasks = [(key, graph[key]) for key in keys]

    def __call__(self, *chunks: Array) -> tuple[Any, ...]:
        """Return the blocks of the results."""
        known: dict[Any, Any] = dict(zip(self._inputs, chunks, strict=True))
        for key, task in self._tasks:
            known[key] = task(known)
        return tuple(known[key] for key in self._outputs)


def _others(name: str) -> dict[str, Maker]:
    """Return what makes the reduction of that name of bottleneck and of numbagg."""
    more = {"ddof": 0} if name in ("nanvar", "nanstd") else {}
    return {
        "bottleneck": lambda p, c: partial(getattr(p.bottleneck, name), axis=c.axis),
        "numbagg": lambda p, c: partial(getattr(p.numbagg, name), axis=c.axis, **more),
    }


def _boost(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return boost-histogram's function that is called as NumPy's."""
    name = "histogram2d" if case.work == "histogram2d" else "histogram"
    call = _call(case)
    function = partial(getattr(contenders.boost_histogram.numpy, name), **call.given)
    if call.weighted:
        return lambda x, weights: function(x, weights=weights)[0]
    return lambda *inputs: function(*inputs)[0]


def _fast(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return fast-histogram's function of bins of equal width."""
    name = "histogram2d" if case.work == "histogram2d" else "histogram1d"
    call = _call(case)
    function = partial(getattr(contenders.fast_histogram, name), **call.given)
    if call.weighted:
        return lambda x, weights: function(x, weights=weights)
    return function


_BOOST: dict[str, Maker] = {"boost-histogram": _boost}
_BOTH: dict[str, Maker] = {**_BOOST, "fast-histogram": _fast}


def _works() -> Iterator[tuple[str, Work]]:
    yield "histogram", Work(Call("histogram", _UNIT, exact=True), _BOTH)
    yield "weighted histogram", Work(Call("histogram", _UNIT, 2, weighted=True), _BOTH)
    pairs = {"bins": (100, 100), "range": ((0.0, 1.0), (0.0, 1.0))}
    yield "histogram2d", Work(Call("histogram2d", pairs, 2, exact=True), _BOTH)
    edges = Call("histogram", {"bins": EDGES}, exact=True)
    yield "histogram between 1,001 edges", Work(edges, _BOOST)
    for name in ("sum", "mean", "var", "std", "min", "max"):
        yield name, Work(Call(name))
    for name in ("argmin", "argmax", "any"):
        yield name, Work(Call(name, exact=True))
    for name in ("nansum", "nanmean", "nanvar", "nanmax"):
        yield name, Work(Call(name), _others(name))
    yield "describe", Work(Call("describe", several=True), numpy=described)
    yield "reproducible sum", Work(Call("sum", {"reproducible": True}), numpy=np.sum)
    for name in ("sum", "var", "max", "nanmean"):
        more = _others(name) if name.startswith("nan") else {}
        yield f"{name} axis 0", Work(Call(name, {"axis": 0}), more)
    for axis in (None, 0):
        place = {"axis": axis or 0}
        end = "" if axis is None else f" axis {axis}"
        yield f"cumsum{end}", Work(Call("cumsum", place))
        accumulate = partial(np.maximum.accumulate, axis=axis or 0)
        yield f"cummax{end}", Work(Call("cummax", place), numpy=accumulate)
    logs = partial(np.logaddexp.accumulate, axis=0)
    yield "logcumsumexp", Work(Call("logcumsumexp", {"axis": 0}), numpy=logs)


WORKS = dict(_works())

#: Works without a contender that others of the same name have.
_ONLY_FLOAT64 = ("histogram2d", "histogram between 1,001 edges", "logcumsumexp")
_ONLY_FLOAT32 = ("describe", "sum axis 0", "var axis 0", "max axis 0", "nanmean axis 0")


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""
    if not scale.chunks:
        return
    flat, square = (scale.sizes[-1],), (scale.side,) * 2
    for dtype in ("float32", "float64"):
        left_out = _ONLY_FLOAT64 if dtype == "float32" else _ONLY_FLOAT32
        case = partial(Case, "chunks", dtype=dtype)
        for bins in (256, 4096, 65536):
            yield case("histogram", shape=flat, bins=bins)
        works = [work for work in WORKS if work not in left_out and work != "histogram"]
        for work in works:
            if WORKS[work].call.arrays == 1 and not work.endswith("axis 0") and work != "any":
                written = flat[0] * np.dtype(dtype).itemsize if "cum" in work else 0
                yield case(work, shape=flat, written=written)
        for work in works:
            if dtype == "float32" and work.startswith("nan") and not work.endswith("axis 0"):
                yield case(work, shape=flat, data="holes")
        for work in works:
            if work.endswith("axis 0"):
                written = math.prod(square) * np.dtype(dtype).itemsize if "cum" in work else 0
                yield case(work, shape=square, axis=0, written=written)
        for work in works:
            if WORKS[work].call.arrays == 2:
                bins = 256 if work == "weighted histogram" else 0
                yield case(work, shape=flat, bins=bins, arrays=2)
    for dtype in ("float32", "bool"):
        yield Case("chunks", "any", dtype, flat, "zeros")


def _ours(contenders: Any, case: Case) -> Callable[..., Any]:
    return Tasks(_call(case), case)


def _numpy(contenders: Any, case: Case) -> Callable[..., Any]:
    return WORKS[case.work].numpy or _call(case).bind(contenders.numpy)


def _dask(contenders: Any, case: Case) -> Callable[..., Any]:
    lazy = _call(case).bind(contenders.da)
    return lambda *inputs: lazy(*inputs).compute(scheduler="synchronous")


def _call(case: Case) -> Call:
    return WORKS[case.work].call.with_bins(case.bins)


_NUMPY: dict[str, Maker] = {"dask_coop": _ours, "NumPy": _numpy}
_PLAIN = {**_NUMPY, "Dask": _dask}
CONTENDERS: dict[str, dict[str, Maker]] = {
    name: {**(_NUMPY if work.numpy else _PLAIN), **work.peers} for name, work in WORKS.items()
}


def reference(case: Case, xp: Any, *inputs: Array) -> tuple[Any, ...]:
    """Return NumPy's results; but for places and counts, floats are widened."""
    work, call = WORKS[case.work], _call(case)
    if call.exact:
        return (call.bind(np)(*inputs),)
    wide = [x.astype("f8") for x in inputs]
    found = work.numpy(*wide) if work.numpy else call.bind(np)(*wide)
    return found if isinstance(found, tuple) else (found,)


def distance(
    case: Case, strict: bool, got: tuple[Any, ...], want: tuple[Any, ...], *inputs: Array
) -> float:
    """Return how far the worst result is off; peers have their own rules for samples on an edge."""
    call = WORKS[case.work].call
    if call.name.startswith("nan") and not strict:
        return call.distance(case, strict, got, want) / NAIVE
    if call.name.startswith("histogram") and not strict and not call.weighted:
        strays = float(abs(got[0].astype("f8") - want[0]).sum())
        return strays / (STRAYS * case.size)
    return call.distance(case, strict, got, want)
