"""xarray-histogram's histograms, with ours in their place: the same results."""

from __future__ import annotations

from typing import Any

import boost_histogram as bh
import dask.array as da
import numpy as np
import pytest

import dask_coop as dc

xr: Any = pytest.importorskip("xarray")
core: Any = pytest.importorskip("xarray_histogram.core")

RNG = np.random.default_rng(4)
X = xr.DataArray(
    da.from_array(RNG.normal(size=(20, 6)), chunks=(7, 4)),
    {"t": np.arange(20), "height": 2.0},
    ("t", "y"),
    "t2m",
    {"units": "K"},
)
WHOLE = (X * 3).astype("i4").rename("n")
WEIGHTS = abs(X).isel(t=0, drop=True).rename("w")
AXIS = bh.axis.Regular(5, -2, 2)

CALLS = {
    "an axis": lambda: core.histogram(X, AXIS),
    "a number": lambda: core.histogram(X, 7, (-1, 1)),
    "weights and density": lambda: core.histogram(X, AXIS, weights=WEIGHTS, density=True),
    "flow": lambda: core.histogram(X, AXIS, flow=True),
    "integers": lambda: core.histogram(WHOLE, bh.axis.Integer(-2, 3), storage=bh.storage.Int64()),
    "categories": lambda: core.histogram(WHOLE, bh.axis.IntCategory([2, 0]), flow=True),
    "circular": lambda: core.histogram(X, bh.axis.Regular(3, 0, 1, circular=True)),
    "two": lambda: core.histogram2d(X, WHOLE, bins=[AXIS, bh.axis.Integer(0, 3)]),
    "three": lambda: core.histogramdd(X, X.rename("u"), WHOLE, bins=[AXIS, AXIS, AXIS], flow=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_xarray_histogram(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CALLS[name]()
    expected = plain.compute()

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("xarray-histogram counted")

    for own in ("_blocked_dd", "_blocked_dd_loop"):
        monkeypatch.setattr(core, own, fail)
    with dc.installed():
        lazy = CALLS[name]()
    assert lazy.dtype == plain.dtype
    found = lazy.compute()
    xr.testing.assert_allclose(found, expected, rtol=1e-12)
    assert (found.name, found.dtype, found.attrs) == (expected.name, expected.dtype, expected.attrs)
    for coord in expected.coords:
        xr.testing.assert_identical(found[coord], expected[coord])


def test_histograms_along_some_dimensions_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Any] = []
    before = core._blocked_dd_loop
    monkeypatch.setattr(
        core, "_blocked_dd_loop", lambda *a, **k: reached.append(a) or before(*a, **k)
    )
    with dc.installed():
        counts = core._histogram_dask(
            X.data.rechunk((-1, 6)),
            axis_loop=[1],
            axis_agg=[0],
            weight=False,
            flow=False,
            histref=bh.Histogram(AXIS),
        )
        counts.compute()
    assert reached
    assert "hist-on-block" in str(counts.dask.layers)
