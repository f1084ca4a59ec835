"""Whole calls on Dask arrays of NumPy chunks, beside those of dask.array with the same chunks.

Times are from the call to the result and hold Dask's own work; the scheduler is the synchronous
one, so that one core works, but for the scans on a cluster of two processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import dask_coop

from .cases import Array, Case, Maker, Scale, apart

#: How many chunks the scans on a cluster have.
ON_A_CLUSTER = (32, 128)

#: Samples lie between 0 and 1.
EDGES = np.linspace(0, 1, 101) ** 2


@dataclass(frozen=True)
class Call:
    """A call of a function that has the same name and arguments in both libraries.

    Attributes
    ----------
    name : str
    given : dict
        The arguments behind the array, or behind two.
    arrays : int
        How many arrays it takes; "weights" is the name of the second one where `weighted`.
    weighted : bool
    exact : bool
        Whether results are no floats.
    """

    name: str
    given: dict[str, Any] = field(default_factory=dict)
    arrays: int = 1
    weighted: bool = False
    exact: bool = False

    def bind(self, library: Any, **more: Any) -> Callable[..., Any]:
        """Return the call of `library`'s function; of several results the first."""
        function = partial(getattr(library, self.name), **self.given, **more)

        def call(*arrays: Any) -> Any:
            result = function(arrays[0], weights=arrays[1]) if self.weighted else function(*arrays)
            return result[0] if isinstance(result, tuple) else result

        return call


def _calls() -> Iterator[tuple[str, Call]]:
    floats = "sum prod min max mean var std ptp nansum nanprod nanmin nanmax nanmean nanvar nanstd"
    exact = "any all argmin argmax count_nonzero nanargmin nanargmax"
    for name in (*floats.split(), *exact.split()):
        yield f"{name}()", Call(name, exact=name in exact.split())
    yield "moment(order=3)", Call("moment", {"order": 3})
    yield "histogram(bins=100)", Call("histogram", {"bins": 100, "range": (0, 1)})
    yield "histogram(bins=10000)", Call("histogram", {"bins": 10_000, "range": (0, 1)})
    yield "histogram(bins=edges)", Call("histogram", {"bins": EDGES})
    density = {"bins": 100, "range": (0, 1), "density": True}
    yield "histogram(density=True)", Call("histogram", density)
    yield "digitize(bins=edges)", Call("digitize", {"bins": EDGES})


def _scans() -> Iterator[tuple[str, Call]]:
    for name in ("cumsum", "cumprod", "nancumsum", "nancumprod"):
        yield f"{name}(axis=0)", Call(name, {"axis": 0})


def _along_axes() -> Iterator[tuple[str, Call]]:
    for name in ("sum", "max", "var", "argmin", "nanmean", "cumsum", "nancumsum"):
        for axis in (0, 1):
            yield f"{name}(axis={axis})", Call(name, {"axis": axis}, exact=name == "argmin")


FLAT = {**dict(_calls()), **dict(_scans())}
SQUARE = dict(_along_axes())
_BINS = {"bins": 100, "range": (0, 1)}
PAIRS = {
    "histogram(weights)": Call("histogram", _BINS, 2, weighted=True),
    "histogram2d(bins=100)": Call("histogram2d", {"bins": 100, "range": ((0, 1),) * 2}, 2),
}
INTEGERS = {"bincount()": Call("bincount", {"minlength": 1 << 20}, exact=True)}
CLUSTER = {f"cumsum, {n} chunks on a cluster": Call("cumsum", {"axis": 0}) for n in ON_A_CLUSTER}
CALLS = FLAT | SQUARE | PAIRS | INTEGERS | CLUSTER


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases, none where the scale has no chunks."""
    if not scale.chunks:
        return
    of = partial(Case, "arrays", chunks=scale.chunks)
    flat, square = (scale.sizes[-1],), (scale.side,) * 2
    for dtype in ("float64", "float32"):
        for work in FLAT:
            yield of(work, dtype, flat)
        for work in SQUARE:
            yield of(work, dtype, square)
    for work in PAIRS:
        yield of(work, "float64", flat, arrays=2)
    for work in INTEGERS:
        yield of(work, "int64", flat)
    for work, chunks in zip(CLUSTER, ON_A_CLUSTER, strict=True):
        yield Case("arrays", work, "float64", flat, chunks=chunks)


def contender(find: Callable[[Any], Any], **more: Any) -> Maker:
    """Return what makes the computed call of the library that `find` finds among the contenders."""

    def make(contenders: Any, case: Case) -> Callable[..., Any]:
        lazy = CALLS[case.work].bind(find(contenders), **more)
        if case.work in CLUSTER:
            return OnCluster(contenders.cluster, lazy)
        return lambda *arrays: lazy(*arrays).compute(scheduler="synchronous")

    return make


class OnCluster:
    """A call whose input and result stay in the memory of a cluster."""

    def __init__(self, client: Any, lazy: Callable[..., Any]) -> None:
        self._client, self._lazy = client, lazy
        self._inputs: dict[str, Any] = {}

    def __call__(self, x: Any) -> Persisted:
        """Return the result when all of it is in memory."""
        if x.name not in self._inputs:
            self._inputs[x.name] = self._finish(x)
        return Persisted(self._client, self._finish(self._lazy(self._inputs[x.name])))

    def _finish(self, x: Any) -> Any:
        from distributed import wait

        x = self._client.persist(x)
        with self._client.as_current():
            wait(x)
        return x


class Persisted:
    """A result in the memory of a cluster."""

    def __init__(self, client: Any, x: Any) -> None:
        self._client, self._x = client, x

    def arrays(self) -> tuple[Array, ...]:
        """Return it, on the host."""
        return (self._client.compute(self._x).result(),)


_BOTH: dict[str, Maker] = {
    "dask_coop": contender(lambda contenders: dask_coop),
    "Dask": contender(lambda contenders: contenders.da),
}
_BLELLOCH = {"Dask blelloch": contender(lambda contenders: contenders.da, method="blelloch")}
CONTENDERS: dict[str, dict[str, Maker]] = {
    work: {**_BOTH, **_BLELLOCH} if work in CLUSTER else _BOTH for work in CALLS
}


def reference(case: Case, xp: Any, *inputs: Array) -> tuple[Any, ...]:
    """Return NumPy's result; but for places and counts, floats are widened."""
    call = CALLS[case.work]
    if call.name in ("histogram", "histogram2d", "digitize"):
        return (call.bind(np)(*inputs),)
    wide = [x.astype("f8") if x.dtype.kind == "f" else x for x in inputs]
    if call.name == "moment":
        return (((wide[0] - wide[0].mean()) ** 3).mean(),)
    return (call.bind(np)(*wide),)


def distance(
    case: Case, strict: bool, got: tuple[Any, ...], want: tuple[Any, ...], *inputs: Array
) -> float:
    """Return how far a result is off."""
    call = CALLS[case.work]
    if call.exact:
        return 0.0 if np.array_equal(got[0], want[0]) else math.inf
    # Products of numbers below one are soon too small for float32, third moments next to zero.
    near_zero = "prod" in call.name or call.name == "moment"
    return apart(case, strict, got[0] + near_zero, want[0] + near_zero)
