"""Keep compiled programs on disk, in a folder that the processes of one user share.

An entry is a cubin followed by its SHA-256, which tools that read cubins ignore. A damaged entry is
written anew. Whoever can write to the folder could run code on the GPU, so a folder that others can
write to is not used (compiled/folders.py). Without a folder every process compiles its programs,
and a warning tells so, once for each reason.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dask_coop.compiled import folders

_DIGEST_BYTES = hashlib.sha256().digest_size


def folder() -> Path:
    """Return the folder of compiled programs: $DASK_COOP_CACHE, else one in the user's cache.

    Raises
    ------
    RuntimeError
        If neither is set and the user has no home.
    """
    if path := os.environ.get("DASK_COOP_CACHE"):
        return Path(path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dask_coop"


def get(key: Any, make: Callable[[], bytes]) -> bytes:
    """Return the cubin of a key from the disk; else call `make` for it and keep it if possible."""
    store = _open()
    cubin = None if store is None else _read(store, key)
    if cubin is None:
        cubin = make()
        if store is not None:
            _write(store, key, cubin)
    return cubin


def describe() -> str:
    """Return the folder, or why there is none."""
    try:
        path = folder()
        reason = folders.objection(path)
    except (OSError, RuntimeError) as error:
        return f"none: {error}"
    return f"none: {path}: {reason}" if reason else str(path)


def _open() -> Any:
    from cuda.core.utils import FileStreamProgramCache

    try:
        path = folder()
    except RuntimeError as error:
        _warn(None, error)
        return None
    try:
        reason: object = folders.make(path)
        if not reason:
            return FileStreamProgramCache(path)
    except OSError as error:
        reason = error
    _warn(path, reason)
    return None


def _read(store: Any, key: Any) -> bytes | None:
    """Return the cubin of a key, or None if it is missing or damaged."""
    try:
        entry = store.get(key)
    except OSError as error:
        _warn(folder(), error)
        return None
    if entry is None:
        return None
    cubin, digest = entry[:-_DIGEST_BYTES], entry[-_DIGEST_BYTES:]
    return bytes(cubin) if hashlib.sha256(cubin).digest() == digest else None


def _write(store: Any, key: Any, cubin: bytes) -> None:
    try:
        store[key] = cubin + hashlib.sha256(cubin).digest()
    except OSError as error:
        _warn(folder(), error)


def _warn(path: Path | None, reason: object) -> None:
    where = "the user's cache" if path is None else str(path)
    _warn_once(
        f"compiled kernels are not kept in {where}: {reason}. Every process compiles them anew; "
        "set DASK_COOP_CACHE to a folder that only you can write to"
    )


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)
