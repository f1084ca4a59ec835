"""Arrays of .npz files: what is claimed is looked at first, and only what is asked for is read."""

from __future__ import annotations

import io
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dask_coop.cli.describe import npz
from dask_coop.errors import UserError


def save(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)


def npy(x: Any, **claims: Any) -> bytes:
    buffer = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(x) | claims
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + x.tobytes()


def refused(path: Path, dataset: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        npz.open_npz("x", path, dataset)
    return str(caught.value)


def test_only_what_is_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, small=np.arange(8.0), large=np.zeros(1000), objects=np.array([None]))
    read: list[str] = []
    before = npz._read

    def note(file: Any, info: Any) -> Any:
        read.append(info.filename)
        return before(file, info)

    monkeypatch.setattr(npz, "_read", note)
    (found,) = npz.open_npz("x", path, "small").values()
    np.testing.assert_array_equal(found, np.arange(8.0))
    assert read == ["small.npy"]
    assert "objects.npy holds Python objects" in refused(path)
    assert "one of large, objects, small" in refused(path, "other")
    assert read == ["small.npy"]


def test_memory_is_that_of_what_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, small=np.arange(8.0), large=np.zeros(1 << 26, "u1"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    npz.open_npz("x", path, "small")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 15


def test_what_there_is_no_room_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(100), b=np.zeros(100))
    room = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: room)
    said = refused(path)
    assert "says that it has 1,600 bytes, which would be held in memory; it has" in said
    assert "and 1,000 are available" in said
    assert npz.open_npz("x", path, "a").keys() == {"a"}


@pytest.mark.parametrize("shape", [(10**15,), (9,), (7,), (-8,), (2**40, 2**40)])
def test_headers_agree_with_the_directory(tmp_path: Path, shape: Any) -> None:
    save(tmp_path / "x.npz", a=npy(np.zeros(8), shape=shape))
    assert f"and its header says {shape}" in refused(tmp_path / "x.npz")


def test_a_directory_that_lies_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    claimed = npy(np.zeros(8), shape=(10**6,))
    save(path, a=claimed)
    # The size that the directory gives; it is told twice.
    size, lie = (
        len(claimed).to_bytes(4, "little"),
        (len(claimed) + 8 * 999_992).to_bytes(4, "little"),
    )
    path.write_bytes(path.read_bytes().replace(size, lie))
    assert "cannot read this as .npz" in refused(path)
