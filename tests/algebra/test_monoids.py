"""The laws of the monoids, by every backend: what lets a chunking be any chunking."""

from __future__ import annotations

import pickle
import tracemalloc
from functools import reduce
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import FEWER, INTS, Chunked, arrays, chunkings, elements, wide

from dask_coop import chunks
from dask_coop.algebra import merges, monoids
from dask_coop.algebra.bins import Grid, find_bins
from dask_coop.algebra.monoids import (
    ARGMAX,
    ARGMIN,
    COMPENSATED_VAR,
    COUNTS,
    FIRST_MAX,
    FIRST_MIN,
    LOGADDEXP,
    MAX,
    MEAN,
    MIN,
    MINMAX,
    MOMENTS,
    MONOIDS,
    NO_INDEX,
    PROD,
    SQUARES,
    SUM,
    TICKS,
    VAR,
    MonoidRow,
    State,
)
from dask_coop.algebra.operation import Operation, bind
from dask_coop.algebra.scan_spec import segmented
from dask_coop.chunks.numpy import backend as numpy_engine

DTYPES = {"b": ["?"], "i": INTS[:4], "u": INTS[4:], "f": ["f2", "f4", "f8"], "c": ["c8", "c16"]}
#: Monoids whose combination rounds, and so is associative only up to that.
ROUNDING = (MEAN, VAR, COMPENSATED_VAR, MOMENTS, SQUARES, LOGADDEXP)

by_monoid = pytest.mark.parametrize("monoid", MONOIDS, ids=lambda monoid: monoid.name)


def operation(monoid: MonoidRow, dtype: Any) -> Operation:
    return bind(monoid, np.dtype(dtype), np.dtype(dtype), monoid.name)


def lift(xp: Any, op: Operation, piece: Any, axes: Any = None) -> State:
    piece = xp.asarray(piece)
    axes = tuple(range(piece.ndim)) if axes is None else axes
    return chunks.backend_of(piece).lift(op, piece, axes)


def lift_pieces(xp: Any, op: Operation, case: Chunked) -> list[State]:
    """Lift every chunk of a line, with indices in the line where the monoid has them."""
    states, start = [], 0
    for piece in pieces(case):
        state = lift(xp, op, piece)
        if op.monoid.positional:
            state = op.shift(state, piece.shape, ((start, case.array.size),))
        states.append(state)
        start += piece.size
    return states


def on_host(state: State) -> list[Any]:
    return [np.asarray(chunks.asarray(field, "numpy")) for field in state]


def assert_same(op: Operation, a: State, b: State, whole: Any) -> None:
    """Hold two states of the same whole to each other, up to the rounding of floats."""
    sizes = np.abs(wide(whole))
    size = np.max(sizes, where=np.isfinite(sizes), initial=0)
    spread = 8 * np.finfo("f8").eps * whole.size * whole.size * size
    for field, x, y in zip(op.monoid.fields, on_host(a), on_host(b), strict=True):
        assert x.dtype == y.dtype, field.name
        if op.monoid in (FIRST_MIN, FIRST_MAX) and field.role == "index":
            # It may be that of the first element of a chunk.
            continue
        if op.monoid is COMPENSATED_VAR and field.role == "float" and np.isnan(on_host(b)[2]):
            # Infinity has no deviations, and the distance from an infinite mean is NaN.
            continue
        if field.ufunc is np.multiply and x.dtype.kind in "fc":
            np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-300)
        elif field.ufunc is np.logaddexp:
            np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-13)
        elif x.dtype.kind in "biu" or field.role == "element":
            np.testing.assert_array_equal(x, y, field.name)
        else:
            bound = float(spread * size if field.role == "real" else spread)
            np.testing.assert_allclose(x, y, rtol=0, atol=bound, err_msg=field.name)


