"""Every kernel of kernel_grouped.cuh against NumPy chunks of each group's elements."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dask_coop.algebra.monoids import (
    ARGMAX,
    ARGMIN,
    COUNT,
    FIRST,
    FIRST_MAX,
    FIRST_MIN,
    LAST,
    MAX,
    MEAN,
    MIN,
    MONOIDS,
    NANMAX,
    NANMIN,
    NO_INDEX,
    OF_GROUPS,
    SUM,
    VAR,
    Field,
    MonoidRow,
)
from dask_coop.algebra.operation import Operation, bind
from dask_coop.chunks.numpy import backend as reference

pytestmark = pytest.mark.gpu

DTYPES = ("?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16")
ENDS = {COUNT: None, FIRST: 0, LAST: -1}


def _zero(dtype: Any) -> Any:
    return dtype.type(0)


#: The composition of x -> a x + b: what comes first is applied first.
AFFINE = MonoidRow(
    "affine",
    (
        Field("a", np.dtype("f8"), lambda dtype: dtype.type(1), np.multiply),
        Field("b", np.dtype("f8"), _zero, np.add),
    ),
    "f",
    "AffineOfTest",
    merge=lambda s, t: (t[0] * s[0], t[0] * s[1] + t[1]),
    cuda=("State{0.5, double(x)}", "State{b.a * a.a, b.a * a.b + b.b}"),
    commutative=False,
)


@pytest.fixture(name="by_buckets", params=[False, True])
def _by_buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        pytest.importorskip("cupy")
        from dask_coop.chunks.cupy import many_groups

        monkeypatch.setattr(many_groups, "_is_histogram", lambda n: False)


def operation(monoid: MonoidRow, dtype: Any, skipna: bool = False) -> Operation:
    dtype = np.dtype(dtype)
    return bind(monoid, dtype, monoid.output(dtype), monoid.name, skipna)


def numbers(shape: Any, name: str) -> Any:
    """Return elements, among floats with some NaN."""
    dtype, rng = np.dtype(name), np.random.default_rng(int(np.prod(shape)))
    if dtype.kind in "fc":
        x = rng.standard_normal(shape).astype(dtype)
        if dtype.kind == "c":
            x += 1j * rng.standard_normal(shape)
        x.reshape(-1)[::97] = np.nan
        return x
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def labellings(shape: tuple[int, ...], n: int) -> list[Any]:
    """Return codes at random, in runs, in turn, and half of them in one group."""
    rng, size = np.random.default_rng(n), int(np.prod(shape))
    some = rng.integers(-1, n, size)
    uneven = np.where(rng.random(size) < 0.5, n // 2, some)
    return [c.reshape(shape) for c in (some, np.sort(some), np.arange(size) % n, uneven)]


def lift_one(op: Operation, x: Any, rows: Any) -> Any:
    """Reduce rows of lines that lie along the last axis."""
    values = x[..., rows].astype(op.element)
    if op.monoid is AFFINE:
        a, b = np.ones(values.shape[:-1]), np.zeros(values.shape[:-1])
        for k in range(len(rows)):
            a, b = a * 0.5, b * 0.5 + values[..., k]
        return a, b
    if op.monoid not in ENDS:
        state = reference.lift(op, values, (x.ndim - 1,))
        if not op.monoid.positional:
            return state
        index = np.asarray(state[1])
        own = rows[np.minimum(index, len(rows) - 1)]
        return state[0], np.where(index == NO_INDEX, NO_INDEX, own), *state[2:]
    kept = (
        np.isnan(values) if op.skipna and op.element.kind in "fc" else np.zeros(values.shape, "?")
    )
    if op.monoid is COUNT:
        return ((~kept).sum(-1),)
    order = slice(None, None, -1 if op.monoid is LAST else 1)
    at = np.argmin(kept[..., order], -1)
    at = len(rows) - 1 - at if op.monoid is LAST else at
    none = kept.all(-1)
    value = np.take_along_axis(values, at[..., None], -1)[..., 0]
    return np.where(none, op.element.type(0), value), np.where(none, NO_INDEX, rows[at])


def expected(op: Operation, x: Any, codes: Any, n: int) -> list[Any]:
    kept = x.shape[: x.ndim - codes.ndim]
    lines, labels = x.reshape(*kept, codes.size), codes.reshape(-1)
    fields = [np.empty((*kept, n), dtype) for dtype in op.monoid.dtypes(op.element)]
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(n + 1))
    with np.errstate(all="ignore"):
        for group in range(n):
            rows = order[bounds[group] : bounds[group + 1]]
            state = lift_one(op, lines, rows) if len(rows) else op.monoid.identity(op.element)
            for field, value in zip(fields, state, strict=True):
                field[..., group] = value
    return fields


def to_gpu(cp: Any, x: Any) -> Any:
    """Return a chunk with the strides of `x`, which may be those of a view."""
    base = x if x.base is None else x.base
    moved = cp.asarray(base)
    offset = x.ctypes.data - base.ctypes.data
    return cp.ndarray(x.shape, x.dtype, moved.data + offset, x.strides)


def lift_groups(cp: Any, ops: list[Operation], x: Any, codes: Any, n: int) -> list[list[Any]]:
    from dask_coop.chunks.cupy import backend

    chunk = x if isinstance(x, cp.ndarray) else to_gpu(cp, x)
    states = backend.lift_groups(ops, chunk, cp.asarray(codes), n)
    return [[np.array(cp.asnumpy(field)) for field in state] for state in states]


def assert_groups(cp: Any, ops: list[Operation], x: Any, codes: Any, n: int) -> None:
    for op, state in zip(ops, lift_groups(cp, ops, x, codes, n), strict=True):
        wanted = expected(op, x, codes, n)
        if op.monoid.has_excess:
            # Beside a total that is not finite the excess means nothing.
            for total, excess, *_ in (state, wanted):
                excess[~np.isfinite(total)] = 0
        for field, a, b in zip(op.monoid.fields, state, wanted, strict=True):
            if op.monoid in (FIRST_MIN, FIRST_MAX) and field.name == "index":
                # It is the chunk's, and only tells which of several comes first.
                continue
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            exact = b.dtype.kind in "biu" or field.role == "element"
            # The reference adds up in another order.
            bound = 1e-10 * (not exact)
            name = f"{op.monoid.name}.{field.name}"
            np.testing.assert_allclose(a, b, bound, 100 * bound, err_msg=name)


#: Shapes, how many of the last axes have labels, the order of the axes in memory, and numbers of
#: groups.
LAYOUTS = {
    "columns": [
        ((130, 37), 1, (1, 0), 5),
        ((64, 730), 1, (1, 0), 12),
        ((6, 40, 50), 1, (0, 2, 1), 4),
    ],
    "columns of odd width": [((129, 60), 1, (1, 0), 7), ((3, 4000), 1, (1, 0), 5)],
    "columns in pieces": [((40, 9000), 1, (1, 0), 3), ((2, 34, 1500), 1, (0, 2, 1), 2)],
    "lines": [((40, 37), 1, (0, 1), 5), ((5, 2000), 1, (0, 1), 3), ((300, 24), 1, (0, 1), 24)],
    "two label axes": [((8, 20, 30), 2, (0, 1, 2), 9), ((8, 20, 30), 2, (0, 2, 1), 9)],
    "labels of the array": [
        ((500,), 1, (0,), 3),
        ((60_001,), 1, (0,), 12),
        ((300, 200), 2, (0, 1), 6),
    ],
    "few long lines": [((3, 50_000), 1, (0, 1), 7), ((2, 49_999), 1, (0, 1), 4)],
    "many groups": [((60_001,), 1, (0,), 2000), ((2, 50_000), 1, (0, 1), 3000)],
}


def laid_out(shape: tuple[int, ...], order: tuple[int, ...], name: str) -> Any:
    """Return elements whose axes lie in memory in that order."""
    x = numbers(tuple(shape[d] for d in order), name)
    return x.transpose(np.argsort(order))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("monoid", [MEAN, VAR, ARGMAX, SUM, AFFINE], ids=lambda m: m.name)
def test_every_kernel(cp: Any, monoid: Any, layout: str) -> None:
    for shape, labels, order, n in LAYOUTS[layout]:
        x = laid_out(shape, order, "f4")
        for number, codes in enumerate(labellings(shape[len(shape) - labels :], n)):
            if n > 100 and number > 1:
                continue
            codes = codes.astype("i8" if number == 1 else "i4")
            for skipna in (False, True) if monoid is not AFFINE else (False,):
                assert_groups(cp, [operation(monoid, "f4", skipna)], x, codes, n)


@pytest.mark.parametrize("name", ["f4", "i4", "c8"])
@pytest.mark.parametrize("monoid", [*MONOIDS, *OF_GROUPS], ids=lambda m: m.name)
def test_every_row(cp: Any, monoid: Any, name: str) -> None:
    if np.dtype(name).kind not in monoid.kinds:
        pytest.skip(f"{monoid.name} does not take {name}")
    for shape, order, n in (((48, 40), (1, 0), 5), ((9, 60), (0, 1), 4), ((50_000,), (0,), 3)):
        x = laid_out(shape, order, name)
        some, runs, *_ = labellings(shape[-1:], n)
        if monoid.name == "prod" and shape[-1] > 1000:
            some = np.where(np.arange(shape[-1]) % 50, -1, some)
            runs = np.where(np.arange(shape[-1]) % 50, -1, runs)
        for skipna in (False, True) if "skipna" in monoid.options else (False,):
            for codes in (some, runs):
                assert_groups(cp, [operation(monoid, name, skipna)], x, codes, n)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(cp: Any, name: str) -> None:
    kind = np.dtype(name).kind
    for monoid in (SUM, MEAN, ARGMIN, MIN, LAST):
        if kind not in monoid.kinds:
            continue
        for shape, order, n in (((24, 50), (1, 0), 7), ((9, 60), (0, 1), 4), ((60_000,), (0,), 9)):
            x = laid_out(shape, order, name)
            assert_groups(cp, [operation(monoid, name)], x, labellings(shape[-1:], n)[0], n)


@pytest.mark.usefixtures("by_buckets")
@pytest.mark.parametrize("name", ["?", "i2", "u4", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("n", [1, 1000, 30_000])
def test_sums_and_counts_of_labels_of_the_array(cp: Any, n: int, name: str) -> None:
    x = numbers((70_003,), name)
    for codes in labellings(x.shape, n)[:: 1 if n < 2000 else 3]:
        ops = [operation(m, name, s) for m in (SUM, MEAN, VAR, COUNT) for s in (False, True)]
        assert_groups(cp, ops, x, codes, n)


def deviations(x: Any, codes: Any, n: int) -> Any:
    """Return the sums of squared deviations from the groups' means, by exact sums."""
    order = np.argsort(codes, kind="stable")
    bounds, wanted = np.searchsorted(codes[order], np.arange(n + 1)), np.zeros(n)
    for group, (begin, end) in enumerate(pairwise(bounds)):
        if end > begin:
            values = x[order[begin:end]].astype("f8")
            mean = math.fsum(values) / len(values)
            # The mean is rounded, too.
            off = math.fsum(values - mean)
            wanted[group] = math.fsum((values - mean) ** 2) - off * off / len(values)
    return wanted


