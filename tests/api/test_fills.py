"""Filled gaps, exponentially weighted means and integrals, against loops over the elements."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise, product
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.loops import compile_from
from support.spreads import spread_out
from support.strategies import FLOATS, arrays, assert_near, chunkings, shapes

import dask_coop as dc
from dask_coop.algebra.fills import fill, weighted_mean, weighted_spread, weighted_sum
from dask_coop.algebra.operation import Operation
from dask_coop.chunks.numpy import gaps

GAPPY = st.sampled_from([np.nan, np.nan, np.nan, 0.5, -0.0, 3.0, 1000.0, np.inf])
LIMITS = st.none() | st.integers(1, 40)
METHODS = ("reduce-then-scan", "sequential", "recompute")


def filled(x: Any, axis: int, limit: int | None, heads: Any = None, reverse: bool = False) -> Any:
    """Return each element, or the last valid one of its segment that is near enough."""
    rows = np.moveaxis(x, axis, 0)
    flags = np.zeros(x.shape, "?") if heads is None else np.broadcast_to(heads, x.shape)
    flags = np.moveaxis(flags, axis, 0)
    if reverse:
        rows, flags = rows[::-1], flags[::-1]
    along = np.arange(len(rows)).reshape(-1, *[1] * (x.ndim - 1))
    valid, begin = (
        np.maximum.accumulate(np.where(here, along, -1), 0) for here in (rows == rows, flags)
    )
    nothing = np.array("NaT", x.dtype) if x.dtype.kind in "mM" else np.nan
    near = (valid >= 0) & (valid >= begin)
    near &= along - valid <= (len(rows) if limit is None else limit)
    result = np.where(near, np.take_along_axis(rows, np.maximum(valid, 0), 0), nothing)
    return np.moveaxis(result[::-1] if reverse else result, 0, axis).astype(x.dtype)


def averaged(
    x: Any,
    axis: int,
    alpha: float,
    adjust: bool,
    ignore_na: bool,
    min_periods: int = 0,
    heads: Any = None,
) -> Any:
    """Return what pandas' own loop makes of each line, which segments begin anew."""
    heads = np.zeros(x.shape, "?") if heads is None else np.broadcast_to(heads, x.shape)
    lines = np.moveaxis(x, axis, -1).astype("f8")
    flags, result = np.moveaxis(heads, axis, -1), np.empty_like(lines)
    for at in np.ndindex(lines.shape[:-1]):
        args = max(1, min_periods), lines[at].tolist(), flags[at].tolist()
        result[at] = _average(alpha, adjust, ignore_na, *args)
    return np.moveaxis(result, -1, axis)


def _average(
    alpha: float, adjust: bool, ignore_na: bool, least: int, line: Any, heads: Any
) -> list[float]:
    mean, weight, count, found = 0.0, 0.0, 0, []
    for element, begins in zip(line, heads, strict=True):
        count = 0 if begins else count
        if count and (element == element or not ignore_na):
            weight *= 1 - alpha
        if element == element:
            new = 1 if adjust else alpha
            if not count:
                mean, weight = element, 0
            elif np.isinf(mean):
                mean += element
            elif mean != element:
                mean = (weight * mean + new * element) / (weight + new)
            weight = weight + 1 if adjust else 1
            count += 1
        found.append(mean if count >= least else np.nan)
    return found


@st.composite
def lines(draw: st.DrawFn, dtypes: list[str]) -> tuple[Any, Any, int]:
    """Arrays with many gaps, their chunks and an axis."""
    array, chunks = draw(arrays(dtypes, shapes(min_dims=1), GAPPY))
    return array, chunks, draw(st.integers(-array.ndim, array.ndim - 1))


@st.composite
def segments(draw: st.DrawFn, array: Any, chunks: Any, axis: int) -> tuple[Any, Any]:
    """Head flags of every element, of one line, or none; and their chunks."""
    sides = draw(st.sampled_from([None, array.shape, (array.shape[axis],)]))
    if sides is None:
        return None, None
    heads = np.random.default_rng(draw(st.integers(0, 99))).random(sides) < 0.2
    return heads, chunks if sides == array.shape else (chunks[axis],)


def along(heads: Any, array: Any, axis: int) -> Any:
    """Return head flags that broadcast to an array."""
    if heads is None or heads.ndim == array.ndim:
        return heads
    return heads.reshape([-1 if d == axis % array.ndim else 1 for d in range(array.ndim)])


