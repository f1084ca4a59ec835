"""Arrays of Zarr: against `dask.array.from_zarr`, of any store and chunks, by any scheduler."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.array.utils import assert_eq, same_keys
from zarr import codecs
from zarr.storage import MemoryStore, WrapperStore, ZipStore

import dask_coop as dc
from dask_coop.files import codecs as decoders
from dask_coop.files import decoded, stores

RNG = np.random.default_rng(42)
X = RNG.integers(0, 99, (40, 30)).astype("f4")


def save(store: Any, **options: Any) -> Any:
    return zarr.create_array(store, **{"data": X, "chunks": (10, 8), "overwrite": True, **options})


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of an array whose files are old enough to be told from new ones."""
    save(str(tmp_path / "x.zarr"))
    age(tmp_path)
    return str(tmp_path / "x.zarr")


def age(folder: Path) -> None:
    import os

    for file in folder.rglob("*"):
        os.utime(file, (1e9, 1e9))


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the sizes of what is decoded from now on."""
    seen: list[int] = []
    before = decoders.Chain.decode

    def decode(self: Any, data: Any, *more: Any) -> Any:
        seen.append(data.nbytes)
        return before(self, data, *more)

    monkeypatch.setattr(decoders.Chain, "decode", decode)
    decoded.DECODED.__init__()  # type: ignore[misc]
    yield seen
    assert decoded.DECODED._nbytes == sum(
        entry.nbytes for entry in decoded.DECODED._entries.values()
    )


CHUNKS: tuple[Any, ...] = (
    None,
    7,
    -1,
    "auto",
    (10, 8),
    (20, 16),
    (5, 30),
    ((13, 27), (30,)),
    "1kB",
)


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("shards", [None, (20, 16)])
def test_chunks_are_those_of_dask(chunks: Any, shards: Any, tmp_path: Path) -> None:
    array = save(str(tmp_path / "x.zarr"), shards=shards)
    age(tmp_path)
    x = dc.from_zarr(array, chunks=chunks)
    if chunks is None:
        assert x.chunksize == (shards or (10, 8))
    elif shards is None or chunks != "1kB":
        # Shards are chunks that are not cut where it can be helped.
        assert x.chunks == da.from_zarr(array, chunks=chunks).chunks
    assert_eq(x, X)
    assert_eq(x[::-3, 5:22:4], X[::-3, 5:22:4])
    assert_eq(x[[3, 1, 30]], X[[3, 1, 30]])
    assert_eq(x[x > 50], X[X > 50])
    assert_eq(x + x.T[:30, :30].sum(), X + X.T[:30, :30].sum())


def test_arguments_are_those_of_dask(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("a/b", data=X, chunks=(10, 8))
    x = dc.from_zarr(tmp_path / "g.zarr", component="a/b", name="mine", inline_array=True)
    assert x.name == "mine"
    assert_eq(x, da.from_zarr(tmp_path / "g.zarr", component="a/b"))
    assert len(x.dask.layers) == 1
    assert_eq(dc.from_zarr(group["a/b"]), X)
    assert_eq(dc.from_zarr(group.store, "a/b"), X)
    assert_eq(dc.from_zarr(f"file://{tmp_path}/g.zarr", "a/b"), X)
    with pytest.raises(FileNotFoundError):
        dc.from_zarr(tmp_path / "g.zarr", component="a/c")
    with pytest.raises(FileNotFoundError):
        dc.from_zarr(tmp_path / "nothing.zarr")
    with pytest.raises(ValueError, match=r"[Cc]hunks"):
        dc.from_zarr(tmp_path / "g.zarr", "a/b", chunks=(1, 2, 3))


@pytest.mark.parametrize("number", [0, True, "many", 1.5])
def test_concurrency_is_a_positive_number(number: Any, path: str) -> None:
    with (
        dask.config.set({"coop.files.concurrency": number}),
        pytest.raises(ValueError, match=r"coop\.files\.concurrency"),
    ):
        dc.from_zarr(path)


def test_without_axes_and_without_elements(tmp_path: Path) -> None:
    for shape in ((), (0,), (3, 0, 2)):
        x = RNG.normal(size=shape)
        array = zarr.create_array({}, data=x)
        assert_eq(dc.from_zarr(array), x)
        assert dc.from_zarr(array).chunks == da.from_zarr(array).chunks


NAMES = """
import sys, dask_coop as dc, zarr
print([dc.from_zarr(sys.argv[1], chunks=chunks).name for chunks in (None, 7, (20, 16))])
"""


def test_names_are_the_same_in_every_process(path: str) -> None:
    ours = [dc.from_zarr(path, chunks=chunks).name for chunks in (None, 7, (20, 16))]
    assert len(set(ours)) == 3
    for _ in range(1):
        again = subprocess.run(
            [sys.executable, "-c", NAMES, path], capture_output=True, text=True, check=True
        )
        assert again.stdout.strip() == str(ours)
    assert same_keys(dc.from_zarr(path), dc.from_zarr(Path(path)))
    assert same_keys(
        dc.from_zarr(path), dc.from_zarr(pickle.loads(pickle.dumps(zarr.open_array(path))))
    )
    other = save(f"{path}2")
    assert dc.from_zarr(path).name != dc.from_zarr(other).name


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["memory", "zip", "fsspec", "dict", "file", "wrapped"])
@pytest.mark.parametrize("options", [{}, {"shards": (20, 16)}, {"zarr_format": 2}])
def test_stores(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    url: Any = {
        "memory": MemoryStore,
        "zip": lambda: ZipStore(tmp_path / "x.zip", mode="w"),
        "fsspec": lambda: "memory://test-from-zarr/x.zarr",
        "dict": dict,
        "file": lambda: str(tmp_path / "x.zarr"),
        "wrapped": lambda: WrapperStore(MemoryStore()),
    }[kind]()
    array = save(url, **options)
    if kind == "zip":
        url.close()
        url = ZipStore(tmp_path / "x.zip", mode="r")
    else:
        array[10:20, 8:16] = 0
        url = f"file://{url}" if kind == "file" else url
    expected = zarr.open_array(url, mode="r")[...]
    x = dc.from_zarr(url)
    assert_eq(x, expected)
    assert_eq(dc.from_zarr(url, chunks=(15, 7)), expected)
    row = dc.explain(x)[0]
    assert row.served_by == "dask_coop"


def test_stores_of_obstore() -> None:
    obstore = pytest.importorskip("obstore")
    store = zarr.storage.ObjectStore(obstore.store.MemoryStore())
    for options in ({}, {"shards": (20, 16)}, {"zarr_format": 2}):
        save(store, **options)
        assert_eq(dc.from_zarr(store), X)
        assert_eq(dc.from_zarr(store, chunks=(15, 7)), X)


@pytest.mark.parametrize("scheduler", ["threads", "sync", "processes"])
def test_schedulers(scheduler: str, path: str) -> None:
    memory = MemoryStore()
    save(memory)
    stores = [path] if scheduler == "processes" else [path, memory]
    lazy = [dc.from_zarr(store, chunks=chunks) for store in stores for chunks in (None, (15, 7))]
    for got in dask.compute(*lazy, scheduler=scheduler, num_workers=1 + (scheduler == "threads")):
        np.testing.assert_array_equal(got, X)


def test_workers_of_a_cluster(path: str) -> None:
    from support.clusters import cluster

    with cluster(2, threads=2) as client:
        for chunks in (None, (15, 7)):
            x = dc.from_zarr(path, chunks=chunks)
            np.testing.assert_array_equal(client.compute(x).result(), X)
            assert client.compute(dc.sum(x)).result() == X.sum()


class Counted(WrapperStore):
    """A store that notes its requests, and answers as the tests want."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.asked: list[tuple[str, Any]] = []
        self.most = self.now = 0
        self.fail: Any = None
        self.stall = 0.0

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        import asyncio

        if key.endswith(("zarr.json", ".zarray", ".zattrs")):
            return await super().get(key, prototype, byte_range)
        self.asked.append((key, byte_range))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.stall or 0.002)
            if self.fail is not None and (error := self.fail(key, len(self.asked))):
                raise error
            return await super().get(key, prototype, byte_range)
        finally:
            self.now -= 1


