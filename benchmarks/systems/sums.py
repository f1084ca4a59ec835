"""Sums of weights by bin, and of exponentials: ``python -m benchmarks.systems.sums``, on a GPU.

Histograms of float32 samples with float32 weights and logcumsumexp of one large chunk, timed
between two events. Only chunk functions run, beside CuPy and PyTorch and a plain read or copy of
the same bytes. Every result is compared with sums in float64 before its time is recorded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import collective
from .order import CUPY, OURS, TORCH, Call, Gpu, Row, facts

RESULTS = Path(__file__).resolve().parents[1] / "results" / "windows"

#: The samples' distributions, and the numbers of bins.
SAMPLES, BINS = ("uniform", "all equal", "half equal"), (256, 2048, 65_536)


def on_gpu(n: int, samples: int) -> Iterator[Row]:
    """Measure everything, with arrays of `n` elements."""
    gpu = Gpu(samples)
    yield from histograms(gpu, n)
    gpu.free()
    for dtype, size in (("f4", n), ("f8", n // 2)):
        yield from logarithms(gpu, dtype, size)
        gpu.free()


def histograms(gpu: Gpu, n: int) -> Iterator[Row]:
    """Measure sums of weights by bin."""
    xp, size = gpu.xp, f"2^{n.bit_length() - 1} float32"
    rng = xp.random.default_rng(0)
    x, w = rng.random(n, dtype="f4"), rng.random(n, dtype="f4")
    work = f"read of {size} samples and weights"
    yield timed(gpu, 8 * n, work, CUPY, lambda: (x.max(), w.max()))
    for kind in SAMPLES:
        if kind == "all equal":
            x[:] = 0.3
        elif kind == "half equal":
            x = xp.where(rng.random(n, dtype="f4") < 0.5, xp.float32(0.3), w[::-1])
        for bins in BINS:
            work = f"histogram of {size} with weights, {bins:,} bins, {kind}"
            expected = by_parts(xp, x, w, bins)
            check = partial(near, xp, expected)
            yield timed(gpu, 8 * n, work, OURS, ours(x, w, bins), check)
            gpu.free()
    part = n // 16
    for bins in BINS:
        work = f"histogram of 2^{part.bit_length() - 1} float32 with weights, {bins:,} bins"
        yield timed(gpu, 8 * part, work, OURS, ours(x[:part], w[:part], bins))
        call = partial(xp.histogram, x[:part], bins, (0, 1), weights=w[:part])
        yield timed(gpu, 8 * part, work, CUPY, call)


def ours(x: Any, w: Any, bins: int) -> Call:
    """Return a call of the chunk function that sums weights."""
    import cupy

    from dask_coop.algebra.bins import find_bins
    from dask_coop.chunks.cupy.histogram_strategies import count

    edges = find_bins(bins, (0, 1), x.dtype)

    def call() -> Any:
        table = cupy.zeros(bins)
        count(x, w, edges, table)
        return table

    return call


def by_parts(xp: Any, x: Any, w: Any, bins: int) -> Any:
    """Return the sums of weights in float64, by CuPy's bincount of parts."""
    total = xp.zeros(bins)
    for begin in range(0, x.size, 1 << 26):
        at = xp.minimum(x[begin : begin + (1 << 26)] * xp.float32(bins), bins - 1).astype("i4")
        total += xp.bincount(at, w[begin : begin + (1 << 26)].astype("f8"), minlength=bins)
    return total


def near(xp: Any, expected: Any, result: Any) -> bool:
    """Return whether two tables agree up to rounding errors of float64."""
    return bool(xp.allclose(result, expected, rtol=1e-12))


def logarithms(gpu: Gpu, dtype: str, n: int) -> Iterator[Row]:
    """Measure logcumsumexp."""
    from dask_coop.algebra.monoids import LOGADDEXP
    from dask_coop.algebra.operation import bind
    from dask_coop.chunks.cupy.scan import scan_lines

    xp, name = gpu.xp, np.dtype(dtype).name
    op = bind(LOGADDEXP, np.dtype(dtype), np.dtype(dtype), "scan")
    x = xp.random.default_rng(1).standard_normal(n, dtype=dtype)
    nbytes, what = 2 * x.nbytes, f"of 2^{n.bit_length() - 1} {name}"
    y = xp.empty_like(x)
    yield timed(gpu, nbytes, f"copy {what}", CUPY, partial(xp.copyto, y, x))

    def call() -> Any:
        scan_lines(op, x, y, None, (1, n, 1))
        return y

    check = partial(ends_well, xp, x)
    yield timed(gpu, nbytes, f"logcumsumexp {what}", OURS, call, check)
    try:
        import torch
    except ImportError:
        return
    t = torch.as_tensor(x, device="cuda")
    yield timed(gpu, nbytes, f"logcumsumexp {what}", TORCH, lambda: torch.logcumsumexp(t, 0))


def ends_well(xp: Any, x: Any, result: Any) -> bool:
    """Return whether a scan begins as NumPy's and ends with the logarithm of all."""
    few = 1 << 16
    first = np.logaddexp.accumulate(xp.asnumpy(x[:few]).astype("f8"))
    total = sum(xp.exp(part.astype("f8")).sum() for part in xp.array_split(x, 64))
    # NumPy, too, adds one element after the other.
    bound = max(4 * float(np.finfo(x.dtype).eps), 1e-11)
    same = np.allclose(xp.asnumpy(result[:few]), first, rtol=bound, atol=bound)
    return same and bool(abs(result[-1] - xp.log(total)) <= bound * abs(result[-1]))


def timed(gpu: Gpu, nbytes: int, work: str, by: str, call: Call, check: Any = None) -> Row:
    """Return a row that also has the rate at which so many bytes were moved."""
    row = gpu.row(work, by, call, check)
    if "ms" in row:
        row["GB/s"] = nbytes / row["ms"] / 1e6
    return row


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--power", type=int, default=30, help="arrays have 2**POWER elements")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    rows = on_gpu(1 << options.power, options.samples)
    collective.keep(facts(True), rows, options.results / "sums.json")


if __name__ == "__main__":
    main()
