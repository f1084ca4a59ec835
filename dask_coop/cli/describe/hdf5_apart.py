"""A process of its own that reads HDF5: it is run as a script, and hdf5.py asks it.

A damaged file can crash HDF5's C library, have it take all memory, or never let it return. Here
that costs one process. A question is a line of JSON; an answer is one, too, and after it come the
bytes of an array if it has a shape. An answer with "error" says what HDF5 said.
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

#: The memory that an answer may take besides the array and a block of the file.
ROOM_BYTES = 1 << 29

#: Attributes are numbers and short words.
_MOST_BYTES = 1 << 16

#: What HDF5 calls the coordinates along an axis.
_SCALES = (b"DIMENSION_SCALE", "DIMENSION_SCALE")

Answer = tuple[dict[str, Any], Any]


def names(path: str) -> Answer:
    """Return the names of all datasets, and those along axes; links are not followed."""
    with h5py.File(path, "r") as file:
        found: list[str] = []
        file.visititems(
            lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None
        )
        along = [name for name in found if file[name].attrs.get("CLASS") in _SCALES]
        return {"names": found, "along": along}, None


def facts(path: str, name: str, attributes: list[str]) -> Answer:
    """Return what is known of a dataset without its elements, and some of its attributes."""
    with h5py.File(path, "r") as file:
        found = file[name]
        external = sorted({str(other) for other, *_ in found.external or ()})
        virtual = None
        if found.is_virtual:
            virtual = sorted({v.file_name for v in found.virtual_sources()})
        with warnings.catch_warnings():
            # Dtypes of text have metadata, which nobody asks for.
            warnings.simplefilter("ignore")
            dtype = np.lib.format.dtype_to_descr(found.dtype)
        told = {
            "shape": found.shape,
            "dtype": dtype,
            "chunks": found.chunks,
            "external": external,
            "virtual": virtual,
            "attributes": dict(_attributes(found.attrs, attributes)),
        }
        return told, None


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
        part = file[name][tuple(slice(*each) for each in bounds)]
        part = np.ascontiguousarray(part).reshape(np.shape(part))
        return {"shape": part.shape, "dtype": part.dtype.str}, part


_ANSWERS: dict[str, Callable[..., Answer]] = {"names": names, "facts": facts, "read": read}


def _limit(nbytes: int) -> None:
    """Have this process take no more memory than so many bytes besides what it has."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        # Other systems do not limit memory, or do not say how much the process has.
        return
    total = pages * resource.getpagesize() + nbytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or total < hard:
        resource.setrlimit(resource.RLIMIT_AS, (total, hard))


def main() -> None:
    """Answer until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever a library prints is no answer.
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        question = json.loads(line)
        _limit(ROOM_BYTES + question.pop("nbytes", 0))
        try:
            answer, part = _ANSWERS[question.pop("ask")](**question)
            said = json.dumps(answer)
        # HDF5 and NumPy have any of a damaged file.
        except Exception as error:
            said, part = json.dumps({"error": f"{error}" or type(error).__name__}), None
        answers.write(said.encode() + b"\n")
        if part is not None:
            answers.write(memoryview(part.reshape(-1).view("u1")))
        answers.flush()


if __name__ == "__main__":
    main()