def counted(**options: Any) -> tuple[Counted, Any]:
    store = Counted(MemoryStore())
    array = save(store, **options)
    store.asked.clear()
    store.most = 0
    return store, array


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_requests_are_bounded_and_made_at_once(concurrency: int) -> None:
    store, array = counted(chunks=(2, 30))
    with dask.config.set({"coop.files.concurrency": concurrency}):
        x = dc.from_zarr(array, chunks=(10, 30))
    np.testing.assert_array_equal(x.compute(scheduler="threads", num_workers=4), X)
    assert len(store.asked) == 20
    assert store.most <= concurrency
    assert store.most > min(concurrency, 5) // 2


def test_requests_of_a_shard_are_joined() -> None:
    store, array = counted(chunks=(5, 5), shards=(20, 30))
    np.testing.assert_array_equal(dc.from_zarr(array).compute(), X)
    # Each shard takes two requests: its index, and all of its chunks.
    assert len(store.asked) == 4
    assert Counter(key for key, _ in store.asked) == {"c/0/0": 2, "c/1/0": 2}
    store.asked.clear()
    np.testing.assert_array_equal(dc.from_zarr(array, chunks=-1).compute(), X)
    assert len(store.asked) == 4


def test_a_store_that_fails_half_way() -> None:
    store, array = counted(chunks=(2, 30))
    store.fail = lambda key, n: ConnectionError("the line is dead") if n > 7 else None
    x = dc.from_zarr(array, chunks=(10, 30))
    with pytest.raises(OSError, match=r"cannot read the chunk 'c/\d+/0': the line is dead") as seen:
        x.compute(scheduler="threads")
    assert str(store) in str(seen.value)
    assert isinstance(seen.value.__cause__, ConnectionError)
    store.fail = None
    np.testing.assert_array_equal(x.compute(scheduler="threads"), X)


