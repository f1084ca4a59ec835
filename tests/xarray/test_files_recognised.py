"""Arrays that xarray and Dask made of files are read by this library, with the same values."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.api.call import reading
from dask_coop.files.stored import StoredArray

pytest.importorskip("zarr", minversion="3.1")
xr = pytest.importorskip("xarray")
import zarr  # noqa: E402

pytestmark = [
    pytest.mark.skipif(da.array_expr_enabled(), reason="expressions have no layers yet"),
    pytest.mark.filterwarnings(
        "ignore:.*(onsolidated|Zarr V3 specification|separate the stored chunks)"
    ),
]


class Reads(NamedTuple):
    """How often this library and Zarr were asked for elements."""

    ours: list[Any]
    theirs: list[Any]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counts = Reads([], [])

    def counting(owner: type[Any], name: str, seen: list[Any]) -> None:
        function = getattr(owner, name)

        def count(self: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(index)
            return function(self, index, *args, **kwargs)

        monkeypatch.setattr(owner, name, count)

    counting(StoredArray, "__getitem__", counts.ours)
    for name in ("get_basic_selection", "get_orthogonal_selection", "get_coordinate_selection"):
        counting(zarr.Array, name, counts.theirs)
    return counts


def packed(n: int = 20) -> Any:
    """Return a Dataset of all that CF's conventions decode."""
    rng = np.random.default_rng(1)
    values = rng.normal(15, 8, (n, 6))
    values[2, 3] = np.nan
    time = np.datetime64("2001-03-01", "ns") + np.arange(n) * np.timedelta64(6, "h")
    spans = np.arange(n) * np.timedelta64(90, "s").astype("m8[ns]")
    ds = xr.Dataset(
        {
            "packed": (("time", "x"), values, {"units": "degC"}),
            "plain": (("time", "x"), values.astype("f4")),
            "big": (("time", "x"), np.arange(n * 6).reshape(n, 6)),
            "unsigned": (("time", "x"), (values > 10).astype("f8") * 200),
            "flags": (("time",), np.arange(n) % 3 == 0),
            "when": (("time",), time),
            "spans": (("time",), spans),
            "names": (("x",), np.array(list("abcdef"))),
        },
        {"x": np.arange(6) * 10},
    )
    ds["packed"].encoding = {
        "dtype": "int16",
        "scale_factor": 0.01,
        "add_offset": 10.0,
        "_FillValue": -32768,
    }
    ds["unsigned"].encoding = {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}
    ds["big"].encoding = {"dtype": ">i4"}
    ds["when"].encoding = {"units": "hours since 1999-12-31", "dtype": "int32"}
    ds["spans"].encoding = {"units": "seconds", "dtype": "int32"}
    return ds


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    ds, path = packed(), tmp_path / "x.zarr"
    chunks = {
        name: {"chunks": (8, 4)[: x.ndim]}
        for name, x in ds.variables.items()
        if x.dims[:1] == ("time",)
    }
    if request.param == 3:
        # What Zarr's third format has no dtype for.
        ds["big"].encoding = {}
    ds.to_zarr(path, encoding=chunks, zarr_format=request.param, consolidated=False)
    return path


def opened(path: Path, **options: Any) -> Any:
    return xr.open_dataset(
        path, **{"engine": "zarr", "chunks": {}, "consolidated": False, **options}
    )


def ours(x: da.Array) -> Any:
    """Return the elements as our first operation leaves them."""
    return dc.select(x.ravel(), da.ones(x.size, bool)).compute(scheduler="sync")


def read_here(x: da.Array) -> Any:
    return reading.read_by_us(x).compute(scheduler="sync")


def same(x: Any, y: Any) -> None:
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    np.testing.assert_array_equal(x, y)


VARIABLES = ("packed", "plain", "big", "unsigned", "flags", "when", "spans", "names")


@pytest.mark.parametrize("name", VARIABLES)
def test_decoded_variables_are_the_same_and_read_by_us(path: Path, reads: Reads, name: str) -> None:
    x = opened(path)[name]
    expected = x.data.compute(scheduler="sync")
    reads.ours.clear(), reads.theirs.clear()
    same(read_here(x.data), expected)
    assert reads.ours
    assert not reads.theirs


