"""Functions of chunks in the place of bottleneck's."""

import bottleneck as bn
import numpy as np
from by_chunks import chunked, compute, pytest_sessionfinish  # noqa: F401

import dask_coop as dc


def reduction(function):
    return lambda a, axis=None: function(chunked(a), axis)


def deviation(function):
    return lambda a, axis=None, ddof=0: function(chunked(a), axis, ddof=ddof)


def window(function):
    return lambda a, window, min_count=None, axis=-1: function(chunked(a), window, min_count, axis)


def deviation_of_window(function):
    return lambda a, window, min_count=None, axis=-1, ddof=0: function(
        chunked(a), window, min_count, axis, ddof
    )


def ordered(function):
    def call(a, kth, axis=-1):
        a = np.asarray(a)
        size = a.size if axis is None else a.shape[axis]
        if not 0 <= kth < size:
            raise ValueError(f"kth must be between 0 and {size - 1}")
        return function(chunked(a), axis)

    return call


OURS = {
    **{
        name: reduction(getattr(dc, name))
        for name in ("nansum", "nanmean", "nanmin", "nanmax", "nanargmin", "nanargmax")
    },
    **{name: reduction(getattr(dc, name)) for name in ("median", "nanmedian")},
    **{name: deviation(getattr(dc, name)) for name in ("nanstd", "nanvar")},
    "anynan": lambda a, axis=None: dc.any(np.isnan(chunked(a)), axis),
    "allnan": lambda a, axis=None: dc.all(np.isnan(chunked(a)), axis),
    **{
        f"move_{name}": window(getattr(dc, f"move_{name}"))
        for name in ("sum", "mean", "min", "max", "argmin", "argmax", "median", "rank")
    },
    **{f"move_{name}": deviation_of_window(getattr(dc, f"move_{name}")) for name in ("std", "var")},
    "partition": ordered(dc.sort),
    "argpartition": ordered(dc.argsort),
    "rankdata": lambda a, axis=None: dc.rankdata(chunked(a), axis=axis),
    "nanrankdata": lambda a, axis=None: dc.rankdata(chunked(a), axis=axis, nan_policy="omit"),
    "push": lambda a, n=None, axis=-1: dc.ffill(chunked(a), axis, n),
}


def put(name, call):
    def in_place(*arguments, **keywords):
        result = compute(name, call, *arguments, **keywords)
        given = arguments[0].dtype if arguments and hasattr(arguments[0], "dtype") else None
        # Lazy arrays have the machine's order of bytes.
        swapped = given is not None and result.dtype.newbyteorder() == given
        return result.astype(given)[()] if swapped else result

    in_place.__name__ = name
    in_place.__doc__ = getattr(bn, name).__doc__
    setattr(bn, name, in_place)


for name, call in OURS.items():
    put(name, call)
