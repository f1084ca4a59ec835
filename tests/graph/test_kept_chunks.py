"""Chunks that were read and copied to a GPU stay there: GPUs made up, and one that is there."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from conftest import missing_for_gpu
from distributed import Client
from support.host_cupy import backend
from support.host_cupy.gpus import FakeGpus
from support.host_cupy.modules import imported, modules

import dask_coop as dc
from dask_coop.chunks import sources
from dask_coop.chunks.kept import KEPT_CHUNKS, Kept
from dask_coop.graph import transfer
from dask_coop.node.room import Room

X = np.random.default_rng(17).normal(size=(60, 50))
CHUNKS = (15, 50)
GPU = -1


@pytest.fixture
def gpus() -> Iterator[FakeGpus]:
    """Return a GPU that is made up; threads that chose none are on the GPU -1."""
    fake = FakeGpus(1)
    with backend.in_cupys_place(fake):
        yield fake


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows by each reading that is run."""
    calls: list[None] = []
    run = transfer.Reading.__call__

    def counted(self: Any, inputs: Any) -> Any:
        calls.append(None)
        return run(self, inputs)

    monkeypatch.setattr(transfer.Reading, "__call__", counted)
    return calls


def age(path: Path) -> None:
    """Have all files of a folder be from long ago."""
    for folder, _, names in os.walk(path):
        for name in (*names, "."):
            os.utime(os.path.join(folder, name), (1e9, 1e9))


def npy(folder: Path) -> da.Array:
    np.save(folder / "x.npy", X)
    age(folder)
    return dc.from_npy(folder / "x.npy", CHUNKS)


def zarr(folder: Path) -> da.Array:
    da.to_zarr(da.from_array(X, CHUNKS), str(folder / "x.zarr"))
    age(folder)
    return da.from_zarr(str(folder / "x.zarr"))


def zarr_store(folder: Path) -> da.Array:
    library = pytest.importorskip("zarr")
    array = library.create_array(folder / "x.zarr", shape=X.shape, chunks=CHUNKS, dtype=X.dtype)
    array[:] = X
    age(folder)
    return da.from_array(array, inline_array=True)


def hdf5(folder: Path) -> da.Array:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = X
    age(folder)
    return da.from_array(h5py.File(folder / "x.h5")["x"], CHUNKS)


def files_of_xarray(folder: Path) -> da.Array:
    xarray = pytest.importorskip("xarray")
    for i, rows in enumerate(np.split(X, 4)):
        xarray.Dataset({"x": (("t", "i"), rows)}).to_netcdf(folder / f"{i}.nc")
    age(folder)
    paths = [folder / f"{i}.nc" for i in range(4)]
    data = xarray.open_mfdataset(paths, combine="nested", concat_dim="t", chunks={})
    return data["x"].data


def zarr_of_xarray(folder: Path) -> da.Array:
    xarray = pytest.importorskip("xarray")
    xarray.Dataset({"x": (("t", "i"), X)}).chunk(t=15).to_zarr(
        folder / "x.zarr", consolidated=False
    )
    age(folder)
    return xarray.open_zarr(folder / "x.zarr", consolidated=False)["x"].data


def made(block_info: Any) -> Any:
    (begin, end), _ = block_info[None]["array-location"]
    return X[begin:end].copy()


def function(folder: Path) -> da.Array:
    return da.map_blocks(made, chunks=((15,) * 4, (50,)), dtype="f8", meta=np.empty((0, 0)))


def stamps_of(values: list[Any]) -> Any:
    """Return the stamps of values that a task takes whole."""
    return sources.stamps((value, None) for value in values)


