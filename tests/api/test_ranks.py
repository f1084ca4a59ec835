"""rankdata and lexsort against SciPy and NumPy, of gathered lines and across chunks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.strategies import REAL, arrays, shapes

import dask_coop as dc
from dask_coop.graph.sorting import exchange


@pytest.mark.parametrize("size", ["128MiB", "1B"])
@given(
    case=arrays(shape=shapes(1), dtypes=REAL),
    axis=st.integers(0, 3),
    method=st.sampled_from(["average", "min", "max", "dense", "ordinal"]),
    policy=st.sampled_from(["propagate", "omit"]),
)
def test_ranks_are_scipys(
    xp: Any, size: str, case: Any, axis: int, method: Any, policy: Any
) -> None:
    array, chunks = case
    along = None if axis >= array.ndim else axis
    with dask.config.set({"array.chunk-size": size}):
        found = dc.rankdata(to_chunks(xp, array, chunks), method, axis=along, nan_policy=policy)
    assert found.dtype == ("i8" if method != "average" and array.dtype.kind in "biu" else "f8")
    if along is not None:
        assert found.chunks == chunks
    expected = array.reshape(-1) if along is None else array
    if array.size:
        expected = stats.rankdata(array, method, axis=along, nan_policy=policy)
    np.testing.assert_array_equal(to_numpy(xp, found), expected)


@pytest.mark.parametrize("method", ["average", "min", "max", "dense", "ordinal"])
@pytest.mark.parametrize("values", [1, 3, 1000])
def test_equal_elements_may_lie_in_many_chunks(
    xp: Any, method: Any, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MERGED", 3)
    array = np.random.default_rng(values).integers(0, values, 300).astype("f8")
    with dask.config.set({"array.chunk-size": "1B"}):
        found = dc.rankdata(to_chunks(xp, array, ((0, 7, 93, 100, 99, 1),)), method)
        missing = dc.rankdata(to_chunks(xp, np.where(array == 1, np.nan, array), 30), method)
    np.testing.assert_array_equal(to_numpy(xp, found), stats.rankdata(array, method))
    expected = stats.rankdata(np.where(array == 1, np.nan, array), method)
    np.testing.assert_array_equal(to_numpy(xp, missing), expected)


def check_order(xp: Any, array: Any, chunks: Any, axis: int) -> None:
    """Hold the order by the elements and others beside them to NumPy's."""
    few = (np.arange(array.size) % 3).reshape(array.shape)
    gaps = np.where(few == 1, np.nan, array == array[..., :1])
    for keys in ([array, few], [few, gaps, array[..., ::-1].copy()]):
        found = dc.lexsort([to_chunks(xp, key, chunks) for key in keys], axis)
        assert found.dtype == "i8"
        # NumPy's sort of float16 itself is not to be trusted.
        wide = [key.astype("f4") if key.dtype == "f2" else key for key in keys]
        np.testing.assert_array_equal(to_numpy(xp, found), np.lexsort(wide, axis))


@given(case=arrays(shape=shapes(1), dtypes=REAL), axis=st.integers(-1, 2))
def test_the_order_by_several_keys_is_numpys(xp: Any, case: Any, axis: int) -> None:
    check_order(xp, *case, min(axis, case[0].ndim - 1))


@pytest.mark.parametrize("dtype", ["f2", "i8", "?"])
def test_keys_may_be_too_long_to_gather(xp: Any, dtype: str) -> None:
    array = np.random.default_rng(0).integers(-5, 5, (40, 2)).astype(dtype)
    array[3:8] = np.nan if dtype == "f2" else 1
    with dask.config.set({"array.chunk-size": "1B"}):
        check_order(xp, array, (11, 1), 0)
        check_order(xp, array[:, 0].copy(), ((3, 0, 17, 20),), -1)


