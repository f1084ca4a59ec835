"""Whole calls on one large array in 32 chunks, by more and more threads.

The array is too large for a reference of its size. As many threads as there are processors compare
chunks in pieces that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import dask_coop

from .arrays import Call, InThreads, in_dask
from .cases import Array, Case, Maker, Scale, apart

CHUNKS = 32

#: Numbers of threads; the largest that the machine has gives the time of this library.
THREADS = (1, 2, 4, 8, 16)

_PIECE = 1 << 20
_BINS = {"bins": 256, "range": (0, 1)}

CALLS = {
    "sum, 32 chunks": Call("sum"),
    "nanmean, 32 chunks": Call("nanmean"),
    "var, 32 chunks": Call("var"),
    "describe, 32 chunks": Call("describe", several=True),
    "histogram of 256 bins, 32 chunks": Call("histogram", _BINS),
    "cumsum, 32 chunks": Call("cumsum", {"axis": 0}),
}


def name_of(threads: int) -> str:
    """Return the contender's name of this library with so many threads."""
    return f"{threads} threads" if threads > 1 else "1 thread"


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""
    if scale.whole:
        for work, call in CALLS.items():
            written = 4 * scale.whole if call.name == "cumsum" else 0
            yield Case("threads", work, "float32", (scale.whole,), chunks=CHUNKS, written=written)


def most_threads(processors: int) -> int:
    """Return the most threads to use on so many processors."""
    return max(n for n in THREADS if n <= max(processors, 1))


def _contender(threads: int | None, find: Callable[[Any], Any] = lambda p: dask_coop) -> Maker:
    def make(contenders: Any, case: Case) -> Callable[..., Any]:
        workers = threads or most_threads(contenders.processors)
        call = InThreads(CALLS[case.work].bind(find(contenders)), workers)
        if CALLS[case.work].name != "cumsum":
            return call
        return lambda x: _Scanned(call(x))

    return make


class _Scanned:
    """A scan whose chunks are compared one by one."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def arrays(self) -> tuple[Array, ...]:
        (blocks,) = self._result.blocks()
        return tuple(blocks)


_CONTENDERS: dict[str, Maker] = {
    "dask_coop": _contender(None),
    **{name_of(n): _contender(n) for n in THREADS},
    "Dask": _contender(None, lambda contenders: contenders.da),
}
CONTENDERS = {
    work: {n: make for n, make in _CONTENDERS.items() if n != "Dask" or in_dask(call.name)}
    for work, call in CALLS.items()
}


def _step(x: Array) -> int:
    """Return the length of pieces, which divides all chunks."""
    return min(_PIECE, -(-len(x) // CHUNKS))


def _all_pieces(what: Callable[[Array], Any], x: Array) -> list[Any]:
    """Return the results of a function on each piece, in order."""
    step = _step(x)
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda at: what(x[at : at + step]), range(0, len(x), step)))


def reference(case: Case, xp: Any, x: Array) -> tuple[Any, ...]:
    """Return the results in float64, counts by NumPy; for a scan the sums before each piece."""
    name = CALLS[case.work].name
    if name == "histogram":
        call = CALLS[case.work].in_numpy()
        return (np.sum(_all_pieces(call, x), axis=0),)
    sums = np.array(_all_pieces(lambda part: part.sum(dtype="f8"), x))
    if name == "cumsum":
        return (np.cumsum(sums) - sums,)
    total = sums.sum()
    mean = total / len(x)
    if name in ("sum", "nanmean"):
        return (total if name == "sum" else mean,)
    squares = _all_pieces(lambda part: np.square(part - mean, dtype="f8").sum(), x)
    var = np.sum(squares) / len(x)
    if name == "var":
        return (var,)
    low, high = (np.array(_all_pieces(f, x)) for f in (np.min, np.max))
    zero = np.int64(0)
    return np.int64(len(x)), zero, low.min(), high.max(), total, mean, var, np.sqrt(var)


def distance(
    case: Case, strict: bool, got: tuple[Any, ...], want: tuple[Any, ...], x: Array
) -> float:
    """Return the error of a result."""
    if CALLS[case.work].name != "cumsum":
        return CALLS[case.work].distance(case, strict, got, want)
    starts = np.cumsum([0, *map(len, got)])
    (bases,), step = want, _step(x)

    def compare(at: int) -> float:
        number = int(np.searchsorted(starts, at, "right")) - 1
        found = got[number][at - starts[number] :][:step]
        expected = np.cumsum(x[at : at + len(found)], dtype="f8") + bases[at // step]
        return apart(case, strict, found, expected)

    with ThreadPoolExecutor() as pool:
        return max(pool.map(compare, range(0, len(x), step)))
