"""Compiled scans of NumPy chunks are those by NumPy: every kind, layout, direction and state."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from support.loops import compile_from

from dask_coop.algebra.monoids import (
    COMPENSATED_SUM,
    LOGADDEXP,
    MAX,
    MIN,
    NANMAX,
    NANMIN,
    PROD,
    SUM,
    MonoidRow,
)
from dask_coop.algebra.operation import bind, compensated
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.chunks.numpy import backend, scan

numba = pytest.importorskip("numba")

from dask_coop.chunks.numpy.loops.walkers import COLUMNS  # noqa: E402

#: Monoids, dtypes of elements and results, and whether NaN are left out.
KINDS = (
    (SUM, "f4", "f4", False),
    (SUM, "f4", "f4", True),
    (SUM, "f8", "f8", False),
    (SUM, "f8", "f8", True),
    (SUM, "c8", "c16", True),
    (SUM, "?", "i8", False),
    (SUM, "i4", "i8", False),
    (SUM, "u8", "u8", False),
    (PROD, "f8", "f8", False),
    (PROD, "f4", "f4", True),
    (PROD, "i2", "i8", False),
    (MAX, "f4", "f4", False),
    (MAX, "f8", "f4", False),
    (MAX, "i4", "i4", False),
    (MIN, "f8", "f8", False),
    (MIN, "u1", "u1", False),
    (MIN, "?", "?", False),
    (NANMAX, "f8", "f8", False),
    (NANMIN, "f4", "f4", False),
    (LOGADDEXP, "f8", "f8", False),
    (LOGADDEXP, "f4", "f4", False),
)

#: Shapes, the axis, and how the chunk lies in memory.
LAYOUTS: dict[str, tuple[tuple[int, ...], int, Any]] = {
    "a line": ((5003,), 0, lambda x: x),
    "backwards": ((300,), 0, lambda x: x[::-1]),
    "every third": ((300,), 0, lambda x: np.repeat(x, 3)[::3]),
    "in records": ((300,), 0, lambda x: _in_records(x)),
    "one element": ((1,), 0, lambda x: x),
    "lines": ((3, 400), 1, lambda x: x),
    "few columns": ((4200, 2), 0, lambda x: x),
    "columns of groups": ((2, 40, 13), 1, lambda x: x),
    "columns, flipped": ((40, 13), 0, lambda x: x[::-1, ::-1]),
    "columns apart": ((40, 13), 0, lambda x: np.repeat(x, 2, 1)[:, ::2]),
    "part of rows": ((40, 13), 0, lambda x: np.pad(x, ((0, 0), (3, 4)))[:, 3:-4]),
    "fortran": ((13, 40), 1, np.asfortranarray),
    "all equal": ((60, 13), 0, lambda x: np.broadcast_to(x.reshape(-1)[0], x.shape)),
}


def _in_records(x: Any) -> Any:
    # Complex numbers are then no whole number of themselves apart.
    records = np.zeros(x.shape, [("size", x.real.dtype), ("x", x.dtype)])
    records["x"] = x
    return records["x"]


def values(monoid: MonoidRow, dtype: str, shape: tuple[int, ...], special: bool) -> Any:
    """Return values whose sums and products are exact in any order, some of them special."""
    rng = np.random.default_rng(len(shape) + shape[0])
    array = rng.integers(0, 5, shape)
    if monoid is PROD:
        array = np.where(rng.random(shape) < 0.01, 2, 1) * np.where(array < 2, -1, 1)
    elif monoid is LOGADDEXP:
        array = rng.normal(0, 30, shape)
    elif np.dtype(dtype).kind in "if":
        array -= 2
    with np.errstate(all="ignore"):
        array = array.astype(dtype)
    if np.dtype(dtype).kind in "fc":
        if monoid is not LOGADDEXP:
            array = np.where(rng.random(shape) < 0.3, -array, array)
        if special:
            some = rng.random(shape) < 0.02
            array[some] = rng.choice([np.inf, -np.inf, np.nan, -0.0, 0.0], some.sum())
    return array


def expected(op: Any, x: Any, spec: ScanSpec, base: Any, heads: Any) -> tuple[Any, Any]:
    """Return results and the state behind them, line by line and segment by segment."""
    monoid = op.monoid
    (dtype, *_), (identity, *_) = monoid.dtypes(op.element), monoid.identity(op.element)
    ufunc, first = monoid.fields[0].ufunc, int(spec.initial)
    if op.skipna:
        x = np.where(np.isnan(x), identity, x)
    lines = np.moveaxis(x, spec.axis, -1).astype(dtype)
    flags = np.zeros(lines.shape, "?")
    if heads is not None:
        flags[...] = heads if heads.ndim < x.ndim else np.moveaxis(heads, spec.axis, -1)
    step, n = -1 if spec.reverse else 1, lines.shape[-1]
    results = np.empty((*lines.shape[:-1], n + first), dtype)
    states = np.empty(lines.shape[:-1], dtype)
    for at in np.ndindex(states.shape):
        line, into, cut = lines[at][::step], results[at][::step], flags[at][::step]
        start = [] if base is None else [base[at]]
        into[0] = start[0] if start else identity
        for begin, end in pairwise([0, *(int(i) for i in np.flatnonzero(cut) if i), n]):
            before = [] if begin or cut[0] else start
            part = ufunc.accumulate(np.array([*before, *line[begin:end]], dtype))[len(before) :]
            if spec.exclusive:
                into[begin] = before[0] if before else identity
                into[begin + 1 : end] = part[:-1]
            else:
                into[begin + first : end + first] = part
            states[at] = part[-1]
    return np.moveaxis(results, -1, spec.axis).astype(op.output), states


def assert_same(found: Any, wanted: Any, op: Any, case: Any) -> None:
    assert found.dtype == wanted.dtype
    if op.monoid is LOGADDEXP:
        size = 1e-6 if wanted.dtype == "f4" else 1e-13
        np.testing.assert_allclose(found, wanted, size, size, err_msg=case)
        return
    np.testing.assert_array_equal(found, wanted, case)
    # Which of two zeros is the larger is not said.
    if wanted.dtype.kind == "f" and op.monoid in (SUM, COMPENSATED_SUM, PROD):
        signs = (np.signbit(np.where(np.isnan(a), 0, a)) for a in (found, wanted))
        np.testing.assert_array_equal(*signs, case)


@pytest.fixture(autouse=True)
def only_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan chunks of any size by loops, and none by NumPy."""

    def refuse(*args: Any) -> None:
        raise AssertionError("scanned by NumPy")

    compile_from(monkeypatch, 1)
    monkeypatch.setattr(scan, "_scan_lines", refuse)


