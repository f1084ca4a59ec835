"""A user's own monoids: their laws, reductions and scans by one combination after the other."""

from __future__ import annotations

import pickle
import re
from functools import reduce
from itertools import accumulate
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from fuzz.own import GREATEST, LAST, SPAN
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calls import refuse
from support.processes import printed
from support.strategies import FEWER, Chunked, arrays, axes, scannable

import dask_coop as dc
from dask_coop import chunks
from dask_coop.algebra.scan_spec import ScanSpec
from dask_coop.api.monoids import monoid as custom_monoid
from dask_coop.api.signals.times import MEANS
from dask_coop.chunks.cupy import programs_list
from dask_coop.cuda import compiler
from dask_coop.cuda.devices import usual
from dask_coop.cuda.programs.custom import literal

# States of unsigned integers wrap, so that any grouping gives the same bits.
AFFINE = dc.Monoid(
    "affine",
    combine=lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
    identity=(1, 0),
    dtype=[("slope", "u8"), ("offset", "u4")],
    lift=lambda x: (x.astype("u8") * 2 + 1, x.astype("u4")),
    finalize=lambda f: f[1],
    cuda={
        "lift": "{u64(x) * 2 + 1, unsigned(x)}",
        "combine": "{a.slope * b.slope, unsigned(b.slope * a.offset + b.offset)}",
    },
)


def multiply(a: Any, b: Any) -> Any:
    return (
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
    )


MATRIX = dc.Monoid(
    "matrix",
    combine=multiply,
    identity=(1, 0, 0, 1),
    dtype="u8,u8,u8,u8",
    lift=lambda x: (x.astype("u8"), 1, 1, 0),
    finalize=lambda s: s[0],
    cuda={
        "lift": "{u64(x), 1, 1, 0}",
        "combine": "{a.f0 * b.f0 + a.f1 * b.f2, a.f0 * b.f1 + a.f1 * b.f3,"
        " a.f2 * b.f0 + a.f3 * b.f2, a.f2 * b.f1 + a.f3 * b.f3}",
    },
)
# The same product, and two hashes, which wrap as well: neither commutes.
VECTOR = dc.Monoid(
    "vector",
    combine=lambda a, b: a @ b,
    identity=[[1, 0], [0, 1]],
    dtype=("u8", (2, 2)),
    lift=lambda x: (x[..., None, None] * np.array([[1, 0], [0, 0]]) + [[0, 1], [1, 0]]).astype(
        "u8"
    ),
    finalize=lambda m: m[..., 0, 0],
    cuda={
        "lift": "{u64(x), 1, 1, 0}",
        "combine": """
            State c = {};
            for (int i = 0; i < 2; ++i)
              for (int j = 0; j < 2; ++j)
                for (int k = 0; k < 2; ++k) c.value[i][j] += a.value[i][k] * b.value[k][j];
            return c;
        """,
    },
)
HASHES = dc.Monoid(
    "hashes",
    combine=lambda a, b: (
        (a[0] * b[1][..., None] + b[0]).astype("u2"),
        a[1] * b[1],
        a[2] + b[2],
    ),
    identity=(0, 1, [0]),
    dtype=[("hash", "u2", (3,)), ("power", "u4"), ("n", "i8", (1,))],
    lift=lambda x: (
        (x[..., None] * np.array([1, 3, 5])).astype("u2"),
        31,
        np.ones_like(x, "i8")[..., None],
    ),
    finalize=lambda s: s[0][..., 0] ^ s[0][..., 1] ^ s[0][..., 2] + s[2][..., 0].astype("u2"),
    cuda={
        "lift": """
            State s = {{}, 31, {1}};
            for (int i = 0; i < 3; ++i) s.hash[i] = x * (1 + 2 * i);
            return s;
        """,
        "combine": """
            for (int i = 0; i < 3; ++i) b.hash[i] += a.hash[i] * b.power;
            b.power *= a.power;
            b.n[0] += a.n[0];
            return b;
        """,
    },
)
MONOIDS = [AFFINE, MATRIX, LAST, SPAN, GREATEST, VECTOR, HASHES]
#: Those whose elements are integers.
WRAPPING = [AFFINE, MATRIX, VECTOR, HASHES]

by_monoid = pytest.mark.parametrize("monoid", MONOIDS, ids=lambda monoid: monoid.name)

SMALL = st.integers(0, 9)
INTS = ["u1", "i4", "i8"]


def dtypes_of(monoid: Any) -> list[str]:
    return INTS if monoid in WRAPPING else ["f4", "f2", "u1"]


