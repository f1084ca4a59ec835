"""What public functions have in common in how they take their arguments."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.arguments import rechunk


class Elsewhere(np.ndarray):
    """An array that passes for one of CuPy's."""


Elsewhere.__module__, Elsewhere.__name__ = "cupy", "ndarray"


def elsewhere(x: da.Array) -> da.Array:
    meta = np.empty((0,) * x.ndim, x.dtype).view(Elsewhere)
    return x.map_blocks(lambda b: b.view(Elsewhere), dtype=x.dtype, meta=meta)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, y: dc.histogram(x, 3, (0, 1), weights=y), "a has (.*) chunks and weights"),
        (lambda x, y: dc.bincount(x.astype("i8"), weights=y), "x has (.*) chunks and weights"),
        (lambda x, y: dc.matmul(x, y), "a has (.*) chunks and b"),
        (lambda x, y: dc.cumsum(x, segments=y.astype("?")), "x has (.*) chunks and segments"),
    ],
)
def test_arguments_in_chunks_of_two_kinds_are_refused(call: Any, words: str) -> None:
    x = da.ones(4, chunks=2)
    for pair, kinds in (
        ((x, elsewhere(x)), ("numpy", "cupy")),
        ((elsewhere(x), x), ("cupy", "numpy")),
    ):
        message = words.replace("(.*)", kinds[0]) + f" {kinds[1]} chunks; .*to_backend"
        with pytest.raises(TypeError, match=message):
            call(*pair)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (3, 4)])
def test_rechunking_keeps_the_kind_of_chunk(shape: tuple[int, ...]) -> None:
    sizes = tuple((n // 2, n - n // 2) for n in shape)
    x = elsewhere(da.ones(shape, chunks=3))
    found = rechunk(x, sizes)
    assert found.chunks == sizes
    assert type(found._meta) is Elsewhere