@pytest.mark.each(2)
@pytest.mark.parametrize(("monoid", "element", "output", "skipna"), KINDS)
def test_many_columns_are_scanned_by_blocks_of_them(
    monoid: MonoidRow, element: str, output: str, skipna: bool
) -> None:
    op = compensated(bind(monoid, np.dtype(element), np.dtype(output), "scan", skipna))
    x = values(monoid, element, (2, 9, COLUMNS + 50), False)
    found, (last, *_) = backend.scan_on(op, x, ScanSpec(1), None, None)
    for columns in (slice(10), slice(COLUMNS - 5, COLUMNS + 5), slice(-10, None)):
        wanted, behind = expected(op, x[..., columns], ScanSpec(1), None, None)
        assert_same(found[..., columns], wanted, op, str(columns))
        assert_same(last[..., columns], behind, op, str(columns))


@pytest.mark.each(2)
@pytest.mark.filterwarnings("ignore:.*encountered")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("monoid", "element", "output", "skipna"), KINDS)
def test_loops_are_what_numpy_accumulates(
    monoid: MonoidRow, element: str, output: str, skipna: bool, layout: str
) -> None:
    shape, axis, lay = LAYOUTS[layout]
    op = compensated(bind(monoid, np.dtype(element), np.dtype(output), "scan", skipna))
    rng = np.random.default_rng(3)
    kept = shape[:axis] + shape[axis + 1 :]
    n_fields = len(op.monoid.fields)
    for special in (False, True):
        x = lay(values(monoid, element, shape, special))
        start = values(monoid, element, (*kept, 1), False)[..., 0]
        start = start.astype(op.monoid.dtypes(op.element)[0])
        shared, own = rng.random(shape[axis]) < 0.01, rng.random(shape) < 0.1
        for base, heads in product((None, start), (None, shared, own)):
            state = None if base is None else (base, *[np.zeros_like(base)] * (n_fields - 1))
            for exclusive, reverse in product((False, True), repeat=2):
                initial = not exclusive and heads is not own
                spec = ScanSpec(axis, exclusive, reverse, initial)
                wanted, behind = expected(op, x, spec, base, heads)
                found, (last, *_) = backend.scan_on(op, x, spec, state, heads)
                case = f"{spec}, {base is None}, {None if heads is None else heads.shape}"
                assert_same(found, wanted, op, case)
                assert_same(np.asarray(last), behind, op, case)


@pytest.mark.each(2)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_logarithms_of_chunks_are_lifted_by_loops(axes: tuple[int, ...], dtype: str) -> None:
    op = bind(LOGADDEXP, np.dtype(dtype), np.dtype(dtype), "scan")
    some = np.random.default_rng(5).random((20, 30, 15)) < 0.9
    for special in (False, True):
        array = values(LOGADDEXP, dtype, (20, 30, 15), special)
        array[3], array[:, 4] = -np.inf, -np.inf
        for x in (array, array[::-1], np.asfortranarray(array), array[..., ::2]):
            with np.errstate(invalid="ignore"):
                wanted = np.logaddexp.reduce(x.astype("f8"), axes)
            (found,) = backend.lift(op, x, axes)
            np.testing.assert_allclose(found, wanted, 1e-13, 1e-13)
        kept = np.where(some, array, -np.inf)
        with np.errstate(invalid="ignore"):
            wanted = np.logaddexp.reduce(kept.astype("f8"), axes)
        (found,) = backend.lift(op, array, axes, some)
        np.testing.assert_allclose(found, wanted, 1e-13, 1e-13)


@pytest.mark.parametrize("shape", [(300_000,), (15_000, 20)])
def test_logarithms_are_good_to_a_few_ulps_however_many_elements(shape: tuple[int, ...]) -> None:
    if np.finfo(np.longdouble).nmant < 60:
        pytest.skip("long doubles are no longer than doubles here")
    op = bind(LOGADDEXP, np.dtype("f8"), np.dtype("f8"), "scan")
    rng = np.random.default_rng(6)
    n = math.prod(shape)
    rising = np.linspace(-40, 40, n).reshape(shape)
    for x, steps in (
        (rng.normal(0, 1, shape), 0),
        (np.full(shape, -0.7), 0),
        (rng.normal(0, 9, shape), 0),
        # As many elements count beside a peak, and each rise rounds what they add up to.
        (rising, n / 80),
    ):
        exact = np.log(np.add.accumulate(np.exp(x.astype(np.longdouble)), 0))
        found, (last,) = backend.scan_on(op, x, ScanSpec(0), None, None)
        bound = np.finfo("f8").eps * (4 + 4 * abs(exact) + steps)
        assert (abs(found - exact) <= bound).all()
        assert (abs(last - exact[-1]) <= bound[-1]).all()
        (whole,) = backend.lift(op, x, (0,))
        assert (abs(whole - exact[-1]) <= bound[-1]).all()