@given(case=lines([*FLOATS, "c8", "c16"]), limit=LIMITS, reverse=st.booleans(), data=st.data())
def test_gaps_are_filled_as_by_a_loop(
    xp: Any, case: Any, limit: int | None, reverse: bool, data: Any
) -> None:
    array, chunks, axis = case
    method = data.draw(st.sampled_from(METHODS))
    heads, cut = data.draw(segments(array, chunks, axis))
    call, x = dc.bfill if reverse else dc.ffill, to_chunks(xp, array, chunks)
    flags = None if heads is None else to_chunks(xp, heads, cut)
    result = call(x, axis, limit, segments=flags, method=method)
    assert result.chunks == chunks
    expected = filled(array, axis, limit, along(heads, array, axis), reverse)
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@given(
    case=lines(FLOATS),
    alpha=st.sampled_from([1e-6, 0.1, 0.5, 0.97, 1.0]),
    options=st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 1, 3])),
    data=st.data(),
)
def test_means_are_those_of_pandas_loop(
    xp: Any, case: Any, alpha: float, options: tuple[bool, bool, int], data: Any
) -> None:
    array, chunks, axis = case
    heads, cut = data.draw(segments(array, chunks, axis))
    given_as = dict(zip(("adjust", "ignore_na", "min_periods"), options, strict=True))
    result = dc.ewm_mean(
        to_chunks(xp, array, chunks),
        axis,
        alpha=alpha,
        segments=None if heads is None else to_chunks(xp, heads, cut),
        method=data.draw(st.sampled_from(METHODS)),
        **given_as,
    )
    assert result.chunks == chunks
    assert result.dtype == array.dtype
    # Nothing is left of an infinity where a step leaves no weight.
    exact = averaged(array, axis, min(alpha, 1 - 1e-16), *options, heads=along(heads, array, axis))
    finite = np.where(np.isfinite(array), np.abs(array), 0).max(initial=0)
    assert_near(to_numpy(xp, result), exact, 1e-13 * float(finite), 2)


