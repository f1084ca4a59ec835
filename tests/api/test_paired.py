"""Moments of several variables and weighted ones, against NumPy, SciPy and fractions."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask.array import stats as dask_stats
from support.loops import compile_from

import dask_coop as dc
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.paired import COMOMENTS, WEIGHTED_MEAN, WEIGHTED_VAR
from dask_coop.chunks import paired
from dask_coop.chunks.numpy import compiled, reduce

stats = pytest.importorskip("scipy.stats", reason="the judge of shapes and lines is SciPy")

#: Of the state's sums, which are good to some units in the last place, and of NumPy's own.
CLOSE = {"rtol": 1e-12, "atol": 1e-13}

CHUNKS = [(4, 60), (2, 17), (1, 60), (4, 1), ((0, 4), (20, 0, 40))]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def fractions(x: Any) -> Any:
    return np.vectorize(Fraction, otypes=[object])(x)


def exact_products(x: Any, w: Any) -> Any:
    """Return the sums of weights times products of deviations of rows, as fractions."""
    x, w = fractions(x), fractions(w)
    d = x - ((x * w).sum(1) / w.sum())[:, None]
    return (d * w) @ d.T


# Covariances.


@pytest.mark.cublas
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True},
        {"ddof": 2},
        {"fweights": np.arange(60) % 4},
        {"aweights": np.arange(60) / 7},
        {"fweights": np.arange(60) % 3, "aweights": np.arange(60) / 7, "ddof": 1},
        {"rowvar": False},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i2", "?", "c16"])
def test_covariances_are_numpy_s(xp: ModuleType, chunks: Any, options: Any, dtype: str) -> None:
    x = (numbers(4, 60) * 3).astype(dtype)
    x = x + 1j * numbers(4, 60, seed=1) if dtype == "c16" else x
    want = np.cov(x, **options | {"rowvar": True})
    if "rowvar" in options:
        x, chunks = x.T, chunks[::-1]
    lazy = dc.cov(to_chunks(xp, x, chunks), **options)
    assert lazy.dtype == want.dtype
    np.testing.assert_allclose(to_numpy(xp, lazy), want, **CLOSE)


@pytest.mark.cublas
@pytest.mark.parametrize("dtype", ["f8", "i4", "c16"])
def test_correlations_are_numpy_s(xp: ModuleType, dtype: str) -> None:
    x, y = (numbers(3, 60) * 9).astype(dtype), numbers(60, seed=1)
    lazy = dc.corrcoef(to_chunks(xp, x, (2, 17)), to_chunks(xp, y, 20))
    np.testing.assert_allclose(to_numpy(xp, lazy), np.corrcoef(x, y), **CLOSE)
    lazy = dc.cov(to_chunks(xp, x.T, (17, 1)), to_chunks(xp, y[:, None], 20), rowvar=False)
    np.testing.assert_allclose(to_numpy(xp, lazy), np.cov(x, y), **CLOSE)
    lazy = dc.corrcoef(to_chunks(xp, y, 7), dtype="f4")
    assert (lazy.shape, lazy.dtype) == ((), np.dtype("f4"))
    assert to_numpy(xp, lazy) == 1


@pytest.mark.cublas
@pytest.mark.parametrize("chunks", [(3, 200), (2, 17), (3, 1)], ids=str)
def test_a_large_offset_costs_covariances_no_digits(xp: ModuleType, chunks: Any) -> None:
    x, w = numbers(3, 200) + 1e9, np.arange(200) % 5
    one = np.ones(200, int)
    for weights, options in ((one, {}), (w, {"fweights": w})):
        want = exact_products(x, weights) / (int(weights.sum()) - 1)
        got = to_numpy(xp, dc.cov(to_chunks(xp, x, chunks), **options))
        assert np.max(np.abs(fractions(got) / want - 1)) < 1e-14


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "?"])
@pytest.mark.parametrize("shape", [(3, 5000), (70, 4999), (130, 4096)], ids=str)
@pytest.mark.parametrize("rowvar", [True, False])
def test_covariances_of_many_samples(
    xp: ModuleType, shape: tuple[int, int], dtype: str, rowvar: bool
) -> None:
    x = (numbers(*shape) * 3 + np.arange(shape[0])[:, None]).astype(dtype)
    # Every 64th sample lies elsewhere.
    x[:, ::64] += np.array(50).astype(dtype)
    chunks, want = shape, np.cov(x.astype("f8"))
    lazy = to_chunks(xp, x if rowvar else x.T.copy(), chunks if rowvar else chunks[::-1])
    np.testing.assert_allclose(to_numpy(xp, dc.cov(lazy, rowvar=rowvar)), want, **CLOSE)
    if rowvar:
        of_two = to_numpy(xp, dc.cov(lazy.rechunk((2, -1)), to_chunks(xp, x[:5], (5, shape[1]))))
        np.testing.assert_allclose(of_two, np.cov(x.astype("f8"), x[:5].astype("f8")), **CLOSE)
    if dtype == "f8":
        far = to_numpy(xp, dc.cov(lazy + 1e9, rowvar=rowvar))
        near = np.cov((x + 1e9).astype("g") - 1e9)
        np.testing.assert_allclose(far, near, rtol=1e-12, atol=1e-12)
        with_nan = x.copy()
        with_nan[1, 77], with_nan[2, 33] = np.nan, np.inf
        got = to_numpy(xp, dc.cov(to_chunks(xp, with_nan, shape)))
        with np.errstate(invalid="ignore"):
            want = np.cov(with_nan)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.cublas
@pytest.mark.parametrize("shape", [(2, 0), (0, 5), (3, 1), (1, 1), (1, 4)], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_covariances_of_few_samples(xp: ModuleType, shape: tuple[int, int]) -> None:
    x = numbers(*shape)
    np.testing.assert_allclose(to_numpy(xp, dc.cov(to_chunks(xp, x, 1))), np.cov(x), rtol=1e-15)


@pytest.mark.cublas
def test_nan_spoils_its_variable_alone(xp: ModuleType) -> None:
    x = numbers(3, 20)
    x[1, 7] = np.nan
    np.testing.assert_allclose(to_numpy(xp, dc.cov(to_chunks(xp, x, 6))), np.cov(x), **CLOSE)


def test_what_covariances_refuse() -> None:
    x = da.ones((2, 6), chunks=2)
    with (
        dask.config.set({"coop.fallback": "raise"}),
        pytest.raises(TypeError, match="numbers"),
    ):
        dc.corrcoef(x.astype("M8[s]"))
    for dtype in ("int64", "longdouble"):
        with pytest.raises(TypeError, match=f"cov does not give dtype={np.dtype(dtype)}"):
            dc.cov(x, dtype=dtype)
    with pytest.raises(ValueError, match="axes"):
        dc.cov(x[None])
    with pytest.raises(ValueError, match="as many samples"):
        dc.cov(x, x[:, :3])
    with pytest.raises(TypeError, match="fweights must be integer"):
        dc.cov(x, fweights=np.arange(6) / 2)
    with pytest.raises(TypeError, match="fweights of cov must be integers"):
        dc.cov(x, fweights=da.ones(6))
    with pytest.raises(ValueError, match="aweights cannot be negative"):
        dc.cov(x, aweights=-np.ones(6))
    with pytest.raises(ValueError, match="a number for each of 6 samples"):
        dc.cov(x, aweights=np.ones(5))


# Weights.

AXES = [(None, "full"), (0, "line"), (1, "line"), ((2, 0), "lines"), ((0, 1, 2), "full")]


def weights_of(shape: tuple[int, ...], axis: Any, form: str) -> Any:
    axes = axis if isinstance(axis, tuple) else (axis,)
    sides = shape if form == "full" else tuple(shape[d] for d in axes)
    return np.random.default_rng(5).integers(0, 5, sides) / 4


@pytest.mark.each(3)
@pytest.mark.parametrize("chunks", [(7, 5, 30), (3, 2, 7), (7, 1, 1)], ids=str)
@pytest.mark.parametrize(("axis", "form"), AXES, ids=str)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i2", "?", "c16"])
def test_averages_are_numpy_s(
    xp: ModuleType, dtype: str, axis: Any, form: str, chunks: Any
) -> None:
    x = (numbers(7, 5, 30) * 9).astype(dtype)
    w = weights_of(x.shape, axis, form)
    want = np.average(x, axis, w, returned=True, keepdims=True)
    lazy = to_chunks(xp, x, chunks)
    got = dc.average(lazy, axis, w, returned=True, keepdims=True)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(to_numpy(xp, one), other, rtol=1e-12, atol=1e-12)
    mean = dc.mean(lazy, axis, weights=da.from_array(w, chunks=2))
    np.testing.assert_allclose(to_numpy(xp, mean), np.average(x, axis, w), **CLOSE)
    plain, counts = dc.average(lazy, axis, returned=True)
    want = np.average(x, axis, returned=True)
    np.testing.assert_allclose(to_numpy(xp, plain), want[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(to_numpy(xp, counts), want[1])


@pytest.mark.each(3)
@pytest.mark.parametrize("size", [(9, 40), (300, 40), (90, 700)], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("chunks", [(1000, 1000), (7, 20), (1000, 1)], ids=str)
def test_weighted_variances(xp: ModuleType, size: Any, axis: Any, chunks: Any) -> None:
    x, w = numbers(*size) + 100, np.random.default_rng(6).integers(0, 5, size) / 4
    x[:, 3], w[5] = np.nan, 0
    sides = tuple(min(pair) for pair in zip(size, chunks, strict=True))
    lazy = to_chunks(xp, x, sides)
    valid = np.where(np.isnan(x), 0, w)
    clean = np.nan_to_num(x)
    with np.errstate(all="ignore"):
        mean = (valid * clean).sum(axis, keepdims=True) / valid.sum(axis, keepdims=True)
        want = (valid * (clean - mean) ** 2).sum(axis) / valid.sum(axis)
    np.testing.assert_allclose(to_numpy(xp, dc.nanvar(lazy, axis, weights=w)), want, **CLOSE)
    got = to_numpy(xp, dc.nanstd(lazy, axis, weights=w, dtype="f4"))
    np.testing.assert_allclose(got, np.sqrt(want), rtol=1e-6)
    got = to_numpy(xp, dc.nanmean(lazy, axis, weights=w, keepdims=True))
    np.testing.assert_allclose(got, mean, **CLOSE)
    spread = to_numpy(xp, dc.var(lazy, axis, weights=w))
    np.testing.assert_array_equal(np.isnan(spread), np.isnan((w * x).sum(axis)) | np.isnan(want))


def beginning_at(xp: ModuleType, array: Any, begin: int) -> da.Array:
    """Return an array of one chunk, with so many elements before it in memory."""
    flat = xp.asarray(np.append(np.zeros(begin, array.dtype), array))
    chunk = flat[begin:].reshape(array.shape)
    return da.from_array(chunk, chunks=-1, asarray=False)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("begins", [(0, 0), (1, 1), (3, 0)], ids=str)
def test_long_lines_of_pairs(xp: ModuleType, dtype: str, axis: Any, begins: Any) -> None:
    x, w = (numbers(2, 40_003) * 9 + 5).astype(dtype), np.random.default_rng(3).random((2, 40_003))
    w = w.astype("f4" if dtype == "f4" else "f8")
    if dtype != "i4":
        x[:, ::7] = np.nan
    # In memory that begins between vectors, for one of them or both.
    lazy = [beginning_at(xp, a, begin) for a, begin in zip((x, w), begins, strict=True)]
    valid, wide = ~np.isnan(x), w.astype("f8")
    mean = np.nansum(x * wide, axis, keepdims=True) / np.sum(wide * valid, axis, keepdims=True)
    got = to_numpy(xp, dc.nanmean(lazy[0], axis, weights=lazy[1], keepdims=True))
    close = {"rtol": 1e-6 if dtype == "f4" else 1e-11}
    np.testing.assert_allclose(got, mean, **close)
    var = np.nansum(wide * (x - mean) ** 2, axis) / np.sum(wide * valid, axis)
    got = to_numpy(xp, dc.nanvar(lazy[0], axis, weights=lazy[1]))
    np.testing.assert_allclose(got, var, **close)
    spread = to_numpy(xp, dc.average(lazy[0], axis, lazy[1]))
    assert (np.isnan(spread) == (dtype != "i4")).all()


@pytest.mark.parametrize("chunks", [500, 31, 1])
def test_a_large_offset_costs_weighted_variances_no_digits(xp: ModuleType, chunks: int) -> None:
    x, w = numbers(500) + 1e9, np.random.default_rng(6).random(500)
    ((want,),) = exact_products(x[None], w) / fractions(w).sum()
    got = to_numpy(xp, dc.var(to_chunks(xp, x, chunks), weights=w))
    assert abs(Fraction(float(got)) / want - 1) < 1e-14


@pytest.mark.cublas
@pytest.mark.parametrize("chunks", [60, 7, 1])
def test_far_elements_of_little_weight_cost_no_digits(xp: ModuleType, chunks: int) -> None:
    w = 10 ** np.random.default_rng(7).uniform(-30, 3, 60)
    x, y = numbers(2, 60) / np.sqrt(w)
    ((xx, xy), (_, yy)) = exact_products(np.stack([x, y]), w) / fractions(w).sum()
    lazy = [to_chunks(xp, of, chunks) for of in (x, y)]
    got = to_numpy(xp, dc.var(lazy[0], weights=w))
    assert abs(Fraction(float(got)) / xx - 1) < 1e-14
    ((_, got), _) = to_numpy(xp, dc.cov(*lazy, aweights=w, ddof=0))
    assert (Fraction(float(got)) - xy) ** 2 < xx * yy * Fraction(1e-28)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)], ids=str)
def test_weighted_nothing(xp: ModuleType, shape: Any) -> None:
    x = to_chunks(xp, np.ones(shape), shape)
    for function in (dc.average, dc.mean, dc.var):
        result = to_numpy(xp, function(x, 0, weights=np.ones(shape)))
        assert result.shape == shape[1:]
        assert np.isnan(result).all()


def test_what_weighted_statistics_refuse() -> None:
    x = da.ones((2, 6), chunks=2)
    with pytest.raises(TypeError, match="needs an axis"):
        dc.average(x, weights=np.ones(6))
    with pytest.raises(ValueError, match="fit neither"):
        dc.average(x, 0, np.ones(6))
    with pytest.raises(TypeError, match="ddof=1 beside weights"):
        dc.var(x, weights=x, ddof=1)
    with pytest.raises(TypeError, match="no where="):
        dc.mean(x, weights=x, where=x > 1)
    with dask.config.set({"coop.fallback": "raise"}), pytest.raises(TypeError, match="complex"):
        dc.var(x * 1j, weights=x)


@pytest.mark.parametrize("fallback", ["allow", "raise"])
@pytest.mark.parametrize("lazy", [False, True], ids=["known", "lazy"])
def test_masked_arrays_are_not_left_to_dask(fallback: str, lazy: bool) -> None:
    x = da.arange(12, chunks=3)
    masked: Any = da.ma.masked_greater(x, 3)
    masked = masked if lazy else masked.compute()
    calls: dict[str, Any] = {
        "m": lambda: dc.cov(masked),
        "y": lambda: dc.cov(x, masked),
        "x": lambda: dc.corrcoef(masked, x),
        "fweights": lambda: dc.cov(x, fweights=masked),
        "aweights": lambda: dc.cov(x, aweights=masked),
        "a": lambda: dc.average(masked, weights=x),
        "weights": lambda: dc.average(x, weights=masked),
    }
    with dask.config.set({"coop.fallback": fallback}):
        for name, call in calls.items():
            words = rf"MaskedArray, as {name} has them; fill them, .* da.ma.filled\({name}, value\)"
            with pytest.raises(TypeError, match=words):
                call()
        with pytest.raises(TypeError, match="MaskedArray"):
            dc.average(masked, returned=True)
        for function in (dc.mean, dc.var):
            with pytest.raises(TypeError, match="MaskedArray"):
                function(x, weights=masked)
        assert dc.average(masked).compute() == 1.5


@pytest.mark.parametrize("function", [dc.var, dc.std, dc.nanvar, dc.nanstd])
def test_negative_weights_in_memory_are_refused(xp: ModuleType, function: Any) -> None:
    x, words = to_chunks(xp, np.ones(3), 2), r"cannot be negative, got -2(\.0)?; leave"
    for weights in ([-1, -2, 3], np.array([-1, -2, 3]), np.array([-2, np.nan, 3])):
        with pytest.raises(ValueError, match=f"weights of {function.__name__} {words}"):
            function(x, weights=weights if xp is np else xp.asarray(weights))
    np.testing.assert_allclose(dc.mean([1.0, 2.0], weights=[-1, 3]), 2.5)


# Shapes of distributions.

POLICIES = ["propagate", "omit"]


def with_gaps(*shape: int) -> Any:
    """Return numbers with NaN, and lines that do not vary, have no element, or few."""
    x = np.random.default_rng(1).gamma(2.0, size=shape)
    x[np.random.default_rng(2).random(shape) < 0.1] = np.nan
    x[:, 3], x[:, 4], x[3:, 5], x[1:, 6], x[:, 7] = 1, np.nan, np.nan, np.nan, 1 + x[:, 8] / 9
    x[:, 9] = np.arange(shape[0])
    return x


@pytest.mark.each(2)
@pytest.mark.parametrize("chunks", [(120, 90), (37, 20), (120, 1)], ids=str)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.filterwarnings("ignore")
def test_shapes_are_scipy_s(xp: ModuleType, chunks: Any, policy: str, axis: Any) -> None:
    x = with_gaps(120, 90)
    lazy = to_chunks(xp, x, chunks)
    for bias in (True, False):
        got = to_numpy(xp, dc.skew(lazy, axis, bias, policy))
        np.testing.assert_allclose(got, stats.skew(x, axis, bias, policy), **CLOSE)
        for fisher in (True, False):
            got = to_numpy(xp, dc.kurtosis(lazy, axis, fisher, bias, policy))
            want = stats.kurtosis(x, axis, fisher, bias, policy)
            np.testing.assert_allclose(got, want, **CLOSE)


@pytest.mark.parametrize("dtype", ["f4", "f2", "i2", "?"])
@pytest.mark.filterwarnings("ignore")
def test_shapes_of_dtypes(xp: ModuleType, dtype: str) -> None:
    x = (numbers(50, 4) * 9).astype(dtype)
    lazy = dc.skew(to_chunks(xp, x, (7, 2)), keepdims=True)
    assert lazy.dtype == (dtype if dtype[0] == "f" else "f8")
    want = stats.skew(x.astype("f8"), keepdims=True)
    np.testing.assert_allclose(to_numpy(xp, lazy), want, rtol=2e-3 if dtype == "f2" else 1e-6)


@pytest.mark.parametrize("chunks", [400, 57, 1])
@pytest.mark.parametrize("size", [400, 20_000])
def test_a_large_offset_costs_shapes_no_digits(xp: ModuleType, chunks: int, size: int) -> None:
    x = np.random.default_rng(1).gamma(2.0, size=size) + 1e9
    exact = fractions(x)
    d = exact - exact.sum() / size
    second, third, fourth = (float((d**p).sum() / size) for p in (2, 3, 4))
    lazy = to_chunks(xp, x, chunks * size // 400)
    skew, kurtosis = dc.skew(lazy), dc.kurtosis(lazy, fisher=False)
    assert abs(to_numpy(xp, skew) / (third / second**1.5) - 1) < 1e-12
    assert abs(to_numpy(xp, kurtosis) / (fourth / second**2) - 1) < 1e-12
    assert abs(to_numpy(xp, dc.moment(lazy, 3)) / third - 1) < 1e-12


@pytest.mark.parametrize("func", ["skew", "nanskew", "kurtosis", "nankurtosis"])
@pytest.mark.filterwarnings("ignore")
def test_shapes_by_group_are_scipy_s(xp: ModuleType, func: str) -> None:
    x, labels = with_gaps(20, 90), np.random.default_rng(3).integers(-1, 5, 90)
    got, groups = dc.groupby_reduce(
        to_chunks(xp, x, (7, 37)), labels, func=[func, "mean"], expected_groups=range(6)
    )
    name, policy = func.removeprefix("nan"), POLICIES[func.startswith("nan")]
    shape, lines = getattr(stats, name), [x[:, labels == g] for g in groups]
    want = [shape(line, axis=1, nan_policy=policy) for line in lines]
    np.testing.assert_allclose(to_numpy(xp, got[0]), np.stack(want, 1), **CLOSE)


def test_what_shapes_refuse() -> None:
    x = da.ones((2, 6), chunks=2)
    with pytest.raises(ValueError, match="nan_policy of skew must be"):
        dc.skew(x, nan_policy="raise")
    with pytest.raises(ValueError, match="nan_policy of linregress must be"):
        dc.linregress(x, x, nan_policy="raise")
    with pytest.raises(TypeError, match="complex"):
        dc.kurtosis(x * 1j)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_products_in_batches_are_those_of_the_whole(
    order: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (numbers(n, 20_001, seed=n).astype(dtype, order=order) for n in (5, 7))
    whole = paired._product(a, b)
    monkeypatch.setattr(paired.chunks, "kind", lambda x: "cupy")
    np.testing.assert_allclose(paired._product(a, b), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("lines", [9, 4000])
def test_weighted_spreads_of_equal_elements_are_not_below_zero(lines: int) -> None:
    rng = np.random.default_rng(0)
    x, weights = np.repeat(rng.random((lines, 1)), 5, 1), rng.random((lines, 5))
    # Few elements are added by NumPy, and many by a compiled loop.
    for chunks in (3, -1):
        spread = dc.std(da.from_array(x, chunks=(-1, chunks)), axis=1, weights=weights)
        assert (spread.compute() >= 0).all()


# Lines through points.


@pytest.mark.each(2)
@pytest.mark.parametrize("points", [2, 3, 90, 9000])
@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.filterwarnings("ignore")
def test_lines_are_scipy_s(xp: ModuleType, points: int, alternative: str, policy: str) -> None:
    x = numbers(points)
    y = x[:, None] * [2, -1, 0.01] + numbers(points, 3, seed=1)
    if points > 3:
        y[1, 1] = np.nan
    lazy = to_chunks(xp, y, (-(-points // 5), 2))
    got = dc.linregress(x, lazy, alternative, nan_policy=policy)
    every = dc.linregress(
        to_chunks(xp, np.stack([x] * 3), (2, -(-points // 3))),
        lazy.T,
        alternative,
        nan_policy=policy,
        axis=1,
    )
    for line in range(3):
        want = stats.linregress(x, y[:, line], alternative, nan_policy=policy)
        for field in got._fields:
            for result in (got, every):
                value = to_numpy(xp, getattr(result, field))[line]
                # 1 - r**2 of nearly straight lines has lost some digits.
                close = {"rtol": 1e-10, "atol": 1e-13}
                # SciPy before 1.18 has no error of a line through two points.
                without = points == 2 and field in ("pvalue", "stderr", "intercept_stderr")
                expected = np.nan if without else getattr(want, field)
                np.testing.assert_allclose(value, expected, **close)


@pytest.mark.parametrize("chunks", [300, 13, 1])
def test_a_large_offset_costs_lines_no_digits(xp: ModuleType, chunks: int) -> None:
    x = numbers(300) + 1e9
    y = 3 * x + numbers(300, seed=1)
    ((_, xy), (_, _)) = products = exact_products(np.stack([x, y]), np.ones(300, int))
    line = dc.linregress(to_chunks(xp, x, chunks), to_chunks(xp, y, chunks))
    slope = xy / products[0][0]
    assert abs(Fraction(float(to_numpy(xp, line.slope))) / slope - 1) < 1e-14
    intercept = fractions(y).sum() / 300 - slope * fractions(x).sum() / 300
    # The mean of y is lost in 9 digits more.
    assert abs(Fraction(float(to_numpy(xp, line.intercept))) / intercept - 1) < 1e-12


@pytest.mark.cublas
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("least", [1, math.inf], ids=["loops", "numpy"])
@pytest.mark.parametrize("chunks", [9, 5, 1])
def test_squares_that_overflow_spoil_nothing_else(
    xp: ModuleType, monkeypatch: pytest.MonkeyPatch, chunks: int, least: float
) -> None:
    compile_from(monkeypatch, least, "paired", "moments", "groups")
    x, y = numbers(9) * 1e200, numbers(9, seed=1)
    lazy = [to_chunks(xp, of, chunks) for of in (x, y)]
    for function, judge in ((dc.cov, np.cov), (dc.corrcoef, np.corrcoef)):
        np.testing.assert_allclose(to_numpy(xp, function(*lazy)), judge(x, y), 1e-12)
    line, expected = dc.linregress(*lazy), stats.linregress(x, y)
    for name in ("slope", "intercept", "rvalue", "pvalue"):
        found = to_numpy(xp, getattr(line, name))
        np.testing.assert_allclose(found, getattr(expected, name), 1e-12)
    (cov, _) = dc.groupby_reduce(lazy[0], np.zeros(9, int), func="cov", y=lazy[1])
    np.testing.assert_allclose(to_numpy(xp, cov), np.cov(x, y)[:1, 1], 1e-12)
    assert to_numpy(xp, dc.var(lazy[0])) == to_numpy(xp, dc.var(lazy[0], weights=y * y)) == np.inf
    np.testing.assert_allclose(to_numpy(xp, dc.var(lazy[0] / 1e50)), np.var(x / 1e50), 1e-12)
    # An infinite element has no deviation.
    infinite = to_chunks(xp, np.append(x, -np.inf), chunks)
    for lazily in (dc.var(infinite), dc.nanvar(infinite), dc.describe(infinite).var):
        assert np.isnan(to_numpy(xp, lazily))


def test_what_lines_refuse() -> None:
    x = da.ones((2, 6), chunks=2)
    with pytest.raises(ValueError, match="alternative must be"):
        dc.linregress(x, x, "more")
    with pytest.raises(ValueError, match="does not fit"):
        dc.linregress(np.ones(6), x)
    with pytest.raises(TypeError, match="MaskedArray"):
        dc.linregress(x, da.ma.masked_greater(x, 3))


# The monoids.


@pytest.mark.each(3)
@pytest.mark.parametrize("row", [WEIGHTED_MEAN, WEIGHTED_VAR, COMOMENTS], ids=lambda r: r.name)
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("skipna", [False, True])
@pytest.mark.parametrize("shared", [(), (0,), (1,), (2,), (0, 2)], ids=str)
def test_loops_are_numpy_s_steps(row: Any, axes: Any, skipna: bool, shared: Any) -> None:
    shape = (6, 70, 40)
    x, y = numbers(*shape) + 4, numbers(*shape, seed=1) ** 2
    if skipna:
        x[np.random.default_rng(1).random(shape) < 0.1] = np.nan
    y = np.broadcast_to(y[tuple(slice(1 if d in shared else None) for d in range(3))], shape)
    op = Operation(row, np.dtype("f8"), np.dtype("f8"), skipna)
    by_loop = compiled.lift_pairs(op, x, y, axes)
    assert by_loop is not None
    by_steps = paired.lift(reduce.lift, op, x, y, axes)
    for field, one, other in zip(row.fields, by_loop, by_steps, strict=True):
        if not field.name.endswith("short"):
            other = np.broadcast_to(other, one.shape)
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("skipna", [False, True])
def test_loops_of_weighted_pairs_are_numpy_s_steps(axes: Any, skipna: bool) -> None:
    shape = (6, 70, 40)
    pairs = numbers(*shape) + 4 + 1j * numbers(*shape, seed=1)
    weights = np.random.default_rng(1).random((6, 1, 40))
    if skipna:
        pairs.real[:, 5], pairs.imag[:, 3] = np.nan, np.nan
    op = Operation(COMOMENTS, np.dtype("c16"), np.dtype("f8"), skipna)
    by_loop = compiled.lift_pairs(op, pairs, weights, axes)
    assert by_loop is not None
    by_steps = paired.lift(reduce.lift, op, pairs, weights, axes)
    for field, one, other in zip(COMOMENTS.fields, by_loop, by_steps, strict=True):
        if not field.name.endswith("short"):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("row", [WEIGHTED_MEAN, WEIGHTED_VAR, COMOMENTS], ids=lambda r: r.name)
def test_states_of_pairs_obey_the_laws(row: Any) -> None:
    assert pickle.loads(pickle.dumps(row)) is row
    op = Operation(row, np.dtype("f8"), np.dtype("f8"))
    nothing = row.identity(np.dtype("f8"))
    a, b, c = (
        paired.lift(reduce.lift, op, numbers(9, seed=s) + 1e9, np.abs(numbers(9, seed=s + 3)), (0,))
        for s in range(3)
    )
    orders = [
        (row.combine(a, nothing), a),
        (row.combine(nothing, a), a),
        (row.combine(row.combine(a, b), c), row.combine(a, row.combine(b, c))),
    ]
    for left, right in orders:
        for field, one, other in zip(row.fields, left, right, strict=True):
            if not field.name.endswith("short"):
                np.testing.assert_allclose(one, other, rtol=1e-12)


def test_in_the_place_of_others() -> None:
    x, w = numbers(40, 6), np.random.default_rng(1).random((40, 6))
    lazy = da.from_array(x, chunks=(7, 4))
    calls = {
        "average": lambda: da.average(lazy, 0, da.from_array(w, chunks=(7, 4))),
        "cov": lambda: da.cov(lazy, rowvar=False),
        "corrcoef": lambda: da.corrcoef(lazy.T),
        "skew": lambda: dask_stats.skew(lazy),
        "kurtosis": lambda: dask_stats.kurtosis(lazy, axis=1, fisher=False),
    }
    for name, call in calls.items():
        want = call().compute()
        with dc.installed():
            result = call()
            assert {row.served_by for row in dc.explain(result) if row.operation == name} == {
                "dask_coop"
            }
            np.testing.assert_allclose(result.compute(), want, rtol=1e-10, err_msg=name)


@pytest.mark.each(3)
@pytest.mark.parametrize("dim", [None, "t", ("u", "v"), ("v",)], ids=str)
@pytest.mark.parametrize("dims", ["tuv", "u", "vt"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_in_the_place_of_xarray_s(dim: Any, dims: str, dtype: str) -> None:
    xr = pytest.importorskip("xarray", reason="xarray's functions are replaced where it is")
    x = (numbers(9, 8, 7) * 5).astype(dtype)
    if dtype != "i4":
        x[x > 6] = np.nan
    axes = {"t": np.arange(9), "u": np.arange(8.0), "both": (("t", "v"), numbers(9, 7))}
    a = xr.DataArray(x, axes, [*"tuv"], "a", {"units": "m"}).chunk(t=4, u=3)
    b = (a * 2 + a.u + numbers(9, 8, 7)).rename("b")
    w = xr.DataArray(np.random.default_rng(2).random((9, 8, 7)), axes, [*"tuv"])
    w = w.isel({d: 0 for d in "tuv" if d not in dims}, drop=True).transpose(*dims)
    calls = {
        "mean": lambda: a.weighted(w.drop_vars("both", errors="ignore")).mean(dim),
        "var": lambda: a.weighted(w.chunk()).var(dim),
        "std": lambda: a.to_dataset().weighted(w).std(dim)["a"],
        "cov": lambda: xr.cov(a, b, dim, ddof=1),
        "corr": lambda: xr.corr(a, b, dim),
        "cov by weights": lambda: xr.cov(a, b, dim, weights=w.chunk()),
        "corr by weights": lambda: xr.corr(a, b, dim, weights=w),
    }
    for call_name, call in calls.items():
        want, name = call(), call_name.partition(" ")[0]
        with dc.installed():
            got = call()
        tells = [
            row.served_by for row in dc.explain(got.data) if row.operation in (name, f"nan{name}")
        ]
        assert tells == ["dask_coop"]
        assert got.dtype == want.dtype
        xr.testing.assert_allclose(got.compute(), want.compute(), 1e-5 if dtype == "f4" else 1e-9)
        assert (got.attrs, got.name, {*got.coords}) == (want.attrs, want.name, {*want.coords})


def test_weights_with_nan_are_refused_as_by_xarray() -> None:
    xr = pytest.importorskip("xarray", reason="xarray's functions are replaced where it is")
    a = xr.DataArray(numbers(9, 8), dims=["t", "u"]).chunk(t=4)
    w = xr.DataArray([1.0, np.nan, *range(7)], dims="t")
    with dc.installed():
        with pytest.raises(ValueError, match="missing values"):
            xr.cov(a, a, weights=w)
        late = xr.corr(a, a, weights=w.chunk())
        with pytest.raises(ValueError, match="missing values"):
            late.compute()


def test_sums_of_weights_of_unknown_sizes() -> None:
    x = da.from_array([1.0, 2.0, 3.0, 4.0], chunks=3)
    mean, total = dc.average(x[x > 1], returned=True)
    assert (float(mean), float(total)) == (3, 3)


def test_sizes_that_are_unknown_can_be_computed() -> None:
    x = da.arange(9.0, chunks=4)
    some = x[x > 2]
    for call in (
        lambda: dc.linregress(some, some),
        lambda: dc.ewm_cov(some, some, alpha=0.5),
        lambda: dc.move_corr(some, some, 3),
        lambda: dc.run_events(some > 3, some),
    ):
        with pytest.raises(ValueError, match=r"; x.compute_chunk_sizes\(\) finds them"):
            call()