@pytest.mark.parametrize("n", [400, 13_000, 60_000])
@pytest.mark.parametrize("name", ["f4", "f8"])
def test_variances_of_many_groups_far_from_zero(cp: Any, name: str, n: int) -> None:
    rng = np.random.default_rng(9)
    x = ((1e9 if name == "f8" else 100) + rng.standard_normal(200_000)).astype(name)
    for codes in labellings(x.shape, n):
        (count, mean, m2) = lift_groups(cp, [operation(VAR, name)], x, codes, n)[0]
        used = codes >= 0
        np.testing.assert_array_equal(count, np.bincount(codes[used], minlength=n))
        total = np.bincount(codes[used], x[used], n)
        np.testing.assert_allclose(mean, total / np.maximum(count, 1), 1e-12)
        np.testing.assert_allclose(m2, deviations(x, codes, n), 1e-12, 1e-12)


def test_variances_of_groups_of_very_different_scales(cp: Any) -> None:
    rng, n = np.random.default_rng(10), 1000
    codes = rng.integers(0, n, 100_000)
    # Means have the digits of sums, down to 2^-167 of the largest element.
    for name, most, offset in (("f4", 18, 0), ("f8", 18, 0), ("f8", 18, 1e6)):
        scale = 10.0 ** rng.integers(-most, most, n)
        x = ((offset + rng.standard_normal(codes.size)) * scale[codes]).astype(name)
        (_, _, m2) = lift_groups(cp, [operation(VAR, name)], x, codes, n)[0]
        np.testing.assert_allclose(m2, deviations(x, codes, n), 1e-12)


