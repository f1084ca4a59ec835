"""Open HDF5 datasets, which another process reads (hdf5_apart.py)."""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_coop.cli.describe.claims import require_within
from dask_coop.cli.describe.decoding import PACKING, TIMES
from dask_coop.cli.describe.members import Members
from dask_coop.errors import UserError

#: Most seconds to wait for an answer, because HDF5 may loop for ever on a damaged file. Reading
#: has more, as disks may be slow.
OPEN_SECONDS, READ_SECONDS = 60, 600

_SCRIPT = Path(__file__).with_name("hdf5_apart.py")


@dataclass(frozen=True)
class Hdf5Dataset:
    """A dataset of an HDF5 file; each access opens and closes the file."""

    path: Path
    dataset: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None

    def __getitem__(self, index: Any) -> Any:
        """Return the elements at an index of slices and integers.

        Raises
        ------
        OSError
            If it cannot be read.
        """
        index = index if isinstance(index, tuple) else (index,)
        index = (*index, *(slice(None),) * (len(self.shape) - len(index)))
        bounds, inner = zip(*map(_bounds, index, self.shape), strict=True) if index else ((), ())
        # HDF5 decodes the file's blocks that overlap the bounds one by one.
        block = math.prod(self.chunks or ()) * self.dtype.itemsize
        box: np.ndarray[Any, Any] = np.empty([stop - start for start, stop in bounds], self.dtype)
        question = {"path": str(self.path), "name": self.dataset, "bounds": bounds}
        _reader().ask("read", READ_SECONDS, box, nbytes=2 * box.nbytes + 3 * block, **question)
        return box[inner]


def open_hdf5(path: Path) -> Members:
    """Return the datasets of a file, each an `Hdf5Dataset`.

    Their attributes are those that may tell how numbers are packed.

    Raises
    ------
    UserError
        If it cannot be opened; when a dataset is opened, also if its elements are elsewhere.
    """
    # Raise here and not in the other process if it is missing.
    import h5py  # noqa: F401

    try:
        listed = _reader().ask("names", OPEN_SECONDS, path=str(path.absolute()))
    except OSError as error:
        raise _refused(path, error) from error
    return Members(listed["names"], listed["along"], partial(_open_dataset, path))


def _refused(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot open this as HDF5: {error}")


def _open_dataset(path: Path, name: str) -> tuple[Hdf5Dataset, dict[str, Any]]:
    absolute, wanted = path.absolute(), [*PACKING, *TIMES]
    try:
        facts = _reader().ask(
            "facts", OPEN_SECONDS, path=str(absolute), name=name, attributes=wanted
        )
        if facts["shape"] is None:
            raise UserError(f"{path}: the dataset {name} is empty; there is nothing to describe")
        require_within(path, name, facts["external"], facts["virtual"])
        dtype = np.lib.format.descr_to_dtype(_tuples(facts["dtype"]))
        attributes = {key: _value(value) for key, value in facts["attributes"].items()}
        shape, chunks = (facts[key] and tuple(facts[key]) for key in ("shape", "chunks"))
        opened = Hdf5Dataset(absolute, name, shape or (), dtype, chunks)
    except OSError as error:
        raise _refused(path, error) from error
    return opened, attributes


def _tuples(descr: Any) -> Any:
    """Return a dtype's description with tuples again, which JSON made lists."""
    if isinstance(descr, list) and descr and isinstance(descr[0], str):
        name, inner, *shape = descr
        return (name, _tuples(inner), *map(tuple, shape))
    return [*map(_tuples, descr)] if isinstance(descr, list) else descr


def _value(value: Any) -> Any:
    return value if isinstance(value, str) else np.array(value[1], value[0])[()]


def _bounds(index: Any, n: int) -> tuple[tuple[int, int], Any]:
    """Return start and stop of the elements that an index spans, and the index among these."""
    if not isinstance(index, slice):
        number = range(n)[index]
        return (number, number + 1), 0
    numbers = range(n)[index]
    if not numbers:
        return (0, 0), slice(None)
    first, last = sorted((numbers[0], numbers[-1]))
    return (first, last + 1), slice(None, None, numbers.step)


class _Reader:
    """A process that reads HDF5 for this one; started when needed, and again after it has died."""

    def __init__(self, script: Path) -> None:
        self._script = script
        # The process answers one question at a time, as HDF5 would.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, ask: str, seconds: float, into: Any = None, **question: Any) -> dict[str, Any]:
        """Return the answer to a question, with its array written to `into`.

        Raises
        ------
        OSError
            If HDF5 refuses, crashes or takes more than `seconds`.
        """
        with self._lock:
            process = self._start()
            late = threading.Event()

            def end() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(seconds, end)
            timer.daemon = True
            timer.start()
            try:
                answer = self._exchange(process, {"ask": ask, **question}, into)
            except BaseException:
                # Or the next question would get the end of this answer.
                self.stop()
                raise
            finally:
                timer.cancel()
            if answer is None:
                self.stop(patience=1)
                raise OSError(_why(process.returncode, seconds if late.is_set() else 0))
        if "error" in answer:
            raise OSError(answer["error"])
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._process = subprocess.Popen(
                # -P: the script's folder has modules with the names of others.
                [sys.executable, "-P", str(self._script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        return self._process

    def _exchange(
        self, process: subprocess.Popen[bytes], question: dict[str, Any], into: Any
    ) -> dict[str, Any] | None:
        """Return the answer, or None if the process ends first."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            return None
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            return None
        if into is None or "error" in answer:
            return answer
        if (tuple(answer["shape"]), np.dtype(answer["dtype"])) != (into.shape, into.dtype):
            self.stop()
            return {"error": "the dataset has changed since it was opened"}
        space = memoryview(into.reshape(-1).view("u1"))
        done = 0
        while done < len(space):
            count = process.stdout.readinto(space[done:])  # type: ignore[attr-defined]
            if not count:
                return None
            done += count
        return answer

    def stop(self, patience: float = 0) -> None:
        """End the process, at once or if it has not ended by itself within `patience` seconds."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(patience)
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    # An unwritten rest of a question goes nowhere.
                    with suppress(OSError):
                        pipe.close()


def _why(status: int | None, seconds: float) -> str:
    if seconds:
        return f"HDF5 has not answered in {seconds:g} s; the file is damaged, or its disk too slow"
    if status is not None and status < 0:
        return f"HDF5 crashed on it ({signal.Signals(-status).name}); the file is damaged"
    return (
        f"the process that reads HDF5 has ended with status {status}; see that "
        f"`{sys.executable} -c 'import h5py'` works"
    )


_readers: dict[int, _Reader] = {}


def _reader() -> _Reader:
    """Return the reader of this process: after a fork the old one's pipes are the parent's."""
    if os.getpid() not in _readers:
        reader = _readers.setdefault(os.getpid(), _Reader(_SCRIPT))
        atexit.register(reader.stop)
    return _readers[os.getpid()]
