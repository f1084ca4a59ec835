"""Arrays of files."""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
from dask import config
from dask.array.core import from_array, normalize_chunks
from dask.tokenize import tokenize
from dask.utils import parse_bytes

from dask_coop.api.public import public
from dask_coop.chunks.files import NpyArray, open_npy


@public("blockwise", dask=False)
def from_npy(path: str | os.PathLike[str], chunks: Any = "auto") -> da.Array:
    """Array of a .npy file, of which every task reads its own chunk.

    Chunks that `to_gpu` moves and that are contiguous in the file, such as some of its rows, are
    read from there straight into pinned memory.

    Parameters
    ----------
    path : str or path-like
        A file that `numpy.save` has written, in C or Fortran order, of any dtype but objects. All
        processes that compute must find it there.
    chunks : int, tuple, dict or str, optional
        The sizes of chunks, as of `dask.array.from_array`; by default, "auto", of up to the
        configuration's ``array.chunk-size``, and contiguous in the file.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape and dtype in the file's header. Chunks are read-only NumPy arrays, views
        of a map of the file. The same file and chunks have the same name, until the file changes.

    Raises
    ------
    OSError
        If the file is missing or cannot be read. Computing raises it, too, if the file has changed
        since: its size, or when it was modified.
    ValueError
        If it is no .npy file, shorter than its header says, or holds Python objects; or if `chunks`
        do not suit its shape.

    See Also
    --------
    to_gpu : Notes on reading past the page cache.

    Notes
    -----
    ``da.from_array(numpy.load(path, mmap_mode="r"))`` reads the whole file when it is called, for
    Dask makes a copy of the array.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import dask_coop as dc
    >>> path = os.path.join(tempfile.mkdtemp(), "x.npy")
    >>> np.save(path, np.arange(6.0))
    >>> x = dc.from_npy(path, chunks=3)
    >>> float(dc.sum(x).compute())
    15.0
    """
    x = open_npy(path)
    sizes = normalize_chunks(_contiguous(x) if chunks == "auto" else chunks, x.shape, dtype=x.dtype)
    return from_array(
        x,
        sizes,
        name=f"from-npy-{tokenize(x, sizes)}",
        meta=np.empty((0,) * x.ndim, x.dtype),
        inline_array=True,
    )


def _contiguous(x: NpyArray) -> tuple[int, ...]:
    """Return the shape of chunks of the configured size that are contiguous in a file."""
    sizes = [1] * x.ndim
    room = max(1, parse_bytes(config.get("array.chunk-size")) // x.dtype.itemsize)
    for axis in range(x.ndim) if x.order == "F" else reversed(range(x.ndim)):
        sizes[axis] = max(1, min(x.shape[axis], room))
        room //= sizes[axis]
    return tuple(sizes)