SOURCES: dict[str, tuple[Callable[[Path], da.Array], Callable[[Any], Any]]] = {
    "a .npy file": (npy, lambda x: x),
    "rows of it": (npy, lambda x: x[7:40]),
    "transposed": (npy, lambda x: x.T),
    "larger chunks of it": (npy, lambda x: x.rechunk((30, 50)) if isinstance(x, da.Array) else x),
    "what is decoded": (npy, lambda x: x * 2 + 1),
    "Zarr": (zarr, lambda x: x),
    "Zarr, inline": (zarr_store, lambda x: x),
    "HDF5": (hdf5, lambda x: x),
    "several files": (files_of_xarray, lambda x: x),
    "Zarr by xarray": (zarr_of_xarray, lambda x: x),
    "a function": (function, lambda x: x),
}


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("case", SOURCES)
def test_a_second_statistic_reads_nothing(reads: list[None], tmp_path: Path, case: str) -> None:
    opened, work = SOURCES[case]
    x = work(opened(tmp_path))
    np.testing.assert_allclose(dc.mean(dc.to_gpu(x)).compute(scheduler="sync"), work(X).mean())
    n = x.npartitions
    assert len(reads) == len(KEPT_CHUNKS) == n
    assert KEPT_CHUNKS.nbytes(GPU) == work(X).nbytes
    # In the same call, in a later one, and of an array made anew.
    sums = dc.to_host(dc.cumsum(dc.to_gpu(x), 0))
    both = dask.compute(dc.var(dc.to_gpu(x)), sums, scheduler="sync")
    np.testing.assert_allclose(both[0], work(X).var())
    np.testing.assert_allclose(both[1], work(X).cumsum(0))
    largest = dc.max(dc.to_gpu(x))
    # A dataset of HDF5 belongs to its process.
    if case != "HDF5":
        largest = cloudpickle.loads(cloudpickle.dumps(largest))
    assert largest.compute(scheduler="sync") == work(X).max()
    assert len(reads) == n


@pytest.mark.usefixtures("gpus")
def test_two_statistics_of_one_call_read_once(reads: list[None], tmp_path: Path) -> None:
    x = dc.to_gpu(npy(tmp_path))
    means = dc.to_host(dc.mean(x, 0))
    found = dask.compute(means, dc.max(x), dc.std(dc.to_gpu(npy(tmp_path))))
    for one, expected in zip(found, (X.mean(0), X.max(), X.std()), strict=True):
        np.testing.assert_allclose(one, expected)
    assert len(reads) == 4


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("opened", [npy, zarr, zarr_store, hdf5, files_of_xarray, zarr_of_xarray])
def test_a_change_of_a_file_is_seen(reads: list[None], tmp_path: Path, opened: Any) -> None:
    x = opened(tmp_path)
    assert dc.max(dc.to_gpu(x)).compute(scheduler="sync") == X.max()
    # The same bytes, a second later.
    for folder, _, names in os.walk(tmp_path):
        for name in names:
            os.utime(os.path.join(folder, name), (1e9 + 1, 1e9 + 1))
    again = dc.max(dc.to_gpu(x))
    if opened is npy:
        with pytest.raises(OSError, match=r"x\.npy has changed since"):
            again.compute(scheduler="sync")
    else:
        assert again.compute(scheduler="sync") == X.max()
        assert len(reads) == 2 * x.npartitions
        assert len(KEPT_CHUNKS) == x.npartitions


@pytest.mark.usefixtures("gpus")
def test_edits_of_files_are_seen(tmp_path: Path) -> None:
    x = zarr(tmp_path)
    assert dc.sum(dc.to_gpu(x)).compute() == pytest.approx(X.sum())
    da.to_zarr(da.from_array(X + 1, CHUNKS), str(tmp_path / "x.zarr"), overwrite=True)
    assert dc.sum(dc.to_gpu(x)).compute() == pytest.approx((X + 1).sum())
    again = da.from_zarr(str(tmp_path / "x.zarr"))
    assert again.name == x.name
    assert dc.sum(dc.to_gpu(again)).compute() == pytest.approx((X + 1).sum())
    # A file that was modified a moment ago may be modified again in the same tick.
    for i in range(3):
        np.save(tmp_path / "y.npy", X + i)
        y = dc.from_npy(tmp_path / "y.npy", CHUNKS)
        assert dc.max(dc.to_gpu(y)).compute() == (X + i).max()
    np.save(tmp_path / "z.npy", X)
    maps = np.load(tmp_path / "z.npy", mmap_mode="r+")
    age(tmp_path)
    z = da.map_blocks(np.load, str(tmp_path / "z.npy"), mmap_mode="r", chunks=X.shape, dtype="f8")
    assert dc.max(dc.to_gpu(z)).compute() == X.max()
    assert not any("z.npy" in str(entry.source) for entry in KEPT_CHUNKS._entries.values())
    maps[3, 4] = 99
    assert dc.max(dc.to_gpu(z)).compute() == 99