@st.composite
def lines(draw: st.DrawFn, monoid: MonoidRow) -> Chunked:
    """One-dimensional chunked arrays that `monoid` takes, NaN included, no overflow in squares."""
    dtype = np.dtype(draw(st.sampled_from([d for kind in monoid.kinds for d in DTYPES[kind]])))
    values = elements(dtype)
    if dtype == "f8":
        values = st.floats(-1e6, 1e6) | st.just(np.nan)
    if dtype.kind == "c":
        values = elements(dtype) if monoid.positional else st.complex_numbers(max_magnitude=1e6)
    if monoid is PROD and dtype.kind in "fc":
        # No partial product overflows, whatever the order.
        values = st.floats(-2, 2, width=16)
    shape = st.tuples(st.integers(0, 40))
    return draw(arrays(dtypes=[dtype.str], shape=shape, values=values))


def pieces(case: Chunked) -> list[Any]:
    bounds = np.cumsum([0, *case.chunks[0]])
    return [case.array[i:j] for i, j in pairwise(bounds)]


@by_monoid
@FEWER
@given(data=st.data())
def test_any_grouping_gives_the_state_of_the_whole_which_the_identity_leaves_alone(
    xp: Any, monoid: MonoidRow, data: Any
) -> None:
    case = data.draw(lines(monoid))
    op = operation(monoid, case.array.dtype)
    with np.errstate(all="ignore"):
        whole, states = lift(xp, op, case.array), lift_pieces(xp, op, case)
        groups = data.draw(chunkings((len(states),)))[0]
        bounds = np.cumsum([0, *groups])
        grouped = [reduce(monoid.combine, states[i:j]) for i, j in pairwise(bounds) if j > i]
        right = states[-1]
        for state in states[-2::-1]:
            right = monoid.combine(state, right)
        left = op.combine(states)
        for found in (left, right, op.combine(grouped)):
            assert_same(op, whole, found, case.array)
    if monoid not in ROUNDING and case.array.dtype.kind in "biu":
        for a, b in zip(on_host(left), on_host(right), strict=True):
            np.testing.assert_array_equal(a, b)
    identity = tuple(xp.asarray(field) for field in monoid.identity(op.element))
    for combined in (monoid.combine(identity, whole), monoid.combine(whole, identity)):
        for field, x, y in zip(monoid.fields, on_host(combined), on_host(whole), strict=True):
            np.testing.assert_array_equal(x, y, field.name)


@by_monoid
def test_nothing_is_lifted_to_the_identity(xp: Any, monoid: MonoidRow) -> None:
    for dtype in (d for kind in monoid.kinds for d in DTYPES[kind]):
        op = operation(monoid, dtype)
        state = on_host(lift(xp, op, np.empty(0, dtype)))
        identity = monoid.identity(op.element)
        assert (
            [f.dtype for f in state] == [f.dtype for f in identity] == [*monoid.dtypes(op.element)]
        )
        assert [f.shape for f in state] == [()] * len(identity)
        np.testing.assert_equal([f.item() for f in state], [f.item() for f in identity])


@by_monoid
def test_states_have_the_chunks_shape_without_the_reduced_axes(xp: Any, monoid: MonoidRow) -> None:
    chunk = np.random.default_rng(6).integers(0, 99, (3, 4, 5)).astype("f4")
    op = operation(monoid, "f4" if "f" in monoid.kinds else "c8")
    for axes, shape in [((0,), (4, 5)), ((1,), (3, 5)), ((0, 2), (4,)), ((), (3, 4, 5))]:
        state = on_host(lift(xp, op, chunk, axes))
        for field, dtype, array in zip(
            monoid.fields, monoid.dtypes(op.element), state, strict=True
        ):
            assert array.dtype == dtype
            # A count that is the same for all lines may be one scalar.
            assert array.shape in (shape, ()) if field.role == "count" else array.shape == shape