SELECTIONS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "slice": (lambda ds: ds.isel(time=slice(3, 17)), True),
    "steps": (lambda ds: ds.isel(time=slice(3, 17, 4), x=slice(1, None, 2)), True),
    "backwards": (lambda ds: ds.isel(time=slice(None, None, -3)), True),
    "integer": (lambda ds: ds.isel(x=-2), True),
    "both": (lambda ds: ds.isel(time=slice(3, 17), x=0).isel(time=slice(2, 9, 2)), True),
    "list": (lambda ds: ds.isel(x=[4, 0, 0]), False),
    "mask": (lambda ds: ds.isel(time=np.arange(20) % 3 == 1), False),
    "points": (
        lambda ds: ds.isel(
            time=xr.DataArray([1, 19, 5], dims="p"), x=xr.DataArray([0, 5, 2], dims="p")
        ),
        False,
    ),
    "transposed": (lambda ds: ds.transpose("x", "time"), False),
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_selections_before_chunking(path: Path, reads: Reads, selection: str) -> None:
    select, is_ours = SELECTIONS[selection]
    for name in ("packed", "big"):
        x = select(opened(path, chunks=None)[name]).chunk()
        x = x.chunk({dim: 3 for dim in x.dims})
        expected = x.data.compute(scheduler="sync")
        reads.ours.clear(), reads.theirs.clear()
        same(read_here(x.data), expected)
        assert bool(reads.ours) == is_ours
        assert bool(reads.theirs) != is_ours


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("chunks", [{}, {"time": 3, "x": 5}, {"time": 16}, {"time": -1}])
def test_chunks_of_dask_and_inlined_arrays(
    path: Path, reads: Reads, chunks: dict[str, int], inline: bool
) -> None:
    x = opened(path, chunks=chunks, inline_array=inline).packed
    expected = x.data.compute(scheduler="sync")
    reads.ours.clear(), reads.theirs.clear()
    same(read_here(x.data), expected)
    assert reads.ours
    assert not reads.theirs


@pytest.mark.parametrize("inline", [False, True])
def test_dasks_own_arrays_of_zarr(path: Path, reads: Reads, inline: bool) -> None:
    x = da.from_zarr(str(path), component="big", chunks=(5, 6), inline_array=inline)
    whole = zarr.open_array(path / "big")[:]
    reads.theirs.clear()
    for of in (x, x[3:9, ::2], x[::-1].T, x[:, 2], x.astype("f8") + 1):
        reads.ours.clear(), reads.theirs.clear()
        mean = dc.mean(of)
        assert mean.compute() == of.astype("f8").mean().compute()
        assert reads.ours
    same(dc.cumsum(x, axis=0).compute(), np.cumsum(whole, axis=0))


def test_several_files_as_one_array(tmp_path: Path, reads: Reads) -> None:
    ds = packed(24)
    paths = [tmp_path / f"{i}.zarr" for i in range(3)]
    for i, path in enumerate(paths):
        ds.isel(time=slice(8 * i, 8 * i + 8)).to_zarr(path, consolidated=False, zarr_format=2)
    kept = dict.fromkeys(("data_vars", "coords"), "minimal")
    options = {"combine": "nested", "concat_dim": "time", "compat": "override", **kept}
    x = xr.open_mfdataset(paths, engine="zarr", consolidated=False, **options)
    expected = x.packed.data.compute()
    reads.ours.clear(), reads.theirs.clear()
    same(read_here(x.packed.data), expected)
    assert len(reads.ours) == 3
    assert not reads.theirs


def test_results_keep_what_xarray_says(path: Path, reads: Reads) -> None:
    import dask_coop.xarray  # noqa: F401

    ds = opened(path)
    expected = ds.packed.mean("time", keep_attrs=True).compute()
    reads.ours.clear(), reads.theirs.clear()
    mean = ds.packed.coop.mean("time")
    xr.testing.assert_allclose(mean, expected, rtol=1e-14)
    assert mean.attrs == {"units": "degC"}
    with dc.installed():
        xr.testing.assert_allclose(ds.packed.mean("time"), expected, rtol=1e-14)
    assert len(reads.ours) == 12
    assert not reads.theirs