def values_of(monoid: Any) -> Any:
    return SMALL | st.just(np.nan) if monoid is LAST else SMALL


def cases(monoid: Any) -> Any:
    return st.sampled_from(dtypes_of(monoid)).flatmap(
        lambda dtype: scannable(
            dtypes=[dtype], values=values_of(monoid) if dtype[0] == "f" else SMALL
        )
    )


def lift(monoid: Any, x: Any) -> list[Any]:
    """Return the state of every element, in C order."""
    return [*zip(*(field.ravel() for field in monoid.lift(np.asarray(x))), strict=True)]


def combine(monoid: Any) -> Any:
    return lambda a, b: monoid.combine(a, b)


def finish(monoid: Any, states: list[Any], shape: tuple[int, ...]) -> Any:
    """Return the results of states in C order."""
    dtypes = monoid.dtypes(np.dtype("f8"))
    fields = zip(*states, strict=True) if states else [()] * len(dtypes)
    return monoid.finalize(
        tuple(np.array(f, d).reshape(shape) for f, d in zip(fields, dtypes, strict=True))
    )


def expect_reduced(monoid: Any, x: Any, axis: int) -> Any:
    lines = np.moveaxis(x, axis, -1)
    identity = monoid.identity(x.dtype)
    states = [
        reduce(combine(monoid), lift(monoid, lines[at]), identity)
        for at in np.ndindex(lines.shape[:-1])
    ]
    return finish(monoid, states, lines.shape[:-1])


def expect_scanned(monoid: Any, x: Any, axis: int) -> Any:
    lines = np.moveaxis(x, axis, -1)
    states = [
        state
        for at in np.ndindex(lines.shape[:-1])
        for state in accumulate(lift(monoid, lines[at]), combine(monoid))
    ]
    return np.moveaxis(finish(monoid, states, lines.shape), -1, axis)


def scan(x: da.Array, monoid: Any, axis: int) -> da.Array:
    return dc.scan(x, monoid, axis)


@by_monoid
@FEWER
@given(data=st.data())
def test_combinations_are_associative_and_the_identity_is_neutral(monoid: Any, data: Any) -> None:
    values = data.draw(st.lists(SMALL | st.just(99), min_size=3, max_size=3))
    a, b, c = lift(monoid, np.array(values, "u1"))
    left = monoid.combine(monoid.combine(a, b), c)
    right = monoid.combine(a, monoid.combine(b, c))
    identity = monoid.identity(np.dtype("u1"))
    np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(monoid.combine(identity, left), left)
    np.testing.assert_array_equal(monoid.combine(left, identity), left)


@by_monoid
@settings(max_examples=25)
@given(data=st.data())
def test_a_reduction_combines_elements_in_their_order(xp: Any, monoid: Any, data: Any) -> None:
    case, axis = data.draw(cases(monoid).filter(lambda case: case[0].array.ndim > 0))
    axis = data.draw(st.integers(0, case.array.ndim - 1)) if axis is None else axis
    keepdims = data.draw(st.booleans())
    lazy = dc.reduce(to_chunks(xp, *case), monoid, axis, keepdims, data.draw(st.integers(2, 5)))
    expected = expect_reduced(monoid, case.array, axis)
    assert lazy.dtype == monoid.result
    np.testing.assert_array_equal(
        to_numpy(xp, lazy), np.expand_dims(expected, axis) if keepdims else expected
    )


@by_monoid
@settings(max_examples=25)
@given(data=st.data())
def test_a_scan_combines_elements_in_their_order(xp: Any, monoid: Any, data: Any) -> None:
    case, axis = data.draw(cases(monoid).filter(lambda case: case[0].array.ndim > 0))
    axis = data.draw(st.integers(0, case.array.ndim - 1)) if axis is None else axis
    lazy = scan(to_chunks(xp, *case), monoid, axis % case.array.ndim)
    assert lazy.dtype == monoid.result
    np.testing.assert_array_equal(to_numpy(xp, lazy), expect_scanned(monoid, case.array, axis))


@given(case=arrays(dtypes=["f4"], values=SMALL), data=st.data())
def test_a_commutative_monoid_reduces_several_axes(xp: Any, case: Chunked, data: Any) -> None:
    axis = data.draw(axes(case.array.ndim))
    x = to_chunks(xp, *case)
    greatest = to_numpy(xp, dc.reduce(x, GREATEST, axis))
    np.testing.assert_array_equal(greatest, case.array.max(axis, initial=-np.inf))
    least = case.array.min(axis, initial=np.inf)
    np.testing.assert_array_equal(to_numpy(xp, dc.reduce(x, SPAN, axis)), greatest - least)


