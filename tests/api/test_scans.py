"""cumsum against NumPy and exact arithmetic, for any chunking."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import (
    BOOL,
    COMPLEX,
    FLOATS,
    INTS,
    NUMBERS,
    arrays,
    assert_near,
    chunkings,
    exactly_representable,
    scannable,
    slack,
    wide,
)

import dask_coop as dc


def expected_slack(array: Any, axis: int | None) -> Any:
    """Return the error bound of float64 for every element of a scan: that of its line's sum."""
    return slack(array) if axis is None else slack(array, axis, keepdims=True)


@given(case=scannable(dtypes=BOOL + INTS))
def test_integer_scans_are_numpys(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumsum(to_chunks(xp, array, chunks), axis)
    expected = np.cumsum(array, axis)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(to_numpy(xp, result), expected)


@given(case=scannable(dtypes=FLOATS + COMPLEX))
def test_float_scans_are_exact_but_for_one_rounding(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumsum(to_chunks(xp, array, chunks), axis)
    with np.errstate(all="ignore"):
        exact = np.cumsum(wide(array), axis)
    assert result.dtype == array.dtype
    assert result.shape == exact.shape
    assert_near(to_numpy(xp, result), exact, expected_slack(array, axis))


@given(case=scannable(dtypes=NUMBERS))
def test_chunks_stay_as_they_are(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumsum(to_chunks(xp, array, chunks), axis)
    if axis is not None:
        assert result.chunks == chunks
    for index in np.ndindex(result.numblocks):
        block = result.blocks[index] if index else result
        to_numpy(xp, block)  # holds every block's shape to the promised one


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("axis", [0, 1])
def test_same_sign_scans_are_within_four_ulps_everywhere(xp: Any, dtype: str, axis: int) -> None:
    # 0.1 is no float, so that each addition in a narrow accumulator would round.
    largest = {"f2": 3000, "f4": 30_000}[dtype]
    array = np.random.default_rng(2).uniform(0.1, 1, (3, largest)).astype(dtype)
    array, chunks = (array, (2, 777)) if axis else (array.T, (777, 2))
    exact = np.cumsum(wide(array), axis)
    assert_near(to_numpy(xp, dc.cumsum(to_chunks(xp, array, chunks), axis)), exact, ulps=4)
    # What the bound is there to keep out: a scan in the elements' own dtype.
    with pytest.raises(AssertionError, match="ulp off"):
        assert_near(np.cumsum(array, axis), exact, ulps=4)


@given(case=arrays(dtypes=INTS, shape=st.tuples(st.integers(0, 90))), data=st.data())
def test_the_scan_of_a_concatenation_is_the_carried_scan_of_its_parts(
    xp: Any, case: Any, data: Any
) -> None:
    at = data.draw(st.integers(0, case.array.size))
    left, right = case.array[:at], case.array[at:]
    first, second = (
        to_numpy(xp, dc.cumsum(to_chunks(xp, part, data.draw(chunkings(part.shape)))))
        for part in (left, right)
    )
    whole = to_numpy(xp, dc.cumsum(to_chunks(xp, *case)))
    np.testing.assert_array_equal(whole, np.concatenate([first, left.sum() + second]))


@given(case=scannable(dtypes=NUMBERS))
def test_the_last_element_of_a_scan_is_the_sum(xp: Any, case: Any) -> None:
    (array, chunks), axis = case
    x = to_chunks(xp, array, chunks)
    scan = to_numpy(xp, dc.cumsum(x, axis))
    if scan.size == 0:
        return
    last = scan[-1] if axis is None else np.take(scan, -1, axis)
    bound = 2 * slack(array, axis)
    total = to_numpy(xp, dc.sum(x, axis))
    if array.dtype.kind in "biu":
        np.testing.assert_array_equal(last, total)
    else:
        assert_near(last, wide(total), bound)


def test_nan_and_infinities_reach_all_that_comes_after(xp: Any) -> None:
    inf, nan = np.inf, np.nan
    for array in ([1, inf, 2, 3, -inf, 4, 5], [1, 2, nan, 3, inf, 4], [-inf, 1, -inf, 2, nan]):
        expected = np.array([sum(array[: i + 1]) for i in range(len(array))])
        for chunk in (1, 2, 3, 7):
            result = dc.cumsum(to_chunks(xp, np.array(array, "f4"), chunk))
            np.testing.assert_array_equal(to_numpy(xp, result), expected)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("output", NUMBERS)
@pytest.mark.parametrize("dtype", NUMBERS)
def test_dtype_converts_as_numpy_does(xp: Any, dtype: str, output: str) -> None:
    array = np.tile(np.array(exactly_representable(dtype, output)).astype(dtype), 3)
    result = dc.cumsum(to_chunks(xp, array, 5), dtype=output)
    assert result.dtype == output
    np.testing.assert_array_equal(to_numpy(xp, result), np.cumsum(array, dtype=output))


@pytest.mark.parametrize("output", INTS)
@given(case=scannable(dtypes=BOOL + INTS))
def test_integers_wrap_to_any_other_as_numpys(xp: Any, output: str, case: Any) -> None:
    (array, chunks), axis = case
    result = dc.cumsum(to_chunks(xp, array, chunks), axis, output)
    np.testing.assert_array_equal(to_numpy(xp, result), np.cumsum(array, axis, output))


@pytest.mark.parametrize("pieces", [1, 2, 15, 16, 17, 18, 32, 33, 34, 272, 273, 274, 300])
def test_every_shape_of_spine(xp: Any, pieces: int) -> None:
    array = np.arange(2 * pieces + 1)
    chunks = (*(2,) * (pieces - 1), 3)
    x = to_chunks(xp, array, (chunks,))
    np.testing.assert_array_equal(to_numpy(xp, dc.cumsum(x)), np.cumsum(array))


def test_the_flattened_scan_follows_c_order(xp: Any) -> None:
    array = np.arange(120).reshape(4, 5, 6)
    for order in "CF":
        x = to_chunks(xp, np.asarray(array, order=order), (3, 2, 4))
        np.testing.assert_array_equal(to_numpy(xp, dc.cumsum(x)), np.cumsum(array))


def test_out_is_overwritten_and_returned(xp: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    out = to_chunks(xp, np.zeros((3, 4)), 3)
    assert dc.cumsum(to_chunks(xp, array, 2), axis=0, out=out) is out
    np.testing.assert_array_equal(to_numpy(xp, out), np.cumsum(array, axis=0))


def test_the_input_is_left_alone(xp: Any) -> None:
    for dtype in ("f8", "i8"):
        array = np.arange(9).astype(dtype)
        x = to_chunks(xp, array, 3).persist()
        for _ in range(2):
            np.testing.assert_array_equal(to_numpy(xp, dc.cumsum(x)), np.cumsum(np.arange(9)))
        np.testing.assert_array_equal(to_numpy(xp, x), np.arange(9))


def test_blelloch_is_accepted_as_dasks_name(xp: Any) -> None:
    x = to_chunks(xp, np.arange(50), 3)
    result = dc.cumsum(x, method="blelloch")
    np.testing.assert_array_equal(to_numpy(xp, result), np.cumsum(np.arange(50)))
    assert result.name == dc.cumsum(x, method="reduce-then-scan").name


@pytest.mark.parametrize("x", [[1, 2, 3], np.float32(3.5), np.arange(6).reshape(2, 3), 7])
def test_what_is_not_a_dask_array_becomes_one(x: Any) -> None:
    result = dc.cumsum(x)
    assert isinstance(result, da.Array)
    np.testing.assert_array_equal(result.compute(), np.cumsum(x))


def test_other_byte_orders_are_read() -> None:
    array = np.array([1.5, -2.25, 8.0], ">f4")
    result = dc.cumsum(da.from_array(array, chunks=2)).compute()
    np.testing.assert_array_equal(result, np.cumsum(array))


def test_unknown_methods_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"one of .*reduce-then-scan.* got 'magic'"):
        dc.cumsum(da.ones(3), method="magic")


@pytest.mark.parametrize("axis", [1, -2, 7])
def test_bad_axes_are_refused_by_name(axis: int) -> None:
    with pytest.raises(np.exceptions.AxisError, match=f"(?i)axis {axis} is out of bounds"):
        dc.cumsum(da.ones(3), axis)


@pytest.mark.parametrize("axis", ["rows", 0.5, (0, 1)])
def test_what_is_no_axis_is_refused(axis: Any) -> None:
    with pytest.raises(TypeError):
        dc.cumsum(da.ones((3, 3)), axis)


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "g", "V4"])
def test_other_dtypes_are_refused_by_name_where_dask_is_no_help(dtype: str) -> None:
    with pytest.raises(TypeError, match="cumsum does not take dtype") as caught:
        dc.cumsum(da.from_array(np.zeros(4, dtype), chunks=2), exclusive=True)
    assert str(np.dtype(dtype)) in str(caught.value)
    with pytest.raises(TypeError, match="cumsum does not take dtype"):
        dc.cumsum(da.ones(3), dtype=dtype, exclusive=True)


def test_other_kinds_of_chunk_are_refused_by_name_where_dask_is_no_help() -> None:
    class Quantity(np.ndarray[Any, Any]):
        pass

    plain = da.ones(4, chunks=2)
    strange = da.Array(plain.dask, plain.name, plain.chunks, meta=np.empty(0).view(Quantity))
    with pytest.raises(TypeError, match="Quantity"):
        dc.cumsum(strange, reverse=True)
