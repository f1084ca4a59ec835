"""Lazy arrays of Zarr arrays, and Zarr arrays of lazy ones."""

from __future__ import annotations

import os
import uuid
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.array.core import asanyarray, from_array, normalize_chunks
from dask.array.slicing import normalize_index
from dask.base import get_scheduler
from dask.tokenize import tokenize

from dask_coop import chunks as chunks_of
from dask_coop.api.call.public import public
from dask_coop.files.journal import Journal
from dask_coop.files.stored import StoredArray
from dask_coop.files.target import StoredTarget, aligned, folder_of, write_unit
from dask_coop.graph import config
from dask_coop.graph.files import writing
from dask_coop.graph.files.lifting import readable_in_runs
from dask_coop.graph.transfer import configured


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
    """Open a Zarr array as a lazy array; the threads that compute read and decode its chunks.

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
    to_zarr : The other way.
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
    stored.is_cut = stored.is_cut_by(sizes)
    x = from_array(
        stored,
        sizes,
        name=name or f"from-zarr-{tokenize(stored, sizes)}",
        meta=np.empty((0,) * stored.ndim, stored.dtype),
        inline_array=inline_array,
    )
    return readable_in_runs(x)


def _open(
    url: Any, component: str | None, storage_options: dict[str, Any] | None, options: dict[str, Any]
) -> Any:
    """Return the Zarr array that is meant."""
    zarr = _zarr("from_zarr")
    if isinstance(url, zarr.Array):
        return url
    url = os.fspath(url) if isinstance(url, os.PathLike) else url
    if isinstance(url, str) and "://" in url:
        options = {"storage_options": storage_options or None, **options}
    options = {"path": component or "", "mode": "r", **options}
    try:
        return zarr.open_array(store=url, **options)
    except (FileNotFoundError, ValueError):
        arrays = _names_of_arrays(url, options)
        if arrays is None:
            raise
        raise ValueError(
            f"{component or url!r} is a group of Zarr; pass component= with the name of one of its "
            f"arrays: {', '.join(arrays) or 'it has none'}"
        ) from None


def _names_of_arrays(url: Any, options: dict[str, Any]) -> list[str] | None:
    """Return the names of the arrays of a group, or None if there is no group."""
    import zarr

    try:
        return sorted(name for name, _ in zarr.open_group(store=url, **options).arrays())
    except (FileNotFoundError, ValueError):
        return None


def _zarr(caller: str) -> Any:
    try:
        import zarr
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{caller} needs Zarr, which is not installed here; run `pip install "zarr>=3.1"`',
            name="zarr",
        ) from error
    return zarr


@public("blockwise", dask=False)
def to_zarr(
    x: Any,
    url: Any,
    component: str | None = None,
    storage_options: dict[str, Any] | None = None,
    region: tuple[slice, ...] | None = None,
    compute: bool = True,
    return_stored: bool = False,
    mode: str = "a",
    resume: bool = False,
    fsync: bool = False,
    **kwargs: Any,
) -> Any:
    """Store an array as a Zarr array; the threads that compute encode and write its chunks.

    `dask.array.to_zarr` moves all bytes of a process through the one event loop of Zarr. This
    function has the same parameters, uses all threads, and can go on after an interruption.

    Parameters
    ----------
    x : dask.array.Array or array_like
        The array, of known chunk sizes. CuPy chunks are copied to the host.
    url : str, path-like, zarr.Array, Zarr store or mapping
        Where to make the array. A `zarr.Array` is written as it is; elements are converted to its
        dtype.
    component : str, optional
        The path of the array in a group, such as ``"ocean/temperature"``.
    storage_options : dict, optional
        Options of fsspec for the protocol of the URL; local paths have none.
    region : tuple of slices, optional
        The region to write of a `zarr.Array`, with steps of 1.
    compute : bool, default True
        Whether to write now, or when the result is computed. The metadata are written now.
    return_stored : bool, default False
        Whether to return the stored array.
    mode : {"a", "w", "w-"}, default "a"
        "w" replaces an array that is there, which is an error otherwise.
    resume : bool, default False
        Whether to leave the chunks that an earlier call with the same arguments has written before
        it was interrupted.
    fsync : bool, default False
        Whether chunks are on the disk when their task ends, so that a call can be resumed even
        after the machine has lost its power.
    kwargs : dict
        More arguments of `zarr.create_array`, such as ``zarr_format``, ``chunks``, ``shards``,
        ``compressors``, ``filters``, ``fill_value`` and ``attributes``.

    Returns
    -------
    None, dask.delayed.Delayed or dask.array.Array
        None after writing, or else what writes. With `return_stored` the stored array, lazy;
        without `compute` its tasks write all chunks before they read any.

    Raises
    ------
    ModuleNotFoundError
        If Zarr is not installed: ``pip install "zarr>=3.1"``.
    ValueError
        If there is an array, chunk sizes are unknown, `region` does not match, or there is nothing
        to resume: another array is unfinished there, or none.
    RuntimeError
        If the store is in the memory of this process, and others would write to it.
    OSError
        When computing, if a chunk cannot be written; the message has the store, the chunk and the
        reason.

    See Also
    --------
    from_zarr : The other way.
    explain : Tells who encodes the chunks.

    Notes
    -----
    Stored chunks are those of `x` by default, the largest along each axis. If they are others, or
    shards, `x` is rechunked so that no two tasks write the same stored chunk. Where a region ends
    within a stored chunk, the task reads it first; two calls must not write it at the same time.

    Files of local folders are written under a temporary name and then renamed. Chunks that have the
    fill value only are not stored, unless Zarr's ``array.write_empty_chunks`` is set. Zarr itself
    writes to other stores, and chunks of codecs and elements that `from_zarr` leaves to it.

    While a local folder is written, it has a file ``.to_zarr.json``, which says whose chunks they
    are, and files with the chunks that are written. They are removed when all is done.

    Examples
    --------
    >>> import os, tempfile
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> path = os.path.join(tempfile.mkdtemp(), "x.zarr")
    >>> dc.to_zarr(da.arange(6, chunks=3), path)
    >>> int(dc.sum(dc.from_zarr(path)).compute())
    15
    """
    x = asanyarray(x)
    chunks_of.kind(x._meta, "x")
    chunks_of.refuse_masked("to_zarr", x._meta)
    if np.isnan(x.shape).any():
        raise ValueError("the chunk sizes of x must be known; call x.compute_chunk_sizes() first")
    if mode not in ("a", "w", "w-"):
        raise ValueError(
            f"mode must be 'a', 'w' or 'w-', got {mode!r}; an array that is there can be given as "
            "a zarr.Array"
        )
    where = _Where(url, component, storage_options)
    if where.is_array:
        plan = _into(url, x, region, resume)
    elif region is not None:
        raise ValueError("region needs a zarr.Array as url")
    else:
        plan = _anew(where, x, {"overwrite": mode == "w", **kwargs}, resume)
    if type(plan.array.store).__name__ == "MemoryStore":
        scheduler = getattr(get_scheduler(collections=[x]), "__module__", "")
        if scheduler.startswith(("distributed.", "dask.multiprocessing")):
            raise RuntimeError("other processes cannot write to the memory of this one")
    target = StoredTarget(plan.array, plan.begin, plan.journal, fsync)
    # A name of its own: a cluster that has the result of an earlier call must write again.
    name = f"to-zarr-{uuid.uuid4().hex}"
    done = writing.writes(plan.x, target, name, plan.written, configured())
    if return_stored and not compute:
        source = StoredArray(plan.array, config.get("coop.files.concurrency", config.COUNT))
        return writing.stored(done, source, plan.x.chunks, plan.begin, f"stored-{tokenize(name)}")
    task = done.to_delayed().item()
    if not compute:
        return task
    task.compute()
    if not return_stored:
        return None
    ends = (begin + n for begin, n in zip(plan.begin, x.shape, strict=True))
    return from_zarr(plan.array)[tuple(map(slice, plan.begin, ends))]


class _Where(NamedTuple):
    """Where an array is, or will be."""

    url: Any
    component: str | None
    storage_options: dict[str, Any] | None

    @property
    def is_array(self) -> bool:
        return isinstance(self.url, _zarr("to_zarr").Array)

    @property
    def store(self) -> dict[str, Any]:
        """The arguments of Zarr's functions that name the store."""
        url = os.fspath(self.url) if isinstance(self.url, os.PathLike) else self.url
        if isinstance(url, str) and url.startswith("file://"):
            # fsspec does not make folders.
            url = url.removeprefix("file://")
        if isinstance(url, str) and "://" in url:
            return {"store": url, "storage_options": self.storage_options or None}
        return {"store": url}

    def existing(self) -> Any:
        """Return the array that exists at this place, or None."""
        import zarr

        try:
            return zarr.open_array(**self.store, path=self.component or "", mode="r+")
        except FileNotFoundError:
            return None


