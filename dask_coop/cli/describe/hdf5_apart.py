"""Read HDF5 in a process of its own: a script that hdf5.py runs.

A damaged file can crash HDF5's C library, exhaust memory, or loop for ever. Here that costs one
process. A question is a line of JSON. An answer is one, too, followed by the bytes of an array if
the answer has a shape; an answer with "error" has HDF5's message.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

#: Most bytes of memory for an answer besides its array and blocks of the file.
ROOM_BYTES = 1 << 29

#: The largest attribute to read: useful ones are numbers and short words.
_MOST_BYTES = 1 << 16

#: HDF5's class of the coordinates along an axis.
_SCALES = (b"DIMENSION_SCALE", "DIMENSION_SCALE")

Answer = tuple[dict[str, Any], Any]


def names(path: str) -> Answer:
    """Return the names of all datasets, and of those along axes; links are not followed."""
    with h5py.File(path, "r") as file:
        datasets: list[str] = []
        file.visititems(
            lambda name, item: datasets.append(name) if isinstance(item, h5py.Dataset) else None
        )
        along = [name for name in datasets if file[name].attrs.get("CLASS") in _SCALES]
        return {"names": datasets, "along": along}, None


def facts(path: str, name: str, attributes: list[str]) -> Answer:
    """Return the shape, dtype, chunks and storage of a dataset, and the `attributes` it has."""
    with h5py.File(path, "r") as file:
        dataset = file[name]
        external = sorted({str(other) for other, *_ in dataset.external or ()})
        virtual = None
        if dataset.is_virtual:
            virtual = sorted({v.file_name for v in dataset.virtual_sources()})
        with warnings.catch_warnings():
            # NumPy warns of the metadata of text dtypes, which are not needed.
            warnings.simplefilter("ignore")
            dtype = np.lib.format.dtype_to_descr(dataset.dtype)
        answer = {
            "shape": dataset.shape,
            "dtype": dtype,
            "chunks": dataset.chunks,
            "external": external,
            "virtual": virtual,
            "attributes": dict(_attributes(dataset.attrs, attributes)),
        }
        return answer, None


def _attributes(attributes: Any, wanted: list[str]) -> Any:
    for name in wanted:
        if name not in attributes or attributes.get_id(name).get_storage_size() > _MOST_BYTES:
            continue
        value = attributes[name]
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(-1)[0]
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            yield name, [value.dtype.str, np.asarray(value).tolist()]


def read(path: str, name: str, bounds: list[list[int]]) -> Answer:
    """Return the elements between bounds along each axis."""
    with h5py.File(path, "r") as file:
        x = file[name][tuple(slice(*ends) for ends in bounds)]
        x = np.ascontiguousarray(x).reshape(np.shape(x))
        return {"shape": x.shape, "dtype": x.dtype.str}, x


_ANSWERS: dict[str, Callable[..., Answer]] = {"names": names, "facts": facts, "read": read}


def _limit(nbytes: int) -> None:
    """Limit this process to `nbytes` of memory beyond its present use."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        # Other systems do not limit memory, or do not tell how much the process uses.
        return
    total = pages * resource.getpagesize() + nbytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or total < hard:
        resource.setrlimit(resource.RLIMIT_AS, (total, hard))


def main() -> None:
    """Answer questions until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    # Keep output of libraries out of the answers.
    os.dup2(2, 1)
    for asked in sys.stdin.buffer:
        question = json.loads(asked)
        _limit(ROOM_BYTES + question.pop("nbytes", 0))
        try:
            answer, x = _ANSWERS[question.pop("ask")](**question)
            line = json.dumps(answer)
        # HDF5 and NumPy may raise anything for a damaged file.
        except Exception as error:
            line, x = json.dumps({"error": f"{error}" or type(error).__name__}), None
        answers.write(line.encode() + b"\n")
        if x is not None:
            answers.write(memoryview(x.reshape(-1).view("u1")))
        answers.flush()


if __name__ == "__main__":
    main()
