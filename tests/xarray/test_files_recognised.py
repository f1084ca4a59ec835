"""Arrays that xarray and Dask made of files are read by this library, with the same values."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.api.call import reading
from dask_coop.chunks.sources import stamps
from dask_coop.files import unpacking
from dask_coop.files.hdf5 import Hdf5Array
from dask_coop.files.stored import StoredArray
from dask_coop.graph.files import lifting

pytest.importorskip("zarr", minversion="3.1")
xr = pytest.importorskip("xarray")
import zarr  # noqa: E402
from xarray.backends import h5netcdf_, netCDF4_  # noqa: E402

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
    counting(Hdf5Array, "__getitem__", counts.ours)
    for name in ("get_basic_selection", "get_orthogonal_selection", "get_coordinate_selection"):
        counting(zarr.Array, name, counts.theirs)
    for wrapper in (h5netcdf_.H5NetCDFArrayWrapper, netCDF4_.NetCDF4ArrayWrapper):
        counting(wrapper, "_getitem", counts.theirs)
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


#: Engines of xarray, and the formats that they write.
FORMATS = {
    "zarr 2": ("zarr", {"zarr_format": 2, "consolidated": False}),
    "zarr 3": ("zarr", {"zarr_format": 3, "consolidated": False}),
    "h5netcdf": ("h5netcdf", {}),
    "netcdf4": ("netcdf4", {"format": "NETCDF4"}),
}


def write(ds: Any, path: Path, stored: str, when: float = 1e9) -> None:
    """Write a Dataset in chunks that Dask's may cut."""
    engine, options = FORMATS[stored]
    encoding: dict[str, Any] = {}
    for name, x in ds.variables.items():
        if x.dims[:1] != ("time",):
            continue
        sizes = (8, 4)[: x.ndim]
        encoding[name] = {"chunks" if engine == "zarr" else "chunksizes": sizes}
        if engine != "zarr":
            encoding[name] |= {"zlib": True, "shuffle": name != "plain"}
    if stored == "zarr 3":
        # Its dtypes have no order of bytes.
        ds["big"].encoding = {}
    if engine == "zarr":
        ds.to_zarr(path, encoding=encoding, **options)
    else:
        ds.to_netcdf(path, encoding=encoding, engine=engine, **options)
    # Nobody writes it any more.
    for file in [path, *path.rglob("*")]:
        os.utime(file, (when, when))


class Stored(NamedTuple):
    """A path, and what xarray reads it by."""

    path: Path
    engine: str
    format: str


