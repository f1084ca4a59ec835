"""The kernel of order statistics of windows, compiled for the host, beside NumPy's steps."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from support import host_kernels

from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps
from dask_coop.cuda.programs import window as programs

pytestmark = pytest.mark.skipif(host_kernels.COMPILER is None, reason="there is no compiler of C++")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the library of the kernel."""
    return host_kernels.build(tmp_path_factory.mktemp("order"), "window_order")


def by_kernel(library: Any, functor: str, window: Window, x: Any, halo: Any) -> Any:
    function = library.order_of_floats if x.dtype == "f4" else library.order_of_doubles
    y, (lines, n) = np.full_like(x, 77), x.shape
    x, halo = (np.ascontiguousarray(a) for a in (x, halo))
    addresses = (ctypes.c_void_p(a.ctypes.data) for a in (x, halo, y))
    sizes = ctypes.c_longlong(lines), ctypes.c_longlong(n), halo.shape[1]
    q = ctypes.c_double(-1 if window.q is None else window.q)
    spec = window.length, window.min_count, int(window.first), q
    assert function(functor.encode(), *addresses, *sizes, *spec) == 0
    return y


def data(kind: str, dtype: str, n: int) -> Any:
    rng, steps = np.random.default_rng(3), np.arange(float(n))
    x = {
        "random": rng.standard_normal((3, n)),
        "few values": rng.integers(-2, 3, (3, n)),
        "ramps apart": np.where(steps % 2, steps, -steps)[None],
        "rising": np.stack([steps, -steps]),
        "infinite": rng.choice([-np.inf, np.inf, 0.0, -0.0, 1.5], (3, n)),
    }[kind].astype(dtype)
    x[rng.random(x.shape) < (0.15 if kind in ("random", "infinite") else 0)] = np.nan
    x[:, n // 2 : n // 2 + 40] = x[:, n // 2 : n // 2 + 40] * np.nan
    return x


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["random", "few values", "ramps apart", "rising", "infinite"])
def test_the_kernel_has_the_results_of_numpys_steps(library: Any, kind: str, dtype: str) -> None:
    whole = data(kind, dtype, 330)
    for length in (1, 2, 9, 16, 17, 31, 32, 33, 64, 65, 120):
        for least in {1, (length + 1) // 2, length}:
            for statistic in ("median", 0.0, 0.3, 1.0, "rank", "argmin", "argmax"):
                name = statistic if isinstance(statistic, str) else "quantile"
                q = None if isinstance(statistic, str) else statistic
                window = Window(name, 1, length, least, q=q, first=length % 2 == 0)
                cut = min(length - 1, 40)
                x, halo = whole[:, cut:], whole[:, :cut]
                expected = window_steps.move_ordered(window, x, halo, 1 << 16)
                usual = programs.order_functor(name, x.dtype, length)
                rooms = ("Sorted<T, 64>", "Quantile<T>") if length <= 64 else ()
                others = [f"Window{room}" for room in rooms if usual.startswith("WindowS")]
                for functor in (usual, *others):
                    found = by_kernel(library, functor, window, x, halo)
                    np.testing.assert_array_equal(found, expected, f"{functor} {window}")
