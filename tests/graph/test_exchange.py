"""Sorts of lines in several chunks: exact sizes, NumPy's bits, few tasks, small ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.callbacks
import numpy as np
import pytest
from conftest import to_chunks, to_numpy
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import REAL, arrays, shapes

import dask_coop as dc
from dask_coop.algebra import splitters
from dask_coop.algebra.splitters import first_brackets, narrow, rounds
from dask_coop.graph.sorting import exchange


@pytest.fixture(autouse=True)
def _long_lines() -> Iterator[None]:
    """No line is short enough to be gathered."""
    with dask.config.set({"array.chunk-size": "1B"}):
        yield


@pytest.fixture(params=[False, True])
def few(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples and runs at a time, so that there are several rounds and levels."""
    if request.param:
        monkeypatch.setattr(splitters, "SAMPLES", 8)
        monkeypatch.setattr(splitters, "FEWEST", 5)
        monkeypatch.setattr(exchange, "MERGED", 3)


@pytest.mark.usefixtures("few")
@given(case=arrays(shape=shapes(1), dtypes=REAL), axis=st.integers(0, 3), descending=st.booleans())
def test_sorts_are_those_of_gathered_lines(xp: Any, case: Any, axis: int, descending: bool) -> None:
    array, chunks = case
    x, along = to_chunks(xp, array, chunks), axis % (array.ndim + 1)
    how: Any = {"axis": None if along == array.ndim else along, "descending": descending}
    with dask.config.set({"array.chunk-size": "1GiB"}):
        values, indices = (f(x, **how, stable=True) for f in (dc.sort, dc.argsort))
    for function, expected in ((dc.sort, values), (dc.argsort, indices)):
        result = function(x, **how, stable=True)
        assert result.dtype == expected.dtype
        found, expected = to_numpy(xp, result), to_numpy(xp, expected)
        np.testing.assert_array_equal(found, expected, strict=True)
        if array.dtype.kind != "f" or function is dc.argsort:
            assert found.tobytes() == expected.tobytes()


@pytest.mark.each(2)
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("dtype", ["c16", "U2", "M8[s]", ">i4", ">f8", "O", "g"])
@pytest.mark.parametrize("chunks", [9, ((1,) * 50 + (0, 31),)])
@pytest.mark.parametrize("descending", [False, True])
def test_any_dtype_that_numpy_sorts(dtype: str, chunks: Any, descending: bool) -> None:
    array = np.random.default_rng(0).integers(-9, 9, 81).astype("M8[s]" if "M" in dtype else "i8")
    array = array.astype(dtype)
    if array.dtype.kind in "cfM":
        array[::7] = "NaT" if dtype == "M8[s]" else np.nan
    x, how = da.from_array(array, chunks=chunks), {"stable": True, "descending": descending}
    with dask.config.set({"array.chunk-size": "1GiB"}):
        expected = [f(x, **how).compute() for f in (dc.sort, dc.argsort)]
    found = dc.sort(x, **how)
    assert max(found.chunks[0]) - min(found.chunks[0]) <= 1
    np.testing.assert_array_equal(found.compute(), expected[0], strict=True)
    np.testing.assert_array_equal(dc.argsort(x, **how).compute(), expected[1])


@pytest.mark.usefixtures("few")
@given(
    runs=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), min_size=2, max_size=6),
    data=st.data(),
)
def test_runs_are_divided_at_exact_ranks_in_few_rounds(runs: Any, data: st.DataObject) -> None:
    arrays = [np.sort(run) for run in runs]
    lengths = [*map(len, arrays)]
    ranks = sorted(data.draw(st.lists(st.integers(0, sum(lengths)), min_size=1, max_size=5)))
    brackets = first_brackets(lengths)
    for _ in range(rounds(lengths, len(ranks))):
        samples = [x[brackets.positions(i)] for i, x in enumerate(arrays)]
        brackets = narrow(brackets, ranks, samples)
    order = np.argsort(np.concatenate(arrays), kind="stable")
    run = np.repeat(np.arange(len(runs)), lengths)[order]
    expected = [np.bincount(run[:rank], minlength=len(runs)) for rank in ranks]
    np.testing.assert_array_equal(brackets.low, expected)
    np.testing.assert_array_equal(brackets.high, expected)


def test_many_runs_need_few_rounds() -> None:
    assert rounds([1 << 22] * 16, 15) == 3
    assert rounds([1 << 24] * 256, 255) <= 4
    assert rounds([1 << 24] * 4096, 4095) <= 5


@pytest.mark.parametrize(("chunks", "most"), [(16, 4 + 16), (100, 5 + 2 * 10), (256, 5 + 2 * 16)])
def test_tasks_are_few(chunks: int, most: int) -> None:
    x = da.zeros(1 << 20, chunks=(1 << 20) // chunks + 1, dtype="f4")
    for function in (dc.sort, dc.argsort):
        result = function(x)
        assert len(result.dask) <= (most + 3) * x.npartitions
        assert result.numblocks == x.numblocks
        widest = max(len(task.dependencies) for task in dict(result.dask).values())
        assert widest <= max(32, x.npartitions + 1)


def test_no_task_takes_or_makes_much_more_than_a_chunk() -> None:
    n, chunks = 1 << 16, 16
    rng, largest = np.random.default_rng(0), []
    x = da.from_array(rng.random(n), chunks=n // chunks)

    class Sizes(dask.callbacks.Callback):
        def _posttask(self, key: Any, result: Any, *_: Any) -> None:
            if "divide" not in str(key) and "array" not in str(key):
                arrays = result if isinstance(result, tuple) else (result,)
                largest.append(max(x.size for x in arrays if hasattr(x, "size")))

    result = dc.sort(x)
    assert set(result.chunks[0]) == {n // chunks}
    with Sizes():
        dask.compute(*result.to_delayed(), scheduler="sync")
    assert max(largest) == n // chunks


def test_short_lines_and_unknown_sizes_are_gathered() -> None:
    x = da.from_array(np.arange(100.0)[::-1], chunks=10)
    assert dc.sort(x).numblocks == (10,)
    unknown = dc.sort(x[x > 3])
    assert unknown.numblocks == (1,)
    np.testing.assert_array_equal(unknown.compute(), np.arange(4, 100.0))
    with dask.config.set({"array.chunk-size": "800B"}):
        assert dc.sort(x).numblocks == (1,)
        assert "sorted, then slices" not in str(dc.explain(dc.sort(x)))
    assert "10 chunks sorted, then slices of these merged" in str(dc.explain(dc.sort(x)))
