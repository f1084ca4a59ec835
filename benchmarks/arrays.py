"""Whole calls on Dask arrays of NumPy chunks, beside those of dask.array with the same chunks.

A time runs from the call until the chunks of the result are in memory, and includes the graph and
Dask's own work. The scheduler uses as many threads as there are processors, except for the scans on
a cluster of two processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np

import dask_coop

from .cases import Array, Case, Maker, Scale, apart
from .contenders import finish

#: The number of chunks of the scans on a cluster.
ON_A_CLUSTER = (32, 128)

#: The fewest elements of such a chunk; with fewer, a call times only its messages.
_LEAST_CLUSTERED = 512

#: Samples lie between 0 and 1.
EDGES = np.linspace(0, 1, 101) ** 2


def described(x: Array) -> tuple[Any, ...]:
    """Return the eight statistics of `dask_coop.describe`, by NumPy's calls."""
    nans = np.isnan(x).sum()
    extrema = np.min(x), np.max(x)
    return x.size - nans, nans, *extrema, np.sum(x), np.mean(x), np.var(x), np.std(x)


@dataclass(frozen=True)
class Call:
    """A call of a function that has the same name and arguments in both libraries.

    Attributes
    ----------
    name : str
    given : dict
        The arguments after the array, or after two.
    arrays : int
        The number of arrays; the second one is passed as "weights" if `weighted`.
    weighted : bool
    exact : bool
        Whether results are not floats.
    several : bool
        Whether the result is a whole tuple; otherwise it is the first element of one.
    """

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    arrays: int = 1
    weighted: bool = False
    exact: bool = False
    several: bool = False

    def with_bins(self, bins: int) -> Call:
        """Return the same call with this number of bins, if it is not zero."""
        return replace(self, given={**self.given, "bins": bins}) if bins else self

    def bind(self, library: Any) -> Callable[..., Any]:
        """Return the call of `library`'s function."""
        found = getattr(library, self.name, None) or getattr(library.linalg, self.name)
        function = partial(found, **self.given)

        def call(*arrays: Any) -> Any:
            result = function(arrays[0], weights=arrays[1]) if self.weighted else function(*arrays)
            return result[0] if isinstance(result, tuple) and not self.several else result

        return call

    def in_numpy(self) -> Callable[..., Any]:
        """Return NumPy's function in place of this one."""
        if self.name in _IN_NUMPY:
            return partial(_IN_NUMPY[self.name], **self.given)
        return self.bind(np)

    def reference(self, *inputs: Array) -> tuple[Any, ...]:
        """Return NumPy's results; floats are widened, except for indices and counts."""
        as_it_is = self.exact or self.name.startswith("histogram")
        wide = [x if as_it_is or x.dtype.kind != "f" else x.astype("f8") for x in inputs]
        found = self.in_numpy()(*wide)
        return tuple(found) if isinstance(found, tuple) else (found,)

    def distance(
        self, case: Case, strict: bool, got: tuple[Any, ...], want: tuple[Any, ...]
    ) -> float:
        """Return the error of the worst result."""
        if self.exact:
            return 0.0 if np.array_equal(got[0], want[0]) else math.inf
        # Products of numbers below one soon get too small for float32, and third moments near zero.
        near_zero = "prod" in self.name or self.name == "moment"
        pairs = zip(got, want, strict=True)
        return max(apart(case, strict, a + near_zero, b + near_zero) for a, b in pairs)


def in_dask(name: str) -> bool:
    """Return whether dask.array has a function of that name."""
    return hasattr(da, name) or hasattr(da.linalg, name)


def _moment(x: Array, order: int) -> Any:
    return ((x - x.mean()) ** order).mean()


