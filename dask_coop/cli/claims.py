"""What a file that somebody else has written may not have a reader do.

A dataset of HDF5 may lie in other files, of which only its own name the paths: whoever describes it
would read these. And the shape of an array is a few numbers in a header, which cost nothing to
write, whatever it takes to read what they claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask import config
from dask.utils import parse_bytes

from dask_coop.errors import UserError

#: A graph of more chunks takes gigabytes, and hours.
MOST_CHUNKS = 100_000


def require_within(path: Any, name: str, dataset: Any) -> None:
    """Refuse a dataset of HDF5 whose elements lie outside of its file.

    Raises
    ------
    UserError
        If it has external storage, or is virtual.
    """
    if dataset.external:
        others = ", ".join(sorted({file for file, *_ in dataset.external}))
        raise UserError(
            f"{path}: the elements of the dataset {name} lie in other files ({others}), which are "
            "not read on its word; if you trust it, copy it into a file of its own"
        )
    # Also one of the same file may lead on to others, by links.
    if dataset.is_virtual:
        others = ", ".join(sorted({source.file_name for source in dataset.virtual_sources()}))
        raise UserError(
            f"{path}: the dataset {name} is virtual, made of datasets of other files ({others}), "
            "which are not read on its word; if you trust it, describe these, or copy it into a "
            "file of its own"
        )


def require_feasible(
    text: str, shape: Sequence[int], dtype: np.dtype[Any], chunks: str | int | tuple[int, ...]
) -> None:
    """Refuse an array of more chunks than a graph can have; nothing is made of its size.

    Raises
    ------
    UserError
        If it has more than `MOST_CHUNKS`.
    """
    elements = math.prod(shape)
    if isinstance(chunks, str):
        size = parse_bytes(config.get("array.chunk-size") if chunks == "auto" else chunks)
        count = -(-elements * dtype.itemsize // max(size, 1))
    else:
        each = (chunks,) * len(shape) if isinstance(chunks, int) else chunks
        count = math.prod(-(-n // max(size, 1)) for n, size in zip(shape, each, strict=True))
    if count > MOST_CHUNKS:
        raise UserError(
            f"{text}: the file says that it has {elements:,} elements ({dtype}, shape "
            f"{tuple(shape)}), which are {count:,} chunks; at most {MOST_CHUNKS:,} are described. "
            "If it is right, give larger --chunks"
        )
