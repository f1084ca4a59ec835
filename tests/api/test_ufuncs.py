"""NumPy's ufuncs as monoids: what their reduce and accumulate give, in value and dtype."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.calls import refuse
from support.strategies import arrays, scannable

import dask_coop as dc
from dask_coop.api.monoids import monoid as custom_monoid
from dask_coop.api.monoids import ufuncs
from dask_coop.chunks.cupy import programs_list

INTEGERS, FLOATS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"], ["f2", "f4", "f8"]
REAL = INTEGERS + FLOATS
TAKEN = {
    np.add: [*REAL, "c8", "c16"],
    np.multiply: [*REAL, "c8", "c16"],
    np.maximum: REAL,
    np.minimum: REAL,
    np.logical_and: [*REAL, "c8"],
    np.logical_or: [*REAL, "c8"],
    np.logical_xor: [*REAL, "c8"],
    np.bitwise_and: INTEGERS,
    np.bitwise_or: INTEGERS,
    np.bitwise_xor: INTEGERS,
    np.logaddexp: REAL,
}
by_ufunc = pytest.mark.parametrize("ufunc", TAKEN, ids=lambda ufunc: ufunc.__name__)

#: Small, so that sums and products are whole numbers that every float holds.
SMALL = st.integers(0, 3)


def reduced(ufunc: Any, x: Any, axis: Any = 0, **more: Any) -> Any:
    return expect(ufunc, ufunc.reduce, x, axis, **more)


def scanned(ufunc: Any, x: Any, axis: int = 0) -> Any:
    return expect(ufunc, ufunc.accumulate, x, axis)


def expect(ufunc: Any, method: Any, x: Any, axis: Any, **more: Any) -> Any:
    with np.errstate(all="ignore"):
        expected = np.asarray(method(x, axis, **more))
        # NumPy rounds every sum to the dtype of the result.
        wide = x.astype("f8") if ufunc is np.logaddexp else x
        return np.asarray(method(wide, axis, **more)).astype(expected.dtype)


def agree(ufunc: Any, found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    if ufunc is np.logaddexp:
        # Hundreds of float64 roundings, and one to the dtype of the result.
        slack = 2 * float(np.finfo(found.dtype).eps) + 1e-12
        np.testing.assert_allclose(found.astype("f8"), expected.astype("f8"), slack, slack)
    else:
        np.testing.assert_array_equal(found, expected)


@by_ufunc
@given(data=st.data())
def test_a_reduction_is_that_of_the_ufunc(xp: Any, ufunc: Any, data: Any) -> None:
    dtype = data.draw(st.sampled_from(TAKEN[ufunc]))
    values = st.booleans() if dtype == "?" else SMALL
    case = data.draw(arrays(dtypes=[dtype], values=values).filter(lambda c: c.array.size > 0))
    axis = (
        data.draw(st.none() | st.integers(-case.array.ndim, case.array.ndim - 1))
        if case.array.ndim
        else None
    )
    keepdims = data.draw(st.booleans())
    lazy = dc.reduce(to_chunks(xp, *case), ufunc, axis, keepdims=keepdims)
    expected = reduced(ufunc, case.array, axis, keepdims=keepdims)
    agree(ufunc, to_numpy(xp, lazy), expected)


@by_ufunc
@given(data=st.data())
def test_a_scan_is_that_of_the_ufunc(xp: Any, ufunc: Any, data: Any) -> None:
    dtype = data.draw(st.sampled_from(TAKEN[ufunc]))
    values = st.booleans() if dtype == "?" else SMALL
    cases = scannable(dtypes=[dtype], values=values)
    case, axis = data.draw(cases.filter(lambda c: c[0].array.ndim > 0))
    axis = 0 if axis is None else axis
    lazy = dc.scan(to_chunks(xp, *case), ufunc, axis)
    agree(ufunc, to_numpy(xp, lazy), scanned(ufunc, case.array, axis))


@by_ufunc
def test_every_dtype_and_many_chunks(xp: Any, ufunc: Any) -> None:
    rng = np.random.default_rng(0)
    for name in TAKEN[ufunc]:
        dtype = np.dtype(name)
        x = rng.integers(0, 3, (37, 3)) if dtype.kind in "fcb" else rng.integers(0, 250, (37, 3))
        x = np.where(x == 0, 1, x) if ufunc is np.multiply and dtype.kind in "fc" else x
        # Products of floats must be held by them.
        x = x.astype(dtype)[: 9 if dtype.kind in "fc" else None]
        if dtype.kind in "if" and ufunc is not np.logaddexp:
            x *= np.where(rng.random(x.shape) < 0.5, -1, 1).astype(dtype)
        lazy = to_chunks(xp, x, (4, 2))
        agree(ufunc, to_numpy(xp, dc.reduce(lazy, ufunc, 0)), reduced(ufunc, x))
        agree(ufunc, to_numpy(xp, dc.scan(lazy, ufunc, 0)), scanned(ufunc, x))
        back = np.flip(scanned(ufunc, np.flip(x, 0)), 0)
        agree(ufunc, to_numpy(xp, dc.scan(lazy, ufunc, 0, reverse=True)), back)


@pytest.mark.parametrize("name", ["i1", "u2", "i8", "?"])
def test_bits_of_any_number(xp: Any, name: str) -> None:
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, 8 * 500, dtype="u1")
    x = raw[:500] < 128 if name == "?" else raw.view(name)[:500]
    for ufunc in (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.logical_xor):
        lazy = to_chunks(xp, x, 77)
        agree(ufunc, to_numpy(xp, dc.reduce(lazy, ufunc)), reduced(ufunc, x))
        agree(ufunc, to_numpy(xp, dc.scan(lazy, ufunc)), scanned(ufunc, x))


def test_big_endian_elements() -> None:
    x = np.arange(9, dtype=">i4")
    for ufunc in (np.bitwise_or, np.add, np.maximum, np.logical_xor):
        assert dc.reduce(da.from_array(x, 4), ufunc).compute() == ufunc.reduce(x)


def test_no_element_and_several_axes(xp: Any) -> None:
    empty = to_chunks(xp, np.empty((0, 3), "i2"), (1, 3))
    for ufunc in (np.add, np.multiply, np.logical_xor, np.bitwise_and, np.bitwise_or, np.logaddexp):
        expected = reduced(ufunc, np.empty((0, 3), "i2"))
        agree(ufunc, to_numpy(xp, dc.reduce(empty, ufunc, 0)), expected)
    with pytest.raises(ValueError, match="no identity"):
        dc.reduce(empty, np.maximum, 0)
    x = np.arange(24).reshape(2, 3, 4)
    for ufunc in TAKEN:
        lazy = dc.reduce(to_chunks(xp, x, (1, 2, 3)), ufunc, (0, 2), split_every=2)
        agree(ufunc, to_numpy(xp, lazy), reduced(ufunc, x, (0, 2)))


def test_not_a_number_passes(xp: Any) -> None:
    x = np.array([1, np.nan, -np.inf, 3, 0, 2])
    for ufunc in (np.add, np.maximum, np.minimum, np.logaddexp, np.logical_xor, np.logical_and):
        lazy = to_chunks(xp, x, 2)
        agree(ufunc, to_numpy(xp, dc.reduce(lazy, ufunc)), reduced(ufunc, x))
        agree(ufunc, to_numpy(xp, dc.scan(lazy, ufunc)), scanned(ufunc, x))


def test_options_of_scans() -> None:
    x, restarts = da.arange(1, 9, chunks=3), np.arange(8) % 5 == 0
    found = dc.scan(x, np.bitwise_xor, segments=restarts, include_initial=False)
    expected = np.concatenate(
        [np.bitwise_xor.accumulate(part) for part in np.split(np.arange(1, 9), [5])]
    )
    np.testing.assert_array_equal(found.compute(), expected)
    assert dc.scan(x, np.bitwise_and, exclusive=True).compute()[0] == -1
    assert dc.scan(x, np.add, dtype="f4", include_initial=True).compute().tolist()[:2] == [0, 1]
    assert dc.scan(x, np.add, 0, "f4", method="sequential").dtype == np.float32
    out = da.zeros(8, dtype="i8", chunks=3)
    assert dc.scan(x, np.bitwise_or, out=out) is out
    np.testing.assert_array_equal(out.compute(), np.bitwise_or.accumulate(np.arange(1, 9)))
    assert dc.scan(x, np.add).name == dc.cumsum(x).name
    assert dc.reduce(x, np.add).name == dc.sum(x).name


@by_ufunc
def test_building_a_graph_computes_nothing_and_keys_are_the_same(ufunc: Any) -> None:
    x = da.zeros((8, 8), dtype="i4", chunks=4)
    with dask.config.set(scheduler=refuse):
        for call in (dc.reduce, dc.scan):
            assert call(x, ufunc, 0).name == call(x, ufunc, 0).name
            assert call(x, ufunc, 0).name != call(x, ufunc, 1).name


def test_what_is_no_monoid_is_refused_by_name() -> None:
    x = da.arange(5, chunks=2)
    for other, name in [
        (np.subtract, "ufunc subtract"),
        (np.hypot, "ufunc hypot"),
        (lambda a, b: a, "function <lambda>"),
        ("add", "str 'add'"),
        (None, "NoneType None"),
    ]:
        words = rf"one of NumPy's ufuncs add, .* and logaddexp; got {name}"
        with pytest.raises(TypeError, match=rf"reduce takes a dask_coop\.Monoid or {words}"):
            dc.reduce(x, other)
        with pytest.raises(
            TypeError, match=rf"scan takes a dask_coop\.Monoid, a row .* or {words}"
        ):
            dc.scan(x, other)
    for call in (dc.reduce, dc.scan):
        with pytest.raises(TypeError, match=r"by numpy\.bitwise_or does not take dtype float64"):
            call(x.astype("f8"), np.bitwise_or)
        with pytest.raises(TypeError, match="does not take dtype complex128"):
            call(x.astype("c16"), np.logaddexp)


@pytest.mark.parametrize(
    ("ufunc", "dtype"),
    [
        (np.logical_xor, "c8"),
        (np.logical_xor, "f2"),
        (np.bitwise_and, "?"),
        (np.bitwise_or, "u8"),
        (np.bitwise_xor, "i1"),
    ],
)
def test_the_kernels_of_a_ufunc_compile(ufunc: Any, dtype: str) -> None:
    from support.compiled import compile_all

    monoid = dc.Monoid(**ufuncs.parts(ufunc, np.dtype(dtype), "reduce"))
    op = custom_monoid.bind(monoid, da.empty(1, dtype=dtype), "reduce")
    compile_all([*programs_list.reductions(op), *programs_list.scans(op)], "sm_90")


def test_the_other_byte_order_gives_the_dtype_that_is_computed() -> None:
    x = da.from_array(np.arange(6.0).astype(">f8"), chunks=2)
    for function in (dc.reduce, dc.scan):
        lazy = function(x, np.logaddexp)
        assert lazy.dtype.isnative
        assert lazy.dtype == lazy.compute().dtype