class _Plan(NamedTuple):
    """An array, aligned with the Zarr array that it is written to.

    Attributes
    ----------
    array : zarr.Array
    x : Array
        In chunks that are aligned with the stored ones.
    begin : tuple of int
        Where it begins in `array`.
    journal : Journal or None
    written : set of tuple of int
        The beginnings of blocks that an earlier call has written.
    """

    array: Any
    x: da.Array
    begin: tuple[int, ...]
    journal: Journal | None
    written: set[tuple[int, ...]]


def _anew(where: _Where, x: da.Array, options: dict[str, Any], resume: bool) -> _Plan:
    """Plan to write an array that is to be made."""
    import zarr

    if where.component and "name" in options:
        raise ValueError("component and name are the same, and cannot both be given")
    where = where._replace(component=where.component or options.pop("name", None))
    overwrites = options.pop("overwrite")
    options = {"chunks": tuple(max(1, *n) for n in x.chunks), "dtype": x.dtype, **options}
    # In memory first: errors leave the store as it is, and the metadata are part of the token.
    model = zarr.create_array(zarr.storage.MemoryStore(), **{"shape": x.shape, **options})
    if model.shape != x.shape:
        raise ValueError(f"shape must be that of x, {x.shape}, got {model.shape}")
    begin = (0,) * x.ndim
    x = x.rechunk(aligned(x.chunks, begin, write_unit(model)))
    token = tokenize(x.name, _documents(model))
    existing = None if overwrites else where.existing()
    if existing is not None:
        journal = _journal(existing, "", token)
        if journal is None or journal.owner() is None:
            raise ValueError(
                f"there is an array at {existing.store_path}, which no interrupted call of to_zarr "
                "has left; mode='w' replaces it"
            )
        _check_owner(journal)
        if not resume:
            raise ValueError(
                f"an interrupted call of to_zarr has left a part of this array at "
                f"{journal.folder}; resume=True writes what is missing, and mode='w' all of it"
            )
        return _Plan(existing, x, begin, journal, journal.go_on())
    array = zarr.create_array(
        **where.store, name=where.component, shape=x.shape, overwrite=overwrites, **options
    )
    if (journal := _journal(array, "", token)) is not None:
        journal.begin()
    elif resume:
        raise ValueError(_no_journal(array))
    return _Plan(array, x, begin, journal, set())


