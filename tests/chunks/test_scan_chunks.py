"""Scans of chunks by CUDA are those by NumPy: every monoid, direction and state, at every size."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import BOOL, FLOATS, INTS, Chunked, arrays

from dask_coop import chunks
from dask_coop.algebra.monoids import (
    ANY,
    COUNT_NONZERO,
    LOGADDEXP,
    MAX,
    MIN,
    PROD,
    SUM,
    MonoidRow,
)
from dask_coop.algebra.operation import bind
from dask_coop.algebra.scan_spec import ScanSpec, segmented
from dask_coop.chunks.numpy import backend as on_host

CASES = (
    (SUM, "i4", "i8"),
    (SUM, "f4", "f4"),
    (SUM, "c8", "c8"),
    (PROD, "u1", "u8"),
    (PROD, "i8", "i8"),
    (MIN, "?", "?"),
    (MIN, "i2", "i2"),
    (MAX, "f2", "f2"),
    (MAX, "f8", "f4"),
    (LOGADDEXP, "f4", "f4"),
    (LOGADDEXP, "f8", "f8"),
    (ANY, "f4", "?"),
    (COUNT_NONZERO, "u1", "i8"),
)
SHAPES = ((300_001,), (3, 70_004), (700, 4352), (900, 33), (2, 3001, 37), (1000, 65))
DIRECTIONS = ((False, False), (True, False), (False, True), (True, True))


def values(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return values whose sums are exact in any order, some of them equal, some not a number."""
    array = rng.integers(0, 5, shape).astype(dtype)
    if np.dtype(dtype).kind == "f":
        array[..., -3:] = np.nan
    return array


def assert_same(actual: Any, expected: Any, monoid: MonoidRow, case: Any) -> None:
    if monoid is LOGADDEXP:
        tolerance = 1e-6 if expected.dtype == "f4" else 1e-12
        np.testing.assert_allclose(actual, expected, tolerance, tolerance, err_msg=str(case))
    else:
        np.testing.assert_array_equal(actual, expected, str(case))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("monoid", "element", "output"), CASES)
def test_scans_by_cuda_are_those_by_numpy(
    monoid: MonoidRow, element: str, output: str, shape: tuple[int, ...]
) -> None:
    import cupy

    rng = np.random.default_rng(0)
    host = values(rng, shape, element)
    axis = 0 if shape == (1000, 65) else 1 if len(shape) == 3 else len(shape) - 1
    op = bind(monoid, np.dtype(element), np.dtype(output), "scan")
    x, backend = cupy.asarray(host), chunks.backend_of(cupy.empty(0))
    kept = shape[:axis] + shape[axis + 1 :]
    base = (rng.integers(0, 2, kept).astype(op.monoid.dtypes(op.element)[0])[()],)
    # NumPy takes its time over segments.
    every = [] if host.size > 1 << 20 else [rng.random(shape) < 0.001]
    for exclusive, reverse in DIRECTIONS:
        for start, heads in product((None, base), (None, rng.random(shape[axis]) < 0.01, *every)):
            spec = ScanSpec(axis, exclusive, reverse, initial=not exclusive and start is None)
            there = heads if heads is None else cupy.asarray(heads)
            with np.errstate(all="ignore"):
                expected, state = on_host.scan_on(op, host, spec, start, heads)
            actual, behind = backend.scan_on(op, x, spec, start, there)
            case = spec, start is not None, heads is None or heads.shape
            assert actual.dtype == expected.dtype
            assert actual.shape == expected.shape
            assert_same(cupy.asnumpy(actual), expected, monoid, case)
            assert_same(chunks.asarray(behind[0], "numpy"), state[0], monoid, case)


@given(
    case=arrays(dtypes=BOOL + INTS + FLOATS, shape=st.tuples(*[st.integers(1, 9)] * 3)),
    data=st.data(),
)
def test_the_lift_of_segments_is_what_their_scan_leaves(xp: Any, case: Chunked, data: Any) -> None:
    axis, reverse = data.draw(st.integers(0, 2)), data.draw(st.booleans())
    array = data.draw(st.sampled_from([case.array, case.array.T, case.array[:, ::-1]]))
    sides = data.draw(st.sampled_from([array.shape, array.shape[axis : axis + 1]]))
    heads = np.random.default_rng(data.draw(st.integers(0, 99))).random(sides) < 0.3
    op = bind(MAX, array.dtype, array.dtype, "scan")
    backend, spec = chunks.backend_of(xp.empty(0)), ScanSpec(axis, reverse=reverse)
    x, there = xp.asarray(array), xp.asarray(heads)
    *value, restarts = backend.lift_segments(op, x, spec, there)
    _, state = backend.scan_on(op, x, spec, None, there)
    np.testing.assert_array_equal(
        chunks.asarray(value[0], "numpy"), chunks.asarray(state[0], "numpy")
    )
    found = heads.any() if heads.ndim < array.ndim else heads.any(axis)
    kept = array.shape[:axis] + array.shape[axis + 1 :]
    np.testing.assert_array_equal(chunks.asarray(restarts, "numpy"), np.broadcast_to(found, kept))
    # From a base on: what the segmented monoid makes of both.
    base = op.monoid.identity(op.element)
    base = (np.full(kept, base[0]),)
    merged = segmented(op.monoid).combine(
        (*base, np.zeros(kept, "?")), on_host.lift_segments(op, array, spec, heads)
    )
    _, state = on_host.scan_on(op, array, spec, base, heads)
    np.testing.assert_array_equal(merged[0], state[0])


def test_a_chunk_is_left_as_it_is(xp: Any) -> None:
    for dtype in ("f8", "i8", "f4"):
        op = bind(SUM, np.dtype(dtype), np.dtype("f8" if dtype == "f4" else dtype), "scan")
        for shape, axis in (((5000,), 0), ((6, 800), 0), ((800, 6), 0), ((6, 800), 1)):
            host = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
            x, heads = xp.asarray(host), xp.asarray(np.arange(shape[axis]) % 3 == 0)
            base = (np.ones(shape[:axis] + shape[axis + 1 :]),)
            for where in (None, heads):
                for exclusive, reverse in DIRECTIONS:
                    spec = ScanSpec(axis, exclusive, reverse)
                    chunks.backend_of(x).scan(op, x, spec, base, where)
                    chunks.backend_of(x).scan(op, x, spec, None, where)
                    np.testing.assert_array_equal(chunks.asarray(x, "numpy"), host)