def gappy(shape: tuple[int, ...], dtype: str, density: float, seed: int = 0) -> Any:
    """Return numbers of which a part is missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(dtype)
    x[rng.random(shape) < density] = np.nan
    return x


# Large enough that loops are compiled, and that kernels cut lines into tiles.
LARGE: Any = (
    ((300_001,), (130_000,), 0),
    ((8, 20_003), (8, 9000), 1),
    ((30, 5_000), (30, 5000), 1),
    ((1_501, 131), (1_100, 131), 0),
    ((5_001, 5), (3000, 5), 0),
    ((3, 9_001, 7), (2, 5000, 7), 1),
)


@pytest.mark.each(2)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "c8"])
@pytest.mark.parametrize(("shape", "chunks", "axis"), LARGE)
def test_large_chunks_are_filled(xp: Any, shape: Any, chunks: Any, axis: int, dtype: str) -> None:
    for density, limit, reverse in ((0.3, None, False), (0.9, 5, True), (0.9999, 2000, False)):
        x = gappy(shape, dtype, density)
        call = dc.bfill if reverse else dc.ffill
        result = call(to_chunks(xp, x, chunks), axis, limit)
        expected = filled(x, axis, limit, reverse=reverse)
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    ("shape", "chunks", "axis"),
    [
        ((70_001,), (30_000,), 0),
        ((5, 9_003), (5, 5000), 1),
        ((1_501, 37), (700, 37), 0),
        ((3_001, 5), (2000, 5), 0),
    ],
)
def test_large_chunks_are_averaged(
    xp: Any, shape: Any, chunks: Any, axis: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_from(monkeypatch, 1, "gaps")
    for density, adjust, ignore_na in ((0, True, False), (0.5, False, False), (0.99, True, True)):
        x = gappy(shape, dtype, density)
        lazy = dc.ewm_mean(
            to_chunks(xp, x, chunks), axis, com=9, adjust=adjust, ignore_na=ignore_na
        )
        exact = averaged(x, axis, 0.1, adjust, ignore_na)
        assert_near(to_numpy(xp, lazy), exact, 1e-14, 2)


def test_a_mean_outlasts_a_gap_of_any_length(xp: Any) -> None:
    x = np.full(100_000, np.nan)
    x[:3], x[-1] = (1, 2, 3), 7
    for chunks, alpha in product((100_000, 999), (0.3, 1.0)):
        found = to_numpy(xp, dc.ewm_mean(to_chunks(xp, x, chunks), alpha=alpha))
        assert (found[2:-1] == found[2]).all()
        assert found[-1] == 7


def test_infinities_of_both_signs_are_not_a_number_for_good(xp: Any) -> None:
    x = np.array([1, np.inf, 2, -np.inf, 3, 4] * 9)
    for chunks, adjust in product((54, 5, 1), (True, False)):
        found = to_numpy(xp, dc.ewm_mean(to_chunks(xp, x, chunks), alpha=0.9, adjust=adjust))
        np.testing.assert_array_equal(found, [1, np.inf, np.inf, *[np.nan] * 51])


def test_a_constant_stays_what_it_is() -> None:
    x = da.full(1000, 0.1, chunks=100)
    np.testing.assert_allclose(dc.ewm_mean(x, span=20).compute(), 0.1, rtol=1e-15)


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ns]", "M8[D]"])
def test_dates_are_filled(dtype: str, loops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_from(monkeypatch, 1 if loops else math.inf, "gaps")
    ticks = np.random.default_rng(0).integers(0, 99, (30, 20))
    x = np.where(ticks < 60, np.iinfo("i8").min, ticks).view(dtype)
    for axis, limit, reverse in product((0, 1), (None, 3), (False, True)):
        result = (dc.bfill if reverse else dc.ffill)(da.from_array(x, chunks=(7, 6)), axis, limit)
        assert result.dtype == x.dtype
        np.testing.assert_array_equal(
            result.compute().view("i8"), filled(x, axis, limit, reverse=reverse).view("i8")
        )


@pytest.mark.parametrize("dtype", ["?", "i1", "u8"])
def test_what_has_no_gaps_is_returned(dtype: str) -> None:
    x = da.ones((4, 4), chunks=2, dtype=dtype)
    for filled_ in (dc.ffill(x, 0), dc.bfill(x, limit=3)):
        assert (filled_.dtype, filled_.chunks) == (x.dtype, x.chunks)
        np.testing.assert_array_equal(filled_.compute(), x)
    with pytest.raises(np.exceptions.AxisError):
        dc.ffill(x, 2)
    assert dc.ewm_mean(x, alpha=0.5).dtype == np.float64
    np.testing.assert_array_equal(dc.ewm_mean(x, alpha=0.5).compute(), np.ones((4, 4)))


def test_what_is_masked_stays_so_and_fills_nothing() -> None:
    x = np.ma.array([1, np.nan, 5, np.nan, np.nan, np.nan, 9], mask=[0, 0, 1, 0, 0, 0, 0])
    for chunks in (7, 2, 1):
        lazy = da.from_array(x, chunks=chunks)
        found = dc.ffill(lazy, limit=3).compute()
        np.testing.assert_array_equal(found.mask, x.mask)
        np.testing.assert_array_equal(found.filled(-1), [1, 1, -1, 1, np.nan, np.nan, 9])
        means = dc.ewm_mean(lazy, alpha=0.5, ignore_na=True, min_periods=2).compute()
        np.testing.assert_array_equal(means.mask, x.mask)
        np.testing.assert_allclose(means.filled(-1), [*[np.nan] * 2, -1, *[np.nan] * 3, 19 / 3])


def test_the_loops_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gappy((300, 400), "f8", 0.7)
    lazy = da.from_array(x, chunks=(300, 400))
    calls = [
        partial(dc.ffill, lazy, 0),
        partial(dc.bfill, lazy, 1, 3),
        partial(dc.ewm_mean, lazy, 0, alpha=0.2),
        partial(dc.ewm_mean, lazy, 1, alpha=0.2, adjust=False),
    ]
    fast = [call().compute() for call in calls]
    compile_from(monkeypatch, math.inf, "gaps")
    for call, expected in zip(calls, fast, strict=True):
        np.testing.assert_allclose(call().compute(), expected, rtol=1e-13, atol=1e-15)


def test_the_weight_of_a_new_element_has_four_names() -> None:
    x = da.from_array(gappy((50,), "f8", 0.3), chunks=9)
    expected = dc.ewm_mean(x, alpha=0.25).compute()
    half = -np.log(2) / np.log(0.75)
    for given_as in ({"span": 7}, {"com": 3}, {"halflife": half}):
        np.testing.assert_allclose(dc.ewm_mean(x, **given_as).compute(), expected, rtol=1e-14)


@pytest.mark.parametrize(
    "given_as",
    [{}, {"alpha": 0.1, "com": 1}, {"alpha": 0}, {"alpha": 1.1}, {"span": 0.9}, {"halflife": 0}],
)
def test_other_weights_are_refused(given_as: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"takes one of|must be"):
        dc.ewm_mean(da.ones(3), **given_as)


def test_other_arguments_are_refused() -> None:
    x = da.ones(3, chunks=2)
    for limit in (0, -1, 1.5):
        with pytest.raises(ValueError, match="limit must be a positive integer or None"):
            dc.ffill(x, limit=limit)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_periods must be"):
        dc.ewm_mean(x, alpha=0.5, min_periods=-1)
    for call in (dc.ffill, partial(dc.ewm_mean, alpha=0.5), dc.cumulative_trapezoid):
        with pytest.raises(TypeError, match="does not take dtype object"):
            call(x.astype(object))
    for dtype in ("c8", "M8[s]"):
        with pytest.raises(TypeError, match="ewm_mean does not take dtype"):
            dc.ewm_mean(x.astype("i8").astype(dtype), alpha=0.5)


@pytest.mark.parametrize(
    "monoid",
    [
        fill(None),
        fill(3),
        *(weighted_mean(0.3, *flags) for flags in product((True, False), repeat=2)),
    ],
)
def test_combining_is_associative(monoid: Any) -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((9, 500)) < 0.6, np.nan, rng.normal(size=(9, 500)))
    identity = monoid.identity(np.dtype("f8"))

    def state(rows: Any) -> Any:
        return gaps.lift(Operation(monoid, np.dtype("f8"), np.dtype("f8")), rows, (0,), None)

    def equal(a: Any, b: Any) -> None:
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)

    a, b, c = (state(values[i : i + 3]) for i in (0, 3, 6))
    left = monoid.combine(monoid.combine(a, b), c)
    equal(left, monoid.combine(a, monoid.combine(b, c)))
    equal(left, state(values))
    for one in (monoid.combine(identity, a), monoid.combine(a, identity)):
        equal(one, a)


def integrated(y: Any, x: Any, dx: float, axis: int, initial: int | None) -> Any:
    """Return SciPy's formula in wide floats."""
    wide = np.moveaxis(y.astype("G" if y.dtype.kind == "c" else "g"), axis, -1)
    width = np.longdouble(dx)
    if x is not None:
        x = x.astype("g")
        width = np.diff(x if x.ndim == 1 else np.moveaxis(x, axis, -1))
    areas = np.cumsum(width * (wide[..., 1:] + wide[..., :-1]) / 2, -1)
    if initial is not None:
        areas = np.concatenate([np.zeros_like(wide[..., :1]), areas], -1)
    return np.moveaxis(areas, -1, axis)


