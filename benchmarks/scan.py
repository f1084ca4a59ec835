"""Inclusive scans, from the input's dtype to the same: of one line, of columns and of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dask_coop.algebra import monoids
from dask_coop.algebra.operation import bind
from dask_coop.algebra.scan_spec import ScanSpec

from .cases import DATA, DTYPES, Array, Case, Maker, Scale, apart


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""

    def case(work: str, dtype: str, shape: tuple[int, ...], **more: Any) -> Case:
        written = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return Case("scan", work, dtype, shape, written=written, **more)

    for dtype in DTYPES:
        for n in scale.sizes:
            yield case("scan", dtype, (n,))
    for data in DATA[1:]:
        yield case("scan", "float32", (scale.sizes[-1],), data=data)
    for axis in (0, 1):
        yield case(f"cumsum axis {axis}", "float32", (scale.side,) * 2, axis=axis)


def ours(contenders: Any, case: Case) -> Callable[[Array], Array]:
    """Return the scan of a chunk."""
    dtype = np.dtype(case.dtype)
    op = bind(monoids.SUM, dtype, dtype, "scan")
    backend = contenders.ours("scan")
    if not contenders.gpu:
        return lambda x: backend.scan(op, x, ScanSpec(case.axis or 0))
    scan_lines, lines, empty = backend.scan_lines, case.lines, contenders.cupy.empty

    def call(x: Array) -> Array:
        y = empty(x.shape, x.dtype)
        scan_lines(op, x, y, None, lines)
        return y

    return call


def cub(contenders: Any, case: Case) -> Callable[[Array], Array]:
    """Return CUB's scan into one output."""
    run: Callable[[Array], Array] = contenders.cub(
        "scan", case, contenders.cupy.empty(case.size, case.dtype)
    )
    return run


def dask(contenders: Any, case: Case) -> Callable[[Array], Array]:
    """Return Dask's scan, computed."""
    return lambda x: contenders.da.cumsum(x, axis=case.axis or 0, dtype=case.dtype).compute()


_ALL: dict[str, Maker] = {
    "dask_coop": ours,
    "CuPy": lambda p, c: partial(p.cupy.cumsum, axis=c.axis, dtype=c.dtype),
    "PyTorch": lambda p, c: partial(
        p.torch.cumsum, dim=c.axis or 0, dtype=getattr(p.torch, c.dtype)
    ),
    "NumPy": lambda p, c: partial(p.numpy.cumsum, axis=c.axis, dtype=c.dtype),
    "Dask": dask,
}
CONTENDERS: dict[str, dict[str, Maker]] = {
    "scan": {**_ALL, "CUB": cub},
    "cumsum axis 0": _ALL,
    "cumsum axis 1": _ALL,
}


def reference(case: Case, xp: Any, x: Array) -> tuple[Array]:
    """Return the scan in float64, or exact."""
    return (xp.cumsum(x, axis=case.axis, dtype="i8" if x.dtype.kind == "i" else "f8"),)


def distance(case: Case, strict: bool, got: tuple[Array], want: tuple[Array], x: Array) -> float:
    """Return the error of the worst element."""
    return apart(case, strict, got[0], want[0])
