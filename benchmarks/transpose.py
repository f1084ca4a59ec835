"""The transposed copy of a square array."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from .cases import Array, Case, Maker, Scale


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""
    for dtype, itemsize in (("float32", 4), ("float64", 8)):
        shape = (scale.side, scale.side)
        written = scale.side**2 * itemsize
        yield Case("transpose", "transposed copy", dtype, shape, written=written)


def ours(contenders: Any, case: Case) -> Callable[[Array], Array]:
    """Return the transposed copy of a chunk."""
    function = contenders.ours("transpose").transpose
    return lambda x: function(x, (1, 0))


CONTENDERS: dict[str, dict[str, Maker]] = {
    "transposed copy": {
        "dask_coop": ours,
        "CuPy": lambda p, c: lambda x: p.cupy.ascontiguousarray(x.T),
        "PyTorch": lambda p, c: lambda x: x.t().contiguous(),
        "NumPy": lambda p, c: lambda x: p.numpy.ascontiguousarray(x.T),
    }
}


def reference(case: Case, xp: Any, x: Array) -> tuple[Array]:
    """Return the transposed view."""
    return (x.T,)


def distance(case: Case, strict: bool, got: tuple[Array], want: tuple[Array], x: Array) -> float:
    """Return 0 for a right copy in C order."""
    (copy,) = got
    dense = copy.flags.c_contiguous and copy.shape == x.T.shape
    return 0.0 if dense and bool((copy == want[0]).all()) else inf
