"""Matrix products over semirings, of square matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .cases import Array, Case, Maker, Scale, apart

#: Work, dtype, and the instruction slots of one step: an addition and a minimum at half rate, an
#: integer multiply-add at half rate, and a multiply-add.
WORKS = (("min_plus", "float32", 2), ("plus_times", "int32", 2), ("plus_times", "float32", 1))

#: The number of rows of the result that are compared with the reference.
ROWS = 16


def cases(scale: Scale) -> Iterator[Case]:
    """Yield the cases."""
    n = scale.product
    for work, dtype, slots in WORKS:
        yield Case("matmul", work, dtype, (n, n), arrays=2, slots=slots * n**3)


def ours(contenders: Any, case: Case) -> Callable[[Array, Array], Array]:
    """Return the product of two chunks, by a kernel even where the library would be used."""
    function = contenders.ours("matmul").matmul
    options = {"strategy": "tiles"} if contenders.gpu and case.dtype == "float32" else {}
    return lambda a, b: function(a, b, case.work, **options)


def numpy_min_plus(contenders: Any, case: Case) -> Callable[[Array, Array], Array]:
    """Return the product by broadcasting, a row at a time."""
    return lambda a, b: contenders.numpy.stack([(row[:, None] + b).min(0) for row in a])


CONTENDERS: dict[str, dict[str, Maker]] = {
    "min_plus": {"dask_coop": ours, "NumPy": numpy_min_plus},
    "plus_times": {
        "dask_coop": ours,
        "CuPy": lambda p, c: p.cupy.matmul,
        "PyTorch": lambda p, c: p.torch.matmul,
        "NumPy": lambda p, c: p.numpy.matmul,
    },
}


def rows(case: Case) -> Any:
    """Return the rows that are compared."""
    return np.unique(np.linspace(0, case.shape[0] - 1, ROWS).astype(int))


def reference(case: Case, xp: Any, a: Array, b: Array) -> tuple[Array]:
    """Return these rows in float64, or exact."""
    wide = "i8" if a.dtype.kind == "i" else "f8"
    a, b = a[xp.asarray(rows(case))].astype(wide), b.astype(wide)
    if case.work == "plus_times":
        # A broadcast product, because some CuPy lack a library for float64.
        return (xp.stack([(row[:, None] * b).sum(0) for row in a]),)
    return (xp.stack([(row[:, None] + b).min(0) for row in a]),)


def distance(
    case: Case, strict: bool, got: tuple[Array], want: tuple[Array], *inputs: Array
) -> float:
    """Return the error of the worst element of those rows."""
    # This library, too, adds floats in their own dtype.
    strict &= case.work != "plus_times"
    return apart(case, strict, got[0][rows(case)], want[0])