@given(case=arrays(["f4", "f8", "i2", "c16"], shapes(1, 3), st.integers(-99, 99)), data=st.data())
def test_integrals_are_those_of_the_formula(xp: Any, case: Any, data: Any) -> None:
    array, chunks = case
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    initial = data.draw(st.sampled_from([None, 0]))
    y = to_chunks(xp, array, chunks)
    if array.shape[axis] == 0:
        with pytest.raises(ValueError, match="must have a sample"):
            dc.cumulative_trapezoid(y, axis=axis)
        return
    kind = data.draw(st.sampled_from(["dx", "line", "whole", "numpy"]))
    x, given_x = None, None
    if kind != "dx":
        shape = array.shape if kind == "whole" else (array.shape[axis],)
        x = np.random.default_rng(1).integers(0, 9, shape).astype("f4")
        given_x = x if kind == "numpy" else to_chunks(xp, x, data.draw(chunkings(shape)))
    result = dc.cumulative_trapezoid(y, given_x, 0.25, axis, initial)
    exact = integrated(array, x, 0.25, axis, initial)
    assert result.shape == exact.shape
    np.testing.assert_allclose(to_numpy(xp, result), exact, rtol=1e-6, atol=1e-4)


def test_an_integral_keeps_the_chunks_and_says_what_it_does_not_take() -> None:
    y = da.ones((6, 8), chunks=(2, 3))
    assert dc.cumulative_trapezoid(y, initial=0).chunks == y.chunks
    assert dc.cumulative_trapezoid(y).chunks == ((2, 2, 2), (2, 3, 2))
    with pytest.raises(ValueError, match="initial must be None or 0"):
        dc.cumulative_trapezoid(y, initial=1)
    for x in (np.ones(6), np.ones((8, 6)), np.ones((1, 6, 8))):
        with pytest.raises(ValueError, match="x must have"):
            dc.cumulative_trapezoid(y, x)
    with pytest.raises(TypeError, match=r"masked|Masked"):
        dc.cumulative_trapezoid(da.from_array(np.ma.ones(4)))


