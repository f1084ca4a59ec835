"""A short share of the damaged files; and that it is seen how they end."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_coop.cli.describe import readers
from dask_coop.errors import UserError
from fuzz import mutants

NEEDS = {
    "zarr": "zarr",
    "frames": "zarr",
    "hdf5": "h5py",
    "netcdf4": "h5py",
    "netcdf3": "scipy",
    "csv": "pandas",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", mutants.KINDS)
def test_damaged_files_end_in_an_array_or_a_message(kind: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(kind, "skimage"), exc_type=ImportError)
    found = mutants.Mutants(kind, 0, tmp_path)
    whole = {path: path.read_bytes() for path in found.seeds if path.is_file()}
    failures = [failure for i in range(12) if (failure := found.judge(i)) is not None]
    # Pillow leaves files to the collector, which warns of them: here nobody minds.
    gc.collect()
    assert not failures, "\n\n".join(map(str, failures))
    # The same again, and nothing is left.
    assert all(path.read_bytes() == data for path, data in whole.items())
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_mutants_are_damaged_and_the_same_every_time(tmp_path: Path) -> None:
    first, second = (mutants.Mutants("npy", 0, tmp_path / name) for name in "ab")
    written = [[each.write(i).read_bytes() for i in range(50)] for each in (first, second)]
    assert written[0] == written[1]
    whole = [path.read_bytes() for path in first.seeds]
    assert sum(data in whole for data in written[0]) < 10
    # Some are read and some are refused: else nothing would be tried.
    ends = set()
    for data in written[0]:
        (tmp_path / "x.npy").write_bytes(data)
        try:
            readers.open_source(str(tmp_path / "x.npy")).array.compute(scheduler="synchronous")
            ends.add("array")
        except UserError:
            ends.add("message")
    assert ends == {"array", "message"}


def test_a_traceback_and_memory_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mutants.Mutants("npy", 0, tmp_path)

    def fail(*_: Any) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(mutants, "read", fail)
    failure = found.judge(0)
    assert failure is not None
    assert "KeyError: 'a fault of ours'" in str(failure)
    assert "python -m fuzz.mutants npy 0 0" in str(failure)
    monkeypatch.setattr(mutants, "read", lambda path, claimed: None)
    peaks = itertools.count(0, mutants.ROOM_BYTES + 1)
    monkeypatch.setattr(mutants, "_peak", lambda: next(peaks))
    failure = found.judge(0)
    assert failure is not None
    assert "bytes of memory, 0 claimed a chunk" in failure.what


SCRIPT = """import os, signal, sys, time
from fuzz import mutants
def read(path, claimed):
    count.append(path)
    if len(count) > 3 and "0" not in sys.argv[3]:
        time.sleep(60)
    if len(count) > 3:
        os.kill(os.getpid(), signal.SIGSEGV)
count, mutants.SECONDS, mutants.read = [], 1, read
mutants.worker(*sys.argv[1:2], *map(int, sys.argv[2:5]), sys.argv[5])
"""


def test_crashes_and_loops_are_seen_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seeds are read first; the first mutant crashes, and the next, in a process, sleeps."""
    (tmp_path / "script.py").write_text(SCRIPT)
    before = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return before([sys.executable, str(tmp_path / "script.py"), *command[4:]], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    root = Path(mutants.__file__).parents[2]
    path = [str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    failures: list[mutants.Failure] = []
    mutants.run("npy", 0, 2, failures.append)
    assert [each.index for each in failures] == [0, 1]
    assert "the process ended with -11" in failures[0].what
    assert "more than 1 s" in failures[1].what
    assert "time.sleep(60)" in failures[1].what


def test_json_is_damaged_in_one_place() -> None:
    rng, document = np.random.default_rng(0), {"a": [1, {"b": 2}], "c": "d"}
    found = [mutants.mutate_json(rng, document) for _ in range(100)]
    assert document == {"a": [1, {"b": 2}], "c": "d"}
    assert sum(each != document for each in found) > 90
    assert len({str(each) for each in found}) > 30
