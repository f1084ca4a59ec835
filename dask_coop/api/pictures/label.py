"""Connected regions of pictures and volumes."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import asanyarray

from dask_coop import chunks
from dask_coop.api.arguments import rechunk, require_known_sizes
from dask_coop.api.call.public import public
from dask_coop.api.sums import count_nonzero
from dask_coop.graph.pictures import regions


@public("blockwise", dask=False)
def label(x: Any, structure: Any = None) -> tuple[da.Array, da.Array]:
    """Label the connected regions of nonzero elements, and count them.

    Parameters
    ----------
    x : dask.array.Array or array_like
        Bool, integers or floats, in NumPy or CuPy chunks of any number of axes and any lengths.
        NaN is not zero.
    structure : array_like, optional
        The neighbours that connect: true or false, of length 3 along each axis, and symmetric about
        its centre. By default those that share a face; ``numpy.ones((3,) * x.ndim)`` includes
        diagonal neighbours.

    Returns
    -------
    labels : dask.array.Array
        Lazy, in the shape and the chunks of `x`: 0 where it is zero, and the number of the region
        elsewhere, from 1 on. int32, or int64 for arrays of 2**31 - 2 elements or more.
    count : dask.array.Array
        The number of regions: lazy, int64, without axes.

    Raises
    ------
    TypeError
        If `x` is masked, or its elements are none of the above.
    ValueError
        If the lengths of chunks are unknown, or `structure` has another shape or is not symmetric.

    Notes
    -----
    Labels are those of ``scipy.ndimage.label``, equal and not only equivalent: regions are numbered
    in C order of their first elements. NumPy chunks need SciPy.

    Chunks are labelled by themselves. Labels that touch across the faces of chunks are united by
    one task, so that only the faces of chunks travel, and one number for each label of a chunk. The
    labels of all chunks stay in memory until that task ends.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_coop as dc
    >>> x = da.from_array([[1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 1, 1]], chunks=2)
    >>> labels, count = dc.label(x)
    >>> labels.compute()
    array([[1, 1, 0, 2],
           [0, 0, 3, 0],
           [4, 0, 3, 3]], dtype=int32)
    >>> int(count.compute())
    4
    """
    x = asanyarray(x)
    chunks.kind(x._meta, "x")
    chunks.refuse_masked("label", x._meta)
    if x.dtype.kind not in "biuf":
        raise TypeError(f"label takes bool, integers and floats, got dtype {x.dtype}")
    require_known_sizes("label", x)
    near = _structure(structure, x.ndim)
    if not x.size:
        like = chunks.zeros_like(x._meta, np.dtype("i4"))
        labels = x.map_blocks(np.zeros_like, "i4", dtype="i4", meta=like)
        return labels, count_nonzero(labels)
    # Else chunks on both sides of an empty one would not be neighbours.
    sizes = tuple(tuple(n for n in lengths if n) for lengths in x.chunks)
    labels, count = regions.label(rechunk(x, sizes), near)
    return rechunk(labels, x.chunks), count


def _structure(structure: Any, ndim: int) -> np.ndarray[Any, Any]:
    """Return the neighbours that connect, as an array of bool."""
    if structure is None:
        steps = np.indices((3,) * ndim) - 1
        near: np.ndarray[Any, Any] = np.asarray(np.abs(steps).sum(0) <= 1)
        return near
    near = np.asarray(structure).astype("?")
    if near.shape != (3,) * ndim:
        raise ValueError(
            f"structure of label is of length 3 along each axis of x, shape {(3,) * ndim}, "
            f"got {near.shape}"
        )
    if (near != np.flip(near)).any():
        raise ValueError(
            "structure of label is symmetric about its centre, or one element would be the "
            "neighbour of another and not the other way round"
        )
    return near
