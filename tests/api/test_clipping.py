"""Sigma clipping against astropy's definition, and deviations from the median against SciPy's."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from scipy import stats
from support.clipping import NORMAL, clipped

import dask_coop as dc
from dask_coop.api.pictures import clipping

AXES: Any = [None, 0, 1, (0, 2)]


@pytest.fixture(params=[False, True], ids=["lines", "rounds"])
def _long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have lines gathered, or taken for too long."""
    monkeypatch.setattr(clipping, "_SMALL", 0 if request.param else 1 << 20)
    with dask.config.set({"array.chunk-size": 8 if request.param else "128MiB"}):
        yield


def stack(gaps: bool = True) -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_t(2, (11, 6, 5)) * 9
    x[rng.random(x.shape) < 0.1 * gaps] = np.nan
    return x


# Some lines lose all their elements.
@pytest.mark.each(2)
@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.usefixtures("_long")
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("stdfunc", ["std", "mad_std"])
@pytest.mark.parametrize("cenfunc", ["median", "mean"])
def test_clipping_is_that_of_a_loop(xp: Any, cenfunc: Any, stdfunc: Any, axis: Any) -> None:
    x = stack()
    lazy = to_chunks(xp, x, ((4, 0, 7), 6, 3))
    arguments = {"cenfunc": cenfunc, "stdfunc": stdfunc, "axis": axis, "sigma_upper": 1.5}
    result, *bounds = dc.sigma_clip(
        lazy, 2, maxiters=2, masked=False, return_bounds=True, **arguments
    )
    outside, *expected = clipped(x, axis, 2, 1.5, 2, cenfunc, stdfunc)
    np.testing.assert_array_equal(to_numpy(xp, result), np.where(outside, np.nan, x))
    for mine, loops in zip(bounds, expected, strict=True):
        np.testing.assert_allclose(to_numpy(xp, mine), loops, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:(Mean of|invalid value)")
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2)])
def test_clipping_is_astropys(axis: Any) -> None:
    # Not among the judges of every test, for it is large.
    astropy = pytest.importorskip("astropy.stats", reason="astropy judges where it is installed")
    x = stack(gaps=False)
    for options in ({}, {"sigma": 1.5, "maxiters": 2}, {"cenfunc": "mean", "maxiters": None}):
        mine = dc.sigma_clip(da.from_array(x, chunks=3), axis=axis, **options).compute()
        theirs = astropy.sigma_clip(x, axis=axis, **options)
        np.testing.assert_array_equal(np.ma.getmaskarray(mine), np.ma.getmaskarray(theirs))
    if axis in (None, 0):
        two = np.array([0.0, 10])
        for sigma, maxiters in ((0.5, 5), (0.5, 1), (1, 5)):
            options = {"axis": axis, "maxiters": maxiters}
            mine = dc.sigma_clip(da.from_array(two, chunks=1), sigma, **options).compute()
            theirs = astropy.sigma_clip(two, sigma, **options)
            np.testing.assert_array_equal(np.ma.getmaskarray(mine), np.ma.getmaskarray(theirs))
    np.testing.assert_allclose(
        dc.mad_std(da.from_array(x, chunks=3), axis).compute(), astropy.mad_std(x, axis)
    )


@pytest.mark.filterwarnings("ignore:(All-NaN|Mean of)")
@pytest.mark.usefixtures("_long")
@pytest.mark.parametrize("stdfunc", ["std", "mad_std"])
def test_rounds_that_clip_all(stdfunc: Any) -> None:
    x = np.array([0.0, 10])
    lazy = da.from_array(x, chunks=1)
    for axis in (None, 0):
        for maxiters in (1, 2, 5):
            arguments = {"axis": axis, "maxiters": maxiters, "stdfunc": stdfunc}
            result, *bounds = dc.sigma_clip(lazy, 0.5, return_bounds=True, **arguments)
            # astropy's of 8.0, in test_clipping_is_astropys, too.
            kept = axis is None and maxiters > 1
            assert (np.ma.getmaskarray(result.compute()) != kept).all()
            assert np.isnan(dask.compute(*bounds)).all() == kept
            assert np.isnan(dc.sigma_clip(lazy, 0.5, masked=False, **arguments).compute()).all()


def test_masks_and_integers() -> None:
    x = np.array([[1, 2, 3, 90], [4, 4, 5, 4]])
    lazy = da.from_array(x, chunks=(1, 2))
    result = dc.sigma_clip(lazy, 1, axis=1, maxiters=1)
    assert isinstance(result._meta, np.ma.MaskedArray)
    found = result.compute()
    assert found.dtype == result.dtype == x.dtype
    np.testing.assert_array_equal(found.mask, clipped(x, 1, 1, 1, 1, "median", "std")[0])
    np.testing.assert_array_equal(found.data, x)
    narrow = dc.sigma_clip(lazy, 1, axis=1, masked=False)
    assert narrow.dtype == narrow.compute().dtype == "f4"


