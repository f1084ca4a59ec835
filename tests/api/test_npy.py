"""Arrays of .npy files: their chunks are views of a map, and found in the file again."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.threaded
import numpy as np
import pytest
import zarr
from dask.array.utils import assert_eq, same_keys
from dask.core import flatten
from test_planning import run as run_with_planning

import dask_coop as dc
from dask_coop.chunks import files

RNG = np.random.default_rng(29)
CUBE = RNG.normal(size=(40, 30, 20))


def save(path: Path, x: Any = CUBE) -> Path:
    np.save(path, x)
    return path


def places(x: da.Array) -> list[files.Place | None]:
    """Return where the chunks of an array are, as a task behind them sees them."""
    found: list[files.Place | None] = []

    def look(chunk: Any) -> Any:
        place = files.find(chunk)
        if place is not None:
            assert os.pread(place.descriptor, chunk.nbytes, place.offset) == chunk.tobytes()
        found.append(place)
        return chunk.sum(keepdims=True)

    like = np.empty((0,) * x.ndim, x.dtype)
    x.map_blocks(look, dtype=x.dtype, meta=like).compute(scheduler="threads")
    return found


def chunks_of(x: da.Array) -> Any:
    """Compute the chunks of an array and leave them as they are."""
    return dask.threaded.get(dict(x.dask), list(flatten(x.__dask_keys__())))


def maps(path: Path) -> int:
    """Return how many maps of a file this process has."""
    return Path("/proc/self/maps").read_text().count(f" {path}\n")


ARRAYS: dict[str, Any] = {
    "C order": CUBE,
    "Fortran order": np.asfortranarray(CUBE),
    "big-endian": CUBE.astype(">f4"),
    "one axis": np.arange(100, dtype="u2"),
    "no axis": np.array(2.5),
    "no axis, big-endian": np.array(2, ">i2"),
    "no element": np.empty((0, 3), "i4"),
    "no column": np.empty((3, 0)),
    "bool": CUBE > 0,
    "dates": np.arange(50).astype("M8[s]"),
    "text": np.array(["a", "bcd"]),
    "records": np.array([(1, 2.5), (3, 4.5)], "i4,f8"),
    "complex": CUBE + 1j,
}


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_are_those_of_the_file(tmp_path: Path, case: str, version: Any) -> None:
    array = ARRAYS[case]
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version)
    for chunks in ("auto", 7, -1, *([()] if array.ndim == 0 else [])):
        x = dc.from_npy(tmp_path / "x.npy", chunks)
        assert (x.shape, x.dtype) == (array.shape, array.dtype)
        assert type(x._meta) is np.ndarray
        for chunk in chunks_of(x):
            assert type(chunk) is np.ndarray
            assert chunk.dtype == array.dtype
        found = x.compute(scheduler="threads")
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "chunks", [7, (7, 30, -1), ((10, 30), (30,), (5, 15)), {0: 3}, "1 kiB", ("auto", -1, 3), -1]
)
def test_chunks_are_those_of_from_array(tmp_path: Path, chunks: Any) -> None:
    x = dc.from_npy(save(tmp_path / "x.npy"), chunks)
    assert x.chunks == da.from_array(CUBE, chunks).chunks
    assert_eq(x, CUBE)
    # A part is read, not the whole, and what is chosen is a copy.
    assert_eq(x[3:17, ::2, [5, 1]], CUBE[3:17, ::2, [5, 1]])
    with pytest.raises(ValueError, match="Chunks"):
        dc.from_npy(tmp_path / "x.npy", (1, 2))


@pytest.mark.parametrize(
    ("order", "size", "expected"),
    [
        ("C", "64 B", (1, 1, 8)),
        ("C", "1600 B", (1, 10, 20)),
        ("C", "20 kB", (4, 30, 20)),
        ("C", "1 GiB", (40, 30, 20)),
        ("F", "64 B", (8, 1, 1)),
        ("F", "20 kB", (40, 30, 2)),
        ("C", "1 B", (1, 1, 1)),
    ],
)
def test_by_default_chunks_are_contiguous_in_the_file(
    tmp_path: Path, order: Any, size: str, expected: tuple[int, ...]
) -> None:
    save(tmp_path / "x.npy", np.asarray(CUBE, order=order))
    with dask.config.set({"array.chunk-size": size}):
        x = dc.from_npy(tmp_path / "x.npy")
    assert x.chunksize == expected
    if x.npartitions < 99:
        assert None not in places(x if order == "C" else x.T)


def test_names_are_those_of_the_path_the_file_and_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "x.npy")
    x = dc.from_npy(path, 7)
    assert x.name.startswith("from-npy-")
    monkeypatch.chdir(tmp_path)
    assert same_keys(x, dc.from_npy("x.npy", 7))
    assert same_keys(x, dc.from_npy(str(path), (7, 7, 7)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(name_of, (path,)) == x.name
    others = [dc.from_npy(path, 8).name, dc.from_npy(save(tmp_path / "y.npy"), 7).name]
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    others.append(dc.from_npy(path, 7).name)
    assert len({x.name, *others}) == 4


def name_of(path: Path) -> str:
    return str(dc.from_npy(path, 7).name)


def test_what_travels_is_a_path(tmp_path: Path) -> None:
    x = dc.from_npy(save(tmp_path / "x.npy"), 4)
    assert len(pickle.dumps(x)) < 3000
    assert_eq(pickle.loads(pickle.dumps(x)), CUBE)
    total = x.sum().compute(scheduler="processes", num_workers=2)
    assert total == pytest.approx(CUBE.sum())


def test_building_reads_no_elements(tmp_path: Path) -> None:
    shape = (2**20, 2**17)  # 1 TiB, a hole in the file
    np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype="f8", shape=shape).flush()
    x = dc.from_npy(tmp_path / "x.npy")
    assert x.numblocks == (8192, 1)
    assert x[-1, -1].compute(scheduler="synchronous") == 0
    assert maps(tmp_path / "x.npy") == 0


def test_chunks_are_views_of_one_map_that_is_closed_with_them(tmp_path: Path) -> None:
    path = save(tmp_path / "x.npy")
    x = dc.from_npy(path, (10, -1, -1))
    assert maps(path) == 0
    parts = chunks_of(x)
    assert maps(path) == 1
    for part in parts:
        assert type(part) is np.ndarray
        assert not part.flags.writeable
        assert not part.flags.owndata
    np.testing.assert_array_equal(np.concatenate(parts), CUBE)
    assert len({p and p.descriptor for p in map(files.find, parts)}) == 1
    del part, parts
    gc.collect()
    assert maps(path) == 0
    assert os.path.realpath(path) not in {
        os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
    }


SOURCES: dict[str, Callable[[Path], da.Array]] = {
    "from_npy": lambda path: dc.from_npy(path, (10, -1, -1)),
    "some rows": lambda path: dc.from_npy(path, (10, -1, -1))[5:33],
    "reshaped": lambda path: dc.from_npy(path, (10, -1, -1)).reshape(-1),
    "delayed": lambda path: da.from_delayed(
        dask.delayed(np.load)(path, mmap_mode="r"), CUBE.shape, CUBE.dtype
    ),
    "map_blocks": lambda path: da.map_blocks(
        lambda: np.load(path, mmap_mode="r"), chunks=CUBE.shape, dtype=CUBE.dtype
    ),
}


@pytest.mark.parametrize("case", SOURCES)
def test_what_is_behind_a_chunk_sees_the_map(tmp_path: Path, case: str) -> None:
    """Dask's optimiser, which fuses its tasks, makes no copies on the way."""
    found = places(SOURCES[case](save(tmp_path / "x.npy")))
    assert found
    assert None not in found


