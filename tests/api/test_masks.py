"""where= and initial= against NumPy, for any chunking of the array and of the mask."""

from __future__ import annotations

import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.calls import refuse
from support.strategies import FEWER, FLOATS, NUMBERS, REAL, Chunked, arrays, axes

import dask_coop as dc

SUMS = ["sum", "prod", "nansum", "nanprod"]
EXTREMA = ["min", "max", "nanmin", "nanmax"]
TRUTHS = ["any", "all"]
SPREADS = ["mean", "var", "std", "nanmean", "nanvar", "nanstd"]

#: Whose sums and products no dtype has to round.
values = st.sampled_from([0, 1, 2, 3])
with_nan = st.sampled_from([0, 1, 2, 3, np.nan])


@st.composite
def masked(draw: st.DrawFn, **kwargs: Any) -> tuple[Chunked, Any, Any]:
    """An array with chunks, an axis, and a mask: of its shape, or one that broadcasts to it."""
    case = draw(arrays(**kwargs))
    sides = tuple(n if draw(st.booleans()) else 1 for n in case.array.shape)
    sides = sides[draw(st.integers(0, len(sides))) :]
    spread = np.random.default_rng(draw(st.integers(0, 99)))
    mask = spread.random(sides) < draw(st.sampled_from([0, 0.5, 0.9, 1]))
    return case, draw(axes(case.array.ndim)), mask


def hold_to_numpy(xp: Any, name: str, case: Any, lazy_mask: bool, **kwargs: Any) -> None:
    (array, chunks), axis, mask = case
    where = da.from_array(mask, chunks=3) if lazy_mask else mask
    x = to_chunks(xp, array, chunks)
    result = getattr(dc, name)(x, axis, where=where, **kwargs)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = np.asarray(getattr(np, name)(array, axis, where=mask, **kwargs))
        # NumPy sums float16 in less.
        wide = array.astype("f8") if array.dtype.kind == "f" else array
        exact = getattr(np, name)(wide, axis, where=mask, **kwargs).astype(expected.dtype)
    assert result.dtype == expected.dtype
    eps = np.finfo(expected.dtype).eps if expected.dtype.kind in "fc" else 0
    np.testing.assert_allclose(to_numpy(xp, result), exact, rtol=4 * eps, atol=eps)


@pytest.mark.parametrize(
    ("name", "dtypes", "values"),
    [
        *((name, NUMBERS, values) for name in ("sum", "nanprod", "all", "mean", "var", "nanstd")),
        *((name, REAL, values) for name in ("min", "nanmax")),
        *((name, FLOATS, with_nan) for name in ("nansum", "nanmin", "nanvar", "mean")),
    ],
)
@FEWER
@given(data=st.data(), lazy_mask=st.booleans(), initial=st.sampled_from([0, 1, 2]))
def test_results_are_of_what_a_mask_leaves(
    xp: Any, name: str, dtypes: list[str], values: Any, data: Any, lazy_mask: bool, initial: int
) -> None:
    case = data.draw(masked(dtypes=dtypes, values=values))
    if name != "nanprod" or case[0].array.size < 20:
        more = {"initial": initial} if name in EXTREMA else {}
        with warnings.catch_warnings():
            # Of nothing, deviations have a warning.
            warnings.simplefilter("ignore" if name in SPREADS else "error", RuntimeWarning)
            hold_to_numpy(xp, name, case, lazy_mask, **more)


@pytest.mark.parametrize("name", [*SUMS, "min", "max", "nanmin"])
@pytest.mark.parametrize("dtype", ["i2", "u4", "f4", "f8"])
@pytest.mark.parametrize("initial", [7, 2.5, True])
def test_initial_is_numpys(xp: Any, name: str, dtype: str, initial: Any) -> None:
    array = np.array([[3, 1, 4], [1, 5, 9]]).astype(dtype)
    x = to_chunks(xp, array, 2)
    for axis in (None, 0, 1):
        result = getattr(dc, name)(x, axis, initial=initial)
        expected = np.asarray(getattr(np, name)(array, axis, initial=initial))
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


def test_initial_is_the_extremum_of_nothing(xp: Any) -> None:
    x = to_chunks(xp, np.empty((0, 3), "f4"), (1, 2))
    np.testing.assert_array_equal(to_numpy(xp, dc.min(x, axis=0, initial=5)), [5, 5, 5])
    assert to_numpy(xp, dc.nanmax(x, initial=-1)) == -1
    unknown = to_chunks(xp, np.arange(6), 2)
    # Dask thinks that an array of CuPy chunks is one of NumPy's behind a mask.
    assert int(dc.max(unknown[unknown > 9], initial=-3).compute()) == -3


