"""NumPy chunks: what compiled loops lift is what exact arithmetic and NumPy's steps find."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from support.loops import compile_from

from dask_coop.algebra import monoids as rows
from dask_coop.algebra.central_moments import moments_up_to
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.numpy import backend as on_host
from dask_coop.chunks.numpy import compiled

#: Shapes and axes: rows, columns, groups of columns, more than a block and less than a vector.
CASES = [
    ((70_001,), (0,)),
    ((3, 5000), (1,)),
    ((700, 3), (1,)),
    ((700, 3), (0,)),
    ((300, 2100), (0,)),
    ((4, 270, 50), (1,)),
    ((6, 200, 9), (0, 2)),
    ((1, 1), (0,)),
]
DTYPES = ["f4", "f8", "i4", "?"]
SPREADS = [rows.VAR, rows.MOMENTS, moments_up_to(2), moments_up_to(4)]


@pytest.fixture(autouse=True)
def _compile(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    compile_from(monkeypatch, 1)


def values(dtype: str, shape: tuple[int, ...], nan: bool = False) -> Any:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        x = rng.normal(3, 50, shape).astype(dtype)
        return np.where(rng.random(shape) < 0.2, x.dtype.type(np.nan), x) if nan else x
    info = np.iinfo("u1" if dtype == "?" else dtype)
    return rng.integers(info.min, info.max, shape, info.dtype, endpoint=True).astype(dtype)


def views(x: Any) -> list[Any]:
    """Return `x` and what is alike but for its strides."""
    return [x, np.repeat(x, 2, -1)[..., ::2], np.asfortranarray(x), x[::-1]]


def both(op: Operation, x: Any, axes: tuple[int, ...], where: Any = None) -> tuple[Any, Any]:
    """Return the state by loops, which must be there, and by NumPy's steps."""
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        found = on_host.lift(op, x, axes, where)
        patch.setattr(compiled, "lift", lambda *_: None)
        compile_from(patch, math.inf)
        expected = on_host.lift(op, x, axes, where)
    kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    for field, dtype in zip(found, op.monoid.dtypes(op.element), strict=True):
        # A count may be that of every line.
        assert np.shape(field) in (kept, ())
        assert field.dtype == dtype
    return found, expected


def operation(monoid: Any, dtype: Any, skipna: bool = False) -> Operation:
    return Operation(monoid, np.dtype(dtype), monoid.output(np.dtype(dtype)), skipna)


