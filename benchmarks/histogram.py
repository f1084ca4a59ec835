"""Histograms with bins of equal width: by size, by number of bins, of skewed data, and weighted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

import numpy as np

from dask_coop.algebra import monoids
from dask_coop.algebra.bins import Grid, find_bins
from dask_coop.algebra.edges import Bins
from dask_coop.algebra.operation import bind

from .cases import DTYPES, Array, Case, Maker, Scale, apart

#: The fraction of the samples that a peer with its own rule for edges may put into another bin.
STRAYS = 1e-2

#: CUB 3.0 indexes a block's table by a 32-bit product. With four times as many bins, on 132
#: multiprocessors, it breaks the GPU's context.
CUB_BINS = 1 << 20

#: Samples that the reference looks up at a time.
PART = 1 << 26


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""
    largest = (scale.sizes[-1],)
    case = partial(Case, "histogram", "histogram")
    few, many = scale.bins[1], scale.bins[-1 if len(scale.bins) < 6 else 5]
    for n in scale.sizes[:-1]:
        for bins in (few, many):
            if bins <= n:
                yield case("float32", (n,), bins=bins)
    for bins in scale.bins:
        yield case("float32", largest, bins=bins)
    for bins in scale.bins[1:8]:
        yield case("float32", largest, "constant", bins=bins)
    for data in ("normal", "sorted"):
        for bins in (few, many):
            yield case("float32", largest, data, bins=bins)
    for dtype in DTYPES[1:]:
        for bins in (few, many):
            yield case(dtype, largest, bins=bins)
    yield Case("histogram", "weighted histogram", "float32", largest, bins=2048, arrays=2)


def bins_of(case: Case) -> Bins:
    """Return NumPy's bins of the case."""
    return find_bins(case.bins, case.limits, np.dtype(case.dtype))


def ours(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return the histogram of a chunk, with the allocation of its table."""
    bins = bins_of(case)
    weight = np.dtype(case.dtype if case.arrays > 1 else "i8")
    op = bind(monoids.COUNTS, weight, weight, "histogram")
    backend = contenders.ours("histogram_strategies")
    if not contenders.gpu:
        return lambda x, weights=None: backend.histogram(op, [x], Grid((bins,)), weights)
    count, zeros = backend.count, contenders.cupy.zeros
    (total,) = op.monoid.dtypes(op.element)

    def call(x: Array, weights: Array | None = None) -> Array:
        table = zeros(bins.n, total)
        count(x, weights, bins, table)
        return table

    return call


def like_numpy(library: str) -> Maker:
    """Return a maker of the histogram of NumPy, or of CuPy."""

    def make(contenders: Any, case: Case) -> Callable[..., Any]:
        function = getattr(contenders, library).histogram
        return lambda x, weights=None: function(x, case.bins, case.limits, weights=weights)[0]

    return make


def torch(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return PyTorch's histogram, which counts in the dtype of the samples."""
    low, high = case.limits
    return partial(contenders.torch.histc, bins=case.bins, min=low, max=high)


def dask(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return Dask's histogram, computed."""
    function = contenders.da.histogram
    return lambda x, weights=None: function(x, case.bins, case.limits, weights=weights)[0].compute()


def cub(contenders: Any, case: Case) -> Callable[..., Any]:
    """Return CUB's histogram, whose last bin is open on the right."""
    if case.bins > CUB_BINS:
        raise ImportError(f"CUB 3.0 writes out of bounds beyond {CUB_BINS:,} bins")
    out = contenders.cupy.empty(case.bins, "i4")
    low, high = map(float, case.limits)
    run: Callable[..., Any] = contenders.cub("histogram", case, out, case.bins, low, high)
    return run


_WEIGHTED: dict[str, Maker] = {
    "dask_coop": ours,
    "CuPy": like_numpy("cupy"),
    "NumPy": like_numpy("numpy"),
    "Dask": dask,
}
CONTENDERS: dict[str, dict[str, Maker]] = {
    "histogram": {**_WEIGHTED, "PyTorch": torch, "CUB": cub},
    "weighted histogram": _WEIGHTED,
}


def reference(case: Case, xp: Any, x: Array, weights: Array | None = None) -> tuple[Array]:
    """Return the histogram by NumPy's rule: search every sample among the edges."""
    edges = xp.asarray(bins_of(case).edges)
    table = xp.zeros(case.bins, "f8" if weights is not None else "i8")
    step = case.size if case.data == "constant" else PART
    for at in range(0, case.size, step):
        part = x[at : at + (1 if case.data == "constant" else step)]
        inside = (part >= edges[0]) & (part <= edges[-1])
        index = xp.searchsorted(edges, part[inside].astype(edges.dtype), "right") - 1
        index = xp.minimum(index, case.bins - 1)
        more = weights[at : at + step][inside].astype("f8") if weights is not None else None
        table += xp.bincount(index, more, minlength=case.bins)
    return (table * (case.size if case.data == "constant" else 1),)


def distance(
    case: Case, strict: bool, got: tuple[Array], want: tuple[Array], *inputs: Array
) -> float:
    """Return the error of the table; contenders have their own rules for samples on an edge."""
    (table,), (expected,) = got, want
    if case.arrays > 1:
        return apart(case, strict, table, expected)
    if table.shape != expected.shape:
        return inf
    strays = float(abs(table.astype("f8") - expected).sum())
    return strays if strict else strays / (STRAYS * case.size)
