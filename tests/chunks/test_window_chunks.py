"""Windows over one chunk: by every way there is, from any halo and base."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.windows import ORDERED, STATISTICS, check, moved

from dask_coop import chunks
from dask_coop.algebra.windows import Window
from dask_coop.chunks import window_steps

#: The shape of a chunk, the axis, and the window.
CASES = (
    ((1,), 0, 1),
    ((5,), 0, 5),
    ((7,), 0, 6),
    ((1000,), 0, 1),
    ((1000,), 0, 2),
    ((4099,), 0, 31),
    ((4099,), 0, 32),
    ((700,), 0, 340),
    ((9001,), 0, 4),
    ((9001,), 0, 12),
    ((9001,), 0, 30),
    ((9001,), 0, 113),
    ((3, 2000), 1, 7),
    ((100, 77), 1, 33),
    ((2000, 3), 0, 7),
    ((100, 77), 0, 33),
    ((150, 40), 0, 70),
    ((3, 130, 65), 1, 40),
    ((5, 40, 3), 0, 2),
)

#: Longer ones, for which shared memory is more or less than enough.
LONG = (
    ((30_000,), 0, 600),
    ((30_000,), 0, 5000),
    ((3, 40_000), 1, 20_000),
    ((3000, 40), 0, 200),
    ((3000, 40), 0, 700),
    ((3000, 40), 0, 1400),
    ((40, 3000), 1, 150),
    ((2, 3000, 33), 1, 64),
)


def data(shape: tuple[int, ...], dtype: str, missing: float) -> Any:
    rng = np.random.default_rng(sum(shape))
    x = (100 * rng.standard_normal(shape)).astype(dtype)
    if x.dtype.kind == "f":
        x[rng.random(shape) < missing] = np.nan
        # Blocks of one dtype without any are done otherwise.
        x[..., : shape[-1] // 2] = np.nan_to_num(x[..., : shape[-1] // 2])
    return x


def along(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)


def steps(window: Window, x: Any, halo: Any, base: Any = None) -> Any:
    if window.is_ordered:
        return window_steps.move_ordered(window, x, halo, 1000)
    element = window.element(x.dtype)
    found = window_steps.move(window, x.astype(element), halo.astype(element), base, 1000)
    return found.astype(window.result(x.dtype))


def move(window: Window, x: Any, halo: Any, base: Any = None) -> Any:
    return chunks.backend_of(x).move(window, x, halo, base)


def on_gpu(window: Window, x: Any, halo: Any, base: Any = None) -> Any:
    cupy = importlib.import_module("cupy")
    base = None if base is None else tuple(map(cupy.asarray, base))
    return cupy.asnumpy(move(window, cupy.asarray(x), cupy.asarray(halo), base))


WAYS = [steps, move, pytest.param(on_gpu, marks=pytest.mark.gpu)]


@pytest.fixture(name="way", params=WAYS)
def _way(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.each(2)
@pytest.mark.parametrize("statistic", [*STATISTICS, *ORDERED])
@pytest.mark.parametrize(("shape", "axis", "length"), CASES)
def test_windows_of_a_chunk(
    way: Any, statistic: str, shape: tuple[int, ...], axis: int, length: int
) -> None:
    for dtype, missing, least in (("f4", 0, length), ("f8", 0.2, max(1, length // 2))):
        whole = data(shape, dtype, missing)
        window = Window(statistic, axis, length, least, ddof=0)
        # All of it without a halo, and with a short one and a whole one.
        for cut in sorted({0, min(3, length - 1, shape[axis]), min(length - 1, shape[axis])}):
            x, earlier = whole[along(axis, slice(cut, None))], whole[along(axis, slice(cut))]
            found = way(window, x, earlier)
            assert found.dtype == dtype
            assert found.shape == x.shape
            results = moved(statistic, whole, length, least, axis).astype(dtype)
            results[along(axis, slice(cut, None))] = found
            check(statistic, results, whole, length, least, axis)


def test_infinity_has_no_deviation(way: Any) -> None:
    x = np.array([0, 1, np.inf, np.nan, 1, 2])
    for length in (1, 2, 3):
        found = way(Window("std", 0, length, 1), x, x[:0])
        assert np.isnan(found[2 : 2 + length]).all()
        assert np.isfinite(found[[0, 1, 5]]).all()


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("shape", [(50,), (50, 40), (40, 50), (3, 40, 5)])
def test_windows_that_hold_what_lies_before(way: Any, statistic: str, shape: Any) -> None:
    axis = min(1, len(shape) - 1)
    n = shape[axis]
    longer = (*shape[:axis], 4 * n, *shape[axis + 1 :])
    whole = data(longer, "f8", 0.3)
    length = 3 * n
    # Results of the last n, whose windows begin in the second n and all hold the third but one.
    window = Window(statistic, axis, n, 5)
    halo = whole[along(axis, slice(3 * n - length + 1, 3 * n - length + n))]
    between = whole[along(axis, slice(3 * n - length + n, 3 * n))]
    op = window.operation(whole.dtype)
    state = chunks.backend_of(between).lift(op, between, (axis,))
    base = tuple(map(np.asarray, window.keep(op, state)))
    x = whole[along(axis, slice(3 * n, None))]
    found = way(window, x, halo, base)
    expected = moved(statistic, whole, length, 5, axis)
    expected[along(axis, slice(3 * n, None))] = found
    check(statistic, expected, whole, length, 5, axis)


@pytest.mark.parametrize("statistic", [*STATISTICS, "median"])
@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "i4", "f2", "f4", "f8"])
def test_dtypes_and_layouts(way: Any, statistic: str, dtype: str) -> None:
    x = data((37, 41), dtype, 0.1)
    window = Window(statistic, 0, 5, 2)
    result = window.result(x.dtype)
    assert result == (dtype if dtype[0] == "f" else "f8")
    for layout in (x, x.T, x[::2, ::-1], np.asfortranarray(x)):
        for axis in (0, 1):
            spec = replace(window, axis=axis)
            found = way(spec, layout, layout[along(axis, slice(0))])
            assert found.dtype == result
            check(statistic, found, layout, 5, 2, axis)


@pytest.mark.parametrize("statistic", [*STATISTICS, *ORDERED])
def test_no_elements(way: Any, statistic: str) -> None:
    window = Window(statistic, 1, 3, 1)
    for shape in ((0, 5), (4, 0)):
        x = np.zeros(shape, "f4")
        assert way(window, x, x[:, :2]).shape == shape
        assert way(window, x, x[:, :0]).dtype == "f4"


@pytest.mark.parametrize("axis", [0, 1])
def test_what_has_left_a_window_leaves_no_trace(way: Any, axis: int) -> None:
    x = np.random.default_rng(5).standard_normal((64, 64))
    clean = {s: way(Window(s, axis, 8, 8), x, x[along(axis, slice(0))]) for s in STATISTICS}
    for value in (1e300, np.inf, -np.inf, 1e16):
        x[13, 13] = value
        for statistic in STATISTICS:
            found = way(Window(statistic, axis, 8, 8), x, x[along(axis, slice(0))])
            line, before = found.take(13, 1 - axis), clean[statistic].take(13, 1 - axis)
            outside = np.r_[0:13, 21:64]
            np.testing.assert_array_equal(line[outside], before[outside])


def test_two_runs_are_the_same(way: Any) -> None:
    x = data((257, 300), "f4", 0.05)
    for statistic in STATISTICS:
        for axis in (0, 1):
            window = Window(statistic, axis, 30, 3)
            first, second = (way(window, x, x[along(axis, slice(0))]) for _ in range(2))
            np.testing.assert_array_equal(first, second)


@pytest.mark.gpu
@pytest.mark.parametrize("statistic", [*STATISTICS, *ORDERED])
@pytest.mark.parametrize(("shape", "axis", "length"), LONG)
def test_long_windows_on_a_gpu(statistic: str, shape: Any, axis: int, length: int) -> None:
    for dtype, rate in (("f4", 0), ("f8", 0.2)):
        whole = data(shape, dtype, rate)
        window = Window(statistic, axis, length, length // 2)
        halo, x = whole[along(axis, slice(100))], whole[along(axis, slice(100, None))]
        found, expected = on_gpu(window, x, halo), steps(window, x, halo)
        tolerance = {"f4": 1e-5, "f8": 1e-11}[dtype]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e4 * tolerance)