class Unknown:
    """An array of nobody's class."""

    shape, dtype, ndim = X.shape, X.dtype, X.ndim

    def __getitem__(self, index: Any) -> Any:
        return X[index]


@pytest.mark.usefixtures("gpus")
def test_files_that_functions_read_may_change(reads: list[None], tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    for read in (dask.delayed(np.load)(str(path)), dask.delayed(np.load)(path)):
        np.save(path, X)
        age(tmp_path)
        x = da.from_delayed(read, X.shape, "f8")
        assert dc.max(dc.to_gpu(x)).compute(scheduler="sync") == X.max()
        assert dc.min(dc.to_gpu(x)).compute(scheduler="sync") == X.min()
        assert len(reads) == 1
        np.save(path, X + 1)
        assert dc.max(dc.to_gpu(x)).compute(scheduler="sync") == (X + 1).max()
        reads.clear()
    assert stamps_of(["no file", "x" * 9999, "\0"]) in ((), None)


@pytest.mark.usefixtures("gpus")
def test_arrays_in_memory_may_change_and_are_kept_if_one_says_so(reads: list[None]) -> None:
    host = X.copy()
    h5py = pytest.importorskip("h5py")
    file = h5py.File("x.h5", "w", driver="core", backing_store=False)
    file["x"] = X
    arrays = [
        da.from_array(host, CHUNKS),
        da.from_array(host, CHUNKS) + 0,
        da.from_array(Unknown(), CHUNKS),
        da.from_array(file["x"], CHUNKS),
        da.from_array(host, CHUNKS).map_overlap(lambda block: block, 1, boundary="none"),
        da.from_array(host, CHUNKS).persist(),
    ]
    for x in arrays:
        for keep in (None, False):
            for _ in range(2):
                found = dc.max(dc.to_gpu(x, keep=keep)).compute(scheduler="sync")
                assert found == X.max()
        assert not len(KEPT_CHUNKS)
    for x in arrays:
        KEPT_CHUNKS.clear()
        for _ in range(2):
            found = dc.sum(dc.to_gpu(x, keep=True)).compute(scheduler="sync")
            np.testing.assert_allclose(found, X.sum())
        assert len(KEPT_CHUNKS) == 4
    reads.clear()
    dc.sum(dc.to_gpu(arrays[2], keep=True)).compute(scheduler="sync")
    dc.sum(dc.to_gpu(arrays[2], keep=True)).compute(scheduler="sync")
    assert len(reads) == 4


@pytest.mark.usefixtures("gpus")
def test_what_changes_while_it_is_read_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = npy(tmp_path)
    run = transfer.Reading.__call__

    def slow(self: Any, inputs: Any) -> Any:
        block = run(self, inputs)
        os.utime(tmp_path / "x.npy", (2e9, 2e9))
        return block

    monkeypatch.setattr(transfer.Reading, "__call__", slow)
    dc.max(dc.to_gpu(x)[:15]).compute()
    assert not len(KEPT_CHUNKS)


@pytest.mark.usefixtures("gpus")
def test_the_configuration_says_how_much_is_kept(reads: list[None], tmp_path: Path) -> None:
    x = npy(tmp_path)
    nbytes = X[:15].nbytes
    with dask.config.set({"coop.transfer.keep": 3 * nbytes + 1}):
        for _ in range(2):
            assert dc.max(dc.to_gpu(x)).compute(scheduler="sync") == X.max()
            assert KEPT_CHUNKS.nbytes(GPU) == 3 * nbytes
    with dask.config.set({"coop.transfer.keep": nbytes - 1}):
        dc.max(dc.to_gpu(x)).compute(scheduler="sync")
        assert KEPT_CHUNKS.nbytes(GPU) == 3 * nbytes
    for off in (0, 0.0, False, "0 B"):
        with dask.config.set({"coop.transfer.keep": off}):
            there = dc.to_gpu(x)
        assert not len(KEPT_CHUNKS)
        reads.clear()
        assert dc.max(there).compute(scheduler="sync") == X.max()
        assert not reads
        assert not len(KEPT_CHUNKS)


@pytest.mark.parametrize("given", [-1, 1.5, -0.1, True, None, "much", float("nan")])
def test_how_much_is_kept_is_a_fraction_or_bytes(given: Any) -> None:
    words = r"coop\.transfer\.keep must be False or a fraction up to 1\.0 or a number of bytes"
    with dask.config.set({"coop.transfer.keep": given}), pytest.raises(ValueError, match=words):
        dc.to_gpu(da.ones(3))
    if not isinstance(given, bool | None):
        with pytest.raises(ValueError, match="keep must be True, False or None, got"):
            dc.to_gpu(da.ones(3), keep=given)


@pytest.mark.usefixtures("gpus")
def test_names_and_layers() -> None:
    x = da.ones((60, 50), chunks=CHUNKS)
    names = {dc.to_gpu(x, keep=keep).name for keep in (None, True, False)}
    assert len(names) == 3
    assert dc.to_gpu(x).name in names
    with dask.config.set({"coop.transfer.keep": 0.2}):
        assert dc.to_gpu(x).name not in names
    # Readings stay within the copies, and Dask fuses these as usual.
    there = dc.to_gpu(x)
    assert {*there.dask.layers} == {there.name}
    (total,) = dask.optimize(dc.sum(there))
    assert len(total.dask) == len(dask.optimize(dc.sum(x))[0].dask)
    with dask.annotate(workers="w"):
        annotated = da.ones((60, 50), chunks=CHUNKS)
    assert {*dc.to_gpu(annotated).dask.layers} > {annotated.name}


@pytest.mark.usefixtures("gpus")
def test_explain_shows_readings_and_what_is_kept(tmp_path: Path) -> None:
    total = dc.sum(dc.to_gpu(npy(tmp_path)[:45] * 2))
    rows = [(row.operation, row.served_by, row.method) for row in dc.explain(total)]
    assert ("from-npy", "Dask", "3 tasks of getter") in rows
    assert ("to-gpu", "dask_coop", "chunk by chunk; 3 tasks") in rows
    total.compute()
    (optimized,) = dask.optimize(total)
    for graph in (total, optimized):
        rows = [(row.operation, row.served_by, row.method) for row in dc.explain(graph)]
        assert (
            "to-gpu",
            "dask_coop",
            "chunk by chunk, 3 on GPUs already (17.58 kiB); 3 tasks",
        ) in rows


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("codec", "where"),
    [
        ({"id": "zstd", "level": 1}, "zstd, on GPUs"),
        ({"id": "zlib", "level": 1}, "zlib, on the host: no kernel for zlib"),
    ],
)
@pytest.mark.parametrize("keep", [None, False])
def test_explain_says_where_chunks_are_decoded(
    tmp_path: Path, codec: dict[str, Any], where: str, keep: bool | None
) -> None:
    """Also if none are kept, as only readings of tasks' own can be decoded on a GPU."""
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "x", data=X, chunks=CHUNKS, compressors=codec, zarr_format=2)
    total = dc.sum(dc.to_gpu(dc.from_zarr(str(tmp_path / "x")), keep=keep))
    rows = {row.operation: row.method for row in dc.explain(total)}
    assert rows["from-zarr"] == f"4 tasks that read and decode {where}"
    np.testing.assert_allclose(total.compute(), X.sum())


