"""The semirings of matrix products: their operations in place of plus and times.

A row of the table names two ufuncs, which work alike on NumPy and CuPy arrays, so that one
definition serves NumPy chunks, sums across chunks and the dtype rules::

    c[i, j] = plus over l of times(a[i, l], b[l, j])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_coop.errors import Refused, remedy


@dataclass(frozen=True)
class Semiring:
    """A row of the table below.

    Attributes
    ----------
    name : str
    plus, times : numpy.ufunc
        Both take and return elements of the dtype that `dtype` gives.
    kinds : str
        The kinds of supported dtypes.
    """

    name: str
    plus: np.ufunc
    times: np.ufunc
    kinds: str = "biuf"

    def dtype(self, *operands: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of products of operands of some dtypes, by NumPy's promotion.

        Raises
        ------
        Refused
            If the semiring is not defined for that dtype.
        """
        dtype = np.result_type(*operands)
        if dtype.kind not in self.kinds:
            raise Refused(
                f"{self.name} is not defined for dtype {dtype}, the common dtype of a and b; "
                f"{remedy(dtype, self.kinds)}"
            )
        return np.dtype("?") if self.plus is np.logical_or else dtype

    def zero(self, dtype: np.dtype[Any]) -> Any:
        """Return the neutral element of `plus`: the product of matrices of inner length 0."""
        if self.plus in (np.add, np.logical_or):
            return dtype.type(0)
        greatest = self.plus is np.minimum
        if dtype.kind == "b":
            return np.bool_(greatest)
        if dtype.kind == "f":
            return dtype.type(np.inf if greatest else -np.inf)
        return dtype.type(np.iinfo(dtype).max if greatest else np.iinfo(dtype).min)


PLUS_TIMES = Semiring("plus_times", np.add, np.multiply, "biufc")
MIN_PLUS = Semiring("min_plus", np.minimum, np.add)
MAX_PLUS = Semiring("max_plus", np.maximum, np.add)
MAX_MIN = Semiring("max_min", np.maximum, np.minimum)
OR_AND = Semiring("or_and", np.logical_or, np.logical_and)

SEMIRINGS = {
    semiring.name: semiring for semiring in (PLUS_TIMES, MIN_PLUS, MAX_PLUS, MAX_MIN, OR_AND)
}