#: Shapes and an axis for every kernel: short and long lines, few and many, whole and cut.
KERNELS = [
    ((20_001,), 0),
    ((3, 9001), 1),
    ((900, 33), 1),
    ((40, 5000), 1),
    ((9001, 3), 0),
    ((1001, 129), 0),
    ((5, 700, 64), 1),
]


@pytest.mark.each(2)
@by_monoid
@pytest.mark.parametrize(("shape", "axis"), KERNELS)
def test_long_lines(xp: Any, monoid: Any, shape: tuple[int, ...], axis: int) -> None:
    x = (
        np.random.default_rng(0)
        .integers(0, 99, shape)
        .astype("f4" if monoid in (LAST, SPAN) else "i8")
    )
    if monoid is LAST:
        x[x % 3 > 0] = np.nan
    expected = np.moveaxis(by_steps(monoid, np.moveaxis(x, axis, 0)), 0, axis)
    for sizes in (shape, tuple(-(-n // 2) for n in shape)):
        lazy = to_chunks(xp, x, sizes)
        np.testing.assert_array_equal(to_numpy(xp, scan(lazy, monoid, axis)), expected)
        np.testing.assert_array_equal(
            to_numpy(xp, dc.reduce(lazy, monoid, axis)), expected.take(-1, axis)
        )


def by_steps(monoid: Any, x: Any) -> Any:
    """Return the scan along the first axis, a row at a time."""
    states = [field.copy() for field in monoid.lift(x)]
    for i in range(1, len(x)):
        before, own = (tuple(np.asarray(f[j]) for f in states) for j in (i - 1, i))
        for field, value in zip(states, monoid.combine(before, own), strict=True):
            field[i] = value
    return monoid.finalize(tuple(states))


def test_a_linear_recurrence(xp: Any) -> None:
    affine = dc.Monoid(
        "affine",
        combine=lambda f, g: (f[0] * g[0], g[0] * f[1] + g[1]),
        identity=(1, 0),
        dtype="f8,f8",
        lift=lambda x: (x.real, x.imag),
        finalize=lambda f: f[1],
        cuda={"lift": "{x.re, x.im}", "combine": "{a.f0 * b.f0, b.f0 * a.f1 + b.f1}"},
    )
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 10_001) + 1j * rng.normal(size=10_001)
    y, expected = 0.0, []
    for value in x:
        y = value.real * y + value.imag
        expected.append(y)
    found = to_numpy(xp, scan(to_chunks(xp, x, 1000), affine, 0))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def top(dtype: str, several: bool = True) -> Any:
    """Return the monoid of the two largest elements."""
    return dc.Monoid(
        "top",
        combine=lambda a, b: np.sort(np.concatenate([a, b], -1), -1)[..., 2:],
        identity=-np.inf,
        dtype=(dtype, (2,)),
        lift=lambda x: np.stack([np.full_like(x, -np.inf, dtype), x.astype(dtype)], -1),
        finalize=lambda v: (v[..., 1], v[..., 0] < 3) if several else v[..., 1] - v[..., 0],
        cuda={
            "lift": "State s = identity(); s.value[1] = x; return s;",
            "combine": """
                auto low = a.value[1] < b.value[1] ? a.value[1] : b.value[1];
                auto high = a.value[1] < b.value[1] ? b.value[1] : a.value[1];
                if (low < a.value[0]) low = a.value[0];
                if (low < b.value[0]) low = b.value[0];
                return {low, high};
            """,
        },
        commutative=True,
    )


def two_largest(x: Any, axis: Any = None) -> tuple[Any, Any]:
    lines = x.reshape(-1) if axis is None else np.moveaxis(x, axis, -1)
    ordered = np.sort(lines, -1)
    return ordered[..., -1], ordered[..., -2]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_several_results_of_one_reduction(xp: Any, dtype: str) -> None:
    monoid = top(dtype)
    for shape, axis in [((50,), None), ((50,), 0), ((7, 20), None), ((7, 20), 1), ((70, 5), 0)]:
        x = np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape).astype("f4")
        for sizes in (shape, tuple(-(-n // 3) for n in shape)):
            for keepdims, split_every in [(False, None), (True, 2)]:
                lazy = to_chunks(xp, x, sizes)
                found = dc.reduce(lazy, monoid, axis, keepdims, split_every)
                first, second = two_largest(x, axis)
                assert isinstance(found, tuple)
                assert [part.dtype for part in found] == [np.dtype(dtype), np.dtype("?")]
                if keepdims:
                    at = tuple(range(x.ndim)) if axis is None else axis
                    first, second = (np.expand_dims(part, at) for part in (first, second))
                np.testing.assert_array_equal(to_numpy(xp, found[0]), first)
                np.testing.assert_array_equal(to_numpy(xp, found[1]), second < 3)
                # They share all but the last step.
                both = dask.compute(*found, scheduler="synchronous")
                np.testing.assert_array_equal(both[0].tolist(), first)


@pytest.mark.parametrize("method", ["reduce-then-scan", "sequential", "recompute"])
def test_several_results_of_one_scan(xp: Any, method: str) -> None:
    x = np.random.default_rng(0).permutation(300).reshape(100, 3).astype("f8") - 20
    lazy, restarts = to_chunks(xp, x, (13, 2)), np.arange(100) % 31 == 0
    heads = to_chunks(xp, restarts, 13)
    from_nothing = np.concatenate([np.full((1, 3), -np.inf), x])
    pairs = [two_largest(from_nothing[: i + 2], 0) for i in range(len(x))]
    expected, below = (np.stack(parts) for parts in zip(*pairs, strict=True))
    first, second = dc.scan(lazy, top("f8"), 0, method=method)
    np.testing.assert_array_equal(to_numpy(xp, first), expected)
    np.testing.assert_array_equal(to_numpy(xp, second), below < 3)
    back, _ = dc.scan(to_chunks(xp, x[::-1], 13), top("f8"), 0, method=method, reverse=True)
    np.testing.assert_array_equal(to_numpy(xp, back), expected[::-1])
    before, _ = dc.scan(lazy, top("f8"), 0, method=method, exclusive=True)
    np.testing.assert_array_equal(to_numpy(xp, before)[1:], expected[:-1])
    longer, _ = dc.scan(lazy, top("f8"), 0, "f4", method=method, include_initial=True)
    np.testing.assert_array_equal(to_numpy(xp, longer)[1:], expected.astype("f4"))
    cut, _ = dc.scan(lazy, top("f8"), 0, method=method, segments=heads)
    parts = [np.maximum.accumulate(part) for part in np.split(x, range(31, 100, 31))]
    np.testing.assert_array_equal(to_numpy(xp, cut), np.concatenate(parts))


def test_a_vector_of_one_and_one_result_of_vectors(xp: Any) -> None:
    one = dc.Monoid(
        "one",
        lambda a, b: a + b,
        0,
        ("i8", (1,)),
        lift=lambda x: x[..., None],
        finalize=lambda v: v[..., 0],
        cuda={"lift": "{i64(x)}", "combine": "{a.value[0] + b.value[0]}"},
    )
    x = np.arange(5000).reshape(2500, 2)
    np.testing.assert_array_equal(to_numpy(xp, dc.scan(to_chunks(xp, x, 99), one, 0)), x.cumsum(0))
    np.testing.assert_array_equal(to_numpy(xp, dc.reduce(to_chunks(xp, x, 99), one, 0)), x.sum(0))
    gap = dc.reduce(to_chunks(xp, x, 999), top("f8", several=False))
    assert to_numpy(xp, gap) == 1


def test_several_results_overwrite_no_array() -> None:
    x, out = da.zeros(3), da.zeros(())
    for name, call in (("reduce", dc.reduce), ("scan", dc.scan)):
        with pytest.raises(TypeError, match=f"{name} by monoid 'top' has 2 results, which one out"):
            call(x, top("f8"), out=out)


def test_vectors_that_do_not_fit_are_refused() -> None:
    def make(**changes: Any) -> Any:
        parts: dict[str, Any] = {"combine": np.add, "identity": 0, "dtype": ("f8", (2,))}
        parts |= {"lift": lambda x: np.stack([x, x], -1), "finalize": lambda v: v[..., 0]}
        return dc.Monoid("pair", **(parts | changes))

    x = da.zeros(3)
    assert dc.reduce(x, make()).compute() == 0
    assert dc.reduce(x, make(identity=[0, 0])).compute() == 0
    with pytest.raises(
        TypeError, match=r"\[0, 0, 0\] in field 'value', which is no float64 of shape"
    ):
        make(identity=[0, 0, 0])
    with pytest.raises(ValueError, match=r"finalize .* must return .* it makes shape \(3, 2\)"):
        make(finalize=lambda v: v)
    with pytest.raises(ValueError, match=r"shape \(3,\); it was given \(3,\), and .* axes \(2,\)"):
        make(combine=lambda a, b: a[..., 0])
    with pytest.raises(ValueError, match=r"lift of monoid 'pair' must return|shape \(2, 3\)"):
        dc.reduce(x, make(lift=lambda x: np.stack([x, x])))
    with pytest.raises(TypeError, match=r"gives a list .* np.stack\(..., axis=-1\) makes an array"):
        dc.reduce(x, make(lift=lambda x: [x, x]))


def test_a_state_has_its_own_dtypes_whatever_the_elements() -> None:
    for state in ("f8", "f4", "c16", "i8", "?"):
        monoid = dc.Monoid("mine", lambda a, b: a, 0, state, lift=lambda x: x != x)
        for element in "?BifFD":
            assert monoid.dtypes(np.dtype(element)) == (np.dtype(state),)
        assert not monoid.positional


def test_a_ufunc_reduces_by_itself_and_rounds_no_worse(xp: Any) -> None:
    softplus = "fmax(a, b) + log1p(exp(-fabs(a - b)))"
    cuda = f"if (a == b) return a + log(2.0); return {softplus};"
    logaddexp = dc.Monoid("logaddexp", np.logaddexp, -np.inf, "f8", cuda=cuda, commutative=True)
    assert logaddexp.merge is None
    x = np.random.default_rng(0).normal(size=(50, 70))
    lazy = to_chunks(xp, x, 20)
    np.testing.assert_allclose(
        to_numpy(xp, dc.reduce(lazy, logaddexp)), np.log(np.exp(x).sum()), rtol=1e-13
    )
    np.testing.assert_allclose(
        to_numpy(xp, scan(lazy, logaddexp, 1)), np.logaddexp.accumulate(x, 1), rtol=1e-13
    )


def test_a_ufunc_of_another_dtype_than_the_state_is_converted() -> None:
    parity = dc.Monoid("parity", np.logical_xor, 0, "i4")
    assert parity.merge is not None
    x = da.from_array(np.array([3, 0, 1, 5, 0]), chunks=2)
    result = dc.reduce(x, parity).compute()
    assert result.dtype == np.int32
    assert result == 1


def test_real_elements_of_complex_states(xp: Any) -> None:
    total = dc.Monoid("total", np.add, 0, "c16", cuda="a + b")
    x = np.arange(10)
    assert to_numpy(xp, dc.reduce(to_chunks(xp, x, 3), total)) == 45 + 0j


@pytest.mark.parametrize(("shape", "axis"), [((0,), 0), ((3, 0), 1), ((0, 3), 1), ((3, 0), 0)])
@by_monoid
def test_nothing_is_reduced_to_the_identity(xp: Any, monoid: Any, shape: Any, axis: int) -> None:
    x = np.empty(shape, dtypes_of(monoid)[0])
    found = to_numpy(xp, dc.reduce(to_chunks(xp, x, shape), monoid, axis))
    np.testing.assert_array_equal(found, expect_reduced(monoid, x, axis))
    assert to_numpy(xp, scan(to_chunks(xp, x, shape), monoid, axis)).shape == shape


@by_monoid
@settings(max_examples=25)
@given(data=st.data())
def test_elements_may_be_left_out(monoid: Any, data: Any) -> None:
    case, _ = data.draw(cases(monoid).filter(lambda case: case[0].array.ndim > 0))
    x, op = case.array, custom_monoid.bind(monoid, da.from_array(case.array), "reduce")
    where = np.random.default_rng(data.draw(st.integers(0, 9))).random(x.shape) < 0.5
    state = chunks.backend_of(x).lift(op, x, (0,), where)
    lines = np.moveaxis(x, 0, -1), np.moveaxis(where, 0, -1)
    expected = [
        reduce(combine(monoid), lift(monoid, lines[0][at][lines[1][at]]), monoid.identity(x.dtype))
        for at in np.ndindex(x.shape[1:])
    ]
    for i, field in enumerate(state):
        np.testing.assert_array_equal(np.ravel(field), [one[i] for one in expected])


def test_elements_are_lifted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_coop.chunks import states

    sizes: list[int] = []

    def note(x: Any) -> Any:
        sizes.append(x.size)
        return x

    monkeypatch.setattr(states, "BLOCK", 100)
    first = dc.Monoid("first", lambda a, b: np.where(a == 0, b, a), 0, "f8", lift=note)
    for monoid in (first, dc.Monoid("sum", np.add, 0, "f8", lift=note)):
        op = custom_monoid.bind(monoid, da.zeros(3), "reduce")
        for shape, axis in [((10_000,), 0), ((500, 7), 0), ((3, 999), 1)]:
            x = np.ones(shape)
            chunks.backend_of(x).lift(op, x, (axis,))
            chunks.backend_of(x).scan(op, x, ScanSpec(axis))
    assert max(sizes) <= 100


def test_the_tree_keeps_the_order_of_many_chunks(xp: Any) -> None:
    x = np.random.default_rng(1).integers(0, 99, 300)
    lazy = to_chunks(xp, x, 2)
    for split_every in (2, 3, None):
        found = to_numpy(xp, dc.reduce(lazy, MATRIX, split_every=split_every))
        assert found == expect_reduced(MATRIX, x, 0)


def test_an_array_to_overwrite() -> None:
    x, out = da.arange(9, chunks=4), da.zeros((), dtype="u4")
    assert dc.reduce(x, AFFINE, out=out) is out
    assert out.compute() == expect_reduced(AFFINE, np.arange(9), 0)


@by_monoid
def test_building_a_graph_computes_nothing(monoid: Any) -> None:
    x = da.zeros((8, 8), dtype="i4" if monoid in WRAPPING else "f4", chunks=4)
    with dask.config.set(scheduler=refuse):
        lazy = dc.reduce(x, monoid, 0)
        assert lazy.name.startswith(f"{monoid.name}-")
        assert lazy.name == dc.reduce(x, monoid, 0).name
        assert lazy.name != dc.reduce(x, monoid, 1).name
        assert lazy.chunks == ((4, 4),)


def test_monoids_of_the_same_parts_are_the_same() -> None:
    def make(factor: float = 2, **changes: Any) -> Any:
        parts = {"combine": np.add, "identity": 0, "dtype": "f8", "lift": lambda x: x * factor}
        return dc.Monoid("sum", **(parts | changes))

    assert make() == make()
    assert hash(make()) == hash(make())
    others = [make(3), make(dtype="f4"), make(combine=np.subtract), make(commutative=True)]
    assert len({make(), *others}) == 5
    assert "sum" in repr(make())


def test_monoids_travel() -> None:
    x = da.arange(100, chunks=10)
    for monoid in MONOIDS:
        again = cloudpickle.loads(cloudpickle.dumps(monoid))
        assert again == monoid
        assert dc.reduce(x, again).name == dc.reduce(x, monoid).name
        assert dc.reduce(x, again).compute() == dc.reduce(x, monoid).compute()
        op = custom_monoid.bind(monoid, x, "reduce")
        # A worker unpickles a monoid with every task, and keeps one of each.
        assert programs_list.functor(op) is programs_list.functor(
            cloudpickle.loads(cloudpickle.dumps(op))
        )
    ufunc = dc.Monoid("hypot", np.hypot, 0, "f8")
    assert pickle.loads(pickle.dumps(ufunc)) == ufunc


def test_names_are_the_same_in_every_process() -> None:
    program = (
        "import dask.array as da, dask_coop as dc\n"
        "m = dc.Monoid('m', lambda a, b: (a[0] + b[0], a[1] * b[1]), (0, 1), 'f8,i8',"
        " lift=lambda x: (x, 1), finalize=lambda s: s[0], cuda={'lift': '{x, 1}',"
        " 'combine': '{a.f0 + b.f0, a.f1 * b.f1}'})\n"
        "print(dc.reduce(da.arange(9), m).name, m.functor)"
    )
    names = {printed("-c", program, PYTHONHASHSEED=seed) for seed in (1, 2)}
    assert len(names) == 1


def test_the_name_of_a_functor_depends_on_what_is_compiled_only() -> None:
    def make(cuda: str = "a + b", **changes: Any) -> str:
        functor: str = dc.Monoid("sum", np.add, 0, "f8", cuda=cuda, **changes).functor
        return functor

    assert make() == make(finalize=lambda x: -x, commutative=True)
    assert make() != make("b + a")


def plus(a: Any, b: Any) -> Any:
    return a + b


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"name": "log-add"}, ValueError, "identifier, got 'log-add'"),
        ({"name": 3}, ValueError, "identifier, got 3"),
        ({"dtype": [("a b", "f8")]}, ValueError, "field 'a b' of monoid 'mine' must be an ASCII"),
        ({"dtype": "O"}, TypeError, "'value' of monoid 'mine' is object"),
        ({"dtype": "f8,U3"}, TypeError, "field 'f1' of monoid 'mine' is <U3"),
        ({"dtype": ",".join(["f8"] * 17)}, ValueError, "136 bytes; at most 128"),
        ({"dtype": ("f8", (10**6,))}, ValueError, "8000000 bytes; at most 128"),
        ({"dtype": ("f8", (0,))}, ValueError, "field 'value' of monoid 'mine' has no element"),
        ({"dtype": ("U3", (2,))}, TypeError, r"'value' of monoid 'mine' is .'<U3', .2,.."),
        ({"dtype": ("f8", (2,))}, TypeError, "vectors and needs lift"),
        ({"dtype": ("f8", (2,)), "lift": plus}, TypeError, "vectors and needs finalize"),
        ({"dtype": "f8,f8"}, TypeError, "several fields and needs lift"),
        ({"dtype": "f8,f8", "lift": plus}, TypeError, "several fields and needs finalize"),
        ({"identity": (0, 0)}, TypeError, r"\(0, 0\) in field 'value', which is no float64"),
        ({"identity": np.inf, "dtype": "i4"}, TypeError, "inf in field 'value', .* no int32"),
        ({"identity": 0.5, "dtype": "i4"}, TypeError, "0.5 in field 'value', which is no int32"),
        ({"identity": 1}, ValueError, "1.0.* of monoid 'mine' is not neutral: .* gives .*2.0"),
        ({"combine": lambda a, b: a * 1j}, TypeError, "combine of .* gives complex128 .* float64"),
        ({"combine": lambda a, b: a[:1]}, ValueError, r"'value' shape \(1,\); .* given \(2,\)"),
        ({"finalize": lambda s: s.sum()}, ValueError, "finalize of monoid 'mine' must return"),
        ({"finalize": lambda s: ()}, ValueError, "finalize of monoid 'mine' must return"),
        (
            {"finalize": lambda s: (s, s.sum())},
            ValueError,
            r"shape \(2,\) it makes shape \(2,\), \(",
        ),
        ({"cuda": {"lift": "x"}}, ValueError, r"the keys 'combine' .* got \['lift'\]"),
        ({"cuda": {"combine": "a", "add": "b"}}, ValueError, r"got \['add', 'combine'\]"),
        ({"cuda": "a + b", "lift": np.abs}, TypeError, "has lift, so its cuda needs one too"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes: Any, error: Any, words: str) -> None:
    parts = {"name": "mine", "combine": plus, "identity": 0, "dtype": "f8"} | changes
    with pytest.raises(error, match=words):
        dc.Monoid(**parts)


def test_a_state_of_several_fields_is_a_tuple() -> None:
    def make(**changes: Any) -> Any:
        parts = {"combine": lambda a, b: a, "identity": (0, 0), "dtype": "f8,f8"}
        parts |= {"lift": lambda x: (x, x), "finalize": lambda s: s[0]}
        return dc.Monoid("pair", **(parts | changes))

    with pytest.raises(ValueError, match=r"must be a tuple of 2, one number a field \(f0, f1\)"):
        make(identity=0)
    with pytest.raises(
        ValueError, match=r"combine .* must return an array for each field \(f0, f1\)"
    ):
        make(combine=lambda a, b: a[0])
    with pytest.raises(ValueError, match=r"lift .* must return an array for each field \(f0, f1\)"):
        dc.reduce(da.zeros(3), make(lift=lambda x: x))


def test_arguments_are_checked() -> None:
    x = da.zeros((4, 4), chunks=2)
    with pytest.raises(ValueError, match=r"'last_valid' is not commutative, .* axis=None of 2"):
        dc.reduce(x, LAST)
    with pytest.raises(ValueError, match=r"one axis at a time; got axis=.0, 1. of 2"):
        dc.reduce(x, LAST, (0, 1))
    with pytest.raises(TypeError, match="reduce does not take dtype datetime64"):
        dc.reduce(da.zeros(3, dtype="M8[s]"), LAST)
    with pytest.raises(TypeError, match=r"lift of monoid 'last_valid' gives complex128"):
        dc.reduce(da.zeros(3, dtype="c16"), LAST)
    with pytest.raises(np.exceptions.AxisError):
        dc.reduce(x, LAST, 2)


class LikeCupy:
    """An array that says it is CuPy's."""

    ndim, dtype = 1, np.dtype("f8")


LikeCupy.__module__, LikeCupy.__name__ = "cupy", "ndarray"


def test_cupy_chunks_need_cuda_source() -> None:
    class X:
        _meta, dtype = LikeCupy(), np.dtype("f8")

    without = dc.Monoid("bare", np.add, 0, "f8")
    with pytest.raises(TypeError, match=r"'bare' has no CUDA source .* give Monoid one as cuda="):
        custom_monoid.bind(without, X(), "reduce")
    custom_monoid.bind(LAST, X(), "reduce")


# CUDA


def operation(monoid: Any, dtype: str) -> Any:
    return custom_monoid.bind(monoid, da.empty(1, dtype=dtype), "reduce")


@pytest.mark.parametrize(
    ("arch", "monoid", "dtype"),
    [
        ("sm_75", AFFINE, "i4"),
        ("sm_75", SPAN, "i8"),
        ("sm_90", MATRIX, "u1"),
        ("sm_90", LAST, "f2"),
        ("sm_90", GREATEST, "f4"),
        ("sm_75", VECTOR, "i4"),
        ("sm_90", HASHES, "u1"),
        *(("sm_90", mean, "c16") for mean in MEANS.values()),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_kernels_of_a_monoid_compile(arch: str, monoid: Any, dtype: str) -> None:
    from support.compiled import compile_all

    op = operation(monoid, dtype)
    sources = [*programs_list.reductions(op), *programs_list.scans(op, usual(arch))]
    compile_all([*sources, *programs_list.segmented_scans(op)], arch)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_kernels_of_vectors_of_floats_compile(dtype: str) -> None:
    from support.compiled import compile_all

    op = operation(top(dtype), dtype)
    assert "value[2]" in programs_list.functor(op).definition
    compile_all([*programs_list.reductions(op), *programs_list.scans(op)], "sm_90")


def test_only_kernels_that_keep_the_order_reduce_what_does_not_commute() -> None:
    for source in programs_list.reductions(operation(LAST, "f4")):
        ordered = r"\b(scan_rows<.*, false, (true|false), false>|reduce_columns_in_order<)"
        assert re.search(ordered, source)
    others = "upsweep_|reduce_(?!columns_in_order)|scan_waves<(?!.*, true>)"
    others += "|scan_cooperative"
    unordered = rf"\b({others}|fan_rows)"
    for source in programs_list.scans(operation(LAST, "f4")):
        assert not re.search(unordered, source)


def test_real_elements_of_complex_states_compile() -> None:
    from support.compiled import compile_all

    total = dc.Monoid("total", np.add, 0, "c16", cuda="a + b")
    op = operation(total, "u1")
    assert op.element == np.complex64
    compile_all([*programs_list.reductions(op)], "sm_75")


def test_the_largest_state_compiles() -> None:
    from support.compiled import compile_all

    wide = dc.Monoid(
        "wide",
        combine=lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
        identity=(0,) * 16,
        dtype=",".join(["f8"] * 16),
        lift=lambda x: (x,) * 16,
        finalize=lambda s: s[0],
        cuda={
            "lift": "State s; for (int i = 0; i < 16; ++i) (&s.f0)[i] = x; return s;",
            "combine": "for (int i = 0; i < 16; ++i) (&a.f0)[i] += (&b.f0)[i]; return a;",
        },
    )
    op = operation(wide, "f8")
    compile_all([*programs_list.reductions(op), *programs_list.scans(op)], "sm_75")


def test_source_that_does_not_compile_is_shown_with_the_compiler_s_words() -> None:
    monoid = dc.Monoid("sum", np.add, 0, "f8", cuda="a + c")
    source = next(programs_list.reductions(operation(monoid, "f8")))
    with pytest.raises(RuntimeError) as caught:
        compiler.compile_program(source, "sm_90")
    words = str(caught.value)
    (line,) = re.findall(r"^ +(\d+)      return a \+ c;$", words, flags=re.MULTILINE)
    assert f'dask_coop({line}): error: identifier "c" is undefined' in words


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64("nan"), "__longlong_as_double(i64(0x7ff8000000000000ull))"),
        (np.float32(-0.0), "__int_as_float(int(0x80000000u))"),
        (np.float16(1), "half_t{0x3c00}"),
        (np.int8(-128), "static_cast<signed char>(0x80ull)"),
        (np.int64(-(2**63)), "static_cast<i64>(0x8000000000000000ull)"),
        (np.True_, "static_cast<bool>(0x1ull)"),
        (
            np.complex64(2j),
            "complex_t<float>{__int_as_float(int(0x0u)), __int_as_float(int(0x40000000u))}",
        ),
    ],
)
def test_numbers_are_written_by_their_bits(value: Any, expected: str) -> None:
    assert literal(value) == expected
