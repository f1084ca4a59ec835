"""norm and moment against NumPy and exact arithmetic, for any chunking."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from dask.array.utils import same_keys
from hypothesis import given
from hypothesis import strategies as st
from support.calls import refuse
from support.strategies import FEWER, NUMBERS, REAL, Chunked, arrays, reducible, wide

import dask_coop as dc

keep = st.booleans()
VECTOR_ORDERS = [None, 2, 1, 0, np.inf, -np.inf, 3, 0.5, -1, -2, -2.5]
MATRIX_ORDERS = [None, "fro", "f", 1, -1, np.inf, -np.inf]

#: Whose powers are neither too large for a float16 nor too small.
values = st.sampled_from([1, 2, 3])


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Chunked, Any]:
    """An array of two dimensions or more with chunks, and two of its axes in any order."""
    sides = st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple)
    case = draw(arrays(dtypes=NUMBERS, shape=sides, values=values))
    ndim = case.array.ndim
    pair = st.lists(
        st.integers(-ndim, ndim - 1), min_size=2, max_size=2, unique_by=lambda a: a % ndim
    )
    return case, draw(pair.map(tuple) if ndim > 2 else pair.map(tuple) | st.none())


def hold_to_numpy(xp: Any, case: Any, order: Any, keepdims: bool) -> None:
    (array, chunks), axis = case
    if array.dtype.kind == "c":
        array = array * array.dtype.type(0.6 - 0.8j)
    result = dc.norm(to_chunks(xp, array, chunks), order, axis, keepdims)
    dtype = np.linalg.norm(array, order, axis, keepdims).dtype
    with np.errstate(all="ignore"):
        expected = np.linalg.norm(wide(array), order, axis, keepdims).astype(dtype)
    assert result.dtype == dtype
    np.testing.assert_allclose(to_numpy(xp, result), expected, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("order", VECTOR_ORDERS)
@FEWER
@given(
    case=arrays(
        dtypes=NUMBERS, shape=st.tuples(st.integers(1, 70), st.integers(1, 4)), values=values
    ),
    axis=st.sampled_from([0, 1, (-1,)]),
    keepdims=keep,
)
def test_vector_norms_are_numpys(xp: Any, order: Any, case: Any, axis: Any, keepdims: bool) -> None:
    hold_to_numpy(xp, (case, axis), order, keepdims)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("order", MATRIX_ORDERS)
@FEWER
@given(case=matrices(), keepdims=keep)
def test_matrix_norms_are_numpys(xp: Any, order: Any, case: Any, keepdims: bool) -> None:
    hold_to_numpy(xp, case, order, keepdims)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_the_norm_of_all_is_that_of_what_it_holds(xp: Any, shape: tuple[int, ...]) -> None:
    array = np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)
    result = dc.norm(to_chunks(xp, array, 2))
    np.testing.assert_allclose(to_numpy(xp, result), np.linalg.norm(array), rtol=1e-15)


def test_sizes_that_their_dtype_cannot_square_or_negate(xp: Any) -> None:
    large = to_chunks(xp, np.full(4, 1e30, "f4"), 3)
    assert to_numpy(xp, dc.norm(large)) == np.float32(2e30)
    lowest = to_chunks(xp, np.full(4, -128, "i1"), 3)
    assert to_numpy(xp, dc.norm(lowest, np.inf)) == 128
    assert to_numpy(xp, dc.norm(lowest, 1)) == 512


def test_a_zero_makes_norms_of_negative_order_zero_and_nan_spoils_all(xp: Any) -> None:
    zero, nan = (to_chunks(xp, np.array([1, v, 3.0]), 2) for v in (0, np.nan))
    assert to_numpy(xp, dc.norm(zero, -1)) == 0
    for order in (None, 1, 3, np.inf, -np.inf):
        assert np.isnan(to_numpy(xp, dc.norm(nan, order)))


def test_nothing_has_a_norm_but_no_least_size(xp: Any) -> None:
    nothing = to_chunks(xp, np.empty((0, 3)), (1, 2))
    for order in (None, 1, 2, 3, 0, np.inf):
        np.testing.assert_array_equal(to_numpy(xp, dc.norm(nothing, order, axis=0)), [0, 0, 0])
    for order, axis in ((-np.inf, 0), (-np.inf, (0, 1))):
        with pytest.raises(ValueError, match="zero-size array to reduction operation norm"):
            dc.norm(nothing, order, axis)


@pytest.mark.parametrize("order", ["nuc", 2, -2])
def test_singular_values_are_dasks(order: Any) -> None:
    array = np.random.default_rng(0).random((6, 3))
    x = da.from_array(array, chunks=(2, 3))
    lazy = dc.norm(x, order)
    assert lazy.name.partition("-")[0] == da.linalg.norm(x, order).name.partition("-")[0]
    np.testing.assert_allclose(lazy.compute(), np.linalg.norm(array, order))


@pytest.mark.parametrize(
    ("shape", "order", "axis", "words"),
    [
        ((3,), "fro", None, "Invalid norm order 'fro' for vectors"),
        ((3,), "nuc", 0, "Invalid norm order 'nuc' for vectors"),
        ((3, 3), 3, None, "Invalid norm order 3 for matrices"),
        ((3, 3), "rows", None, "Invalid norm order 'rows' for matrices"),
        ((3, 3), None, (0, -2), r"Duplicate axes given: \(0, -2\)"),
        ((3, 3, 3), 1, None, "Improper number of dimensions to norm"),
        ((3, 3, 3), None, (0, 1, 2), "Improper number of dimensions to norm"),
        ((3, 3), None, 2, "(?i)axis 2 is out of bounds"),
    ],
)
def test_norms_that_there_are_not_are_refused(
    shape: Any, order: Any, axis: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        dc.norm(da.ones(shape), order, axis)


def test_building_computes_nothing_and_keys_are_the_calls_own(xp: Any) -> None:
    x = to_chunks(xp, np.ones((4, 4)), 2).map_blocks(refuse, dtype="f8", meta=xp.empty((0, 0)))
    calls = [
        *(lambda order=order: dc.norm(x, order, axis=0) for order in VECTOR_ORDERS[1:]),
        *(lambda order=order: dc.norm(x, order) for order in MATRIX_ORDERS[3:]),
        *(lambda order=order: dc.moment(x, order) for order in range(5)),
        lambda: dc.moment(x, 3, ddof=1),
    ]
    with dask.config.set(scheduler=refuse):
        assert all(same_keys(call(), call()) for call in calls)
        assert len({call().name for call in calls}) == len(calls)


@pytest.mark.parametrize("order", [2, 3, 4, 7])
@given(
    case=reducible(dtypes=REAL, values=st.sampled_from([0, 1, 2, 5])),
    keepdims=keep,
    split_every=st.none() | st.integers(2, 20),
    ddof=st.sampled_from([0, 1, 0.5]),
)
def test_moments_are_exact_but_for_their_rounding(
    xp: Any, order: int, case: Any, keepdims: bool, split_every: Any, ddof: float
) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    result = dc.moment(x, order, axis, None, keepdims, ddof, split_every)
    assert result.dtype == np.var(np.ones(1, array.dtype)).dtype
    exact = array.astype("g")
    count = array.size // max(np.sum(exact, axis).size, 1)
    with np.errstate(all="ignore"):
        power = (exact - exact.sum(axis, keepdims=True) / max(count, 1)) ** order
        expected = power.sum(axis, keepdims=keepdims) / (count - ddof)
    if count - ddof > 0:
        eps = float(np.finfo(result.dtype).eps)
        np.testing.assert_allclose(
            to_numpy(xp, result).astype("f8"),
            expected.astype(result.dtype).astype("f8"),
            rtol=2 * eps,
            atol=1e-13 * 5.0**order * max(count, 1),
        )


def test_moments_of_large_values_do_not_cancel(xp: Any) -> None:
    deviations = np.random.default_rng(1).exponential(size=10_000)
    exact = np.mean((deviations - deviations.mean()) ** 3)
    for chunks in (333, 10_000):
        x = to_chunks(xp, deviations + 1e6, chunks)
        np.testing.assert_allclose(to_numpy(xp, dc.moment(x, 3)), exact, rtol=1e-6)


def test_moments_of_orders_below_two_are_known(xp: Any) -> None:
    x = to_chunks(xp, np.ones((3, 4), "f4"), 2)
    for order in (0, 1):
        for keepdims in (False, True):
            result = dc.moment(x, order, axis=0, keepdims=keepdims)
            theirs = np.full((1, 4) if keepdims else (4,), 1.0 - order)
            assert result.dtype == "f8"
            np.testing.assert_array_equal(to_numpy(xp, result), theirs)


@pytest.mark.parametrize("ddof", [3, 4])
def test_too_few_elements_for_the_degrees_of_freedom(xp: Any, ddof: int) -> None:
    x = to_chunks(xp, np.array([[1, 2, 4], [4, 4, 4.0]]), 2)
    result = to_numpy(xp, dc.moment(x, 2, axis=1, ddof=ddof))
    np.testing.assert_array_equal(result, [np.inf, np.nan] if ddof == 3 else [np.nan] * 2)


def test_means_that_are_far_apart_overflow_nothing_of_empty_chunks(xp: Any) -> None:
    x = to_chunks(xp, np.full(3, 2.0**400), ((0, 3, 0),))
    assert to_numpy(xp, dc.moment(x, 4)) == 0


@pytest.mark.parametrize("order", [-1, 2.0, 1.5, "2", None])
def test_an_order_is_a_whole_number(order: Any) -> None:
    with pytest.raises(ValueError, match="Order must be an integer >= 0, got "):
        dc.moment(da.ones(3), order)


def test_states_of_many_lines_are_all_of_one_kind(xp: Any) -> None:
    # As many lines as leave the sums on the host and the means, which are larger, on the GPU.
    array = np.random.default_rng(0).random((3, 6000))
    x = to_chunks(xp, array, (2, 6000))
    expected = np.mean((array - array.mean(0)) ** 3, axis=0)
    np.testing.assert_allclose(to_numpy(xp, dc.moment(x, 3, axis=0)), expected, atol=1e-14)