#: The functions with another name in NumPy, or missing there.
_IN_NUMPY: dict[str, Callable[..., Any]] = {
    "describe": described,
    "moment": _moment,
    "cummax": np.maximum.accumulate,
    "cummin": np.minimum.accumulate,
    "logcumsumexp": np.logaddexp.accumulate,
    "reduce": lambda x, monoid: monoid.reduce(x),
    "scan": lambda x, monoid, axis: monoid.accumulate(x, axis),
}


def _calls() -> Iterator[tuple[str, Call]]:
    floats = "sum prod min max mean var std ptp nansum nanprod nanmin nanmax nanmean nanvar nanstd"
    exact = "any all argmin argmax count_nonzero nanargmin nanargmax"
    for name in (*floats.split(), "norm", *exact.split()):
        yield f"{name}()", Call(name, exact=name in exact.split())
    yield "moment(order=3)", Call("moment", {"order": 3})
    yield "describe()", Call("describe", several=True)
    yield "reduce(maximum)", Call("reduce", {"monoid": np.maximum})
    yield "histogram(bins=100)", Call("histogram", {"bins": 100, "range": (0, 1)})
    yield "histogram(bins=10000)", Call("histogram", {"bins": 10_000, "range": (0, 1)})
    yield "histogram(bins=edges)", Call("histogram", {"bins": EDGES})
    density = {"bins": 100, "range": (0, 1), "density": True}
    yield "histogram(density=True)", Call("histogram", density)
    yield "digitize(bins=edges)", Call("digitize", {"bins": EDGES}, exact=True)


def _scans() -> Iterator[tuple[str, Call]]:
    for name in ("cumsum", "cumprod", "nancumsum", "nancumprod", "cummax", "cummin"):
        yield f"{name}(axis=0)", Call(name, {"axis": 0})
    for name in ("cumulative_sum", "cumulative_prod"):
        yield f"{name}(axis=0)", Call(name, {"axis": 0})
    yield "logcumsumexp(axis=0)", Call("logcumsumexp", {"axis": 0})
    yield "scan(maximum)", Call("scan", {"monoid": np.maximum, "axis": 0})


def _along_axes() -> Iterator[tuple[str, Call]]:
    for name in ("sum", "max", "var", "argmin", "nanmean", "cumsum", "nancumsum"):
        for axis in (0, 1):
            yield f"{name}(axis={axis})", Call(name, {"axis": axis}, exact=name == "argmin")
    yield "transpose()", Call("transpose")