def masks(shape: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(1)
    return [None, rng.random(shape) < 0.5, rng.random(shape) < 0.01, rng.random(shape[-1:]) < 0.5]


@pytest.mark.each(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("monoid", [*compiled._LIFTS, *SPREADS[2:]], ids=lambda monoid: monoid.name)
def test_states_are_those_of_numpys_steps(monoid: Any, dtype: str) -> None:
    if np.dtype(dtype).kind not in monoid.kinds:
        return
    for (shape, axes), nan in product(CASES, [False, True] if dtype[0] == "f" else [False]):
        array = values(dtype, shape, nan)
        # Each kind of mask is a loop of its own, which takes seconds to compile for each dtype.
        some = masks(shape) if dtype == "f4" else []
        for x, where in [*product(views(array), [None]), *zip(views(array), some, strict=False)]:
            op = operation(monoid, dtype, nan and "skipna" in monoid.options)
            found, expected = both(op, x, axes, where)
            size = np.abs(np.nan_to_num(array.astype("f8"))).sum() + 1
            for field, a, b in zip(monoid.fields, found, expected, strict=True):
                power = (
                    int(field.name[1]) if field.name[0] == "m" and field.name[1:].isdigit() else 1
                )
                power = 2 if monoid is rows.SQUARES else power
                slack = size**power
                a, b = np.broadcast_arrays(a, b)
                if a.dtype.kind != "f" or field.name in ("min", "max"):
                    np.testing.assert_array_equal(a, b)
                elif field.name != "excess":
                    np.testing.assert_allclose(a, b, 1e-12, 1e-15 * slack)


def exact(x: Any, offset: float, axes: tuple[int, ...], where: Any = True) -> tuple[Any, Any]:
    """Return the mean and the squared deviations, in longer floats, of elements near `offset`."""
    w = x.astype("g") - offset
    over = {"axis": axes, "keepdims": True, "where": where}
    count = np.maximum(np.broadcast_to(where, x.shape).sum(axes, keepdims=True), 1)
    mean = w.sum(**over) / count
    m2 = np.square(w - mean).sum(axes, where=where)
    return mean.squeeze(axes) + offset, m2


@pytest.mark.each(2)
@pytest.mark.parametrize("monoid", SPREADS, ids=lambda monoid: monoid.name)
@pytest.mark.parametrize("offset", [0, 1e8, -1e12])
@pytest.mark.parametrize("order", ["random", "sorted", "late", "outlier"])
def test_nothing_cancels(monoid: Any, offset: float, order: str) -> None:
    if np.finfo("g").nmant < 60:
        pytest.skip("there are no longer floats")
    # Higher moments of columns are left to NumPy.
    for shape, axes in CASES[: 3 if monoid is SPREADS[3] else 7]:
        x = np.random.default_rng(2).normal(offset, 1, shape)
        if order == "sorted":
            x.flat[:] = np.sort(x, None)
        elif order == "late":
            x.flat[: x.size // 50] = 0
        elif order == "outlier":
            x.flat[0] = 1e17
        for where in (None, np.random.default_rng(3).random(shape) < 0.7):
            found, _ = both(operation(monoid, "f8"), x, axes, where)
            at = 5 if monoid is rows.MOMENTS else 1
            count, found_mean, found_m2 = found[0], found[at], found[at + 1]
            mean, m2 = exact(x, offset, axes, True if where is None else where)
            np.testing.assert_allclose(found_m2, m2.astype("f8"), 3e-14)
            mean = np.where(count, mean, 0).astype("f8")
            np.testing.assert_allclose(found_mean, mean, 1e-14, 1e-15)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_equal_elements_have_no_variance(dtype: str) -> None:
    for shape, axes in CASES[:5]:
        x = np.full(shape, 5, dtype)
        for where in masks(shape):
            count, _, m2 = on_host.lift(operation(rows.VAR, dtype), x, axes, where)
            assert np.all(m2 == 0)
            assert where is None or np.array_equal(count, np.broadcast_to(where, shape).sum(axes))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nan_and_infinities_stay_in_their_lines(dtype: str) -> None:
    x = values(dtype, (8, 9000))
    x[0, 7], x[1, 5000], x[2, 1], x[2, 8999], x[3, 4096] = np.nan, np.inf, np.inf, -np.inf, -np.inf
    x[4], x[5, :2] = np.nan, -np.nan
    for a, axes in ((x, (1,)), (np.ascontiguousarray(x.T), (0,))):
        for skipna in (False, True):
            found, expected = both(operation(rows.VAR, dtype, skipna), a, axes)
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(np.isnan(found[2]), np.isnan(expected[2]))
            np.testing.assert_allclose(found[2][6:], expected[2][6:], 1e-12)
            for monoid in (rows.SUM, rows.MEAN, rows.COMPENSATED_SUM):
                found, expected = both(operation(monoid, dtype, skipna), a, axes)
                np.testing.assert_allclose(found[0], expected[0], 1e-10)
        found, expected = both(operation(rows.MOMENTS, dtype), a, axes)
        for field, other in zip(found[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(field, other)
        np.testing.assert_allclose(found[4:6], expected[4:6], 1e-10)
        where = np.ones(a.shape, "?")
        for monoid in (rows.MIN, rows.MAX):
            found, expected = both(operation(monoid, dtype), a, axes, where)
            np.testing.assert_array_equal(found, expected)


def test_squares_overflow_to_infinity() -> None:
    x = np.array([1e200, -1e200] * 300)
    for a, axes in ((x, (0,)), (np.stack([x] * 3, 1), (0,))):
        count, mean, m2 = on_host.lift(operation(rows.VAR, "f8"), a, axes)
        assert np.all(count == 600)
        assert np.all(abs(mean) < 1e185)
        assert np.isposinf(m2).all()


def test_what_numba_has_no_loop_for_is_left_to_numpy() -> None:
    for dtype in ("f2", "c8", "c16"):
        x = np.ones((40, 50), dtype)
        assert compiled.lift(operation(rows.VAR, dtype), x, (0,), None) is None
        assert np.all(on_host.lift(operation(rows.VAR, dtype), x, (0,))[0] == 40)
    assert compiled.lift(operation(rows.VAR, "f8"), np.ones((0, 5)), (0,), None) is None


def test_the_same_chunk_has_the_same_bits_wherever_it_is() -> None:
    memory = np.empty(800_040, "u1")
    x = values("f8", (100_000,))
    sums = rows.SUM, rows.COMPENSATED_SUM, rows.LOGADDEXP
    for monoid in (rows.VAR, rows.MOMENTS, rows.SQUARES, *sums):
        op, along = operation(monoid, "f8"), ScanSpec(0)
        states, scans = [], []
        # What a worker was sent by another begins at any byte.
        for start in (0, 8, 16, 24, 32, 3, 12):
            chunk = memory[start:][: x.nbytes].view("f8")
            chunk[...] = x
            states.append(on_host.lift(op, chunk, (0,)))
            if monoid in sums:
                scans.append(on_host.scan(op, chunk, along).tobytes())
        assert all(state == states[0] for state in states)
        assert len(set(scans)) <= 1
