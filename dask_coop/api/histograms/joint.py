"""Joint histograms along some axes: the bins of several coordinates as one index.

::

    x --digitize--> bins -+
                          +-joint_index--> index --histogram--> counts --reshape--> table
    y --digitize--> bins -+

Each coordinate is compared with its edges in its own dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dask.array.core import Array, map_blocks

from dask_coop.algebra.bins import find_bins
from dask_coop.api.call.public import Engine
from dask_coop.api.histograms import bincount, histogram
from dask_coop.api.histograms.lazy_bins import sample_dtype
from dask_coop.chunks.dtypes import casts, declared_by


def joint_counts(
    samples: Sequence[Array],
    edges: Sequence[Any],
    weights: Any,
    axes: tuple[int, ...],
    *,
    reproducible: bool = False,
    engine: Engine = "auto",
) -> Any:
    """Return counts, or sums of weights, in joint bins for each position along the other axes.

    Parameters
    ----------
    samples : sequence of dask.array.Array
        The coordinates, in equal chunks.
    edges : sequence of numpy.ndarray
        The edges along each coordinate.
    weights : dask.array.Array or None
    axes : tuple of int
        The axes to count over.
    reproducible : bool
    engine : {"auto", "collective"}

    Returns
    -------
    dask.array.Array
        With the axes that are left, in their chunks, and then one for each coordinate.

    Raises
    ------
    ValueError
        If edges do not increase.
    """
    for x, of_array in zip(samples, edges, strict=True):
        # Edges that descend are digitize's too, but no histogram's.
        find_bins(of_array, None, sample_dtype(x))
    lengths = [len(of_array) - 1 for of_array in edges]
    behind = [bincount.digitize(x, of_array) for x, of_array in zip(samples, edges, strict=True)]
    index = map_blocks(
        _joint_index,
        *samples,
        *behind,
        **declared_by(*samples),
        last=[of_array[-1] for of_array in edges],
        lengths=lengths,
        dtype="i8",
        meta=behind[0]._meta,
    )
    total = math.prod(lengths)
    counts, _ = histogram.histogram(
        index,
        total,
        (0, total),
        weights=weights,
        axis=axes,
        reproducible=reproducible,
        engine=engine,
    )
    return counts.reshape(*counts.shape[:-1], *lengths)


# Inside the task.


@casts
def _joint_index(*blocks: Any, last: Sequence[Any], lengths: Sequence[int]) -> Any:
    """Return the bin index of each sample in a table, in C order; -1 outside of all bins.

    `blocks` are the samples along each coordinate, and then the numbers of edges up to them.
    """
    index: Any = 0
    inside: Any = True
    count = len(lengths)
    for x, behind, edge, n in zip(blocks[:count], blocks[count:], last, lengths, strict=True):
        # The last bin holds its right edge, and NaN is behind all bins.
        bin = behind - (x == edge) - 1
        index, inside = index * n + bin, inside & (bin >= 0) & (bin < n)
    return index * inside - ~inside