@pytest.mark.parametrize("name", ["i4", "f4", "f8"])
def test_variances_of_constant_groups_are_zero(cp: Any, name: str) -> None:
    codes = np.random.default_rng(11).integers(-1, 900, 50_000)
    for x in (codes.astype(name), np.full(codes.size, 7, name)):
        (_, mean, m2) = lift_groups(cp, [operation(VAR, name)], x, codes, 900)[0]
        np.testing.assert_array_equal(m2, 0)
        np.testing.assert_array_equal(mean, np.arange(900) if x[0] == codes[0] else 7)


@pytest.mark.parametrize("n", [1000, 60_000])
def test_variances_of_groups_with_what_is_not_finite(cp: Any, n: int) -> None:
    rng = np.random.default_rng(12)
    x, codes = rng.standard_normal(100_000).astype("f4"), np.arange(100_000) % n
    x[[3, 4, 5, n + 5]] = np.nan, np.inf, np.inf, -np.inf
    ops = [operation(VAR, "f4", skipna) for skipna in (False, True)]
    (_, _, m2), (count, _, without) = lift_groups(cp, ops, x, codes, n)
    assert np.isnan(m2[3:6]).all()
    assert np.isnan(without[4:6]).all()
    assert count[3] == np.sum(codes == 3) - 1
    third = x[np.flatnonzero(codes == 3)[1:]]
    np.testing.assert_allclose(
        without[3], deviations(third, 0 * third.astype("i8"), 1)[0], 1e-12, 1e-14
    )
    rest = np.delete(np.arange(n), [3, 4, 5])
    bad = np.isin(codes, [3, 4, 5])
    wanted = deviations(np.where(bad, 0, x), codes, n)
    for found in (m2, without):
        np.testing.assert_allclose(found[rest], wanted[rest], 1e-12, 1e-14)


