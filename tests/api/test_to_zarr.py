"""Arrays written by `to_zarr`: Zarr itself reads the same elements, also after interruptions."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
from dask.delayed import Delayed

import dask_coop as dc
from dask_coop.files.encoding import is_fill
from dask_coop.files.journal import Journal
from dask_coop.files.stores import PARTIAL, LocalFiles
from dask_coop.files.target import StoredTarget, aligned
from dask_coop.graph.files import writing

RNG = np.random.default_rng(42)
SHAPE = 13, 10, 7
CUBE = (RNG.normal(size=SHAPE) * 100).round(1)
#: Chunks along each axis that no regular ones are.
UNEVEN = (3, 1, 6, 3), (4, 6), (7,)

ELEMENTS: dict[str, Any] = {
    "f8": CUBE,
    "f4": CUBE.astype("f4"),
    "f2": CUBE.astype("f2"),
    ">f4": CUBE.astype(">f4"),
    "i2": CUBE.astype("i2"),
    ">i8": CUBE.astype(">i8"),
    "u1": (abs(CUBE) % 200).astype("u1"),
    "bool": CUBE > 0,
    "c16": CUBE + 1j * CUBE[::-1],
    "dates": (CUBE * 10).astype("i8").astype("M8[s]"),
    "times": (CUBE * 10).astype("i8").astype("m8[ns]"),
    "text": (CUBE * 10).astype("i8").astype("U5"),
    "bytes": (CUBE * 10).astype("i8").astype("S6"),
}
V2_CODECS: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"compressors": None},
    "zstd": {"compressors": numcodecs.Zstd(level=3)},
    "lz4": {"compressors": numcodecs.LZ4()},
    "blosc": {"compressors": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.AUTOSHUFFLE)},
    "bits": {"compressors": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.BITSHUFFLE)},
    "zlib": {"compressors": numcodecs.Zlib(2)},
    "gzip": {"compressors": numcodecs.GZip(2)},
    "F": {"order": "F"},
    "shuffle": {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.Zstd()},
}
V3_CODECS: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"compressors": None},
    "zstd": {"compressors": zarr.codecs.ZstdCodec(level=2, checksum=True)},
    "gzip": {"compressors": zarr.codecs.GzipCodec(level=2)},
    "crc32c": {"compressors": zarr.codecs.Crc32cCodec()},
    "zstd, crc32c": {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
    "transpose": {"filters": [zarr.codecs.TransposeCodec(order=(1, 2, 0))]},
    "big": {"serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": None},
    **{
        f"blosc {shuffle}": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle=shuffle)}
        for shuffle in ("noshuffle", "shuffle", "bitshuffle")
    },
}
#: The chunks that are stored, and shards.
LAYOUTS: dict[str, dict[str, Any]] = {
    "those of x": {},
    "small": {"chunks": (4, 3, 5)},
    "large": {"chunks": (20, 4, 7)},
}
SHARDED: dict[str, dict[str, Any]] = {
    "shards": {"chunks": (2, 3, 4), "shards": (6, 6, 8)},
    "one shard": {"chunks": (2, 5, 7), "shards": (14, 10, 7)},
}


def files(path: Path) -> set[str]:
    """Return the names of all files below a folder."""
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def check_is_whole(path: Path, expected: Any) -> None:
    """Check what Zarr reads, and that nothing is left of the writing."""
    stored = zarr.open_array(path, mode="r")[...]
    np.testing.assert_array_equal(stored, expected)
    hidden = {name for name in files(path) if Path(name).name.startswith(".to_zarr")}
    assert not hidden
    assert not any(name.endswith(PARTIAL) for name in files(path))


@pytest.mark.each(2)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("elements", ELEMENTS)
def test_zarr_reads_all_elements(tmp_path: Path, elements: str, zarr_format: int) -> None:
    array = ELEMENTS[elements]
    x = da.from_array(array, chunks=UNEVEN)
    codecs, layouts = (V2_CODECS, LAYOUTS) if zarr_format == 2 else (V3_CODECS, LAYOUTS | SHARDED)
    written = 0
    pairs = [*itertools.product(codecs.items(), layouts.items())]
    # All pairs of one dtype, and for the others every codec and layout in one pair at least.
    for (codec, options), (layout, sizes) in (
        pairs if elements == "f4" else pairs[:: len(layouts) + 1]
    ):
        options = {"zarr_format": zarr_format, "chunks": (6, 6, 7), **options, **sizes}
        name = f"{codec}, {layout}"
        try:
            theirs = zarr.create_array(
                tmp_path / f"{name}, theirs", shape=SHAPE, dtype=array.dtype, **options
            )
            theirs[...] = array
        except (TypeError, ValueError):
            continue
        assert dc.to_zarr(x, tmp_path / name, **options) is None
        check_is_whole(tmp_path / name, theirs[...])
        assert files(tmp_path / name) == files(tmp_path / f"{name}, theirs"), name
        target = StoredTarget(zarr.open_array(tmp_path / name), (0, 0, 0), None, False)
        assert not target.why_not
        written += 1
    assert written >= len(codecs) / 2


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize(
    "filters",
    [
        [numcodecs.Delta(dtype="f8")],
        [numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="f8", astype="i4")],
        [
            numcodecs.FixedScaleOffset(offset=1, scale=10, dtype="f8", astype="i4"),
            numcodecs.Delta(dtype="i4"),
        ],
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_filters_are_zarrs(tmp_path: Path, filters: list[Any], order: str) -> None:
    options = {"filters": filters, "order": order, "zarr_format": 2, "chunks": (4, 10, 5)}
    expected = zarr.create_array(tmp_path / "theirs", shape=SHAPE, dtype="f8", **options)
    expected[...] = CUBE
    dc.to_zarr(da.from_array(CUBE, chunks=UNEVEN), tmp_path / "ours", **options)
    check_is_whole(tmp_path / "ours", expected[...])


CHUNKS = [
    (13, 10, 7),
    (1, 10, 7),
    (5, 4, 3),
    UNEVEN,
    ((1, 12), (9, 1), (3, 4)),
]


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("sizes", [*LAYOUTS.values(), *SHARDED.values()])
def test_no_two_tasks_write_an_object(
    tmp_path: Path, chunks: Any, sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    write = LocalFiles.write

    def noted(self: LocalFiles, key: str, *args: Any, **kwargs: Any) -> None:
        keys.append(key)
        write(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalFiles, "write", noted)
    dc.to_zarr(da.from_array(CUBE, chunks=chunks), tmp_path / "x", **sizes)
    check_is_whole(tmp_path / "x", CUBE)
    assert sorted(keys) == sorted({*keys})


@pytest.mark.parametrize("lengths", [(0,), (5,), (3, 3, 3), (1, 7, 2, 30), (0, 4, 0, 9), (64, 1)])
@pytest.mark.parametrize("begin", [0, 1, 6, 13])
@pytest.mark.parametrize("unit", [1, 3, 7, 50])
def test_aligned_chunks_end_with_objects(lengths: Any, begin: int, unit: int) -> None:
    (found,) = aligned((lengths,), (begin,), (unit,))
    assert sum(found) == sum(lengths)
    ends = np.cumsum(found)[:-1] + begin
    assert not (ends % unit).any()
    # Rechunking takes no more memory than chunks or objects of this size do.
    assert max(found) <= max(*lengths, unit)


SHAPES = [(), (0,), (1,), (3, 0), (5,), (2, 3, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_shapes(tmp_path: Path, shape: tuple[int, ...], zarr_format: int) -> None:
    array = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    x = da.from_array(array, chunks=2)
    dc.to_zarr(x, tmp_path / "x", zarr_format=zarr_format)
    check_is_whole(tmp_path / "x", array)
    stored = dc.to_zarr(x, tmp_path / "y", compute=False, return_stored=True)
    np.testing.assert_array_equal(stored.compute(), array)


REGIONS = [
    (slice(0, 13), slice(0, 10), slice(0, 7)),
    (slice(4, 17), slice(5, 15), slice(6, 13)),
    (slice(5, 18), slice(9, 19), slice(13, 20)),
]


@pytest.mark.each(2)
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize(
    "sizes",
    [
        {"chunks": (4, 5, 6)},
        {"chunks": (7, 20, 3)},
        {"chunks": (2, 2, 2), "shards": (8, 4, 6)},
        {"chunks": (2, 2, 2), "shards": (20, 20, 20), "compressors": None},
    ],
)
@pytest.mark.parametrize("chunks", [UNEVEN, (5, 5, 5)])
def test_regions(tmp_path: Path, region: Any, sizes: Any, chunks: Any) -> None:
    z = zarr.create_array(tmp_path / "x", shape=(20, 20, 20), dtype="f4", fill_value=-1, **sizes)
    expected = RNG.normal(size=z.shape).astype("f4")
    z[...] = expected
    dc.to_zarr(da.from_array(CUBE, chunks=chunks), z, region=region)
    expected[region] = CUBE
    check_is_whole(tmp_path / "x", expected)
    x = da.from_array(CUBE, chunks=chunks)
    back = dc.to_zarr(x, z, region=region, return_stored=True)
    np.testing.assert_array_equal(back.compute(), CUBE.astype("f4"))
    lazy = dc.to_zarr(x + 1, z, region=region, return_stored=True, compute=False)
    np.testing.assert_array_equal(lazy.compute(), (CUBE + 1).astype("f4"))


def test_a_whole_array_that_is_there_is_written(tmp_path: Path) -> None:
    z = zarr.create_array(tmp_path / "x", shape=SHAPE, dtype="f4", chunks=(5, 5, 5))
    z[...] = 3
    dc.to_zarr(da.from_array(CUBE, chunks=UNEVEN), z)
    check_is_whole(tmp_path / "x", CUBE.astype("f4"))
    # Chunks of the fill value are removed.
    dc.to_zarr(da.zeros(SHAPE, chunks=UNEVEN), z)
    assert files(tmp_path / "x") == {"zarr.json"}


@pytest.mark.parametrize("fill", [0.0, -0.0, np.nan, 7.0])
@pytest.mark.parametrize("sizes", [{"chunks": (2,)}, {"chunks": (2,), "shards": (4,)}])
@pytest.mark.parametrize("keeps", [False, True])
def test_chunks_of_the_fill_value_are_left_out_as_by_zarr(
    tmp_path: Path, fill: float, sizes: Any, keeps: bool
) -> None:
    array = np.array([0.0, -0.0, 0, 0, -0.0, -0.0, np.nan, np.nan, 7, 7, 7, 7, 7])
    with zarr.config.set({"array.write_empty_chunks": keeps}):
        theirs = zarr.create_array(
            tmp_path / "theirs", shape=array.shape, dtype="f8", fill_value=fill, **sizes
        )
        theirs[...] = array
        dc.to_zarr(da.from_array(array, chunks=3), tmp_path / "x", fill_value=fill, **sizes)
    assert files(tmp_path / "x") == files(tmp_path / "theirs")
    stored = zarr.open_array(tmp_path / "x")[...]
    np.testing.assert_array_equal(stored.view("i8"), array.view("i8"))


def test_fill_values_are_compared_bit_by_bit() -> None:
    for dtype in ("f2", "f4", ">f8", "c8", ">c16"):
        zeros = np.zeros((2, 3), dtype)
        assert is_fill(zeros, zeros.dtype.type(0))
        assert is_fill(zeros.T, zeros.dtype.type(0))
        assert not is_fill(-zeros, zeros.dtype.type(0))
        assert is_fill(zeros + np.nan, zeros.dtype.type(np.nan))
        assert not is_fill(zeros, zeros.dtype.type(np.nan))
    assert is_fill(np.full(3, np.datetime64("NaT", "s")), np.datetime64("NaT", "s"))
    assert is_fill(np.array(["", ""]), "")
    assert not is_fill(np.array([0, 1, 0]), 0)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_schedulers(tmp_path: Path, scheduler: str) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN) + 1
    with dask.config.set(scheduler=scheduler):
        dc.to_zarr(x, tmp_path / "x", fsync=True, chunks=(2, 3, 4), shards=(6, 6, 8))
    check_is_whole(tmp_path / "x", CUBE + 1)


def test_a_cluster_writes(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    x = da.from_array(CUBE, chunks=UNEVEN) + 1
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        dc.to_zarr(x, tmp_path / "x")
        check_is_whole(tmp_path / "x", CUBE + 1)
        # Another call writes again, although a result of the first one may be around.
        lazy = dc.to_zarr(x, tmp_path / "x", mode="w", compute=False).persist()
        lazy.compute()
        again = dc.to_zarr(x, tmp_path / "x", mode="w", compute=False).persist()
        again.compute()
        check_is_whole(tmp_path / "x", CUBE + 1)
        stored = dc.to_zarr(x, tmp_path / "y", compute=False, return_stored=True)
        np.testing.assert_array_equal(stored.compute(), CUBE + 1)
        with pytest.raises(RuntimeError, match="other processes"):
            dc.to_zarr(x, zarr.storage.MemoryStore())
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(RuntimeError, match="other processes"),
    ):
        dc.to_zarr(x, zarr.storage.MemoryStore())


def fail(*_: Any, **__: Any) -> Any:
    raise AssertionError("computed")


def test_building_computes_nothing(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN).map_blocks(fail, dtype="f8", meta=np.empty((0, 0, 0)))
    with dask.config.set(scheduler=fail):
        lazy = dc.to_zarr(x, tmp_path / "x", compute=False)
        stored = dc.to_zarr(x, tmp_path / "y", compute=False, return_stored=True)
    assert isinstance(lazy, Delayed)
    assert isinstance(stored, da.Array)
    assert stored.shape == SHAPE
    # The metadata are there.
    assert zarr.open_array(tmp_path / "x").shape == SHAPE


def test_a_chunk_is_one_task_and_what_waits_has_few_inputs(tmp_path: Path) -> None:
    x = da.zeros(40_000, chunks=20) + 1
    lazy = dc.to_zarr(x, tmp_path / "x", compute=False)
    graph = dict(lazy.__dask_graph__())
    assert len(graph) <= 2000 + 2000 / 100 + 2
    assert max(len(task.dependencies) for task in graph.values()) <= writing._FAN_IN


# Interruptions.


def once_broken(path: Path, chunk: Any, block_info: Any = None) -> Any:
    """Note that a block is computed; raise for one of them while a file is there."""
    at = block_info[0]["chunk-location"]
    with (path / "computed").open("a") as file:
        file.write(f"{at}\n")
    if (path / "broken").exists() and at == (3, 0, 0):
        raise RuntimeError("broken")
    return chunk * 2


def breaking(path: Path, chunks: Any = (3, 10, 7)) -> Any:
    return da.from_array(CUBE, chunks=chunks).map_blocks(
        lambda chunk, block_info=None: once_broken(path, chunk, block_info),
        dtype="f8",
        meta=np.empty((0, 0, 0)),
        name="breaking" + str(chunks),
    )


def computed(path: Path) -> list[str]:
    lines = (path / "computed").read_text().splitlines()
    (path / "computed").unlink()
    return lines


def interrupted(path: Path, **options: Any) -> Path:
    """Return the folder of an array of which one task has raised."""
    (path / "broken").touch()
    with dask.config.set(scheduler="synchronous"), pytest.raises(RuntimeError, match="broken"):
        dc.to_zarr(breaking(path), path / "x", **options)
    (path / "broken").unlink()
    computed(path)
    return path / "x"


OPTIONS = [
    {},
    {"compressors": None},
    {"chunks": (1, 5, 7), "shards": (3, 10, 7)},
    {"filters": [zarr.codecs.TransposeCodec(order=(1, 2, 0))], "fill_value": 3},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_an_interrupted_call_is_resumed(tmp_path: Path, options: Any) -> None:
    path = interrupted(tmp_path, **options)
    assert (path / ".to_zarr.json").exists()
    before = {name: (path / name).stat().st_mtime_ns for name in files(path) if "done" not in name}
    assert len(before) > 2
    lazy = dc.to_zarr(breaking(tmp_path), path, resume=True, compute=False, **options)
    lazy.compute(scheduler="synchronous")
    check_is_whole(path, CUBE * 2)
    left = computed(tmp_path)
    assert len(left) < 5
    assert "(3, 0, 0)" in left
    # Finished chunks did not change.
    for name in before.keys() - {".to_zarr.json"}:
        assert (path / name).stat().st_mtime_ns == before[name]


def test_chunks_of_the_fill_value_are_not_computed_again(tmp_path: Path) -> None:
    x = da.zeros((13, 10, 7), chunks=(3, 10, 7))
    first = dc.to_zarr(x, tmp_path / "x", compute=False)
    # All but the last task.
    graph = dict(first.__dask_graph__())
    tasks = [key for key, task in graph.items() if "write" in str(key)]
    dask.get(graph, tasks)
    again = dc.to_zarr(x, tmp_path / "x", compute=False, resume=True)
    assert len(dict(again.__dask_graph__())) == 1
    again.compute()
    check_is_whole(tmp_path / "x", np.zeros(SHAPE))


def test_who_resumes_has_the_same_array(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    same = breaking(tmp_path)
    with pytest.raises(ValueError, match="resume=True writes what is missing"):
        dc.to_zarr(same, path)
    for other, options in (
        (same + 1, {}),
        (breaking(tmp_path, (4, 10, 7)), {}),
        (same, {"fill_value": 1}),
        (same, {"compressors": None}),
        (same, {"attributes": {"units": "m"}}),
    ):
        for resume in (False, True):
            with pytest.raises(ValueError, match=r"another array.* remove .*\.to_zarr\.json"):
                dc.to_zarr(other, path, resume=resume, **options)
    dc.to_zarr(same + 1, path, mode="w")
    check_is_whole(path, CUBE * 2 + 1)


def test_what_nobody_left_is_not_resumed(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN)
    dc.to_zarr(x, tmp_path / "x", resume=True)
    check_is_whole(tmp_path / "x", CUBE)
    for options in ({"resume": True}, {}, {"mode": "w-"}):
        with pytest.raises(ValueError, match="no interrupted call"):
            dc.to_zarr(x, tmp_path / "x", **options)
    with pytest.raises(ValueError, match="local folder"):
        dc.to_zarr(x, zarr.storage.MemoryStore(), resume=True)


def test_regions_are_resumed_each_for_itself(tmp_path: Path) -> None:
    z = zarr.create_array(tmp_path / "x", shape=(40, 10, 7), dtype="f8", chunks=(3, 10, 7))
    z[...] = 9
    (tmp_path / "broken").touch()
    first, second = (slice(0, 13), slice(15, 28))
    with dask.config.set(scheduler="synchronous"), pytest.raises(RuntimeError, match="broken"):
        dc.to_zarr(breaking(tmp_path), z, region=(first,))
    (tmp_path / "broken").unlink()
    assert "(3, 0, 0)" in computed(tmp_path)
    dc.to_zarr(da.from_array(CUBE, chunks=UNEVEN), z, region=(second,))
    with pytest.raises(ValueError, match="another array"):
        dc.to_zarr(da.from_array(CUBE, chunks=UNEVEN), z, region=(first,))
    dc.to_zarr(breaking(tmp_path), z, region=(first,), resume=True)
    assert len(computed(tmp_path)) < 5
    expected = np.full(z.shape, 9.0)
    expected[first], expected[second] = CUBE * 2, CUBE
    check_is_whole(tmp_path / "x", expected)


def test_lines_that_were_cut_do_not_count(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "", "token")
    journal.begin()
    for start in ((0, 3), (12, 0), ()):
        journal.add(start)
    (path,) = tmp_path.glob("*.done")
    with path.open("a") as file:
        file.write("\n12,3")
    journal.add((7,))
    with path.open("a") as file:
        file.write("\n1")
    assert journal.go_on() == {(0, 3), (12, 0), (), (7,)}
    assert Journal(str(tmp_path), "0-3", "token").go_on() == set()
    journal.end()
    assert not [*tmp_path.iterdir()]


KILLED = """
import os, sys, time
import dask, dask.array as da, numpy as np
import dask_coop as dc

