"""mode, nunique, and both of groups, against SciPy and pandas."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.strategies import REAL, arrays, shapes

import dask_coop as dc

DTYPES = [dtype for dtype in REAL if np.dtype(dtype).kind in "iuf"]


def is_nan(array: Any) -> Any:
    """Return where an array is NaN."""
    return array != array


@given(
    case=arrays(shape=shapes(1), dtypes=DTYPES),
    axis=st.integers(0, 3),
    policy=st.sampled_from(["propagate", "omit"]),
    keepdims=st.booleans(),
)
def test_modes_are_scipys(xp: Any, case: Any, axis: int, policy: Any, keepdims: bool) -> None:
    array, chunks = case
    along = None if axis >= array.ndim else axis
    if (array.size if along is None else array.shape[along]) == 0:
        with pytest.raises(ValueError, match="mode of no element"):
            dc.mode(to_chunks(xp, array, chunks), along)
        return
    found = dc.mode(to_chunks(xp, array, chunks), along, nan_policy=policy, keepdims=keepdims)
    assert found.mode.dtype == array.dtype
    assert found.count.dtype == "i8"
    with np.errstate(all="ignore"):
        expected = stats.mode(array, along, nan_policy=policy, keepdims=keepdims)
    for result, values in zip(found, expected, strict=True):
        np.testing.assert_array_equal(to_numpy(xp, result), values)


@given(
    case=arrays(shape=shapes(1), dtypes=DTYPES),
    axis=st.integers(0, 3),
    dropna=st.booleans(),
    keepdims=st.booleans(),
)
def test_distinct_elements_are_counted(
    xp: Any, case: Any, axis: int, dropna: bool, keepdims: bool
) -> None:
    array, chunks = case
    along = None if axis >= array.ndim else axis
    found = dc.nunique(to_chunks(xp, array, chunks), along, dropna, keepdims)
    lines = array.reshape(1, -1) if along is None else np.moveaxis(array, along, -1)
    counts = np.empty(lines.shape[:-1], "i8")
    for at in np.ndindex(*counts.shape):
        values = np.unique(lines[at])
        counts[at] = np.count_nonzero(~is_nan(values)) if dropna else len(values)
    if along is None:
        counts = counts.reshape((1,) * array.ndim if keepdims else ())
    elif keepdims:
        counts = np.expand_dims(counts, along)
    np.testing.assert_array_equal(to_numpy(xp, found), counts, strict=True)


@pytest.mark.parametrize("dtype", ["f8", "i4", "?", "M8[s]", "m8[s]"])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("func", ["mode", "nanmode", "nunique"])
def test_groups_have_those_of_pandas(xp: Any, func: str, lazy: bool, dtype: str) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 5, 60).astype(dtype)
    if dtype == "f8" and func != "mode":
        array[::4] = np.nan
    if "8[s]" in dtype:
        if xp is not np:
            pytest.skip("dates are in NumPy chunks")
        if func != "mode":
            array[::4] = "NaT"
    labels = rng.integers(0, 6, 60)
    by = to_chunks(xp, labels, 7) if lazy else labels
    values, groups = dc.groupby_reduce(
        to_chunks(xp, array, 7), by, func=func, expected_groups=np.arange(7)
    )
    of_groups = pd.Series(array).groupby(labels)
    if func == "nunique":
        expected = of_groups.nunique().to_numpy()
        assert values.dtype == "i8"
    else:
        expected = of_groups.agg(lambda x: x.mode().iloc[0]).to_numpy().astype(dtype)
        assert values.dtype == dtype
    found = to_numpy(xp, values)
    np.testing.assert_array_equal(found[:6], expected)
    np.testing.assert_array_equal(groups, np.arange(7))
    if func == "nunique":
        assert found[6] == 0


def test_nan_is_a_value_of_groups_as_of_lines() -> None:
    x = da.from_array([1.0, np.nan, np.nan, 2.0], chunks=2)
    values, _ = dc.groupby_reduce(x, np.zeros(4, int), func="mode")
    np.testing.assert_array_equal(values.compute(), [np.nan])
    values, _ = dc.groupby_reduce(x, np.zeros(4, int), func="nanmode")
    np.testing.assert_array_equal(values.compute(), [1.0])


def test_what_has_no_mode_is_refused() -> None:
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(ValueError, match="nan_policy must be 'propagate' or 'omit', got 'raise'"):
        dc.mode(x, nan_policy="raise")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="value_counts counts strings"):
        dc.nunique(da.from_array(np.array(["a", "b"]), chunks=1))
    with pytest.raises(TypeError, match="does not take chunks of type"):
        dc.mode(da.ma.masked_greater(x, 1))
    with pytest.raises(ValueError, match="needs known chunk sizes"):
        dc.mode(x[x[:, 0] > 0])
