"""Chunks that are maps of files, or of Zarr on a GPU, on their way there."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from test_mapped_files import has_direct

import dask_coop as dc

RNG = np.random.default_rng(31)
#: Chunks of it are large enough for pinned buffers.
CUBE = RNG.normal(size=(40, 300, 200))


@pytest.fixture
def backend() -> ModuleType:
    """Return the backend, which is imported wherever CuPy is installed, with a GPU or not."""
    pytest.importorskip("cupy")
    from dask_coop.chunks.cupy import backend

    return backend


@pytest.fixture
def sent(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Any]]:
    """Return a list of what would be copied to the GPU, by how many bytes, and the file."""
    calls: list[tuple[Any, Any, Any]] = []

    def to_device(x: Any, nbytes: Any = None, file: Any = None) -> Any:
        calls.append((x, nbytes, file))
        return x

    monkeypatch.setattr(backend, "to_device", to_device)
    return calls


def assert_sent(sent: list[tuple[Any, Any, Any]], x: Any) -> Any:
    (given, nbytes, file) = sent.pop()
    assert nbytes == 99
    if file is not None:
        assert given.flags.c_contiguous
        # Anew, for reads by O_DIRECT would have to be aligned.
        with open(f"/proc/self/fd/{file.descriptor}", "rb") as again:
            again.seek(file.offset)
            assert again.read(given.nbytes) == given.tobytes()
    return file


def test_the_file_of_a_map_is_handed_on(
    backend: ModuleType, sent: list[tuple[Any, Any, Any]], tmp_path: Path
) -> None:
    for order in ("C", "F"):
        np.save(tmp_path / "x.npy", np.asarray(CUBE, order=order))
        x = np.load(tmp_path / "x.npy", mmap_mode="r")
        part = x[7:29] if order == "C" else x[..., 7:129]
        for direct in (False, True, "auto"):
            result = backend.from_numpy(part, 99, direct)
            np.testing.assert_array_equal(result, part)
            file = assert_sent(sent, part)
            assert file is not None
            assert file.direct in {False, direct}


def test_others_go_without(
    backend: ModuleType, sent: list[tuple[Any, Any, Any]], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", CUBE.astype(">f8"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    small = np.memmap(tmp_path / "x.npy", "f8", "r", 128)[:99]
    for x in (CUBE, mapped, mapped[:, ::2], small, np.asfortranarray(CUBE), np.float64(2)):
        np.testing.assert_array_equal(backend.from_numpy(x, 99), x)
        assert assert_sent(sent, x) is None


def test_a_file_that_cannot_be_read_is_named(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def to_device(x: Any, nbytes: Any = None, file: Any = None) -> Any:
        raise OSError(errno.EIO, "cannot read it")

    monkeypatch.setattr(backend, "to_device", to_device)
    np.save(tmp_path / "x.npy", CUBE)
    with pytest.raises(OSError, match=r"x\.npy: .*cannot read it") as caught:
        backend.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert caught.value.errno == errno.EIO


@pytest.mark.gpu
@pytest.mark.parametrize("direct", [False, True, "auto"])
@pytest.mark.parametrize("case", ["C", "F", "big-endian", "columns"])
def test_chunks_of_files_arrive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str, direct: Any
) -> None:
    import cupy

    from dask_coop.chunks.cupy import backend

    files: list[Any] = []
    real = backend.to_device

    def to_device(x: Any, nbytes: Any = None, file: Any = None) -> Any:
        files.append(file)
        return real(x, nbytes, file)

    monkeypatch.setattr(backend, "to_device", to_device)
    host = CUBE.astype(">f8") if case == "big-endian" else CUBE
    np.save(tmp_path / "x.npy", np.asarray(host, order="F" if case == "F" else "C"))
    sizes = {"F": (-1, -1, 60), "columns": (-1, -1, 90)}.get(case, (11, -1, -1))
    with dask.config.set({"coop.transfer.direct": direct}):
        x = dc.to_gpu(dc.from_npy(tmp_path / "x.npy", sizes))
    assert isinstance(x._meta, cupy.ndarray)
    found = x.compute(scheduler="threads")
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_array_equal(cupy.asnumpy(found), CUBE)
    large = [file for file in files if file is not None]
    assert bool(large) == (case in "CF")
    if isinstance(direct, bool) and has_direct(tmp_path / "x.npy"):
        assert {file.direct for file in large} <= {direct}
    np.testing.assert_allclose(dc.sum(x).compute().item(), CUBE.sum(), rtol=1e-12)


@pytest.fixture
def gpu_store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return what opens a folder for Zarr on a GPU."""
    if request.param == "kvikio":
        yield pytest.importorskip("kvikio.zarr").GDSStore
    else:
        yield zarr.storage.LocalStore


@pytest.mark.gpu
@pytest.mark.parametrize("gpu_store", ["zarr", "kvikio"], indirect=True)
@pytest.mark.parametrize("known", [False, True])
def test_zarr_on_a_gpu_stays_there(gpu_store: Any, tmp_path: Path, known: bool) -> None:
    """Whether Dask knows of what kind its chunks are, or takes them for NumPy's."""
    import cupy

    folder = tmp_path / "x.zarr"
    zarr.create_array(folder, data=CUBE, chunks=(16, 300, 200), compressors=None)
    with zarr.config.enable_gpu() if known else nullcontext():
        x = da.from_zarr(zarr.open_array(store=gpu_store(folder), mode="r"))
    if not known:
        assert type(x._meta) is np.ndarray
    with zarr.config.enable_gpu():
        there = dc.to_gpu(x)
        assert isinstance(there._meta, cupy.ndarray)
        found = there.compute(scheduler="threads")
        assert isinstance(found, cupy.ndarray)
        np.testing.assert_array_equal(cupy.asnumpy(found), CUBE)
        here = dc.to_host(x).compute(scheduler="threads")
        assert type(here) is np.ndarray
        np.testing.assert_array_equal(here, CUBE)
        total = dc.sum(there).compute(scheduler="threads")
        np.testing.assert_allclose(cupy.asnumpy(total), CUBE.sum(), rtol=1e-12)


@pytest.mark.gpu
def test_zarr_on_the_host_goes_there_and_back(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=CUBE, chunks=(16, 300, 90))
    x = dc.to_gpu(da.from_zarr(str(tmp_path / "x.zarr")))
    np.testing.assert_array_equal(dc.to_host(x).compute(scheduler="threads"), CUBE)