@pytest.mark.usefixtures("gpus")
def test_of_many_files_those_that_are_read_count(tmp_path: Path, reads: list[None]) -> None:
    """A chunk stays while the file that has it does, however many others there are."""
    zarr = pytest.importorskip("zarr")
    n = sources.MOST_FILES + 10
    array = zarr.create_array(tmp_path / "x", shape=(n,), chunks=(1,), dtype="f8", fill_value=-1)
    array[: n - 1] = np.arange(n - 1.0)
    age(tmp_path)
    x = dc.from_zarr(str(tmp_path / "x"))
    ends = dc.to_gpu(da.concatenate([x[:2], x[-2:]]))

    def total() -> float:
        reads.clear()
        return float(dc.sum(ends).compute(scheduler="sync"))

    assert total() == 0 + 1 + n - 2 - 1
    assert len(reads) == 4
    assert total() == n - 2
    assert not reads
    array[5] = 7
    assert total() == n - 2
    assert not reads
    # One that was there, and one that was not.
    array[1], array[n - 1] = 9, 2
    age(tmp_path)
    assert total() == 9 + n - 2 + 2
    assert len(reads) == 2


STEPS: list[Callable[[Any, Any], Any]] = [
    lambda x, n: x[n : n + 30],
    lambda x, n: x[:, ::2],
    lambda x, n: x[x.shape[0] // 2 :],
    lambda x, n: x.T,
    lambda x, n: x + n,
    lambda x, n: x - x[:1],
    lambda x, n: x.rechunk((7 + n, -1)) if isinstance(x, da.Array) else x,
    lambda x, n: np.concatenate([x, x]),
    lambda x, n: np.stack([x[0], x[-1]]),
    lambda x, n: x.astype("f4").astype("f8"),
    lambda x, n: x.reshape(-1, 1) if x.ndim < 3 and x.size else x,
    lambda x, n: x - x.max(),
]


@pytest.mark.usefixtures("gpus")
def test_arrays_of_any_graph_are_copied_right_once_and_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(17)
    read, other = npy(tmp_path), zarr(tmp_path)
    for _ in range(150):
        lazy, exact = (read if rng.random() < 0.5 else other), X
        for step in rng.integers(len(STEPS), size=rng.integers(4)):
            n = int(rng.integers(5))
            lazy, exact = (STEPS[step](value, n) for value in (lazy, exact))
        keep = [None, True, False][rng.integers(3)]
        limit = [0.3, 5000, 1 << 20, 0][rng.integers(4)]
        with dask.config.set({"coop.transfer.keep": limit}):
            for scheduler in ("sync", "sync", "threads"):
                there = dc.to_host(dc.to_gpu(lazy, keep=keep)).compute(scheduler=scheduler)
                np.testing.assert_allclose(there, exact, rtol=1e-6)
            total = dc.sum(dc.to_gpu(lazy, keep=keep)).compute(scheduler="sync")
            np.testing.assert_allclose(total, exact.sum(dtype="f8"), atol=1e-3)


def test_the_least_recently_used_go_first() -> None:
    kept, chunk = Kept(), np.zeros(10, "u1")
    for key in "abc":
        kept.put(0, key, (), chunk, 30)
    kept.put(1, "a", (), chunk, 10)
    assert kept.find(0, "a", ()) is chunk
    kept.put(0, "d", (), chunk, 30)
    assert [kept.find(0, key, ()) is None for key in "abcd"] == [False, True, False, False]
    # With another source the chunk is dropped.
    assert kept.find(0, "c", 1) is None
    assert kept.find(0, "c", ()) is None
    assert kept.nbytes(0) == 20
    assert kept.free(0, 5) == 10
    assert kept.free(2) == 0
    assert kept.of(["a", "d"]) == (2, 20)
    kept.put(0, "e", (), chunk, 9)
    assert kept.find(0, "e", ()) is None
    kept.clear()
    assert len(kept) == kept.nbytes(0) == kept.nbytes(1) == 0


def test_bytes_are_those_of_the_chunks_whatever_is_done() -> None:
    kept, rng = Kept(), np.random.default_rng(17)
    for _ in range(3000):
        gpu, key, source = (int(rng.integers(n)) for n in (2, 9, 2))
        match int(rng.integers(6)):
            case 0:
                kept.free(gpu, int(rng.integers(30)))
            case 1 | 2:
                kept.find(gpu, key, source)
            case _:
                kept.put(gpu, key, source, np.zeros(rng.integers(1, 12), "u1"), 40)
        for each in (0, 1):
            held = sum(e.chunk.nbytes for (g, _), e in kept._entries.items() if g == each)
            assert kept.nbytes(each) == held <= 40


def test_an_allocation_that_fails_drops_what_is_kept() -> None:
    freed: list[int] = []
    room = [10]
    current: list[Any] = []

    def allocate(nbytes: int) -> str:
        if nbytes > room[0]:
            raise MemoryError(nbytes)
        return f"{nbytes} bytes"

    def free(gpu: int) -> int:
        freed.append(gpu)
        room[0], got = 20, 20 - room[0]
        return got

    current.append(allocate)
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append(-1))
    cuda = {
        "get_allocator": lambda: current[-1],
        "set_allocator": current.append,
        "runtime": SimpleNamespace(getDevice=lambda: 3),
    }
    with pytest.MonkeyPatch.context() as patch:
        others = modules(cuda, get_default_memory_pool=lambda: pool)
        pressure = imported("pressure", others, patch)
    for _ in range(3):
        pressure.relieve_by(free)
    assert len(current) == 2
    assert current[-1](7) == "7 bytes"
    assert freed == []
    assert current[-1](15) == "15 bytes"
    assert freed == [3, -1]
    with pytest.raises(MemoryError):
        current[-1](25)
    assert freed == [3, -1, 3]

    def refuse(_: Any) -> None:
        raise ValueError("inside `using_allocator`")

    current.append(allocate)
    cuda["set_allocator"] = refuse
    pressure.cupy.cuda.set_allocator = refuse
    pressure.relieve_by(free)