@given(ticks=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), data=st.data())
def test_states_of_dates_combine_in_any_grouping(ticks: list[int], data: Any) -> None:
    op = bind(TICKS, np.dtype("M8[ns]"), np.dtype("M8[ns]"), "describe", times="mM")
    array = np.array(ticks, "i8").view("M8[ns]")
    cut = data.draw(st.integers(0, len(ticks)))
    also = data.draw(st.integers(cut, len(ticks)))
    whole = lift(np, op, array)
    a, b, c = (lift(np, op, part) for part in np.split(array, [cut, also]))
    combine, nothing = op.monoid.combine, op.monoid.identity(op.element)
    for grouped in (
        combine(combine(a, b), c),
        combine(a, combine(b, c)),
        combine(nothing, whole),
        combine(whole, nothing),
    ):
        assert [np.asarray(field).dtype for field in grouped] == [*op.monoid.dtypes(op.element)]
        assert grouped[:-1] == whole[:-1]
        assert grouped[-1] == pytest.approx(whole[-1], rel=1e-13)


@pytest.mark.parametrize("monoid", [ARGMIN, ARGMAX], ids=lambda monoid: monoid.name)
@given(case=arrays(dtypes=["i1", "f4"], shape=st.tuples(*[st.integers(1, 6)] * 3)))
def test_indices_count_in_c_order_whatever_the_order_in_memory(
    xp: Any, monoid: MonoidRow, case: Chunked
) -> None:
    find = getattr(np, monoid.name)
    op = operation(monoid, case.array.dtype)
    for array in (case.array, case.array.T, case.array[:, ::-1]):
        chunk = xp.asarray(array)
        value, index = on_host(lift(xp, op, chunk))
        assert index == find(array)
        np.testing.assert_array_equal(value, array.ravel()[index])
        for axis in range(3):
            np.testing.assert_array_equal(
                on_host(lift(xp, op, chunk, (axis,)))[1], find(array, axis)
            )


def test_indices_of_a_chunk_become_those_of_the_array() -> None:
    op = operation(ARGMIN, "f4")
    array = np.arange(7 * 9).reshape(7, 9)
    chunk = array[2:5, 3:7]
    for index in range(chunk.size):
        _, shifted = op.shift((None, np.int64(index)), chunk.shape, ((2, 7), (3, 9)))
        assert shifted == chunk.ravel()[index]
    nothing = (None, np.int64(NO_INDEX))
    assert op.shift(nothing, (0, 4), ((2, 7), (3, 9))) == nothing
    assert op.shift((None, np.int64(3)), (5,), ((40, 99),)) == (None, 43)
    assert op.shift((None, np.int64(0)), (), ()) == (None, 0)


def test_of_equals_the_first_index_wins_and_of_all_the_first_nan() -> None:
    nan = np.float32(np.nan)
    low, high, not_a_number = np.float32(1), np.float32(2), nan
    first, second = np.int64(3), np.int64(8)
    for monoid, best, other in ((ARGMIN, low, high), (ARGMAX, high, low)):
        for a, b, expected in [
            ((best, second), (best, first), first),
            ((best, second), (other, first), second),
            ((other, first), (best, second), second),
            ((not_a_number, second), (best, first), second),
            ((nan, second), (nan, first), first),
        ]:
            assert monoid.combine(a, b)[1] == monoid.combine(b, a)[1] == expected


@given(case=arrays(dtypes=["i4", "u2", "f4"], values=st.integers(0, 99)), data=st.data())
def test_the_histogram_of_a_whole_is_the_sum_of_its_parts(
    xp: Any, case: Chunked, data: Any
) -> None:
    op = operation(COUNTS, "i8")
    flat = case.array.ravel()
    bins = find_bins(data.draw(st.sampled_from([5, [0, 3, 9, 80]])), (0, 99), flat.dtype)
    backend = chunks.backend_of(xp.empty(0))
    at = data.draw(st.integers(0, flat.size))
    whole, *parts = (
        backend.histogram(op, [xp.asarray(part)], Grid((bins,)), None)
        for part in (flat, flat[:at], flat[at:])
    )
    assert_same(op, whole, op.combine(parts), flat)
    np.testing.assert_array_equal(
        on_host(whole)[0], np.histogram(flat, **bins.numpy_arguments())[0]
    )


