"""One NumPy chunk on one thread, beside NumPy and the libraries that people use when it is slow.

For this library, the timed call works on an array of one chunk, without the building of its graph
and the scheduler: its tasks are called one after the other. Dask's calls are timed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.core import flatten
from dask.optimization import cull
from dask.order import order
from dask.task_spec import DataNode

import dask_coop

from .arrays import Call, described
from .cases import TOLERANCE, Array, Case, Maker, Scale
from .histogram import STRAYS

#: Edges of 1,000 bins of unequal width.
EDGES = np.linspace(0, 1, 1001) ** 2

#: Bottleneck, and NumPy's scans, add float32 one by one in float32: this is their tolerance,
#: relative to the sum of magnitudes.
NAIVE = 0.03

_UNIT = {"range": (0.0, 1.0)}


@dataclass(frozen=True)
class Work:
    """A row of the table.

    Attributes
    ----------
    call : Call
        The call in this library, and in NumPy and Dask unless `numpy` replaces it.
    peers : dict of str to Maker
        The other libraries.
    numpy : callable, optional
        NumPy's replacement for the call.
    axis : int, optional
        None for arrays of one dimension.
    dtypes, data : tuple of str
    bins : tuple of int
        Numbers of bins, each of which is a case.
    """

    call: Call
    peers: dict[str, Maker] = field(default_factory=dict)
    numpy: Callable[..., Any] | None = None
    axis: int | None = None
    dtypes: tuple[str, ...] = ("float32", "float64")
    data: tuple[str, ...] = ("uniform",)
    bins: tuple[int, ...] = (0,)


class Tasks:
    """The tasks of a lazy call on arrays of one chunk, callable with these chunks.

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
        with dask.config.set({"coop.threads": 1}):
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
    """Return makers of bottleneck's and numbagg's reductions of that name."""
    more = {"ddof": 0} if name in ("nanvar", "nanstd") else {}
    return {
        "bottleneck": lambda p, c: partial(getattr(p.bottleneck, name), axis=c.axis),
        "numbagg": lambda p, c: partial(getattr(p.numbagg, name), axis=c.axis, **more),
    }


def _boost(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return boost-histogram's function with NumPy's interface."""
    name = "histogram2d" if case.work == "histogram2d" else "histogram"
    call = _call(case)
    function = partial(getattr(contenders.boost_histogram.numpy, name), **call.given)
    if call.weighted:
        return lambda x, weights: function(x, weights=weights)[0]
    return lambda *inputs: function(*inputs)[0]


def _fast(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return fast-histogram's function for bins of equal width."""
    name = "histogram2d" if case.work == "histogram2d" else "histogram1d"
    call = _call(case)
    function = partial(getattr(contenders.fast_histogram, name), **call.given)
    if call.weighted:
        return lambda x, weights: function(x, weights=weights)
    return function


_BOOST: dict[str, Maker] = {"boost-histogram": _boost}
_BOTH: dict[str, Maker] = {**_BOOST, "fast-histogram": _fast}


def _works() -> Iterator[tuple[str, Work]]:
    wide, narrow = ("float64",), ("float32",)
    counted = Call("histogram", _UNIT, exact=True)
    yield "histogram", Work(counted, _BOTH, bins=(256, 4096, 65536))
    weighted = Call("histogram", _UNIT, 2, weighted=True)
    yield "weighted histogram", Work(weighted, _BOTH, bins=(256,))
    pairs = {"bins": (100, 100), "range": ((0.0, 1.0), (0.0, 1.0))}
    yield "histogram2d", Work(Call("histogram2d", pairs, 2, exact=True), _BOTH, dtypes=wide)
    edges = Call("histogram", {"bins": EDGES}, exact=True)
    yield "histogram between 1,001 edges", Work(edges, _BOOST, dtypes=wide)
    for name in ("sum", "mean", "var", "std", "min", "max"):
        yield name, Work(Call(name))
    for name in ("argmin", "argmax"):
        yield name, Work(Call(name, exact=True))
    yield "any", Work(Call("any", exact=True), dtypes=("float32", "bool"), data=("zeros",))
    for name in ("nansum", "nanmean", "nanvar", "nanmax"):
        yield name, Work(Call(name), _others(name), data=("uniform", "holes"))
    yield "describe", Work(Call("describe", several=True), numpy=described, dtypes=narrow)
    yield "reproducible sum", Work(Call("sum", {"reproducible": True}), numpy=np.sum)
    for name in ("sum", "var", "max", "nanmean"):
        peers = _others(name) if name.startswith("nan") else {}
        yield f"{name} axis 0", Work(Call(name, {"axis": 0}), peers, axis=0, dtypes=narrow)
    for end, axis in (("", None), (" axis 0", 0)):
        along = {"axis": 0}
        yield f"cumsum{end}", Work(Call("cumsum", along), axis=axis)
        yield f"cummax{end}", Work(Call("cummax", along), numpy=_running_maximum, axis=axis)
    yield "logcumsumexp", Work(Call("logcumsumexp", {"axis": 0}), numpy=_logs, dtypes=wide)


_running_maximum = partial(np.maximum.accumulate, axis=0)
_logs = partial(np.logaddexp.accumulate, axis=0)
WORKS = dict(_works())


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""
    found = [case for name in WORKS if scale.chunks for case in _cases_of(name, scale)]
    yield from sorted(found, key=lambda case: (case.arrays, case.dtype, case.data, case.shape))


def _cases_of(name: str, scale: Scale) -> Iterator[Case]:
    work = WORKS[name]
    shape = (scale.sizes[-1],) if work.axis is None else (scale.side,) * 2
    for dtype, data, bins in product(work.dtypes, work.data, work.bins):
        if (dtype, data) == ("float64", "holes"):
            continue  # a tenth NaN costs the same
        case = Case("chunks", name, dtype, shape, data, work.axis, bins, work.call.arrays)
        yield replace(case, written=case.nbytes) if "cum" in name else case


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
    """Return NumPy's results; floats are widened, except for indices and counts."""
    work, call = WORKS[case.work], _call(case)
    if call.exact:
        return (call.bind(np)(*inputs),)
    wide = [x.astype("f8") for x in inputs]
    found = work.numpy(*wide) if work.numpy else call.bind(np)(*wide)
    return found if isinstance(found, tuple) else (found,)


def distance(
    case: Case, strict: bool, got: tuple[Any, ...], want: tuple[Any, ...], *inputs: Array
) -> float:
    """Return the error of the worst result; peers have their own rules for samples on an edge."""
    call = WORKS[case.work].call
    if case.dtype == "float32" and call.name.startswith(("nan", "cumsum")) and not strict:
        return call.distance(case, strict, got, want) * TOLERANCE["float32"][0] / NAIVE
    if call.name.startswith("histogram") and not strict and not call.weighted:
        strays = float(abs(got[0].astype("f8") - want[0]).sum())
        return strays / (STRAYS * case.size)
    return call.distance(case, strict, got, want)