def test_kept_chunks_make_room_in_a_node() -> None:
    gpus = FakeGpus(1)
    room = Room(gpus, 0, 100)
    try:
        for key in range(3):
            KEPT_CHUNKS.put(0, key, (), gpus.make(np.zeros(30, "u1"), 0), 90)
        assert room.explain() == "90 B of chunks are kept"
        most = {"x": 35, "": 0}
        gates = [room.gate("x", most) for _ in range(2)]
        assert gates[0].opens(stalled=False)
        gc.collect()
        # Half of them, or more if a task needs more; its own memory is reserved.
        assert KEPT_CHUNKS.nbytes(0) == 30
        assert gates[1].opens(stalled=False)
        assert KEPT_CHUNKS.nbytes(0) == 30
        assert not room.gate("x", most).opens(stalled=False)
        assert room.explain() == "1 tasks waited until less than 100 B was taken"
    finally:
        KEPT_CHUNKS.clear()


@pytest.mark.usefixtures("gpus")
def test_workers_keep_chunks_and_count_them(reads: list[None], tmp_path: Path) -> None:
    from dask_coop.cluster.counts import totals

    x = npy(tmp_path)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with Client(processes=False, **options) as client:
        for _ in range(2):
            assert dc.max(dc.to_gpu(x)).compute() == X.max()
        assert len(reads) == 4
        (worker,) = client.cluster.workers.values()
        counts = totals(worker)
        assert counts["kept"] == {"count": 4, "bytes": X.nbytes}
        assert counts["kept-used"] == {"count": 4, "bytes": X.nbytes}


