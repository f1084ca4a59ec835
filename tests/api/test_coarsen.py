"""coarsen and pyramid against Dask's coarsening of the whole array, in any chunks."""

from __future__ import annotations

import functools
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask.array import chunk
from dask.array.utils import same_keys
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import REAL, arrays, shapes

import dask_coop as dc

#: Reductions as they are called here, and NumPy's.
REDUCTIONS = {
    "sum": (np.sum, np.sum),
    "mean": (dc.mean, np.mean),
    "min": (da.min, np.min),
    "max": (dc.max, np.max),
    "any": (np.any, np.any),
    "nanvar": (dc.nanvar, np.nanvar),
    "median": (np.median, np.median),
    "upper": (functools.partial(np.quantile, q=0.9),) * 2,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(
    case=arrays(shape=shapes(1), dtypes=REAL),
    lengths=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    name=st.sampled_from(sorted(REDUCTIONS)),
    data=st.data(),
)
def test_windows_are_those_of_the_whole_array(
    xp: Any, case: Any, lengths: list[int], name: str, data: Any
) -> None:
    array, chunks = case
    array = np.nan_to_num(array, posinf=9, neginf=-9) if array.dtype.kind == "f" else array
    axes = data.draw(st.sets(st.integers(0, array.ndim - 1), min_size=1))
    windows = {d: lengths[d] for d in axes}
    kept = tuple(slice(n - n % windows.get(d, 1)) for d, n in enumerate(array.shape))
    found = dc.coarsen(REDUCTIONS[name][0], to_chunks(xp, array, chunks), windows, True)
    if not array[kept].size:
        assert found.shape == tuple(n // windows.get(d, 1) for d, n in enumerate(array.shape))
        return
    theirs = REDUCTIONS[name][1]
    dtype = theirs(np.ones(2, array.dtype)).dtype
    # Ours are rounded once, from float64.
    wide = array.astype("f8") if array.dtype.kind == "f" else array
    expected = chunk.coarsen(theirs, wide[kept], windows).astype(dtype)
    assert found.dtype == dtype
    tolerance = {2: 1e-3, 4: 1e-6}.get(dtype.itemsize, 1e-12)
    scale = np.abs(wide.astype("f8")).max(initial=1)
    size = array.size * scale ** (2 if name == "nanvar" else 1)
    values = to_numpy(xp, found)
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * size)


def test_borders_of_chunks_move_to_those_of_windows(xp: Any) -> None:
    array = np.arange(300.0).reshape(20, 15)
    x = to_chunks(xp, array, ((7, 1, 12), (4, 4, 7)))
    found = dc.coarsen(np.mean, x, {0: 3, -1: 5}, trim_excess=True)
    assert found.chunks == ((2, 1, 3), (1, 1, 1))
    expected = chunk.coarsen(np.mean, array, {0: 3, 1: 5}, trim_excess=True)
    np.testing.assert_array_equal(to_numpy(xp, found), expected)
    wide = dc.coarsen(np.sum, x, {0: 20})
    np.testing.assert_array_equal(to_numpy(xp, wide), array.sum(0, keepdims=True))
    assert to_numpy(xp, dc.coarsen(np.sum, x, {0: 21}, True)).shape == (0, 15)
    # Arguments of the reduction are of its keys, too.
    spread = [dc.coarsen(np.std, x, {0: 2}, ddof=ddof) for ddof in (0, 1)]
    assert not same_keys(*spread)
    expected = chunk.coarsen(np.std, array, {0: 2}, ddof=1)
    np.testing.assert_allclose(to_numpy(xp, spread[1]), expected)


def test_masked_elements_are_left_out() -> None:
    array = np.ma.masked_equal(np.arange(12) % 5, 3)
    found = dc.coarsen(np.sum, da.from_array(array, chunks=5), {0: 4}).compute()
    np.testing.assert_array_equal(found, array.reshape(3, 4).sum(1))


def test_windows_that_do_not_fit_are_refused() -> None:
    x = da.ones((6, 4), chunks=3)
    with pytest.raises(ValueError, match=r"windows \{0: 4\} do not divide shape \(6, 4\)"):
        dc.coarsen(np.mean, x, {0: 4})
    with pytest.raises(ValueError, match="at least 1 element"):
        dc.coarsen(np.mean, x, {0: 0})
    with pytest.raises(TypeError, match="coarsen takes an integer for axes"):
        dc.coarsen(np.mean, x, {0: 1.5})  # type: ignore[dict-item]
    with pytest.raises(np.exceptions.AxisError):
        dc.coarsen(np.mean, x, {2: 2})
    with pytest.raises(ValueError, match="coarsen needs known chunk sizes"):
        dc.coarsen(np.mean, x[x[:, 0] > 0], {1: 2})
    with pytest.raises(ValueError, match=r"shape \(6, 4\) has fewer than 3 levels"):
        dc.pyramid(x, 3)


def test_a_pyramid_reads_an_array_once(xp: Any) -> None:
    seen: list[Any] = []

    def look(block: Any) -> Any:
        seen.append(block.shape)
        return block

    array = np.random.default_rng(0).random((36, 40, 2))
    x = to_chunks(xp, array, (9, 17, 2))
    watched = x.map_blocks(look, dtype=x.dtype, meta=x._meta)
    levels = dc.pyramid(watched, 3, factor={0: 2, 1: 2})
    assert not seen
    dask.compute(*levels, scheduler="sync")
    assert len(seen) == x.npartitions
    for level in range(1, 4):
        windows = {0: 2**level, 1: 2**level}
        expected = chunk.coarsen(np.mean, array, windows, trim_excess=True)
        np.testing.assert_allclose(to_numpy(xp, levels[level - 1]), expected)
    largest = dc.pyramid(x, 2, np.max, {0: 3})
    expected = chunk.coarsen(np.max, array, {0: 9}, trim_excess=True)
    np.testing.assert_array_equal(to_numpy(xp, largest[1]), expected)


def test_dasks_function_is_served_where_it_is_installed() -> None:
    x = da.arange(12, chunks=5)
    with dc.installed():
        found = da.coarsen(da.mean, x, {0: 4})
    assert "dask_coop" in {row.served_by for row in dc.explain(found)}
    np.testing.assert_array_equal(found, [1.5, 5.5, 9.5])