DECAYS = [
    *({"alpha": alpha} for alpha in (0.05, 0.499, 0.5, 0.9, 1.0)),
    *({"com": com} for com in (0, 1, 2.5)),
    *({"span": span} for span in (1, 3, 7.5)),
    *({"halflife": halflife} for halflife in (0.7, 1, 12)),
]


@pytest.mark.parametrize("given_as", DECAYS, ids=str)
def test_pandas_gives_the_same_means(xp: Any, given_as: dict[str, float]) -> None:
    pandas = pytest.importorskip("pandas")
    ((name, value),) = given_as.items()
    is_half = (name, value) in [("alpha", 0.5), ("com", 1), ("span", 3), ("halflife", 1)]
    for density, least, adjust, ignore_na in product(
        (0, 0.4, 0.95), (0, 4), (True, False), (True, False)
    ):
        x = gappy((200,), "f8", density, 3)
        options = {"adjust": adjust, "ignore_na": ignore_na, "min_periods": least}
        theirs = {name: value}
        if is_half and not (adjust or ignore_na):
            # There pandas has a case of its own, as the docstring says.
            theirs = {"alpha": np.nextafter(0.5, 1)}
        expected = pandas.Series(x).ewm(**theirs, **options).mean().to_numpy()
        found = to_numpy(xp, dc.ewm_mean(to_chunks(xp, x, 33), **given_as, **options))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
        alpha = {"alpha": value, "com": 1 / (1 + value), "span": 2 / (1 + value)}.get(name)
        if alpha is not None:
            # So is the loop that other tests are held to.
            loop = averaged(x, 0, min(alpha, 1 - 1e-16), adjust, ignore_na, least)
            np.testing.assert_allclose(loop.astype("f8"), expected, rtol=1e-12, atol=1e-15)


def test_half_a_weight_is_no_case_of_its_own() -> None:
    x = da.from_array([1, np.nan, 3], chunks=1)
    means = [dc.ewm_mean(x, alpha=a, adjust=False).compute()[2] for a in (0.499999, 0.5, 0.500001)]
    np.testing.assert_allclose(means, 7 / 3, rtol=1e-5)
    assert means == sorted(means)


def test_pandas_fills_alike() -> None:
    pandas = pytest.importorskip("pandas")
    for density, limit in product((0, 0.4, 0.95), (None, 1, 5)):
        series = pandas.Series(gappy((200,), "f8", density, 3))
        lazy = da.from_array(series.to_numpy(), chunks=7)
        np.testing.assert_array_equal(dc.ffill(lazy, 0, limit), series.ffill(limit=limit))
        np.testing.assert_array_equal(dc.bfill(lazy, 0, limit), series.bfill(limit=limit))


@pytest.mark.parametrize("limit", [None, 2])
def test_xarray_gives_the_same(limit: int | None) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("bottleneck")
    x = gappy((20, 30), "f8", 0.6)
    whole = xarray.DataArray(x, dims=("a", "b"))
    for axis, dim in enumerate("ab"):
        lazy = da.from_array(x, chunks=(3, 4))
        np.testing.assert_array_equal(dc.ffill(lazy, axis, limit), whole.ffill(dim, limit))
        np.testing.assert_array_equal(dc.bfill(lazy, axis, limit), whole.bfill(dim, limit))


