"""Series with gaps on a GPU: ``python -m benchmarks.systems.fills``.

Filled gaps, exponentially weighted means and integrals of one large array in one chunk, beside a
copy of the array and functions of CuPy and PyTorch. Every result is compared with another's before
its time, that between two events, is recorded.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from dask_coop.algebra.fills import fill, weighted_mean
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.graph import tasks

from . import collective
from .order import CUPY, OURS, TORCH, Gpu, Row, facts, whole

RESULTS = Path(__file__).resolve().parents[1] / "results" / "windows"


def on_gpu(n: int, samples: int) -> Iterator[Row]:
    """Measure everything, with arrays of `n` elements."""
    import dask_coop as dc

    gpu = Gpu(samples)
    xp = gpu.xp
    side = 1 << (n.bit_length() - 1) // 2
    for shape, axis in (((n // side, side), 1), ((n // side, side), 0), ((n,), 0)):
        x = xp.random.default_rng(0).standard_normal(shape, dtype="f4")
        x[xp.random.default_rng(1).random(shape, dtype="f4") < 0.2] = xp.nan
        what = f"of {' x '.join(map(str, shape))} float32 along axis {axis}"
        y = xp.empty_like(x)
        yield gpu.row(f"copy {what}", CUPY, partial(xp.copyto, y, x), None)
        del y
        filled = by_indices(xp, x, axis)
        fits, scan = partial(_same, xp, filled), partial(scanned, x, axis)
        alpha = 2 / 21
        calls: list[tuple[str, Any, Any]] = [
            ("ffill", partial(scan, fill(None)), fits),
            ("ffill, limit 5,", partial(scan, fill(5)), None),
            ("bfill", partial(scan, fill(None), reverse=True), None),
            ("ewm_mean", partial(scan, weighted_mean(alpha, True, False)), None),
            ("ewm_mean, not adjusted,", partial(scan, weighted_mean(alpha, False, False)), None),
        ]
        for name, call, check in calls:
            yield gpu.row(f"{name} {what}", OURS, call, check)
        integral = dc.cumulative_trapezoid(whole(x), axis=axis)
        run = partial(integral.compute, scheduler="synchronous")
        yield gpu.row(f"cumulative_trapezoid {what}, from the call", OURS, run, None)
        del filled, fits, scan, calls, call, check, integral, run
        gpu.free()
        yield gpu.row(f"ffill {what}", CUPY, partial(by_indices, xp, x, axis), None)
        yield from by_torch(gpu, x, axis, what)
        del x


def scanned(x: Any, axis: int, monoid: Any, reverse: bool = False) -> Any:
    """Return the scan of an array, by the function that the task of a single chunk calls."""
    op, spec = Operation(monoid, x.dtype, x.dtype), ScanSpec(axis, reverse=reverse)
    return tasks.downsweep(op=op, spec=spec, block=x)


def by_indices(xp: Any, x: Any, axis: int) -> Any:
    """Return `x` with its gaps filled, in the way of a library without such a function.

    The last valid index before an element is a running maximum, which CuPy lacks: this uses sums.
    """
    valid = ~xp.isnan(x)
    # The valid elements of all lines, one after the other; an element's count of them is the index.
    lines = xp.moveaxis(x, axis, -1)
    counts = xp.cumsum(xp.moveaxis(valid, axis, -1), -1, dtype="i4")
    ends = xp.cumsum(counts[..., -1].ravel(), dtype="i8")
    begins = (ends - counts[..., -1].ravel()).reshape(counts.shape[:-1])
    values = lines[xp.moveaxis(valid, axis, -1)]
    found = values[xp.maximum(begins[..., None] + counts - 1, 0)]
    found[counts == 0] = xp.nan
    return xp.moveaxis(found, -1, axis)


def by_torch(gpu: Gpu, x: Any, axis: int, what: str) -> Iterator[Row]:
    """Measure PyTorch, by the running maximum of valid indices."""
    try:
        import torch
    except ImportError:
        return
    t = torch.as_tensor(x, device="cuda")
    along = torch.arange(t.shape[axis], device="cuda", dtype=torch.int32)
    along = along.reshape([-1 if d == axis else 1 for d in range(t.ndim)])

    def call() -> Any:
        at = torch.where(torch.isnan(t), 0, along).cummax(axis).values
        return torch.gather(t, axis, at.long())

    yield gpu.row(f"ffill {what}", TORCH, call, None)


def _same(xp: Any, expected: Any, result: Any) -> bool:
    return bool(xp.array_equal(result, expected, equal_nan=True))


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--power", type=int, default=30, help="arrays have 2**POWER elements")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the results")
    options = parser.parse_args()
    rows = on_gpu(1 << options.power, options.samples)
    collective.keep(facts(True), rows, options.results / "fills.json")


if __name__ == "__main__":
    main()
