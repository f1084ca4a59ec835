"""NumPy chunks: Numba's loops and NumPy give the same sums, products and running ones."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import pytest
from support.loops import compile_from
from support.processes import printed

import dask_coop as dc
from dask_coop.algebra.monoids import MEAN, PROD, SUM, VAR
from dask_coop.algebra.operation import bind
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.numpy import adding
from dask_coop.chunks.numpy import backend as on_host
from dask_coop.chunks.numpy.loop_table import loops

WIDENED = ("f4", "i1", "i4", "u4")
MULTIPLIED = (*WIDENED, "f8", "i8", "u8", "u1")
SHAPES = ((300_001,), (3, 700), (2, 513), (700, 3), (4, 5, 600), (1, 1), (0, 4), (4, 0))


@pytest.fixture(autouse=True)
def _compile(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    compile_from(monkeypatch, 1)


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return rng.normal(0, 50, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def with_and_without(function: Any) -> tuple[Any, Any]:
    found = function()
    with pytest.MonkeyPatch.context() as patch:
        compile_from(patch, math.inf)
        return found, function()


def views(x: Any) -> list[Any]:
    """Return `x` and what is alike but for its strides."""
    sparse = np.repeat(x, 2, 0)[::2]
    return [x, sparse, np.repeat(x, 2, -1)[..., ::2], np.asfortranarray(x), x[::-1]]


def factors(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return elements whose products stay finite, or wrap without becoming zero at once."""
    if np.dtype(dtype).kind != "f":
        return values(dtype, shape) | np.dtype(dtype).type(1)
    rng = np.random.default_rng(0)
    return (np.exp(rng.normal(0, 0.4, shape)) * rng.choice([-1, 1], shape)).astype(dtype)


@pytest.mark.parametrize(
    ("ufunc", "dtype"), [*((np.add, d) for d in WIDENED), *((np.multiply, d) for d in MULTIPLIED)]
)
def test_sums_and_products_are_numpys(ufunc: np.ufunc, dtype: str) -> None:
    accumulator = np.dtype({"f": "f8", "i": "i8", "u": "u8"}[dtype[0]])
    for shape in SHAPES:
        ndim = len(shape)
        for x in views((values if ufunc is np.add else factors)(dtype, shape)):
            for axes in {(0,), (ndim - 1,), tuple(range(ndim)), tuple(range(1, ndim)) or (0,)}:
                found = adding.reduce(ufunc, x, axes, accumulator)
                expected = ufunc.reduce(x, axes, accumulator)
                assert (type(found), found.dtype) == (type(expected), expected.dtype)
                assert found.shape == expected.shape
                bound: Any = 0.0
                if dtype[0] == "f" and ufunc is np.add:
                    bound = 1e-13 * np.add.reduce(np.abs(x, dtype="f8"), axes)
                elif dtype[0] == "f":
                    bound = x.size * 2.0**-52 * np.abs(expected)
                assert (np.abs(found - expected) <= bound).all()


