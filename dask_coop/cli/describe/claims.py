"""Refuse files whose claims would make a reader do harm.

An HDF5 dataset may name any other files as its storage, and a reader would read those. The shape of
an array is a few numbers in a header, which cost nothing to write, however long it takes to read
the array that they claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
from dask import config
from dask.utils import parse_bytes

from dask_coop.errors import UserError

#: A graph of more chunks needs gigabytes, and hours.
MOST_CHUNKS = 100_000

#: Only a sparse TIFF of one number can be larger than its file by nearly this factor.
MOST_PACKED = 100_000

#: The largest chunks that HDF5 can store.
MOST_BLOCK_BYTES = 1 << 32


def require_within(
    path: Any, name: str, external: Sequence[str], virtual: Sequence[str] | None
) -> None:
    """Refuse a dataset of HDF5 whose elements lie outside of its file.

    Parameters
    ----------
    path, name : str
        The file and the dataset.
    external : sequence of str
        The files of its external storage.
    virtual : sequence of str, optional
        The files of its sources, if it is virtual.

    Raises
    ------
    UserError
        If it has external storage, or is virtual.
    """
    if external:
        others = ", ".join(external)
        raise UserError(
            f"{path}: the elements of the dataset {name} lie in other files ({others}), which are "
            "not read on its word; if you trust it, copy it into a file of its own"
        )
    # A source in the same file may link to other files, so refuse these, too.
    if virtual is not None:
        others = ", ".join(virtual)
        raise UserError(
            f"{path}: the dataset {name} is virtual, made of datasets of other files ({others}), "
            "which are not read on its word; if you trust it, describe these, or copy it into a "
            "file of its own"
        )


def require_feasible(
    text: str,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    chunks: str | int | tuple[int, ...],
    blocks: Sequence[int] | None = None,
) -> None:
    """Refuse an array of too many chunks or too large blocks, before anything is allocated.

    Parameters
    ----------
    text : str
        The array's name in messages.
    shape : sequence of int
    dtype : numpy.dtype
    chunks : str, int or tuple of int
        The requested chunks.
    blocks : sequence of int, optional
        The shape of the file's own chunks, each of which is decoded whole.

    Raises
    ------
    UserError
        If the array has more than `MOST_CHUNKS`, or blocks of more than `MOST_BLOCK_BYTES`.
    """
    elements = math.prod(shape)
    if isinstance(chunks, str):
        size = parse_bytes(config.get("array.chunk-size") if chunks == "auto" else chunks)
        count = -(-elements * dtype.itemsize // max(size, 1))
    else:
        sizes = (chunks,) * len(shape) if isinstance(chunks, int) else chunks
        count = math.prod(-(-n // max(size, 1)) for n, size in zip(shape, sizes, strict=True))
    if count > MOST_CHUNKS:
        raise UserError(
            f"{text}: the file says that it has {elements:,} elements ({dtype}, shape "
            f"{tuple(shape)}), which are {count:,} chunks; at most {MOST_CHUNKS:,} are described. "
            "If it is right, give larger --chunks"
        )
    size = math.prod(blocks or ()) * dtype.itemsize
    if size > MOST_BLOCK_BYTES:
        raise UserError(
            f"{text}: the file says that it is stored in chunks of {size:,} bytes (shape "
            f"{tuple(blocks or ())}), each of which is decoded whole; at most "
            f"{MOST_BLOCK_BYTES:,} bytes are. If it is right, store it in smaller chunks"
        )


def require_room(text: str, nbytes: int, stored: int) -> None:
    """Refuse an array that must be held in memory as a whole and cannot be as large as it claims.

    Parameters
    ----------
    text : str
        The array's name in messages.
    nbytes : int
        The bytes that the file claims.
    stored : int
        The bytes of the file.

    Raises
    ------
    UserError
        If `nbytes` is more than `MOST_PACKED` times the file, or than the available memory.
    """
    available = psutil.virtual_memory().available
    if nbytes > min(available, MOST_PACKED * stored):
        raise UserError(
            f"{text}: the file says that it has {nbytes:,} bytes, which would be held in memory; "
            f"it has {stored:,} bytes itself, and {available:,} are available. If it is right, "
            "make a .npy of it, which is mapped"
        )