@pytest.mark.usefixtures("gpus")
def test_scripts_that_know_no_gpu_read_once(reads: list[None], tmp_path: Path) -> None:
    x = files_of_xarray(tmp_path)
    with dc.installed(chunks="cupy"):
        for _ in range(2):
            np.testing.assert_allclose(x.mean().compute(scheduler="sync"), X.mean())
            found = ((x - x.mean(0)) ** 2).sum(0).compute(scheduler="sync")
            np.testing.assert_allclose(found, ((X - X.mean(0)) ** 2).sum(0))
    assert len(reads) == 4


def test_large_folders_and_missing_files_have_no_stamp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = zarr_store(tmp_path)
    ((source, _), _) = x.dask.layers[x.name].indices
    assert stamps_of([source, 3, "a", None, np.float32(2), np.arange(3)]) is not None
    assert stamps_of([np.zeros(10_000)]) is None
    monkeypatch.setattr(sources, "MOST_FILES", 3)
    assert stamps_of([source]) is None
    y = npy(tmp_path)
    ((file, _), _) = y.dask.layers[y.name].indices
    assert stamps_of([file]) is not None
    os.remove(tmp_path / "x.npy")
    assert stamps_of([file]) is None


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("function", [lambda x: x, lambda x: x * 2 + x], ids=["read", "computed"])
@pytest.mark.parametrize("rows", [slice(None), slice(5, None), slice(50, 10, -1), [3, 4, 50]])
def test_chunks_of_xarrays_stores_are_held_to_their_own_files(
    reads: list[None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    rows: Any,
    function: Callable[[Any], Any],
) -> None:
    xarray = pytest.importorskip("xarray")
    zarr_of_xarray(tmp_path)
    if isinstance(rows, slice):
        # A store of a year has thousands of files: to look at all of them for each chunk takes
        # longer than to read it.
        monkeypatch.setattr(sources, "_of_folder", None)

    def opened() -> Any:
        options = {"engine": "zarr", "consolidated": False, "cache": False}
        whole = xarray.open_dataset(tmp_path / "x.zarr", **options)
        return function(whole.x.isel(t=rows).chunk(t=10).data)

    for repeat in range(2):
        found = dc.max(dc.to_gpu(opened())).compute(scheduler="sync")
        assert found == function(X[rows]).max(), repeat
    n = opened().npartitions
    assert len(reads) == n
    # Elements 15 to 29 of the first axis, and the first chunk of the second.
    os.utime(tmp_path / "x.zarr" / "x" / "c" / "1" / "0", (1.5e9, 1.5e9))
    dc.max(dc.to_gpu(opened())).compute(scheduler="sync")
    starts = np.cumsum((0, *opened().chunks[0]))
    blocks = [np.arange(60)[rows][a:b] for a, b in itertools.pairwise(starts)]
    changed = [((block >= 15) & (block < 30)).any() for block in blocks]
    assert len(reads) == n + (sum(changed) if isinstance(rows, slice) else n)


@pytest.mark.usefixtures("gpus")
def test_what_a_task_reads_and_also_takes_whole_is_held_to_all_of_it(tmp_path: Path) -> None:
    x = zarr_store(tmp_path)
    ((source, _), *_) = x.dask.layers[x.name].indices
    source = getattr(source, "value", source)

    def first(block: Any, whole: Any) -> Any:
        return block * 0 + whole[45, 0]

    y = x.map_blocks(first, whole=source, dtype=x.dtype, meta=x._meta)
    for change in (0.0, 3.0):
        source[45, 0] = change
        age(tmp_path) if not change else os.utime(
            tmp_path / "x.zarr" / "c" / "3" / "0", (1.5e9, 1.5e9)
        )
        assert dc.max(dc.to_gpu(y)).compute(scheduler="sync") == change


@pytest.mark.usefixtures("gpus")
def test_an_array_and_its_transposes_share_chunks(reads: list[None], tmp_path: Path) -> None:
    x = zarr(tmp_path)
    for y, host in ((x, X), (x.T, X.T), (da.moveaxis(x, 0, -1), X.T), (x.T.T, X)):
        on_gpu = dc.to_gpu(y)
        assert on_gpu.chunks == y.chunks
        np.testing.assert_array_equal(dc.to_host(on_gpu).compute(scheduler="sync"), host)
    assert len(reads) == 4


@pytest.mark.usefixtures("gpus")
def test_blocks_that_are_transposed_where_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X[:50])
    x = dc.from_npy(tmp_path / "x.npy", (25, 25))
    y = da.map_blocks(np.transpose, x, axes=(1, 0), dtype=x.dtype)
    found = dc.to_host(dc.to_gpu(y)).compute(scheduler="sync")
    np.testing.assert_array_equal(found, y.compute(scheduler="sync"))
    assert (found != X[:50].T).any()
    counted = da.blockwise(np.transpose, "ji", x, "ij", axes=(-1, 0), dtype=x.dtype)
    np.testing.assert_array_equal(dc.to_host(dc.to_gpu(counted)).compute(), X[:50].T)
    # A graph may have more layers than those below an array.
    z = dc.from_npy(tmp_path / "x.npy", (25, 25)).T
    above = da.Array((z + 1).dask, z.name, z.chunks, meta=z._meta)
    np.testing.assert_array_equal(dc.to_host(dc.to_gpu(above)).compute(), X[:50].T)