def test_keys_of_other_kinds() -> None:
    names, days = np.array(list("babab")), np.array(["2001-02-03", "NaT"] * 3, "M8[D]")[:5]
    found = dc.lexsort((da.from_array(days, chunks=2), da.from_array(names, chunks=3)))
    np.testing.assert_array_equal(found, np.lexsort((days, names)))
    rows = np.array([[3, 1, 2], [1, 1, 0]])
    np.testing.assert_array_equal(dc.lexsort(da.from_array(rows, chunks=1)), np.lexsort(rows))
    x = da.from_array(names, chunks=2)
    with pytest.raises(TypeError, match="lexsort needs at least one key"):
        dc.lexsort([])
    with pytest.raises(ValueError, match=r"one shape, got \(4,\) and \(5,\)"):
        dc.lexsort((x[1:], x))
    with pytest.raises(ValueError, match="lexsort needs known chunk sizes"):
        dc.lexsort([x[x == "a"]])
    with (
        dask.config.set({"array.chunk-size": "1B"}),
        pytest.raises(TypeError, match="takes only real numbers and dates"),
    ):
        dc.lexsort([x])


def test_what_has_no_ranks_is_refused() -> None:
    x = da.ones((4, 4), chunks=2)
    with pytest.raises(ValueError, match=r"method must be one of average, .*, got 'mean'"):
        dc.rankdata(x, "mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nan_policy must be 'propagate' or 'omit', got 'raise'"):
        dc.rankdata(x, nan_policy="raise")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it takes real numbers and dates"):
        dc.rankdata(x * 1j)
    with pytest.raises(ValueError, match="rankdata needs known chunk sizes"):
        dc.rankdata(x[x[:, 0] > 0])
    with pytest.raises(np.exceptions.AxisError):
        dc.rankdata(x, axis=2)


@pytest.mark.parametrize("kind", ["rank", "weak", "strict", "mean"])
@pytest.mark.parametrize("policy", ["propagate", "omit"])
@pytest.mark.parametrize("missing", [False, True])
def test_percentages_are_scipys(xp: Any, kind: Any, policy: Any, missing: bool) -> None:
    array = np.random.default_rng(0).integers(0, 9, (9, 11)).astype("f8")
    array[::3, ::2] = np.nan if missing else 0.5
    x, scores = to_chunks(xp, array, 4), np.array([[-1, 0.5, 3], [9, 7.5, np.nan]])
    found = to_numpy(xp, dc.percentileofscore(x, scores, kind, policy))
    expected = stats.percentileofscore(array.reshape(-1), scores, kind, policy)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    alone = to_numpy(xp, dc.percentileofscore(x, 3, kind, policy))
    np.testing.assert_allclose(alone, expected[0, 2], rtol=1e-15)


@pytest.mark.parametrize("sizes", [((1, 0), (5,)), ((0, 1, 0), (0, 2, 3)), ((1,), (5, 0))], ids=str)
def test_percentages_count_no_element_of_empty_chunks(xp: Any, sizes: Any) -> None:
    array = np.arange(5.0).reshape(1, 5)
    x = to_chunks(xp, array, (1, 5)).rechunk(((1,), (5,)))
    parts = [[x[:0] if not n else x for n in sizes[0]]]
    x = da.concatenate(parts[0]).rechunk((sizes[0], sizes[1]))
    assert x.chunks == sizes
    assert to_numpy(xp, dc.percentileofscore(x, 3)) == 80
    assert to_numpy(xp, dc.percentileofscore(x, 9, "strict")) == 100


def test_percentages_are_those_of_the_declared_dtype() -> None:
    x = da.arange(4.0, chunks=2).map_blocks(lambda block: block + 0.5, dtype="i8")
    np.testing.assert_array_equal(dc.percentileofscore(x, [1, 2], "weak").compute(), [50, 75])


def test_percentages_of_nothing() -> None:
    assert np.isnan(dc.percentileofscore(da.zeros(0), 1).compute())
    assert dc.percentileofscore(da.ones(3), np.zeros((0, 2))).compute().shape == (0, 2)
    with pytest.raises(ValueError, match="kind must be one of rank, weak, strict, mean, got 'b'"):
        dc.percentileofscore(da.ones(3), 1, "b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="score must be known, not lazy"):
        dc.percentileofscore(da.ones(3), da.ones(3))
    with pytest.raises(TypeError, match="score takes real numbers, got dtype <U1"):
        dc.percentileofscore(da.ones(3), "a")
    with pytest.raises(TypeError, match="percentileofscore does not take dtype complex128"):
        dc.percentileofscore(da.ones(3) * 1j, 1)