@pytest.mark.parametrize(("adjust", "ignore_na"), [*product((True, False), repeat=2)])
def test_means_by_times_are_pandas(xp: Any, adjust: bool, ignore_na: bool) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    hours = np.cumsum(rng.integers(0, 30, 60))
    times = np.datetime64("2020-01-01", "s") + hours.astype("m8[h]")
    flags: dict[str, Any] = {"adjust": adjust, "ignore_na": ignore_na}
    for dtype, least, chunks in (("f8", 0, ((0, 1, 9, 50), 2)), ("f4", 3, (7, 1))):
        x = gappy((60, 2), dtype, 0.3)
        frame = pandas.DataFrame(x.astype("f8"))
        weighted = frame.ewm(halflife="6h", times=times, min_periods=least, **flags)
        lazy, tolerance = to_chunks(xp, x, chunks), 1e-10 if dtype == "f8" else 2e-5
        for at, half in (
            (times, np.timedelta64(6, "h")),
            (da.from_array(times, chunks=9), "6h"),
            (hours, 6),
        ):
            found = dc.ewm_mean(lazy, 0, halflife=half, times=at, min_periods=least, **flags)
            assert found.dtype == dtype
            assert found.chunks == lazy.chunks
            expected = weighted.mean()
            np.testing.assert_allclose(to_numpy(xp, found), expected, tolerance, tolerance)
    if adjust:
        expected = frame[0].ewm(halflife="6h", times=times, com=3, **flags).mean()
        found = dc.ewm_mean(lazy[:, 0], halflife="6h", times=times, com=3, **flags)
        np.testing.assert_allclose(to_numpy(xp, found), expected, rtol=2e-5, atol=2e-5)


def test_times_that_do_not_fit_are_refused() -> None:
    x, times = da.ones(3, chunks=2), np.array(["2020-01-01"] * 3, "M8[s]")
    for given_as, error, message in (
        ({"times": times, "halflife": 3}, TypeError, "halflife of ewm_mean must be a duration"),
        ({"times": times[1:], "halflife": "1h"}, ValueError, "for each of 3 elements along axis 0"),
        ({"times": times, "halflife": "0h"}, ValueError, "must be above 0"),
        ({"times": [1, 2, 3]}, ValueError, "must be above 0"),
        ({"times": [1, np.nan, 3], "halflife": 1}, ValueError, "must not be missing"),
        ({"times": [1, 2, 3], "halflife": 1, "com": 1, "adjust": False}, ValueError, "alone"),
    ):
        with pytest.raises(error, match=message):
            dc.ewm_mean(x, **given_as)


SPREADS = ("ewm_var", "ewm_std", "ewm_cov", "ewm_corr")


@pytest.mark.parametrize("name", ["ewm_sum", *SPREADS])
@given(case=lines(FLOATS), alpha=st.sampled_from([0.01, 0.3, 0.6]), data=st.data())
def test_sums_and_spreads_are_those_of_a_loop(
    xp: Any, name: str, case: Any, alpha: float, data: Any
) -> None:
    array, chunks, axis = case
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    array, y = (
        np.where(np.isnan(array), np.nan, rng.normal(size=array.shape)).astype(array.dtype)
        for _ in range(2)
    )
    options: dict[str, Any] = {"ignore_na": data.draw(st.booleans())}
    if name != "ewm_sum":
        options["adjust"] = data.draw(st.booleans())
    if name not in ("ewm_sum", "ewm_corr"):
        options["bias"] = data.draw(st.booleans())
    heads, cut = data.draw(segments(array, chunks, axis))
    others = [to_chunks(xp, y, chunks)] if name in ("ewm_cov", "ewm_corr") else []
    result = getattr(dc, name)(
        to_chunks(xp, array, chunks),
        *others,
        axis,
        alpha=alpha,
        segments=None if heads is None else to_chunks(xp, heads, cut),
        method=data.draw(st.sampled_from(METHODS)),
        **options,
    )
    assert result.chunks == chunks
    assert result.dtype == array.dtype
    flags = np.zeros(array.shape, "?") if heads is None else along(heads, array, axis)
    flags = np.moveaxis(np.broadcast_to(flags, array.shape), axis, -1)
    exact = np.moveaxis(np.empty(array.shape), axis, -1)
    a, b = np.moveaxis(array, axis, -1), np.moveaxis(y if others else array, axis, -1)
    arguments = {"adjust": True, "bias": False} | options
    for at in np.ndindex(a.shape[:-1]):
        cuts = [0, *np.flatnonzero(flags[at]), a.shape[-1]]
        for begin, end in pairwise(cuts):
            of_line = spread_out(name, a[at][begin:end], b[at][begin:end], alpha, **arguments)
            exact[at][begin:end] = of_line
    exact = np.moveaxis(exact, -1, axis)
    found = to_numpy(xp, result).astype("f8")
    found[np.isinf(exact)] = np.inf
    tolerance = {2: 4e-3, 4: 1e-5, 8: 1e-10}[array.dtype.itemsize]
    np.testing.assert_allclose(found, exact, rtol=tolerance, atol=20 * tolerance)


