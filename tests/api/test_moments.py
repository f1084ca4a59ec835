"""var and std against exact arithmetic, for any chunking."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.calls import refuse
from support.strategies import NUMBERS, assert_near, reducible, wide

import dask_coop as dc

split_everys = st.none() | st.integers(2, 20)
keep = st.booleans()
by_name = pytest.mark.parametrize("name", ["var", "std"])


def variance(array: Any, axis: Any, keepdims: bool, ddof: float) -> tuple[Any, Any, Any]:
    """Return the exact variance, how far off float64 may be, and where it is defined."""
    x = wide(array)
    count = array.size / max(np.sum(np.ones_like(array, "i8"), axis).size, 1)
    deviation = x - np.sum(x, axis, keepdims=True) / max(count, 1)
    m2 = np.sum(np.square(deviation.real) + np.square(deviation.imag), axis, keepdims=keepdims)
    size = np.max(np.abs(x), axis, keepdims=keepdims, initial=0)
    var = m2 / max(count, 1)
    eps = 8 * max(array.size, 1) * np.finfo("f8").eps
    slack = np.nan_to_num(eps * (var + np.sqrt(var) * size) + np.square(eps * size))
    # Squares of small deviations underflow.
    slack += np.finfo("f8").tiny
    degrees = max(count - ddof, 0)
    return m2 / degrees, slack * max(count, 1) / max(degrees, 1e-300), degrees > 0


@by_name
@given(
    case=reducible(),
    keepdims=keep,
    split_every=split_everys,
    ddof=st.sampled_from([0, 1, 0.5, 3]),
)
def test_spreads_are_exact_but_for_one_rounding(
    xp: Any, name: str, case: Any, keepdims: bool, split_every: Any, ddof: float
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    lazy = getattr(dc, name)(x, axis, None, keepdims, ddof, split_every)
    with np.errstate(all="ignore"):
        exact, slack, defined = variance(array, axis, keepdims, ddof)
        if name == "std":
            exact, slack = np.sqrt(exact), np.sqrt(slack)
    result = to_numpy(xp, lazy)
    assert lazy.dtype == np.var(np.ones(1, array.dtype)).dtype
    assert lazy.shape == np.shape(exact)
    if defined:
        assert_near(result, exact, slack)


@by_name
@pytest.mark.parametrize("ddof", [3, 4])
def test_too_few_elements_for_the_degrees_of_freedom_have_no_spread(
    xp: Any, name: str, ddof: int
) -> None:
    x = to_chunks(xp, np.array([[1, 2, 3], [4, 4, 4.0]]), 2)
    result = to_numpy(xp, getattr(dc, name)(x, axis=1, ddof=ddof))
    np.testing.assert_array_equal(result, [np.inf, np.nan])
    nothing = getattr(dc, name)(to_chunks(xp, np.empty(0), 1))
    assert np.isnan(to_numpy(xp, nothing))


@by_name
def test_nan_and_infinities_spoil_their_lines_only(xp: Any, name: str) -> None:
    array = np.array([[1, np.nan, 3], [1, np.inf, 3], [1, 2, 3]], "f4")
    for size in (1, 2, 3):
        result = to_numpy(xp, getattr(dc, name)(to_chunks(xp, array, size), axis=1))
        assert np.isnan(result[:2]).all()
        assert result[2] == getattr(np, name)(array[2])


@by_name
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("output", ["f2", "f4", "f8"])
def test_dtype_is_that_of_the_result(xp: Any, name: str, dtype: str, output: str) -> None:
    array = np.tile(np.array([0, 1, 1, 3]).astype(dtype), 5)
    result = getattr(dc, name)(to_chunks(xp, array, 3), dtype=output)
    assert result.dtype == output
    expected = getattr(np, name)(array.astype("c16")).astype(output)
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=np.finfo(output).eps)


@by_name
def test_degrees_of_freedom_are_a_number(name: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        getattr(dc, name)(da.ones(3), ddof="one")


@by_name
def test_spreads_behind_unknown_sizes(name: str) -> None:
    x = da.arange(50, chunks=7)
    result = getattr(dc, name)(x[x % 3 == 0], ddof=1)
    expected = getattr(np, name)(np.arange(0, 50, 3), ddof=1)
    assert result.compute() == pytest.approx(expected, rel=1e-15)


UNITS = ["ns", "us", "s", "D", "M", "25s"]


def exact_ticks(values: Any) -> dict[str, Any]:
    """Return what describe tells of ticks, in exact arithmetic but for the root."""
    known = [int(tick) for tick in values if int(tick) != np.iinfo("i8").min]
    found: dict[str, Any] = {"count": len(known), "nans": len(values) - len(known)}
    if known:
        mean = Fraction(sum(known), len(known))
        variance = sum((tick - mean) ** 2 for tick in known) / len(known)
        found |= {"min": min(known), "max": max(known), "mean": mean, "sum": sum(known)}
        found["std"] = math.isqrt(round(variance * 4**20)) / 2**20
    return found


@st.composite
def ticks_in_chunks(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """Arrays of dates near to each other, far apart, or not at all; their chunks; an axis."""
    last = 2**63 - 1
    centre = draw(st.integers(-last, last))
    near = st.integers(max(-last, centre - 9), min(last, centre + 9))
    tick = draw(st.sampled_from([near, st.integers(-last, last), st.integers(0, 10**9)]))
    shape = draw(st.tuples(st.integers(0, 6), st.integers(1, 5)))
    n = shape[0] * shape[1]
    values = draw(st.lists(tick | st.just(-last - 1), min_size=n, max_size=n))
    chunks = draw(st.tuples(st.integers(1, 6), st.integers(1, 5)))
    return np.array(values, "i8").reshape(shape), chunks, draw(st.sampled_from([None, 0, 1]))


@given(
    case=ticks_in_chunks(), unit=st.sampled_from(UNITS), order=st.sampled_from("<>"), data=st.data()
)
def test_dates_and_durations_are_described_to_the_tick(
    case: Any, unit: str, order: str, data: Any
) -> None:
    (values, chunks, axis), kind = case, data.draw(st.sampled_from("mM"))
    array = values.view(f"{kind}8[{unit}]")
    x = da.from_array(array.astype(array.dtype.newbyteorder(order)), chunks=chunks)
    described = dc.describe(x, axis=axis, split_every=2)
    assert described.var is None
    assert (described.sum is None) == (kind == "M")
    lines = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 1)
    exact = [exact_ticks(line) for line in lines]
    for name, lazy in described._asdict().items():
        if lazy is None:
            continue
        result = np.atleast_1d(to_numpy(np, lazy))
        if name in ("count", "nans"):
            assert result.tolist() == [of[name] for of in exact]
            continue
        assert result.dtype == (f"m8[{unit}]" if name == "std" else array.dtype)
        for got, of in zip(result.view("i8").tolist(), exact, strict=True):
            if name == "sum":
                # It wraps, as NumPy's.
                assert (got - of.get("sum", 0)) % 2**64 == 0
            elif of["count"] == 0:
                assert got == np.iinfo("i8").min
            elif name == "mean":
                assert got == (math.floor if kind == "M" else math.trunc)(of["mean"])
            elif name == "std":
                assert abs(got - of["std"]) <= 0.5 + 1e-13 * of["std"]
            else:
                assert got == of[name]


def test_the_mean_of_dates_is_exact_where_float64_is_not() -> None:
    base = np.datetime64("2026-11-22T07:30:00.123456789", "ns")
    array = base + np.arange(1001).astype("m8[ns]")
    found = dask.compute(*dc.describe(da.from_array(array, chunks=100)), scheduler="synchronous")
    described = dc.Description(*found)
    assert described.mean == base + np.timedelta64(500, "ns")
    assert described.std == np.timedelta64(289, "ns")
    assert (described.min, described.max) == (array[0], array[-1])


def test_dates_are_described_as_pandas_describes_them() -> None:
    pandas = pytest.importorskip("pandas")
    days = np.random.default_rng(3).integers(0, 20_000, 500)
    array = (np.datetime64("1960-01-01", "s") + days.astype("m8[D]").astype("m8[s]")).astype(
        "M8[s]"
    )
    array[::7] = "NaT"
    series = pandas.Series(array)
    found = dc.describe(da.from_array(array, chunks=37))
    count, nans, mean, std = dask.compute(found.count, found.nans, found.mean, found.std)
    assert (count, nans) == (series.count(), series.isna().sum())
    assert abs(mean - series.mean().to_datetime64()) <= np.timedelta64(1, "s")
    assert abs(std - series.std(ddof=0).to_timedelta64()) <= np.timedelta64(1, "s")


def test_dates_at_both_ends_of_time_have_a_mean_and_a_deviation() -> None:
    array = np.array([1 - 2**63, 2**63 - 1] * 50, "i8").view("M8[ns]")
    for size in (1, 7, 100):
        found = dc.describe(da.from_array(array, chunks=size))
        mean, std = dask.compute(found.mean, found.std, scheduler="synchronous")
        assert mean == np.datetime64(0, "ns")
        assert int(std) == pytest.approx(2**63, rel=1e-12)


def test_describing_dates_computes_nothing_and_names_the_same_keys() -> None:
    x = da.from_array(np.arange(40).astype("M8[D]"), chunks=7)
    with dask.config.set(scheduler=refuse):
        names = [each.name for each in dc.describe(x) if each is not None]
        assert names == [each.name for each in dc.describe(x) if each is not None]
    assert len(set(names)) == 6
