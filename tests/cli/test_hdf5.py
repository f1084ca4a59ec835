"""HDF5 is read by another process: what ends it is one message, and the next is read again."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from support.at_once import at_once

from dask_coop.cli.describe import hdf5
from dask_coop.cli.describe.readers import open_source
from dask_coop.errors import UserError

h5py = pytest.importorskip("h5py")

ENDINGS = {
    "import os; os.abort()": r"HDF5 crashed on it \(SIGABRT\); the file is damaged",
    "import time; time.sleep(100)": "HDF5 has not answered in 1 s; the file is damaged, or",
    "exit(3)": "the process that reads HDF5 has ended with status 3; see that",
    'print(\'{"shape": [9], "dtype": "<f8"}\', flush=True); input()': "has changed since",
    'while True:\n print(\'{"error": "no such thing"}\', flush=True)\n input()': "no such thing",
    "print('{\"shape\": [', flush=True)": "has ended with status",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_ends_the_reader_is_one_message(tmp_path: Path, ending: str) -> None:
    (tmp_path / "script.py").write_text(f"input()\n{ending}\n")
    reader = hdf5._Reader(tmp_path / "script.py")
    for _ in range(2):
        with pytest.raises(OSError, match=ENDINGS[ending]):
            reader.ask("read", 1 if "sleep" in ending else 60, np.zeros(8))
    reader.stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = np.arange(600).reshape(20, 30)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(7, 11), compression="gzip")
    return tmp_path / "x.h5"


def test_parts_are_those_of_the_array(path: Path) -> None:
    x, values = open_source(str(path), chunks=8).array, np.arange(600).reshape(20, 30)
    for index in (
        (slice(None),),
        (slice(3, 17, 5), slice(None, None, -3)),
        (4, slice(2, 9)),
        (slice(5, 5), slice(None)),
        (-1, -1),
        ([3, 1, 19],),
    ):
        found = x[index].compute(scheduler="threads")
        np.testing.assert_array_equal(found, values[index])


def test_the_reader_comes_again_after_it_was_killed(path: Path) -> None:
    x = open_source(str(path)).array
    process = hdf5._reader()._process
    assert process is not None
    process.kill()
    process.wait()
    assert x.sum().compute(scheduler="synchronous") == np.arange(600).sum()


def test_threads_get_their_own_answers(path: Path) -> None:
    x = open_source(str(path)).array

    def ask(row: int) -> None:
        for _ in range(5):
            assert x[row, 3].compute(scheduler="synchronous") == 30 * row + 3

    at_once(ask, range(8))


def test_links_in_circles_are_one_message(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/x"] = [1, 2]
        file["group/self"] = file["group"]
        file["group/soft"] = h5py.SoftLink("/group/soft")
        file["outside"] = h5py.ExternalLink("x.h5", "/outside")
    assert open_source(str(tmp_path / "x.h5")).name == "x.h5/group/x"
    for name in ("group/soft", "outside", "group/self/x", "group/self"):
        with pytest.raises(UserError, match=f"there is no dataset {name}; give --dataset NAME"):
            open_source(str(tmp_path / "x.h5"), name)


def test_a_damaged_chunk_is_one_message(path: Path) -> None:
    whole = path.read_bytes()
    x = open_source(str(path)).array
    # What gzip begins with.
    path.write_bytes(whole.replace(b"\x78\x5e", b"\xff\xff"))
    with pytest.raises(OSError, match="filter returned failure"):
        x.compute(scheduler="synchronous")


def test_an_array_that_needs_more_memory_than_it_claims_is_one_message(path: Path) -> None:
    # HDF5 unpacks as much as comes: this is a chunk that claims 616 bytes, and has a gigabyte.
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    some = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (20, 30), "i8", chunks=(7, 11), compression="gzip")
        x.id.write_direct_chunk((0, 0), b"\x78\x9c" + some * 1024)
    x = open_source(str(path)).array
    process = hdf5._reader()._process
    assert process is not None
    with pytest.raises(OSError, match="Can't synchronously read"):
        x.compute(scheduler="synchronous")
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        (peak,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        assert int(peak.split()[1]) < 700 << 10
