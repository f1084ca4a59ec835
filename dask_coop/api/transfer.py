"""Arrays from .npy files, and arrays whose chunks move to the GPUs or back to the host."""

from __future__ import annotations

import math
import os
from typing import Any

import dask.array as da
import numpy as np
from dask import config
from dask.array import routines
from dask.array.core import asanyarray, from_array, normalize_chunks
from dask.tokenize import tokenize
from dask.utils import parse_bytes

from dask_coop import chunks
from dask_coop.api.call.public import public
from dask_coop.chunks.dtypes import declared_by
from dask_coop.chunks.files import NpyArray, open_npy
from dask_coop.chunks.kept import KEPT_CHUNKS
from dask_coop.graph.transfer import (
    configured,
    copied,
    copy_to_gpu,
    copy_to_host,
    keeping,
    on_host,
    transposed,
)


@public("blockwise", dask=False)
def to_gpu(x: Any, keep: bool | None = None) -> da.Array:
    """Move the chunks of an array to GPUs, as CuPy arrays.

    Several threads copy chunks of 4 MiB and more through pinned memory, while tasks work on earlier
    chunks. Chunks that tasks read from files stay on the GPUs for later calls.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers, floats or complex numbers of any byte order, in NumPy chunks. CuPy chunks
        stay where they are.
    keep : bool, optional
        Whether chunks stay on the GPUs after use. By default they do if tasks read them from a
        source whose changes are noticed; False keeps none. With True you promise not to change the
        values behind `x`, such as a NumPy array in memory, and its chunks are kept, too.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape, chunks and values of `x`, in the machine's byte order. A chunk goes to
        the GPU that is current where its task runs.

    Raises
    ------
    RuntimeError
        If CuPy or an NVIDIA GPU is missing, here or where a task runs.
    TypeError
        If elements have another dtype, or chunks are masked, or neither NumPy's nor CuPy's.
    ValueError
        If the configuration's ``coop.transfer.buffers`` is not a number of bytes or is less than 16
        MiB, or ``coop.transfer.direct`` or ``coop.transfer.keep`` is none of its values; or if
        `keep` is none of its own.

    See Also
    --------
    from_npy : Arrays of files.

    Notes
    -----
    ``coop.transfer.keep`` sets how much of a GPU's memory the kept chunks may take, 0.3 by default;
    0 keeps none, and drops those of this process. The least recently used go first, and all of them
    before an allocation fails. Tasks must not write into the chunks, as everywhere in Dask.

    ``coop.transfer.buffers`` in Dask's configuration sets how much pinned memory a process uses for
    each GPU, 128 MiB by default. The first copy allocates it, and the process keeps it.

    Contiguous blocks of memory-mapped files, such as `from_npy` makes, are read from the file
    straight into pinned memory. ``coop.transfer.direct`` sets whether such reads bypass the page
    cache: True, False or, by default, "auto": if the file is larger than half of the available
    memory, unless the page cache has the chunk. File systems without O_DIRECT are read as usual.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.random.random((4096, 4096), chunks=(512, 4096))
    >>> total = dc.sum(dc.to_gpu(x)).compute()  # doctest: +SKIP
    """
    array = asanyarray(x)
    if not chunks.is_common(array.dtype):
        raise TypeError(f"to_gpu does not take dtype {array.dtype}, which CuPy does not have")
    if keep is not None and not isinstance(keep, bool):
        raise ValueError(f"keep must be True, False or None, got {keep!r}")
    return _move("to_gpu", array, "cupy", keep)


