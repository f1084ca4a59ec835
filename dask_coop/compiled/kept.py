"""Machine code that Numba keeps, under names of its own, until other code takes its place.

A function has an index, ``MODULE.FUNCTION-LINE.py311.nbi``, which names a file of machine code,
``.nbc``, for each combination of arguments' types. An index holds for the sources it was made of:
later sources get another, under the same name or that of another line. When a process keeps
something new, it removes the machine code that no index names any more. Others are at work in the
same folder: one may have written code that its index does not name yet, so whatever is younger than
an hour stays; one may be about to load what is removed, and then compiles it.
"""

from __future__ import annotations

import pickle
import sys
import time
import uuid
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

#: For how long files are left that no index names.
_SPARED_SECONDS = 3600


def adapt(file: Any, stamp: tuple[Any, ...]) -> None:
    """Have Numba's cache of a function keep code by `stamp`, and remove what is replaced."""
    # By itself Numba looks at the function's own file, and not at those of what it calls.
    file._source_stamp = stamp
    # It numbers files, and of two processes each may write its own under the same number.
    file._data_name = partial(_data_name, file._index_name)
    save = file._save_index

    def save_index(overloads: Any) -> None:
        save(overloads)
        _sweep_once(Path(file._cache_path), file._version, stamp)

    file._save_index = save_index


def _data_name(index: str, number: int) -> str:
    """Return the name of a file for machine code, which no other has."""
    return f"{index.removesuffix('.nbi')}.{uuid.uuid4().hex}.nbc"


@cache
def _sweep_once(folder: Path, version: str, stamp: tuple[Any, ...]) -> None:
    # Where the disk fails the next process tries again.
    with suppress(OSError):
        sweep(folder, version, stamp)


def sweep(folder: Path, version: str, stamp: tuple[Any, ...]) -> None:
    """Remove the indices of other sources, and the machine code that no other index names.

    Parameters
    ----------
    folder : pathlib.Path
        Where the code of the modules of one folder is kept.
    version : str
        Numba's.
    stamp : tuple
        What the sources have now.
    """
    # Other versions of Python have indices and machine code of their own here.
    python = f".py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}."
    found = [path for path in folder.iterdir() if python in path.name]
    named = set[str]()
    for index in (path for path in found if path.suffix == ".nbi"):
        names = _names(index, version, stamp)
        if names is None and _is_old(index):
            index.unlink(missing_ok=True)
        named.update(names or ())
    # Besides machine code these are what processes have left that ended while they wrote.
    for path in (path for path in found if path.suffix != ".nbi"):
        if path.name not in named and _is_old(path):
            path.unlink(missing_ok=True)


def _names(index: Path, version: str, stamp: tuple[Any, ...]) -> set[str] | None:
    """Return the files that an index names; None where it is of other sources, or damaged."""
    try:
        with index.open("rb") as file:
            if pickle.load(file) != version:
                return None
            made_of, overloads = pickle.load(file)
    # Unpickling fails in many ways.
    except Exception:
        return None
    return set(overloads.values()) if made_of == stamp else None


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _SPARED_SECONDS
    except FileNotFoundError:
        return False
