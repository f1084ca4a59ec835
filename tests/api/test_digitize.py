"""digitize against NumPy's, for edges that rise or fall, at the edges and beside them."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import FEWER, INTS, REAL, arrays

import dask_coop as dc


def compare(xp: Any, array: Any, sizes: Any, bins: Any, right: bool) -> None:
    result = dc.digitize(to_chunks(xp, array, sizes), bins, right)
    expected = np.digitize(array, bins, right)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.parametrize("dtype", REAL)
@FEWER
@given(data=st.data(), right=st.booleans())
def test_numbers_are_numpys(xp: Any, dtype: str, data: Any, right: bool) -> None:
    array, sizes = data.draw(arrays(dtypes=[dtype]))
    number = st.integers(-300, 300) | st.floats(-300, 300) | st.sampled_from([np.inf, -np.inf])
    drawn = np.array(data.draw(st.lists(number, max_size=9)), "f8")
    kind = data.draw(st.sampled_from(["f8", "f4", "i8", "f2"]))
    finite = np.nan_to_num(drawn, posinf=300, neginf=-300) if kind == "i8" else drawn
    with np.errstate(all="ignore"):
        palette = np.concatenate([finite.astype(kind), array.ravel()[:3].astype(kind)])
    bins = np.sort(palette[~np.isnan(palette)])
    compare(xp, array, sizes, bins, right)
    compare(xp, array, sizes, bins[::-1], right)


@pytest.mark.parametrize("right", [False, True])
def test_many_samples_on_the_edges_and_beside_them(xp: Any, right: bool) -> None:
    rng = np.random.default_rng(0)
    for dtype in ("f4", "f8"):
        bins = np.unique(rng.normal(0, 5, 700).astype(dtype))
        array = rng.choice(bins, 70_001)
        array[::3] = np.nextafter(array[::3], array[1::3][: array[::3].size])
        array[::1001] = np.nan
        compare(xp, array, 40_000, bins, right)
        compare(xp, array, 40_000, bins[::-1], right)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("right", [False, True])
def test_the_extremes_of_integers(xp: Any, dtype: str, right: bool) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    array = np.unique(np.array([low, low + 1, 0, high - 1, high], dtype))
    compare(xp, array, 2, array, right)
    compare(xp, array, 2, array[::-1], right)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("bins", [[], [2], [2, 2], [2, 2, 2, 5], [5, 2, 2], [-np.inf, np.inf]])
def test_few_edges_and_equal_ones(xp: Any, bins: Any, right: bool) -> None:
    compare(xp, np.array([np.nan, -np.inf, 1, 2, 3, np.inf]), 2, np.array(bins, "f8"), right)


def test_chunks_and_meta_are_kept(xp: Any) -> None:
    x = to_chunks(xp, np.ones((4, 6), "f4"), ((3, 1), (2, 4)))
    result = dc.digitize(x, [0, 1])
    assert result.chunks == x.chunks
    assert type(result._meta) is xp.ndarray


def test_bad_arguments() -> None:
    x = da.ones(4, chunks=2)
    for bins in ([1, 3, 2], [0, np.nan]):
        with pytest.raises(
            ValueError, match=r"monotonically increasing or decreasing|got NaN at position 1"
        ):
            dc.digitize(x, bins)
    with pytest.raises(ValueError, match="object of too small depth"):
        dc.digitize(x, 3)
    with pytest.raises(TypeError, match="bins must be known"):
        dc.digitize(x, da.arange(3))