@public("blockwise", dask=False)
def to_host(x: Any) -> da.Array:
    """Move the chunks of an array to the host, as NumPy arrays.

    Several threads copy chunks of 4 MiB and more through pinned memory. The memory of results that
    you have dropped is kept for later ones: up to 4 GiB, and 1/16 of the host's memory.

    Parameters
    ----------
    x : dask.array.Array or array_like
        An array in CuPy chunks; NumPy chunks stay as they are. Tasks check what each chunk is,
        since Dask takes chunks of Zarr on the GPU for NumPy's.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape, chunks, dtype and values of `x`.

    Raises
    ------
    TypeError
        If chunks are neither CuPy's nor NumPy's.
    ValueError
        If the configuration's ``coop.transfer.buffers`` is not a number of bytes or is less than 16
        MiB.

    See Also
    --------
    to_gpu : The other way, with notes on memory.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> dc.to_host(da.arange(6, chunks=3)).compute()
    array([0, 1, 2, 3, 4, 5])
    """
    return _move("to_host", asanyarray(x), "numpy")


def _move(name: str, x: da.Array, to: str, keep: bool | None = False) -> da.Array:
    """Return `x` with chunks of the kind `to`."""
    settings = configured()
    room = keeping()
    if not room:
        KEPT_CHUNKS.clear()
    meta = x._meta
    if chunks.kind(meta) != to:
        chunks.refuse_masked(name, meta)
        try:
            meta = chunks.asarray(np.empty((0,) * x.ndim, x.dtype.newbyteorder("=")), to)
        # CuPy's own errors are classes of CuPy, which may be missing.
        except Exception as error:
            raise RuntimeError(f"{name} needs CuPy and an NVIDIA GPU: {error}") from error
    elif to != "numpy":
        return x
    if to == "numpy" and x.npartitions > 1 and not math.isnan(x.size):
        return on_host(x, f"to-host-{tokenize(x, *settings)}", meta)
    if to == "cupy":
        if (below := transposed(x)) is not None:
            # So that the chunks are kept for other uses, and their bytes are decoded on the GPUs.
            before, order = below
            return routines.transpose(_move(name, before, to, keep), order)
        room = 0 if keep is False else room
        name_of_copied = f"{name.replace('_', '-')}-{tokenize(x, *settings, room, keep)}"
        if (read := copied(x, name_of_copied, meta, room, bool(keep))) is not None:
            return read
    # Chunks that Dask takes for NumPy's may be CuPy's.
    return x.map_blocks(
        copy_to_host if to == "numpy" else copy_to_gpu,
        *settings,
        **declared_by(x),
        dtype=meta.dtype,
        meta=meta,
        name=f"{name.replace('_', '-')}-{tokenize(x, *settings)}",
    )


@public("blockwise", dask=False)
def from_npy(path: str | os.PathLike[str], chunks: Any = "auto") -> da.Array:
    """Open a .npy file as a lazy array; each task reads its own chunk.

    `to_gpu` reads chunks that are contiguous in the file, such as blocks of rows, from there
    straight into pinned memory.

    Parameters
    ----------
    path : str or path-like
        A file written by `numpy.save`, in C or Fortran order, of any dtype but objects. All
        processes that compute must find it there.
    chunks : int, tuple, dict or str, optional
        The sizes of chunks, as in `dask.array.from_array`. By default, "auto", chunks are
        contiguous in the file and up to the configuration's ``array.chunk-size``.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape and dtype in the file's header. Chunks are read-only NumPy arrays, views
        of the memory-mapped file. Until the file changes, the same file and chunks give the same
        name.

    Raises
    ------
    OSError
        If the file is missing or cannot be read. Computing also raises it if the size or the
        modification time of the file has changed since.
    ValueError
        If the file is not a .npy file, is shorter than its header says, or holds Python objects; or
        if `chunks` do not match its shape.

    See Also
    --------
    to_gpu : Notes on reading past the page cache.

    Notes
    -----
    ``da.from_array(numpy.load(path, mmap_mode="r"))`` reads the whole file when it is called, since
    Dask copies the array.

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
    """Return the shape of chunks that are contiguous in a file and have the configured size."""
    sizes = [1] * x.ndim
    room = max(1, parse_bytes(config.get("array.chunk-size")) // x.dtype.itemsize)
    for axis in range(x.ndim) if x.order == "F" else reversed(range(x.ndim)):
        sizes[axis] = max(1, min(x.shape[axis], room))
        room //= sizes[axis]
    return tuple(sizes)
