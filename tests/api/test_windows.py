"""Moving windows and boxes: each window by itself, bottleneck, exact arithmetic; any chunks."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from itertools import product
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.loops import compile_from
from support.strategies import FEWER, FLOATS, REAL, arrays, shapes
from support.windows import ORDERED, STATISTICS, check, laid_out

import dask_coop as dc

few = st.integers(-100, 100) | st.sampled_from([np.nan, 0.5, -0.0])


@st.composite
def windows(draw: st.DrawFn, dtypes: list[str] = REAL) -> Any:
    """An array with chunks, and how windows move over it."""
    case = draw(arrays(dtypes, shapes(1, 3).filter(all), values=few if dtypes is FLOATS else None))
    axis = draw(st.integers(-case.array.ndim, case.array.ndim - 1))
    window = draw(st.integers(1, case.array.shape[axis]))
    min_count = draw(st.none() | st.integers(1, window))
    return case, window, min_count, axis, draw(st.booleans())


def move(statistic: str, *given: Any, **options: Any) -> Any:
    return getattr(dc, f"move_{statistic}")(*given, **options)


def dtype_of(statistic: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of results; float16 has too few places and ranks."""
    if dtype.kind != "f":
        return np.dtype("f8")
    few = statistic in ("rank", "argmin", "argmax") and dtype == np.float16
    return np.dtype("f4") if few else dtype.newbyteorder("=")


@pytest.mark.parametrize("statistic", [*STATISTICS, *ORDERED])
@FEWER
@given(case=windows(FLOATS))
def test_every_window_is_reduced(xp: Any, statistic: str, case: Any) -> None:
    (array, chunks), window, min_count, axis, center = case
    x = to_chunks(xp, array, chunks)
    options = {} if statistic == "rank" else {"center": center}
    lazy = move(statistic, x, window, min_count, axis, **options)
    assert lazy.chunks == x.chunks
    assert lazy.dtype == lazy._meta.dtype == dtype_of(statistic, array.dtype)
    found = to_numpy(xp, lazy)
    assert found.dtype == lazy.dtype
    check(statistic, found, array, window, min_count, axis, **options)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "i8", "u8", "f2", ">f4", ">i2"])
@pytest.mark.parametrize("statistic", [*STATISTICS, *ORDERED])
def test_dtypes(xp: ModuleType, statistic: str, dtype: str) -> None:
    if xp is not np and dtype[0] == ">":
        pytest.skip("CuPy has the machine's byte order only")
    array = (np.random.default_rng(1).integers(0, 50, (9, 20)) % 7).astype(dtype)
    x = to_chunks(xp, array, (4, 6))
    for axis, center in ((0, False), (1, True)):
        options = {} if statistic == "rank" else {"center": center}
        lazy = move(statistic, x, 5, 2, axis, **options)
        found = to_numpy(xp, lazy)
        assert lazy.dtype == found.dtype == dtype_of(statistic, array.dtype)
        check(statistic, found, array, 5, 2, axis, **options)


