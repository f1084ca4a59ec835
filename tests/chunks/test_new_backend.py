"""A chunk backend is a module and a row: one of plain lists runs through graphs as NumPy's does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import dask.array as da
import numpy as np
import pytest
from support.host_cupy import lists
from support.host_cupy.lists import ListArray

import dask_coop as dc
from dask_coop import chunks
from dask_coop.chunks import backend
from dask_coop.chunks.numpy import backend as numpy_backend
from dask_coop.errors import Refused

OFFERED = {name: f for name, f in vars(backend.ChunkBackend).items() if inspect.isfunction(f)}
OFFERED = {name: f for name, f in OFFERED.items() if not name.startswith("_")}
MODULES = [row.module for name, row in backend.BACKENDS.items() if name != "cupy"]


@pytest.fixture
def _row(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the row, and see that NumPy's functions of a chunk are not what is called."""
    row = backend.BackendRow("list", (backend.class_name(ListArray),), lists.__name__)
    monkeypatch.setitem(backend.BACKENDS, "list", row)
    for name in ("lift", "scan", "histogram"):
        monkeypatch.setattr(numpy_backend, name, None)
    yield
    backend._find.cache_clear()


def of_lists(array: Any, sizes: Any) -> da.Array:
    x = da.from_array(array, chunks=sizes)
    meta = lists.from_numpy(np.zeros((0,) * x.ndim, x.dtype))
    return x.map_blocks(lists.from_numpy, dtype=x.dtype, meta=meta)


def assert_equal(actual: da.Array, expected: Any) -> None:
    assert isinstance(actual._meta, ListArray)
    assert actual.dtype == expected.dtype
    computed = actual.compute(scheduler="synchronous")
    assert type(computed) is ListArray
    assert computed.dtype == expected.dtype
    np.testing.assert_array_equal(lists.to_numpy(computed), expected)


@pytest.mark.parametrize("module", [*MODULES, lists.__name__])
def test_backends_offer_what_the_protocol_says(module: str) -> None:
    for name, expected in OFFERED.items():
        function = getattr(import_module(module), name)
        names = list(inspect.signature(expected).parameters)[1:]
        taken = list(inspect.signature(function).parameters)
        # A refusing function takes any arguments.
        assert taken == ["args", "kwargs"] or taken[: len(names)] == names, name


def test_without_the_row_lists_are_refused() -> None:
    with pytest.raises(Refused, match=r"x has chunks of type support\.host_cupy\.lists\.ListArray"):
        chunks.kind(ListArray([1], (1,), "i8"), "x")
    with pytest.raises(Refused, match="an array has chunks of type"):
        chunks.backend_of(ListArray([1], (1,), "i8"))


@pytest.mark.usefixtures("_row")
def test_the_row_is_found() -> None:
    x = ListArray([1, 2], (2,), "i4")
    assert chunks.kind(x) == "list"
    assert type(chunks.backend_of(x).to_numpy(x)) is np.ndarray
    assert chunks.asarray(x, "list") is x
    on_host = chunks.asarray(x, "numpy")
    assert type(on_host) is np.ndarray
    assert on_host.tolist() == [1, 2]
    assert chunks.asarray(on_host, "list").values == [1, 2]


@pytest.mark.usefixtures("_row")
def test_how_an_array_is_moved_reaches_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(lists, "from_numpy", lambda *args: calls.append(args))
    x = np.arange(3)
    chunks.asarray(x, "list")
    chunks.asarray(x, "list", 99, True)
    assert calls == [(x, None, "auto"), (x, 99, True)]


@pytest.mark.usefixtures("_row")
def test_to_host_takes_what_dask_thinks_is_on_the_host() -> None:
    array = np.arange(12.0).reshape(3, 4)
    x = of_lists(array, 2)
    for meta in (x._meta, np.empty((0, 0))):
        of_gpu = da.Array(x.dask, x.name, x.chunks, meta=meta, dtype=x.dtype)
        here = dc.to_host(of_gpu)
        assert type(here._meta) is np.ndarray
        for scheduler in ("synchronous", "threads"):
            found = here.compute(scheduler=scheduler)
            assert type(found) is np.ndarray
            np.testing.assert_array_equal(found, array)


@pytest.mark.usefixtures("_row")
@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", "f8"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums(dtype: str, axis: int | None) -> None:
    array = (np.arange(7 * 45) % 13).astype(dtype).reshape(7, 45)
    for sizes in ((2, 1), (7, 45), ((3, 0, 4), (40, 5))):
        x = of_lists(array, sizes)
        assert_equal(dc.sum(x, axis=axis), array.sum(axis))
        assert_equal(dc.sum(x, axis=axis, keepdims=True), array.sum(axis, keepdims=True))


@pytest.mark.usefixtures("_row")
@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", "f8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scans(dtype: str, axis: int) -> None:
    array = (np.arange(7 * 45) % 13).astype(dtype).reshape(7, 45)
    for sizes in ((2, 1), (7, 45), ((3, 0, 4), (40, 5))):
        assert_equal(dc.cumsum(of_lists(array, sizes), axis=axis), array.cumsum(axis))


@pytest.mark.usefixtures("_row")
@pytest.mark.parametrize("dtype", ["u1", "f8"])
@pytest.mark.parametrize("bins", [[0, 2, 3, 7, 11], 5])
def test_histograms(dtype: str, bins: Any) -> None:
    array = (np.arange(345) % 13).astype(dtype)
    counts, edges = dc.histogram(of_lists(array, 50), bins, range=(1, 11))
    expected, of_numpy = np.histogram(array, bins, range=(1, 11))
    assert_equal(counts, expected)
    np.testing.assert_array_equal(edges, of_numpy)


@pytest.mark.usefixtures("_row")
def test_what_lists_do_not_offer_says_so() -> None:
    x = of_lists(np.arange(9), 3)
    with pytest.raises(NotImplementedError, match="chunks of lists have no max"):
        dc.max(x).compute(scheduler="synchronous")
    with pytest.raises(NotImplementedError, match="chunks of lists have no scan_on"):
        dc.cumsum(x, axis=0, method="sequential").compute(scheduler="synchronous")