def test_a_store_that_loses_a_chunk_has_its_fill_value() -> None:
    store, array = counted(fill_value=3)
    x = dc.from_zarr(array)
    del store._store._store_dict["c/1/2"]
    expected = X.copy()
    expected[10:20, 16:24] = 3
    np.testing.assert_array_equal(x.compute(), expected)


def test_a_store_that_stalls_and_lets_others_go_on() -> None:
    store, array = counted()
    with dask.config.set({"coop.files.concurrency": 2}):
        x = dc.from_zarr(array)
    store.stall = 60
    with zarr.config.set({"async.timeout": 0.2}):
        with pytest.raises(TimeoutError, match="cannot read the chunk"):
            x.compute(scheduler="threads", num_workers=4)
        # The requests that stall have gone, and so are their places.
        store.stall = 0
        with zarr.config.set({"async.timeout": 20}):
            np.testing.assert_array_equal(x.compute(scheduler="threads"), X)


@pytest.mark.parametrize("shards", [None, (20, 16)])
@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_chunks_that_are_cut_are_decoded_once(
    shards: Any, scheduler: str, tmp_path: Path, decodes: list[int]
) -> None:
    save(str(tmp_path / "x.zarr"), shards=shards)
    age(tmp_path)
    x = dc.from_zarr(str(tmp_path / "x.zarr"), chunks=(7, 9))
    for _ in range(2):
        decodes.clear()
        np.testing.assert_array_equal(x.compute(scheduler=scheduler), X)
        indices = sum(n == 4 * 16 + 4 for n in decodes)
        assert len(decodes) - indices == 16
        assert len(decoded.DECODED) == 0


def test_whole_chunks_are_decoded_where_they_are_to_be(path: str, decodes: list[int]) -> None:
    np.testing.assert_array_equal(dc.from_zarr(path, chunks=(20, 16)).compute(), X)
    assert len(decodes) == 16


def test_what_is_decoded_is_forgotten_with_its_file(path: str, decodes: list[int]) -> None:
    x = dc.from_zarr(path, chunks=(7, 9))
    np.testing.assert_array_equal(x[:7].compute(), X[:7])
    assert len(decoded.DECODED) > 0
    zarr.open_array(path, mode="r+")[...] = X + 1
    np.testing.assert_array_equal(x.compute(), X + 1)


def test_memory_of_cells_is_bounded(path: str, monkeypatch: Any, decodes: list[int]) -> None:
    monkeypatch.setattr(decoded.DECODED, "_most", 1000)
    x = dc.from_zarr(path, chunks=(7, 9))
    np.testing.assert_array_equal(x.compute(), X)
    assert decoded.DECODED._nbytes <= 1000
    assert len(decodes) > 16