def test_products_of_neighbours_come_first() -> None:
    for period in (2, 8, 128, 256):
        huge = 1e120 ** (2 / period)
        x = np.tile(np.repeat(np.array([huge, 1 / huge]), period // 2), 1 << 10)
        for lines, axis in ((x, 0), (x.reshape(-1, 1024), 1), (np.stack([x] * 3, 1), 0)):
            found = adding.reduce(np.multiply, lines, (axis,), np.dtype("f8"))
            np.testing.assert_allclose(found, 1, 1e-8)


def test_products_of_special_values_are_numpys() -> None:
    x = factors("f4", (6, 9001))
    x[0, 7], x[1, 5000], x[2, 1], x[2, 9000] = np.nan, np.inf, np.inf, -np.inf
    x[3, 8], x[3, 70], x[4, 3], x[5, 5] = np.inf, 0, 0, -0.0
    op = bind(PROD, x.dtype, x.dtype, "prod")
    for a, axis in ((x, 1), (np.ascontiguousarray(x.T), 0)):
        with np.errstate(all="ignore"):
            found, expected = with_and_without(lambda a=a, axis=axis: on_host.lift(op, a, (axis,)))
        np.testing.assert_allclose(found[0], expected[0], 1e-11)
        np.testing.assert_array_equal(np.signbit(found[0][4:]), np.signbit(expected[0][4:]))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_masked_products_are_numpys(dtype: str) -> None:
    array = factors(dtype, (40, 600))
    where = np.random.default_rng(1).random(array.shape) < 0.5
    x, mask = (da.from_array(a, chunks=(16, 256)) for a in (array, where))
    for axis in (None, 0, 1):
        found = dc.prod(x, axis=axis, where=mask).compute(scheduler="synchronous")
        wide = array.astype("f8" if dtype[0] == "f" else "i8")
        expected = np.prod(wide, axis=axis, where=where).astype(found.dtype)
        np.testing.assert_allclose(found, expected, 1e-6 if dtype == "f4" else 1e-11)


def test_the_loops_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, called = loops("sums"), []

    class Seen:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(sums, name)

    monkeypatch.setattr(adding, "loops_for", lambda *_: Seen())
    x = values("f4", (4, 600))
    for ufunc in (np.add, np.multiply):
        adding.reduce(ufunc, x, (1,), np.dtype("f8"))
        adding.reduce(ufunc, x, (0,), np.dtype("f8"))
        adding.reduce(ufunc, np.repeat(x, 2, 0)[::2], (1,), np.dtype("f8"))
    rows = ["add_rows", "multiply_rows"]
    assert called == [n for row in rows for n in (row, "combine_columns", row)]


def test_not_a_number_and_infinity_are_summed() -> None:
    x = values("f4", (3, 9000))
    x[0, 7], x[1, 5000], x[2, 1], x[2, 8999] = np.nan, np.inf, np.inf, -np.inf
    for monoid in (SUM, MEAN, VAR):
        op = bind(monoid, x.dtype, x.dtype, "sum")
        with np.errstate(all="ignore"):
            found, expected = with_and_without(lambda op=op: on_host.lift(op, x, (1,)))
        for field, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(field, other)


@pytest.mark.parametrize(
    ("element", "output"), [("f4", "f4"), ("f8", "f8"), ("i8", "i4"), ("u1", "u8"), ("i4", "f8")]
)
@pytest.mark.parametrize("monoid", [SUM, PROD], ids=lambda monoid: monoid.name)
def test_scans_have_the_same_bits(monoid: Any, element: str, output: str) -> None:
    options = product([False, True], [(False, False), (True, False), (False, True)], [False, True])
    for skipna, (exclusive, initial), reverse in options:
        op = bind(monoid, np.dtype(element), np.dtype(output), "cumsum", skipna)
        for shape, axis in (((1000,), 0), ((3, 40), 1), ((7, 1), 1), ((5, 6), 0), ((0, 3), 1)):
            x = values(element, shape)
            if x.dtype.kind == "f":
                # Sums are then exact in any order.
                x = np.rint(x) if monoid is SUM else x
                x.flat[:1] = -0.0
                x.flat[5:6] = np.nan
            kept = shape[:axis] + shape[axis + 1 :]
            base = (np.full(kept, 3, op.monoid.dtypes(op.element)[0])[()],)
            spec = ScanSpec(axis, exclusive, reverse, initial)
            for a, start in product(views(x)[::2], (None, base)):
                with np.errstate(all="ignore"):
                    found, expected = with_and_without(
                        lambda op=op, a=a, s=spec, b=start: on_host.scan_on(op, a, s, b)
                    )
                np.testing.assert_array_equal(found[0], expected[0])
                np.testing.assert_array_equal(np.signbit(found[0]), np.signbit(expected[0]))
                np.testing.assert_array_equal(found[1][0], expected[1][0])
                assert found[0].dtype == expected[0].dtype
                assert np.shape(found[1][0]) == np.shape(expected[1][0])


def test_without_numba_nothing_is_missing() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import dask.array as da, numpy as np, dask_coop as dc\n"
        "x = da.random.default_rng(0).random(200_000, dtype='f4', chunks=70_000)\n"
        "host = x.compute().astype('f8')\n"
        "np.testing.assert_allclose(dc.sum(x).compute(), host.sum(), rtol=1e-6)\n"
        "np.testing.assert_allclose(dc.prod(x * 0 + 1).compute(), 1)\n"
        "np.testing.assert_allclose(dc.cumsum(x).compute(), host.cumsum(), rtol=1e-6)"
    )
    printed("-c", code)
