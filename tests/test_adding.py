"""NumPy chunks: Numba's loops and NumPy give the same sums and running sums."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest

from dask_coop.chunks import adding
from dask_coop.chunks import numpy as on_host
from dask_coop.monoids import MEAN, PROD, SUM, VAR, bind
from dask_coop.sweeps import Sweep

WIDENED = ("f4", "i1", "i4", "u4")
SHAPES = ((300_001,), (3, 700), (2, 513), (700, 3), (4, 5, 600), (1, 1), (0, 4), (4, 0))


@pytest.fixture(autouse=True)
def _compile(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(adding, "WORTH_COMPILING", 1)


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return rng.normal(0, 50, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def with_and_without(function: Any) -> tuple[Any, Any]:
    found = function()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adding, "_loops", lambda: None)
        return found, function()


def views(x: Any) -> list[Any]:
    """Return `x` and what is alike but for its strides."""
    sparse = np.repeat(x, 2, 0)[::2]
    return [x, sparse, np.repeat(x, 2, -1)[..., ::2], np.asfortranarray(x), x[::-1]]


@pytest.mark.parametrize("dtype", WIDENED)
def test_sums_are_numpys(dtype: str) -> None:
    accumulator = np.dtype({"f": "f8", "i": "i8", "u": "u8"}[dtype[0]])
    for shape in SHAPES:
        ndim = len(shape)
        for x in views(values(dtype, shape)):
            for axes in {(0,), (ndim - 1,), tuple(range(ndim)), tuple(range(1, ndim)) or (0,)}:
                found = adding.add(x, axes, accumulator)
                expected = np.add.reduce(x, axes, accumulator)
                assert (type(found), found.dtype) == (type(expected), expected.dtype)
                size = np.add.reduce(np.abs(x, dtype="f8"), axes)
                assert found.shape == expected.shape
                assert (np.abs(found - expected) <= size * 1e-13 * (dtype == "f4")).all()


def test_the_loops_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    loops, called = adding._loops(), []

    class Seen:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(loops, name)

    monkeypatch.setattr(adding, "_loops", Seen)
    x = values("f4", (4, 600))
    adding.add(x, (1,), np.dtype("f8"))
    adding.add(x, (0,), np.dtype("f8"))
    adding.add(np.repeat(x, 2, 0)[::2], (1,), np.dtype("f8"))
    op = bind(SUM, x.dtype, x.dtype, "cumsum")
    on_host.scan(op, x, Sweep(1))
    assert called == ["add_rows", "add_columns", "add_rows", "scan"]


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
                x.flat[:1] = -0.0
                x.flat[5:6] = np.nan
            kept = shape[:axis] + shape[axis + 1 :]
            base = (np.full(kept, 3, op.monoid.dtypes(op.element)[0])[()],)
            sweep = Sweep(axis, exclusive, reverse, initial)
            for a, start in product(views(x)[::2], (None, base)):
                with np.errstate(all="ignore"):
                    found, expected = with_and_without(
                        lambda op=op, a=a, s=sweep, b=start: on_host.scan_on(op, a, s, b)
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
        "np.testing.assert_allclose(dc.cumsum(x).compute(), host.cumsum(), rtol=1e-6)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
