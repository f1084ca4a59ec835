"""Quantiles, percentiles and medians: NumPy's results, bit for bit."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import FLOATS, INTS, REAL, Chunked, arrays, reducible

import dask_coop as dc
from dask_coop.algebra.digits import Asked, descend, finish, first_digit, key_bits, keys_of
from dask_coop.algebra.quantiles import METHODS, Quantiles

NAMES = ["quantile", "percentile", "median", "nanquantile", "nanpercentile", "nanmedian"]
by_name = pytest.mark.parametrize("name", NAMES)

#: Before, NumPy had other rules for whole numbers and for weights that are zero.
HAS_RULES = np.lib.NumpyVersion(np.__version__) >= "2.3.0"

#: As Python's and NumPy's numbers, and arrays of several dtypes.
fractions = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0, 1] if HAS_RULES else [0.0, 1.0]),
    st.floats(0, 1, width=32).map(np.float32),
    st.lists(st.floats(0, 1), min_size=1, max_size=5).map(np.array),
    st.just(np.array([[0.1, 0.5], [0.9, 0.95]])),
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=3).map(lambda q: np.array(q, "f4")),
)


def call(module: Any, name: str, x: Any, q: Any, method: str, **options: Any) -> Any:
    if "median" in name:
        return getattr(module, name)(x, **options)
    q = q * 100 if "percentile" in name else q
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(module, name)(x, q, method=method, **options)


def numpys(name: str, x: Any, q: Any, method: str, **options: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return np.asarray(call(np, name, x, q, method, **options))


def assert_same(result: Any, expected: Any) -> None:
    # NumPy does not interpolate NaN, so what is all NaN may be of a smaller dtype than the rest.
    all_nan = expected.dtype.kind == "f" and np.isnan(expected).all()
    assert result.dtype == expected.dtype or all_nan
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)
    if result.dtype.kind == "f":
        # NumPy, too, has no order of -0.0 and 0.0.
        plain = ~np.isnan(result) & (result != 0)
        assert result[plain].tobytes() == expected[plain].tobytes()


def finite(name: str, result: Any, expected: Any) -> Any:
    """Return what is expected: NumPy adds an element in the middle to itself, which may be inf."""
    if not name.endswith("median") or expected.dtype.kind != "f":
        return expected
    adds_up = abs(result) > np.finfo(expected.dtype).max / 2
    return np.where(np.isinf(expected) & adds_up, result, expected)


def check_no_element(
    xp: Any, name: str, x: Any, array: Any, q: Any, method: str, axis: Any, keepdims: bool
) -> None:
    """Check the quantiles of lines without elements: NaN, unless NumPy raises an error."""
    if name in ("quantile", "percentile"):
        with pytest.raises(ValueError, match="of no element"):
            call(dc, name, x, q, method, axis=axis)
        return
    lazy = call(dc, name, x, q, method, axis=axis, keepdims=keepdims)
    expected = numpys(name, array, q, method, axis=axis, keepdims=keepdims)
    # NumPy drops the axes of q, and there its dtype does not count.
    shape = (() if "median" in name else np.shape(q)) + expected.shape
    if 0 not in lazy.shape:
        with pytest.warns(RuntimeWarning, match="Mean of empty|All-NaN"):
            lazy.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = to_numpy(xp, lazy)
    assert np.shape(result) == lazy.shape == shape
    assert result.dtype == lazy.dtype
    assert lazy.dtype == expected.dtype or array.dtype.kind == "f"
    assert np.isnan(result).all()


@by_name
@given(
    case=reducible(dtypes=INTS + FLOATS),
    q=fractions,
    method=st.sampled_from(METHODS),
    keepdims=st.booleans(),
    recompute=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_quantiles_are_numpys(
    xp: Any, name: str, case: Any, q: Any, method: str, keepdims: bool, recompute: bool
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    some = range(array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not array.size:
        if axis is None or any(array.shape[d] == 0 for d in some):
            check_no_element(xp, name, x, array, q, method, axis, keepdims)
        return
    if axis == ():
        # NumPy's functions take that for no axis in some versions, and for all in others.
        return
    options = {"axis": axis, "keepdims": keepdims}
    expected = numpys(name, array, q, method, **options)
    options |= {"recompute": recompute} if axis is None else {}
    result = to_numpy(xp, call(dc, name, x, q, method, **options))
    if xp is not np and array.dtype == "f4" and len(some) < array.ndim:
        # CuPy's arithmetic takes subnormal float32 for zero.
        assert result.dtype == expected.dtype
        tiny = float(np.finfo("f4").tiny)
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=tiny)
        return
    if axis is not None and name.startswith("nan") and result.dtype.kind == "f":
        # NumPy takes the dtype of the first line's result, which is smaller if all of it is NaN.
        expected = expected.astype(result.dtype) if np.isnan(expected).any() else expected
    assert_same(result, finite(name, result, expected))


@pytest.mark.parametrize("dtype", ["M8[D]", "M8[ns]", "m8[s]"])
@pytest.mark.parametrize("axis", [None, 1])
def test_medians_of_times_lie_in_the_middle(dtype: str, axis: Any) -> None:
    # As NumPy has those of durations, in whole units.
    x = np.array([[0, 3, 0], [7, 9, 8]], "i8").astype(dtype)
    x[0, 2] = "NaT"
    middle = x[0, :2].view("i8").sum() // 2
    lazy = da.from_array(x[:, :2] if axis is None else x, chunks=(1, 2))
    made = dc.nanmedian(lazy, axis=axis).compute()
    wanted = np.array(5 if axis is None else [middle, 8], "i8").astype(dtype)
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(made, wanted)
    assert np.isnat(dc.median(da.from_array(x, chunks=2)).compute())


@pytest.mark.parametrize("name", ["median", "nanmedian"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_median_of_large_elements_is_one_of_them(xp: Any, name: str, dtype: str) -> None:
    largest = np.finfo(dtype).max
    for values in ([largest], [largest, largest], [-largest, largest, largest]):
        x = np.array(values, dtype)
        assert float(call(dc, name, to_chunks(xp, x, ((1,) * len(x),)), None, "linear")) == largest
        rows = to_chunks(xp, np.stack([x, x]), ((2,), (len(x),)))
        made = to_numpy(xp, call(dc, name, rows, None, "linear", axis=1))
        np.testing.assert_array_equal(made, np.full(2, largest, dtype))


@given(case=arrays(dtypes=["?"]), axis=st.sampled_from([None, 0]))
def test_truths_have_medians_and_quantiles_that_are_elements(
    xp: Any, case: Chunked, axis: Any
) -> None:
    array, chunks = case
    if not array.size or not array.ndim:
        return
    x = to_chunks(xp, array, chunks)
    assert_same(to_numpy(xp, dc.median(x, axis)), np.asarray(np.median(array, axis)))
    higher = np.asarray(np.quantile(array, 0.3, axis, method="higher"))
    assert_same(to_numpy(xp, dc.quantile(x, 0.3, axis, method="higher")), higher)
    with pytest.raises(TypeError, match="boolean subtract"):
        dc.quantile(x, 0.3, axis)


@pytest.mark.parametrize("unit", ["M8[s]", "m8[ns]"])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("gaps", [0.0, 0.05])
def test_dates_are_ordered_and_one_that_is_none_is_the_result(
    unit: str, axis: Any, gaps: float
) -> None:
    rng = np.random.default_rng(3)
    # Some so late that they share their first digit with what is no date.
    ticks = rng.integers(-(2**62), 2**62, (30, 41))
    ticks[0, :20] = 2**63 - 1 - np.arange(20)
    ticks[rng.random(ticks.shape) < gaps] = -(2**63)
    array = ticks.view(unit)
    x = da.from_array(array, chunks=(7, 10))
    for method in ("linear", "lower", "nearest"):
        expected = np.asarray(np.quantile(array, [0.1, 0.5, 0.999], axis, method=method))
        result = dc.quantile(x, [0.1, 0.5, 0.999], axis, method=method)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result.compute(), expected)
    if gaps and axis is None:
        valid = array[~np.isnat(array)]
        skipped = dc.nanquantile(x, 0.5, method="lower").compute()
        assert skipped == np.quantile(valid, 0.5, method="lower")


@given(
    case=arrays(dtypes=["f4", "f8", "i4"], values=st.integers(0, 20)),
    q=fractions,
    seed=st.integers(0, 99),
    skipna=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_weighted_quantiles_are_numpys(
    xp: Any, case: Chunked, q: Any, seed: int, skipna: bool
) -> None:
    array, chunks = case
    rng = np.random.default_rng(seed)
    if not array.size or not array.ndim:
        return
    if array.dtype.kind == "f" and skipna:
        array = np.where(rng.random(array.shape) < 0.2, array.dtype.type(np.nan), array)
    # Sums of small integers are exact in any order; no line has none.
    weights = rng.integers(0 if HAS_RULES else 1, 4, array.shape)
    weights[0] += 1
    if np.isnan(array[0]).any() if array.dtype.kind == "f" else False:
        array[0] = 1
    x = to_chunks(xp, array, chunks)
    name = "nanquantile" if skipna and array.dtype.kind == "f" else "quantile"
    for axis in (None, 0):
        expected = numpys(name, array, q, "inverted_cdf", weights=weights, axis=axis)
        w = to_chunks(xp, weights, chunks)
        result = getattr(dc, name)(x, q, axis, method="inverted_cdf", weights=w)
        np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.skipif(not HAS_RULES, reason="NumPy had other rules for weights that are zero")
@pytest.mark.parametrize(
    "weights", [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 2, np.inf], [1, 2, np.nan]]
)
@pytest.mark.parametrize("elements", [[1, 2, 3], [1, 2, np.nan], [np.nan] * 3])
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
def test_weights_that_are_zero_or_not_finite_are_refused_where_numpys_are(
    xp: Any, elements: list[float], weights: list[float]
) -> None:
    array = np.stack([np.array(elements), np.ones(3)])
    heavy = np.stack([np.array(weights), np.ones(3)])
    for name, q in [
        ("nanquantile", 0.5),
        ("quantile", 0.5),
        ("quantile", [0.0, 0.9]),
        ("quantile", []),
    ]:
        for axis, a, w in [(None, array[0], heavy[0]), (1, array, heavy)]:
            options = {"axis": axis, "method": "inverted_cdf"}
            x, y = (to_chunks(xp, one, 2) for one in (a, w))
            try:
                expected = numpys(name, a, q, weights=w, **options)
            except ValueError:
                with pytest.raises(ValueError, match=r"weights .*add up to"):
                    getattr(dc, name)(x, q, weights=y, **options).compute()
            else:
                result = getattr(dc, name)(x, q, weights=y, **options)
                np.testing.assert_array_equal(to_numpy(xp, result), expected, strict=True)


def test_weights_of_durations_count_where_these_are_missing() -> None:
    array = np.array([1, 2, "NaT"], "m8[s]")
    x = da.from_array(array, chunks=2)
    options: dict[str, Any] = {"weights": np.array([0, 0, 1]), "method": "inverted_cdf"}
    assert np.isnat(dc.quantile(x, 0.5, **options).compute())
    with pytest.raises(ValueError, match="weights add up to 0"):
        dc.nanquantile(x, 0.5, **options).compute()
    with pytest.warns(RuntimeWarning, match="All-NaN slice"):
        assert np.isnat(
            dc.nanquantile(x[2:], 0.5, weights=np.ones(1), method="inverted_cdf").compute()
        )


@pytest.mark.parametrize(
    ("shape", "axis", "chunks"),
    [((2, 1), 1, (0, 1)), ((1, 3), 0, (1, 0)), ((1, 0, 2), 0, (1, 0)), ((0, 3), 1, (0, 1, 2))],
)
def test_chunks_of_lazy_weights_may_be_empty(shape: Any, axis: int, chunks: Any) -> None:
    array, weights = np.arange(np.prod(shape)).reshape(shape), np.arange(1, shape[axis] + 1)
    lazy = da.from_array(weights, chunks=(chunks,))
    assert lazy.chunks == (chunks,)
    options: dict[str, Any] = {"axis": axis, "method": "inverted_cdf"}
    expected = np.quantile(array, [0.2, 0.9], weights=weights, **options)
    result = dc.quantile(da.from_array(array, chunks=2), [0.2, 0.9], weights=lazy, **options)
    np.testing.assert_array_equal(result.compute(), expected, strict=True)


@pytest.mark.parametrize("axis", [0, -1, (0, 2), (2, 0), (1, 2, 0)])
def test_weights_of_lines_are_as_long_as_these(axis: Any) -> None:
    rng = np.random.default_rng(12)
    array = rng.integers(0, 50, (4, 5, 6)).astype("f8")
    order = axis if isinstance(axis, tuple) else (axis,)
    if len(order) > 1 and np.lib.NumpyVersion(np.__version__) < "2.4.0":
        pytest.skip("NumPy takes weights of several axes in another order than elements")
    weights = rng.integers(1, 4, [array.shape[d] for d in order])
    x = da.from_array(array, chunks=(2, 3, 4))
    options: dict[str, Any] = {"axis": axis, "method": "inverted_cdf", "weights": weights}
    expected = np.quantile(array, [0.2, 0.7], **options)
    np.testing.assert_array_equal(dc.quantile(x, [0.2, 0.7], **options), expected)


@pytest.mark.parametrize("dtype", REAL[1:])
@pytest.mark.parametrize("count", [1, 9])
def test_large_chunks_are_counted_by_compiled_loops(xp: Any, dtype: str, count: int) -> None:
    rng = np.random.default_rng(7)
    array = (rng.standard_normal((300, 401)) * 50).astype(dtype)
    q = np.linspace(0, 1, count + 2)[1:-1]
    for values in (array, array[::-1, ::2], array.T, np.full_like(array, 3)):
        x = to_chunks(xp, values, (100, 150))
        assert_same(to_numpy(xp, dc.quantile(x, q)), np.asarray(np.quantile(values, q)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_nan_is_the_result(xp: Any, dtype: str) -> None:
    array = np.arange(5000).astype(dtype)
    array[77] = np.nan
    x = to_chunks(xp, array, 1300)
    assert np.isnan(to_numpy(xp, dc.median(x)))
    assert np.isnan(to_numpy(xp, dc.quantile(x, [0.1, 1.0]))).all()
    assert to_numpy(xp, dc.nanmedian(x)) == np.nanmedian(array)
    assert to_numpy(xp, dc.argtopk(x, 1)) == 77


def test_samples_that_differ_in_their_last_bits_only_are_told_apart(xp: Any) -> None:
    # So nothing can be left behind before the last digit.
    rng = np.random.default_rng(8)
    array = (np.float64(1).view("i8") + rng.integers(0, 1000, 50_000)).view("f8")
    x = to_chunks(xp, array, 9_000)
    q = np.array([0.01, 0.5, 0.99])
    assert_same(to_numpy(xp, dc.quantile(x, q)), np.quantile(array, q))


def test_a_collected_chunk_holds_only_what_is_looked_for(monkeypatch: Any) -> None:
    from dask_coop.graph import tasks

    array = np.random.default_rng(9).random(100_000)
    left = []
    collect = tasks.collect

    def watched(block: Any, *, grid: Any, declared: Any) -> Any:
        made = collect(block, grid=grid, declared=declared)
        left.append((block.size, made.size))
        return made

    monkeypatch.setattr(tasks, "collect", watched)
    x = da.from_array(array, chunks=10_000)
    assert dc.median(x).compute(scheduler="synchronous") == np.median(array)
    # Twice of each of ten chunks: what is left of them is little then, at the latest.
    assert len(left) == 20
    assert sum(sorted(after for _, after in left)[:10]) < array.size / 64


def test_lazy_quantiles_are_found_in_the_graph(xp: Any) -> None:
    array = np.random.default_rng(1).random((40, 50))
    x = to_chunks(xp, array, (7, 50))
    q = da.from_array(np.array([0.1, 0.9]), chunks=1)
    for axis in (None, 0):
        expected = np.quantile(array, [0.1, 0.9], axis)
        np.testing.assert_array_equal(to_numpy(xp, dc.quantile(x, q, axis)), expected)
    one = dask.delayed(30)
    assert float(dc.percentile(x, one).compute()) == np.percentile(array, 30)
    with pytest.raises(ValueError, match=r"range \[0, 1\]"):
        dc.quantile(x, q + 1).compute()


def test_lines_that_are_too_long_to_gather_are_read_where_they_are(xp: Any) -> None:
    array = np.random.default_rng(2).random((3000, 3)).astype("f4")
    x = to_chunks(xp, array, (700, 2))
    with dask.config.set({"array.chunk-size": "8 kB"}):
        for keepdims in (False, True):
            result = dc.quantile(x, [0.2, 0.5], axis=0, keepdims=keepdims)
            expected = np.quantile(array, [0.2, 0.5], axis=0, keepdims=keepdims)
            assert_same(to_numpy(xp, result), expected)
        assert not any("rechunk" in str(name) for name in result.dask.layers)


def test_blocks_of_lines_are_no_larger_than_the_chunks_were() -> None:
    x = da.ones((365, 400, 300), chunks=(20, 400, 300))
    result = dc.median(x, axis=0)
    (name,) = (name for name in result.dask.layers if name.startswith("median"))
    blocks = result.dask.layers[name].numblocks[next(iter(result.dask.dependencies[name]))]
    assert blocks == (1, 20, 1)
    assert result.chunks == x.chunks[1:]


def test_clipping_round_by_round_does_not_cut_chunks_ever_smaller() -> None:
    x = da.ones((25, 4096, 4096), chunks=(5, 1024, 1024))
    for _ in range(3):
        middle, deviation = dc.nanmedian(x, axis=0), dc.nanstd(x, axis=0)
        x = da.where(abs(x - middle) > 1.5 * deviation, np.nan, x)
    assert x.chunks == ((5,) * 5, (1024,) * 4, (1024,) * 4)
    # Dask's functions make 9,280 tasks.
    assert len(x.__dask_graph__()) < 5000


def test_behind_chunks_of_unknown_sizes_all_elements_are_counted(xp: Any) -> None:
    array = np.random.default_rng(4).random(1000)
    x = to_chunks(xp, array, 100)
    some = x[x > 0.5]
    np.testing.assert_array_equal(dc.median(some).compute(), np.median(array[array > 0.5]))
    for none in (x[x > 2], (x * 9).astype("i4")[x > 2]):
        for function in (dc.median, dc.nanmedian, lambda x: dc.nanquantile(x, 0.3)):
            with pytest.warns(RuntimeWarning, match="Mean of empty|All-NaN"):
                assert np.isnan(float(function(none)))
        with pytest.raises(ValueError, match="no element"):
            dc.quantile(none, 0.5).compute()
    with pytest.raises(ValueError, match="no element"):
        dc.nanquantile(none, 0.5, method="lower").compute()
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        dc.median(da.stack([some, some], axis=1), axis=0)


def test_masked_elements_are_left_out() -> None:
    array = np.ma.masked_greater(np.random.default_rng(5).random((40, 30)), 0.8)
    x = da.from_array(array, chunks=(9, 30))
    assert dc.median(x).compute() == np.ma.median(array)
    with pytest.raises(TypeError, match="masked"):
        dc.median(x, axis=0)


def test_chunks_are_made_anew_for_each_read_if_they_are_to_be() -> None:
    made = []

    def make(block_id: Any) -> Any:
        made.append(block_id)
        return np.random.default_rng(block_id).random(1000)

    x = da.map_blocks(make, chunks=((1000,) * 5,), dtype="f8", meta=np.zeros(0))
    once = dc.median(x).compute(scheduler="synchronous")
    assert len(made) == 5
    made.clear()
    assert dc.median(x, recompute=True).compute(scheduler="synchronous") == once
    assert len(made) > 5


@pytest.mark.parametrize("dtype", ["i8", "f8", "M8[ns]"])
def test_what_is_made_anew_is_let_go_of_after_each_read(dtype: str) -> None:
    made, alive, most = 0, 0, 0

    def go() -> None:
        nonlocal alive
        alive -= 1

    def make(block_id: Any) -> Any:
        nonlocal made, alive, most
        x = np.random.default_rng(block_id).integers(0, 10**9, 1000).astype(dtype)
        made, alive = made + 1, alive + 1
        most = max(most, alive)
        weakref.finalize(x, go)
        return x

    x = da.map_blocks(make, chunks=((1000,) * 40,), dtype=dtype, meta=np.zeros(0, dtype))
    fractions = [0.01, 0.25, 0.5, 0.75, 0.99]
    found = dc.nanquantile(x, fractions, recompute=True).compute(scheduler="synchronous")
    assert made > 2 * 40
    assert most <= 4
    np.testing.assert_array_equal(found, np.quantile(x.compute(), fractions))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"q": 1.5}, ValueError, r"range \[0, 1\]"),
        ({"q": [[[0.5]]]}, ValueError, "at most 2 axes"),
        ({"q": "half"}, TypeError, "takes numbers"),
        ({"q": 0.5, "a": da.ones(10, dtype="c8")}, TypeError, "real numbers"),
        ({"q": 0.5, "method": "middle"}, ValueError, "'middle' is not a valid method"),
        ({"q": 0.5, "weights": np.ones(10)}, ValueError, "only method 'inverted_cdf'"),
        (
            {"q": 0.5, "weights": np.ones(3), "method": "inverted_cdf"},
            ValueError,
            "do not fit an array of shape",
        ),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        dc.quantile(**{"a": da.ones(10, chunks=4), **options})


def test_weights_go_with_their_elements_however_these_lie(xp: Any) -> None:
    array, weights = np.arange(5.0), np.array([0, 1, 0, 9, 0])
    for turned in (np.s_[::-1], np.s_[::1]):
        x = to_chunks(xp, array, 5).map_blocks(lambda b, turned=turned: b[turned].copy()[turned])
        for q in (0.05, 0.5):
            expected = np.quantile(array, q, weights=weights, method="inverted_cdf")
            result = dc.quantile(x, q, weights=to_chunks(xp, weights, 5), method="inverted_cdf")
            assert float(result.compute()) == expected


@pytest.mark.parametrize(("weight", "words"), [(-1, "must not be negative"), (0, "add up to 0")])
def test_weights_that_are_negative_or_zero_are_refused_when_they_are_known(
    weight: int, words: str
) -> None:
    lazy = dc.quantile(
        da.arange(10.0, chunks=4), 0.5, weights=da.full(10, weight), method="inverted_cdf"
    )
    with pytest.raises(ValueError, match=f"weights {words}"):
        lazy.compute()


def test_nothing_but_nan_is_nan_with_a_warning() -> None:
    x = da.full((4, 5), np.nan, chunks=2)
    for axis in (None, 0):
        with pytest.warns(RuntimeWarning, match="All-NaN slice"):
            assert np.isnan(dc.nanmedian(x, axis).compute(scheduler="synchronous")).all()


@given(case=arrays(dtypes=INTS + FLOATS))
def test_keys_are_in_the_order_of_elements(case: Chunked) -> None:
    array = case.array.ravel()
    keys = keys_of(array)
    assert keys.dtype.itemsize == array.dtype.itemsize
    in_order = array[np.argsort(keys, kind="stable")]
    np.testing.assert_array_equal(in_order, np.sort(array))


def test_every_digit_narrows_the_search_until_keys_are_whole() -> None:
    array = np.random.default_rng(10).standard_normal(5000)
    digits = first_digit(array.dtype, Asked(Quantiles(np.array([0.1, 0.5]))))
    keys = keys_of(array).astype("u8")
    bits = 0
    while True:
        bits += digits.width
        prefixes = np.array(digits.prefixes, "u8")
        before = keys >> np.uint64(digits.shift) >> np.uint64(digits.width - 1) >> np.uint64(1)
        table = np.zeros((len(prefixes), 1 << digits.width), "i8")
        last = keys >> np.uint64(digits.shift) & np.uint64((1 << digits.width) - 1)
        for i, prefix in enumerate(prefixes):
            mine = before == prefix if bits > digits.width else np.ones(len(keys), bool)
            np.add.at(table[i], last[mine].astype("i8"), 1)
        assert table.size <= 1 << 15
        if not digits.shift:
            break
        digits = descend(digits, table.reshape(-1))
    assert bits == key_bits(array.dtype)
    _, low, high = finish(digits, table.reshape(-1))
    ordered = np.sort(array)
    np.testing.assert_array_equal(low, ordered[[499, 2499]])
    np.testing.assert_array_equal(high, ordered[[500, 2500]])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_medians_of_the_largest_numbers_are_finite(xp: Any, dtype: str) -> None:
    most = np.finfo(dtype).max
    lines = np.array([[most, np.nan, most], [-most, -most, np.nan]], dtype)
    x = da.from_array(xp.asarray(lines), chunks=(1, 3), asarray=False)
    assert to_numpy(xp, dc.nanmedian(x, axis=1)).tolist() == [most, -most]
    if dtype == "f2":
        near = da.from_array(xp.asarray(np.array([40000, 50000], dtype)), chunks=1, asarray=False)
        assert to_numpy(xp, dc.nanmedian(near)) == 44992


def test_one_small_chunk_is_sorted_by_one_task() -> None:
    x = da.from_array(np.random.default_rng(0).random((30, 4)), chunks=-1)
    small, large = (dc.quantile(of, [0.1, 0.9]) for of in (x, da.ones(1 << 16, chunks=-1)))
    assert len(dask.optimize(small)[0].__dask_graph__()) < 4 < len(large.__dask_graph__())
    np.testing.assert_allclose(small, np.quantile(x, [0.1, 0.9]), 1e-15)
