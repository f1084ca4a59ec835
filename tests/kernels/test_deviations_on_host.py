"""The kernel of covariances, compiled for the host, beside NumPy's products."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from support import host_kernels

pytestmark = pytest.mark.skipif(host_kernels.COMPILER is None, reason="there is no compiler of C++")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the library of the kernel."""
    return host_kernels.build(tmp_path_factory.mktemp("deviations"), "deviations")


def variables(x: Any, shifts: Any) -> list[Any]:
    """Return the arguments that tell the kernel of a matrix."""
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (x, shifts)]
    strides = (stride // x.itemsize for stride in x.strides)
    return [*addresses, *map(ctypes.c_longlong, (len(x), *strides))]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("m", "p"), [(3, 0), (66, 0), (3, 65)], ids=str)
def test_sums_of_products_are_numpys(library: Any, m: int, p: int, order: Any) -> None:
    rng = np.random.default_rng(0)
    # Multiples of 1/16, whose products and sums are exact.
    x, y = (np.asarray(rng.integers(-99, 99, (k, 70)) / 16, "f4", order=order) for k in (m, p))
    y = y if p else x
    of_x, of_y = (np.round(a.mean(1).astype("f8")) for a in (x, y))
    spans = 2
    products = np.full((spans, len(x), len(y)), np.nan)
    sums = [np.full((spans, len(a)), np.nan) for a in (x, y)]
    numbers = int(not p), *map(ctypes.c_longlong, (x.shape[1], spans))
    results = (ctypes.c_void_p(a.ctypes.data) for a in (products, *sums))
    library.deviations_of_floats(*variables(x, of_x), *variables(y, of_y), *numbers, *results)
    d, e = x - of_x[:, None], y - of_y[:, None]
    np.testing.assert_array_equal(products.sum(0), d @ e.T)
    np.testing.assert_array_equal(sums[0].sum(0), d.sum(1))
    np.testing.assert_array_equal(sums[1].sum(0), e.sum(1))