def test_minima_and_maxima_pass_nan_on() -> None:
    nan, one = np.float32(np.nan), np.float32(1)
    for a, b in ((nan, one), (one, nan)):
        assert np.isnan(MINMAX.combine((a, a), (b, b))).all()


@pytest.mark.parametrize("monoid", [*MONOIDS, COUNTS], ids=lambda monoid: monoid.name)
def test_rows_of_the_table_pickle_as_references(monoid: MonoidRow) -> None:
    assert pickle.loads(pickle.dumps(monoid)) is monoid
    op = operation(monoid, DTYPES[monoid.kinds[0]][-1])
    again = pickle.loads(pickle.dumps(op))
    assert again == op
    assert again.monoid is monoid
    assert len(pickle.dumps(op)) < 400


def test_a_monoid_of_ones_own_pickles_whole() -> None:
    own = MonoidRow("sum", SUM.fields, "f", "Sum")
    again = pickle.loads(pickle.dumps(own))
    assert again == own
    assert again is not SUM


@pytest.mark.parametrize(
    ("element", "output", "expected"),
    [
        ("i4", "i8", "i4"),  # the state is int64, and so is the result
        ("u1", "u8", "u1"),
        ("f4", "f4", "f4"),
        ("f8", "f4", "f8"),  # rounded once, at the end
        ("f8", "i4", "i4"),  # truncated before, as NumPy does
        ("i8", "f4", "f4"),
        ("?", "i8", "?"),
        ("i8", "?", "?"),
        ("f4", "c8", "c8"),
        (">f4", ">f4", "f4"),
    ],
)
def test_elements_are_converted_where_the_kind_of_number_changes(
    element: str, output: str, expected: str
) -> None:
    op = bind(SUM, np.dtype(element), np.dtype(output), "sum")
    assert op.element == expected
    assert op.output == np.dtype(output).newbyteorder("=")
    assert op.element.isnative
    assert op.output.isnative


@pytest.mark.parametrize("monoid", [*MONOIDS, COUNTS], ids=lambda monoid: monoid.name)
def test_a_monoid_takes_the_kinds_that_it_names_and_no_other(monoid: MonoidRow) -> None:
    for dtype in np.typecodes["All"]:
        takes = np.dtype(dtype).kind in monoid.kinds and dtype not in "gG"
        # The platform's names for 64 bits are as good as any.
        if takes:
            operation(monoid, dtype)
        else:
            with pytest.raises(TypeError, match=f"{monoid.name} does not take dtype"):
                operation(monoid, dtype)


def test_functors_and_names_are_told_apart() -> None:
    assert len({monoid.name for monoid in MONOIDS}) == len(MONOIDS)
    for monoid in MONOIDS:
        assert getattr(monoids, monoid.name.upper()) is monoid
        assert monoid.functor.isidentifier()


@given(data=st.data())
def test_segments_combine_in_any_grouping(data: Any) -> None:
    monoid = segmented(data.draw(st.sampled_from([SUM, PROD, MAX])))
    length = data.draw(st.integers(1, 20))
    values = data.draw(st.lists(st.integers(-9, 9), min_size=length, max_size=length))
    restarts = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
    states = [(np.int64(v), np.bool_(r)) for v, r in zip(values, restarts, strict=True)]
    at = data.draw(st.integers(0, length - 1))
    left = reduce(monoid.combine, states)
    apart = [reduce(monoid.combine, part) for part in (states[:at], states[at:]) if part]
    assert reduce(monoid.combine, apart) == left
    assert left[1] == any(restarts)
    start = max((i for i, r in enumerate(restarts) if r), default=0)
    assert left[0] == monoid.fields[0].ufunc.reduce(values[start:])
    identity = monoid.identity(np.dtype("i8"))
    assert monoid.combine(identity, left) == monoid.combine(left, identity) == left