def test_all_threads_that_wait_for_a_cell_get_its_failure(path: str) -> None:
    file = Path(path) / "c/0/0"
    file.write_bytes(file.read_bytes()[:-3])
    age(file.parent)
    x = dc.from_zarr(path, chunks=(3, 3))
    for _ in range(2):
        with pytest.raises(OSError, match="cannot read the chunk 'c/0/0'"):
            x.compute(scheduler="threads", num_workers=8)
    # Threads that had begun another task of the cell may still be at it when Dask raises.
    until = time.monotonic() + 30
    while any(key[:2] == (path, (0, 0)) for key in list(decoded.DECODED._entries)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_no_file_is_left_open(path: str) -> None:
    import os

    before = len(os.listdir("/proc/self/fd"))
    x = dc.from_zarr(path, chunks=(15, 9))
    x.compute()
    (Path(path) / "c/1/1").write_bytes(b"damaged")
    with pytest.raises(OSError, match="c/1/1"):
        x.compute()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_files_that_cannot_be_read_are_named(path: str) -> None:
    (Path(path) / "c/1/1").unlink()
    (Path(path) / "c/1/1").symlink_to("1")
    with pytest.raises(OSError, match="c/1/1"):
        dc.from_zarr(path).compute()


def test_a_file_that_is_too_large_is_not_read(path: str) -> None:
    with (Path(path) / "c/1/1").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match=r"'c/1/1': 1,099,511,627,776 bytes are stored"):
        dc.from_zarr(path).compute()


@pytest.mark.parametrize("form", [2, 3])
def test_a_group_is_refused_with_the_names_of_its_arrays(form: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    group = zarr.open_group(path, zarr_format=form)
    with pytest.raises(ValueError, match="component= with the name of one of its arrays: it has"):
        dc.from_zarr(path)
    for name in ("t2m", "rain"):
        group.create_array(name, data=X)
    with pytest.raises(ValueError, match=r"component= with the name of .*: rain, t2m$"):
        dc.from_zarr(path)
    np.testing.assert_array_equal(dc.from_zarr(path, component="rain").compute(), X)
    with pytest.raises(FileNotFoundError):
        dc.from_zarr(path, component="snow")


@pytest.mark.parametrize("call", [lambda: dc.from_zarr("x"), lambda: dc.to_zarr([1], "x")])
def test_without_zarr_a_message_names_what_installs_it(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ModuleNotFoundError, match=r'_zarr needs Zarr.*`pip install "zarr>=3.1"`'):
        call()


def test_explain_tells_who_decodes(path: str, tmp_path: Path) -> None:
    x = dc.from_zarr(path)
    row = dc.explain(dc.mean(x))[0]
    assert row.served_by == "dask_coop"
    assert row.method == "16 tasks that read and decode zstd"
    x.compute()
    assert "GB/s a thread" in dc.explain(x)[0].method
    import numcodecs

    other = save(str(tmp_path / "y"), zarr_format=2, compressors=numcodecs.LZMA())
    x = dc.from_zarr(other)
    assert_eq(x, X)
    row = dc.explain(x)[0]
    assert (row.served_by, row.why) == ("Zarr", "the codec 'lzma'")


MEMORY = """
import resource, sys
import dask, numpy as np, zarr
import dask_coop as dc
chunk = 8 << 20
x = dc.from_zarr(sys.argv[1], chunks=eval(sys.argv[2]))
total = dc.sum(dc.from_zarr(sys.argv[3])).compute(scheduler="threads", num_workers=2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ones = tuple((1,) * n for n in x.numblocks)
total = x.map_blocks(lambda b: b[:1, :1].copy(), chunks=ones, dtype=x.dtype)
total.compute(scheduler="threads", num_workers=2)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 / chunk)
"""


@pytest.mark.parametrize("compressor", ["zstd", "gzip"])
def test_memory_is_of_three_chunks_a_thread(compressor: str, tmp_path: Path, path: str) -> None:
    chosen = {
        "none": None,
        "zstd": codecs.ZstdCodec(),
        "gzip": codecs.GzipCodec(level=1),
        "blosc": codecs.BloscCodec(),
    }[compressor]
    array = zarr.create_array(
        tmp_path / "large", shape=(1 << 20, 12), chunks=(1 << 20, 1), dtype="f8", compressors=chosen
    )
    column = RNG.integers(0, 1000, 1 << 20).astype("f8")
    for i in range(12):
        array[:, i] = column
    given = [sys.executable, "-c", MEMORY, str(tmp_path / "large"), "None", path]
    done = subprocess.run(given, capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 2 * 3


def test_every_thread_has_buffers_of_its_own() -> None:
    seen = {}

    def look(name: str) -> None:
        seen[name] = stores.scratch(0, 100)

    threads = [threading.Thread(target=look, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not np.shares_memory(seen["a"], seen["b"])