@pytest.mark.parametrize("size", [6_000_001, 9_000_000])
def test_sums_and_variances_whose_largest_element_was_not_looked_at(cp: Any, size: int) -> None:
    rng, n = np.random.default_rng(13), 300
    x = rng.standard_normal(size).astype("f4")
    codes = rng.integers(0, n, size).astype("i4")
    x[5], codes[5] = 1e30, 7
    ops = [operation(m, "f4") for m in (SUM, VAR, COUNT)]
    (total,), (count, _, m2), (rows,) = lift_groups(cp, ops, x, codes, n)
    sizes = np.bincount(codes, minlength=n)
    np.testing.assert_array_equal(count, sizes)
    np.testing.assert_array_equal(rows, sizes)
    np.testing.assert_allclose(total, np.bincount(codes, x, n), 1e-10)
    other = np.arange(n) != 7
    squares = np.bincount(codes, x.astype("f8") ** 2, n)
    wanted = squares - np.bincount(codes, x, n) ** 2 / sizes
    np.testing.assert_allclose(m2[other], wanted[other], 1e-9)
    np.testing.assert_allclose(m2[7], 1e60 * (1 - 1 / sizes[7]), 1e-6)


@pytest.mark.parametrize("n", [4, 500, 14_000, 20_000])
@pytest.mark.parametrize("monoid", [SUM, MEAN, MAX, VAR, FIRST], ids=lambda m: m.name)
def test_states_come_to_the_host_at_once(
    cp: Any, monkeypatch: pytest.MonkeyPatch, monoid: MonoidRow, n: int
) -> None:
    from dask_coop.chunks.cupy import arrays, grouped

    copies: list[Any] = []
    deliver = grouped.deliver_all
    monkeypatch.setattr(grouped, "deliver_all", lambda rooms: copies.append(1) or deliver(rooms))
    monkeypatch.setattr(cp, "asnumpy", None)
    rng = np.random.default_rng(14)
    x, codes = cp.asarray(numbers((60_000,), "f4")), cp.asarray(rng.integers(-1, n, 60_000))
    ops = [operation(monoid, "f4"), operation(COUNT, "f4")]
    states = grouped.lift_groups(ops, x, codes, n)
    assert len(copies) == 1
    # Counts of all elements may be a field of a large state, and stay with it.
    fields = [field for state in states for field in state]
    small = sum(field.nbytes for field in fields) <= arrays.HOST_STATE_BYTES
    assert all(isinstance(field, np.ndarray) for field in fields) or not small