def test_dask_makes_a_copy_of_a_map(tmp_path: Path) -> None:
    """So from_npy's notes say; the copy is not taken for the file."""
    mapped = np.load(save(tmp_path / "x.npy"), mmap_mode="r")
    x = da.from_array(mapped, (10, -1, -1))
    assert set(places(x)) == {None}
    assert_eq(x, CUBE)


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def rewritten(path: Path) -> None:
    save(path, CUBE + 1)
    later(path)


def replaced(path: Path) -> None:
    save(path.with_name("y.npy"), CUBE[:-1]).replace(path)


def later(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("change", [shorter, rewritten, replaced, later])
def test_a_file_that_has_changed_is_not_read(tmp_path: Path, change: Any, mapped: bool) -> None:
    path = save(tmp_path / "x.npy")
    x = dc.from_npy(path, 10)
    held = chunks_of(x) if mapped else None
    assert maps(path) == mapped
    change(path)
    with pytest.raises(OSError, match=f"{re.escape(str(path))} has changed since .*from_npy again"):
        x.sum().compute(scheduler="threads")
    del held


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    path = save(tmp_path / "x.npy")
    x = dc.from_npy(path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        x.compute(scheduler="synchronous")
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        dc.from_npy(path)


REFUSED: dict[str, tuple[Any, str]] = {
    "text": (lambda path: path.write_text("no array at all"), "magic string is not correct"),
    "nothing": (lambda path: path.touch(), "EOF: reading magic string"),
    "half a header": (lambda path: os.truncate(save(path), 60), "EOF: reading array header"),
    "short": (lambda path: shorter(save(path)), "mmap length is greater than file size"),
    "objects": (lambda path: np.save(path, np.array([None])), "Python objects in dtype"),
    "object fields": (
        lambda path: np.save(path, np.array([(1, None)], "i4,O")),
        "Python objects in dtype",
    ),
    "another version": (
        lambda path: path.write_bytes(b"\x93NUMPY\x09\x00" + bytes(99)),
        "format version",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_mapped_is_refused(tmp_path: Path, case: str) -> None:
    write, words = REFUSED[case]
    path = tmp_path / "x.npy"
    write(path)
    said = f"{re.escape(str(path))}: cannot map this file as .npy: .*{words}"
    with pytest.raises(ValueError, match=said):
        dc.from_npy(path)
    with pytest.raises(IsADirectoryError):
        dc.from_npy(tmp_path)


def test_our_functions_take_them(tmp_path: Path) -> None:
    x = dc.from_npy(save(tmp_path / "x.npy"), 15)
    np.testing.assert_allclose(dc.sum(x, axis=0).compute(), CUBE.sum(0))
    np.testing.assert_allclose(dc.cumsum(x, axis=1).compute(), CUBE.cumsum(1), rtol=1e-12)
    assert_eq(dc.to_host(x), CUBE)


def test_with_query_planning(tmp_path: Path) -> None:
    path = str(save(tmp_path / "x.npy"))
    run_with_planning(f"""
x = dc.from_npy({path!r}, 15)
assert isinstance(x, da.Array)
whole = np.load({path!r})
same(x.compute(), whole)
same((x[3:] + 1).sum().compute(), (whole[3:] + 1).sum())
same(dc.sum(x).compute(), whole.sum())
same(dc.to_host(x).compute(), whole)
""")


@pytest.mark.parametrize("chunks", [(16, 30, 20), (7, 7, 7)])
def test_zarr_is_read_by_the_schedulers_threads(tmp_path: Path, chunks: Any) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=CUBE, chunks=chunks)
    x = da.from_zarr(str(tmp_path / "x.zarr"))
    assert x.chunksize == chunks
    assert set(places(x)) == {None}
    for scheduler in ("threads", "synchronous"):
        np.testing.assert_array_equal(dc.to_host(x).compute(scheduler=scheduler), CUBE)
        total = dc.sum(dc.to_host(x)).compute(scheduler=scheduler)
        assert total == pytest.approx(CUBE.sum())