@pytest.mark.parametrize("name", ["ewm_sum", *SPREADS])
@pytest.mark.parametrize(
    ("shape", "chunks", "axis"),
    [((20_001,), (9_000,), 0), ((3, 3_003), (3, 2000), 1), ((801, 37), (300, 37), 0)],
)
def test_large_chunks_are_spread(
    xp: Any, name: str, shape: Any, chunks: Any, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    compile_from(monkeypatch, 1, "gaps")
    x, y = gappy(shape, "f8", 0.1), gappy(shape, "f8", 0.1, 1)
    pairs = [y] if name in ("ewm_cov", "ewm_corr") else []
    flags = (True, False) if name != "ewm_sum" else (True,)
    for adjust in flags:
        given_as = {} if name == "ewm_sum" else {"adjust": adjust}
        found = to_numpy(
            xp,
            getattr(dc, name)(
                *(to_chunks(xp, of, chunks) for of in (x, *pairs)), axis, com=9, **given_as
            ),
        )
        for line in range(0, x.size // shape[axis], 7):
            a, b = (np.moveaxis(of, axis, -1).reshape(-1, shape[axis])[line] for of in (x, y))
            weighted = pandas.Series(a).ewm(com=9, adjust=adjust)
            others = (pandas.Series(b),) if pairs else ()
            expected = getattr(weighted, name.removeprefix("ewm_"))(*others)
            got = np.moveaxis(found, axis, -1).reshape(-1, shape[axis])[line]
            np.testing.assert_allclose(got[20:], expected[20:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("adjust", [True, False])
def test_spreads_far_from_zero_keep_their_digits(xp: Any, adjust: bool) -> None:
    # float64 holds all digits of these numbers.
    x = np.random.default_rng(0).integers(0, 64, 600) / 64 + 1e9
    lazy = to_chunks(xp, x, 70)
    found = to_numpy(xp, dc.ewm_var(lazy, alpha=0.1, adjust=adjust))
    exact = spread_out("ewm_var", x - 1e9, x - 1e9, 0.1, adjust, False, False)
    np.testing.assert_allclose(found, exact, rtol=2e-6)
    both = to_numpy(xp, dc.ewm_cov(lazy, lazy, alpha=0.1, adjust=adjust))
    np.testing.assert_allclose(both, exact, rtol=2e-6)


@pytest.mark.each(4)
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 0.999999, 0.5, 1e-6])
@pytest.mark.parametrize("name", SPREADS)
def test_pandas_gives_the_same_spreads(
    xp: Any, name: str, alpha: float, loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas")
    compile_from(monkeypatch, 1 if loops else math.inf, "gaps")
    gap = math.nan
    lines = [
        ([1, 3, 2, 7], [2, 7, 1, 8]),
        ([4, 4, 5, gap, 6], [1, 2, 3, 4, 6]),
        ([gap, 2, gap, 5, 4, 7], [3, 1, 4, 1, gap, 9]),
    ]
    for (x, y), chunks, *flags in product(lines, (1, 2, -1), *((True, False),) * 3):
        adjust, ignore_na, bias = flags
        # pandas has another formula for a half.
        theirs = alpha + 1e-13 if alpha == 0.5 and not adjust else alpha
        a, b = pandas.Series(x, dtype="f8"), pandas.Series(y, dtype="f8")
        weighted = a.ewm(alpha=theirs, adjust=adjust, ignore_na=ignore_na)
        pair = name in ("ewm_cov", "ewm_corr")
        options = {} if name == "ewm_corr" else {"bias": bias}
        others = (b,) if pair else ()
        expected = getattr(weighted, name.removeprefix("ewm_"))(*others, **options).to_numpy()
        lazy = [to_chunks(xp, of.to_numpy(), chunks) for of in (a, *others)]
        given_as: Any = {"alpha": alpha, "adjust": adjust, "ignore_na": ignore_na, **options}
        found = to_numpy(xp, getattr(dc, name)(*lazy, **given_as))
        # pandas takes a difference that loses digits.
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-12)


@pytest.mark.each(2)
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("adjust", [True, False])
@pytest.mark.parametrize("name", SPREADS)
def test_a_lost_weight_is_no_noise(
    xp: Any, name: str, adjust: bool, loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_from(monkeypatch, 1 if loops else math.inf, "gaps")
    x = np.full(1200, np.nan)
    # 2 ** -60 of a weight is left, or 2 ** -1074, or nothing.
    for at, alone in ((60, False), (1074, True), (1199, True)):
        line = x.copy()
        line[[0, at]] = 1, 3
        for chunks in (1200, 50):
            lazy = [to_chunks(xp, line, chunks)] * (2 if name in ("ewm_cov", "ewm_corr") else 1)
            found = to_numpy(xp, getattr(dc, name)(*lazy, alpha=0.5, adjust=adjust))[-1]
            exact = {"ewm_corr": 1, "ewm_std": math.sqrt(2)}.get(name, 2)
            np.testing.assert_allclose(found, math.nan if alone else exact, rtol=1e-12)


@pytest.mark.each(3)
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("alpha", [1.0, 0.5, 1e-6])
@pytest.mark.parametrize("name", SPREADS)
def test_spreads_are_not_a_number_from_an_infinity_on(
    xp: Any, name: str, alpha: float, loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_from(monkeypatch, 1 if loops else math.inf, "gaps")
    x = np.array([1, 3, np.inf, 2, np.nan, 3, -np.inf, 4, 1, np.nan, 2, 5])
    y = np.array([2.0, 1, 5, 1, 3, 3, 1, 2, 1, 7, 8, 2])
    heads = np.arange(12) == 8
    pairs = [(x, y), (y, x)] if name in ("ewm_cov", "ewm_corr") else [(x,)]
    bias = () if name == "ewm_corr" else (True, False)
    for arrays_of, chunks, adjust in product(pairs, (1, 5, 12), (True, False)):
        for given_as, method in product([{"bias": b} for b in bias] or [{}], METHODS[:2]):
            lazy = [to_chunks(xp, of, chunks) for of in arrays_of]
            kept: Any = {"alpha": alpha, "adjust": adjust, "method": method, **given_as}
            of_all = getattr(dc, name)(*lazy, **kept)
            of_segments = getattr(dc, name)(*lazy, **kept, segments=to_chunks(xp, heads, chunks))
            clean = [to_chunks(xp, of[8:], 4) for of in arrays_of]
            later = to_numpy(xp, getattr(dc, name)(*clean, **kept))
            first = to_numpy(xp, of_all)
            assert np.isnan(first[2:]).all()
            cut = to_numpy(xp, of_segments)
            assert np.isnan(cut[2:8]).all()
            np.testing.assert_array_equal(cut[:2], first[:2])
            np.testing.assert_allclose(cut[8:], later, rtol=1e-9, atol=1e-12)


def test_pairs_of_other_shapes_and_kinds_are_refused() -> None:
    x = da.ones((4, 4), chunks=2)
    for call in (dc.ewm_cov, dc.ewm_corr):
        with pytest.raises(ValueError, match="takes arrays of one shape"):
            call(x, x[:2], alpha=0.5)
        with pytest.raises(TypeError, match="does not take dtype complex128"):
            call(x, x * 1j, alpha=0.5)
        with pytest.raises(ValueError, match="takes one of alpha, span, halflife, com"):
            call(x, x)
    assert dc.ewm_cov(x.astype("f4"), x.astype("i4"), com=1).dtype == np.float64


@pytest.mark.parametrize("flags", [*product((True, False), repeat=2)])
@pytest.mark.parametrize("statistic", ["sum", "var", "cov"])
def test_combining_spreads_is_associative(statistic: str, flags: tuple[bool, bool]) -> None:
    adjust, ignore_na = flags
    rng = np.random.default_rng(0)
    values = np.where(rng.random((9, 300)) < 0.5, np.nan, rng.normal(size=(9, 300)))
    if statistic == "sum":
        monoid: Any = weighted_sum(0.3, ignore_na)
    else:
        monoid = weighted_spread(statistic, 0.3, adjust, ignore_na, True)
    dtype = np.dtype("c16" if statistic == "cov" else "f8")
    values = (values + 1j * values[::-1]) if statistic == "cov" else values
    op = Operation(monoid, dtype, np.dtype("f8"))
    a, b, c = (gaps.lift(op, values[i : i + 3], (0,), None) for i in (0, 3, 6))
    left = monoid.combine(monoid.combine(a, b), c)
    right = monoid.combine(a, monoid.combine(b, c))
    identity = monoid.identity(dtype)
    for state in (right, gaps.lift(op, values, (0,), None)):
        np.testing.assert_allclose(monoid.results(state), monoid.results(left), rtol=1e-10)
    for state in (monoid.combine(identity, a), monoid.combine(a, identity)):
        np.testing.assert_allclose(monoid.results(state), monoid.results(a), rtol=1e-12)