@pytest.fixture(params=FORMATS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    engine, _ = FORMATS[request.param]
    if engine != "zarr":
        pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    path = tmp_path / f"x.{engine}"
    write(packed(), path, request.param)
    return Stored(path, engine, request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a Zarr array."""
    write(packed(), tmp_path / "x.zarr", "zarr 2")
    return tmp_path / "x.zarr"


def opened(stored: Stored | Path, **options: Any) -> Any:
    path, engine = stored[:2] if isinstance(stored, Stored) else (stored, "zarr")
    if engine == "zarr":
        options = {"consolidated": False, **options}
    return xr.open_dataset(path, **{"engine": engine, "chunks": {}, **options})


def read_here(x: da.Array) -> Any:
    return reading.read_by_us(x).compute(scheduler="sync")


def same(x: Any, y: Any) -> None:
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    np.testing.assert_array_equal(x, y)


VARIABLES = ("packed", "plain", "big", "unsigned", "flags", "when", "spans", "names")


@pytest.mark.each(2)
@pytest.mark.parametrize("name", VARIABLES)
def test_variables_are_the_same_and_read_by_us(stored: Stored, reads: Reads, name: str) -> None:
    x = opened(stored)[name]
    expected = x.data.compute(scheduler="sync")
    reads.ours.clear(), reads.theirs.clear()
    same(read_here(x.data), expected)
    # Strings of NetCDF are of any length.
    is_ours = name != "names" or stored.engine == "zarr"
    assert bool(reads.ours) == is_ours
    assert not (is_ours and reads.theirs)


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


@pytest.mark.each(2)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_selections_before_chunking(stored: Stored, reads: Reads, selection: str) -> None:
    select, is_ours = SELECTIONS[selection]
    for name in ("packed", "big"):
        x = select(opened(stored, chunks=None)[name]).chunk()
        x = x.chunk({dim: 3 for dim in x.dims})
        expected = x.data.compute(scheduler="sync")
        reads.ours.clear(), reads.theirs.clear()
        same(read_here(x.data), expected)
        assert bool(reads.ours) == is_ours
        assert bool(reads.theirs) != is_ours


@pytest.mark.each(2)
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("chunks", [{}, {"time": 3, "x": 5}, {"time": 16}, {"time": -1}])
def test_chunks_of_dask_and_inlined_arrays(
    stored: Stored, reads: Reads, chunks: dict[str, int], inline: bool
) -> None:
    x = opened(stored, chunks=chunks, inline_array=inline).packed
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


@pytest.mark.parametrize("kind", FORMATS)
def test_several_files_as_one_array(tmp_path: Path, reads: Reads, kind: str) -> None:
    engine, _ = FORMATS[kind]
    if engine != "zarr":
        pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    ds = packed(24)
    paths = [tmp_path / f"{i}.{engine}" for i in range(3)]
    for i, path in enumerate(paths):
        write(ds.isel(time=slice(8 * i, 8 * i + 8)), path, kind)
    kept = dict.fromkeys(("data_vars", "coords"), "minimal")
    options = {"combine": "nested", "concat_dim": "time", "compat": "override", **kept}
    options |= {"consolidated": False} if engine == "zarr" else {}
    x = xr.open_mfdataset(paths, engine=engine, **options)
    expected = x.packed.data.compute()
    reads.ours.clear(), reads.theirs.clear()
    same(read_here(x.packed.data), expected)
    assert len(reads.ours) == 6
    assert not reads.theirs


def test_results_keep_what_xarray_says(stored: Stored, reads: Reads) -> None:
    import dask_coop.xarray  # noqa: F401

    ds = opened(stored)
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
    holding = [name for name in x.dask.layers if name.startswith("original-")]
    # The layer that reads the blocks changes, too: it may read several of them in a task.
    assert {*changed} == {*holding, *(name.removeprefix("original-") for name in holding)}
    assert dict(y.dask).keys() == dict(x.dask).keys()
    # The same layer takes its place each time, and nothing is left to change in it.
    again = reading.read_by_us(x)
    assert all(again.dask.layers[name] is layer for name, layer in y.dask.layers.items())
    assert reading.read_by_us(y) is y


def test_results_go_where_the_caller_wants_them(path: Path) -> None:
    x = opened(path)
    out = x.plain.data[0]
    assert dc.sum(x.plain.data, axis=0, out=out) is out
    np.testing.assert_array_equal(out.compute(), dc.sum(x.plain.data, axis=0).compute())


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


def test_files_written_anew_give_new_values(stored: Stored, reads: Reads) -> None:
    # Cells are taken by several tasks.
    ds = opened(stored, chunks={"time": 3, "x": 3})
    x, total = ds.packed.data, packed().packed.sum().item()
    assert dc.nansum(x).compute() == pytest.approx(total)
    assert dc.nansum(x[:3]).compute() == pytest.approx(packed().packed[:3].sum().item())
    ds.close()
    other = packed()
    other["packed"] = other.packed.copy(data=other.packed.values + 1)
    other.packed.encoding = packed().packed.encoding
    if stored.engine == "zarr":
        shutil.rmtree(stored.path)
    else:
        stored.path.unlink()
    write(other, stored.path, stored.format, 2e9)
    assert dc.nansum(x).compute() == pytest.approx(other.packed.sum().item())
    assert reads.ours


def test_tasks_travel_to_other_processes(stored: Stored) -> None:
    x = reading.read_by_us(opened(stored).packed.data)
    there = pickle.loads(pickle.dumps(dict(x.dask)))
    same(dask.get(there, (x.name, 0, 0)), x.blocks[0, 0].compute())


def test_what_was_recognised_has_stamps(stored: Stored) -> None:
    def stamp() -> Any:
        x = reading.read_by_us(opened(stored).packed.data)
        (name,) = (name for name in x.dask.layers if name.startswith("original-"))
        return stamps((value, None) for value in dict(x.dask.layers[name]).values())

    before = stamp()
    assert before is not None
    assert stamp() == before
    paths = [path for path in (stored.path, *stored.path.rglob("*")) if path.is_file()]
    for path in paths:
        os.utime(path, (2e9, 2e9))
    assert stamp() != before


STATISTICS: dict[str, Any] = {
    "mean": lambda t: (t.mean("time"),),
    "mean and std": lambda t: (t.mean(), t.std("time")),
    "max of some": lambda t: (t[2:].max(),),
    "of a transpose": lambda t: (t.transpose(...).min("x"),),
}


@pytest.mark.parametrize("name", ["packed", "plain"])
@pytest.mark.parametrize("of", STATISTICS)
@pytest.mark.parametrize("rows", [slice(None), slice(3, None), slice(None, None, -1), [0, 3, 4]])
def test_small_chunks_are_read_in_runs(
    tmp_path: Path, name: str, of: str, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.zarr"
    write(packed(99), path, "zarr 2")
    monkeypatch.setattr(lifting, "STATES", 99)
    expected = STATISTICS[of](opened(path, chunks=None)[name][rows])
    lazily = opened(path, chunks=None, cache=False)[name][rows].chunk(time=2)
    with dask.config.set(num_workers=1, scheduler="threads"), dc.installed():
        lazy = STATISTICS[of](lazily)
        graph = dask.optimize(*lazy)[0].__dask_graph__()
        got = dask.compute(*lazy)
    lifted = [key for key in graph if key[0].startswith("lift-")]
    # Zarr selects by lists, and the functions of others take chunks one by one.
    assert bool(lifted) == (isinstance(rows, slice) and of in ("mean", "mean and std"))
    for one, other in zip(got, expected, strict=True):
        xr.testing.assert_allclose(one, other)


def test_blocks_that_are_more_than_read_are_not_read_in_runs(path: Path) -> None:
    x = opened(path, chunks={"time": 2}).plain.data
    reads = x.dask.layers[x.name]

    def doubled(*args: Any, **kwargs: Any) -> Any:
        return 2 * reads.task.func(*args, **kwargs)

    task = type(reads.task)(reads.task.key, doubled, *reads.task.args, **reads.task.kwargs)
    indices = reads.indices, reads.numblocks
    layer = type(reads)(reads.output, reads.output_indices, task, *indices, io_deps=reads.io_deps)
    graph = type(x.dask)({**x.dask.layers, x.name: layer}, x.dask.dependencies)
    y = da.Array(graph, x.name, x.chunks, meta=x._meta)
    ours = reading.read_by_us(y)
    assert type(ours.dask.layers[x.name]) is type(reads)
    np.testing.assert_array_equal(ours.compute(), y.compute())


@pytest.mark.gpu
def test_chunks_go_to_gpus(stored: Stored, reads: Reads) -> None:
    x = opened(stored, chunks={"time": 3}).packed.data
    expected = x.compute()
    reads.ours.clear(), reads.theirs.clear()
    same(dc.to_host(dc.to_gpu(x)).compute(), expected)
    with dc.installed(chunks="cupy"):
        mean = da.nanmean(x, 0).compute()
    np.testing.assert_allclose(mean, np.nanmean(expected, 0), rtol=1e-14)
    assert reads.ours
    assert not reads.theirs


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    yield
    gc.collect()


@pytest.mark.parametrize("stored", FORMATS)
def test_packed_numbers_are_unpacked_in_one_pass(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    engine, options = FORMATS[stored]
    if engine != "zarr":
        pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    ds, path = packed(20_000)[["packed"]], tmp_path / "x"
    if engine == "zarr":
        ds.to_zarr(path, **options)
    else:
        ds.to_netcdf(path, engine=engine, **options)
    sizes_of_calls, loop = [], unpacking._loop()
    assert loop is not None

    def counted(codes: Any, *rest: Any) -> None:
        sizes_of_calls.append(codes.size)
        loop(codes, *rest)

    monkeypatch.setattr(unpacking, "_loop", lambda: counted)
    with opened(Stored(path, engine, stored), chunks={"time": 20_000, "x": 6}) as lazy:
        x = lazy["packed"].data
        expected = x.compute()
        assert not sizes_of_calls
        got = reading.read_by_us(x).compute()
    assert sizes_of_calls == [120_000]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