@pytest.mark.parametrize("statistic", [*STATISTICS, *ORDERED])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8"])
def test_results_are_bottlenecks(statistic: str, dtype: str) -> None:
    bottleneck = pytest.importorskip("bottleneck")
    array = (100 * np.random.default_rng(2).standard_normal((6, 50))).astype(dtype)
    if dtype[0] == "f":
        array[np.random.default_rng(3).random(array.shape) < 0.1] = np.nan
    x = da.from_array(array, chunks=(4, 7))
    for axis, window in ((0, 3), (1, 1), (1, 8), (1, 50)):
        for counts in ((window,), (window, 1)):
            expected = getattr(bottleneck, f"move_{statistic}")(array, *counts, axis=axis)
            lazy = move(statistic, x, *counts, axis=axis)
            assert lazy.dtype == expected.dtype
            # Which keeps running sums in the dtype of the elements.
            tolerance = {"f4": 0.2, "f8": 1e-5}.get(dtype, 1e-9)
            if statistic in ORDERED:
                tolerance = 1e-6 if dtype == "f4" else 1e-14
            np.testing.assert_allclose(lazy, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.each(3)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("q", [0, 0.0, 0.1, 0.5, 0.77, 1, 1.0])
def test_quantiles_are_numpys(
    xp: ModuleType, dtype: str, compiled: bool, q: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_from(monkeypatch, 1 if compiled else math.inf, "window_order")
    array = (100 * np.random.default_rng(5).standard_normal((5, 60))).astype(dtype)
    if dtype[0] == "f":
        array[np.random.default_rng(6).random(array.shape) < 0.2] = np.nan
    x = to_chunks(xp, array, (2, 7))
    for window, least, center in ((1, 1, False), (6, 2, True), (25, 25, False), (60, 3, True)):
        windows = laid_out(array, window, 1, center).astype("f4" if dtype == "f4" else "f8")
        counts = (windows == windows).sum(-1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = np.where(counts >= least, np.nanquantile(windows, q, -1), np.nan)
        found = to_numpy(xp, dc.move_quantile(x, window, q, least, center=center))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("q", [0, 1, np.int64(0), np.array(1)])
def test_whole_quantiles_beside_infinities(xp: ModuleType, q: Any) -> None:
    array = np.array([[1, -np.inf, 3, 4, np.inf, np.nan, 5, 2, -np.inf, np.inf]])
    moved = to_numpy(xp, dc.move_quantile(to_chunks(xp, array, 4), 3, q, 1))
    np.testing.assert_array_equal(moved, np.nanquantile(laid_out(array, 3, 1, False), q, -1))


def test_medians_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    values = np.random.default_rng(7).integers(0, 50, 300).astype("f8")
    values[::7] = np.nan
    x, series = da.from_array(values, chunks=11), pandas.Series(values)
    for window, least, center in ((5, 1, False), (64, 30, True), (299, 40, True)):
        rolling = series.rolling(window, min_periods=least, center=center)
        found = dc.move_median(x, window, least, center=center)
        np.testing.assert_array_equal(found, rolling.median())
        found = dc.move_quantile(x, window, 0.3, least, center=center)
        np.testing.assert_allclose(found, rolling.quantile(0.3), rtol=1e-14)


@pytest.mark.parametrize("shape", ["ramps apart", "rising", "falling", "equal", "two values"])
def test_order_of_hard_lines(shape: str) -> None:
    n = 4000
    steps = np.arange(n, dtype="f8")
    line = {
        # The middle is always far from the last one, over all that has left.
        "ramps apart": np.where(steps % 2, steps, -steps),
        "rising": steps,
        "falling": -steps,
        "equal": np.zeros(n),
        "two values": np.random.default_rng(8).integers(0, 2, n).astype("f8"),
    }[shape]
    x = da.from_array(line, chunks=1900)
    for statistic in ("median", "rank", "argmin"):
        for window in (3, 500, 2500):
            check(statistic, np.asarray(move(statistic, x, window, 1)), line, window, 1)


def test_infinities_in_order(xp: ModuleType) -> None:
    array = np.array([np.inf, np.nan, np.inf, 1, -np.inf, np.nan, 2, np.inf])
    x = to_chunks(xp, array, 3)
    for statistic in ORDERED:
        for window in (1, 2, 4, 8):
            found = to_numpy(xp, move(statistic, x, window, 1))
            check(statistic, found, array, window, 1)


@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_infinity_has_no_deviation(xp: ModuleType, chunk: int) -> None:
    array = np.array([0, 1, 2, np.inf, np.nan, 1, 2, -np.inf])
    x = to_chunks(xp, array, chunk)
    for window in (2, 3):
        found = to_numpy(xp, move("var", x, window, 1))
        for i, value in enumerate(found):
            elements = array[max(0, i - window + 1) : i + 1]
            assert np.isnan(value) == (np.isinf(elements).any() or np.isnan(elements).all())


@pytest.mark.each(4)
@pytest.mark.parametrize("statistic", [*STATISTICS, *ORDERED])
@pytest.mark.parametrize("chunk", [1, 3, 10, 64])
def test_windows_longer_than_chunks(xp: ModuleType, statistic: str, chunk: int) -> None:
    array = np.random.default_rng(4).standard_normal((3, 64))
    array[1, ::5] = np.nan
    x = to_chunks(xp, array, (2, chunk))
    for window in (2, chunk, 4 * chunk + 1, 63, 64):
        if window > 64:
            continue
        for center in (False, True):
            least = min(2, window)
            options = {} if statistic == "rank" else {"center": center}
            found = to_numpy(xp, move(statistic, x, window, least, **options))
            check(statistic, found, array, window, least, **options)


def test_no_task_holds_more_elements_than_two_chunks_have() -> None:
    x = da.zeros((4, 1000), chunks=(4, 10))
    seen: list[int] = []

    from dask_coop.graph import windows as graph_windows

    def noted(**given: Any) -> Any:
        seen.append(sum(piece.shape[1] for piece in (*given["own"], *given["halo"])))
        return original(**given)

    original = graph_windows.reduce_windows
    for window in (5, 11, 300, 999):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graph_windows, "reduce_windows", noted)
            lazy = dc.move_mean(x, window, center=True)
        lazy.compute(scheduler="sync")
        assert len(seen) == 100
        assert max(seen) < 20
        seen.clear()


def test_a_long_window_takes_few_tasks() -> None:
    x = da.zeros(100_000, chunks=100)
    graph = dict(dc.move_sum(x, 50_000).__dask_graph__())
    assert len(graph) < 7 * x.npartitions
    assert max(len(task.dependencies) for task in graph.values()) < 40


@pytest.mark.parametrize("order", ["huge first", "mixed"])
def test_sums_are_as_good_as_is_said(xp: ModuleType, order: str) -> None:
    rng = np.random.default_rng(6)
    array = rng.standard_normal(400)
    if order == "huge first":
        array[::97] = 1e16
    else:
        array = np.ldexp(array, rng.integers(-60, 60, 400))
    for window in (1, 2, 7, 30, 150):
        parts = [array[max(0, i - window + 1) : i + 1] for i in range(400)]
        exact = np.array([math.fsum(part) for part in parts])
        bounds = np.array([len(part) * 2.0**-52 * np.abs(part).sum() for part in parts])
        for chunk in (400, 50, 13):
            x = to_chunks(xp, array, chunk)
            found = to_numpy(xp, dc.move_sum(x, window, 1))
            assert (np.abs(found - exact) <= bounds).all()
            means = to_numpy(xp, dc.move_mean(x, window, 1))
            lengths = np.array([len(part) for part in parts])
            rounded = bounds / lengths + 2.0**-52 * np.abs(exact / lengths)
            assert (np.abs(means - exact / lengths) <= rounded).all()


def test_variances_are_those_of_exact_arithmetic(xp: ModuleType) -> None:
    array = 1e8 + np.random.default_rng(7).standard_normal(120)
    array[10] = 1e16
    for window in (2, 9, 40):
        x = to_chunks(xp, array, 17)
        found = to_numpy(xp, dc.move_var(x, window, ddof=1))
        for i in range(window - 1, 120):
            part = [Fraction(value) for value in array[i - window + 1 : i + 1]]
            mean = sum(part) / window
            exact = float(sum((value - mean) ** 2 for value in part) / (window - 1))
            # A mean is rounded, and deviations are from that.
            size = float(max(map(abs, part))) * 2.0**-50 * window
            assert abs(found[i] - exact) <= window * 2.0**-50 * exact + size * math.sqrt(exact) + (
                size * size
            )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("offset", [1e9, -1e9])
@pytest.mark.parametrize("gaps", [0, 0.2])
def test_variances_far_from_zero_keep_their_digits(
    xp: ModuleType, gaps: float, offset: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        compile_from(monkeypatch, math.inf)
    rng = np.random.default_rng(8)
    array = offset + rng.standard_normal((40, 9))
    array[rng.random(array.shape) < gaps] = np.nan
    for window in (3, 12):
        exact = np.full(array.shape, np.nan)
        for i, k in np.ndindex(exact.shape):
            part = array[max(0, i - window + 1) : i + 1, k]
            values = [Fraction(value) for value in part[part == part]]
            if len(values) >= 2:
                mean = sum(values) / len(values)
                exact[i, k] = sum((value - mean) ** 2 for value in values) / len(values)
        for chunk, columns in product((1, 2, 5, 7, 40), (1, 9)):
            x = to_chunks(xp, array[:, :columns], (chunk, columns))
            for statistic, expected in (("var", exact), ("std", np.sqrt(exact))):
                found = to_numpy(xp, move(statistic, x, window, 2, axis=0))
                # Means of chunks are rounded by 1e-7, of which squares are left.
                np.testing.assert_allclose(found, expected[:, :columns], rtol=1e-11)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300, np.nan])
def test_what_has_left_a_window_leaves_no_trace(xp: ModuleType, value: float) -> None:
    array = np.random.default_rng(8).standard_normal(100)
    changed = array.copy()
    changed[33] = value
    for statistic in STATISTICS:
        for window in (3, 25):
            clean, found = (
                to_numpy(xp, move(statistic, to_chunks(xp, a, 10), window))
                for a in (array, changed)
            )
            outside = np.r_[:33, 33 + window : 100]
            np.testing.assert_allclose(found[outside], clean[outside], rtol=1e-12, atol=1e-13)


def test_the_rolling_of_xarray_is_found() -> None:
    xarray = pytest.importorskip("xarray")
    array = np.random.default_rng(9).standard_normal((5, 30))
    array[2, 3:9] = np.nan
    x, data = da.from_array(array, chunks=(2, 7)), xarray.DataArray(array, dims=("a", "b"))
    for window, center in ((4, True), (5, True), (4, False)):
        for name in (*STATISTICS, "median"):
            rolling = data.rolling(b=window, center=center, min_periods=2)
            expected = getattr(rolling, name)()
            found = move(name, x, window, 2, axis=1, center=center)
            np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("mode", ["reflect", "nearest", "wrap"])
def test_boxes_beside_chunks_without_elements(mode: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    x = da.from_array(array, chunks=((3,), (4,))).rechunk(((3, 0), (0, 1, 0, 3)))
    found = dc.box_filter(x, 3, mode=mode)
    assert found.chunks == x.chunks
    np.testing.assert_allclose(found, dc.box_filter(da.from_array(array), 3, mode=mode))


def test_arrays_that_windows_do_not_move_over() -> None:
    x = da.ones((4, 6), chunks=3)
    for wrong in (0, -1, 7):
        with pytest.raises(ValueError, match=f"windows of 1 to 6 elements.*window={wrong}"):
            dc.move_mean(x, wrong)
    with pytest.raises(ValueError, match="min_count of 1 to window=3, got min_count=4"):
        dc.move_mean(x, 3, 4)
    with pytest.raises(ValueError, match="min_count of 1"):
        dc.move_mean(x, 3, 0)
    with pytest.raises(TypeError, match=r"integer for window, got 2\.5"):
        dc.move_mean(x, 2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer for axis"):
        dc.move_mean(x, 2, axis=None)  # type: ignore[arg-type]
    for no_number in ([0.5], "0.5"):
        with pytest.raises(TypeError, match="one number for q"):
            dc.move_quantile(x, 2, no_number)  # type: ignore[arg-type]
    for beyond in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="q from 0 to 1"):
            dc.move_quantile(x, 2, beyond)
    with pytest.raises(ValueError, match="no negative ddof"):
        dc.move_std(x, 2, ddof=-1)
    with pytest.raises(np.exceptions.AxisError):
        dc.move_mean(x, 2, axis=2)
    with pytest.raises(ValueError, match="a has none"):
        dc.move_mean(da.ones(()), 1)
    with pytest.raises(TypeError, match="complex128"):
        dc.move_mean(x + 1j, 2)
    with pytest.raises(TypeError, match="masked"):
        dc.move_max(da.ma.masked_equal(x, 1), 2)
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        dc.move_sum(x.reshape(-1)[x.reshape(-1) > 0], 2)
    with pytest.raises(ValueError, match="windows of 1 to 0"):
        dc.move_sum(da.ones((3, 0)), 1)


def test_blocks_that_turn_out_to_be_masked_are_refused() -> None:
    x = da.ones(6, chunks=3).map_blocks(lambda b: np.ma.array(b, mask=b > 0), meta=np.empty(0))
    with pytest.raises(TypeError, match="move_sum"):
        dc.move_sum(x, 2).compute()


def test_windows_move_along_known_axes_of_unknown_chunks() -> None:
    x = da.ones((6, 8), chunks=(3, 4))
    x = x[da.from_array(np.arange(6) % 2 == 0, chunks=3)]
    assert dc.move_sum(x, 3, axis=1).compute().shape == (3, 8)


def test_several_threads_work_on_a_large_chunk() -> None:
    from dask import config

    rng = np.random.default_rng(10)
    for shape, axis in (((2, 1 << 21), 1), ((1 << 22,), 0), ((1 << 11, 1 << 10), 0)):
        array = rng.standard_normal(shape)
        x = da.from_array(array, chunks=-1, name=False)
        with config.set({"coop.threads": 4}):
            shared = dc.move_mean(x, 40, axis=axis).compute()
        with config.set({"coop.threads": 1}):
            alone = dc.move_mean(x, 40, axis=axis).compute()
        np.testing.assert_allclose(shared, alone, rtol=1e-12, atol=1e-14)


# Boxes and tables of sums.


@pytest.mark.parametrize("mode", ["reflect", "nearest", "wrap"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "u1"])
def test_boxes_are_scipys(xp: ModuleType, mode: Any, dtype: str) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    array = (100 * np.random.default_rng(11).random((3, 13, 20))).astype(dtype)
    for chunk, size in (((3, 4, 6), 3), ((1, 13, 20), (4, 5)), ((2, 3, 3), (13, 8))):
        x = to_chunks(xp, array, chunk)
        lazy = dc.box_filter(x, size, mode=mode)
        assert lazy.chunks == x.chunks
        sizes = (1, *(size if isinstance(size, tuple) else (size, size)))
        expected = ndimage.uniform_filter(array.astype("f8"), sizes, mode=mode)
        tolerance = 1e-6 if dtype == "f4" else 1e-13
        np.testing.assert_allclose(to_numpy(xp, lazy), expected, rtol=tolerance)


def test_boxes_that_are_none() -> None:
    x = da.ones((4, 6), chunks=3)
    with pytest.raises(ValueError, match="boxes of 1 to 8 elements along axis 0, got size=10"):
        dc.box_filter(x, (10, 3))
    with pytest.raises(ValueError, match="mode must be one of reflect"):
        dc.box_filter(x, 3, mode="mirror")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one for each of"):
        dc.box_filter(x, (3, 3, 3))
    with pytest.raises(TypeError, match="integer for size"):
        dc.box_filter(x, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="duplicate"):
        dc.box_filter(x, 3, (1, -1))


def test_a_box_with_a_nan_is_nan(xp: ModuleType) -> None:
    array = np.ones((6, 7))
    array[2, 3] = np.nan
    found = to_numpy(xp, dc.box_filter(to_chunks(xp, array, 3), 3))
    expected = np.ones((6, 7))
    expected[1:4, 2:5] = np.nan
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["?", "u1", "i4", "f4", "f8"])
def test_integral_images(xp: ModuleType, dtype: str) -> None:
    array = (np.random.default_rng(12).integers(0, 9, (2, 11, 13))).astype(dtype)
    lazy = dc.integral_image(to_chunks(xp, array, (1, 4, 5)))
    wide = {"b": "i8", "u": "u8", "i": "i8", "f": "f8"}[np.dtype(dtype).kind]
    assert lazy.dtype == wide
    np.testing.assert_array_equal(to_numpy(xp, lazy), array.astype(wide).cumsum(1).cumsum(2))
    with pytest.raises(TypeError, match="takes numbers"):
        dc.integral_image(da.ones((2, 2)).astype("M8[s]"))


@pytest.mark.parametrize("window", [1, 5, 40, 80])
def test_windows_of_pairs_are_pandas(xp: Any, window: int) -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = x / 2 + rng.normal(size=(80, 2))
    x[rng.random((80, 2)) < 0.1] = np.nan
    y[rng.random((80, 2)) < 0.1] = np.nan
    for dtype, least, center, chunks in (
        ("f8", None, False, (7, 1)),
        ("f8", 1, True, ((0, 1, 0, 30, 49), 2)),
        ("f4", min(3, window), False, (9, 2)),
    ):
        a, b = x.astype(dtype), y.astype(dtype)
        lazy = to_chunks(xp, a, chunks), to_chunks(xp, b, 11)
        frames = (pandas.DataFrame(of.astype("f8")) for of in (a, b))
        (first, second), tolerance = frames, 1e-9 if dtype == "f8" else 1e-5
        for name, options in (("cov", {"ddof": 0}), ("cov", {}), ("corr", {})):
            rolling = [first[i].rolling(window, least, center) for i in (0, 1)]
            of_lines = [getattr(r, name)(second[i], **options) for i, r in enumerate(rolling)]
            # pandas divides by what is not positive, and has more than 1 of two pairs.
            expected = np.where(np.isinf(of_lines), np.nan, of_lines).T
            function = getattr(dc, f"move_{name}")
            found = function(*lazy, window, least, 0, center=center, **options)
            assert found.dtype == dtype
            assert found.chunks == lazy[0].chunks
            np.testing.assert_allclose(to_numpy(xp, found), expected, tolerance, tolerance)


def test_pairs_far_from_zero_keep_their_digits(xp: Any) -> None:
    # float64 holds all digits of these numbers.
    x, y = np.random.default_rng(0).integers(0, 64, (2, 600)) / 64
    for window in (5, 90, 400):
        near, far = (
            to_numpy(xp, dc.move_cov(to_chunks(xp, x + by, 70), to_chunks(xp, y + by, 70), window))
            for by in (0, 1e9)
        )
        np.testing.assert_allclose(far, near, rtol=0, atol=1e-15)


def test_pairs_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="move_cov takes arrays of one shape"):
        dc.move_cov(da.ones(3), da.ones(4), 2)
    with pytest.raises(TypeError, match="move_corr takes bool, integers and floats"):
        dc.move_corr(da.ones(3), da.ones(3) * 1j, 2)