def test_explain_says_who_reads(path: Path) -> None:
    ds = opened(path)
    row = dc.explain(dc.sum(ds.packed.data))[0]
    assert (row.operation, row.served_by) == ("open_dataset-packed", "dask_coop")
    assert row.method.startswith("6 tasks that read and decode ")
    with dask.config.set({"coop.files.read": False}):
        row = dc.explain(dc.sum(ds.packed.data))[0]
    assert row.served_by == "Dask"


def test_keys_and_other_layers_stay(path: Path) -> None:
    x = opened(path).packed.data.rechunk((5, 6)) + 1
    y = reading.read_by_us(x)
    assert y is not x
    assert (y.name, y.chunks, y.dtype) == (x.name, x.chunks, x.dtype)
    assert {*y.dask.layers} == {*x.dask.layers}
    changed = [name for name in x.dask.layers if y.dask.layers[name] is not x.dask.layers[name]]
    assert changed == [name for name in x.dask.layers if name.startswith("original-")]
    assert dict(y.dask).keys() == dict(x.dask).keys()
    # The same layer takes its place each time, and nothing is left to change in it.
    again = reading.read_by_us(x)
    assert all(again.dask.layers[name] is layer for name, layer in y.dask.layers.items())
    assert reading.read_by_us(y) is y


def test_layers_are_forgotten_with_their_arrays(path: Path) -> None:
    gc.collect()
    before = len(reading._seen)
    x = opened(path).packed.data
    reading.read_by_us(x)
    assert len(reading._seen) > before
    del x
    gc.collect()
    assert len(reading._seen) <= before


def test_what_is_in_memory_is_left_alone(path: Path) -> None:
    for x in (
        opened(path).packed.data.persist(),
        da.ones((4, 4), chunks=2),
        da.from_array(np.eye(4)),
    ):
        assert reading.read_by_us(x) is x
    loaded = opened(path, chunks=None).load().packed.chunk().data
    assert reading.read_by_us(loaded) is loaded


def test_other_codecs_are_left_alone(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 40)
    filters = [__import__("numcodecs").Quantize(2, "f8")]
    zarr.create_array(
        tmp_path / "q", shape=40, dtype="f8", chunks=10, filters=filters, zarr_format=2
    )[:] = values
    x = da.from_zarr(str(tmp_path / "q"))
    assert reading.read_by_us(x) is x


def test_variable_length_strings_are_left_alone(tmp_path: Path) -> None:
    names = np.array(["a", "bc", "d" * 40], dtype=object)
    xr.Dataset({"s": ("x", names)}).to_zarr(tmp_path / "s.zarr", consolidated=False)
    x = opened(tmp_path / "s.zarr").s.data
    assert reading.read_by_us(x) is x


def test_files_written_anew_give_new_values(tmp_path: Path, reads: Reads) -> None:
    def write(values: Any) -> None:
        xr.Dataset({"v": (("t", "x"), values)}).to_zarr(
            tmp_path / "n.zarr", mode="w", consolidated=False, encoding={"v": {"chunks": (4, 4)}}
        )

    values = np.arange(64.0).reshape(8, 8)
    write(values)
    # Cells are taken by several tasks.
    x = opened(tmp_path / "n.zarr", chunks={"t": 3, "x": 3}).v.data
    assert dc.sum(x).compute() == values.sum()
    assert dc.sum(x[:3]).compute() == values[:3].sum()
    write(values + 1)
    assert dc.sum(x).compute() == (values + 1).sum()
    assert reads.ours


def test_tasks_travel_to_other_processes(path: Path) -> None:
    x = reading.read_by_us(opened(path).packed.data)
    there = pickle.loads(pickle.dumps(dict(x.dask)))
    same(dask.get(there, (x.name, 0, 0)), x.blocks[0, 0].compute())


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    yield
    gc.collect()
