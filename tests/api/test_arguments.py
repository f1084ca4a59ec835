"""What public functions have in common in how they take their arguments."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_coop as dc
from dask_coop.api.arguments import rechunk

SCANS = ["cumsum", "cumprod", "nancumsum", "nancumprod", "cummax", "cummin", "logcumsumexp"]
REDUCTIONS = [
    *("sum", "prod", "min", "max", "mean", "var", "std", "any", "all", "argmin", "argmax", "ptp"),
    *("nansum", "nanprod", "nanmin", "nanmax", "nanmean", "nanvar", "nanstd", "nanargmin"),
    *("nanargmax", "count_nonzero", "norm", "describe"),
]


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


def outputs(result: Any) -> list[da.Array]:
    """Return the lazy arrays of a result, which may be one or several."""
    parts = result if isinstance(result, tuple | list) else [result]
    nested = [outputs(part) if isinstance(part, tuple | list) else [part] for part in parts]
    return [part for each in nested for part in each if isinstance(part, da.Array)]


CALLS = {
    **{name: lambda x, name=name: getattr(dc, name)(x, axis=0) for name in [*SCANS, *REDUCTIONS]},
    "moment": lambda x: dc.moment(x, 3),
    "sum of one dtype": lambda x: dc.sum(x, dtype=x.dtype),
    "std of one dtype": lambda x: dc.std(x, dtype=x.dtype),
    "nancumsum of one dtype": lambda x: dc.nancumsum(x, axis=0, dtype=x.dtype),
    "reproducible": lambda x: dc.mean(x, reproducible=True),
    "sequential": lambda x: dc.cumsum(x, axis=0, method="sequential"),
    "weights": lambda x: dc.histogram(x, 3, weights=x),
    "edges": lambda x: dc.histogram(x, np.arange(3)),
    "density": lambda x: dc.histogram(x, 3, (0, 9), density=True),
    "histogram2d": lambda x: dc.histogram2d(x, x, 3),
    "bincount": lambda x: dc.bincount(x, weights=x),
    "digitize": lambda x: dc.digitize(x, np.arange(3)),
    "transpose": lambda x: dc.transpose(x),
    "matmul": lambda x: dc.matmul(x, x.T),
}


# The left-overs are NumPy's own: what it does not do, or warns of.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [">f2", ">f8", ">i2", ">u4", ">i8", ">c8", ">m8[s]", ">M8[s]"])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_declared_of_another_byte_order_is_computed(name: str, dtype: str) -> None:
    array = np.arange(200, 212).reshape(3, 4).astype("i8").astype(dtype)

    def called(values: Any) -> Any:
        try:
            lazy = outputs(CALLS[name](da.from_array(values, chunks=2)))
            return lazy, [each.compute(scheduler="synchronous") for each in lazy]
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            return [], type(error)

    lazy, found = called(array)
    _, native = called(array.astype(array.dtype.newbyteorder("=")))
    np.testing.assert_equal(found, native)
    for each, value in zip(lazy, found if lazy else [], strict=True):
        assert (each.dtype.str, each._meta.dtype.str) == (value.dtype.str,) * 2, each.name


#: The arguments that are held to the chunks of the array, by calls of both.
OF_UNKNOWN_SIZES = {
    "weights": [
        lambda x, y: dc.average(x, weights=y),
        lambda x, y: dc.var(x, weights=y),
        lambda x, y: dc.histogram(x, 3, (0, 9), weights=y)[0],
        lambda x, y: dc.histogramdd((x,), 3, ((0, 9),), weights=y)[0],
        lambda x, y: dc.bincount(x.astype("i8"), y, 9),
    ],
    "where": [
        lambda x, y: dc.sum(x, where=y > 1),
        lambda x, y: dc.max(x, where=y > 1, initial=0),
    ],
    "fweights": [lambda x, y: dc.cov(x, fweights=y.astype("i8"))],
    "aweights": [lambda x, y: dc.cov(x, aweights=y)],
    "b": [lambda x, y: dc.crosstab(x.astype("i8"), y.astype("i8"))],
    "sample": [lambda x, y: dc.histogram2d(x, y, 3, ((0, 9), (0, 9)))[0]],
    "segments": [lambda x, y: dc.cumsum(x, axis=0, segments=y > 1)],
}


@pytest.mark.parametrize(
    ("argument", "call"),
    [(name, call) for name, calls in OF_UNKNOWN_SIZES.items() for call in calls],
)
def test_blocks_of_unknown_sizes_are_compared_by_the_tasks(argument: str, call: Any) -> None:
    x = da.arange(9.0, chunks=3)
    some, alone, known = x[x % 3 < 2], x[x % 3 < 1], x.compute()
    expected = call(*(da.from_array(known[known % 3 < 2] + k, chunks=2) for k in range(2)))
    np.testing.assert_equal(*dask.compute(call(some, some + 1), expected))
    # NumPy would broadcast blocks of one element.
    for other in (alone, x[x > 2], x[x < 0]):
        with pytest.raises(ValueError, match=rf"{argument} has a block of shape \("):
            dask.compute(call(some, other))


@pytest.mark.parametrize("call", [dc.cov, dc.corrcoef], ids=lambda call: call.__name__)
def test_variables_of_unknown_sizes_are_refused(call: Any) -> None:
    x = da.arange(9.0, chunks=3)
    with pytest.raises(ValueError, match=r"with y needs known .*compute_chunk_sizes\(\) finds"):
        call(x[x > 2], x[x > 3])