def slow(block):
    time.sleep(0.02)
    return block * 2

if __name__ == "__main__":
    x = da.from_array(np.load(sys.argv[1]), chunks=(1, 2, 7)).map_blocks(
        slow, dtype="f8", meta=np.empty((0, 0, 0)), name="slow"
    )
    with dask.config.set(num_workers=2):
        dc.to_zarr(x, sys.argv[2], resume=True, chunks=(1, 1, 3), shards=(1, 2, 9))
"""


def test_a_killed_process_leaves_whole_chunks_and_is_resumed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", CUBE)
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, "killed.py", "x.npy", "x"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    path = tmp_path / "x"
    deadline = time.monotonic() + 120
    while len([*path.glob("c/*/*/*")]) < 10:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # Everything under a final name is whole: Zarr reads each chunk, or finds none.
    stored = zarr.open_array(path, mode="r")[...]
    assert ((stored == CUBE * 2) | (stored == 0)).all()
    done = {name for name in files(path) if name.startswith("c/")}
    times = {name: (path / name).stat().st_mtime_ns for name in done}
    # An interrupted writer leaves this file.
    host = os.uname().nodename.replace(".", "_")
    (path / "c" / f".5.{host}-{process.pid}.0{PARTIAL}").touch()
    mine = path / "c" / f".5.{host}-{os.getpid()}.0{PARTIAL}"
    mine.touch()
    subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    # A living process may be writing it.
    mine.unlink()
    check_is_whole(path, CUBE * 2)
    kept = sum((path / name).stat().st_mtime_ns == times[name] for name in done)
    # All but those whose lines were not written yet.
    assert kept >= len(done) - 2


def test_two_writers_of_the_same_array(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=(1, 5, 7))
    first = dc.to_zarr(x, tmp_path / "x", compute=False)
    second = dc.to_zarr(x, tmp_path / "x", compute=False, resume=True)
    seen: list[Any] = []

    def read() -> None:
        while len(seen) < 200:
            seen.append(zarr.open_array(tmp_path / "x", mode="r")[...])

    threads = [threading.Thread(target=lazy.compute) for lazy in (first, second)]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_is_whole(tmp_path / "x", CUBE)
    assert all(((found == CUBE) | (found == 0)).all() for found in seen)


def test_a_failing_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    local = LocalFiles(str(tmp_path))
    with pytest.raises(OSError, match="No space"):
        local.write("c/0", [b"a"], sync=False)
    assert files(tmp_path) == set()
    monkeypatch.undo()
    local.write("c/0", [b"ab", np.arange(3, dtype="u1")], sync=True)
    assert (tmp_path / "c" / "0").read_bytes() == b"ab\0\1\2"
    local.delete("c/0")
    local.delete("c/0")
    local.delete("c/0/1")


# What Zarr writes.


def test_other_stores_and_codecs_are_left_to_zarr(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN)
    store = zarr.storage.MemoryStore()
    lazy = dc.to_zarr(x, store, component="a/b", chunks=(4, 3, 5), compute=False)
    assert "Zarr" in str(dc.explain(lazy))
    assert "no local folder: MemoryStore" in str(dc.explain(lazy))
    lazy.compute()
    np.testing.assert_array_equal(zarr.open_array(store, path="a/b")[...], CUBE)
    options: dict[str, Any] = {"zarr_format": 2, "compressors": numcodecs.BZ2()}
    lazy = dc.to_zarr(x, tmp_path / "x", compute=False, **options)
    assert "the codec 'bz2'" in str(dc.explain(lazy))
    lazy.compute()
    check_is_whole(tmp_path / "x", CUBE)
    lazy = dc.to_zarr(x, tmp_path / "y", compute=False)
    assert "encode zstd and write" in str(dc.explain(lazy))
    records = np.array([(1, 2.5), (3, 4.5)], "i4,f8")
    dc.to_zarr(da.from_array(records, chunks=1), tmp_path / "z", zarr_format=2)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "z")[...], records)


def test_zarrs_tasks_are_resumed_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"zarr_format": 2, "compressors": numcodecs.BZ2()}
    path = interrupted(tmp_path, **options)
    dc.to_zarr(breaking(tmp_path), path, resume=True, **options)
    assert len(computed(tmp_path)) < 5
    check_is_whole(path, CUBE * 2)


def test_urls_and_components(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN)
    dc.to_zarr(x, f"file://{tmp_path}/x", component="deep/x")
    check_is_whole(tmp_path / "x" / "deep" / "x", CUBE)
    dc.to_zarr(x, str(tmp_path / "x"), component="deep/y", attributes={"units": "m"})
    group = zarr.open_group(tmp_path / "x", mode="r")
    assert set(group["deep"]) == {"x", "y"}
    assert group["deep/y"].attrs["units"] == "m"
    dc.to_zarr(x, str(tmp_path / "x"), name="z")
    check_is_whole(tmp_path / "x" / "z", CUBE)
    dc.to_zarr(x, "memory://there/x", storage_options={})
    np.testing.assert_array_equal(zarr.open_array("memory://there/x", mode="r")[...], CUBE)


def test_arguments(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN)
    z = zarr.create_array(tmp_path / "z", shape=(20, 20, 20), dtype="f8")
    unknown = x[x > 0]
    for call, message in (
        (lambda: dc.to_zarr(unknown, tmp_path / "x"), "must be known"),
        (lambda: dc.to_zarr(x, tmp_path / "x", mode="r"), "mode must be"),
        (lambda: dc.to_zarr(x, tmp_path / "x", region=(slice(0, 1),)), "zarr.Array"),
        (lambda: dc.to_zarr(x, tmp_path / "x", component="a", name="b"), "component and name"),
        (lambda: dc.to_zarr(x, tmp_path / "x", shape=(1, 2, 3)), "shape must be that of x"),
        (lambda: dc.to_zarr(x, z), "region of"),
        (lambda: dc.to_zarr(x, z, region=(slice(0, 20, 2),)), "steps of 1"),
        (lambda: dc.to_zarr(x, z, region=(3,)), "steps of 1"),
        (lambda: dc.to_zarr(x, zarr.open_array(tmp_path / "z", mode="r")), "reading only"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    assert files(tmp_path) == {"z/zarr.json"}
    with pytest.raises(TypeError, match="MaskedArray"):
        dc.to_zarr(da.ma.masked_equal(x, 0), tmp_path / "x")


def test_chunks_of_another_dtype_are_converted(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN).map_blocks(np.round, dtype="f4")
    dc.to_zarr(x, tmp_path / "x")
    check_is_whole(tmp_path / "x", CUBE.round().astype("f4"))
    dc.to_zarr(x, tmp_path / "y", dtype="i2")
    check_is_whole(tmp_path / "y", CUBE.round().astype("i2"))


def test_xarrays_arrays_are_written_by_their_data(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    labelled = xarray.DataArray(da.from_array(CUBE, chunks=UNEVEN), dims=("t", "y", "x"))
    assert dc.to_zarr(labelled, tmp_path / "x") is None
    check_is_whole(tmp_path / "x", CUBE)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    x = da.from_array(CUBE, chunks=UNEVEN)
    back = dc.to_zarr(x, tmp_path / "x", return_stored=True)
    np.testing.assert_array_equal(back.compute(), CUBE)
    np.testing.assert_array_equal(da.from_zarr(str(tmp_path / "x")).compute(), CUBE)


@pytest.mark.gpu
def test_cupy_chunks_are_copied_to_the_host(tmp_path: Path) -> None:
    x = dc.to_gpu(da.from_array(CUBE, chunks=UNEVEN))
    dc.to_zarr(x * 2, tmp_path / "x", chunks=(2, 3, 4), shards=(6, 6, 8))
    check_is_whole(tmp_path / "x", CUBE * 2)