@pytest.mark.parametrize("n", [3, 60, 500, 20_000])
def test_codes_of_no_group_may_be_beyond_all_groups(cp: Any, n: int) -> None:
    rng = np.random.default_rng(15)
    ops = [operation(m, "f4") for m in (SUM, VAR, MAX, COUNT, FIRST)]
    for shape, order in (((60_001,), (0,)), ((40, 37), (1, 0)), ((40, 37), (0, 1))):
        x = laid_out(shape, order, "f4")
        codes = rng.integers(-3, n + 9, shape[-1:]).astype("i4")
        known = np.where((codes >= 0) & (codes < n), codes, -1)
        ours = lift_groups(cp, ops, x, codes, n)
        for state, wanted in zip(ours, lift_groups(cp, ops, x, known, n), strict=True):
            for field, other in zip(state, wanted, strict=True):
                np.testing.assert_array_equal(field, other)


@pytest.mark.parametrize("name", ["?", "i1", "u2", "i4", "u4", "f2", "f4", "f8"])
@pytest.mark.parametrize("n", [2000, 60_000, 300_000])
def test_extrema_of_many_groups(cp: Any, n: int, name: str) -> None:
    x = numbers((90_001,), name)
    if x.dtype.kind == "f":
        x[:6] = 0.0, -0.0, np.inf, -np.inf, np.finfo(name).tiny, np.finfo(name).max
    for codes in labellings(x.shape, n)[::3]:
        used = codes >= 0
        ufuncs = {MIN: np.minimum, MAX: np.maximum, NANMIN: np.fmin, NANMAX: np.fmax}
        for monoid, ufunc in ufuncs.items():
            for skipna in (False, True) if x.dtype.kind in monoid.kinds else ():
                op = operation(monoid, name, skipna)
                wanted = np.full(n, op.monoid.identity(op.element)[0])
                left = used & ~np.isnan(x) if op.skipna else used
                with np.errstate(invalid="ignore"):
                    ufunc.at(wanted, codes[left], x[left])
                (found,) = lift_groups(cp, [op], x, codes, n)[0]
                assert found.dtype == x.dtype
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["?", "i1", "i4", "u4", "f2", "f4", "f8"])
@pytest.mark.parametrize("n", [1500, 70_000])
def test_arguments_of_extrema_of_many_groups(cp: Any, n: int, name: str) -> None:
    x = numbers((30_001,), name)
    if x.dtype.kind == "f":
        x[100:400] = 0
        x[100:400:3] *= -1
    else:
        x[100:400], x[50:100] = x.dtype.type(0), 1
        if x.dtype.kind in "iu":
            x[400:600], x[600:900] = np.iinfo(name).min, np.iinfo(name).max
    codes = np.random.default_rng(8).integers(-1, n, x.shape)
    codes[::2] %= 1000
    for monoid in (ARGMIN, ARGMAX):
        for skipna in (False, True):
            assert_groups(cp, [operation(monoid, name, skipna)], x, codes, n)


@pytest.mark.usefixtures("by_buckets")
@pytest.mark.parametrize("name", ["f2", "f4"])
def test_sums_of_many_groups_keep_the_digits_of_light_ones(cp: Any, name: str) -> None:
    rng, n, size = np.random.default_rng(6), 20_000, 100_000
    x = rng.standard_normal(size)
    if name == "f4":
        x *= 10.0 ** rng.integers(-37, 6, size)
    x, codes = x.astype(name), rng.integers(-1, n, size)
    codes[rng.random(size) < 0.3] = 5
    (found,) = lift_groups(cp, [operation(SUM, name)], x, codes, n)[0]
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(n + 1))
    values = x[order].astype("f8").tolist()
    wanted = [math.fsum(values[a:b]) for a, b in pairwise(bounds)]
    np.testing.assert_allclose(found, wanted, 1e-15)


@pytest.mark.usefixtures("by_buckets")
def test_sums_of_many_groups_take_what_is_not_finite(cp: Any) -> None:
    n, x = 20_000, np.ones(50_000, "f4")
    codes = np.arange(50_000) % n
    x[[3, 4, 5]], x[n + 5] = (np.inf, np.nan, np.inf), -np.inf
    (found,) = lift_groups(cp, [operation(SUM, "f4")], x, codes, n)[0]
    wanted = np.bincount(codes, x, n)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["i4", "f4"])
