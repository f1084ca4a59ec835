"""Runs of a mask, against a plain loop over `itertools.groupby`, and against xclim."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, get_args

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support import runs as judge
from support.loops import compile_from
from support.strategies import arrays, shapes

import dask_coop as dc
from dask_coop.algebra.monoids import RUN_LENGTHS, RUN_PLACES
from dask_coop.algebra.operation import Operation
from dask_coop.algebra.runs import Statistic, runs
from dask_coop.chunks.numpy import gaps

STATISTICS = ("longest_run", "count_runs", "count_in_runs", "first_run", "last_run")
METHODS = ("reduce-then-scan", "sequential", "recompute")

#: Mostly true, so that runs cross chunks.
MASKS = st.sampled_from([True, True, True, False])


@st.composite
def masks(draw: st.DrawFn) -> tuple[Any, Any, int]:
    """Masks, their chunks and an axis."""
    array, chunks = draw(arrays(["?"], shapes(min_dims=1), MASKS))
    return array, chunks, draw(st.integers(-array.ndim, array.ndim - 1))


def call(name: str, mask: Any, axis: int, least: int) -> Any:
    options = {} if name == "longest_run" else {"min_length": least}
    return getattr(dc, name)(mask, axis, **options)


@pytest.mark.parametrize("name", STATISTICS)
@given(case=masks(), least=st.sampled_from([1, 2, 3, 7, 2**40]))
def test_statistics_are_those_of_a_loop(xp: Any, name: str, case: Any, least: int) -> None:
    mask, chunks, axis = case
    least = 1 if name == "longest_run" else least
    result = call(name, to_chunks(xp, mask, chunks), axis, least)
    assert result.dtype == (np.float64 if name in ("first_run", "last_run") else np.int64)
    np.testing.assert_array_equal(
        to_numpy(xp, result), judge.statistic(name, mask, axis, least), strict=False
    )


@given(case=masks(), index=st.sampled_from(["first", "last"]), data=st.data())
def test_lengths_are_those_of_a_loop(xp: Any, case: Any, index: Any, data: Any) -> None:
    mask, chunks, axis = case
    method = data.draw(st.sampled_from(METHODS))
    sides = data.draw(st.sampled_from([None, mask.shape, (mask.shape[axis],)]))
    heads = flags = None
    if sides is not None:
        heads = np.random.default_rng(data.draw(st.integers(0, 99))).random(sides) < 0.2
        flags = to_chunks(xp, heads, chunks if sides == mask.shape else (chunks[axis],))
    result = dc.run_lengths(to_chunks(xp, mask, chunks), axis, index, method=method, segments=flags)
    assert result.chunks == chunks
    assert result.dtype == np.float64
    if heads is not None and heads.ndim < mask.ndim:
        heads = heads.reshape([-1 if d == axis % mask.ndim else 1 for d in range(mask.ndim)])
    np.testing.assert_array_equal(to_numpy(xp, result), judge.lengths(mask, axis, index, heads))


@given(case=masks(), least=st.integers(1, 4))
def test_events_are_those_of_a_loop(xp: Any, case: Any, least: int) -> None:
    mask, chunks, axis = case
    values = np.arange(mask.size).reshape(mask.shape) - 3
    events = dc.run_events(to_chunks(xp, mask, chunks), to_chunks(xp, values, chunks), axis, least)
    start, length, total = (to_numpy(xp, lazy) for lazy in events)
    expected = np.nan_to_num(judge.lengths(mask, axis, "first"))
    np.testing.assert_array_equal(start, expected >= least)
    np.testing.assert_array_equal(length, np.where(expected >= least, expected, 0))
    np.testing.assert_array_equal(total, judge.sums(mask, values, axis, least))
    assert (start.dtype, length.dtype) == (bool, np.int64)


# Large enough that loops are compiled, and that kernels cut lines into tiles.
LARGE: Any = (
    ((90_001,), (40_000,), 0),
    ((9, 9_003), (9, 4000), 1),
    ((1_001, 131), (600, 131), 0),
    ((5_001, 5), (3000, 5), 0),
    ((3, 4_001, 7), (2, 2500, 7), 1),
)


@pytest.mark.each(4)
@pytest.mark.parametrize("density", [0.02, 0.5, 0.97, 0.9999])
@pytest.mark.parametrize(("shape", "chunks", "axis"), LARGE)
def test_large_chunks(
    xp: Any, shape: Any, chunks: Any, axis: int, density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_from(monkeypatch, 1, "runs")
    mask = np.random.default_rng(0).random(shape) < density
    for host in (mask, np.asfortranarray(mask), np.flip(mask, axis)):
        lazy = to_chunks(xp, host, chunks)
        for name in STATISTICS:
            least = 1 if name == "longest_run" else 4
            found = to_numpy(xp, call(name, lazy, axis, least))
            np.testing.assert_array_equal(found, judge.statistic(name, host, axis, least))
        for index in ("first", "last"):
            found = to_numpy(xp, dc.run_lengths(lazy, axis, index))
            np.testing.assert_array_equal(found, judge.lengths(host, axis, index))


def test_runs_of_whole_chunks_and_of_none(xp: Any) -> None:
    for value in (True, False):
        mask = np.full((3, 50), value)
        lazy = to_chunks(xp, mask, ((3,), (20, 0, 20, 10)))
        for name, least in product(STATISTICS, (1, 50, 51)):
            found = to_numpy(xp, call(name, lazy, -1, least))
            least = 1 if name == "longest_run" else least
            np.testing.assert_array_equal(found, judge.statistic(name, mask, -1, least))
    empty = to_chunks(xp, np.zeros((2, 0), "?"), (2, 1))
    assert to_numpy(xp, dc.longest_run(empty)).tolist() == [0, 0]
    assert np.isnan(to_numpy(xp, dc.last_run(empty))).all()
    assert dc.run_lengths(empty).compute().shape == (2, 0)


def test_runs_of_chunks_of_unknown_sizes() -> None:
    mask = np.random.default_rng(0).random(60) < 0.8
    lazy = da.from_array(mask, chunks=7)
    kept = lazy[da.from_array(np.arange(60) % 5 > 0, chunks=7)]
    np.testing.assert_array_equal(
        dc.run_lengths(kept), judge.lengths(mask[np.arange(60) % 5 > 0], 0, "first")
    )


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_xclims(name: str) -> None:
    xr = pytest.importorskip("xarray")
    run_length = pytest.importorskip(
        "xclim.indices.run_length", reason="xclim defines what runs are"
    )
    names = {
        "longest_run": "longest_run",
        "count_runs": "windowed_run_events",
        "count_in_runs": "windowed_run_count",
        "first_run": "first_run",
        "last_run": "last_run",
    }
    rng = np.random.default_rng(0)
    for density, least in product((0.1, 0.6, 0.95), (1, 2, 5)):
        mask = rng.random((200, 4)) < density
        options = {} if name == "longest_run" else {"window": least}
        expected = getattr(run_length, names[name])(
            xr.DataArray(mask, dims=("time", "x")), dim="time", **options
        )
        np.testing.assert_array_equal(
            call(name, da.from_array(mask, chunks=33), 0, least), expected
        )


@pytest.mark.parametrize("index", ["first", "last"])
def test_lengths_are_xclims(index: Any) -> None:
    xr = pytest.importorskip("xarray")
    run_length = pytest.importorskip(
        "xclim.indices.run_length", reason="xclim defines what runs are"
    )
    mask = np.random.default_rng(1).random((200, 4)) < 0.7
    expected = run_length.rle(xr.DataArray(mask, dims=("time", "x")), dim="time", index=index)
    found = dc.run_lengths(da.from_array(mask, chunks=33), 0, index)
    np.testing.assert_array_equal(found, expected.transpose("time", "x"))


def test_runs_of_groups_end_with_them_or_count_where_they_begin() -> None:
    mask = np.random.default_rng(2).random(90) < 0.9
    years = np.repeat([1, 2, 3], 30)
    lazy = da.from_array(mask, chunks=20)
    heads = np.diff(years, prepend=0) > 0
    within = dc.run_lengths(lazy, segments=heads)
    longest, _ = dc.groupby_reduce(within, years, func="nanmax")
    expected = [judge.statistic("longest_run", mask[years == year], 0) for year in (1, 2, 3)]
    np.testing.assert_array_equal(longest, expected)


def test_labels_stay() -> None:
    xr = pytest.importorskip("xarray")
    import dask_coop.xarray  # noqa: F401

    mask = np.random.default_rng(3).random((40, 3)) < 0.6
    x = xr.DataArray(mask, {"time": np.arange(40)}, ("time", "x"), "hot").chunk(time=9)
    longest = x.coop.longest_run("time")
    assert x[:, 0].coop.longest_run() == longest[0]
    assert x.coop.longest_run("time", keepdims=True).dims == ("time", "x")
    assert longest.dims == ("x",)
    np.testing.assert_array_equal(longest, judge.statistic("longest_run", mask, 0))
    np.testing.assert_array_equal(
        x.coop.count_runs("time", 2), judge.statistic("count_runs", mask, 0, 2)
    )
    assert x.coop.run_lengths("time").coords.keys() == {"time"}
    values = (x * 2.0).transpose("x", "time")
    events = x.coop.run_events("time", values, 2)
    assert events.sum.dims == ("time", "x")
    np.testing.assert_array_equal(events.sum, judge.sums(mask, mask * 2.0, 0, 2))


def test_what_is_no_mask_is_refused() -> None:
    x = da.ones((4, 4), chunks=2)
    functions = [*(getattr(dc, name) for name in STATISTICS), dc.run_lengths, dc.run_events]
    for function in functions:
        with pytest.raises(TypeError, match="takes a mask of bool, got dtype float64; compare"):
            function(x)
        with pytest.raises(TypeError, match="does not take chunks of type"):
            function(da.ma.masked_array(x > 0, x > 1))
        with pytest.raises(np.exceptions.AxisError):
            function(x > 0, axis=2)
    for function in (*functions[1:5], dc.run_events):
        with pytest.raises(ValueError, match=r"min_length of \w+ must be at least 1, got 0"):
            function(x > 0, min_length=0)
        with pytest.raises(TypeError, match="takes an integer for min_length"):
            function(x > 0, min_length=1.5)
    with pytest.raises(ValueError, match='index must be "first" or "last"'):
        dc.run_lengths(x > 0, index="middle")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="values must have the shape of mask"):
        dc.run_events(x > 0, x[:2])


def _equal(a: Any, b: Any) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(np.broadcast_to(x, np.shape(y)), y)


@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("name", get_args(Statistic))
def test_combining_is_associative(name: Any, least: int) -> None:
    op = Operation(runs(name, least), np.dtype("?"), np.dtype("i8"))
    _laws(op, np.random.default_rng(0).random((9, 400)) < 0.7)


def test_combining_scans_is_associative() -> None:
    rng = np.random.default_rng(0)
    _laws(Operation(RUN_PLACES, np.dtype("?"), np.dtype("u1")), rng.random((9, 400)) < 0.7)
    places = rng.integers(0, 3, (9, 400)).astype("u1")
    _laws(Operation(RUN_LENGTHS, np.dtype("u1"), np.dtype("f8")), places)


def _laws(op: Operation, rows: Any) -> None:
    lift, combine = partial(gaps.lift, op, axes=(0,), where=None), op.monoid.combine
    identity = op.monoid.identity(op.element)
    for sizes in ((3, 6), (1, 2), (0, 1), (4, 4), (8, 8)):
        a, b, c = (lift(piece) for piece in np.split(rows, sizes))
        _equal(combine(combine(a, b), c), combine(a, combine(b, c)))
        _equal(combine(combine(a, b), c), lift(rows))
        _equal(combine(identity, b), b)
        _equal(combine(b, identity), b)


def test_statistics_read_a_mask_once() -> None:
    lazy = da.from_array(np.ones(90, "?"), chunks=10)
    assert len(dict(dask.optimize(dc.longest_run(lazy))[0].dask)) < 25


def test_sums_of_events_end_with_their_segments(xp: Any) -> None:
    mask, values = np.ones((2, 7), "?"), np.arange(14.0).reshape(2, 7)
    mask[1, 3] = False
    heads = np.array([0, 0, 1, 0, 0, 1, 0], "?")
    events = dc.run_events(
        to_chunks(xp, mask, (1, 3)), to_chunks(xp, values, (1, 3)), segments=heads
    )
    expected = [[1, 0, 9, 0, 0, 11, 0], [15, 0, 9, 0, 11, 25, 0]]
    np.testing.assert_array_equal(to_numpy(xp, events.sum), expected)
    whole = np.broadcast_to(heads, mask.shape)
    events = dc.run_events(
        to_chunks(xp, mask, (2, 2)), to_chunks(xp, values, (1, 3)), segments=whole
    )
    np.testing.assert_array_equal(to_numpy(xp, events.sum), expected)


def test_runs_of_several_axes_ask_for_one() -> None:
    with pytest.raises(TypeError, match="looks along one axis, and the mask has 2"):
        dc.longest_run(np.ones((2, 2), "?"), axis=None)