def test_rounds_go_on_until_nothing_is_clipped() -> None:
    x = np.concatenate([np.arange(50.0), 2.0 ** np.arange(6, 30)])
    expected = clipped(x, None, 2, 2, 1000, "median", "std")[0]
    result = dc.sigma_clip(da.from_array(x, chunks=20), 2, maxiters=None, masked=False)
    np.testing.assert_array_equal(np.isnan(result.compute()), expected)


@pytest.mark.each(3)
@pytest.mark.usefixtures("_long")
@pytest.mark.parametrize("policy", ["omit", "propagate"])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_deviations_are_scipys(xp: Any, dtype: str, axis: Any, policy: Any) -> None:
    x = np.nan_to_num(stack()).astype(dtype) if dtype == "i2" else stack().astype(dtype)
    lazy = to_chunks(xp, x, (4, (3, 0, 3), 2))
    result = dc.median_abs_deviation(lazy, axis, scale="normal", nan_policy=policy)
    expected = stats.median_abs_deviation(x, axis, scale="normal", nan_policy=policy)
    rtol = 1e-6 if dtype == "f4" else 1e-13
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=rtol)
    assert result.dtype == ("f8" if dtype == "i2" else dtype)
    same = dc.mad_std(lazy, axis, ignore_nan=policy == "omit")
    np.testing.assert_allclose(to_numpy(xp, same), expected, rtol=rtol)
    plain = dc.median_abs_deviation(lazy, axis, nan_policy=policy)
    np.testing.assert_allclose(to_numpy(xp, plain) * NORMAL, expected, rtol=rtol)


def test_medians_of_large_halves() -> None:
    x = np.array([[6e4, 6e4, 5.9e4, 6.1e4], [np.nan, 6e4, 6e4, 5e4]], "f2")
    lazy = da.from_array(x, chunks=(1, 3))
    result = dc.median_abs_deviation(lazy, 1, nan_policy="omit").compute()
    np.testing.assert_array_equal(result, stats.median_abs_deviation(x, 1, nan_policy="omit"))


def test_masked_results_hold_copies() -> None:
    x = np.arange(6.0)
    lazy = da.Array({("x", 0): x}, "x", ((6,),), meta=x[:0])
    clipped_all = dc.sigma_clip(lazy, 9)
    assert not np.shares_memory(clipped_all.blocks[0].compute().data, x)


def test_what_cannot_be_clipped_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = da.ones((4, 3), chunks=2)
    for arguments, words in (
        ({"cenfunc": "mode"}, "median or mean"),
        ({"stdfunc": "var"}, "std or mad_std"),
        ({"maxiters": 0}, "at least 1"),
        ({"sigma": -1}, "sigma of sigma_clip is .*, at least 0, got -1"),
        ({"sigma_lower": -0.5}, "sigma_lower of sigma_clip is .*, got -0.5"),
        ({"sigma_upper": np.nan}, "sigma_upper of sigma_clip is .*, got nan"),
    ):
        with pytest.raises(ValueError, match=words):
            dc.sigma_clip(x, **arguments)
    with pytest.raises(TypeError, match="got dtype complex128"):
        dc.sigma_clip(x * 1j)
    with pytest.raises(dc.Refused, match="MaskedArray"):
        dc.mad_std(da.ma.masked_equal(x, 2))
    with pytest.raises(ValueError, match="of no element"):
        dc.mad_std(x[:0])
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        dc.mad_std(x[x > 0])
    with pytest.raises(ValueError, match="'propagate' or 'omit'"):
        dc.median_abs_deviation(x, nan_policy="raise")
    with pytest.raises(ValueError, match="a number or 'normal'"):
        dc.median_abs_deviation(x, scale="usual")
    for zero in (0, np.float64(0)):
        with pytest.raises(ValueError, match=r"scale of median_abs_deviation .* cannot be 0; got"):
            dc.median_abs_deviation(x, scale=zero)
    monkeypatch.setattr(clipping, "_SMALL", 0)
    with pytest.raises(ValueError, match="too long for a chunk"):
        dc.sigma_clip(x, maxiters=None)


def test_nothing_is_clipped_of_nothing() -> None:
    assert dc.sigma_clip(da.ones((0, 3), chunks=2), axis=1).compute().shape == (0, 3)
