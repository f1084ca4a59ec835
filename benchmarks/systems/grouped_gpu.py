"""Reductions by group of one chunk, as `benchmarks.systems.grouped` measures them on a GPU.

Only the chunk function is timed, beside CuPy and PyTorch, between two events. Every result is
compared with a peer's, or with sums of parts, before its time is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dask_coop.algebra.monoids import ARGMAX, COUNT, MAX, MEAN, SUM, VAR, MonoidRow
from dask_coop.algebra.operation import Operation, bind

from .order import CUPY, OURS, TORCH, Call, Gpu, Row

FLOAT = np.dtype("f4")


def operation(monoid: MonoidRow) -> Operation:
    """Return an operation on float32."""
    return bind(monoid, FLOAT, monoid.output(FLOAT), monoid.name)


def timed(gpu: Gpu, nbytes: int, work: str, by: str, call: Call, check: Any = None) -> Row:
    """Return a row that also has the rate at which the bytes of the input were read."""
    row = gpu.row(work, by, call, check)
    if "ms" in row:
        row["GB/s"] = nbytes / row["ms"] / 1e6
    return row


def ours(x: Any, codes: Any, n: int, *monoids: MonoidRow) -> Callable[[], Any]:
    """Return a call of the chunk function."""
    from dask_coop.chunks.cupy.grouped import lift_groups

    return partial(lift_groups, [operation(m) for m in monoids], x, codes, n)


def columns(gpu: Gpu, hours: int, space: int, torch: Any) -> Iterator[Row]:
    """Measure means over time of columns, by month, day of the year and day."""
    xp = gpu.xp
    x = xp.random.default_rng(0).random((hours, space), dtype="f4")
    shape = f"{hours} x {space} float32"
    one = lambda: x.sum(0)  # noqa: E731
    work = f"one read of {shape}"
    yield timed(gpu, x.nbytes, work, "dask_coop's sum", ours(x.T, xp.zeros(hours, "i4"), 1, SUM))
    yield timed(gpu, x.nbytes, work, CUPY, one)
    hour = np.arange(hours)
    labels = {
        "12 months": (hour * 12 // hours, 12),
        "366 days of the year": (hour // 24 % 366, 366),
        f"{hours // 24} days": (hour // 24, hours // 24),
        "24 hours of the day": (hour % 24, 24),
        "100 groups at random": (np.random.default_rng(0).integers(0, 100, hours), 100),
    }
    t = None if torch is None else torch.as_tensor(x, device="cuda")
    for name, (codes, n) in labels.items():
        known = xp.asarray(codes.astype("i4"))
        work = f"{shape} to {name}: mean"

        def right(result: Any, codes: Any = codes, n: int = n) -> bool:
            total, counts = (xp.asarray(field) for field in result[0])
            for group in (0, n // 2, n - 1):
                rows = xp.asarray(np.flatnonzero(codes == group))
                wanted = x[rows].astype("f8").sum(0) if len(rows) else xp.zeros(space)
                close = xp.allclose(total[:, group], wanted, rtol=1e-12)
                if not (close and int(counts[0, group]) == len(rows)):
                    return False
            return True

        yield timed(gpu, x.nbytes, work, OURS, ours(x.T, known, n, MEAN), right)
        call = ours(x.T, known, n, MEAN, VAR, MAX)
        yield timed(gpu, x.nbytes, f"{shape} to {name}: mean, std and max", OURS, call, right)
        if t is not None and name != "100 groups at random":
            index = torch.as_tensor(codes, device="cuda")
            out = torch.zeros((n, space), device="cuda")
            yield timed(gpu, x.nbytes, work, TORCH, partial(out.index_add_, 0, index, t))
            del index, out
    t = x = None
    gpu.free()
    x = xp.random.default_rng(1).random((space, hours), dtype="f4")
    for name in ("12 months", f"{hours // 24} days", "24 hours of the day"):
        codes, n = labels[name]
        known = xp.asarray(codes.astype("i4"))
        work = f"{space} x {hours} float32, contiguous in time, to {name}: mean"

        def even(result: Any, codes: Any = codes, n: int = n) -> bool:
            total = xp.asarray(result[0][0])
            rows = xp.asarray(np.flatnonzero(codes == n - 1))
            wanted = x[:1000][:, rows].astype("f8").sum(1)
            return bool(xp.allclose(total[:1000, n - 1], wanted, rtol=1e-12))

        yield timed(gpu, x.nbytes, work, OURS, ours(x, known, n, MEAN), even)


def zones(gpu: Gpu, size: int, torch: Any) -> Iterator[Row]:
    """Measure statistics with a label for each element, uniform and uneven."""
    xp = gpu.xp
    rng = xp.random.default_rng(2)
    x = rng.random(size, dtype="f4")
    power = f"2^{size.bit_length() - 1}"
    t = None if torch is None else torch.as_tensor(x, device="cuda")
    for skew in (False, True):
        for n in (12, 1000, 100_000, 10_000_000):
            codes = rng.integers(0, n, size, dtype="i4")
            if skew:
                codes[rng.random(size, dtype="f4") < 0.5] = n // 2
            nbytes = x.nbytes + codes.nbytes
            name = f"{power} float32 to {n} groups" + ", half of all in one" * skew
            wanted = xp.bincount(codes, x, n)
            sizes = xp.bincount(codes, minlength=n)

            def right(result: Any, wanted: Any = wanted) -> bool:
                return bool(xp.allclose(xp.asarray(result[0][0]), wanted, rtol=1e-4))

            def counted(result: Any, sizes: Any = sizes) -> bool:
                return bool((xp.asarray(result[0][0]) == sizes).all())

            def extreme(result: Any, n: int = n, codes: Any = codes) -> bool:
                found = xp.full(n, -xp.inf, "f4")
                xp.maximum.at(found, codes[: size // 16], x[: size // 16])
                return bool((xp.asarray(result[0][0]) >= found).all())

            yield timed(gpu, nbytes, f"{name}: sum", OURS, ours(x, codes, n, SUM), right)
            yield timed(gpu, nbytes, f"{name}: mean", OURS, ours(x, codes, n, MEAN), right)
            yield timed(gpu, nbytes, f"{name}: count", OURS, ours(x, codes, n, COUNT), counted)
            call = ours(x, codes, n, MAX)
            yield timed(gpu, nbytes, f"{name}: max", OURS, call, extreme)
            for monoid in (VAR, ARGMAX) if not skew else ():
                work = f"{name}: {monoid.name}"
                yield timed(gpu, nbytes, work, OURS, ours(x, codes, n, monoid))
            work = f"{name}: sum"
            call = partial(xp.bincount, codes, x, n)
            if not skew:
                yield timed(gpu, nbytes, work, f"{CUPY} bincount", call)
            if t is not None and not skew:
                index = torch.as_tensor(codes, device="cuda").long()
                out = torch.zeros(n, device="cuda")
                call = partial(out.index_add_, 0, index, t)
                yield timed(gpu, nbytes, work, f"{TORCH} index_add", call)
                call = partial(out.scatter_reduce_, 0, index, t, "amax")
                yield timed(gpu, nbytes, f"{name}: max", f"{TORCH} scatter_reduce", call)
                del index, out
            del codes, wanted, sizes, right, counted, extreme, call
            gpu.free()


def on_gpu(samples: int) -> Iterator[Row]:
    """Measure everything: hours of 2**17 places, and 2**29 elements with labels of their own."""
    gpu = Gpu(samples)
    try:
        import torch
    except ImportError:
        torch = None
    yield from columns(gpu, 8760, 1 << 17, torch)
    gpu.free()
    yield from zones(gpu, 1 << 29, torch)