def _into(array: Any, x: da.Array, region: tuple[slice, ...] | None, resume: bool) -> _Plan:
    """Plan to write an array that is there, or a region of it."""
    if array.read_only:
        raise ValueError(f"{array.store_path} is open for reading only")
    index = normalize_index(() if region is None else region, array.shape)
    if not all(isinstance(s, slice) and s.step in (None, 1) for s in index):
        raise ValueError(f"region must be slices with steps of 1, got {region!r}")
    bounds = [s.indices(n) for s, n in zip(index, array.shape, strict=True)]
    begin = tuple(first for first, _, _ in bounds)
    shape = tuple(max(0, last - first) for first, last, _ in bounds)
    if shape != x.shape:
        raise ValueError(f"x has the shape {x.shape}, and is written to a region of {shape}")
    x = x.rechunk(aligned(x.chunks, begin, write_unit(array)))
    name = "" if region is None else "_".join(f"{a}-{b}" for a, b, _ in bounds)
    journal = _journal(array, name, tokenize(x.name, _documents(array), begin))
    written: set[tuple[int, ...]] = set()
    if journal is None:
        if resume:
            raise ValueError(_no_journal(array))
    elif journal.owner() is not None and _check_owner(journal) and resume:
        written = journal.go_on()
    else:
        journal.begin()
    return _Plan(array, x, begin, journal, written)


def _journal(array: Any, region: str, token: str) -> Journal | None:
    folder = folder_of(array)
    return None if folder is None else Journal(folder, region, token)


def _check_owner(journal: Journal) -> bool:
    """Return True if an unfinished call wrote the same; raise ValueError otherwise."""
    if journal.owner() != journal.token:
        raise ValueError(
            f"another array, or the same in other chunks or with other metadata, is being written "
            f"to {journal.folder}, or was until a call of to_zarr was interrupted; if that is "
            f"over, remove {journal.marker}, or let mode='w' replace it all"
        )
    return True


def _no_journal(array: Any) -> str:
    return f"resume needs a local folder, and {array.store_path} is none"


def _documents(array: Any) -> dict[str, bytes]:
    """Return the metadata of an array as they are stored."""
    from zarr.core.buffer.cpu import buffer_prototype

    documents = array.metadata.to_buffer_dict(buffer_prototype)
    return {name: document.to_bytes() for name, document in documents.items()}
