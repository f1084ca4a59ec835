"""Sums with reproducible=True: their digits, their precision, their bits in any order."""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu, to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.loops import compile_from
from support.strategies import COMPLEX, FEWER, FLOATS, INTS, Chunked, axes, chunkings
from support.sums import KERNEL_SHAPES, bits, hard_arrays, rounded, scattered

import dask_coop as dc
from dask_coop import chunks
from dask_coop.algebra import reproducible as algebra
from dask_coop.algebra.monoids import (
    MEAN,
    REPRODUCIBLE_COMPLEX_SUM,
    REPRODUCIBLE_SUM,
    SUM,
    State,
)
from dask_coop.algebra.operation import bind, reproducible
from dask_coop.chunks.numpy.loop_table import loops

LOWEST = -41

GPU = pytest.param("cupy", marks=pytest.mark.gpu)


# Of the module, because Hypothesis refuses fixtures that would be made anew for every example.
@pytest.fixture(scope="module", params=["numba", "numpy", GPU], name="xp")
def _xp(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Return the module whose arrays chunks are: NumPy with Numba's loops, without, and CuPy."""
    if request.param == "cupy" and (missing := missing_for_gpu()):
        pytest.skip(missing)
    if request.param == "numba":
        pytest.importorskip("numba")
        assert loops("reproducible") is not None
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            compile_from(patch, math.inf, "reproducible")
        yield importlib.import_module("cupy" if request.param == "cupy" else "numpy")


def exponent_of(x: float) -> int:
    """Return the least E for which a finite `x` is less than half a unit of bin E."""
    if x == 0:
        return LOWEST
    # 2**(e - 1) <= abs(x) < 2**e
    _, e = math.frexp(x)
    return max(-(-(e + 1) // 24), LOWEST)


def digits_of(x: float, exponent: int) -> list[int]:
    """Return the digits of a finite `x` in the window below `exponent`, by exact arithmetic."""
    rest, digits = Fraction(x), []
    for k in range(algebra.DIGITS):
        unit = Fraction(2) ** (24 * (exponent - 1 - k))
        digits.append(round(rest / unit))  # half to even
        rest -= digits[-1] * unit
    return digits


def window_of(values: Any) -> list[int]:
    """Return the exponent and the digits of the sum of the finite ones of `values`."""
    finite = [float(x) for x in values if math.isfinite(x)]
    top = max(map(exponent_of, finite), default=LOWEST)
    columns = zip(*(digits_of(x, top) for x in finite), strict=True) if finite else [()] * 4
    return [top, *map(sum, columns)]


def exact(window: list[int]) -> Fraction:
    top, *digits = window
    return sum((d * Fraction(2) ** (24 * (top - 1 - k)) for k, d in enumerate(digits)), Fraction(0))


def special_of(values: Any) -> float:
    with np.errstate(invalid="ignore"):
        return float(
            sum([x for x in np.asarray(values, "f8") if not np.isfinite(x)], np.float64(0))
        )


def operation(dtype: Any) -> Any:
    monoid = REPRODUCIBLE_COMPLEX_SUM if np.dtype(dtype).kind == "c" else REPRODUCIBLE_SUM
    return bind(monoid, np.dtype(dtype), np.dtype(dtype), "sum")


def lift(xp: Any, x: Any, axes: tuple[int, ...] = (0,), dtype: Any = None) -> State:
    x = xp.asarray(x)
    state = chunks.backend_of(x).lift(operation(x.dtype), x, axes)
    return tuple(np.asarray(chunks.asarray(field, "numpy")) for field in state)


#: Borders of the grid, halves of its units, and the ends of the floats.
BORDERS = [
    sign * (base + step) * 2.0**power
    for power in (-1074, -1030, -1008, -49, -25, -24, -1, 0, 1, 22, 23, 24, 47, 500, 990)
    for base in (1.0, 1.5, 0.5 + 2.0**-24, 2.0**24 - 1)
    for step in (0, 2.0**-52, -(2.0**-53))
    for sign in (1, -1)
]
EXTREMES = [0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1.7e308, -1.7e308, 1e308]
hard = st.sampled_from(BORDERS + EXTREMES) | st.floats(allow_nan=False, allow_infinity=False)
any_float = hard | st.sampled_from([np.inf, -np.inf, np.nan])


def as_floats(values: list[float], dtype: str) -> Any:
    """Return `values` as `dtype`, those that are too large for it made smaller."""
    array = np.array(values, "f8")
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        large = np.isfinite(array) & (np.abs(array) > float(info.max))
        array[large] = np.ldexp(np.frexp(array[large])[0], info.maxexp - 2)
        return array.astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@FEWER
@given(values=st.lists(any_float, max_size=30))
def test_a_state_holds_the_digits_of_exact_arithmetic(
    xp: Any, dtype: str, values: list[float]
) -> None:
    array = as_floats(values, dtype)
    special, *window = (field.item() for field in lift(xp, array))
    assert window == window_of(array)
    np.testing.assert_equal(special, special_of(array))


@pytest.mark.parametrize("dtype", FLOATS)
@FEWER
@given(values=st.lists(hard, min_size=1, max_size=30))
def test_a_sum_is_that_of_its_digits_rounded_once(xp: Any, dtype: str, values: list[float]) -> None:
    array = as_floats(values, dtype)
    for output in FLOATS:
        expected = rounded(exact(window_of(array)), output)
        total = to_numpy(xp, dc.sum(to_chunks(xp, array, 3), dtype=output, reproducible=True))
        assert bits(total) == bits(expected), (total, expected)


@given(
    values=st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=40),
    powers=st.lists(st.integers(-16, 2), min_size=1, max_size=7),
)
def test_a_sum_of_72_bits_is_the_exact_one(xp: Any, values: list[int], powers: list[int]) -> None:
    array = np.array([v * 2.0 ** powers[i % len(powers)] for i, v in enumerate(values)])
    # The last unit is 2**-72 of the first, and the first no larger than the largest.
    kept = np.abs(array).max() < 2.0**52
    total = to_numpy(xp, dc.sum(to_chunks(xp, array, 5), reproducible=True))
    assert total == math.fsum(array) or not kept


@pytest.mark.parametrize("dtype", FLOATS)
@given(values=st.lists(hard, min_size=1, max_size=20))
def test_what_is_dropped_is_less_than_2_to_the_minus_72_of_the_largest(
    dtype: str, values: list[float]
) -> None:
    array = as_floats(values, dtype)
    error = abs(exact(window_of(array)) - sum(map(Fraction, array.tolist())))
    largest = max(abs(Fraction(x)) for x in array.tolist())
    assert error <= len(array) * largest / 2**72
    if dtype == "f2":
        assert error == 0


def test_every_digit_fits() -> None:
    largest = max(abs(d) for x in BORDERS for d in digits_of(x, exponent_of(x)))
    assert largest == 2**23
    assert algebra.LIMIT * largest <= 2**62


@given(
    digits=st.lists(st.integers(-(2**62), 2**62), min_size=4, max_size=4),
    exponent=st.integers(LOWEST, 43),
    output=st.sampled_from(FLOATS),
)
def test_any_digits_are_rounded_once(digits: list[int], exponent: int, output: str) -> None:
    state = (np.float64(0), np.int64(exponent), *map(np.int64, digits))
    expected = rounded(exact([exponent, *digits]), output)
    for shape in ((), (3,)):
        total = algebra.total([np.full(shape, f)[()] for f in state], np.dtype(output))
        assert bits(total) == bits(np.full(shape, expected))


@given(
    digits=st.tuples(*[st.integers(-5, 5)] * 4).filter(any),
    zeros=st.integers(0, 3),
    odd=st.integers(-1, 1),
    exponent=st.integers(-12, 5),
)
def test_halves_of_the_last_place_round_to_even(
    digits: tuple[int, ...], zeros: int, odd: int, exponent: int
) -> None:
    d = [*digits[:zeros], *[0] * (4 - zeros)]
    d[0] += 2**53 + 1
    d[3] += odd
    state = (np.float64(0), np.int64(exponent), *map(np.int64, d))
    for output in FLOATS:
        expected = rounded(exact([exponent, *d]), output)
        assert bits(algebra.total(state, np.dtype(output))) == bits(expected)


@given(data=st.data())
def test_the_bits_of_a_sum_are_those_of_every_chunking_and_tree(xp: Any, data: Any) -> None:
    case = data.draw(hard_arrays(FLOATS + COMPLEX))
    axis = data.draw(axes(case.array.ndim))
    keepdims = data.draw(st.booleans())
    function = data.draw(st.sampled_from([dc.sum, dc.mean]))
    whole = to_numpy(xp, function(to_chunks(xp, case.array, -1), axis, reproducible=True))
    lazy = function(
        to_chunks(xp, *case),
        axis,
        keepdims=keepdims,
        split_every=data.draw(st.none() | st.integers(2, 9)),
        reproducible=True,
    )
    # NumPy warns of means of nothing.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        reference = getattr(np, function.__name__)(case.array, axis, keepdims=keepdims)
    found = to_numpy(xp, lazy)
    assert found.shape == reference.shape
    assert found.dtype == reference.dtype
    assert bits(found) == bits(whole)


@given(data=st.data())
def test_the_bits_of_a_sum_are_those_of_every_order(xp: Any, data: Any) -> None:
    (x, _), seed = data.draw(hard_arrays(FLOATS + COMPLEX)), data.draw(st.integers(0, 99))
    x = x.ravel()
    y = np.random.default_rng(seed).permutation(x)
    sums = [
        to_numpy(xp, dc.sum(to_chunks(xp, a, data.draw(chunkings(a.shape))), reproducible=True))
        for a in (x, y, y[::-1])
    ]
    assert len(set(map(bits, sums))) == 1


@given(case=hard_arrays(FLOATS), data=st.data())
def test_every_line_of_an_array_is_summed_as_if_alone(xp: Any, case: Chunked, data: Any) -> None:
    x = case.array
    if x.ndim < 2:
        return
    reduced = data.draw(st.sets(st.integers(0, x.ndim - 1), min_size=1, max_size=x.ndim - 1))
    together = lift(xp, x, tuple(sorted(reduced)))
    kept = [d for d in range(x.ndim) if d not in reduced]
    for index in np.ndindex(*(x.shape[d] for d in kept)):
        at = dict(zip(kept, index, strict=True))
        line = x[tuple(at.get(d, slice(None)) for d in range(x.ndim))].ravel()
        for a, b in zip(together, lift(np, line), strict=True):
            np.testing.assert_array_equal(a[index], b)


LARGE = [((70_001,), (0,)), ((300, 257), (0,)), ((300, 257), (1,)), ((5, 400, 33), (0, 2))]
LARGE += [((5, 400, 33), (1,)), ((70_001, 3), (0,)), ((3, 70_001), (1,)), ((2, 3, 5, 700), (0, 2))]
LARGE += [((1, 20_000), (0,)), ((20_000, 1), (0,)), ((0, 7), (0,))]


def assert_digits(xp: Any, dtype: str, shape: tuple[int, ...], reduced: tuple[int, ...]) -> None:
    """Hold what `xp`'s chunks find to NumPy's functions, for several orders in memory."""
    x = scattered(shape, dtype)
    for array in (x, np.asfortranarray(x), x[..., ::-1]):
        with pytest.MonkeyPatch.context() as patch:
            compile_from(patch, math.inf, "reproducible")
            expected = lift(np, np.ascontiguousarray(array), reduced)
        found = lift(xp, array, reduced)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        totals = [algebra.total(state, np.dtype(dtype)) for state in (found, expected)]
        assert bits(totals[0]) == bits(totals[1])


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
@pytest.mark.parametrize(("shape", "reduced"), LARGE)
def test_all_loops_find_the_same_digits(
    xp: Any, dtype: str, shape: tuple[int, ...], reduced: tuple[int, ...]
) -> None:
    assert_digits(xp, dtype, shape, reduced)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
@pytest.mark.parametrize(
    ("shape", "reduced"), [shape for kernel in KERNEL_SHAPES.values() for shape in kernel]
)
def test_all_kernels_find_the_same_digits(
    dtype: str, shape: tuple[int, ...], reduced: tuple[int, ...]
) -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    assert_digits(importlib.import_module("cupy"), dtype, shape, reduced)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_numpys_and_cupys_chunks_give_the_same_bits(dtype: str) -> None:
    if missing := missing_for_gpu():
        pytest.skip(missing)
    cp = importlib.import_module("cupy")
    rng = np.random.default_rng(1)
    for seed in range(20):
        shape = tuple(int(n) for n in rng.integers(1, [3000, 40, 9][: rng.integers(1, 4)]))
        axis = tuple(d for d in range(len(shape)) if rng.random() < 0.6) or None
        x = scattered(shape, dtype, seed)
        if seed % 3 == 0:
            x.flat[:: max(1, x.size // 3)] = [np.inf, -np.inf, np.nan][seed // 3 % 3]
        for function in (dc.sum, dc.mean):
            results = [
                to_numpy(m, function(to_chunks(m, x, 100 + seed), axis, reproducible=True))
                for m in (np, cp)
            ]
            assert bits(results[0]) == bits(results[1]), (shape, axis)


@given(
    a=st.lists(any_float, max_size=8), b=st.lists(any_float, max_size=8), far=st.integers(-900, 900)
)
def test_states_far_apart_combine_to_that_of_the_whole(
    xp: Any, a: list[float], b: list[float], far: int
) -> None:
    with np.errstate(all="ignore"):
        parts = np.array(a), np.ldexp(np.array(b), far)
        expected = lift(xp, np.concatenate(parts))
        first, second = (lift(xp, part) for part in parts)
        for pair in ((first, second), (second, first)):
            for x, y in zip(REPRODUCIBLE_SUM.combine(*pair), expected, strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, np.inf], np.inf),
        ([-np.inf, 1, -np.inf], -np.inf),
        ([np.inf, 2, -np.inf], np.nan),
        ([np.nan, 1, np.inf], np.nan),
        ([-np.nan, 1], np.nan),
    ],
)
def test_what_is_not_finite_comes_out_as_numpys(
    xp: Any, dtype: str, values: list[float], expected: float
) -> None:
    array = np.array(values).astype(dtype)
    for function in (dc.sum, dc.mean):
        for size in (1, 2, 3):
            x = to_chunks(xp, array, size)
            found = to_numpy(xp, function(x, reproducible=True))
            assert bits(found.real) == bits(np.array(expected, found.real.dtype))
            assert bits(found.imag) == bits(np.array(0, found.real.dtype))


def test_infinities_spoil_their_lines_only(xp: Any) -> None:
    array = np.arange(1, 13, dtype="f8").reshape(3, 4)
    array[0, 1], array[2, 3] = np.inf, np.nan
    for axis in (0, 1):
        with np.errstate(invalid="ignore"):
            expected = array.sum(axis)
        found = to_numpy(xp, dc.sum(to_chunks(xp, array, 2), axis, reproducible=True))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_sums_of_nothing_and_of_zeros_are_plus_zero(xp: Any, dtype: str) -> None:
    for array in (np.empty(0, dtype), np.full(5, -0.0, dtype), np.array([1.5, -1.5], dtype)):
        total = to_numpy(xp, dc.sum(to_chunks(xp, array, 2), reproducible=True))
        assert bits(total) == bits(np.zeros((), dtype))
    assert np.isnan(to_numpy(xp, dc.mean(to_chunks(xp, np.empty(0, dtype), 1), reproducible=True)))


@pytest.mark.parametrize("array", [[1e308, 1e308, -1e308], [1e308, 1e308], [-1.7e308, -1e308]])
def test_only_a_sum_that_is_too_large_overflows(xp: Any, array: list[float]) -> None:
    total = to_numpy(xp, dc.sum(to_chunks(xp, np.array(array), 1), reproducible=True))
    assert total == rounded(sum(map(Fraction, array), Fraction(0)), "f8")


def test_means_are_sums_divided_by_counts(xp: Any) -> None:
    for dtype in FLOATS + COMPLEX:
        array = np.arange(1, 200).astype(dtype)
        mean = to_numpy(xp, dc.mean(to_chunks(xp, array, 7), reproducible=True))
        assert mean == 100
        assert mean.dtype == dtype


@pytest.mark.parametrize("function", [dc.sum, dc.mean])
@pytest.mark.parametrize("output", [*FLOATS, *COMPLEX, "i8", ">f4"])
@pytest.mark.parametrize("dtype", ["?", "u1", "i8", *FLOATS, "c8"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_dtype_converts_as_it_does_otherwise(
    xp: Any, function: Any, dtype: str, output: str
) -> None:
    array = np.tile(np.array([0, 1, 1, 0, 3]).astype(dtype), 6)
    x = to_chunks(xp, array, 7)
    plain = function(x, dtype=output)
    found = function(x, dtype=output, reproducible=True)
    assert found.dtype == plain.dtype
    np.testing.assert_array_equal(to_numpy(xp, found), to_numpy(xp, plain))


def test_integers_sum_as_they_do_otherwise() -> None:
    for dtype in ["?", *INTS]:
        x = da.ones((5, 4), chunks=2, dtype=dtype)
        assert dc.sum(x, reproducible=True).name == dc.sum(x).name


def test_means_of_integers_take_them_as_float64(xp: Any) -> None:
    array = np.array([2**53 + 1, 2**62, -(2**62), 3])
    found = to_numpy(xp, dc.mean(to_chunks(xp, array, 2), reproducible=True))
    assert found == (2.0**53 + 3) / 4


def test_nan_can_be_left_out(xp: Any) -> None:
    array = np.array([[1, np.nan, 3, np.inf], [np.nan, 5e-324, np.nan, 2]])
    for plain, expected in ((SUM, [np.inf, 2]), (MEAN, [np.inf, 1])):
        op = reproducible(bind(plain, array.dtype, array.dtype, "nan", skipna=True))
        x = xp.asarray(array)
        state = chunks.backend_of(x).lift(op, x, (1,))
        finish = algebra.total if plain is SUM else algebra.mean
        found = finish(state, np.dtype("f8"))
        np.testing.assert_array_equal(chunks.asarray(found, "numpy"), expected)


def test_a_mask_leaves_elements_out() -> None:
    x, where = scattered((50, 30), "f8"), np.random.default_rng(5).random((50, 30)) < 0.5
    op = reproducible(bind(MEAN, x.dtype, x.dtype, "mean"))
    state = chunks.backend_of(x).lift(op, x, (0,), where)
    for column in range(30):
        alone = x[where[:, column], column]
        for a, b in zip(state, chunks.backend_of(x).lift(op, alone, (0,)), strict=True):
            assert a[column] == b


@pytest.mark.parametrize("function", [dc.sum, dc.mean])
def test_too_many_elements_are_refused_where_their_number_is_known(function: Any) -> None:
    x = da.zeros((2**20, 2**20), chunks=2**19, dtype="f4")
    with pytest.raises(ValueError, match=r"at most 2\*\*39 elements at a time, got 1099511627776"):
        function(x, reproducible=True)
    assert function(x, axis=0, reproducible=True).shape == (2**20,)
    unknown = da.arange(50.0, chunks=7)
    assert function(unknown[unknown > 47], reproducible=True).compute() in (97, 48.5)


@pytest.mark.parametrize("function", [dc.sum, dc.mean])
def test_the_same_call_has_the_same_name_and_the_plain_one_another(function: Any) -> None:
    x = da.ones((20, 20), chunks=7)
    names = [function(x, axis=0, reproducible=r).name for r in (True, True, False, False)]
    assert names[0] == names[1] != names[2] == names[3]
    with pytest.raises(TypeError, match="positional"):
        function(x, None, None, False, None, None, True)


@pytest.mark.parametrize("dtype", ["O", "g", "M8[s]", "U3"])
def test_other_dtypes_are_refused_for_dask_has_no_such_argument(dtype: str) -> None:
    for function in (dc.sum, dc.mean):
        x = da.from_array(np.zeros(3, dtype), chunks=2)
        with pytest.raises(TypeError, match="no argument reproducible"):
            function(x, reproducible=True)


def test_a_mean_divides_as_well_what_stays_an_array() -> None:
    op = reproducible(bind(MEAN, np.dtype("c8"), np.dtype("c8"), "mean"))
    state = chunks.backend_of(np.empty(0)).lift(op, np.full((4, 3), 2 + 6j, "c8"), (0,))
    found = algebra.mean(state, np.dtype("c8"))
    assert found.dtype == "c8"
    np.testing.assert_array_equal(found, np.full(3, 2 + 6j))


def twice(x: float) -> float:
    return 2 * x


def test_loops_are_compiled_where_machine_code_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("numba")
    from numba.core.dispatcher import Dispatcher

    from dask_coop.compiled import jit

    def refuse(self: Any) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(Dispatcher, "enable_caching", refuse)
    jit._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="are not kept: none that Numba tries can be written"):
        compiled = jit.jit(twice)
    jit._warn_once.cache_clear()
    assert compiled(2.0) == 4.0


def test_the_loops_without_numba_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask_coop.chunks.numpy.loops.reproducible", None)
    monkeypatch.delattr("dask_coop.chunks.numpy.loops.reproducible", raising=False)
    assert loops.__wrapped__("reproducible") is None