def test_accumulators_are_numpys_or_wider() -> None:
    for dtype in (d for kind in DTYPES.values() for d in kind):
        wider = monoids.accumulator(np.dtype(dtype))
        assert np.sum(np.ones(1, dtype)).dtype.kind == wider.kind
        assert wider.itemsize == (16 if wider.kind == "c" else 8)


def test_the_extrema_of_one_value_are_that_value() -> None:
    for dtype in (d for kind in MIN.kinds for d in DTYPES[kind]):
        for monoid in (MIN, MAX):
            op = operation(monoid, dtype)
            values = [0, 1] if dtype == "?" else [op.monoid.identity(op.element)[0], 1, 100]
            for value in np.array(values, dtype):
                assert lift(np, op, np.full(3, value))[0] == value


@pytest.mark.parametrize("monoid", [SUM, PROD, MIN, MAX, MINMAX, ARGMIN, ARGMAX, MEAN, VAR])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_skipna_leaves_nan_out_and_where_what_is_false(
    monoid: MonoidRow, axes: tuple[int, ...]
) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(-3, 4, (5, 7)).astype("f8")
    x[generator.random(x.shape) < 0.3] = np.nan
    x[2] = np.nan
    where = generator.random(x.shape) < 0.7
    op = bind(monoid, x.dtype, x.dtype, "test", skipna=True)
    for keep in (None, where):
        got = numpy_engine.lift(op, x, axes, keep)
        valid = ~np.isnan(x) & (True if keep is None else keep)
        for line in np.ndindex(np.shape(got[0])):
            full = iter(line)
            at = tuple(slice(None) if d in axes else next(full) for d in range(2))
            values, indices = x[at][valid[at]], np.flatnonzero(valid[at])
            plain = numpy_engine.lift(bind(monoid, x.dtype, x.dtype, "test"), values, (0,))
            for field, a, b in zip(monoid.fields, got, plain, strict=True):
                if field.role == "index" and b != NO_INDEX:
                    b = indices[b]
                np.testing.assert_allclose(np.asarray(a)[line], b, rtol=1e-14)


@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.MAX, monoids.NANMAX, monoids.MOMENTS])
def test_many_states_combine_as_two_do_and_stay_as_they_are(monoid: MonoidRow) -> None:
    op = bind(monoid, np.dtype("f4"), np.dtype("f4"), "it")
    blocks = np.random.default_rng(5).normal(size=(7, 50, 3)).astype("f4")
    blocks[2, :, 1] = np.nan
    states = [numpy_engine.lift(op, block, (0,)) for block in blocks]
    before = pickle.dumps(states)
    one_by_one = reduce(monoid.combine, states)
    for got, wanted in zip(op.combine(states), one_by_one, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert pickle.dumps(states) == before


def test_libraries_may_compare_in_their_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(np.ndarray[Any, Any]):
        __module__ = "other.core"

    def backwards(a: Any, b: Any) -> Any:
        return -np.asarray(a), -np.asarray(b)

    exact = SimpleNamespace(extremum=lambda ufunc, a, b: (ufunc, a, b), comparable=backwards)
    monkeypatch.setitem(merges.EXACT, "other", lambda: exact)
    a, b = (np.array([value], "f4").view(Other) for value in (1, 2))
    assert monoids.MAX.combine((a,), (b,)) == ((np.maximum, a, b),)
    assert monoids.MAX.combine((np.float32(1),), (b,)) == ((np.maximum, 1, b),)
    (value, index) = monoids.ARGMAX.combine((a, np.array([7])), (b, np.array([8])))
    assert (value.tolist(), index.tolist()) == ([1], [7])


def test_states_with_a_count_in_common_are_added_in_place() -> None:
    op = bind(MEAN, np.dtype("f4"), np.dtype("f8"), "mean")
    states = [(np.full(1 << 16, i, "f8"), np.int64(i)) for i in range(9)]
    tracemalloc.start()
    total, count = op.combine(states)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (total == 36).all()
    assert (count, type(count)) == (36, np.int64)
    assert most < 1.5 * total.nbytes