FLAT = {**dict(_calls()), **dict(_scans())}
SQUARE = dict(_along_axes())
_BINS = {"bins": 100, "range": (0, 1)}
_PAIR = {"bins": 100, "range": ((0, 1),) * 2}
PAIRS = {
    "histogram(weights)": Call("histogram", _BINS, 2, weighted=True),
    "histogram2d(bins=100)": Call("histogram2d", _PAIR, 2),
}
ROWS = {
    "histogramdd(bins=100)": Call("histogramdd", _PAIR),
    "cov()": Call("cov", {"rowvar": False}),
    "corrcoef()": Call("corrcoef", {"rowvar": False}),
}
INTEGERS = {"bincount()": Call("bincount", {"minlength": 1 << 20}, exact=True)}
PRODUCTS = {"matmul()": Call("matmul", arrays=2)}
CLUSTER = {f"cumsum, {n} chunks on a cluster": Call("cumsum", {"axis": 0}) for n in ON_A_CLUSTER}
CALLS = FLAT | SQUARE | PAIRS | ROWS | INTEGERS | PRODUCTS | CLUSTER


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases; none where the scale has no chunks."""
    if not scale.chunks:
        return
    n, side = scale.sizes[-1], scale.side
    kinds = (
        (FLAT, "float32", (n,), scale.chunks),
        (FLAT, "float64", (n,), scale.chunks[:1]),
        (SQUARE, "float32", (side, side), scale.chunks),
        (PAIRS, "float64", (n,), scale.chunks),
        (ROWS, "float64", (n // 2, 2), scale.chunks),
        (INTEGERS, "int64", (n,), scale.chunks),
        (PRODUCTS, "float64", (side // 4, side // 4), scale.chunks),
    )
    for works, dtype, shape, counts in kinds:
        for work, call in works.items():
            for chunks in counts:
                yield Case("arrays", work, dtype, shape, arrays=call.arrays, chunks=chunks)
    for work, chunks in zip(CLUSTER, ON_A_CLUSTER, strict=True):
        if n // chunks < _LEAST_CLUSTERED:
            continue
        yield Case("arrays", work, "float64", (n,), chunks=chunks, clustered=True)


def contender(find: Callable[[Any], Any], **more: Any) -> Maker:
    """Return a maker of the computed call of the library that `find` finds among the contenders."""

    def make(contenders: Any, case: Case) -> Callable[..., Any]:
        call = CALLS[case.work]
        lazy = replace(call, given={**call.given, **more}).bind(find(contenders))
        return OnCluster(contenders.cluster, lazy) if case.clustered else InThreads(lazy)

    return make


class InThreads:
    """A lazy call that threads compute, and whose result stays in its chunks.

    Parameters
    ----------
    lazy : callable
    workers : int, optional
        Number of threads; by default that of processors.
    """

    def __init__(self, lazy: Callable[..., Any], workers: int | None = None) -> None:
        self._lazy = lazy
        self._options = {"scheduler": "threads"} | ({"num_workers": workers} if workers else {})

    def __call__(self, *arrays: Any) -> Chunks:
        """Return the result once all of it is in memory."""
        from dask import persist

        result = self._lazy(*arrays)
        results = result if isinstance(result, tuple) else (result,)
        return Chunks(persist(*results, **self._options))


class Chunks:
    """Results whose chunks are in memory."""

    def __init__(self, results: tuple[Any, ...]) -> None:
        self._results = results

    def arrays(self) -> tuple[Array, ...]:
        """Return the results as NumPy arrays."""
        from dask import compute

        found: tuple[Array, ...] = compute(*self._results, scheduler="synchronous")
        return found

    def blocks(self) -> list[list[Array]]:
        """Return the chunks of each result."""
        from dask import compute

        parts = [list(x.to_delayed().ravel()) for x in self._results]
        found: tuple[list[Array], ...] = compute(*parts, scheduler="synchronous")
        return list(found)


class OnCluster:
    """A call whose input and result stay in the memory of a cluster."""

    def __init__(self, client: Any, lazy: Callable[..., Any]) -> None:
        self._client, self._lazy = client, lazy

    def __call__(self, x: Any) -> Persisted:
        """Return the result once all of it is in memory."""
        return Persisted(self._client, finish(self._client, self._lazy(x)))


class Persisted:
    """A result in the memory of a cluster."""

    def __init__(self, client: Any, x: Any) -> None:
        self._client, self._x = client, x

    def arrays(self) -> tuple[Array, ...]:
        """Return the result, on the host."""
        return (self._client.compute(self._x).result(),)


_OURS = {"dask_coop": contender(lambda contenders: dask_coop)}
_DASK = {"Dask": contender(lambda contenders: contenders.da)}
_BLELLOCH = {"Dask blelloch": contender(lambda contenders: contenders.da, method="blelloch")}
CONTENDERS: dict[str, dict[str, Maker]] = {
    work: {
        **_OURS,
        **(_DASK if in_dask(call.name) else {}),
        **(_BLELLOCH if work in CLUSTER else {}),
    }
    for work, call in CALLS.items()
}


def reference(case: Case, xp: Any, *inputs: Array) -> tuple[Any, ...]:
    """Return NumPy's result; floats are widened, except for indices and counts."""
    return CALLS[case.work].reference(*inputs)


def distance(
    case: Case, strict: bool, got: tuple[Any, ...], want: tuple[Any, ...], *inputs: Array
) -> float:
    """Return the error of a result."""
    return CALLS[case.work].distance(case, strict, got, want)