@pytest.mark.gpu
@pytest.mark.skipif(bool(missing_for_gpu()), reason="needs a GPU")
@pytest.mark.parametrize("scheduler", ["sync", "threads", "node"])
def test_chunks_stay_on_a_gpu(reads: list[None], tmp_path: Path, scheduler: str) -> None:
    import cupy

    host = np.random.default_rng(17).normal(size=(4000, 1500)).astype("f4")
    np.save(tmp_path / "x.npy", host)
    age(tmp_path)
    KEPT_CHUNKS.clear()

    def compute(lazy: Any) -> Any:
        if scheduler != "node":
            return lazy.compute(scheduler=scheduler)
        return lazy.compute(scheduler=node.get)

    node = dc.Node()
    x = dc.from_npy(tmp_path / "x.npy", (500, 1500))
    for _ in range(2):
        np.testing.assert_allclose(
            float(compute(dc.mean(dc.to_gpu(x)))), host.mean(dtype="f8"), 1e-6
        )
        np.testing.assert_allclose(float(compute(dc.std(dc.to_gpu(x)))), host.std(dtype="f8"), 1e-6)
    assert len(reads) == 8
    result = compute(dc.to_gpu(x)[:500])
    result += 1
    np.testing.assert_array_equal(cupy.asnumpy(compute(dc.to_gpu(x))), host)
    # Tasks on a stream of their own neither take nor keep chunks.
    reads.clear()
    with cupy.cuda.Stream(non_blocking=True):
        assert float(dc.max(dc.to_gpu(x)).compute(scheduler="sync")) == host.max()
    assert len(reads) == 8
    assert "chunks are kept" in node.explain() or scheduler != "node"
    node.close()
    assert not len(KEPT_CHUNKS)


@pytest.mark.gpu
@pytest.mark.skipif(bool(missing_for_gpu()), reason="needs a GPU")
def test_memory_of_a_gpu_that_runs_short_is_that_of_kept_chunks(tmp_path: Path) -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    host = np.random.default_rng(17).normal(size=(64, 1 << 17))
    np.save(tmp_path / "x.npy", host)
    age(tmp_path)
    gc.collect()
    pool.free_all_blocks()
    x = dc.from_npy(tmp_path / "x.npy", (8, 1 << 17))
    assert float(dc.max(dc.to_gpu(x)).compute()) == host.max()
    gpu = cupy.cuda.Device().id
    assert KEPT_CHUNKS.nbytes(gpu) >= host.nbytes
    # The memory of joined chunks.
    gc.collect()
    pool.free_all_blocks()
    before = pool.get_limit()
    pool.set_limit(size=pool.total_bytes() + (8 << 20))
    try:
        large = cupy.zeros(32 << 20, "u1")
        assert KEPT_CHUNKS.nbytes(gpu) == 0
        assert int(large.sum()) == 0
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(1 << 40, "u1")
    finally:
        pool.set_limit(size=before)
