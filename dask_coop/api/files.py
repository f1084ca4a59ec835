"""Lazy arrays of Zarr arrays."""

from __future__ import annotations

import os
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import from_array, normalize_chunks
from dask.tokenize import tokenize

from dask_coop.api.call.public import public
from dask_coop.files.stored import StoredArray, cuts
from dask_coop.graph import config


@public("blockwise", dask=False)
def from_zarr(
    url: Any,
    component: str | None = None,
    storage_options: dict[str, Any] | None = None,
    chunks: Any = None,
    name: str | None = None,
    inline_array: bool = False,
    **kwargs: Any,
) -> da.Array:
    """Array of a Zarr array; the thread that runs a task reads and decodes its chunks.

    `dask.array.from_zarr` moves all bytes of a process through the one event loop of Zarr. This
    function has the same parameters and values, and uses all threads.

    Parameters
    ----------
    url : str, path-like, zarr.Array, Zarr store or mapping
        Where the array is, or the group that has it. URLs such as ``s3://bucket/x.zarr`` need
        fsspec and the package of their protocol.
    component : str, optional
        The path of the array in a group, such as ``"ocean/temperature"``.
    storage_options : dict, optional
        Options of fsspec for the protocol of the URL; local paths have none.
    chunks : int, tuple, dict or str, optional
        The sizes of chunks, as in `dask.array.from_array`. By default they are the stored chunks,
        or the shards of an array that has some.
    name : str, optional
        The name of the result. By default it is derived from the arguments and the metadata.
    inline_array : bool, default False
        Whether each task holds the array, as in `dask.array.from_array`.
    kwargs : dict
        More arguments of `zarr.open_array`, such as ``zarr_format``.

    Returns
    -------
    dask.array.Array
        Lazy, of the shape and dtype of the stored array, in NumPy chunks. Chunks that are not
        stored have the array's fill value.

    Raises
    ------
    ModuleNotFoundError
        If Zarr is not installed: ``pip install "zarr>=3.1"``.
    FileNotFoundError
        If there is no array.
    OSError
        When computing, if a chunk cannot be read or decoded; the message has the store, the chunk
        and the reason.
    ValueError
        If `chunks` do not match the shape, or the configuration's ``coop.files.concurrency`` is
        not a positive whole number.

    See Also
    --------
    from_npy : Arrays of .npy files.
    to_gpu : Move chunks to GPUs.
    explain : Tells who decodes the chunks, and after computing at which rate.

    Notes
    -----
    Arrays of both formats are read: bool, numbers, dates, and strings of fixed length; chunks that
    are encoded by Zstd, Blosc, LZ4, zlib, gzip, crc32c, shuffle, delta, fixedscaleoffset, transpose
    or bytes, in shards or not. Zarr itself reads all others.

    Local files are read by the threads themselves. Requests to other stores are made at the same
    time, all those of a task, and in a process no more than ``coop.files.concurrency``, 64 by
    default; the store decides about timeouts and retries.

    If `chunks` cut stored chunks of local files, each of these is decoded once for all tasks that
    need some of it, as long as those in use take less than 1 GiB, and 1/16 of the host's memory.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> import dask_coop as dc
    >>> store = zarr.storage.MemoryStore()
    >>> _ = zarr.create_array(store, data=np.arange(6.0), chunks=(3,))
    >>> float(dc.sum(dc.from_zarr(store)).compute())
    15.0
    """
    concurrency = config.get("coop.files.concurrency", config.COUNT)
    array = _open(url, component, storage_options, kwargs)
    stored = StoredArray(array, concurrency)
    sizes = normalize_chunks(
        stored.chunks if chunks is None else chunks,
        stored.shape,
        dtype=stored.dtype,
        previous_chunks=stored.chunks,
    )
    stored = StoredArray(array, concurrency, cuts(sizes, stored.cell))
    return from_array(
        stored,
        sizes,
        name=name or f"from-zarr-{tokenize(stored, sizes)}",
        meta=np.empty((0,) * stored.ndim, stored.dtype),
        inline_array=inline_array,
    )


def _open(
    url: Any, component: str | None, storage_options: dict[str, Any] | None, options: dict[str, Any]
) -> Any:
    """Return the Zarr array that is meant."""
    import zarr

    if isinstance(url, zarr.Array):
        return url
    url = os.fspath(url) if isinstance(url, os.PathLike) else url
    if isinstance(url, str) and "://" in url:
        options = {"storage_options": storage_options or None, **options}
    return zarr.open_array(store=url, path=component or "", **{"mode": "r", **options})