def test_a_million_groups(cp: Any, name: str) -> None:
    n, size = 1_200_000, 3_000_000
    rng = np.random.default_rng(0)
    x, codes = rng.integers(-50, 50, size).astype(name), rng.integers(-1, n, size)
    codes[: size // 2] = np.where(rng.random(size // 2) < 0.9, 77, codes[: size // 2])
    used = codes >= 0
    total, most = np.zeros(n), np.full(n, np.iinfo("i4").min if name == "i4" else -np.inf, name)
    np.add.at(total, codes[used], x[used])
    np.maximum.at(most, codes[used], x[used])
    sizes = np.bincount(codes[used], minlength=n)
    ops = [operation(m, name) for m in (SUM, MAX, MEAN, COUNT)]
    (found,), (largest,), mean, (counts,) = lift_groups(cp, ops, x, codes, n)
    np.testing.assert_array_equal(found, total)
    np.testing.assert_array_equal(largest, most)
    np.testing.assert_array_equal(mean[0], total)
    np.testing.assert_array_equal(mean[1], sizes)
    np.testing.assert_array_equal(counts, sizes)


def test_a_long_strided_axis(cp: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 100, (400_000, 5)).astype("f4").T
    for n in (12, 5000, 100_000):
        for codes in labellings((400_000,), n):
            (total,) = lift_groups(cp, [operation(SUM, "f4")], x, codes, n)[0]
            for line in range(5):
                used = codes >= 0
                wanted = np.bincount(codes[used], x[line, used], n)
                np.testing.assert_array_equal(total[line], wanted)


@pytest.mark.parametrize("shape", [(64, 400), (40, 30), (30_000,), (60_000,)])
def test_several_operations_at_once(cp: Any, shape: tuple[int, ...]) -> None:
    x, n = laid_out(shape, tuple(range(len(shape)))[::-1], "f4"), 6
    ops = [operation(m, "f4", m in (VAR, COUNT)) for m in (MEAN, VAR, MAX, ARGMIN, COUNT, FIRST)]
    ops += [operation(COUNT, "f4"), operation(VAR, "f8"), operation(AFFINE, "f4")]
    for codes in labellings(shape[-1:], n):
        assert_groups(cp, ops, x, codes, n)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 5), (3, 0, 2)])
def test_chunks_without_elements(cp: Any, shape: tuple[int, ...], n: int) -> None:
    ops = [operation(m, "f4") for m in (MEAN, MAX, ARGMAX, COUNT)]
    x = np.zeros(shape, "f4")
    for labels in range(1, len(shape) + 1):
        codes = np.zeros(shape[len(shape) - labels :], "i4") - (n == 0)
        assert_groups(cp, ops, x, codes, n)


def test_nothing_but_what_is_left_out(cp: Any) -> None:
    for shape in ((70, 30), (30, 70), (50_000,)):
        codes = np.full(shape[-1:], -1)
        assert_groups(
            cp, [operation(m, "f8") for m in (MEAN, VAR, MIN)], numbers(shape, "f8"), codes, 4
        )


def test_any_strides(cp: Any) -> None:
    x, rng = numbers((12, 40, 15, 8), "f4"), np.random.default_rng(3)
    views = [x[::2, ::-1], x[..., ::3], x.transpose(3, 1, 0, 2), x.transpose(2, 0, 3, 1)[:, 1:]]
    for view in views:
        for labels in (1, 2, 3):
            codes = rng.integers(-1, 6, view.shape[view.ndim - labels :])
            assert_groups(cp, [operation(MEAN, "f4"), operation(ARGMAX, "f4")], view, codes, 6)


def test_more_rows_than_one_launch_takes(cp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_coop.chunks.cupy import grouped

    monkeypatch.setattr(grouped, "_MOST_ROWS", 1000)
    x, codes = numbers((3, 4321), "f4"), np.random.default_rng(4).integers(-1, 7, 4321)
    ops = [operation(m, "f4") for m in (MEAN, ARGMAX, FIRST, LAST)]
    assert_groups(cp, ops, x, codes, 7)
    assert_groups(cp, ops, np.ascontiguousarray(x.T).T, codes, 7)


@pytest.mark.parametrize("n", [3, 300, 20_000])
def test_results_do_not_change_from_run_to_run(cp: Any, n: int) -> None:
    rng = np.random.default_rng(5)
    lines = 20_000 if n <= 300 else 50
    for shape in ((2_000_003,), (lines, 33), (33, 20_000)):
        x = rng.standard_normal(shape).astype("f4") * 10.0 ** rng.integers(-6, 6, shape)
        x = x.astype("f4")
        codes = rng.integers(-1, n, shape[-1:])
        ops = [operation(m, "f4") for m in (SUM, MEAN, VAR)]
        found = set()
        for _ in range(5):
            states = lift_groups(cp, ops, x, codes, n)
            found.add(b"".join(field.tobytes() for state in states for field in state))
        assert len(found) == 1
