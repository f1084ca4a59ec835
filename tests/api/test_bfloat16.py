"""Chunks of bfloat16: reductions and scans are those of float32, the rest is Dask's or refused."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.base import key_split
from support.calls import refuse

import dask_coop as dc

bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)

REDUCTIONS = ["sum", "prod", "min", "max", "mean", "var", "std", "ptp", "norm"]
NAN = ["nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar", "nanstd"]
SCANS = ["cumsum", "cumprod", "nancumsum", "nancumprod"]
OTHERS = ["any", "all", "count_nonzero", "argmin", "argmax", "nanargmin", "nanargmax"]


def array() -> Any:
    x = np.random.default_rng(0).normal(1, 0.1, (40, 12)).astype(bfloat16)
    x[3, 4] = np.nan
    return x


def chunked(x: Any) -> da.Array:
    return da.from_array(x, chunks=(16, 5))


@pytest.mark.parametrize("name", [*REDUCTIONS, *NAN, *SCANS])
@pytest.mark.parametrize("axis", [0, 1])
def test_results_are_those_of_float32_rounded(name: str, axis: int) -> None:
    x, function = array(), getattr(dc, name)
    with dask.config.set(scheduler=refuse):
        lazy = function(chunked(x), axis=axis)
        wide = function(chunked(x.astype("f4")), axis=axis)
    assert lazy.dtype == lazy._meta.dtype == bfloat16
    assert lazy.name == function(chunked(x), axis=axis).name
    found = lazy.compute(scheduler="synchronous")
    expected = wide.compute(scheduler="synchronous").astype(bfloat16)
    assert found.dtype == bfloat16
    np.testing.assert_array_equal(found.astype("f4"), expected.astype("f4"))


@pytest.mark.parametrize("name", OTHERS)
def test_truths_counts_and_indices_are_numpys(name: str) -> None:
    x = array()
    found = getattr(dc, name)(chunked(x), axis=0)
    expected = getattr(np, name)(x.astype("f4"), axis=0)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.compute(scheduler="synchronous"), expected)


def test_descriptions_are_those_of_float32_rounded() -> None:
    x = array()
    found = dask.compute(*dc.describe(chunked(x)), scheduler="synchronous")
    wide = dask.compute(*dc.describe(chunked(x.astype("f4"))), scheduler="synchronous")
    for field, expected in zip(found, wide, strict=True):
        assert field.dtype == (bfloat16 if expected.dtype == "f4" else expected.dtype)
        assert float(field) == pytest.approx(float(expected), 2.0**-8, nan_ok=True)


def test_sums_do_not_stop_growing() -> None:
    x = da.ones(3000, chunks=1000, dtype=bfloat16)
    assert da.sum(x).compute() < 1000
    assert dc.sum(x).compute() == 3008  # the nearest to 3000
    assert dc.mean(x).compute() == 1
    assert dc.cumsum(x)[-1].compute() == 3008
    assert dc.sum(x, where=np.arange(3000) < 500, initial=12).compute() == 512
    assert dc.sum(np.ones(512, bfloat16)).compute() == 512


def test_results_have_the_dtype_that_was_asked_for() -> None:
    x = da.ones(3000, chunks=1000, dtype=bfloat16)
    for dtype in ("f4", "f8", "i8"):
        assert dc.sum(x, dtype=dtype).dtype == dc.sum(x, dtype=dtype).compute().dtype == dtype
        assert dc.sum(x, None, dtype).compute() == dc.cumsum(x, 0, dtype)[-1].compute() == 3000
    assert dc.sum(x, dtype=bfloat16).dtype == bfloat16
    out = da.zeros((), dtype=bfloat16)
    assert dc.sum(x, out=out) is out
    assert (out.dtype, out.compute()) == (bfloat16, 3008)
    wide = da.zeros((), dtype="f4")
    assert dc.sum(x, dtype="f4", out=wide).compute() == 3000


def test_what_no_engine_takes_is_dasks() -> None:
    x = chunked(np.nan_to_num(array().astype("f4")).astype(bfloat16))
    calls = [
        lambda m: m.histogram(x, 3, (0, 2))[0],
        lambda m: m.digitize(x, [0.5, 1.5]),
        lambda m: m.transpose(x),
        lambda m: m.sum(x, dtype="O"),
    ]
    for call in calls:
        mine, dasks = call(dc), call(da)
        assert key_split(mine.name) == key_split(dasks.name)
        assert mine.name == dasks.name
    counts = dc.histogram(x, 3, (0, 2))[0].compute()
    np.testing.assert_array_equal(counts, np.histogram(x.compute().astype("f4"), 3, (0, 2))[0])


@pytest.mark.parametrize("name", ["cummax", "cummin", "logcumsumexp"])
def test_what_dask_has_not_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} does not take dtype bfloat16"):
        getattr(dc, name)(chunked(array()))