@pytest.mark.parametrize("initial", [[1, 2], da.ones(()), np.ones(3)])
def test_initial_is_one_number(initial: Any) -> None:
    refused = pytest.raises(TypeError, match="initial is one number that is known")
    with dask.config.set(scheduler=refuse), refused:
        dc.sum(da.ones(3), initial=initial)


@pytest.mark.parametrize("name", EXTREMA)
def test_a_mask_may_leave_no_extremum(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} does not have an identity, so to use a where"):
        getattr(dc, name)(da.ones(3), where=np.ones(3, bool))


@pytest.mark.parametrize("name", [*SUMS, *TRUTHS, *SPREADS])
def test_bad_masks_are_refused(name: str) -> None:
    function, x = getattr(dc, name), da.ones((2, 3), chunks=2)
    with pytest.raises(TypeError, match="where takes truth values, got dtype int64"):
        function(x, where=np.ones((2, 3), int))
    for shape in ((3, 2), (4, 2, 3), (1, 2, 3), (4,)):
        with pytest.raises(ValueError, match=r"shape"):
            function(x, where=np.ones(shape, bool))


def test_masks_behind_unknown_sizes_need_the_same_chunks() -> None:
    x = da.arange(10, chunks=3)
    some, odd = x[x > 2], (x % 2 == 1)[x > 2]
    assert dc.sum(some, where=odd).compute() == 3 + 5 + 7 + 9
    with pytest.raises(ValueError, match=r"compute_chunk_sizes\(\) finds them"):
        dc.sum(some, where=np.ones(1, bool))


def test_masks_are_lazy_and_part_of_the_keys(xp: Any) -> None:
    x = to_chunks(xp, np.ones((4, 6)), 2)
    mask = da.from_array(np.eye(4, 6, dtype=bool), chunks=3)
    lazy = mask.map_blocks(refuse, dtype=bool, meta=np.empty((0, 0), bool))
    with dask.config.set(scheduler=refuse):
        dc.var(x, where=lazy)
        names = [
            dc.sum(x, **kwargs).name
            for kwargs in ({}, {"where": mask}, {"where": ~mask}, {"initial": 1}, {"initial": 2})
        ]
    assert len(set(names)) == len(names)
    assert dc.sum(x, where=mask).name == dc.sum(x, where=mask).name
    assert dc.sum(x, where=np.True_).name == dc.sum(x).name


def test_results_that_differ_in_their_ends_only_have_other_keys() -> None:
    x = da.from_array(np.array([1.0, 2, 4]), chunks=2)
    spreads = [dc.var(x), dc.var(x, ddof=1), dc.var(x, dtype="f4"), dc.var(x, keepdims=True)]
    assert len({lazy.name for lazy in spreads}) == 4
    population, sample, *_ = dask.compute(*spreads, scheduler="synchronous")
    assert (population, sample) == (pytest.approx(14 / 9), pytest.approx(7 / 3))


def test_masks_of_the_other_kind_of_chunk_are_moved(xp: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    mask = array % 3 == 0
    x, lazy = to_chunks(xp, array, 2), to_chunks(xp, mask, 2)
    for where in (mask, da.from_array(mask, chunks=2), lazy):
        assert to_numpy(xp, dc.sum(x, where=where)) == array[mask].sum()
        assert to_numpy(xp, dc.mean(x, where=where)) == array[mask].mean()
    if xp is not np:
        assert dc.mean(da.from_array(array, chunks=2), where=lazy).compute() == array[mask].mean()


@pytest.mark.each(3)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_masked_moments_of_large_chunks(xp: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 2, (70, 3001)).astype(dtype)
    array = array * np.array(1 - 2j, dtype) if np.dtype(dtype).kind == "c" else array
    mask = rng.random(array.shape) < 0.7
    wide = array.astype("c16" if np.dtype(dtype).kind == "c" else "f8")
    for axis in (None, 0, 1):
        x = to_chunks(xp, array, (70, 3001))
        for name in ("mean", "var"):
            result = getattr(dc, name)(x, axis, where=mask)
            expected = getattr(np, name)(wide, axis, where=mask)
            eps = np.finfo(result.dtype).eps
            np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=max(1e-12, 2 * eps))
