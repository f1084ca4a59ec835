"""Remove outdated machine code from Numba's cache, and give its files unique names.

A function has an index, ``MODULE.FUNCTION-LINE.py311.nbi``, which names a file of machine code,
``.nbc``, for each combination of argument types. An index is valid for the sources it was made of;
changed sources get a new one, under the same name or that of another line. When a process writes
new code, it removes the machine code that no index names. Other processes use the same folder: one
may have written code that its index does not name yet, so files younger than an hour stay; one may
be about to load a removed file, and then compiles it.
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

#: Seconds for which a file stays that no index names.
_SPARED_SECONDS = 3600


def adapt(file: Any, stamp: tuple[Any, ...]) -> None:
    """Make Numba's cache of a function depend on `stamp`, and remove outdated code."""
    # Numba's own stamp covers only the function's file, and not those of functions it calls.
    file._source_stamp = stamp
    # Numba numbers files, and two processes may write different code under one number.
    file._data_name = partial(_data_name, file._index_name)
    save = file._save_index

    def save_index(overloads: Any) -> None:
        save(overloads)
        _sweep_once(Path(file._cache_path), file._version, stamp)

    file._save_index = save_index


def _data_name(index: str, number: int) -> str:
    """Return a unique name for a file of machine code."""
    return f"{index.removesuffix('.nbi')}.{uuid.uuid4().hex}.nbc"


@cache
def _sweep_once(folder: Path, version: str, stamp: tuple[Any, ...]) -> None:
    # If the disk fails, the next process tries again.
    with suppress(OSError):
        sweep(folder, version, stamp)


def sweep(folder: Path, version: str, stamp: tuple[Any, ...]) -> None:
    """Remove the indices of other sources, and the machine code that no remaining index names.

    Parameters
    ----------
    folder : pathlib.Path
        The folder with the machine code of one folder's modules.
    version : str
        The version of Numba.
    stamp : tuple
        The present stamp of the sources.
    """
    # Other versions of Python have files of their own here.
    python = f".py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}."
    paths = [path for path in folder.iterdir() if python in path.name]
    named = set[str]()
    for index in (path for path in paths if path.suffix == ".nbi"):
        names = _names(index, version, stamp)
        if names is None and _is_old(index):
            index.unlink(missing_ok=True)
        named.update(names or ())
    # Machine code, and temporary files of processes that ended while they wrote.
    for path in (path for path in paths if path.suffix != ".nbi"):
        if path.name not in named and _is_old(path):
            path.unlink(missing_ok=True)


def _names(index: Path, version: str, stamp: tuple[Any, ...]) -> set[str] | None:
    """Return the files that an index names, or None if it has another stamp or is damaged."""
    try:
        with index.open("rb") as file:
            if pickle.load(file) != version:
                return None
            index_stamp, overloads = pickle.load(file)
    # Unpickling may raise any exception.
    except Exception:
        return None
    return set(overloads.values()) if index_stamp == stamp else None


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _SPARED_SECONDS
    except FileNotFoundError:
        return False
